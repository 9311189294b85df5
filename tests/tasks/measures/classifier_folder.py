"""Write small random sequence classifiers in the format of transformers."""


def make_classifier(
    folder, labels=("negative", "neutral", "positive"), positions=32, name="Bert", **values
):
    """Write a classifier with one token per letter; return its folder."""
    import torch
    import transformers
    from transformers import BertTokenizerFast

    folder.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = "abcdefghijklmnopqrstuvwxyz"
    (folder / "vocab.txt").write_text("\n".join([*words, *letters, *(f"##{c}" for c in letters)]))
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=positions,
        initializer_range=0.5,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
        **values,
    )
    network = getattr(transformers, f"{name}ForSequenceClassification")(config)
    network.save_pretrained(folder)
    return folder


def make_causal_classifier(folder, pad=None):
    """Write a GPT-2 classifier, which scores the last token; it has no pad token by default."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2ForSequenceClassification, PreTrainedTokenizerFast

    folder.mkdir(parents=True)
    names = ["<pad>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    if pad:
        wrapped.pad_token = pad
    wrapped.save_pretrained(folder)
    torch.manual_seed(5)
    labels = ("negative", "positive")
    config = GPT2Config(
        vocab_size=len(names),
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=32,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None if pad is None else wrapped.pad_token_id,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    )
    GPT2ForSequenceClassification(config).save_pretrained(folder)
    return folder
