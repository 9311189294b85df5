"""A small random sequence classifier as transformers saves it."""


def make_classifier(folder, labels=("negative", "neutral", "positive"), positions=32):
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = "abcdefghijklmnopqrstuvwxyz"
    (folder / "vocab.txt").write_text("\n".join([*words, *letters, *(f"##{c}" for c in letters)]))
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=positions,
        initializer_range=0.5,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder
