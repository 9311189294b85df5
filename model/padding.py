"""Sequences of tokens as rows of a batch: checked, grouped by length, padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.special_tokens import PAD_ID, TokenIds


def batch_indices_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """The numbers of the sequences that are not empty, those of like length together, the longest
    first; padded, they have at most ``batch_tokens``, or are one."""
    order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: lengths[i])
    while order:
        batch_size = max(1, batch_tokens // lengths[order[-1]])
        yield [order.pop() for _ in range(min(len(order), batch_size))]


def pad_rows(
    sequences: Sequence[TokenIds], device: torch.device, pad_id: int = PAD_ID
) -> tuple[Tensor, Tensor]:
    """Ids (B, T) padded to the right, and which of them are real tokens, bool (B, T)."""
    lengths = np.array([len(sequence) for sequence in sequences])
    ids = np.full((len(sequences), lengths.max()), pad_id, dtype=np.int64)
    for padded_row, sequence in zip(ids, sequences, strict=True):
        padded_row[: len(sequence)] = sequence
    attention_mask = np.arange(ids.shape[1]) < lengths[:, None]
    return torch.from_numpy(ids).to(device), torch.from_numpy(attention_mask).to(device)


def check_token_ids(sequence: TokenIds, vocab_size: int, description: str) -> NDArray[np.int64]:
    """The ids of a sequence, (T,); ValueError where they are no integers, or not of the vocabulary.

    ``name``: what the sentence calls the sequence.
    """
    ids = np.array(sequence)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"{description} is no list of token ids: {str(sequence)[:100]}.")
    invalid_ids = ids[(ids < 0) | (ids >= vocab_size)]
    if len(invalid_ids):
        raise ValueError(
            f"Token id {invalid_ids[0]} is outside the model's vocabulary of {vocab_size}: "
            "was the text encoded with another tokenizer?"
        )
    return ids.astype(np.int64)


class NanScoresError(ValueError):
    """What a model computed are no numbers."""

    def __init__(self) -> None:
        super().__init__(
            "The model's scores are not numbers (NaN): its weights are damaged, or it diverged "
            "while it was trained."
        )


def check_no_nan(log_probs: Tensor) -> Tensor:
    """The same; NotNumbersError where the model has given NaN."""
    if log_probs.isnan().any():
        raise NanScoresError
    return log_probs
