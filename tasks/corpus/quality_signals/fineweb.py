"""Compute the figures of FineWeb's rules (Penedo et al. 2024, section 3.6), as datatrove does."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hallmark.tasks.corpus.quality_signals.gopher import mark_later_copies
from hallmark.tasks.corpus.quality_signals.text_batch import SENTENCE_END, TextBatch, divide_or_null


def compute_fineweb_signals(texts: TextBatch, short_line_characters: int) -> dict[str, pa.Array]:
    """Compute the figures of lines that are not blank, one column (n,) each."""
    line_blocks = texts.line_blocks
    first_words, end_words = texts.find_word_ranges(line_blocks)
    is_nonblank = first_words < end_words
    line_counts = line_blocks.sum_by_text(is_nonblank)
    ends_sentence = np.zeros(len(line_blocks), bool)
    ends_sentence[is_nonblank] = (
        texts.character_classes[line_blocks.ends[is_nonblank] - 1] & SENTENCE_END
    ) != 0
    is_duplicate = mark_later_copies(texts, line_blocks) & is_nonblank
    line_feed_counts = texts.count_positions_by_text(np.flatnonzero(texts.code_points == ord("\n")))
    character_counts = np.where(line_counts > 0, texts.lengths - line_feed_counts, 0)
    return {
        "terminal_lines": divide_or_null(line_blocks.sum_by_text(ends_sentence), line_counts),
        "short_lines": divide_or_null(
            line_blocks.sum_by_text(is_nonblank & (line_blocks.lengths <= short_line_characters)),
            line_counts,
        ),
        "duplicate_characters": divide_or_null(
            line_blocks.sum_by_text(is_duplicate * line_blocks.lengths), character_counts
        ),
        "line_feeds_per_word": divide_or_null(line_feed_counts, texts.words.counts_by_text),
    }
