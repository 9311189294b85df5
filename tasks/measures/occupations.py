"""Occupations beside gendered words: which words of women and of men stand near which occupation.

Found by whole English words of the project's own (``data/occupations.json``): pronouns, titles and
the plainest nouns. Kin is left out: the *husband* of a baker is not the baker. A word near an
occupation may be of somebody else, too; what is counted is company, not who works as what.
"""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hallmark.tasks.measures.identities import (
    DATA_FOLDER,
    Lexicon,
    LexiconEntry,
    find_mention_positions,
    pluralise,
)

Int64 = NDArray[np.int64]

#: Names of the groups beside those of occupations, which are their singulars.
GENDER_GROUPS = ("women", "men")
_SENTENCE_END = "end of a sentence"

#: No ends of sentences for us: behind a title, within a number, and what ends only a clause.
_NOT_SENTENCE_END = r"\b(Mrs?|Ms|Mx|Dr|Prof|Rev|St)\.|(\pN)[.:](\pN)|[;:]"
_PARAGRAPH_BREAK = r"\n[ \t\r]*\n"

#: More words than a text can have, so that places of all texts are one ascending sequence.
_MAX_WORDS_PER_TEXT = 1 << 40


@cache
def list_occupations() -> tuple[str, ...]:
    """The singulars, in order."""
    return tuple(
        group
        for group in _load_occupation_lexicon().groups
        if group not in (*GENDER_GROUPS, _SENTENCE_END)
    )


@cache
def _load_occupation_lexicon() -> Lexicon:
    """Occupations, gendered words and ends of sentences. Words that are also verbs or names count
    where a word such as *the* or *been* stands before them."""
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


def count_gendered_words(texts: pa.Array, window_words: int) -> tuple[Int64, Int64, Int64]:
    """Every mention of an occupation: its number in ``occupations``, the number of its text, and
    how many words of women and of men stand at most ``window`` words before or behind it in its
    sentence, (n,), (n,) and (n, 2). A blank line ends a sentence, too."""
    texts = pc.replace_substring_regex(texts, _PARAGRAPH_BREAK, " . ")
    texts = pc.replace_substring_regex(texts, _NOT_SENTENCE_END, r"\1\2 \3")
    lexicon = _load_occupation_lexicon()
    group_codes = {
        term_group_codes: number
        for number, term_group_codes in enumerate(
            (*list_occupations(), *GENDER_GROUPS, _SENTENCE_END)
        )
    }
    term_group_codes = np.array([group_codes[name] for name, _ in lexicon.terms], np.int64)
    term_lengths = np.array(
        [len(term_indices.split()) for _, term_indices in lexicon.terms], np.int64
    )
    term_indices, text_indices, word_positions = find_mention_positions(texts, lexicon)
    global_positions, mention_groups = (
        text_indices * _MAX_WORDS_PER_TEXT + word_positions,
        term_group_codes[term_indices],
    )
    occupation_rows = np.flatnonzero(mention_groups < len(list_occupations()))
    sentence_ends = global_positions[mention_groups == group_codes[_SENTENCE_END]]
    starts, stops = (
        global_positions[occupation_rows],
        global_positions[occupation_rows] + term_lengths[term_indices[occupation_rows]],
    )
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
    return mention_groups[occupation_rows], text_indices[occupation_rows], counts
