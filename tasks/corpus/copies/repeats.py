"""Stretches of text that occur again, by a suffix array over all of it (Lee et al. 2022).

Pure functions over bytes; who comes first and what becomes of a stretch is decided elsewhere.

Memory: for each byte of text itself, 4 for its suffix array (8 beyond 2 GB) and 1 to mark what is
alike.
"""

from __future__ import annotations

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


def repeated(text: Bytes, least: int) -> tuple[Int64, Int64]:
    """Where windows of ``least`` bytes begin that occurred before, and where each occurred first;
    the two do not overlap.

    text: (n,) UTF-8 texts behind one another, END behind each; writable, and left as it was. What
    comes first keeps what it shares with what comes later. A window lies within one text.
    ``least`` is at least 8.

    Returns (begins, firsts), (m,) each, in the order of begins.
    """
    from pydivsufsort import divsufsort

    if len(text) < least:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    suffixes = divsufsort(text)
    alike = np.zeros(len(suffixes) + 1, bool)  # whether a suffix begins as the one before it
    ends = np.flatnonzero(text == END)
    for start in range(0, len(suffixes) - 1, CHUNK):
        here = suffixes[start : start + CHUNK + 1].astype(np.int64)
        alike[start + 1 : start + len(here)] = _alike(text, ends, here[:-1], here[1:], least)
    members = np.flatnonzero(alike[:-1] | alike[1:])  # all that begin alike stand side by side
    heads = np.flatnonzero(~alike[members])
    places = suffixes[members].astype(np.int64)
    del suffixes, alike
    if not len(places):
        return places, places
    sizes = np.diff(np.append(heads, len(places)))
    firsts = np.repeat(np.minimum.reduceat(places, heads), sizes)
    later = places >= firsts + least  # a run does not repeat itself before its first window ends
    order = np.argsort(places[later])
    return places[later][order], firsts[later][order]


def _alike(text: Bytes, ends: Int64, left: Int64, right: Int64, least: int) -> Bools:
    """Whether the windows at left and right are the same and lie within a text, (m,)."""
    words = np.ndarray(len(text) - WIDTH + 1, "<u8", text, 0, (1,))  # one begins at every byte
    found = np.zeros(len(left), bool)
    at = np.flatnonzero((left + least <= len(text)) & (right + least <= len(text)))
    # Neighbours that part early mostly differ at the window's end, so that is looked at first.
    for offset in (least - WIDTH, *range(0, least - WIDTH, WIDTH)):
        at = at[words[left[at] + offset] == words[right[at] + offset]]
    if len(at):
        within = ends[np.searchsorted(ends, left[at])] >= left[at] + least
        found[at[within]] = True
    return found


def stretches(text: Bytes, begins: Int64, least: int) -> tuple[Int64, Int64]:
    """The windows that begin at these places, joined where they touch, and cut to whole characters:
    (starts, stops), (k,) each. What is less than a character is left out."""
    if not len(begins):
        return begins, begins
    new = np.flatnonzero(np.append(True, begins[1:] > begins[:-1] + least))
    starts = begins[new]
    stops = np.append(begins[new[1:] - 1], begins[-1]) + least
    for _ in range(3):  # a character has three bytes behind its first at the most
        starts = starts + _continues(text, starts)
        stops = stops - _continues(text, stops)
    whole = starts < stops
    return starts[whole], stops[whole]


def _continues(text: Bytes, places: Int64) -> Bools:
    """Whether the byte there goes on with a character."""
    return (text[np.minimum(places, len(text) - 1)] & 0xC0) == 0x80
