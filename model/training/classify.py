"""Sequence classification: a checkpoint with a head in place of its output layer, fine-tuned.

As in BERT (Devlin et al. 2019) the state of the first token, through a matrix and tanh, says what
the sequence is; a decoder, whose first token sees nothing, is read at its last token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from model.architecture import Transformer
from model.batch import Batch
from model.decoding.mode import asks
from model.decoding.score import check_ids, padded
from model.interchange import checkpoint
from model.interchange.checkpoint import CheckpointError
from model.interchange.files import atomic_folder, save_tensors
from model.training.data import combine, permute
from model.training.optimise import clip

HEAD, BODY = "classifier.safetensors", "model"


class SequenceClassifier(nn.Module):
    """Logits (B, C) of sequences; the body is an encoder-only or a decoder-only model."""

    def __init__(self, body: Transformer, classes: int) -> None:
        super().__init__()
        if body.config.architecture == "encoder_decoder":
            raise ValueError("Classification reads one stack: an encoder or a decoder.")
        if classes < 2:
            raise ValueError(f"Classification needs at least 2 classes, not {classes}.")
        self.body = body
        device, dtype = body.embedding.weight.device, body.embedding.weight.dtype
        d = body.config.d_model
        self.pooler = nn.Linear(d, d, device=device, dtype=dtype)
        self.dropout = nn.Dropout(body.config.dropout)
        self.output = nn.Linear(d, classes, device=device, dtype=dtype)
        draws = torch.Generator(device).manual_seed(0)  # the same head whatever was drawn before
        for matrix in (self.pooler, self.output):
            nn.init.normal_(matrix.weight, std=0.02, generator=draws)
            nn.init.zeros_(matrix.bias)

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        """ids (B, T), padded to the right; ``real`` (B, T) bool says which are tokens."""
        states = self.body.states(Batch(ids, keys=real))  # (B, T, d)
        if self.body.decoder is None:
            chosen = states[:, 0]
        else:
            chosen = states[torch.arange(len(ids), device=ids.device), real.sum(1) - 1]
        logits: Tensor = self.output(self.dropout(self.pooler(chosen).tanh()))
        return logits


@dataclass(frozen=True)
class FineTuning:
    """Settings of ``fine_tune``: AdamW, a linear warm-up over ``warmup`` of the steps, then a
    linear fall to 0."""

    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 5e-5
    weight_decay: float = 0.01
    warmup: float = 0.1
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch_size) < 1:
            raise ValueError("epochs and batch_size must be at least 1.")
        if not 0.0 < self.clip < math.inf or not 0.0 <= self.weight_decay < math.inf:
            raise ValueError("clip must be positive, and weight_decay 0 or more.")
        if not 0.0 < self.learning_rate < math.inf or not 0.0 <= self.warmup < 1.0:
            raise ValueError("learning_rate must be positive and warmup between 0 and 1.")


def fine_tune(
    classifier: SequenceClassifier,
    sequences: Sequence[Sequence[int]],
    labels: Sequence[int],
    config: FineTuning,
) -> list[float]:
    """Train body and head on labelled token sequences; the mean loss of each step, in nats.

    Which sequences a step sees is a function of (seed, step). ValueError names a sequence that is
    empty or longer than the context, and a label that is no class.
    """
    _check(classifier, sequences)
    labels = [int(label) if isinstance(label, np.integer | bool) else label for label in labels]
    classes = classifier.output.out_features
    if len(labels) != len(sequences) or not len(labels):
        raise ValueError(f"{len(sequences)} sequences need as many labels, not {len(labels)}.")
    for i, label in enumerate(labels):
        if not isinstance(label, int) or not 0 <= label < classes:
            raise ValueError(f"Label {i} is {label}; there are the classes 0 to {classes - 1}.")
    device, count = classifier.output.weight.device, len(sequences)
    answers = torch.tensor(list(labels), device=device)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in classifier.parameters() if p.ndim >= 2]},
        {"params": [p for p in classifier.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=config.weight_decay)
    steps = config.epochs * math.ceil(count / config.batch_size)
    torch.manual_seed(config.seed)  # dropout
    classifier.train()
    losses: list[float] = []
    for epoch in range(config.epochs):
        order = permute(np.arange(count), count, combine(config.seed, epoch))
        for begin in range(0, count, config.batch_size):
            rows = order[begin : begin + config.batch_size]
            done = len(losses) / steps
            share = min(1.0, (done + 1 / steps) / config.warmup) if config.warmup else 1.0
            fall = (1 - done) / (1 - config.warmup)
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * min(share, fall)
            logits = classifier(*padded([sequences[i] for i in rows], device))
            loss = F.cross_entropy(logits, answers[torch.from_numpy(rows).to(device)])
            loss.backward()
            clip(classifier.parameters(), config.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
    classifier.eval()
    return losses


@asks
def predict(
    classifier: SequenceClassifier, sequences: Sequence[Sequence[int]], *, batch_size: int = 64
) -> NDArray[np.float32]:
    """Probabilities (n, C) of the classes, in the order of the sequences."""
    _check(classifier, sequences)
    result = np.empty((len(sequences), classifier.output.out_features), dtype=np.float32)
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    for begin in range(0, len(order), batch_size):
        rows = order[begin : begin + batch_size]
        ids, real = padded([sequences[i] for i in rows], classifier.output.weight.device)
        result[rows] = classifier(ids, real).float().softmax(-1).cpu().numpy()
    return result


def _check(classifier: SequenceClassifier, sequences: Sequence[Sequence[int]]) -> None:
    config = classifier.body.config
    for i, sequence in enumerate(sequences):
        if not 0 < len(sequence) <= config.context:
            raise ValueError(
                f"Sequence {i} has {len(sequence)} tokens, not between 1 and {config.context}."
            )
        check_ids(sequence, config.vocab_size, f"Sequence {i}")


def save(classifier: SequenceClassifier, folder: str | Path, *, tokenizer: str | Path) -> None:
    """Write the classifier: its body as a checkpoint, its head beside; whole or not at all."""
    head = {
        name: tensor.contiguous()
        for name, tensor in classifier.state_dict().items()
        if not name.startswith("body.")
    }
    with atomic_folder(Path(folder)) as temporary:
        save_tensors(head, temporary / HEAD)
        checkpoint.save(classifier.body, temporary / BODY, tokenizer=tokenizer)


def load(folder: str | Path, device: str | torch.device = "cpu") -> SequenceClassifier:
    """The classifier that ``save`` wrote, in evaluation mode. Raises CheckpointError."""
    path = Path(folder) / HEAD
    body = checkpoint.load(Path(folder) / BODY, device=device)
    try:
        head = load_file(path)
        classifier = SequenceClassifier(body, len(head["output.bias"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not the head of a classifier: {error}.") from error
    own = {n: t for n, t in classifier.state_dict().items() if not n.startswith("body.")}
    checkpoint.compare(path, checkpoint.shapes(own), checkpoint.shapes(head))
    checkpoint.check_floats(path, head)
    classifier.load_state_dict(head, strict=False)  # the body has its weights
    return classifier.eval()
