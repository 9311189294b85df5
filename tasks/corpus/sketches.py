"""Sketches of texts: normalised, cut into shingles, and hashed into bands for MinHash-LSH.

Pure functions over Arrow columns; what is done with them is in ``deduplicate.py``.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NO_SPACES = r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}])"


def normalise(texts: pa.Array) -> pa.Array:
    """NFKC, lower case, one space for any white space, none at the ends."""
    plain = pc.utf8_lower(pc.utf8_normalize(texts, "NFKC"))
    words = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(plain))
    return pc.binary_join(words, pa.scalar(" ", pa.large_string()))


def shingles(texts: pa.Array, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Distinct 64-bit shingle hashes of normalised texts.

    Returns (hashes, offsets): those of text i are ``hashes[offsets[i]:offsets[i + 1]]``,
    ascending; no text is without any.
    """
    if pc.any(pc.match_substring_regex(texts, NO_SPACES)).as_py():
        texts = normalise(pc.replace_substring_regex(texts, NO_SPACES, r" \1 "))
    words = pc.utf8_split_whitespace(texts)
    offsets = words.offsets.to_numpy().astype(np.int64)  # (n + 1,)
    hashes = _word_hashes(words.values)[offsets[0] : offsets[-1]]  # (words,)
    offsets -= offsets[0]
    counts = np.diff(offsets)
    # Shingle i begins at word i; those that would run over the end of their text are left out,
    # but for the first of a short text, which ends where the text does.
    text = np.repeat(np.arange(len(counts)), counts)  # (words,)
    left = offsets[1:][text] - np.arange(len(hashes))  # words from here to the end of the text
    whole = left >= np.minimum(length, counts[text])
    mixed = np.zeros(len(hashes), np.uint64)
    for step in range(length):
        inside = left > step
        word = np.zeros(len(hashes), np.uint64)
        word[inside] = hashes[np.flatnonzero(inside) + step]
        mixed = _mix(mixed, word)
    return _distinct(mixed[whole], text[whole], len(counts))


def _word_hashes(words: pa.Array) -> np.ndarray:
    """One uint64 a word; equal words are hashed once."""
    known = words.dictionary_encode()
    digests = [
        hashlib.blake2b(w.encode(), digest_size=8).digest() for w in known.dictionary.to_pylist()
    ]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)[known.indices.to_numpy()]


def _mix(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Fold one array of uint64 into another; the order of folding counts."""
    mixed = (left ^ right) * np.uint64(0x9E3779B97F4A7C15)  # wraps
    return mixed ^ (mixed >> np.uint64(32))


def _distinct(hashes: np.ndarray, text: np.ndarray, texts: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((hashes, text))
    hashes, text = hashes[order], text[order]
    first = np.ones(len(hashes), bool)
    first[1:] = (hashes[1:] != hashes[:-1]) | (text[1:] != text[:-1])
    counts = np.bincount(text[first], minlength=texts)
    return hashes[first], np.concatenate([[0], np.cumsum(counts)])


def band_hashes(
    hashes: np.ndarray, offsets: np.ndarray, count: int, rows: int, seed: int
) -> np.ndarray:
    """(n, count) uint64: one hash for the ``rows`` minima of each of ``count`` bands."""
    import rensa

    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
        hashes, offsets.astype(np.uint64), count * rows, seed
    )
    minima = np.array(matrix.to_rows(), np.uint64).reshape(-1, count, rows)
    bands = np.zeros(minima.shape[:2], np.uint64)
    for row in range(rows):
        bands = _mix(bands, minima[:, :, row])
    return bands
