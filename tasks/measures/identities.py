"""Find mentions of groups of people in texts, with the built-in lexicon or a user's.

A lexicon has terms of one to four words in lower case. Some terms mean people only in a context:
*white* does before *women* and after *he is*, but not before *walls*. Such a term lists contexts,
of which one must match, and phrases that must not be adjacent. A context is a sequence of word
classes. All this is data (`data/identities.json`) and is matched on arrays of word codes.

Accuracy is measured on labelled sentences, see `lexicon_evaluation.py`. The words are English. A
mention says neither who the author is nor whether the text is positive or negative.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hallmark.tasks.contract import UsageError, explain_relative_path, open_external_file

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

DATA_FOLDER = Path(__file__).parent / "data"

#: Maximum number of words that a class marked * matches.
MAX_SKIPPED_WORDS = 3

#: Conditions that an entry can have; see `LexiconEntry`.
CONDITION_FIELDS = ("needs", "before", "after", "not_before", "not_after")


@dataclass(frozen=True)
class LexiconEntry:
    """Terms of a group, and the conditions under which they are mentions.

    Attributes:
        terms: Words or phrases in lower case.
        needs: Names of contexts, of which one must match.
        before: Phrases, one of which must follow the term.
        after: Phrases, one of which must precede the term.
        not_before: Phrases, none of which may follow the term.
        not_after: Phrases, none of which may precede the term.
        requires_capital: Whether the first letter must be a capital.
    """

    terms: tuple[str, ...]
    needs: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    not_before: tuple[str, ...] = ()
    not_after: tuple[str, ...] = ()
    requires_capital: bool = False

    @property
    def is_conditional(self) -> bool:
        return self.requires_capital or any(getattr(self, name) for name in CONDITION_FIELDS)


class GroupTerm(NamedTuple):
    """A group of people, and a term that mentions it."""

    group: str
    term: str


@dataclass(frozen=True)
class Lexicon:
    """Groups of people, with the terms that mention them.

    Attributes:
        entries: (group, entry) pairs.
        classes: Words of each class.
        contexts: For each name, the classes of the words to the "left" of a term, farthest first,
            and to its "right". A class followed by * matches up to MAX_SKIPPED_WORDS words or none;
            "a|b" is either class.
    """

    entries: tuple[tuple[str, LexiconEntry], ...]
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False)
    contexts: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict, hash=False)

    @property
    def terms(self) -> list[GroupTerm]:
        """Every term of every entry, with its group."""
        return [GroupTerm(group, term) for group, entry in self.entries for term in entry.terms]

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(group for group, _ in self.entries))

    def with_groups(self, terms_by_group: Mapping[str, Sequence[str]]) -> Lexicon:
        """Return a lexicon with the terms of additional groups, which need no context."""
        added_entries = tuple(
            (group, LexiconEntry(tuple(terms))) for group, terms in terms_by_group.items()
        )
        return Lexicon(self.entries + added_entries, self.classes, self.contexts)


@cache
def load_builtin_lexicon(name: str = "identities") -> Lexicon:
    """Load one of the project's own lexicons."""
    definition = json.loads((DATA_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    entries = tuple(
        (group, entry)
        for group, group_terms in definition["groups"].items()
        for entry in _parse_group_entries(group_terms)
    )
    return Lexicon(entries, definition["classes"], definition["contexts"])


def _parse_group_entries(group_terms: Sequence[Any]) -> Iterator[LexiconEntry]:
    """Yield the entries of a group.

    A string is a term without conditions. For `nouns`, the plural is a term, too.
    """
    plain_terms = [term for term in group_terms if isinstance(term, str)]
    yield LexiconEntry(tuple(dict.fromkeys(plain_terms)))
    for spec in group_terms:
        if not isinstance(spec, str):
            conditions = {name: tuple(spec.get(name, ())) for name in CONDITION_FIELDS}
            terms = [*spec.get("terms", ())]
            terms += [form for noun in spec.get("nouns", ()) for form in (noun, pluralise(noun))]
            yield LexiconEntry(
                tuple(dict.fromkeys(terms)),
                **conditions,
                requires_capital=spec.get("capital", False),
            )


def pluralise(noun: str) -> str:
    """Return the plural of an English noun that is regular or ends in -man, -wife or -person."""
    if noun.endswith("man") and noun not in ("german", "human", "shaman"):
        return noun[:-2] + "en"
    if noun.endswith("wife"):
        return noun[:-2] + "ves"
    if noun.endswith("person"):
        return noun[:-6] + "people"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def read_user_terms_by_group(path: Path) -> dict[str, list[str]]:
    """Read a user's lexicon: a JSON object with a list of lower-case terms for each group.

    Raises:
        UsageError: The file cannot be read or has any other form.
    """
    try:
        with open_external_file(path, "identities.lexicons") as file:
            terms_by_group = json.loads(file.read().decode())
    except OSError as error:
        raise UsageError(
            f"lexicon {path}{explain_relative_path(path)} cannot be read ({error.strerror}); "
            "correct the path or make the file readable"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"lexicon {path} is not valid JSON ({error}); provide a UTF-8 JSON object that maps "
            "each group to a list of terms"
        ) from error
    if not isinstance(terms_by_group, dict) or not terms_by_group:
        raise UsageError(
            f"lexicon {path} must be a JSON object that maps each group to a list of terms"
        )
    for group, terms in terms_by_group.items():
        if not group.isprintable() or len(group) > 200:  # Lone surrogates are not printable.
            raise UsageError(
                f"lexicon {path}: {group!r:.60} is not a valid group name; use a name with at "
                "most 200 printable characters"
            )
        if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
            raise UsageError(f"lexicon {path}: group {group!r:.60} must have a list of terms")
        if not terms:
            raise UsageError(
                f"lexicon {path}: group {group!r:.60} has no terms; add terms or remove the group"
            )
    for term in _find_unmatchable_terms(
        [term for terms in terms_by_group.values() for term in terms]
    ):
        raise UsageError(
            f"lexicon {path}: {term!r:.60} can never match; write each term in lower case, using "
            "only letters, digits and single spaces between words"
        )
    return terms_by_group


def _find_unmatchable_terms(terms: Sequence[str]) -> list[str]:
    """Return the terms that cannot match, because texts are never split into such words."""
    # Lone surrogates become "?", which is not a letter.
    texts = pa.array([term.encode(errors="replace") for term in terms]).cast(pa.large_string())
    is_lower = pc.equal(pc.utf8_lower(texts), texts)
    is_matchable = pc.and_(is_lower, pc.match_substring_regex(texts, _TERM_PATTERN))
    return [terms[row] for row in pc.indices_nonzero(pc.invert(is_matchable)).to_pylist()]


#: RE2 knows letters of all scripts; hyphens and apostrophes separate words. The end of a sentence
#: or clause becomes a word of its own, so that no context crosses it.
_STOP_PATTERN, _SEPARATOR_PATTERN = r"[.!?;:]+", r"[^\pL\pN.]+"
#: Words separated by single spaces.
_TERM_PATTERN = r"^[\pL\pN]+( [\pL\pN]+)*$"


class _EncodedWords:
    """Words of a batch of texts as codes in a vocabulary; -1 for unknown words."""

    def __init__(self, texts: pa.Array, vocabulary: Sequence[str]) -> None:
        texts_with_stops = pc.replace_substring_regex(texts, _STOP_PATTERN, " . ")
        word_lists = pc.split_pattern_regex(texts_with_stops, _SEPARATOR_PATTERN)
        words = pc.list_flatten(word_lists)
        text_indices = pc.list_parent_indices(word_lists).to_numpy()
        is_nonempty = pc.not_equal(words, "")
        self.words = words.filter(is_nonempty)
        self.text_indices = text_indices[is_nonempty.to_numpy(zero_copy_only=False)].astype(
            np.int64
        )
        lowercase_words = pc.utf8_lower(self.words)
        vocabulary_indices = pc.index_in(
            lowercase_words, value_set=pa.array(vocabulary, lowercase_words.type)
        )
        codes = pc.fill_null(vocabulary_indices, -1).to_numpy().astype(np.int64)
        # Both the beginning and the end of a text count as the end of a sentence.
        self.stop_code = vocabulary.index(".")
        self.padded_codes = np.append(codes, self.stop_code)
        self.padded_text_indices = np.append(self.text_indices, -2)

    def get_codes_at(self, positions: Int64, text_indices: Int64) -> Int64:
        """Return the codes of the words at positions; a stop for a position outside of its text."""
        is_inside_batch = (positions >= 0) & (positions < len(self.padded_codes))
        positions = np.where(is_inside_batch, positions, len(self.padded_codes) - 1)
        return np.where(
            self.padded_text_indices[positions] == text_indices,
            self.padded_codes[positions],
            self.stop_code,
        )


class TermMentions(NamedTuple):
    """Mentions of the terms of a lexicon in texts, in the order of the words; (n,) each."""

    term_indices: Int64
    """Index in `Lexicon.terms`."""
    text_indices: Int64
    word_positions: Int64
    """Number of words before the mention in its text; the end of a sentence or clause counts as a
    word."""


class _LexiconMatcher:
    """A lexicon compiled to codes and lookup tables."""

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        phrases = [term for _, term in lexicon.terms]
        for _, entry in lexicon.entries:
            phrases += [
                condition_phrase
                for name in CONDITION_FIELDS[1:]
                for condition_phrase in getattr(entry, name)
            ]
        term_words = {word for phrase in phrases for word in phrase.split()}
        class_words = {word for words in lexicon.classes.values() for word in words}
        self.vocabulary = sorted(term_words | class_words | {"."})
        self.word_codes = {word: code for code, word in enumerate(self.vocabulary)}
        self.class_membership = {
            # Unknown words have the code -1, which indexes the last element.
            name: np.array([*(word in set(words) for word in self.vocabulary), False])
            for name, words in lexicon.classes.items()
        }
        # (term index, codes of the term, entry) by the code of the first word.
        self.entries_by_first_word: dict[int, list[tuple[int, tuple[int, ...], LexiconEntry]]] = {}
        entry_terms = ((entry, term) for _, entry in lexicon.entries for term in entry.terms)
        for term_index, (entry, term) in enumerate(entry_terms):
            codes = self.look_up_word_codes(term)
            self.entries_by_first_word.setdefault(codes[0], []).append((term_index, codes, entry))
        # A term in two entries of the same group is a single term.
        first_index_by_term = {
            row: term_index for term_index, row in reversed([*enumerate(lexicon.terms)])
        }
        self.canonical_terms = np.array(
            [first_index_by_term[row] for row in lexicon.terms], np.int64
        )
        group_codes = {name: group_code for group_code, name in enumerate(lexicon.groups)}
        self.term_groups = np.array([group_codes[group] for group, _ in lexicon.terms], np.int64)
        self.term_lengths = np.array([len(term.split()) for _, term in lexicon.terms], np.int64)
        self.is_first_word = np.zeros(len(self.vocabulary) + 1, bool)
        self.is_first_word[list(self.entries_by_first_word)] = True

    def look_up_word_codes(self, known_words: str) -> tuple[int, ...]:
        """Return the codes of words; a word outside the vocabulary raises KeyError."""
        return tuple(self.word_codes[word] for word in known_words.split())

    def is_in_any_class(self, class_names: str, codes: Int64) -> Bool:
        """Return whether words belong to one of the classes "a|b"."""
        is_in_class: Bool = np.logical_or.reduce(
            [self.class_membership[class_name][codes] for class_name in class_names.split("|")]
        )
        return is_in_class

    def matches_phrase(
        self, encoded: _EncodedWords, text_indices: Int64, starts: Int64, phrase: Sequence[int]
    ) -> Bool:
        """Return whether the phrase starts at each of the positions `starts`."""
        is_match = np.ones(len(starts), bool)
        for offset, code in enumerate(phrase):
            is_match &= encoded.get_codes_at(starts + offset, text_indices) == code
        return is_match

    def matches_class_pattern(
        self,
        encoded: _EncodedWords,
        text_indices: Int64,
        positions: Int64,
        pattern: Sequence[str],
        step: int,
    ) -> Bool:
        """Return whether words of these classes follow each other from each position on.

        Args:
            encoded: The words.
            text_indices: Text of each position.
            positions: Positions of the first word.
            pattern: Classes, in the order of reading.
            step: 1 to read to the right, -1 to read to the left.
        """
        is_match = np.ones(len(positions), bool)
        for element in pattern:
            class_names = element.removesuffix("*")
            if class_names != element:
                for _ in range(MAX_SKIPPED_WORDS):
                    positions = positions + step * self.is_in_any_class(
                        class_names, encoded.get_codes_at(positions, text_indices)
                    )
                continue
            is_match &= self.is_in_any_class(
                class_names, encoded.get_codes_at(positions, text_indices)
            )
            positions = positions + step
        return is_match

    def matches_context(
        self,
        context_name: str,
        encoded: _EncodedWords,
        text_indices: Int64,
        starts: Int64,
        ends: Int64,
    ) -> Bool:
        context = self.lexicon.contexts[context_name]
        matches_before_term = self.matches_class_pattern(
            encoded, text_indices, starts - 1, context.get("left", ())[::-1], -1
        )
        return matches_before_term & self.matches_class_pattern(
            encoded, text_indices, ends, context.get("right", ()), 1
        )

    def is_mention(
        self,
        entry: LexiconEntry,
        encoded: _EncodedWords,
        text_indices: Int64,
        starts: Int64,
        length: int,
    ) -> Bool:
        """Return whether the entry's conditions hold for the term at each position, (n,) bool."""
        ends = starts + length
        is_valid = np.ones(len(starts), bool)
        if entry.requires_capital:
            term_words = encoded.words.take(pa.array(starts))
            is_valid &= pc.not_equal(term_words, pc.utf8_lower(term_words)).to_numpy(
                zero_copy_only=False
            )
        if entry.needs:
            is_valid &= np.logical_or.reduce(
                [
                    self.matches_context(name, encoded, text_indices, starts, ends)
                    for name in entry.needs
                ]
            )

        def has_any_phrase(phrases: Sequence[str], follows_term: bool) -> Bool:
            encoded_phrases = [self.look_up_word_codes(phrase) for phrase in phrases]
            phrase_starts = [
                ends if follows_term else starts - len(phrase_codes)
                for phrase_codes in encoded_phrases
            ]
            matches = [
                self.matches_phrase(encoded, text_indices, starts_of_phrase, codes_of_phrase)
                for starts_of_phrase, codes_of_phrase in zip(
                    phrase_starts, encoded_phrases, strict=True
                )
            ]
            has_phrase: Bool = np.logical_or.reduce(matches)
            return has_phrase

        for name in CONDITION_FIELDS[1:]:
            if phrases := getattr(entry, name):
                has_phrase = has_any_phrase(phrases, follows_term=name.endswith("before"))
                is_valid &= ~has_phrase if name.startswith("not") else has_phrase
        return is_valid

    def find_mentions(self, texts: pa.Array) -> TermMentions:
        """Find all mentions of the lexicon's terms."""
        encoded = _EncodedWords(texts, self.vocabulary)
        candidate_positions = np.flatnonzero(self.is_first_word[encoded.padded_codes[:-1]])
        if not len(candidate_positions):
            return TermMentions(candidate_positions, candidate_positions, candidate_positions)
        order = np.argsort(encoded.padded_codes[candidate_positions], kind="stable")
        candidate_positions = candidate_positions[order]
        candidate_codes = encoded.padded_codes[candidate_positions]
        mentions: list[NDArray[np.int64]] = [np.empty((3, 0), np.int64)]
        first_codes, starts = np.unique(candidate_codes, return_index=True)
        for code, start, end in zip(
            first_codes, starts, [*starts[1:], len(candidate_positions)], strict=True
        ):
            code_positions = candidate_positions[start:end]
            for term_index, term_codes, entry in self.entries_by_first_word[int(code)]:
                text_indices, positions = encoded.text_indices[code_positions], code_positions
                if len(term_codes) > 1:
                    is_selected = self.matches_phrase(
                        encoded, text_indices, code_positions, term_codes
                    )
                    text_indices, positions = text_indices[is_selected], code_positions[is_selected]
                if entry.is_conditional and len(positions):
                    is_valid = self.is_mention(
                        entry, encoded, text_indices, positions, len(term_codes)
                    )
                    text_indices, positions = text_indices[is_valid], positions[is_valid]
                mentions.append(
                    np.stack([np.full(len(positions), term_index), text_indices, positions])
                )
        all_mentions = np.concatenate(mentions, axis=1)
        all_mentions[0] = self.canonical_terms[all_mentions[0]]
        sort_keys = all_mentions[2] * len(self.canonical_terms) + all_mentions[0]
        distinct_mentions = all_mentions[:, np.unique(sort_keys, return_index=True)[1]]
        is_outermost = mark_outermost_spans(
            self.term_groups[distinct_mentions[0]],
            distinct_mentions[2],
            self.term_lengths[distinct_mentions[0]],
        )
        term_indices, text_indices, positions = distinct_mentions[:, is_outermost]
        text_starts = np.searchsorted(encoded.text_indices, text_indices)
        return TermMentions(term_indices, text_indices, positions - text_starts)


def mark_outermost_spans(group_codes: Int64, starts: Int64, lengths: Int64) -> Bool:
    """Return whether each span is inside no other span of its group, (n,) bool."""
    order = np.lexsort((-lengths, starts, group_codes))
    # Offsets put the groups one after another, so that one running maximum works for all.
    group_offsets = group_codes[order] * (starts.max(initial=0) + lengths.max(initial=0) + 1)
    ends = group_offsets + starts[order] + lengths[order]
    is_outermost = np.ones(len(order), bool)
    is_outermost[order[1:]] = ends[1:] > np.maximum.accumulate(ends)[:-1]
    return is_outermost


@lru_cache(8)  # Bounded, because a process may read many users' lexicons.
def _get_matcher(lexicon: Lexicon) -> _LexiconMatcher:
    """Compile a lexicon once per process, although each partition of a corpus loads its own."""
    return _LexiconMatcher(lexicon)


def find_term_mentions(texts: pa.Array, lexicon: Lexicon | None = None) -> TermMentions:
    """Find every mention of a term in texts.

    Matches whole words, ignoring case. If one term of a group is inside another, only the longer
    counts: *young people* and not *young*. Terms of different groups both count.
    """
    return _get_matcher(lexicon or load_builtin_lexicon()).find_mentions(texts)


def replace_alphanumerics_with_x(texts: pa.Array) -> pa.Array:
    """Replace each letter and digit, as RE2 defines them, by an x; Python knows fewer of them."""
    return pc.replace_substring_regex(texts, r"[\pL\pN]", "x")


class MentionedGroups(NamedTuple):
    """The distinct pairs of a text and a group that it mentions, (n,) each."""

    group_names: pa.Array
    text_indices: pa.Array


def find_groups_in_texts(texts: pa.Array, lexicon: Lexicon | None = None) -> MentionedGroups:
    """Find the groups that each text mentions."""
    lexicon = lexicon or load_builtin_lexicon()
    mentions = find_term_mentions(texts, lexicon)
    term_groups = pa.array([term.group for term in lexicon.terms], pa.string())
    pairs = pa.table(
        {
            "group": term_groups.take(pa.array(mentions.term_indices)),
            "text": mentions.text_indices,
        }
    )
    pairs = pairs.group_by(["group", "text"]).aggregate([])
    return MentionedGroups(pairs["group"].combine_chunks(), pairs["text"].combine_chunks())
