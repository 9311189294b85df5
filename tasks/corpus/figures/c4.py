"""Figures of the rules of C4 (Raffel et al. 2020, section 2.2), in the order of its published code.

C4 takes single lines, and drops a document of which too few sentences are left or a line that is
left holds certain things. Nothing is taken here: what would be is measured. Marks of citations such
as [1] are left out of account, wherever they stand.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.corpus.figures.texts import CAPITAL, CLOSING, MARK, Texts, runs, share

CITATION = r"\[\p{Nd}*\]|\[edit\]|\[citation needed\]"
TERMINAL = ".?!\"'"
POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies",
            "use cookies")  # fmt: skip
LONG_WORD, FEW_WORDS = 1000, 3


def c4(column: pa.Array, texts: Texts) -> dict[str, pa.Array]:
    """Figures of lines, a column (n,) each; texts: those of the column."""
    found = _figures(texts)
    cited = pc.match_substring_regex(column, CITATION)
    if pc.any(cited).as_py():
        plain = _figures(Texts.of(pc.replace_substring_regex(column.filter(cited), CITATION, "")))
        found = {n: pc.replace_with_mask(found[n], cited, plain[n]) for n in found}
    return found


def _figures(texts: Texts) -> dict[str, pa.Array]:
    words, lines = texts.words, texts.lines
    first, end = texts.words_in(lines)
    some = first < end
    lines, first, end = texts.spans(lines.starts[some], lines.ends[some]), first[some], end[some]
    characters = words.ends[end - 1] - words.starts[first]  # without white space at the ends
    left = np.ones(len(lines), bool)
    taken = {}
    for name, breaks in _line_rules(texts, first, end):
        taken[name] = left & breaks
        left &= ~breaks
    lower = _lower(texts)
    phrases = {
        phrase: _holding(lines.starts, lines.ends, _places(lower, phrase))
        for phrase in ("lorem ipsum", "javascript", "{", *POLICIES)
    }
    lorem = left & phrases["lorem ipsum"]
    taken["javascript"] = left & phrases["javascript"]
    left &= ~taken["javascript"]
    curly = left & phrases["{"]
    taken["policy"] = left & np.logical_or.reduce([phrases[phrase] for phrase in POLICIES])
    left &= ~taken["policy"]
    whole = lines.sums(characters)
    found = {
        f"c4_{name}": share(lines.sums(which * characters), whole) for name, which in taken.items()
    }
    return found | {
        "c4_taken": share(lines.sums(~left * characters), whole),
        "c4_lorem_ipsum": pa.array(lines.sums(lorem)),
        "c4_curly_brackets": pa.array(lines.sums(curly)),
        "c4_sentences": pa.array(lines.sums(left * _sentences(texts, first, end))),
    }


def _line_rules(
    texts: Texts, first: np.ndarray, end: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Whether each line, of the words from first to end, breaks the rules, in their order."""
    long = np.flatnonzero(texts.words.lengths > LONG_WORD)
    yield "long_words", _holding(first, end, long)
    last = texts.words.ends[end - 1] - 1
    dots = texts.words.lengths[end - 1] >= 3
    for back in range(3):
        dots &= texts.points[last - back] == ord(".")
    yield "no_terminal", ~np.isin(texts.points[last], [ord(mark) for mark in TERMINAL]) | dots
    yield "few_words", end - first < FEW_WORDS


def _holding(starts: np.ndarray, ends: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Whether each span holds one of the places, which ascend."""
    return np.searchsorted(places, ends) > np.searchsorted(places, starts)


def _lower(texts: Texts) -> str:
    """All texts, with the capitals of ASCII made small, so that no place moves."""
    small = (texts.classes & CAPITAL) >> 2  # 32 for those of which small ones are 32 behind
    return str((texts.points + small).tobytes(), "utf-32-le")


def _places(text: str, phrase: str) -> np.ndarray:
    """Where a phrase begins, ascending."""
    found, at = [], text.find(phrase)
    while at >= 0:
        found.append(at)
        at = text.find(phrase, at + len(phrase))
    return np.array(found, np.int64)


def _sentences(texts: Texts, first: np.ndarray, end: np.ndarray) -> np.ndarray:
    """(lines,) sentences of each line: one, and one more behind each inner word that ends with a
    mark, or with a mark and closing quotes or brackets."""
    words = texts.words
    core = words.ends - 1  # the last character of a word that closes nothing
    closing = (texts.classes & CLOSING) != 0
    closed = np.flatnonzero(closing[core])
    starts, _ = runs(closing)
    core[closed] = starts[np.searchsorted(starts, core[closed], side="right") - 1] - 1
    marked = (core >= words.starts) & ((texts.classes[core] & MARK) != 0)
    total = np.concatenate([[0], np.cumsum(marked)])
    return total[end - 1] - total[first] + 1
