"""Find the runs of tokens that texts share word for word with a corpus that streams past.

All windows of a fixed number of tokens in the texts are indexed by a rolling hash (Karp & Rabin
1987). Windows of the corpus are looked up and compared; adjacent matching windows form a longer
run. Memory is about 50 bytes per token of the texts, 16 MB, and the matches in a batch of the
corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hallmark.model.keyed_randomness import combine_into_key

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]

#: Base of the hash, odd so that it has an inverse modulo 2**64.
_HASH_BASE = np.uint64(0x9E3779B97F4A7C15)
_INVERSE_HASH_BASE = np.uint64(pow(int(_HASH_BASE), -1, 1 << 64))

#: Bits of the table that filters windows before the lookup.
_PREFILTER_BITS = 24

#: Pairs of windows that are held at once, and the number above which a window is frequent.
_PAIRS_PER_BATCH, _MAX_PAIRS_PER_WINDOW = 1 << 22, 1 << 16


@dataclass(frozen=True)
class VerbatimRuns:
    """Hold maximal runs that occur in a text and in a row of the corpus, each array (n,).

    Attributes:
        text_index: Index of the text.
        text_start: First token of the run in the text.
        row_index: Index of the row.
        row_start: First token of the run in the row.
        length: Tokens of the run.
    """

    text_index: Int64
    text_start: Int64
    row_index: Int64
    row_start: Int64
    length: Int64


class KnownWindows(NamedTuple):
    """Windows of rows whose hash is indexed, each array (n,).

    Attributes:
        flat_row_positions: Position of the first token of the window in the flattened rows.
        window_numbers: Index of the hash in ``TokenWindowIndex.window_hashes``.
    """

    flat_row_positions: Int64
    window_numbers: Int64


class MatchingPositions(NamedTuple):
    """Positions where equal windows begin, each array (n,).

    Attributes:
        flat_row_positions: Position in the flattened rows.
        text_positions: Position in the tokens of all texts.
    """

    flat_row_positions: Int64
    text_positions: Int64


class TokenWindowIndex:
    """Index the windows of ``window_size`` tokens of some texts.

    A window that matches more than _MAX_PAIRS_PER_WINDOW pairs of positions, such as a word
    repeated many times, is followed only at its first ``max_positions`` positions in the texts.
    """

    def __init__(
        self, token_id_lists: Sequence[Sequence[int]], window_size: int, max_positions: int = 1 << 8
    ) -> None:
        if window_size < 2:
            raise ValueError(f"window_size is {window_size}; it must be at least 2 tokens")
        lengths = np.array([len(token_ids) for token_ids in token_id_lists], np.int64)
        self.window_size, self.text_offsets = window_size, np.concatenate([[0], np.cumsum(lengths)])
        self.tokens = np.fromiter(
            (token_id for token_ids in token_id_lists for token_id in token_ids),
            np.int32,
            self.text_offsets[-1],
        )
        self.text_indices = np.repeat(np.arange(len(token_id_lists)), lengths)
        hashes = hash_windows(self.tokens[None], window_size)[0]
        # A window that reaches into the next text is not indexed.
        window_starts = np.flatnonzero(
            self.text_indices[: len(hashes)] == self.text_indices[window_size - 1 :][: len(hashes)]
        )
        sorted_starts = window_starts[np.argsort(hashes[window_starts], kind="stable")]
        self.window_hashes, offsets, counts = np.unique(
            hashes[sorted_starts], return_index=True, return_counts=True
        )
        self.window_positions, self.position_offsets, self.counts, self.max_positions = (
            sorted_starts,
            offsets,
            counts,
            max_positions,
        )
        self.prefilter = np.zeros(1 << _PREFILTER_BITS, bool)
        self.prefilter[self.window_hashes >> np.uint64(64 - _PREFILTER_BITS)] = True

    def find_known_windows(self, token_rows: Int32) -> KnownWindows:
        """Find the windows of rows, (n, width), whose hash is indexed."""
        if token_rows.shape[1] < self.window_size or not len(self.window_hashes):
            return KnownWindows(np.empty(0, np.int64), np.empty(0, np.int64))
        hashes = hash_windows(token_rows, self.window_size)  # (n, width - size + 1)
        candidate_positions = np.flatnonzero(
            self.prefilter[hashes.reshape(-1) >> np.uint64(64 - _PREFILTER_BITS)]
        )
        candidate_hashes = hashes.reshape(-1)[candidate_positions]
        window_numbers = np.searchsorted(self.window_hashes, candidate_hashes)
        window_numbers = np.minimum(window_numbers, len(self.window_hashes) - 1)
        is_known = self.window_hashes[window_numbers] == candidate_hashes
        windows_per_row = hashes.shape[1]
        row_positions = (
            candidate_positions[is_known] // windows_per_row * token_rows.shape[1]
            + candidate_positions[is_known] % windows_per_row
        )
        return KnownWindows(row_positions, window_numbers[is_known])

    def iterate_matching_position_batches(self, token_rows: Int32) -> Iterator[MatchingPositions]:
        """Yield the positions where windows of rows, (n, width), equal windows of the texts."""
        row_positions, window_numbers = self.find_known_windows(token_rows)
        pair_counts = self.counts[window_numbers]
        is_frequent = (
            pair_counts * np.bincount(window_numbers, minlength=1)[window_numbers]
            > _MAX_PAIRS_PER_WINDOW
        )
        pair_counts = np.where(
            is_frequent, np.minimum(pair_counts, self.max_positions), pair_counts
        )
        cumulative_counts = np.cumsum(pair_counts)
        batch_bounds = np.searchsorted(
            cumulative_counts,
            np.arange(_PAIRS_PER_BATCH, [*cumulative_counts, 0][-1], _PAIRS_PER_BATCH),
        )
        for batch in np.split(np.arange(len(row_positions)), batch_bounds):
            yield self._find_equal_text_positions(
                token_rows, row_positions[batch], window_numbers[batch], pair_counts[batch]
            )

    def _find_equal_text_positions(
        self,
        token_rows: Int32,
        flat_row_positions: Int64,
        window_numbers: Int64,
        max_text_positions: Int64,
    ) -> MatchingPositions:
        """Find at most ``max_text_positions`` positions in the texts of each window.

        Positions of windows that only share the hash are omitted.
        """
        offsets = np.arange(max_text_positions.sum()) - np.repeat(
            np.cumsum(max_text_positions) - max_text_positions, max_text_positions
        )
        text_matches = self.window_positions[
            np.repeat(self.position_offsets[window_numbers], max_text_positions) + offsets
        ]
        row_matches, flat_rows = (
            np.repeat(flat_row_positions, max_text_positions),
            token_rows.reshape(-1),
        )
        for step in range(self.window_size):  # different windows may have equal hashes
            is_equal = flat_rows[row_matches + step] == self.tokens[text_matches + step]
            row_matches, text_matches = row_matches[is_equal], text_matches[is_equal]
        return MatchingPositions(row_matches, text_matches)

    def find_longest_runs(self, token_rows: Int32) -> VerbatimRuns:
        """Find the longest runs in rows, (n, width), each within one row and one text."""
        matches = [*self.iterate_matching_position_batches(token_rows)]
        row_positions = (
            np.concatenate([batch.flat_row_positions for batch in matches])
            if matches
            else np.empty(0, np.int64)
        )
        text_positions = (
            np.concatenate([batch.text_positions for batch in matches])
            if matches
            else np.empty(0, np.int64)
        )
        order = np.lexsort((row_positions, row_positions - text_positions))
        row_positions, text_positions = row_positions[order], text_positions[order]
        # Adjacent in both: windows never cross the end of a row or of a text.
        starts_run = np.ones(len(row_positions), bool)
        starts_run[1:] = (np.diff(row_positions) != 1) | (np.diff(text_positions) != 1)
        run_starts = np.flatnonzero(starts_run)
        lengths = np.diff([*run_starts, len(row_positions)]) + self.window_size - 1
        text_numbers = self.text_indices[text_positions[run_starts]]
        row_numbers, row_offsets = np.divmod(row_positions[run_starts], token_rows.shape[1])
        return VerbatimRuns(
            text_numbers,
            text_positions[run_starts] - self.text_offsets[text_numbers],
            row_numbers,
            row_offsets,
            lengths.astype(np.int64),
        )

    def mark_text_tokens_found_in_rows(
        self, token_rows: Int32, is_covered: NDArray[np.bool_]
    ) -> None:
        """Mark the tokens of the texts that are within a window that occurs in these rows.

        ``is_covered`` has one flag per token of all texts. Frequent windows are marked everywhere.
        """
        row_positions, window_numbers = self.find_known_windows(token_rows)
        window_numbers, first_matches = np.unique(window_numbers, return_index=True)
        text_positions = self._find_equal_text_positions(
            token_rows, row_positions[first_matches], window_numbers, self.counts[window_numbers]
        ).text_positions
        for step in range(self.window_size):
            is_covered[text_positions + step] = True


def hash_windows(token_rows: Int32, window_size: int) -> UInt64:
    """Hash each window of rows, (n, width), and return (n, width - window_size + 1) hashes.

    The hash is the sum of h(token) * b ** (window_size - place) modulo 2 ** 64.
    """
    n, width = token_rows.shape
    if width < window_size:
        return np.empty((n, 0), np.uint64)
    powers, inverse_powers = np.ones(width + 1, np.uint64), np.ones(width + 1, np.uint64)
    powers[1:], inverse_powers[1:] = _HASH_BASE, _INVERSE_HASH_BASE
    powers, inverse_powers = np.cumprod(powers), np.cumprod(inverse_powers)
    # Mixing gives close token ids hashes that are far apart.
    mixed_ids = combine_into_key(0, token_rows.astype(np.uint64))
    prefix_sums = np.zeros((n, width + 1), np.uint64)
    np.cumsum(mixed_ids * inverse_powers[1:], axis=1, out=prefix_sums[:, 1:])
    return (
        (prefix_sums[:, window_size:] - prefix_sums[:, :-window_size]) * powers[window_size:]
    ).astype(np.uint64)
