"""Sketch normalised texts: split them into shingles and hash these into bands for MinHash-LSH.

These are pure functions over Arrow columns; ``deduplicate_near.py`` uses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.measures.normalised_words import hash_words, mix_hashes


class TextHashes(NamedTuple):
    """Hold the hashes of the shingles or tokens of n texts, concatenated."""

    hashes: np.ndarray
    """uint64."""
    offsets: np.ndarray
    """Text i has ``hashes[offsets[i]:offsets[i + 1]]``; shape (n + 1,)."""


def compute_shingle_hashes(
    texts: pa.Array, shingle_length: int, unit: Literal["words", "characters"] = "words"
) -> TextHashes:
    """Compute 64-bit shingle hashes of normalised texts.

    Hashes are in the order of the text and may repeat; MinHash does not need distinct or sorted
    values. In scripts without spaces between words every character counts as a word. A text shorter
    than a shingle is one shingle, so every text has at least one hash.
    """
    token_hashes, token_offsets = (
        _hash_characters(texts) if unit == "characters" else hash_words(texts)
    )
    token_counts = np.diff(token_offsets)
    shingle_counts = np.maximum(token_counts - shingle_length + 1, 1)  # per text
    offsets = np.concatenate([[0], np.cumsum(shingle_counts)])  # (n + 1,)
    # The first token of each shingle.
    first_tokens = np.arange(offsets[-1]) + np.repeat(
        token_offsets[:-1] - offsets[:-1], shingle_counts
    )
    padded_hashes = np.concatenate([token_hashes, np.zeros(shingle_length, np.uint64)])
    shingle_hashes = np.zeros(len(first_tokens), np.uint64)
    for step in range(shingle_length):
        shingle_hashes = mix_hashes(shingle_hashes, padded_hashes[first_tokens + step])
    # The loop above read past the end of texts shorter than a shingle; hash them again alone.
    short_texts = np.flatnonzero(token_counts < shingle_length)
    short_hashes = np.zeros(len(short_texts), np.uint64)
    for step in range(shingle_length):
        is_in_text = step < token_counts[short_texts]
        short_hashes = mix_hashes(
            short_hashes,
            np.where(is_in_text, padded_hashes[token_offsets[short_texts] + step], np.uint64(0)),
        )
    shingle_hashes[offsets[short_texts]] = short_hashes
    return TextHashes(shingle_hashes, offsets)


def _hash_characters(texts: pa.Array) -> TextHashes:
    """Hash each code point."""
    utf32_bytes = "".join(texts.to_pylist()).encode("utf-32-le")
    code_points = np.frombuffer(utf32_bytes, "<u4").astype(np.uint64)
    lengths = pc.utf8_length(texts).to_numpy().astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return TextHashes(mix_hashes(code_points, np.uint64(0x2545F4914F6CDD1D)), offsets)


#: Hashes processed at a time, few enough for the processor's cache.
HASHES_PER_BLOCK = 1 << 15


def compute_band_hashes(
    shingle_hashes: np.ndarray, offsets: np.ndarray, band_count: int, rows_per_band: int, seed: int
) -> np.ndarray:
    """Compute one hash per band from the minima of its rows.

    Each minimum is over another permutation of 32 bits: an exclusive or, and a product with an odd
    number modulo 2^32 (Dietzfelbinger et al. 1997). The probability that two texts share a band is
    close enough to the formula for random permutations (tested), and every pair that does is
    compared in full.

    Returns:
        (n, band_count) uint32.
    """
    generator = np.random.default_rng(seed)
    multipliers = generator.integers(
        0, 1 << 32, band_count * rows_per_band, dtype=np.uint32
    ) | np.uint32(1)
    xor_masks = generator.integers(0, 1 << 32, band_count * rows_per_band, dtype=np.uint32)
    minima = _compute_minhashes(
        (shingle_hashes >> np.uint64(32)).astype(np.uint32), offsets, multipliers, xor_masks
    )
    hashes_by_band = np.zeros((len(offsets) - 1, band_count), np.uint64)
    for row in range(rows_per_band):
        hashes_by_band = mix_hashes(hashes_by_band, minima[row::rows_per_band].T.astype(np.uint64))
    return (hashes_by_band >> np.uint64(32)).astype(np.uint32)


def _compute_minhashes(
    shingle_hashes: np.ndarray, offsets: np.ndarray, multipliers: np.ndarray, xor_masks: np.ndarray
) -> np.ndarray:
    """Compute the least hash of each text under each permutation.

    Texts of similar length are processed together, one per column; shorter ones are padded with
    their last hash, so that the processor handles many texts at once.

    Returns:
        (permutations, n) uint32.
    """
    sizes = np.diff(offsets)
    minima = np.empty((len(multipliers), len(sizes)), np.uint32)
    for text_numbers, length in _group_by_similar_size(sizes):
        # (length, texts)
        positions = np.minimum(np.arange(length)[:, None], sizes[text_numbers] - 1)
        text_hashes = shingle_hashes[offsets[text_numbers] + positions]
        permuted_hashes = np.empty_like(text_hashes)
        text_minima = np.empty((len(multipliers), len(text_numbers)), np.uint32)
        for permutation in range(len(multipliers)):
            np.bitwise_xor(text_hashes, xor_masks[permutation], out=permuted_hashes)
            np.multiply(permuted_hashes, multipliers[permutation], out=permuted_hashes)
            np.minimum.reduce(permuted_hashes, axis=0, out=text_minima[permutation])
        minima[:, text_numbers] = text_minima
    return minima


class SizeGroup(NamedTuple):
    """Hold texts of similar size."""

    text_numbers: np.ndarray
    largest_size: int


def _group_by_similar_size(sizes: np.ndarray) -> Iterator[SizeGroup]:
    """Yield groups of texts whose sizes differ by at most an eighth.

    A group has at most HASHES_PER_BLOCK hashes, or one text.
    """
    size_order = np.argsort(sizes, kind="stable")
    sorted_sizes = sizes[size_order]
    stop = len(size_order)
    while stop:
        length = int(sorted_sizes[stop - 1])
        start = int(np.searchsorted(sorted_sizes, length - length // 8, side="left"))
        start = max(start, stop - max(1, HASHES_PER_BLOCK // length))
        yield SizeGroup(size_order[start:stop], length)
        stop = start
