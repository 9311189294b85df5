"""Sketches of normalised texts: cut into shingles, and hashed into bands for MinHash-LSH.

Pure functions over Arrow columns; what is done with them is in ``deduplicate_near.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.measures.words import mix, word_hashes


def shingles(
    texts: pa.Array, length: int, of: Literal["words", "characters"] = "words"
) -> tuple[np.ndarray, np.ndarray]:
    """64-bit shingle hashes of normalised texts, in the order of the text, copies among them.

    In scripts that leave no space between words every character counts as a word. A text that is
    shorter than a shingle is one by itself.

    Returns (hashes, offsets): those of text i are ``hashes[offsets[i]:offsets[i + 1]]``; no text is
    without any. MinHash needs them neither distinct nor sorted.
    """
    hashes, ends = _characters(texts) if of == "characters" else word_hashes(texts)
    counts = np.diff(ends)
    found = np.maximum(counts - length + 1, 1)  # shingles of each text
    offsets = np.concatenate([[0], np.cumsum(found)])  # (n + 1,)
    first = np.arange(offsets[-1]) + np.repeat(ends[:-1] - offsets[:-1], found)  # word of each
    padded = np.concatenate([hashes, np.zeros(length, np.uint64)])
    mixed = np.zeros(len(first), np.uint64)
    for step in range(length):
        mixed = mix(mixed, padded[first + step])
    # A shorter text is one shingle of all its words, and ran into the next one above.
    short = np.flatnonzero(counts < length)
    whole = np.zeros(len(short), np.uint64)
    for step in range(length):
        inside = step < counts[short]
        whole = mix(whole, np.where(inside, padded[ends[short] + step], np.uint64(0)))
    mixed[offsets[short]] = whole
    return mixed, offsets


def _characters(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """As ``word_hashes``, a hash for each code point."""
    joined = "".join(texts.to_pylist()).encode("utf-32-le")
    points = np.frombuffer(joined, "<u4").astype(np.uint64)
    lengths = pc.utf8_length(texts).to_numpy().astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return mix(points, np.uint64(0x2545F4914F6CDD1D)), ends


#: Hashes worked on at a time, so that they stay in the processor's cache.
BLOCK = 1 << 15


def band_hashes(
    hashes: np.ndarray, offsets: np.ndarray, count: int, rows: int, seed: int
) -> np.ndarray:
    """(n, count) uint32: one hash for the ``rows`` minima of each of ``count`` bands.

    Each minimum is over another permutation of 32 bits, an exclusive or and a product with an odd
    number modulo 2^32 (Dietzfelbinger et al. 1997): which texts meet is decided by chance close
    enough to the formula (tested), and every pair that does is compared in full.
    """
    draw = np.random.default_rng(seed)
    odd = draw.integers(0, 1 << 32, count * rows, dtype=np.uint32) | np.uint32(1)
    mask = draw.integers(0, 1 << 32, count * rows, dtype=np.uint32)
    minima = _minima((hashes >> np.uint64(32)).astype(np.uint32), offsets, odd, mask)
    bands = np.zeros((len(offsets) - 1, count), np.uint64)
    for row in range(rows):
        bands = mix(bands, minima[row::rows].T.astype(np.uint64))
    return (bands >> np.uint64(32)).astype(np.uint32)


def _minima(
    hashes: np.ndarray, offsets: np.ndarray, odd: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """(permutations, n) uint32: the least of each text's hashes under each permutation.

    Texts of about one length are worked on together, a column each, the shorter ones filled up with
    their last hash: the processor then compares many texts at once.
    """
    sizes = np.diff(offsets)
    minima = np.empty((len(odd), len(sizes)), np.uint32)
    for texts, length in _alike(sizes):
        place = np.minimum(np.arange(length)[:, None], sizes[texts] - 1)  # (length, texts)
        here = hashes[offsets[texts] + place]
        held = np.empty_like(here)
        least = np.empty((len(odd), len(texts)), np.uint32)
        for number in range(len(odd)):
            np.bitwise_xor(here, mask[number], out=held)
            np.multiply(held, odd[number], out=held)
            np.minimum.reduce(held, axis=0, out=least[number])
        minima[:, texts] = least
    return minima


def _alike(sizes: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Texts whose sizes differ by an eighth at most, with the largest of the sizes: as many as have
    BLOCK hashes together, or one text."""
    order = np.argsort(sizes, kind="stable")
    ordered = sizes[order]
    stop = len(order)
    while stop:
        length = int(ordered[stop - 1])
        start = int(np.searchsorted(ordered, length - length // 8, side="left"))
        start = max(start, stop - max(1, BLOCK // length))
        yield order[start:stop], length
        stop = start
