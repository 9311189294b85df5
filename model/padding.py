"""Turn token sequences into rows of a batch: check them, group them by length, and pad them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hallmark.model.special_tokens import PAD_ID, TokenIds


def batch_indices_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices of the non-empty sequences, grouped by length, longest first.

    A padded batch has at most ``batch_tokens`` tokens, or is a single sequence.
    """
    order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: lengths[i])
    while order:
        batch_size = max(1, batch_tokens // lengths[order[-1]])
        yield [order.pop() for _ in range(min(len(order), batch_size))]


class PaddedRows(NamedTuple):
    """Sequences as rows of equal length.

    Attributes:
        ids: token ids, padded on the right, (B, T).
        attention_mask: bool, True at real tokens, (B, T).
    """

    ids: Tensor
    attention_mask: Tensor


def pad_rows(
    sequences: Sequence[TokenIds], device: torch.device, pad_id: int = PAD_ID
) -> PaddedRows:
    """Pad sequences on the right with ``pad_id``."""
    lengths = np.array([len(sequence) for sequence in sequences])
    ids = np.full((len(sequences), lengths.max()), pad_id, dtype=np.int64)
    for padded_row, sequence in zip(ids, sequences, strict=True):
        padded_row[: len(sequence)] = sequence
    attention_mask = np.arange(ids.shape[1]) < lengths[:, None]
    return PaddedRows(torch.from_numpy(ids).to(device), torch.from_numpy(attention_mask).to(device))


def check_token_ids(sequence: TokenIds, vocab_size: int, description: str) -> NDArray[np.int64]:
    """Return the ids of a sequence as an array (T,).

    Raises:
        ValueError: They are not integers, or outside the vocabulary. ``description`` names the
            sequence in the message.
    """
    ids = np.array(sequence)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"{description} is not a list of token ids: {str(sequence)[:100]}.")
    invalid_ids = ids[(ids < 0) | (ids >= vocab_size)]
    if len(invalid_ids):
        raise ValueError(
            f"Token id {invalid_ids[0]} is not in the model's vocabulary of {vocab_size} tokens. "
            "Was the text encoded with another tokenizer?"
        )
    return ids.astype(np.int64)


class NanScoresError(ValueError):
    """The model computed scores that are not numbers (NaN)."""

    def __init__(self) -> None:
        super().__init__(
            "The model's scores are not numbers (NaN). Its weights are damaged or its training "
            "diverged."
        )


def check_no_nan(log_probs: Tensor) -> Tensor:
    """Return ``log_probs``; raise NanScoresError if any is NaN."""
    if log_probs.isnan().any():
        raise NanScoresError
    return log_probs
