"""A small BERT saved the way Detoxify saves its checkpoints."""

from pathlib import Path


def make_checkpoint(folder: Path, leave_out: str = "") -> tuple[Path, Path]:
    """Write a random model's checkpoint and its base folder; return both paths."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    base = folder / "base"
    base.mkdir()
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters)]
    (base / "vocab.txt").write_text("\n".join(tokens))
    BertTokenizerFast(str(base / "vocab.txt")).save_pretrained(base)
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.5,  # large enough that texts get different scores
    )
    config.save_pretrained(base)  # of the base model: it does not know the number of classes
    classes = ["toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate"]
    config.num_labels = len(classes)
    torch.manual_seed(0)
    state = BertForSequenceClassification(config).state_dict()
    arch = {
        "model_type": str(base),
        "model_name": "BertForSequenceClassification",
        "tokenizer_name": "BertTokenizer",
        "num_classes": len(classes),
    }
    saved = {
        "config": {"arch": {"args": arch}, "dataset": {"args": {"classes": classes}}},
        "state_dict": {name: weight for name, weight in state.items() if name != leave_out},
    }
    torch.save(saved, folder / "model.ckpt")
    return folder / "model.ckpt", base
