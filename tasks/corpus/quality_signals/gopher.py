"""Compute the figures of Gopher's rules (Rae et al. 2021, section A1.1 and table A1).

Words are separated by white space. The paper does not say which of two copies is the duplicate, or
how to count overlapping n-grams. This module follows datatrove, whose rules produced FineWeb: only
later copies count, and n-grams are scanned from the left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from hallmark.tasks.corpus.quality_signals.text_batch import (
    ALPHABETIC,
    WORD_CHARACTER,
    TextBatch,
    TextSpans,
    divide_or_null,
    find_true_runs,
)
from hallmark.tasks.measures.normalised_words import mix_hashes

BULLET_SIGNS = ("•", "-")


def compute_gopher_quality_signals(
    texts: TextBatch, stop_words: Sequence[str]
) -> dict[str, pa.Array]:
    """Compute the figures of words, symbols and lines, one column (n,) each."""
    words, lines = texts.words, texts.lines
    is_word = (texts.word_classes & WORD_CHARACTER) != 0
    has_letter = (texts.word_classes & ALPHABETIC) != 0
    word_counts = words.sum_by_text(is_word)
    first_words, end_words = texts.find_word_ranges(lines)
    is_nonblank = first_words < end_words
    starts_with_bullet = np.isin(
        texts.code_points[words.starts[first_words[is_nonblank]]],
        [ord(sign) for sign in BULLET_SIGNS],
    )
    stop_word_counts = np.zeros(len(texts), np.int64)
    for word in stop_words:
        stop_word_counts += words.sum_by_text(texts.word_hashes == texts.hash_word(word)) > 0
    return {
        "word_count": pa.array(word_counts),
        "mean_word_length": divide_or_null(words.sum_by_text(words.lengths * is_word), word_counts),
        "hash_signs_per_word": divide_or_null(
            texts.count_positions_by_text(np.flatnonzero(texts.code_points == 35)),
            words.counts_by_text,
        ),
        "ellipses_per_word": divide_or_null(_count_ellipses(texts), words.counts_by_text),
        "bullet_lines": divide_or_null(
            lines.sum_by_text(_scatter_by_mask(is_nonblank, starts_with_bullet)),
            lines.counts_by_text,
        ),
        "ellipsis_lines": divide_or_null(
            lines.sum_by_text(
                _scatter_by_mask(
                    is_nonblank, _ends_with_ellipsis(texts, end_words[is_nonblank] - 1)
                )
            ),
            lines.counts_by_text,
        ),
        "alphabetic_words": divide_or_null(words.sum_by_text(has_letter), words.counts_by_text),
        "stop_word_count": pa.array(stop_word_counts),
    }


def _scatter_by_mask(mask: np.ndarray, values: np.ndarray) -> np.ndarray:
    scattered = np.zeros(len(mask), bool)
    scattered[mask] = values
    return scattered


def _count_ellipses(texts: TextBatch) -> np.ndarray:
    """Count ellipses, (n,): three dots, or the single character."""
    starts, ends = find_true_runs(texts.code_points == ord("."))
    dot_runs = texts.make_spans(starts, ends)
    ellipsis_counts: np.ndarray = dot_runs.sum_by_text(
        dot_runs.lengths // 3
    ) + texts.count_positions_by_text(np.flatnonzero(texts.code_points == ord("…")))
    return ellipsis_counts


def _ends_with_ellipsis(texts: TextBatch, word_numbers: np.ndarray) -> np.ndarray:
    last_characters = texts.words.ends[word_numbers] - 1
    ends_with_dots = texts.words.lengths[word_numbers] >= 3
    for offset in range(3):
        ends_with_dots &= texts.code_points[last_characters - offset] == ord(".")
    ends_with_ellipsis: np.ndarray = ends_with_dots | (
        texts.code_points[last_characters] == ord("…")
    )
    return ends_with_ellipsis


#: The n for which the most frequent n-gram is counted, and those for which all repeated ones are.
TOP_NGRAM_SIZES, DUPLICATE_NGRAM_SIZES = (2, 3, 4), (5, 6, 7, 8, 9, 10)


def compute_gopher_repetition_signals(texts: TextBatch) -> dict[str, pa.Array]:
    """Compute the figures of repeated lines, paragraphs and n-grams, one column (n,) each."""
    signals: dict[str, pa.Array] = {}
    for name, spans in (("lines", texts.line_blocks), ("paragraphs", texts.paragraphs)):
        is_duplicate = mark_later_copies(texts, spans)
        signals[f"duplicate_{name}"] = divide_or_null(
            spans.sum_by_text(is_duplicate), spans.counts_by_text
        )
        characters = spans.sum_by_text(is_duplicate * spans.lengths)
        signals[f"duplicate_{name}_characters"] = divide_or_null(characters, texts.lengths)
    # An empty text has a line and a paragraph, but its shares are undefined.
    for name in ("duplicate_lines", "duplicate_paragraphs"):
        signals[name] = divide_or_null(
            np.asarray(signals[name]), (texts.lengths > 0).astype(np.int64)
        )
    for n, characters in count_repeated_characters_by_ngram_size(texts).items():
        name = f"top_{n}gram" if n in TOP_NGRAM_SIZES else f"duplicate_{n}grams"
        signals[name] = divide_or_null(characters, texts.lengths)
    return signals


def mark_later_copies(texts: TextBatch, spans: TextSpans) -> np.ndarray:
    """Return whether each span is a later copy of another span of its text, (m,)."""
    span_hashes = mix_hashes(texts.hash_spans(spans), spans.text_numbers.astype(np.uint64))
    repeated_spans, group_starts = group_repeated_keys(span_hashes)
    is_copy = np.zeros(len(spans), bool)
    is_copy[repeated_spans] = True
    is_copy[repeated_spans[group_starts]] = False
    return is_copy


class RepeatedKeys(NamedTuple):
    """Hold the positions of k keys that occur more than once."""

    positions: np.ndarray
    """Positions of the keys, adjacent and ascending for equal keys; shape (k,)."""
    group_starts: np.ndarray
    """Index in ``positions`` at which each group of equal keys starts."""


def group_repeated_keys(keys: np.ndarray) -> RepeatedKeys:
    """Group the positions of keys that occur more than once."""
    sort_order = np.argsort(keys)
    sorted_keys = keys[sort_order]
    equals_previous = np.zeros(len(keys) + 1, bool)
    equals_previous[1:-1] = sorted_keys[1:] == sorted_keys[:-1]
    is_repeated = equals_previous[1:] | equals_previous[:-1]
    group_numbers = np.cumsum(is_repeated & ~equals_previous[:-1])[is_repeated]
    packed_positions = np.sort((group_numbers << 40) | sort_order[is_repeated])
    positions = packed_positions & ((1 << 40) - 1)
    group_starts = np.flatnonzero(np.diff(packed_positions >> 40, prepend=-1))
    return RepeatedKeys(positions, group_starts)


def count_repeated_characters_by_ngram_size(texts: TextBatch) -> Mapping[int, np.ndarray]:
    """Count the characters of each text in its most frequent n-gram, or in repeated n-grams.

    A longer n-gram can occur twice only where a shorter one does, so most positions are examined
    only for n = 2.

    Returns:
        Counts (texts,) by n, for TOP_NGRAM_SIZES and DUPLICATE_NGRAM_SIZES.
    """
    words = texts.words
    word_hashes, text_numbers = texts.word_hashes, words.text_numbers
    cumulative_lengths = np.concatenate([[0], np.cumsum(words.lengths)])
    text_end_words = words.offsets[1:][text_numbers]  # end of the words of each word's text
    start_words = np.arange(len(words))
    ngram_hashes = mix_hashes(word_hashes, text_numbers.astype(np.uint64))
    characters_by_n = {}
    for n in range(2, max(DUPLICATE_NGRAM_SIZES) + 1):
        is_in_text = start_words + n <= text_end_words[start_words]
        start_words = start_words[is_in_text]
        ngram_hashes = mix_hashes(ngram_hashes[is_in_text], word_hashes[start_words + n - 1])
        positions, group_starts = group_repeated_keys(ngram_hashes)
        if n in TOP_NGRAM_SIZES:
            characters_by_n[n] = _count_top_ngram_characters(
                words, cumulative_lengths, n, start_words[positions], group_starts
            )
        else:
            counted_words = np.array(
                _find_counted_repeat_starts(start_words[positions], group_starts, n), np.int64
            )
            covered_characters = (
                cumulative_lengths[counted_words + n] - cumulative_lengths[counted_words]
            )
            characters_by_n[n] = np.bincount(
                text_numbers[counted_words], covered_characters, len(texts)
            ).astype(np.int64)
        repeated_indices = np.sort(positions)
        start_words, ngram_hashes = start_words[repeated_indices], ngram_hashes[repeated_indices]
    return characters_by_n


def _count_top_ngram_characters(
    words: TextSpans,
    cumulative_lengths: np.ndarray,
    n: int,
    positions: np.ndarray,
    group_starts: np.ndarray,
) -> np.ndarray:
    """Count the characters of all occurrences of each text's most frequent n-gram, (texts,).

    Includes one space between words. Ties go to the n-gram that occurs first, which may occur only
    once.
    """
    first_words = words.offsets[:-1].copy()  # where the chosen n-gram first occurs
    occurrence_counts = (words.counts_by_text >= n).astype(np.int64)
    group_sizes = np.diff(group_starts, append=len(positions))
    earliest_words = positions[group_starts]
    text_numbers = words.text_numbers[earliest_words]
    # The last key has priority.
    group_order = np.lexsort((earliest_words, -group_sizes, text_numbers))
    top_groups = group_order[np.diff(text_numbers[group_order], prepend=-1) > 0]
    first_words[text_numbers[top_groups]] = earliest_words[top_groups]
    occurrence_counts[text_numbers[top_groups]] = group_sizes[top_groups]
    has_ngram = occurrence_counts > 0
    ngram_lengths = np.zeros(len(first_words), np.int64)
    ngram_lengths[has_ngram] = (
        cumulative_lengths[first_words[has_ngram] + n]
        - cumulative_lengths[first_words[has_ngram]]
        + n
        - 1
    )
    return occurrence_counts * ngram_lengths


def _find_counted_repeat_starts(
    positions: np.ndarray, group_starts: np.ndarray, n: int
) -> list[int]:
    """Return the words at which a repeated n-gram is counted.

    Reads from the left. An n-gram seen before is counted and its words are skipped; any other one
    is remembered. Each step depends on the words skipped before, so this cannot be vectorised; but
    the loop visits only n-grams that occur at least twice.
    """
    group_numbers = np.zeros(len(positions), np.int64)
    group_numbers[group_starts] = 1
    reading_order = np.argsort(positions)
    counted_words = []
    seen_ngrams = set()
    next_free_word = 0
    for position, ngram in zip(
        positions[reading_order].tolist(),
        np.cumsum(group_numbers)[reading_order].tolist(),
        strict=True,
    ):
        if position >= next_free_word:
            if ngram in seen_ngrams:
                counted_words.append(position)
                next_free_word = position + n
            else:
                seen_ngrams.add(ngram)
    return counted_words
