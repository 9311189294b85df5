"""Stretches of text that occur again, by a suffix array over all of it (Lee et al. 2022).

Pure functions over bytes; who comes first and what becomes of a stretch is decided elsewhere.

Memory, however much repeats: for each byte of text itself, 4 for its suffix array (8 beyond 2 GB),
1 to mark what is alike and 1 to mark what repeats; and what is worked on at a time (CHUNK).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
UInt8Array = NDArray[np.uint8]
BoolArray = NDArray[np.bool_]

#: Stands behind every text; no UTF-8 text holds it.
TEXT_SEPARATOR = 0xFF

#: Suffixes compared at a time.
SUFFIXES_PER_CHUNK = 1 << 20

#: Bytes compared at a time: those of an integer.
COMPARISON_BYTES = 8


def mark_repeated_windows(text: UInt8Array, min_bytes: int) -> BoolArray:
    """Whether a window of ``least`` bytes begins here that occurred before, (n,); it does not
    overlap the one that occurred first.

    text: (n,) UTF-8 texts behind one another, END behind each; writable, and left as it was. What
    comes first keeps what it shares with what comes later. A window lies within one text.
    ``least`` is at least 8.
    """
    from pydivsufsort import divsufsort

    if len(text) < min_bytes:
        return np.zeros(len(text), bool)
    suffix_array = divsufsort(text)
    starts_group = np.ones(
        len(suffix_array) + 1, bool
    )  # whether a suffix begins not as the one before it
    separator_positions = np.flatnonzero(text == TEXT_SEPARATOR)
    for start in range(0, len(suffix_array) - 1, SUFFIXES_PER_CHUNK):
        suffix_chunk = suffix_array[start : start + SUFFIXES_PER_CHUNK + 1].astype(np.int64)
        starts_group[start + 1 : start + len(suffix_chunk)] = ~_compare_adjacent_windows(
            text, separator_positions, suffix_chunk, min_bytes
        )
    return _mark_later_occurrences(suffix_array, starts_group, min_bytes)


def _mark_later_occurrences(
    suffix_array: NDArray[Any], starts_group: BoolArray, min_bytes: int
) -> BoolArray:
    """Of each group of suffixes that begin alike the places ``least`` or more behind its first, as
    (n,) by place: a run does not repeat itself before its first window ends.

    suffixes: (n,), each group side by side; new: (n + 1,), where a group begins, and at the end.
    """
    is_repeat = np.zeros(len(suffix_array), bool)
    stop = 0
    while stop < len(suffix_array):
        start, stop = stop, min(stop + SUFFIXES_PER_CHUNK, len(suffix_array))
        stop += int(np.argmax(starts_group[stop:]))  # to the end of a group, which may be large
        if stop - start <= 2 * SUFFIXES_PER_CHUNK:  # most groups are of one, and pass
            repeated_indices = np.flatnonzero(
                ~(starts_group[start:stop] & starts_group[start + 1 : stop + 1])
            )
            positions, group_starts = (
                suffix_array[start + repeated_indices],
                np.flatnonzero(starts_group[start + repeated_indices]),
            )
            if len(repeated_indices):
                first_positions = np.minimum.reduceat(positions, group_starts)
                first_positions = np.repeat(
                    first_positions, np.diff(np.append(group_starts, len(repeated_indices)))
                )
                is_repeat[positions[positions - first_positions >= min_bytes]] = True
            continue
        group_starts = start + np.flatnonzero(starts_group[start:stop])
        first_positions = np.minimum.reduceat(suffix_array[:stop], group_starts)
        last_group = -1
        for chunk_start in range(start, stop, SUFFIXES_PER_CHUNK):
            chunk_stop = min(chunk_start + SUFFIXES_PER_CHUNK, stop)
            group_numbers = last_group + np.cumsum(starts_group[chunk_start:chunk_stop])
            last_group = group_numbers[-1]
            positions = suffix_array[chunk_start:chunk_stop]
            is_repeat[positions[positions - first_positions[group_numbers] >= min_bytes]] = True
    return is_repeat


def _compare_adjacent_windows(
    text: UInt8Array, separator_positions: Int64Array, positions: Int64Array, min_bytes: int
) -> BoolArray:
    """Whether the windows at two places that follow one another here, (m + 1,), are the same and
    lie within a text, (m,)."""
    byte_words = np.ndarray(
        len(text) - COMPARISON_BYTES + 1, "<u8", text, 0, (1,)
    )  # one begins at every byte
    first, second = positions[:-1], positions[1:]
    is_equal = np.zeros(len(first), bool)
    fits_in_input = positions + min_bytes <= len(text)
    # Neighbours that part early mostly differ at the window's end, so that is looked at first; each
    # is read once, for the text is larger than any cache.
    last_words = byte_words[np.where(fits_in_input, positions + min_bytes - COMPARISON_BYTES, 0)]
    equal_indices = np.flatnonzero(
        fits_in_input[:-1] & fits_in_input[1:] & (last_words[:-1] == last_words[1:])
    )
    for offset in range(0, min_bytes - COMPARISON_BYTES, COMPARISON_BYTES):
        equal_indices = equal_indices[
            byte_words[first[equal_indices] + offset] == byte_words[second[equal_indices] + offset]
        ]
    if len(equal_indices):
        is_in_one_text = (
            separator_positions[np.searchsorted(separator_positions, first[equal_indices])]
            >= first[equal_indices] + min_bytes
        )
        is_equal[equal_indices[is_in_one_text]] = True
    return is_equal


def join_repeated_spans(
    text: UInt8Array, is_window_start: BoolArray, min_bytes: int
) -> tuple[Int64Array, Int64Array]:
    """The windows that begin where it is marked, joined where they touch, and cut to whole
    characters: (starts, stops), (k,) each. What is less than a character is left out."""
    padded_marks = np.concatenate([[False], is_window_start, [False]])
    edges = np.flatnonzero(padded_marks[1:] != padded_marks[:-1])
    starts, stops = edges[::2], edges[1::2] - 1 + min_bytes  # of windows that begin side by side
    is_separate = starts[1:] > stops[:-1]
    starts = starts[np.append(True, is_separate)[: len(starts)]]
    stops = stops[np.append(is_separate, True)[: len(stops)]]
    for _ in range(3):  # a character has three bytes behind its first at the most
        starts = starts + _is_continuation_byte(text, starts)
        stops = stops - _is_continuation_byte(text, stops)
    is_nonempty = starts < stops
    return starts[is_nonempty], stops[is_nonempty]


def _is_continuation_byte(text: UInt8Array, positions: Int64Array) -> BoolArray:
    """Whether the byte there goes on with a character."""
    return (text[np.minimum(positions, len(text) - 1)] & 0xC0) == 0x80
