"""Find texts that overlap with a set of items, such as an audit's or a benchmark's.

An item has one or more texts, such as a question and its choices; the first is the question. A text
overlaps an item if it contains any n consecutive words of it (n = 13 in Brown et al. 2020, appendix
C). Words are compared after NFKC and folding of case, without punctuation.

The n words are in one text of the item, or they continue from the question to the texts after it.
Choices such as *all of the above*, the months or the answers of a survey occur in many texts. So
words that continue to the choices must contain the whole question, or half of them must be of the
question. A question of three words or fewer does not continue, unless it has six characters of
Chinese or Japanese that name a subject.

Scripts without spaces show no words. Two characters of Chinese or Japanese, or three letters of
Thai and similar scripts, count as a word; combining signs do not count. So 13 words are 26
characters or 39 letters. For comparison, article 1 of the Universal Declaration of Human Rights has
30 words in English, 39 characters in Chinese, 78 in Japanese, and 102 to 133 letters in Burmese,
Thai, Khmer, Lao and Tibetan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hallmark.tasks.measures.normalised_words import (
    IDEOGRAPHIC_SCRIPTS,
    UNSPACED_ALPHABETIC_SCRIPTS,
    hash_encoded_words,
    normalise_texts,
    split_words,
)

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]

#: Labels of choices; a text may have the choices of an item with or without them.
CHOICE_LABELS = (
    "a b c d e f g h i j",
    "1 2 3 4 5 6 7 8 9 10",
    "i ii iii iv v vi vii viii ix x",
    "а б в г д е ж з и к",
    "アイウエオカキクケコ",
    "กขคงจฉชซฌญ",
)

#: Sizes of words and letters; they are integers, so that sums are exact.
WORD_SIZE = 6
IDEOGRAPHIC_CHARACTER_SIZE = 3
UNSPACED_LETTER_SIZE = 2

#: Size of the longest question that does not continue to the texts after it.
SHORT_QUESTION_SIZE = 3 * WORD_SIZE
#: A question of six characters has the same size. But it says as much as four words and continues,
#: if so many of its characters are Chinese ones that name a subject: "who invented the telephone",
#: 谁发明了电话. The others form stock questions such as 下列哪项正确, "which is correct".
MIN_SUBJECT_CHARACTERS = 4
_SUBJECT_CHARACTER = re.compile(
    "(?![下列以哪項项個个種种一是的為为正確确錯错誤误什麼么說说法選选擇择題题答案不對对屬属於于有關关誰谁了"
    "次何者])[\u4e00-\u9fff]"
)

#: Characters that belong to the letter before them, in the syntax of a class: combining signs, and
#: the mark of long vowels in katakana.
_SIGNS = r"\pM\x{30FC}"

#: Number of slots, for each n-gram of items, of the table that rejects most n-grams of texts before
#: the binary search.
FILTER_SLOTS_PER_NGRAM = 16

#: The hash of an n-gram is the value of a polynomial at this number, modulo 2**64. The number is
#: odd, so powers of it have an inverse.
HASH_BASE = 0x9E3779B97F4A7C15


class Overlaps(NamedTuple):
    """Distinct pairs of a text and an item, sorted by text, then by item; (m,) each."""

    text_indices: Int64
    item_indices: Int64


class SizedWords(NamedTuple):
    """The words of n texts, one text after the other."""

    hashes: UInt64
    """(words,)"""
    sizes: Int64
    """(words,) WORD_SIZE, or the size of the letter."""
    text_offsets: Int64
    """(n + 1,): text i has the words from `text_offsets[i]` to `text_offsets[i + 1]`."""


class Ngrams(NamedTuple):
    """The m n-grams of texts."""

    hashes: UInt64
    """(m,)"""
    starts: Int64
    """(m,) index of the first word; ascending."""


class Passage(NamedTuple):
    """Words of an item, some of whose n-grams are searched for."""

    word_indices: Int64
    """(words,)"""
    start_count: int
    """Number of words at the beginning at which an n-gram may start."""


@dataclass(frozen=True)
class OverlapIndex:
    """Hashes of the n-grams of all items.

    Attributes:
        ngram_words: Number of words per n-gram, n.
        ngram_hashes: (m,) ascending.
        item_indices: (m,) index of the item of each n-gram.
        item_count: Number of items.
        skipped_item_count: Number of items without an n-gram, which are not searched: no text has n
            words, and neither has the question with the texts after it, or it is too short.
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
    texts = [*CHOICE_LABELS, *chain(*items)]
    words = _split_sized_words(pa.array(texts, pa.large_string()))
    indices_by_text = iter(np.split(np.arange(len(words.hashes)), words.text_offsets[1:-1]))
    labels = [np.split(kind, len(kind)) for kind in islice(indices_by_text, len(CHOICE_LABELS))]
    passages: list[Passage] = []
    passage_items: list[int] = []
    for item_index, item_texts in enumerate(items):
        item_words = [*islice(indices_by_text, len(item_texts))]
        subject_characters = _SUBJECT_CHARACTER.findall(item_texts[0])
        item_passages = _list_passages(
            item_words,
            labels,
            words.sizes,
            ngram_words,
            names_subject=len(subject_characters) >= MIN_SUBJECT_CHARACTERS,
        )
        passages += item_passages
        passage_items += [item_index] * len(item_passages)
    passage_offsets = np.cumsum([0, *(len(passage.word_indices) for passage in passages)])
    word_indices = np.concatenate(
        [np.empty(0, np.int64), *(passage.word_indices for passage in passages)]
    )
    hashes, starts = _list_ngrams(
        SizedWords(words.hashes[word_indices], words.sizes[word_indices], passage_offsets),
        ngram_words,
    )
    passage_indices = np.searchsorted(passage_offsets, starts, side="right") - 1
    start_counts = np.array([passage.start_count for passage in passages], np.int64)
    is_allowed = starts - passage_offsets[passage_indices] < start_counts[passage_indices]
    ngram_hashes = hashes[is_allowed]
    item_indices = np.array(passage_items, np.int64)[passage_indices[is_allowed]]
    order = np.lexsort((item_indices, ngram_hashes))
    size_before_word = np.concatenate([[0], np.cumsum(words.sizes)])
    text_sizes = np.diff(size_before_word[words.text_offsets])[len(CHOICE_LABELS) :]
    return OverlapIndex(
        ngram_words=ngram_words,
        ngram_hashes=ngram_hashes[order],
        item_indices=item_indices[order],
        item_count=len(items),
        skipped_item_count=len(items) - len(np.unique(item_indices)),
        short_text_count=int(((text_sizes > 0) & (text_sizes < ngram_words * WORD_SIZE)).sum()),
    )


def _list_passages(
    texts: Sequence[Int64],
    choice_labels: Sequence[Sequence[Int64]],
    word_sizes: Int64,
    ngram_words: int,
    *,
    names_subject: bool,
) -> list[Passage]:
    """Return the passages whose n-grams are searched for, for the texts of one item.

    These are the texts, and the end of the question with the beginning of the texts after it: of
    each short one, and of all, with and without labels. An n-gram of the latter has enough words of
    the question.

    Args:
        texts: Indices of the words of each text.
        choice_labels: Labels of the first, second, ... text after the question, of each kind.
        word_sizes: Sizes of all words.
        ngram_words: Number of words per n-gram.
        names_subject: Whether the question has MIN_SUBJECT_CHARACTERS.
    """
    question, *other_texts = texts
    passages = [Passage(text, len(text)) for text in texts]
    ngram_size = ngram_words * WORD_SIZE
    sizes_to_end = np.cumsum(word_sizes[question][::-1])[::-1]
    question_size = sizes_to_end[0] if len(question) else 0
    min_question_size = SHORT_QUESTION_SIZE + (not names_subject)
    min_size = min(max(question_size, min_question_size), ngram_size // 2)
    first_start = int((sizes_to_end >= ngram_size).sum())
    start_count = int((sizes_to_end >= min_size).sum()) - first_start
    if start_count <= 0 or not other_texts:
        return passages
    question_end = question[first_start:]
    continuations = [[text] for text in other_texts if word_sizes[text].sum() < ngram_size]
    continuations.append(other_texts)
    smallest_size = word_sizes[np.concatenate([question_end, *other_texts])].min()
    for labels in choice_labels:
        if word_sizes[labels[0]].min() >= smallest_size:  # labels of a script of the item
            continuations.append([*chain(*zip(labels, other_texts, strict=False))])
    max_words = len(question_end) + ngram_size // smallest_size
    return passages + [
        Passage(np.concatenate([question_end, *continuation])[:max_words], start_count)
        for continuation in continuations
    ]


def find_overlaps(texts: pa.Array, overlap_index: OverlapIndex) -> Overlaps:
    """Find the pairs of a text and an item that share an n-gram."""
    words = _split_sized_words(texts)
    item_hashes = overlap_index.ngram_hashes
    ngram_hashes, ngram_starts = _list_ngrams(words, overlap_index.ngram_words)
    # A power of two, because the remainder by it is fast.
    slot_count = np.uint64(1 << (FILTER_SLOTS_PER_NGRAM * len(item_hashes)).bit_length())
    is_in_table = np.zeros(slot_count, bool)
    is_in_table[item_hashes % slot_count] = True
    candidates = np.flatnonzero(is_in_table[ngram_hashes % slot_count])
    candidate_hashes = ngram_hashes[candidates]
    first_matches = np.searchsorted(item_hashes, candidate_hashes, side="left")
    match_counts = np.searchsorted(item_hashes, candidate_hashes, side="right") - first_matches
    matches = np.repeat(first_matches, match_counts) + _concatenate_ranges(match_counts)
    text_indices = np.searchsorted(words.text_offsets, ngram_starts[candidates], side="right") - 1
    pairs = np.stack(
        [np.repeat(text_indices, match_counts), overlap_index.item_indices[matches]], axis=1
    )
    distinct_pairs = np.unique(pairs, axis=0)
    return Overlaps(distinct_pairs[:, 0], distinct_pairs[:, 1])


def _split_sized_words(texts: pa.Array) -> SizedWords:
    """Normalise texts, split them into words and letters without punctuation, and hash these."""
    normalised = pc.replace_substring_regex(normalise_texts(texts), r"[^\pL\pN\pM]+", " ")
    words = split_words(pc.utf8_trim_whitespace(normalised), _SIGNS)
    text_offsets = words.offsets.to_numpy().astype(np.int64)
    encoded_words = words.values.dictionary_encode()
    text_range = slice(text_offsets[0], text_offsets[-1])
    hashes = hash_encoded_words(encoded_words)[text_range]
    sizes = _measure_words(encoded_words)[text_range]
    is_word = sizes > 0
    word_counts = np.concatenate([[0], np.cumsum(is_word)])
    return SizedWords(hashes[is_word], sizes[is_word], word_counts[text_offsets - text_offsets[0]])


def _measure_words(words: pa.DictionaryArray) -> Int64:
    """Return the size of each word; 0 for the empty word of a text without words."""
    distinct_words = words.dictionary
    sizes = pc.case_when(
        pc.make_struct(
            pc.equal(distinct_words, ""),
            pc.match_substring_regex(distinct_words, rf"\A[{IDEOGRAPHIC_SCRIPTS}]"),
            pc.match_substring_regex(distinct_words, rf"\A[{UNSPACED_ALPHABETIC_SCRIPTS}]"),
        ),
        *(0, IDEOGRAPHIC_CHARACTER_SIZE, UNSPACED_LETTER_SIZE, WORD_SIZE),
    )
    return sizes.to_numpy().astype(np.int64)[words.indices.to_numpy()]  # type: ignore[no-any-return]


def _list_ngrams(words: SizedWords, ngram_words: int) -> Ngrams:
    """Return the n-grams of texts: from each word on, as many words as have the size of n."""
    hashes, sizes, text_offsets = words
    size_before_word = np.concatenate([[0], np.cumsum(sizes)])
    ends = np.searchsorted(size_before_word, size_before_word[:-1] + ngram_words * WORD_SIZE)
    starts = np.flatnonzero(ends <= np.repeat(text_offsets[1:], np.diff(text_offsets)))
    powers, inverse_powers = (
        np.full(len(hashes), base, np.uint64).cumprod()
        for base in (HASH_BASE, pow(HASH_BASE, -1, 1 << 64))
    )
    sums = np.concatenate([np.zeros(1, np.uint64), (hashes * powers).cumsum()])
    return Ngrams((sums[ends[starts]] - sums[starts]) * inverse_powers[starts], starts)


def _concatenate_ranges(counts: Int64) -> Int64:
    """Return the ranges 0, ..., count - 1 for each count, concatenated."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
