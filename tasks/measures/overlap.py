"""Find texts that overlap with a set of items, such as an audit's or a benchmark's.

A text overlaps an item if it contains any n consecutive words of it (n = 13 in Brown et al. 2020,
appendix C), or all its words if it has fewer. Words are compared in lower case after NFKC, without
punctuation; in scripts without spaces every character is a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hallmark.tasks.measures.normalised_words import (
    WordHashes,
    hash_words,
    mix_hashes,
    normalise_texts,
)

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]

#: Size of the bit table that rejects most n-grams before the binary search.
FILTER_SLOTS = 1 << 20


class ItemNgrams(NamedTuple):
    """The n-grams of all items that have one number of words, (m,) each."""

    hashes: UInt64
    """Ascending."""
    item_indices: Int64


class Overlaps(NamedTuple):
    """Distinct pairs of a text and an item, sorted by text, then by item; (m,) each."""

    text_indices: Int64
    item_indices: Int64


@dataclass(frozen=True)
class OverlapIndex:
    """Hashes of the n-grams of all items.

    Attributes:
        ngrams_by_length: The n-grams to search for, by their number of words.
        item_count: Number of items.
        short_item_count: Number of items that are too short and are not searched.
    """

    ngrams_by_length: dict[int, ItemNgrams]
    item_count: int
    short_item_count: int


def build_overlap_index(
    items: Sequence[str], ngram_words: int = 13, min_words: int = 4
) -> OverlapIndex:
    """Build an index of the n-grams of items.

    Args:
        items: Texts to search for.
        ngram_words: Number of words per n-gram; a shorter item is searched as a whole.
        min_words: Items with fewer words are skipped, because they occur in any text.
    """
    hashes, text_offsets = _hash_text_words(pa.array(items, pa.large_string()))
    word_counts = np.diff(text_offsets)
    ngrams_by_length: dict[int, ItemNgrams] = {}
    for length, ngram_hashes in _hash_ngrams_at_each_word(hashes, ngram_words).items():
        has_length = np.minimum(word_counts, ngram_words) == length
        if length < min_words or not has_length.any():
            continue
        item_indices = np.repeat(np.arange(len(word_counts)), word_counts)
        ngram_starts = np.flatnonzero(
            has_length[item_indices] & _is_within_text(text_offsets, item_indices, length)
        )
        order = np.lexsort((item_indices[ngram_starts], ngram_hashes[ngram_starts]))
        ngrams_by_length[length] = ItemNgrams(
            ngram_hashes[ngram_starts][order],
            item_indices[ngram_starts][order],
        )
    return OverlapIndex(ngrams_by_length, len(word_counts), int((word_counts < min_words).sum()))


def find_overlaps(texts: pa.Array, overlap_index: OverlapIndex) -> Overlaps:
    """Find the pairs of a text and an item that share an n-gram."""
    hashes, text_offsets = _hash_text_words(texts)
    text_indices = np.repeat(np.arange(len(texts)), np.diff(text_offsets))
    pairs = [np.empty((0, 2), np.int64)]
    max_length = max(overlap_index.ngrams_by_length, default=0)
    for length, ngram_hashes in _hash_ngrams_at_each_word(hashes, max_length).items():
        if length not in overlap_index.ngrams_by_length:
            continue
        item_hashes, item_indices = overlap_index.ngrams_by_length[length]
        is_candidate = np.zeros(FILTER_SLOTS, bool)
        is_candidate[item_hashes % FILTER_SLOTS] = True
        ngram_starts = np.flatnonzero(
            is_candidate[ngram_hashes % FILTER_SLOTS]
            & _is_within_text(text_offsets, text_indices, length)
        )
        first_matches = np.searchsorted(item_hashes, ngram_hashes[ngram_starts], side="left")
        match_counts = (
            np.searchsorted(item_hashes, ngram_hashes[ngram_starts], side="right") - first_matches
        )
        matches = np.repeat(first_matches, match_counts) + _concatenate_ranges(match_counts)
        pairs.append(
            np.stack(
                [np.repeat(text_indices[ngram_starts], match_counts), item_indices[matches]], axis=1
            )
        )
    distinct_pairs = np.unique(np.concatenate(pairs), axis=0)
    return Overlaps(distinct_pairs[:, 0], distinct_pairs[:, 1])


def _hash_text_words(texts: pa.Array) -> WordHashes:
    """Normalise texts and hash their words, without punctuation."""
    normalised = pc.replace_substring_regex(normalise_texts(texts), r"[^\pL\pN\pM]+", " ")
    normalised = pc.utf8_trim_whitespace(normalised)
    hashes, text_offsets = hash_words(normalised)
    counts = np.diff(text_offsets)
    is_empty = pc.equal(normalised, "").to_numpy(
        zero_copy_only=False
    )  # Splitting gives one empty word.
    hashes = hashes[~np.repeat(is_empty, counts)]
    return WordHashes(hashes, np.concatenate([[0], np.cumsum(np.where(is_empty, 0, counts))]))


def _hash_ngrams_at_each_word(word_hashes: UInt64, max_words: int) -> dict[int, UInt64]:
    """Return the hashes of the n-grams that start at each word, for 1, 2, ... `max_words` words."""
    padded = np.concatenate([word_hashes, np.zeros(max_words, np.uint64)])
    ngram_hashes = np.zeros(len(word_hashes), np.uint64)
    hashes_by_length = {}
    for length in range(1, max_words + 1):
        ngram_hashes = mix_hashes(ngram_hashes, padded[length - 1 : length - 1 + len(word_hashes)])
        hashes_by_length[length] = ngram_hashes
    return hashes_by_length


def _is_within_text(text_offsets: Int64, text_indices: Int64, length: int) -> NDArray[np.bool_]:
    """Return whether the n-gram that starts at each word ends within the same text."""
    return np.arange(len(text_indices)) + length <= text_offsets[1:][text_indices]


def _concatenate_ranges(counts: Int64) -> Int64:
    """Return the ranges 0, ..., count - 1 for each count, concatenated."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
