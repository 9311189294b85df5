"""Mentions of groups of people in texts, by the project's own lexicon or one that a user brings.

A lexicon holds terms of one to four words in lower case. Some of them mean people only in company:
*white* does before *women* and after *he is*, not before *walls*. Such a term names the contexts of
which one must hold, and what must not stand beside it; contexts are runs of word classes. All of it
is data (``data/identities.json``), and all of it is matched on arrays of word codes.

How well that works is measured on labelled sentences, see ``labelled.py``. The words are English. A
mention is no more than that: it says neither who writes nor of whom well or badly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.contract import HallmarkError, open_external

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

DATA = Path(__file__).parent / "data"

#: So many words of a class marked * may stand between a term and what decides about it.
REACH = 3

#: What an entry with contexts may say beside its terms; see ``Entry``.
CONDITIONS = ("needs", "before", "after", "not_before", "not_after")


@dataclass(frozen=True)
class Entry:
    """Terms of a group, and where they count: in one of the contexts ``needs``, if it names any;
    with one of the phrases ``before`` it (these words follow) and ``after`` it (these precede),
    if it names any; and with none of those ``not_before`` and ``not_after`` it."""

    terms: tuple[str, ...]
    needs: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    not_before: tuple[str, ...] = ()
    not_after: tuple[str, ...] = ()
    capital: bool = False  # its first letter must be one

    @property
    def conditional(self) -> bool:
        return self.capital or any(getattr(self, name) for name in CONDITIONS)


@dataclass(frozen=True)
class Lexicon:
    """``entries`` by group; ``contexts``: for each name the classes of the words to the left of a
    term, farthest first, and of those to its right. A class behind which a * stands may be there
    up to three times, "a|b" is either."""

    entries: tuple[tuple[str, Entry], ...]
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False)
    contexts: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict, hash=False)

    @property
    def terms(self) -> list[tuple[str, str]]:
        """(group, term), a row for each term of each entry."""
        return [(group, term) for group, entry in self.entries for term in entry.terms]

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(group for group, _ in self.entries))

    def with_groups(self, groups: Mapping[str, Sequence[str]]) -> Lexicon:
        """With the terms of more groups, none of which needs a context."""
        more = tuple((group, Entry(tuple(terms))) for group, terms in groups.items())
        return Lexicon(self.entries + more, self.classes, self.contexts)


@cache
def lexicon(name: str = "identities") -> Lexicon:
    """One of the project's own."""
    said = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    entries = tuple((group, e) for group, given in said["groups"].items() for e in _entries(given))
    return Lexicon(entries, said["classes"], said["contexts"])


def _entries(given: Sequence[Any]) -> Iterator[Entry]:
    """The entries of a group. What stands there as a string needs no context; of ``nouns`` the
    plural counts as well."""
    plain = [term for term in given if isinstance(term, str)]
    yield Entry(tuple(dict.fromkeys(plain)))
    for said in given:
        if not isinstance(said, str):
            more = {name: tuple(said.get(name, ())) for name in CONDITIONS}
            terms = [*said.get("terms", ())]
            terms += [form for noun in said.get("nouns", ()) for form in (noun, plural(noun))]
            yield Entry(tuple(dict.fromkeys(terms)), **more, capital=said.get("capital", False))


def plural(noun: str) -> str:
    """Of an English noun that is regular, or ends in -man, -wife or -person."""
    if noun.endswith("man") and noun not in ("german", "human", "shaman"):
        return noun[:-2] + "en"
    if noun.endswith("wife"):
        return noun[:-2] + "ves"
    if noun.endswith("person"):
        return noun[:-6] + "people"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def read_lexicon(path: Path) -> dict[str, list[str]]:
    """A lexicon that a user brings: a JSON object, for each group a list of terms in lower case.

    Raises HallmarkError where it is anything else.
    """
    try:
        with open_external(path, "identities.lexicons") as file:
            said = json.loads(file.read().decode())
    except OSError as error:
        raise HallmarkError(f"lexicon {path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise HallmarkError(
            f"lexicon {path}: is no JSON ({error}); write it as UTF-8, an object of groups"
        ) from error
    if not isinstance(said, dict) or not said:
        raise HallmarkError(
            f"lexicon {path}: must be a JSON object of groups, a list of terms each"
        )
    for group, terms in said.items():
        if not group.isprintable() or len(group) > 200:  # nor is a lone surrogate printable
            raise HallmarkError(
                f"lexicon {path}: {group!r:.60} cannot name a group; give it a name of at most 200 "
                f"characters that can be printed"
            )
        if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
            raise HallmarkError(f"lexicon {path}: group {group!r:.60} must be a list of terms")
        if not terms:
            raise HallmarkError(
                f"lexicon {path}: group {group!r:.60} has no terms; give it some or leave it out"
            )
    for term in _never_found([term for terms in said.values() for term in terms]):
        raise HallmarkError(
            f"lexicon {path}: {term!r:.60} can never be found; write terms in lower case, "
            f"with single spaces where words are parted by anything but letters and digits"
        )
    return said


def _never_found(terms: Sequence[str]) -> list[str]:
    """The terms that are not words as texts are cut into, with single spaces between them."""
    # What UTF-8 cannot spell becomes a "?", which is no letter.
    texts = pa.array([term.encode(errors="replace") for term in terms]).cast(pa.large_string())
    lower = pc.equal(pc.utf8_lower(texts), texts)
    found = pc.and_(lower, pc.match_substring_regex(texts, _WORDS))
    return [terms[row] for row in pc.indices_nonzero(pc.invert(found)).to_pylist()]


# Finding ---------------------------------------------------------------------------------------

#: RE2 knows letters of all scripts; hyphens and apostrophes separate words. What ends a sentence or
#: a clause stays, as a word of its own: no context reaches over it.
_STOPS, _BETWEEN = r"[.!?;:]+", r"[^\pL\pN.]+"
#: A term: words, and a space between one and the next.
_WORDS = r"^[\pL\pN]+( [\pL\pN]+)*$"


class _Codes:
    """Words of a batch as numbers of a vocabulary; -1 for every other, and beyond a text's ends."""

    def __init__(self, texts: pa.Array, vocabulary: Sequence[str]) -> None:
        stopped = pc.replace_substring_regex(texts, _STOPS, " . ")
        lists = pc.split_pattern_regex(stopped, _BETWEEN)
        words, owners = pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()
        some = pc.not_equal(words, "")
        self.words = words.filter(some)
        self.owners = owners[some.to_numpy(zero_copy_only=False)].astype(np.int64)
        lowered = pc.utf8_lower(self.words)
        known = pc.index_in(lowered, value_set=pa.array(vocabulary, lowered.type))
        codes = pc.fill_null(known, -1).to_numpy().astype(np.int64)
        # The end of a text ends its last sentence, and so does its beginning.
        self.stop = vocabulary.index(".")
        self.codes = np.append(codes, self.stop)
        self.owners_ = np.append(self.owners, -2)

    def at(self, places: Int64, text: Int64) -> Int64:
        """Codes of the words at these places; a stop where a place is outside of its text."""
        inside = (places >= 0) & (places < len(self.codes))
        places = np.where(inside, places, len(self.codes) - 1)
        return np.where(self.owners_[places] == text, self.codes[places], self.stop)


class _Matcher:
    """A lexicon as codes and tables, made once."""

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        phrases = [term for _, term in lexicon.terms]
        for _, entry in lexicon.entries:
            phrases += [p for name in CONDITIONS[1:] for p in getattr(entry, name)]
        spelled = {word for phrase in phrases for word in phrase.split()}
        classed = {word for words in lexicon.classes.values() for word in words}
        self.vocabulary = sorted(spelled | classed | {"."})
        self.code = {word: code for code, word in enumerate(self.vocabulary)}
        self.classes = {
            # The last place stands for words that are not known: -1 is counted from the end.
            name: np.array([*(w in set(words) for w in self.vocabulary), False])
            for name, words in lexicon.classes.items()
        }
        # Entries by the code of the first word of their terms.
        self.by_first: dict[int, list[tuple[int, tuple[int, ...], Entry]]] = {}
        numbered = ((e, term) for _, e in lexicon.entries for term in e.terms)
        for number, (entry, term) in enumerate(numbered):
            codes = self.coded(term)
            self.by_first.setdefault(codes[0], []).append((number, codes, entry))
        # A term that stands in two entries of a group is one term.
        named = {row: number for number, row in reversed([*enumerate(lexicon.terms)])}
        self.same = np.array([named[row] for row in lexicon.terms], np.int64)
        groups = {name: i for i, name in enumerate(lexicon.groups)}
        self.group = np.array([groups[group] for group, _ in lexicon.terms], np.int64)
        self.words = np.array([len(term.split()) for _, term in lexicon.terms], np.int64)
        self.first = np.zeros(len(self.vocabulary) + 1, bool)
        self.first[list(self.by_first)] = True

    def coded(self, phrase: str) -> tuple[int, ...]:
        return tuple(self.code[word] for word in phrase.split())

    def is_in(self, classes: str, codes: Int64) -> Bool:
        """Whether words are of one of the classes "a|b"."""
        return np.logical_or.reduce([self.classes[name][codes] for name in classes.split("|")])

    def phrase(self, codes: _Codes, text: Int64, start: Int64, phrase: Sequence[int]) -> Bool:
        """Whether these words stand from ``start`` on."""
        found = np.ones(len(start), bool)
        for offset, code in enumerate(phrase):
            found &= codes.at(start + offset, text) == code
        return found

    def walk(
        self, codes: _Codes, text: Int64, place: Int64, pattern: Sequence[str], step: int
    ) -> Bool:
        """Whether words of these classes stand at ``place`` and from there on."""
        found = np.ones(len(place), bool)
        for element in pattern:
            name = element.removesuffix("*")
            if name != element:
                for _ in range(REACH):
                    place = place + step * self.is_in(name, codes.at(place, text))
                continue
            found &= self.is_in(name, codes.at(place, text))
            place = place + step
        return found

    def context(self, name: str, codes: _Codes, text: Int64, start: Int64, end: Int64) -> Bool:
        said = self.lexicon.contexts[name]
        left = self.walk(codes, text, start - 1, said.get("left", ())[::-1], -1)
        return left & self.walk(codes, text, end, said.get("right", ()), 1)

    def counts(self, entry: Entry, codes: _Codes, text: Int64, start: Int64, length: int) -> Bool:
        """Which of the places are mentions: (n,) bool."""
        end = start + length
        good = np.ones(len(start), bool)
        if entry.capital:
            written = codes.words.take(pa.array(start))
            good &= pc.not_equal(written, pc.utf8_lower(written)).to_numpy(zero_copy_only=False)
        if entry.needs:
            good &= np.logical_or.reduce(
                [self.context(name, codes, text, start, end) for name in entry.needs]
            )

        def any_of(phrases: Sequence[str], behind: bool) -> Bool:
            coded = [self.coded(phrase) for phrase in phrases]
            places = [end if behind else start - len(words) for words in coded]
            hits = [self.phrase(codes, text, p, w) for p, w in zip(places, coded, strict=True)]
            return np.logical_or.reduce(hits)

        for name in CONDITIONS[1:]:
            if phrases := getattr(entry, name):
                here = any_of(phrases, behind=name.endswith("before"))
                good &= ~here if name.startswith("not") else here
        return good

    def find(self, texts: pa.Array) -> tuple[Int64, Int64, Int64]:
        """Number of the term, of the text, and of the first word in its text, in the words' order;
        what ends a sentence or a clause counts as a word."""
        codes = _Codes(texts, self.vocabulary)
        here = np.flatnonzero(self.first[codes.codes[:-1]])
        if not len(here):
            return here, here, here
        order = np.argsort(codes.codes[here], kind="stable")
        here, heads = here[order], codes.codes[here][order]
        found: list[NDArray[np.int64]] = [np.empty((3, 0), np.int64)]
        firsts, starts = np.unique(heads, return_index=True)
        for code, start, end in zip(firsts, starts, [*starts[1:], len(here)], strict=True):
            places = here[start:end]
            for number, words, entry in self.by_first[int(code)]:
                text, at = codes.owners[places], places
                if len(words) > 1:
                    whole = self.phrase(codes, text, places, words)
                    text, at = text[whole], places[whole]
                if entry.conditional and len(at):
                    good = self.counts(entry, codes, text, at, len(words))
                    text, at = text[good], at[good]
                found.append(np.stack([np.full(len(at), number), text, at]))
        number, text, at = np.concatenate(found, axis=1)
        _, first = np.unique(at * len(self.same) + self.same[number], return_index=True)
        number, text, at = self.same[number[first]], text[first], at[first]
        whole = outermost(self.group[number], at, self.words[number])
        number, text, at = number[whole], text[whole], at[whole]
        return number, text, at - np.searchsorted(codes.owners, text)


def outermost(group: Int64, start: Int64, length: Int64) -> Bool:
    """Which of these stretches lie within no other one of their group, (n,)."""
    order = np.lexsort((-length, start, group))
    # Groups one behind the other on a line, so that one running maximum serves all.
    line = group[order] * (start.max(initial=0) + length.max(initial=0) + 1)
    end = line + start[order] + length[order]
    found = np.ones(len(order), bool)
    found[order[1:]] = end[1:] > np.maximum.accumulate(end)[:-1]
    return found


@lru_cache(8)  # those of users' lexicons come and go
def _matcher(lexicon: Lexicon) -> _Matcher:
    """Made once in a process for all equal lexicons: each part of a corpus reads its own."""
    return _Matcher(lexicon)


def find_terms(texts: pa.Array, terms: Lexicon | None = None) -> tuple[Int64, Int64]:
    """Every mention: the term's number in ``Lexicon.terms`` and the text's number, (n,) each.

    Whole words, whatever their case. Of a group's terms of which one lies within the other the
    longer counts, *young people* and not *young*; those of different groups both count.
    """
    number, owner, _ = _matcher(terms or lexicon()).find(texts)
    return number, owner


def find_places(texts: pa.Array, terms: Lexicon | None = None) -> tuple[Int64, Int64, Int64]:
    """``find_terms``, and of each mention how many words stand before it in its text."""
    return _matcher(terms or lexicon()).find(texts)


def shapes(texts: pa.Array) -> pa.Array:
    """Texts with an x for each letter and digit: what words are cut by. Python knows fewer."""
    return pc.replace_substring_regex(texts, r"[\pL\pN]", "x")


def mentioned_groups(texts: pa.Array, terms: Lexicon | None = None) -> tuple[pa.Array, pa.Array]:
    """Each identity group that a text mentions, and the number of the text; each pair once."""
    terms = terms or lexicon()
    number, owner = find_terms(texts, terms)
    groups = pa.array([group for group, _ in terms.terms], pa.string())
    found = pa.table({"group": groups.take(pa.array(number)), "owner": owner})
    found = found.group_by(["group", "owner"]).aggregate([])
    return found["group"].combine_chunks(), found["owner"].combine_chunks()
