"""Stretches of text that occur again, by a suffix array over all of it (Lee et al. 2022).

Pure functions over bytes; who comes first and what becomes of a stretch is decided elsewhere.

Memory, however much repeats: for each byte of text itself, 4 for its suffix array (8 beyond 2 GB),
1 to mark what is alike and 1 to mark what repeats; and what is worked on at a time (CHUNK).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]

#: Stands behind every text; no UTF-8 text holds it.
END = 0xFF

#: Suffixes compared at a time.
CHUNK = 1 << 20

#: Bytes compared at a time: those of an integer.
WIDTH = 8


def repeated(text: Bytes, least: int) -> Bools:
    """Whether a window of ``least`` bytes begins here that occurred before, (n,); it does not
    overlap the one that occurred first.

    text: (n,) UTF-8 texts behind one another, END behind each; writable, and left as it was. What
    comes first keeps what it shares with what comes later. A window lies within one text.
    ``least`` is at least 8.
    """
    from pydivsufsort import divsufsort

    if len(text) < least:
        return np.zeros(len(text), bool)
    suffixes = divsufsort(text)
    new = np.ones(len(suffixes) + 1, bool)  # whether a suffix begins not as the one before it
    ends = np.flatnonzero(text == END)
    for start in range(0, len(suffixes) - 1, CHUNK):
        here = suffixes[start : start + CHUNK + 1].astype(np.int64)
        new[start + 1 : start + len(here)] = ~_alike(text, ends, here, least)
    return _later(suffixes, new, least)


def _later(suffixes: NDArray[Any], new: Bools, least: int) -> Bools:
    """Of each group of suffixes that begin alike the places ``least`` or more behind its first, as
    (n,) by place: a run does not repeat itself before its first window ends.

    suffixes: (n,), each group side by side; new: (n + 1,), where a group begins, and at the end.
    """
    marks = np.zeros(len(suffixes), bool)
    stop = 0
    while stop < len(suffixes):
        start, stop = stop, min(stop + CHUNK, len(suffixes))
        stop += int(np.argmax(new[stop:]))  # to the end of a group, which may be large
        if stop - start <= 2 * CHUNK:  # most groups are of one, and pass
            some = np.flatnonzero(~(new[start:stop] & new[start + 1 : stop + 1]))
            places, heads = suffixes[start + some], np.flatnonzero(new[start + some])
            if len(some):
                firsts = np.minimum.reduceat(places, heads)
                firsts = np.repeat(firsts, np.diff(np.append(heads, len(some))))
                marks[places[places - firsts >= least]] = True
            continue
        heads = start + np.flatnonzero(new[start:stop])
        firsts = np.minimum.reduceat(suffixes[:stop], heads)
        before = -1
        for low in range(start, stop, CHUNK):
            high = min(low + CHUNK, stop)
            group = before + np.cumsum(new[low:high])
            before = group[-1]
            places = suffixes[low:high]
            marks[places[places - firsts[group] >= least]] = True
    return marks


def _alike(text: Bytes, ends: Int64, places: Int64, least: int) -> Bools:
    """Whether the windows at two places that follow one another here, (m + 1,), are the same and
    lie within a text, (m,)."""
    words = np.ndarray(len(text) - WIDTH + 1, "<u8", text, 0, (1,))  # one begins at every byte
    left, right = places[:-1], places[1:]
    found = np.zeros(len(left), bool)
    whole = places + least <= len(text)
    # Neighbours that part early mostly differ at the window's end, so that is looked at first; each
    # is read once, for the text is larger than any cache.
    last = words[np.where(whole, places + least - WIDTH, 0)]
    at = np.flatnonzero(whole[:-1] & whole[1:] & (last[:-1] == last[1:]))
    for offset in range(0, least - WIDTH, WIDTH):
        at = at[words[left[at] + offset] == words[right[at] + offset]]
    if len(at):
        within = ends[np.searchsorted(ends, left[at])] >= left[at] + least
        found[at[within]] = True
    return found


def stretches(text: Bytes, begins: Bools, least: int) -> tuple[Int64, Int64]:
    """The windows that begin where it is marked, joined where they touch, and cut to whole
    characters: (starts, stops), (k,) each. What is less than a character is left out."""
    marks = np.concatenate([[False], begins, [False]])
    edges = np.flatnonzero(marks[1:] != marks[:-1])
    starts, stops = edges[::2], edges[1::2] - 1 + least  # of windows that begin side by side
    apart = starts[1:] > stops[:-1]
    starts = starts[np.append(True, apart)[: len(starts)]]
    stops = stops[np.append(apart, True)[: len(stops)]]
    for _ in range(3):  # a character has three bytes behind its first at the most
        starts = starts + _continues(text, starts)
        stops = stops - _continues(text, stops)
    whole = starts < stops
    return starts[whole], stops[whole]


def _continues(text: Bytes, places: Int64) -> Bools:
    """Whether the byte there goes on with a character."""
    return (text[np.minimum(places, len(text) - 1)] & 0xC0) == 0x80
