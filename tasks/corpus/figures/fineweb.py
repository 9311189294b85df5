"""Figures of the rules of FineWeb (Penedo et al. 2024, section 3.6), as in its code, datatrove."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tasks.corpus.figures.gopher import copies
from tasks.corpus.figures.texts import TERMINAL, Texts, share


def fineweb(texts: Texts, short_line: int) -> dict[str, pa.Array]:
    """Figures of lines that are not blank, a column (n,) each."""
    blocks = texts.blocks
    first, end = texts.words_in(blocks)
    some = first < end
    lines = blocks.sums(some)
    terminal = np.zeros(len(blocks), bool)
    terminal[some] = (texts.classes[blocks.ends[some] - 1] & TERMINAL) != 0
    again = copies(texts, blocks) & some
    feeds = texts.counts(np.flatnonzero(texts.points == ord("\n")))
    characters = np.where(lines > 0, texts.lengths - feeds, 0)
    return {
        "terminal_lines": share(blocks.sums(terminal), lines),
        "short_lines": share(blocks.sums(some & (blocks.lengths <= short_line)), lines),
        "duplicate_characters": share(blocks.sums(again * blocks.lengths), characters),
        "feeds_per_word": share(feeds, texts.words.counts),
    }
