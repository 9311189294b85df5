"""Count words for women and for men that occur near each occupation.

The English words are the project's own list (`data/occupations.json`): pronouns, titles and the
most common nouns. Kinship terms are excluded: a baker's *husband* is not the baker. A gendered word
near an occupation may refer to somebody else; the counts measure co-occurrence, not who has which
job.
"""

from __future__ import annotations

import json
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hallmark.tasks.measures.identities import (
    DATA_FOLDER,
    Lexicon,
    LexiconEntry,
    find_term_mentions,
    pluralise,
)

Int64 = NDArray[np.int64]

#: Names of the groups of gendered words; each occupation is a group named by its singular.
GENDER_GROUPS = ("women", "men")
_SENTENCE_END = "end of a sentence"

#: Punctuation that does not end a sentence: after a title, within a number, or between clauses.
_NOT_SENTENCE_END = r"\b(Mrs?|Ms|Mx|Dr|Prof|Rev|St)\.|(\pN)[.:](\pN)|[;:]"
_PARAGRAPH_BREAK = r"\n[ \t\r]*\n"

#: More words than a text can have, so that positions of all texts form one ascending sequence.
_MAX_WORDS_PER_TEXT = 1 << 40


@cache
def list_occupations() -> tuple[str, ...]:
    """Return the singulars of all occupations, in the order of their codes."""
    return tuple(
        group
        for group in _load_occupation_lexicon().groups
        if group not in (*GENDER_GROUPS, _SENTENCE_END)
    )


@cache
def _load_occupation_lexicon() -> Lexicon:
    """Load a lexicon of occupations, gendered words and sentence ends.

    Words that are also verbs or names count only after a word such as *the* or *been*.
    """
    definition = json.loads((DATA_FOLDER / "occupations.json").read_text(encoding="utf-8"))
    entries: list[tuple[str, LexiconEntry]] = []
    for name in definition["occupations"]:
        entries.append((name, LexiconEntry((name, pluralise(name)))))
    for name in definition["ambiguous"]:
        entries.append(
            (name, LexiconEntry((name, pluralise(name)), after=tuple(definition["after"])))
        )
    for gender in GENDER_GROUPS:
        entries.append((gender, LexiconEntry(tuple(definition[gender]))))
    entries.append(("women", LexiconEntry(("miss",), requires_capital=True)))
    entries.append((_SENTENCE_END, LexiconEntry((".",))))
    return Lexicon(tuple(entries))


class OccupationMentions(NamedTuple):
    """Mentions of occupations in texts, with the gendered words near them."""

    occupation_indices: Int64
    """(n,) index in `list_occupations`."""
    text_indices: Int64
    """(n,)"""
    gendered_word_counts: Int64
    """(n, 2) numbers of words for women and for men near the mention."""


def count_gendered_words_by_mention(texts: pa.Array, window_words: int) -> OccupationMentions:
    """Count gendered words near each mention of an occupation, within its sentence.

    A blank line also ends a sentence.

    Args:
        texts: (texts,) strings.
        window_words: Number of words searched on either side of the occupation.
    """
    texts = pc.replace_substring_regex(texts, _PARAGRAPH_BREAK, " . ")
    texts = pc.replace_substring_regex(texts, _NOT_SENTENCE_END, r"\1\2 \3")
    lexicon = _load_occupation_lexicon()
    groups = (*list_occupations(), *GENDER_GROUPS, _SENTENCE_END)
    group_codes = {group: code for code, group in enumerate(groups)}
    term_group_codes = np.array([group_codes[group] for group, _ in lexicon.terms], np.int64)
    term_lengths = np.array([len(term.split()) for _, term in lexicon.terms], np.int64)
    term_indices, text_indices, word_positions = find_term_mentions(texts, lexicon)
    global_positions = text_indices * _MAX_WORDS_PER_TEXT + word_positions
    mention_groups = term_group_codes[term_indices]
    occupation_rows = np.flatnonzero(mention_groups < len(list_occupations()))
    sentence_ends = global_positions[mention_groups == group_codes[_SENTENCE_END]]
    starts = global_positions[occupation_rows]
    stops = starts + term_lengths[term_indices[occupation_rows]]
    text_starts = text_indices[occupation_rows] * _MAX_WORDS_PER_TEXT
    sentence_indices = np.searchsorted(sentence_ends, starts)
    window_starts = np.maximum(
        starts - window_words,
        np.maximum(text_starts, np.append(-1, sentence_ends)[sentence_indices]),
    )
    window_ends = np.minimum(
        stops + window_words, np.append(sentence_ends, np.iinfo(np.int64).max)[sentence_indices]
    )
    counts = np.empty((len(occupation_rows), 2), np.int64)
    for column, gender in enumerate(GENDER_GROUPS):
        gendered_positions = global_positions[mention_groups == group_codes[gender]]
        counts[:, column] = np.searchsorted(gendered_positions, window_ends) - np.searchsorted(
            gendered_positions, window_starts
        )
    return OccupationMentions(
        mention_groups[occupation_rows], text_indices[occupation_rows], counts
    )
