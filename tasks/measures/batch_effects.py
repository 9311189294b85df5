"""Test whether the output of a network for a sequence depends on the other rows of its batch.

Rows of a batch are padded to one length, and attention to the padding is masked. Some networks
still mix in the padding (through convolutions, Fourier transforms, embeddings of neighbours), and
experts with limited capacity are shared between rows. Therefore each network is tested when it is
opened, with the same sequence alone and in batches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, groupby, islice
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

    #: Computes the outputs of a network for each row of token ids, without those of the padding.
    Forward = Callable[[list[list[int]]], list[Tensor]]

#: Which rows may be in one batch: rows of any length, of equal length, or one row.
Batching = Literal["any length", "equal length", "one row"]

#: Largest difference, relative to the largest output, that rounding can cause between batches of
#: different shapes. Random networks of 180 architectures differ by at most 3e-6; deep networks can
#: differ by ten times as much. Effects of padding are 1e-2 and more.
ROUNDING_TOLERANCE = 3e-4

#: Tokens of a sample, and length of the prefix that its two sequences share. Neither is a multiple
#: of a usual block size, so attention within blocks crosses the end of the prefix.
SAMPLE_LENGTH, SHARED_LENGTH = 41, 23


class SequencePair:
    """Two sequences of the same length with a shared prefix.

    After the prefix each repeats three tokens: means over many different tokens would hardly
    differ.

    Attributes:
        shared_prefix: The prefix.
        first: One sequence.
        second: The other sequence.
    """

    def __init__(
        self, token_ids: Sequence[int], length: int = SAMPLE_LENGTH, seed: int = 0
    ) -> None:
        shared_length = max(1, length * SHARED_LENGTH // SAMPLE_LENGTH) | 1
        tokens = random.Random(seed).sample(token_ids, min(len(token_ids), shared_length + 6))
        token_cycle = cycle(tokens)
        ends = [list(islice(token_cycle, 3)) for _ in range(2)]
        self.shared_prefix = list(islice(token_cycle, shared_length))
        remaining_length = length - shared_length
        self.first, self.second = (
            [*self.shared_prefix, *islice(cycle(end), remaining_length)] for end in ends
        )


def choose_pad_token_id(config: Any, tokenizer: Any, vocab_size: int) -> int:
    """Choose the padding token: the network's own, else the tokenizer's, else 0."""
    ids = (getattr(config, "pad_token_id", None), tokenizer.pad_token_id)
    return next((id for id in ids if isinstance(id, int) and 0 <= id < vocab_size), 0)


def max_relative_difference(first: Tensor, second: Tensor) -> float:
    """Return the largest difference of two outputs (..., V), relative to the largest of each row.

    Values that are not finite, or represent minus infinity, are ignored.
    """
    usable = first.isfinite() & second.isfinite() & (first.abs() < 1e30) & (second.abs() < 1e30)
    first, second = first.where(usable, 0), second.where(usable, 0)
    scale = first.abs().amax(-1).clamp_min(1e-30)
    return float(((first - second).abs().amax(-1) / scale).max())


def choose_batching(forward: Forward, sequences: SequencePair) -> Batching:
    """Choose which rows a network can read in one batch without affecting each other."""
    sequence = sequences.shared_prefix
    unbatched_output = forward([sequence])[0]
    equal_length_rows = [sequences.second[-len(sequence) :], sequence]
    if (
        _measure_relative_difference_of_last_row(forward, unbatched_output, equal_length_rows)
        > ROUNDING_TOLERANCE
    ):
        return "one row"
    padded_rows = [sequences.first, sequence]
    if (
        _measure_relative_difference_of_last_row(forward, unbatched_output, padded_rows)
        > ROUNDING_TOLERANCE
    ):
        return "equal length"
    return "any length"


def _measure_relative_difference_of_last_row(
    forward: Forward, unbatched_output: Tensor, rows: list[list[int]]
) -> float:
    """Return how much the output of the last row differs from that alone; infinite on failure."""
    try:
        return max_relative_difference(unbatched_output, forward(rows)[-1])
    except Exception:  # Some architectures cannot read such a batch.
        return float("inf")


def group_batchable_rows(lengths: Sequence[int], batching: Batching) -> Iterator[list[int]]:
    """Yield the indices of rows that can be in one batch, longest first."""
    longest_first = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    if batching == "one row":
        yield from ([i] for i in longest_first)
    elif batching == "equal length":
        yield from (list(group) for _, group in groupby(longest_first, key=lambda i: lengths[i]))
    elif longest_first:
        yield longest_first
