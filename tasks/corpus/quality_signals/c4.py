"""Compute the figures of C4's rules (Raffel et al. 2020, section 2.2) in the order of its code.

C4 removes single lines. It removes a document if too few sentences remain, or if a remaining line
has certain contents. This module removes nothing; it measures what would be removed. Citation marks
such as [1] are ignored everywhere.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.corpus.quality_signals.text_batch import (
    ASCII_CAPITAL,
    CLOSING_MARK,
    ENGLISH_END_MARK,
    TextBatch,
    divide_or_null,
    find_true_runs,
)

CITATION_PATTERN = r"\[\p{Nd}*\]|\[edit\]|\[citation needed\]"
TERMINAL_MARKS = ".?!\"'"
POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
MAX_WORD_LENGTH, MIN_LINE_WORDS = 1000, 3


def compute_c4_signals(text_column: pa.Array, texts: TextBatch) -> dict[str, pa.Array]:
    """Compute the figures of lines, one column (n,) each.

    Args:
        texts: The texts of ``text_column``.
    """
    signals = _compute_line_signals(texts)
    has_citation = pc.match_substring_regex(text_column, CITATION_PATTERN)
    if pc.any(has_citation).as_py():
        uncited_signals = _compute_line_signals(
            TextBatch.from_column(
                pc.replace_substring_regex(text_column.filter(has_citation), CITATION_PATTERN, "")
            )
        )
        signals = {
            name: pc.replace_with_mask(signals[name], has_citation, uncited_signals[name])
            for name in signals
        }
    return signals


def _compute_line_signals(texts: TextBatch) -> dict[str, pa.Array]:
    words, lines = texts.words, texts.lines
    first_words, end_words = texts.find_word_ranges(lines)
    is_nonblank = first_words < end_words
    lines = texts.make_spans(lines.starts[is_nonblank], lines.ends[is_nonblank])
    first_words = first_words[is_nonblank]
    end_words = end_words[is_nonblank]
    # without white space at the ends
    line_characters = words.ends[end_words - 1] - words.starts[first_words]
    is_kept = np.ones(len(lines), bool)
    removed_by_rule = {}
    breaks_rule_by_name = _mark_broken_lines_by_rule(texts, first_words, end_words)
    for name, breaks_rule in breaks_rule_by_name.items():
        removed_by_rule[name] = is_kept & breaks_rule
        is_kept &= ~breaks_rule
    lowercase_text = _lowercase_ascii(texts)
    has_phrase = {
        phrase: _contains_position(
            lines.starts, lines.ends, _find_phrase_positions(lowercase_text, phrase)
        )
        for phrase in ("lorem ipsum", "javascript", "{", *POLICY_PHRASES)
    }
    has_lorem_ipsum = is_kept & has_phrase["lorem ipsum"]
    removed_by_rule["javascript"] = is_kept & has_phrase["javascript"]
    is_kept &= ~removed_by_rule["javascript"]
    has_curly_bracket = is_kept & has_phrase["{"]
    removed_by_rule["policy"] = is_kept & np.logical_or.reduce(
        [has_phrase[phrase] for phrase in POLICY_PHRASES]
    )
    is_kept &= ~removed_by_rule["policy"]
    total_characters = lines.sum_by_text(line_characters)
    removed_shares = {
        f"c4_{name}": divide_or_null(
            lines.sum_by_text(is_removed * line_characters), total_characters
        )
        for name, is_removed in removed_by_rule.items()
    }
    return removed_shares | {
        "c4_removed_characters": divide_or_null(
            lines.sum_by_text(~is_kept * line_characters), total_characters
        ),
        "c4_lorem_ipsum": pa.array(lines.sum_by_text(has_lorem_ipsum)),
        "c4_curly_brackets": pa.array(lines.sum_by_text(has_curly_bracket)),
        "c4_sentences": pa.array(
            lines.sum_by_text(is_kept * _count_line_sentences(texts, first_words, end_words))
        ),
    }


def _mark_broken_lines_by_rule(
    texts: TextBatch, first_words: np.ndarray, end_words: np.ndarray
) -> dict[str, np.ndarray]:
    """Mark the lines that break each rule, (lines,), in the order of the rules."""
    long_words = np.flatnonzero(texts.words.lengths > MAX_WORD_LENGTH)
    last_characters = texts.words.ends[end_words - 1] - 1
    ends_with_ellipsis = texts.words.lengths[end_words - 1] >= 3
    for offset in range(3):
        ends_with_ellipsis &= texts.code_points[last_characters - offset] == ord(".")
    return {
        "long_words": _contains_position(first_words, end_words, long_words),
        "no_terminal_mark": ~np.isin(
            texts.code_points[last_characters], [ord(mark) for mark in TERMINAL_MARKS]
        )
        | ends_with_ellipsis,
        "few_words": end_words - first_words < MIN_LINE_WORDS,
    }


def _contains_position(starts: np.ndarray, ends: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return whether each span holds one of the ascending positions."""
    return np.searchsorted(positions, ends) > np.searchsorted(positions, starts)


def _lowercase_ascii(texts: TextBatch) -> str:
    """Join all texts with lower-case ASCII letters, keeping all positions."""
    # 32 for ASCII capitals, the distance to their lower-case letters
    case_offsets = (texts.character_classes & ASCII_CAPITAL) >> 2
    return str((texts.code_points + case_offsets).tobytes(), "utf-32-le")


def _find_phrase_positions(text: str, phrase: str) -> np.ndarray:
    """Return where a phrase begins, ascending."""
    positions, position = [], text.find(phrase)
    while position >= 0:
        positions.append(position)
        position = text.find(phrase, position + len(phrase))
    return np.array(positions, np.int64)


def _count_line_sentences(
    texts: TextBatch, first_words: np.ndarray, end_words: np.ndarray
) -> np.ndarray:
    """Count the sentences of each line, (lines,).

    That is one, plus one after each inner word that ends with a mark, or with a mark and closing
    quotes or brackets.
    """
    words = texts.words
    last_core_characters = words.ends - 1  # last character of each word that is not a closing mark
    is_closing = (texts.character_classes & CLOSING_MARK) != 0
    closed_words = np.flatnonzero(is_closing[last_core_characters])
    closing_starts, _ = find_true_runs(is_closing)
    last_core_characters[closed_words] = (
        closing_starts[
            np.searchsorted(closing_starts, last_core_characters[closed_words], side="right") - 1
        ]
        - 1
    )
    ends_with_mark = (last_core_characters >= words.starts) & (
        (texts.character_classes[last_core_characters] & ENGLISH_END_MARK) != 0
    )
    cumulative_marks = np.concatenate([[0], np.cumsum(ends_with_mark)])
    sentence_counts: np.ndarray = (
        cumulative_marks[end_words - 1] - cumulative_marks[first_words] + 1
    )
    return sentence_counts
