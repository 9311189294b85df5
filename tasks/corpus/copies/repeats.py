"""Find repeated passages of text with a suffix array over all texts (Lee et al. 2022).

These are pure functions over bytes; callers decide the order of texts and what happens to passages.

Memory does not depend on how much repeats. Per byte: 1 for the text, 4 for its suffix array (8
beyond 2 GB), 1 to mark equal windows and 1 to mark repeats; plus the working memory of a chunk
(SUFFIXES_PER_CHUNK).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
UInt8Array = NDArray[np.uint8]
BoolArray = NDArray[np.bool_]

#: Follows every text; does not occur in UTF-8.
TEXT_SEPARATOR = 0xFF

#: Suffixes compared at a time.
SUFFIXES_PER_CHUNK = 1 << 20

#: Bytes compared at a time, as one integer.
COMPARISON_BYTES = 8


def mark_repeated_window_starts(text: UInt8Array, window_bytes: int) -> BoolArray:
    """Mark where a window of ``window_bytes`` bytes begins that occurred before, (n,).

    A marked window does not overlap its first occurrence and lies within one text. So an earlier
    text keeps what it shares with a later one.

    Args:
        text: (n,) UTF-8 texts, TEXT_SEPARATOR after each; must be writable, but is not changed.
        window_bytes: At least 8.
    """
    from pydivsufsort import divsufsort

    if len(text) < window_bytes:
        return np.zeros(len(text), bool)
    suffix_array = divsufsort(text)
    # whether the window of a suffix differs from that of the suffix before it
    starts_group = np.ones(len(suffix_array) + 1, bool)
    separator_positions = np.flatnonzero(text == TEXT_SEPARATOR)
    for start in range(0, len(suffix_array) - 1, SUFFIXES_PER_CHUNK):
        suffix_chunk = suffix_array[start : start + SUFFIXES_PER_CHUNK + 1].astype(np.int64)
        starts_group[start + 1 : start + len(suffix_chunk)] = ~_mark_equal_adjacent_windows(
            text, separator_positions, suffix_chunk, window_bytes
        )
    return _mark_later_occurrences(suffix_array, starts_group, window_bytes)


def _mark_later_occurrences(
    suffix_array: NDArray[Any], starts_group: BoolArray, min_distance_bytes: int
) -> BoolArray:
    """Mark the later occurrences of each group of equal windows, (n,) by position.

    Only positions ``min_distance_bytes`` or more after the first one of the group count, so that a
    run of equal bytes does not repeat itself within its first window.

    Args:
        suffix_array: (n,), each group contiguous.
        starts_group: (n + 1,) whether a group begins here; the last value is true.
    """
    is_repeat = np.zeros(len(suffix_array), bool)
    stop = 0
    while stop < len(suffix_array):
        start, stop = stop, min(stop + SUFFIXES_PER_CHUNK, len(suffix_array))
        # Extend to the end of a group, which may be large.
        stop += int(np.argmax(starts_group[stop:]))
        if stop - start <= 2 * SUFFIXES_PER_CHUNK:  # most groups have one member and are skipped
            repeated_indices = np.flatnonzero(
                ~(starts_group[start:stop] & starts_group[start + 1 : stop + 1])
            )
            positions = suffix_array[start + repeated_indices]
            group_starts = np.flatnonzero(starts_group[start + repeated_indices])
            if len(repeated_indices):
                first_positions = np.minimum.reduceat(positions, group_starts)
                first_positions = np.repeat(
                    first_positions, np.diff(np.append(group_starts, len(repeated_indices)))
                )
                is_repeat[positions[positions - first_positions >= min_distance_bytes]] = True
            continue
        group_starts = start + np.flatnonzero(starts_group[start:stop])
        first_positions = np.minimum.reduceat(suffix_array[:stop], group_starts)
        last_group = -1
        for chunk_start in range(start, stop, SUFFIXES_PER_CHUNK):
            chunk_stop = min(chunk_start + SUFFIXES_PER_CHUNK, stop)
            group_numbers = last_group + np.cumsum(starts_group[chunk_start:chunk_stop])
            last_group = group_numbers[-1]
            positions = suffix_array[chunk_start:chunk_stop]
            is_repeat[
                positions[positions - first_positions[group_numbers] >= min_distance_bytes]
            ] = True
    return is_repeat


def _mark_equal_adjacent_windows(
    text: UInt8Array, separator_positions: Int64Array, positions: Int64Array, window_bytes: int
) -> BoolArray:
    """Return whether neighbouring windows are equal and lie within one text, (m,).

    Args:
        positions: (m + 1,) starts of the windows, in the order of the suffix array.
    """
    # One integer begins at every byte.
    byte_words = np.ndarray(len(text) - COMPARISON_BYTES + 1, "<u8", text, 0, (1,))
    first, second = positions[:-1], positions[1:]
    is_equal = np.zeros(len(first), bool)
    fits_in_input = positions + window_bytes <= len(text)
    # Neighbours that differ early mostly differ at the window's end, so the end is compared first,
    # and read once per window, because the text is larger than any cache.
    last_words = byte_words[np.where(fits_in_input, positions + window_bytes - COMPARISON_BYTES, 0)]
    equal_indices = np.flatnonzero(
        fits_in_input[:-1] & fits_in_input[1:] & (last_words[:-1] == last_words[1:])
    )
    for offset in range(0, window_bytes - COMPARISON_BYTES, COMPARISON_BYTES):
        equal_indices = equal_indices[
            byte_words[first[equal_indices] + offset] == byte_words[second[equal_indices] + offset]
        ]
    if len(equal_indices):
        is_in_one_text = (
            separator_positions[np.searchsorted(separator_positions, first[equal_indices])]
            >= first[equal_indices] + window_bytes
        )
        is_equal[equal_indices[is_in_one_text]] = True
    return is_equal


class RepeatedSpans(NamedTuple):
    """Hold the positions of k spans in the bytes of a text."""

    starts: Int64Array
    """Shape (k,)."""
    stops: Int64Array
    """Exclusive ends; shape (k,)."""


def join_repeated_spans(
    text: UInt8Array, is_window_start: BoolArray, min_bytes: int
) -> RepeatedSpans:
    """Join marked windows that touch, and cut them to whole characters.

    Spans of less than a character are omitted.
    """
    padded_marks = np.concatenate([[False], is_window_start, [False]])
    edges = np.flatnonzero(padded_marks[1:] != padded_marks[:-1])
    starts, stops = edges[::2], edges[1::2] - 1 + min_bytes  # of runs of adjacent window starts
    is_separate = starts[1:] > stops[:-1]
    starts = starts[np.append(True, is_separate)[: len(starts)]]
    stops = stops[np.append(is_separate, True)[: len(stops)]]
    for _ in range(3):  # a character has at most three continuation bytes
        starts = starts + _is_continuation_byte(text, starts)
        stops = stops - _is_continuation_byte(text, stops)
    is_nonempty = starts < stops
    return RepeatedSpans(starts[is_nonempty], stops[is_nonempty])


def _is_continuation_byte(text: UInt8Array, positions: Int64Array) -> BoolArray:
    """Return whether the byte at each position continues a character."""
    is_continuation: BoolArray = (text[np.minimum(positions, len(text) - 1)] & 0xC0) == 0x80
    return is_continuation
