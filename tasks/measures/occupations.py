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

from tasks.measures.identities import DATA, Entry, Lexicon, find_places, plural

Int64 = NDArray[np.int64]

#: Names of the groups beside those of occupations, which are their singulars.
GENDERS = ("women", "men")
_END = "end of a sentence"

#: No ends of sentences for us: behind a title, within a number, and what ends only a clause.
_GOES_ON = r"\b(Mrs?|Ms|Mx|Dr|Prof|Rev|St)\.|(\pN)[.:](\pN)|[;:]"
_PARAGRAPH = r"\n[ \t\r]*\n"

#: More words than a text can have, so that places of all texts are one ascending sequence.
_TEXT = 1 << 40


@cache
def occupations() -> tuple[str, ...]:
    """The singulars, in order."""
    return tuple(group for group in _lexicon().groups if group not in (*GENDERS, _END))


@cache
def _lexicon() -> Lexicon:
    """Occupations, gendered words and ends of sentences. Words that are also verbs or names count
    where a word such as *the* or *been* stands before them."""
    said = json.loads((DATA / "occupations.json").read_text(encoding="utf-8"))
    entries: list[tuple[str, Entry]] = []
    for name in said["occupations"]:
        entries.append((name, Entry((name, plural(name)))))
    for name in said["ambiguous"]:
        entries.append((name, Entry((name, plural(name)), after=tuple(said["after"]))))
    for gender in GENDERS:
        entries.append((gender, Entry(tuple(said[gender]))))
    entries.append(("women", Entry(("miss",), capital=True)))
    entries.append((_END, Entry((".",))))
    return Lexicon(tuple(entries))


def beside(texts: pa.Array, window: int) -> tuple[Int64, Int64, Int64]:
    """Every mention of an occupation: its number in ``occupations``, the number of its text, and
    how many words of women and of men stand at most ``window`` words before or behind it in its
    sentence, (n,), (n,) and (n, 2). A blank line ends a sentence, too."""
    texts = pc.replace_substring_regex(texts, _PARAGRAPH, " . ")
    texts = pc.replace_substring_regex(texts, _GOES_ON, r"\1\2 \3")
    lexicon = _lexicon()
    groups = {group: number for number, group in enumerate((*occupations(), *GENDERS, _END))}
    group = np.array([groups[name] for name, _ in lexicon.terms], np.int64)
    length = np.array([len(term.split()) for _, term in lexicon.terms], np.int64)
    term, text, place = find_places(texts, lexicon)
    at, found = text * _TEXT + place, group[term]
    jobs = np.flatnonzero(found < len(occupations()))
    ends = at[found == groups[_END]]
    start, stop = at[jobs], at[jobs] + length[term[jobs]]
    base = text[jobs] * _TEXT
    place_of = np.searchsorted(ends, start)
    left = np.maximum(start - window, np.maximum(base, np.append(-1, ends)[place_of]))
    right = np.minimum(stop + window, np.append(ends, np.iinfo(np.int64).max)[place_of])
    counts = np.empty((len(jobs), 2), np.int64)
    for column, gender in enumerate(GENDERS):
        words = at[found == groups[gender]]
        counts[:, column] = np.searchsorted(words, right) - np.searchsorted(words, left)
    return found[jobs], text[jobs], counts
