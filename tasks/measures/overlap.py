"""Overlap of texts with a set of items, such as an audit's or a benchmark's: stretches of words.

An item overlaps a text that holds any ``words`` consecutive words of it (13 in Brown et al. 2020,
appendix C), or, where it has fewer, all of them. Words are compared in lower case after NFKC,
without punctuation; of scripts that leave no space between words every character is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.measures.words import mix, normalise, word_hashes

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]

#: Bits by which most of what is no hit is passed over.
FILTER = 1 << 20


@dataclass(frozen=True)
class Index:
    """What is looked for: for each number of words the hashes of stretches, ascending, and the
    items that they are of."""

    stretches: dict[int, tuple[UInt64, Int64]]
    items: int
    short: int  # items of fewer words than ``least``, which are not looked for


def index(items: Sequence[str], words: int = 13, least: int = 4) -> Index:
    """``least``: items of fewer words are left out, since they stand in any text."""
    hashes, ends = _words(pa.array(items, pa.large_string()))
    counts = np.diff(ends)
    found: dict[int, tuple[UInt64, Int64]] = {}
    for length, rolled in _rolled(hashes, words):
        own = np.minimum(counts, words) == length
        if length < least or not own.any():
            continue
        owner = np.repeat(np.arange(len(counts)), counts)
        at = np.flatnonzero(own[owner] & _inside(ends, owner, length))
        order = np.lexsort((owner[at], rolled[at]))
        found[length] = (rolled[at][order], owner[at][order])
    return Index(found, len(counts), int((counts < least).sum()))


def overlaps(texts: pa.Array, looked_for: Index) -> tuple[Int64, Int64]:
    """Which text holds a stretch of which item, (m,) each: pairs once, by text, then by item."""
    hashes, ends = _words(texts)
    owner = np.repeat(np.arange(len(texts)), np.diff(ends))
    pairs = [np.empty((0, 2), np.int64)]
    for length, rolled in _rolled(hashes, max(looked_for.stretches, default=0)):
        if length not in looked_for.stretches:
            continue
        known, items = looked_for.stretches[length]
        maybe = np.zeros(FILTER, bool)
        maybe[known % FILTER] = True
        at = np.flatnonzero(maybe[rolled % FILTER] & _inside(ends, owner, length))
        first = np.searchsorted(known, rolled[at], side="left")
        count = np.searchsorted(known, rolled[at], side="right") - first
        hit = np.repeat(first, count) + _counting(count)
        pairs.append(np.stack([np.repeat(owner[at], count), items[hit]], axis=1))
    found = np.unique(np.concatenate(pairs), axis=0)
    return found[:, 0], found[:, 1]


def _words(texts: pa.Array) -> tuple[UInt64, Int64]:
    """A hash for each word, and where those of each text begin and end, (n + 1,)."""
    plain = pc.replace_substring_regex(normalise(texts), r"[^\pL\pN\pM]+", " ")
    plain = pc.utf8_trim_whitespace(plain)
    hashes, ends = word_hashes(plain)
    counts = np.diff(ends)
    none = pc.equal(plain, "").to_numpy(zero_copy_only=False)  # split into one empty word
    hashes = hashes[~np.repeat(none, counts)]
    return hashes, np.concatenate([[0], np.cumsum(np.where(none, 0, counts))])


def _rolled(hashes: UInt64, most: int) -> list[tuple[int, UInt64]]:
    """For 1, 2 ... ``most`` words the hash of those that begin at each word."""
    padded = np.concatenate([hashes, np.zeros(most, np.uint64)])
    mixed = np.zeros(len(hashes), np.uint64)
    found = []
    for length in range(1, most + 1):
        mixed = mix(mixed, padded[length - 1 : length - 1 + len(hashes)])
        found.append((length, mixed))
    return found


def _inside(ends: Int64, owner: Int64, length: int) -> NDArray[np.bool_]:
    """Whether as many words from each on are of its own text."""
    return np.arange(len(owner)) + length <= ends[1:][owner]


def _counting(count: Int64) -> Int64:
    """0 … count - 1 for each, behind one another."""
    return np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
