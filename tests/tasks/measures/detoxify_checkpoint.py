"""Write small checkpoints of all of Detoxify's architectures, in Detoxify's format."""

from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz"
OLD = ["toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate"]
NEW = [
    "toxicity",
    "severe_toxicity",
    "obscene",
    "identity_attack",
    "insult",
    "threat",
    "sexual_explicit",
]
#: Architecture, class names and number of columns by model; auxiliary columns have no name.
VARIANTS = {
    "original": ("Bert", OLD, 6),
    "unbiased": ("Roberta", NEW, 16),
    "multilingual": ("XLMRoberta", NEW, 16),
    "original-small": ("Albert", OLD, 6),
    "unbiased-small": ("Albert", NEW, 16),
}


def make_checkpoint(
    folder: Path, leave_out: str = "", variant: str = "original"
) -> tuple[Path, Path]:
    """Write a random model's checkpoint and its base folder; return both paths."""
    import torch
    import transformers

    architecture, classes, columns = VARIANTS[variant]
    base = folder / "base"
    base.mkdir(parents=True)
    tokenizer = make_tokenizer(architecture)
    tokenizer.save_pretrained(base)
    config = getattr(transformers, f"{architecture}Config")(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=66 if "Roberta" in architecture else 64,
        initializer_range=0.5,  # large enough that texts get different scores
        pad_token_id=tokenizer.pad_token_id,
    )
    config.save_pretrained(base)  # The base model's config has no number of classes.
    config.num_labels = columns
    torch.manual_seed(0)
    name = f"{architecture}ForSequenceClassification"
    state = getattr(transformers, name)(config).state_dict()
    arch = {
        "model_type": str(base),
        "model_name": name,
        "tokenizer_name": f"{architecture}Tokenizer",
        "num_classes": columns,
    }
    saved = {
        "config": {"arch": {"args": arch}, "dataset": {"args": {"classes": classes}}},
        "state_dict": {name: weight for name, weight in state.items() if name != leave_out},
    }
    torch.save(saved, folder / "model.ckpt")
    return folder / "model.ckpt", base


def make_tokenizer(architecture: str):
    """Return a tokenizer of the architecture's kind that has about a token per letter."""
    import transformers

    if architecture == "Bert":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        tokens = [*special, *LETTERS, *("##" + c for c in LETTERS)]
        return transformers.BertTokenizer(vocab={token: n for n, token in enumerate(tokens)})
    if architecture == "Roberta":  # Byte-level; Ġ is a space.
        tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *LETTERS, "Ġ"]
        vocab = {token: n for n, token in enumerate(tokens)}
        return transformers.RobertaTokenizer(vocab=vocab, merges=[])
    pieces = [(piece, -float(n)) for n, piece in enumerate(["▁", *LETTERS, "long", "▁bad"])]
    if architecture == "Albert":
        special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
        return transformers.AlbertTokenizer(vocab=[*((s, 0.0) for s in special), *pieces])
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    vocab = [*((s, 0.0) for s in special), *pieces, ("<mask>", 0.0)]
    return transformers.XLMRobertaTokenizer(vocab=vocab)
