"""Find the spans of a text that also occur in the training text, the rarest first.

This follows OLMoTrace (Liu et al. 2025): spans are maximal and ranked by their unigram probability.
Unlike there, words are compared as bytes, not as tokens, and a span may contain the end of a
sentence, since a copied paragraph is better evidence than its sentences.
"""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from hallmark.tasks.audits.text_index import TextIndex

#: Minimum length of a span. Shorter spans, such as "in the middle", occur in any text.
MIN_SPAN_CHARACTERS = 16

#: In longer words, such as keys, each character counts as a word.
MAX_WORD_CHARACTERS = 64

#: Beginnings of the Unicode names of letters whose scripts put no spaces between words.
UNSPACED_SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


class TrainingSpan(NamedTuple):
    """A span of a text that occurs in the training text.

    Attributes:
        start: Index of its first character in the text.
        end: Index after its last character.
        occurrences: Number of positions in the training text at which it begins.
        log_probability: Natural logarithm of its unigram probability: the sum over its words of the
            share of the positions in the training text at which the word begins.
    """

    start: int
    end: int
    occurrences: int
    log_probability: float


class WordBounds(NamedTuple):
    """The position of a word in a text: its first character, and the one after its last."""

    start: int
    end: int


def find_training_spans(
    index: TextIndex, text: str, min_characters: int = MIN_SPAN_CHARACTERS
) -> list[TrainingSpan]:
    """Find all maximal spans of a text that occur in the training text.

    A span begins where a word begins, ends where a word ends, and lies within one document. It is
    maximal if no longer span that contains it occurs.

    Args:
        index: The training text.
        text: The text; it must be encodable as UTF-8.
        min_characters: Minimum length of a span.

    Returns:
        The spans, the one with the lowest unigram probability first; among equal ones, that with
        the fewest occurrences, then the first.
    """
    query, words = text.encode(), [*iter_words(text)]
    byte_offsets = [0, *accumulate(len(character.encode()) for character in text)]
    word_end_bytes = [byte_offsets[word.end] for word in words]
    word_counts: dict[str, int] = {}

    def compute_log_share(word: WordBounds) -> float:
        word_text = text[word.start : word.end]
        if word_text not in word_counts:
            word_counts[word_text] = index.count_occurrences(word_text.encode())
        return math.log(word_counts[word_text] / index.text_bytes)

    spans: list[TrainingSpan] = []
    longest_word_count = 0  # words before the end of the previous spans
    for number, word in enumerate(words):
        start = byte_offsets[word.start]
        match_end = start + index.measure_longest_match(query, start)
        word_count = bisect_right(word_end_bytes, match_end)
        # The end never moves back: without its first word, a span occurs, too. So a span that ends
        # where an earlier one ends is a part of it.
        if word_count <= longest_word_count or word_count == number:
            continue
        longest_word_count = word_count
        end = words[word_count - 1].end
        if end - word.start >= min_characters:
            occurrences = index.count_occurrences(query[start : byte_offsets[end]])
            log_probability = sum(map(compute_log_share, words[number:word_count]))
            spans.append(TrainingSpan(word.start, end, occurrences, log_probability))
    return sorted(spans, key=lambda span: (span.log_probability, span.occurrences, span.start))


def iter_words(text: str) -> Iterator[WordBounds]:
    """Yield the words of a text.

    A word is a run of letters, digits, marks and underscores. Each other character except for
    spaces is a word, too, and so is each character of a script without spaces between words, and
    each character of a run of more than MAX_WORD_CHARACTERS.
    """
    start = 0
    while start < len(text):
        end = start + 1
        if _is_word_character(text[start]):
            while end < len(text) and _is_word_character(text[end]):
                end += 1
        if end - start > MAX_WORD_CHARACTERS:
            yield from (WordBounds(position, position + 1) for position in range(start, end))
        elif not text[start].isspace():
            yield WordBounds(start, end)
        start = end


@lru_cache(maxsize=4096)
def _is_word_character(character: str) -> bool:
    """Whether a character belongs to a word of several characters."""
    category = unicodedata.category(character)
    return character == "_" or (
        category[0] in "LMN" and not unicodedata.name(character, "").startswith(UNSPACED_SCRIPTS)
    )
