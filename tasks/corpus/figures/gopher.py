"""Figures of the rules of Gopher (Rae et al. 2021, section A1.1 and table A1).

Words are what white space parts. The paper does not say which of two copies a duplicate is, nor how
n-grams that overlap are told apart: here as in datatrove, whose rules made FineWeb. Only later
copies count, and n-grams are scanned from the left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from tasks.corpus.figures.texts import ALPHABETIC, WORDY, Spans, Texts, mixed, runs, share

BULLETS = ("•", "-")


def quality(texts: Texts, stop_words: Sequence[str]) -> dict[str, pa.Array]:
    """Figures of single words, symbols and lines, a column (n,) each."""
    words, lines = texts.words, texts.lines
    wordy = (texts.kinds & WORDY) != 0
    alphabetic = (texts.kinds & ALPHABETIC) != 0
    count = words.sums(wordy)
    first, end = texts.words_in(lines)
    there = first < end
    bullet = np.isin(texts.points[words.starts[first[there]]], [ord(sign) for sign in BULLETS])
    stops = np.zeros(len(texts), np.int64)
    for word in stop_words:
        stops += words.sums(texts.word_hashes == texts.word_hash(word)) > 0
    return {
        "words": pa.array(count),
        "word_length": share(words.sums(words.lengths * wordy), count),
        "hashes_per_word": share(texts.counts(np.flatnonzero(texts.points == 35)), words.counts),
        "ellipses_per_word": share(_ellipses(texts), words.counts),
        "bullet_lines": share(lines.sums(_placed(there, bullet)), lines.counts),
        "ellipsis_lines": share(
            lines.sums(_placed(there, _trails_off(texts, end[there] - 1))), lines.counts
        ),
        "alphabetic_words": share(words.sums(alphabetic), words.counts),
        "stop_words": pa.array(stops),
    }


def _placed(there: np.ndarray, values: np.ndarray) -> np.ndarray:
    placed = np.zeros(len(there), bool)
    placed[there] = values
    return placed


def _ellipses(texts: Texts) -> np.ndarray:
    """(n,) how many: three dots, or the one sign for them."""
    starts, ends = runs(texts.points == ord("."))
    dots = texts.spans(starts, ends)
    return dots.sums(dots.lengths // 3) + texts.counts(np.flatnonzero(texts.points == ord("…")))


def _trails_off(texts: Texts, words: np.ndarray) -> np.ndarray:
    """Whether these words end with an ellipsis."""
    last = texts.words.ends[words] - 1
    three = texts.words.lengths[words] >= 3
    for back in range(3):
        three &= texts.points[last - back] == ord(".")
    return three | (texts.points[last] == ord("…"))


#: The n of the n-grams, and for which of them the most frequent or all repeated ones are counted.
TOP, REPEATED = (2, 3, 4), (5, 6, 7, 8, 9, 10)


def repetition(texts: Texts) -> dict[str, pa.Array]:
    """Figures of lines, paragraphs and n-grams that occur again, a column (n,) each."""
    found: dict[str, pa.Array] = {}
    for name, spans in (("lines", texts.blocks), ("paragraphs", texts.paragraphs)):
        again = copies(texts, spans)
        found[f"duplicate_{name}"] = share(spans.sums(again), spans.counts)
        characters = spans.sums(again * spans.lengths)
        found[f"duplicate_{name}_characters"] = share(characters, texts.lengths)
    # An empty text has a line and a paragraph, but nothing can be said of it.
    for name in ("duplicate_lines", "duplicate_paragraphs"):
        found[name] = share(np.asarray(found[name]), (texts.lengths > 0).astype(np.int64))
    for n, characters in ngrams(texts).items():
        name = f"top_{n}gram" if n in TOP else f"duplicate_{n}grams"
        found[name] = share(characters, texts.lengths)
    return found


def copies(texts: Texts, spans: Spans) -> np.ndarray:
    """(m,) whether each span is a later copy of another one of its text."""
    keys = mixed(texts.hashes(spans), spans.of.astype(np.uint64))
    order, first = repeated(keys)
    again = np.zeros(len(spans), bool)
    again[order] = True
    again[order[first]] = False
    return again


def repeated(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places of those keys that occur more than once, in groups of equal ones, each ascending; and
    where in these the groups begin."""
    order = np.argsort(keys)
    ordered = keys[order]
    same = np.zeros(len(keys) + 1, bool)  # as the one before
    same[1:-1] = ordered[1:] == ordered[:-1]
    many = same[1:] | same[:-1]
    group = np.cumsum(many & ~same[:-1])[many]
    packed = np.sort((group << 40) | order[many])
    places = packed & ((1 << 40) - 1)
    return places, np.flatnonzero(np.diff(packed >> 40, prepend=-1))


def ngrams(texts: Texts) -> Mapping[int, np.ndarray]:
    """By n (n of TOP and REPEATED,) the characters of each text (texts,) that are in its most
    frequent n-gram, or in repeated ones.

    A longer n-gram occurs twice only where a shorter one does at its place: most places are looked
    at no further than n = 2.
    """
    words = texts.words
    hashes, text = texts.word_hashes, words.of
    before = np.concatenate([[0], np.cumsum(words.lengths)])  # characters of words
    last = words.first[1:][text]  # behind the last word of each word's text
    at = np.arange(len(words))
    grams = mixed(hashes, text.astype(np.uint64))
    found = {}
    for n in range(2, max(REPEATED) + 1):
        fits = at + n <= last[at]
        at = at[fits]
        grams = mixed(grams[fits], hashes[at + n - 1])
        places, first = repeated(grams)
        if n in TOP:
            found[n] = _most_frequent(words, before, n, at[places], first)
        else:
            hits = np.array(_scanned(at[places], first, n), np.int64)
            covered = before[hits + n] - before[hits]
            found[n] = np.bincount(text[hits], covered, len(texts)).astype(np.int64)
        kept = np.sort(places)
        at, grams = at[kept], grams[kept]
    return found


def _most_frequent(
    words: Spans, before: np.ndarray, n: int, places: np.ndarray, first: np.ndarray
) -> np.ndarray:
    """(texts,) characters of all occurrences of each text's most frequent n-gram, with a space
    between words; of several the one that comes first. It may be one that occurs once."""
    start = words.first[:-1].copy()  # word at which the chosen one is first
    count = (words.counts >= n).astype(np.int64)
    sizes = np.diff(first, append=len(places))
    earliest = places[first]
    text = words.of[earliest]
    order = np.lexsort((earliest, -sizes, text))  # the last key counts most
    chosen = order[np.diff(text[order], prepend=-1) > 0]
    start[text[chosen]] = earliest[chosen]
    count[text[chosen]] = sizes[chosen]
    some = count > 0
    length = np.zeros(len(start), np.int64)
    length[some] = before[start[some] + n] - before[start[some]] + n - 1
    return count * length


def _scanned(places: np.ndarray, first: np.ndarray, n: int) -> list[int]:
    """Words at which a repeated n-gram is counted: texts are read from the left, an n-gram seen
    before is counted and leapt over, any other one is remembered.

    What depends on all that was leapt over before it cannot be reckoned at once; so this is a loop,
    but only over n-grams that do occur twice.
    """
    group = np.zeros(len(places), np.int64)
    group[first] = 1
    order = np.argsort(places)
    hits = []
    seen = set()
    free = 0
    for place, gram in zip(places[order].tolist(), np.cumsum(group)[order].tolist(), strict=True):
        if place >= free:
            if gram in seen:
                hits.append(place)
                free = place + n
            else:
                seen.add(gram)
    return hits
