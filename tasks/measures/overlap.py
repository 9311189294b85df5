"""Find texts that overlap with a set of items, such as an audit's or a benchmark's.

An item has one or more texts, such as a question and its choices; the first is the question. A text
overlaps an item if it contains any n consecutive words of it (n = 13 in Brown et al. 2020, appendix
C). The n words are in one text of the item, or they continue from the question to another text, so
a short answer is found only after its question. Words are compared in lower case after NFKC,
without punctuation; in scripts without spaces every character is a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
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

#: Labels of choices; a text may have the choices of an item with or without them.
CHOICE_LABELS = ("a b c d e f g h i j", "1 2 3 4 5 6 7 8 9 10")

#: Size of the bit table that rejects most n-grams before the binary search.
FILTER_SLOTS = 1 << 20


class Overlaps(NamedTuple):
    """Distinct pairs of a text and an item, sorted by text, then by item; (m,) each."""

    text_indices: Int64
    item_indices: Int64


@dataclass(frozen=True)
class OverlapIndex:
    """Hashes of the n-grams of all items.

    Attributes:
        ngram_words: Number of words per n-gram, n.
        ngram_hashes: (m,) ascending.
        item_indices: (m,) index of the item of each n-gram.
        item_count: Number of items.
        skipped_item_count: Number of items that are not searched, because all texts of the item
            together have fewer than n words.
        short_text_count: Number of texts with 1 to n - 1 words; they are not searched alone.
    """

    ngram_words: int
    ngram_hashes: UInt64
    item_indices: Int64
    item_count: int
    skipped_item_count: int
    short_text_count: int


def build_overlap_index(items: Sequence[Sequence[str]], ngram_words: int = 13) -> OverlapIndex:
    """Build an index of the n-grams of items.

    Args:
        items: Texts of each item to search for. The first text is the question; it may be empty.
        ngram_words: Number of words per n-gram.
    """
    texts = pa.array([text for texts in items for text in texts], pa.large_string())
    word_hashes, text_offsets = _hash_text_words(texts)
    word_counts = np.diff(text_offsets)
    words_by_text = iter(np.split(word_hashes, text_offsets[1:-1]))
    labels = [_hash_text_words(pa.array([words], pa.large_string()))[0] for words in CHOICE_LABELS]
    passages: list[UInt64] = []
    passage_items: list[int] = []
    for item_index, item_texts in enumerate(items):
        item_words = [*islice(words_by_text, len(item_texts))]
        item_passages = _list_passages(item_words, labels, ngram_words)
        passages += item_passages
        passage_items += [item_index] * len(item_passages)
    passage_offsets = np.cumsum([0, *map(len, passages)])
    passage_indices = np.repeat(np.arange(len(passages)), np.diff(passage_offsets))
    passage_words = np.concatenate([np.empty(0, np.uint64), *passages])
    ngram_starts = np.flatnonzero(_is_within_text(passage_offsets, passage_indices, ngram_words))
    ngram_hashes = _hash_ngram_at_each_word(passage_words, ngram_words)[ngram_starts]
    item_indices = np.array(passage_items, np.int64)[passage_indices[ngram_starts]]
    order = np.lexsort((item_indices, ngram_hashes))
    is_short = word_counts < ngram_words
    return OverlapIndex(
        ngram_words=ngram_words,
        ngram_hashes=ngram_hashes[order],
        item_indices=item_indices[order],
        item_count=len(items),
        skipped_item_count=len(items) - len(set(passage_items)),
        short_text_count=int((is_short & (word_counts > 0)).sum()),
    )


def _list_passages(
    texts: Sequence[UInt64], choice_labels: Sequence[UInt64], ngram_words: int
) -> list[UInt64]:
    """Return the sequences of words whose n-grams are searched for, for the texts of one item.

    These are the texts with at least n words, and the end of the question with the beginning of
    the texts after it: of each short one, and of all, with and without labels. An n-gram of the
    latter always has words of the question.

    Args:
        choice_labels: Labels of the first, second, ... text after the question, of each kind.
    """
    question, *other_texts = texts
    question_end = question[max(len(question) - ngram_words + 1, 0) :]
    short_texts = [words for words in other_texts if len(words) < ngram_words]
    continuations = [*short_texts, np.concatenate([question[:0], *other_texts])]
    for labels in choice_labels:
        labelled_texts = zip(labels[:, None], other_texts, strict=False)
        continuations.append(np.concatenate([question[:0], *chain(*labelled_texts)]))
    passages = [np.concatenate([question_end, words[: ngram_words - 1]]) for words in continuations]
    return [words for words in (*texts, *passages) if len(words) >= ngram_words]


def find_overlaps(texts: pa.Array, overlap_index: OverlapIndex) -> Overlaps:
    """Find the pairs of a text and an item that share an n-gram."""
    word_hashes, text_offsets = _hash_text_words(texts)
    text_indices = np.repeat(np.arange(len(texts)), np.diff(text_offsets))
    ngram_words, item_hashes = overlap_index.ngram_words, overlap_index.ngram_hashes
    ngram_hashes = _hash_ngram_at_each_word(word_hashes, ngram_words)
    is_candidate = np.zeros(FILTER_SLOTS, bool)
    is_candidate[item_hashes % FILTER_SLOTS] = True
    ngram_starts = np.flatnonzero(
        is_candidate[ngram_hashes % FILTER_SLOTS]
        & _is_within_text(text_offsets, text_indices, ngram_words)
    )
    first_matches = np.searchsorted(item_hashes, ngram_hashes[ngram_starts], side="left")
    match_counts = (
        np.searchsorted(item_hashes, ngram_hashes[ngram_starts], side="right") - first_matches
    )
    matches = np.repeat(first_matches, match_counts) + _concatenate_ranges(match_counts)
    pairs = np.stack(
        [
            np.repeat(text_indices[ngram_starts], match_counts),
            overlap_index.item_indices[matches],
        ],
        axis=1,
    )
    distinct_pairs = np.unique(pairs, axis=0)
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


def _hash_ngram_at_each_word(word_hashes: UInt64, ngram_words: int) -> UInt64:
    """Return the hash of the n-gram that starts at each word; it may continue in the next text."""
    padded = np.concatenate([word_hashes, np.zeros(ngram_words, np.uint64)])
    ngram_hashes = np.zeros(len(word_hashes), np.uint64)
    for word in range(ngram_words):
        ngram_hashes = mix_hashes(ngram_hashes, padded[word : word + len(word_hashes)])
    return ngram_hashes


def _is_within_text(text_offsets: Int64, text_indices: Int64, length: int) -> NDArray[np.bool_]:
    """Return whether the n-gram that starts at each word ends within the same text."""
    return np.arange(len(text_indices)) + length <= text_offsets[1:][text_indices]


def _concatenate_ranges(counts: Int64) -> Int64:
    """Return the ranges 0, ..., count - 1 for each count, concatenated."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
