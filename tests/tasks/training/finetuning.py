"""Fine-tune a small checkpoint for tests, in their own process or in another."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import toy_language
from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig, Objective
from hallmark.model.interchange import checkpoint
from hallmark.tasks.contract import (
    Artifact,
    Event,
    Session,
    Store,
    folder_to_artifact,
    open_session,
)
from hallmark.tasks.training.finetune import FinetuneConfig, finetune
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer_by_kind

MODEL = {"d_model": 48, "n_layers": 2, "n_heads": 4, "context": 48}
TRAIN = {
    "steps": 40,
    "batch_size": 16,
    "warmup_steps": 4,
    "learning_rate": 5e-3,
    "threads": 1,
    "checkpoint_every": 20,
    "validate_every": 20,
}


def write_base_checkpoint(
    folder: Path, objective: Objective | None = None, **changes: object
) -> Path:
    """Write an untrained checkpoint with a tokenizer of the toy language."""
    texts = [
        t for s in toy_language.generate_sentences(200, 9) for t in (s.to_text(), s.translate())
    ]
    tokenizer = train_tokenizer_by_kind(iter([texts]), TokenizerConfig(vocab_size=400))
    file = folder.with_name("tokenizer.json")
    tokenizer.save(str(file))
    torch.manual_seed(2)
    size = tokenizer.get_vocab_size()
    model = Transformer(ModelConfig(**{**MODEL, "vocab_size": size, **changes}))  # type: ignore[arg-type]
    model.objective = objective or model.objective
    checkpoint.save_checkpoint(model, folder, tokenizer_path=file)
    return folder


def tune(
    store: Path, start: Path, *, listener: Callable[[Event], None] | None = None, **config: object
) -> Artifact:
    """Fine-tune the checkpoint in a folder; return the result."""
    settings = FinetuneConfig.model_validate({"train": TRAIN, **config})
    with open_session(Session(Store(store), **({"listener": listener} if listener else {}))):
        return finetune(folder_to_artifact(start, "checkpoint"), settings)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    where, start, data = map(Path, sys.argv[1:])
    task = {"kind": "labelling"}
    print(tune(where, start, task=task, data={"path": str(data)}).content_digest, flush=True)
