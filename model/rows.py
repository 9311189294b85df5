"""Sequences of tokens as rows of a batch: checked, grouped by length, padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.tokens import PAD, Tokens


def by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """The numbers of the sequences that are not empty, those of like length together, the longest
    first; padded, they have at most ``batch_tokens``, or are one."""
    order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: lengths[i])
    while order:
        most = max(1, batch_tokens // lengths[order[-1]])
        yield [order.pop() for _ in range(min(len(order), most))]


def padded(rows: Sequence[Tokens], device: torch.device, pad: int = PAD) -> tuple[Tensor, Tensor]:
    """Ids (B, T) padded to the right, and which of them are real tokens, bool (B, T)."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), lengths.max()), pad, dtype=np.int64)
    for line, row in zip(ids, rows, strict=True):
        line[: len(row)] = row
    real = np.arange(ids.shape[1]) < lengths[:, None]
    return torch.from_numpy(ids).to(device), torch.from_numpy(real).to(device)


def check_ids(sequence: Tokens, vocab_size: int, name: str) -> NDArray[np.int64]:
    """The ids of a sequence, (T,); ValueError where they are no integers, or not of the vocabulary.

    ``name``: what the sentence calls the sequence.
    """
    ids = np.array(sequence)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"{name} is no list of token ids: {str(sequence)[:100]}.")
    bad = ids[(ids < 0) | (ids >= vocab_size)]
    if len(bad):
        raise ValueError(
            f"Token id {bad[0]} is outside the model's vocabulary of {vocab_size}: "
            "was the text encoded with another tokenizer?"
        )
    return ids.astype(np.int64)


class NotNumbersError(ValueError):
    """What a model computed are no numbers."""

    def __init__(self) -> None:
        super().__init__(
            "The model's scores are not numbers (NaN): its weights are damaged, or it diverged "
            "while it was trained."
        )


def check_numbers(log_probs: Tensor) -> Tensor:
    """The same; NotNumbersError where the model has given NaN."""
    if log_probs.isnan().any():
        raise NotNumbersError
    return log_probs
