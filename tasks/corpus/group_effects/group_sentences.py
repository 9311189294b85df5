"""Draw sentences that mention one group of people, and replace the group in them.

Sentences are selected by their hash; they mention exactly one group of an axis (kind of group), by
a term that has parallel terms. ``swaps`` replaces the group by another group, and the profile of
the corpus by a neutral word.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hallmark.tasks.contract import (
    ID_TYPE,
    Row,
    TablePart,
    TableWriters,
    lookup_column_by_doc_id,
)
from hallmark.tasks.corpus.identities import UserLexicons, combine_with_builtin_lexicon
from hallmark.tasks.corpus.split import hash_ids_to_uniform_draws
from hallmark.tasks.measures.failed_documents import (
    FailureList,
    list_failures_by_doc_id,
    run_with_failing_texts_emptied,
)
from hallmark.tasks.measures.identities import (
    DATA_FOLDER,
    Lexicon,
    find_term_mentions,
    replace_alphanumerics_with_x,
)

#: Limits on the characters of a sampled sentence.
MIN_SENTENCE_LENGTH, MAX_SENTENCE_LENGTH = 20, 300

#: Language of documents whose language could not be determined.
UNDETERMINED_LANGUAGE = "undetermined"

#: Sentences sampled from a partition.
DRAWN_SENTENCES_SCHEMA = pa.schema(
    [
        ("doc_id", ID_TYPE),
        ("cluster", ID_TYPE),  # of near-duplicate documents
        ("axis", pa.string()),
        ("group_name", pa.string()),
        ("parallel_index", pa.int32()),  # index in parallel_terms
        ("start", pa.int32()),  # characters of the term in the sentence
        ("end", pa.int32()),
        ("rank", pa.binary(16)),  # hash; the lowest are kept, and equal ones are repeats
        ("sentence", pa.string()),
    ]
)


class ParallelTerms(NamedTuple):
    """Hold terms that can replace each other, by group."""

    axis: str
    role: str
    terms: dict[str, str]


@dataclass(frozen=True)
class SwapVocabulary:
    """Hold what can be swapped.

    Attributes:
        lexicon: Terms to search for.
        parallel_terms: Those terms that can replace each other.
        following_nouns: Nouns before which a term counts as an adjective, unlike in "a Muslim
            came".
        templates_by_role: Hallmark's own sentences by the role of the terms that fit.
    """

    lexicon: Lexicon
    parallel_terms: Sequence[ParallelTerms]
    following_nouns: frozenset[str]
    templates_by_role: Mapping[str, Sequence[str]]

    @property
    def groups_by_axis(self) -> dict[str, frozenset[str]]:
        groups_by_axis: dict[str, set[str]] = {}
        for row in self.parallel_terms:
            groups_by_axis.setdefault(row.axis, set()).update(row.terms)
        return {axis: frozenset(groups) for axis, groups in groups_by_axis.items()}


def build_swap_vocabulary(user_lexicons: UserLexicons) -> SwapVocabulary:
    """Combine Hallmark's own vocabulary with the lexicons of the corpus.

    A lexicon with equally many terms for each group becomes an axis: terms at the same position are
    parallel. It has no templates.
    """
    definitions = json.loads((DATA_FOLDER / "swaps.json").read_text(encoding="utf-8"))
    parallel_terms = [
        ParallelTerms(axis, entry["role"], entry["terms"])
        for axis, entries in definitions["axes"].items()
        for entry in entries
    ]
    for lexicon_name, groups in user_lexicons.items():
        if len(groups) > 1 and len({len(terms) for terms in groups.values()}) == 1:
            for terms in zip(*groups.values(), strict=True):
                parallel_terms.append(
                    ParallelTerms(lexicon_name, "", dict(zip(groups, terms, strict=True)))
                )
    return SwapVocabulary(
        combine_with_builtin_lexicon(user_lexicons),
        parallel_terms,
        frozenset(definitions["nouns"]),
        definitions["templates"],
    )


# Sampling --------------------------------------------------------------------------------------


class Sentences(NamedTuple):
    """Hold the m sentences of several texts."""

    sentences: pa.Array
    """Strings of shape (m,)."""
    text_numbers: NDArray[np.int64]
    """Index of the text that contains each sentence; shape (m,)."""


def split_into_sentences(texts: pa.Array) -> Sentences:
    """Split texts into sentences and lines."""
    marked_texts = pc.replace_substring_regex(texts, r"([.!?]['\")\]]*)\s+", r"\1" + "\n")
    lists = pc.split_pattern_regex(marked_texts, r"\s*\n\s*")
    return Sentences(pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy())


_WORD_OR_MARK = re.compile(r"x+|[.!?;:]+")


def find_word_span(sentence_shape: str, word_index: int, word_count: int) -> tuple[int, int]:
    """Return the characters of ``word_count`` words from ``word_index`` on in a sentence."""
    tokens = list(_WORD_OR_MARK.finditer(sentence_shape))
    return tokens[word_index].start(), tokens[word_index + word_count - 1].end()


_NEXT_WORD = re.compile(r"[\s-]+([^\W\d_]+)")


def read_next_word(sentence: str, end: int) -> str:
    """Return the word after these characters in lower case; "" if no word follows."""
    match = _NEXT_WORD.match(sentence, end)
    return match[1].lower() if match else ""


def build_drawn_sentence_rows(
    documents: pa.RecordBatch, vocabulary: SwapVocabulary, *, counts_clusters: bool = False
) -> Iterator[Row]:
    """Yield rows of DRAWN_SENTENCES_SCHEMA.

    They are the sentences that mention one group of an axis, once and by a parallel term.

    Args:
        documents: Their doc_id, cluster and text.
        vocabulary: The terms.
        counts_clusters: As in ``SentenceDraw``.
    """
    sentence_texts, document_rows = split_into_sentences(documents["text"])
    lengths = pc.utf8_length(sentence_texts).to_numpy()
    fitting_rows = np.flatnonzero(
        (lengths >= MIN_SENTENCE_LENGTH) & (lengths <= MAX_SENTENCE_LENGTH)
    )
    sentence_texts = sentence_texts.take(pa.array(fitting_rows))
    document_rows = document_rows[fitting_rows]
    term_numbers, sentence_numbers, word_numbers = find_term_mentions(
        sentence_texts, vocabulary.lexicon
    )
    terms = vocabulary.lexicon.terms
    term_groups = np.array([group for group, _ in terms], object)
    for axis, groups in vocabulary.groups_by_axis.items():
        on_axis = np.array([group in groups for group, _ in terms])[term_numbers]
        is_mentioned_once = (
            np.bincount(sentence_numbers[on_axis], minlength=len(sentence_texts)) == 1
        )
        selected = np.flatnonzero(on_axis & is_mentioned_once[sentence_numbers])
        row_by_term = {
            (group, term.lower()): i
            for i, row in reversed([*enumerate(vocabulary.parallel_terms)])
            if row.axis == axis
            for group, term in row.terms.items()
        }
        sentence_shapes = replace_alphanumerics_with_x(
            sentence_texts.take(pa.array(sentence_numbers[selected]))
        ).to_pylist()
        for mention, sentence_shape in zip(selected, sentence_shapes, strict=True):
            group, term = term_groups[term_numbers[mention]], terms[term_numbers[mention]][1]
            row = row_by_term.get((group, term))
            if row is None:
                continue
            text = sentence_texts[int(sentence_numbers[mention])].as_py()
            start, end = find_word_span(
                sentence_shape, int(word_numbers[mention]), len(term.split())
            )
            if (
                vocabulary.parallel_terms[row].role == "adjective"
                and read_next_word(text, end) not in vocabulary.following_nouns
            ):
                continue
            document_row = int(document_rows[sentence_numbers[mention]])
            hashed = text.encode("utf-8", "surrogatepass")
            if counts_clusters:
                hashed += documents["cluster"][document_row].as_py()
            rank = hashlib.blake2b(hashed, digest_size=16).digest()
            yield {
                "doc_id": documents["doc_id"][document_row].as_py(),
                "cluster": documents["cluster"][document_row].as_py(),
                "axis": axis,
                "group_name": group,
                "parallel_index": row,
                "start": start,
                "end": end,
                "rank": rank,
                "sentence": text,
            }


def keep_lowest_ranked_per_group(sentence_rows: pa.Table, max_per_group: int) -> pa.Table:
    """Keep, for each group and axis, the sentences with the lowest distinct hashes."""
    if not len(sentence_rows):
        return sentence_rows
    sort_keys = [(name, "ascending") for name in ("axis", "group_name", "rank", "doc_id", "start")]
    sentence_rows = sentence_rows.sort_by(sort_keys)
    keys = [
        f"{axis}\0{group}"
        for axis, group in zip(
            sentence_rows["axis"].to_pylist(), sentence_rows["group_name"].to_pylist(), strict=True
        )
    ]
    kept_counts: dict[str, int] = {}
    is_kept, previous = [], None
    for key, rank in zip(keys, sentence_rows["rank"].to_pylist(), strict=True):
        is_repeat = previous == (key, rank)
        previous = (key, rank)
        is_kept.append(not is_repeat and kept_counts.get(key, 0) < max_per_group)
        kept_counts[key] = kept_counts.get(key, 0) + is_kept[-1]
    return sentence_rows.filter(pa.array(is_kept))


@dataclass(frozen=True)
class SentenceDraw:
    """Say in which documents to search for sentences, and how many to keep.

    Attributes:
        search_share_by_group: For each group, the share of the documents that mention it to search.
        max_per_group: Maximum number of sentences per group and axis.
        languages: ISO 639 codes of the languages to search; documents whose language could not be
            determined are searched, too.
        split: Split of the documents to search; None for all documents.
        counts_clusters: Whether a sentence in several clusters of near-duplicate documents counts
            once for each cluster, and not only once.
    """

    search_share_by_group: Mapping[str, float]
    max_per_group: int
    languages: tuple[str, ...]
    split: str | None = None
    counts_clusters: bool = False


def draw_group_sentences(
    documents_groups_and_languages: tuple[TablePart, ...],
    draw: SentenceDraw,
    user_lexicons: UserLexicons,
    out: TableWriters,
) -> FailureList:
    """Spill sentences of a partition that mention a group, see DRAWN_SENTENCES_SCHEMA.

    Args:
        documents_groups_and_languages: The documents, their signals of the ``identities`` stage,
            and those of the ``language`` stage. Planted documents have no signals and are not
            searched.

    Returns:
        The documents for which the search failed.
    """
    documents, group_signals, language_signals = documents_groups_and_languages
    mentioned_groups = lookup_column_by_doc_id(
        group_signals, "identities", documents
    ).combine_chunks()
    document_shares = np.zeros(documents.row_count)
    if draw.search_share_by_group:
        group_numbers = pc.index_in(
            pc.list_flatten(mentioned_groups), value_set=pa.array([*draw.search_share_by_group])
        )
        row_numbers = pc.list_parent_indices(mentioned_groups).to_numpy()
        np.maximum.at(
            document_shares,
            row_numbers,
            np.array([*draw.search_share_by_group.values()])[group_numbers.to_numpy()],
        )
    document_languages = lookup_column_by_doc_id(
        language_signals, "language", documents
    ).combine_chunks()
    is_scorable_language = pc.is_in(
        pc.fill_null(document_languages, UNDETERMINED_LANGUAGE),
        value_set=pa.array([UNDETERMINED_LANGUAGE, *draw.languages]),
    )
    rows: list[Row] = []
    start, vocabulary = 0, build_swap_vocabulary(user_lexicons)
    failures: FailureList = []
    for batch in documents.iter_batches(["doc_id", "cluster", "split", "text"]):
        row_range = slice(start, start + len(batch))
        start = row_range.stop
        is_selected = is_scorable_language[row_range].to_numpy(zero_copy_only=False)
        is_selected = is_selected & (
            hash_ids_to_uniform_draws(batch["doc_id"], 0, "swaps") < document_shares[row_range]
        )
        if draw.split is not None:
            is_in_split = pc.fill_null(pc.equal(batch["split"], draw.split), False)
            is_selected &= is_in_split.to_numpy(zero_copy_only=False)
        selected = batch.filter(pa.array(is_selected))
        sentence_rows, faults = run_with_failing_texts_emptied(
            lambda sub_batch: [
                *build_drawn_sentence_rows(
                    sub_batch, vocabulary, counts_clusters=draw.counts_clusters
                )
            ],
            selected,
        )
        failures += list_failures_by_doc_id(selected, faults)
        rows += sentence_rows
    drawn = pa.Table.from_pylist(rows, schema=DRAWN_SENTENCES_SCHEMA)
    out.get_spill_writer("drawn", DRAWN_SENTENCES_SCHEMA).write(
        keep_lowest_ranked_per_group(drawn, draw.max_per_group)
    )
    return failures


# Replacing -------------------------------------------------------------------------------------

#: Prefixes whose sound does not match their first letter, so that the article differs.
_CONSONANT_SOUND_PREFIXES = ("european", "eu", "uni", "one", "us")
_VOWEL_SOUND_PREFIXES = ("hour", "honest", "heir")

_ARTICLE = re.compile(r"\b([Aa])(n?)(\s+)\Z")


def swap_term(sentence: str, start: int, end: int, new_term: str, usual_spelling: str) -> str:
    """Replace the term at these characters, adapting its case and the article before it.

    Args:
        usual_spelling: The replaced term as it is usually written.
    """
    old_term, preceding_text = sentence[start:end], sentence[:start]
    if old_term.isupper() and len(old_term) > 1:
        new_term = new_term.upper()
    elif old_term.islower() and not usual_spelling.islower():  # in text without capitals
        new_term = new_term.lower()
    elif old_term[:1].isupper() and (usual_spelling.islower() or not preceding_text.strip()):
        new_term = new_term[:1].upper() + new_term[1:]
    article = _ARTICLE.search(preceding_text)
    if article:
        lowercase_term = new_term.lower()
        takes_an = lowercase_term.startswith(
            ("a", "e", "i", "o", "u", *_VOWEL_SOUND_PREFIXES)
        ) and not lowercase_term.startswith(_CONSONANT_SOUND_PREFIXES)
        preceding_text = (
            preceding_text[: article.start()] + article[1] + "n" * takes_an + article[3]
        )
    return preceding_text + new_term + sentence[end:]
