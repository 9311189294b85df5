"""Swap the group in sentences and compare the scorer's results.

Sentences come from the corpus, selected by their hash; they mention exactly one group of an axis,
by a term that has parallel terms. In addition, Hallmark's own templates are filled with each group
of an axis, so that small corpora have figures, too. The counterfactual is that of Garg et al. 2019,
"Counterfactual Fairness in Text Classification through Robustness": a difference comes from the
scorer alone, whatever the corpus holds.
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
from pydantic import Field

from hallmark.tasks.contract import (
    ID_TYPE,
    Row,
    StageConfig,
    TablePart,
    TableWriters,
    column,
    lookup_column_by_doc_id,
    table_schema,
)
from hallmark.tasks.corpus.identities import UserLexicons, combine_with_builtin_lexicon
from hallmark.tasks.corpus.split import hash_ids_to_uniform_draws
from hallmark.tasks.corpus.table_columns import (
    make_count_column,
    make_float_column,
    make_label_column,
)
from hallmark.tasks.measures.estimates import estimate_mean_or_share
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
from hallmark.tasks.measures.multiple_testing import adjust_p_values_holm
from hallmark.tasks.measures.scorers import ScorerConfig, open_scorer, scorer_languages
from hallmark.tasks.measures.statistics import finite_or_none

#: Limits on the characters of a sampled sentence.
MIN_SENTENCE_LENGTH, MAX_SENTENCE_LENGTH = 20, 300

#: Language of documents whose language could not be determined.
UNDETERMINED_LANGUAGE = "undetermined"

CORPUS_ORIGIN, TEMPLATE_ORIGIN = "corpus", "templates"


class SwapConfig(StageConfig):
    """Configure the swapping of groups in sentences."""

    scorer: ScorerConfig = Field(
        default=ScorerConfig(), description="scorer of the swapped sentences"
    )
    documents_per_group: int = Field(
        500,
        ge=0,
        description="approximate number of documents per group in which sentences that mention "
        "the group are searched for",
    )
    max_sentences_per_group: int = Field(
        100,
        ge=0,
        le=10_000,
        description="maximum number of sentences per group and axis (kind of group) in which the "
        "group is replaced",
    )


SWAP_TABLES = {
    "swap_differences": table_schema(
        "Mean change in the toxicity score of a sentence when the group that it mentions is "
        "replaced by another group.",
        make_label_column(
            "origin",
            "origin of the sentences; corpus: sentences from the corpus; templates: sentences "
            "written for Hallmark",
        ),
        make_label_column("axis", "kind of group"),
        make_label_column("group_name", "the group in the sentence"),
        make_label_column("other_group", "the group that replaces it"),
        make_count_column("sentences", "number of sentences", "sentences"),
        make_count_column(
            "clusters",
            "number of documents or templates from which the sentences were taken",
            "clusters",
        ),
        make_float_column(
            "score_difference",
            "mean score of the sentences with the other group minus mean score of the original "
            "sentences",
            "score",
        ),
        make_float_column(
            "low",
            "lower end of the 95 % confidence interval of `score_difference` (t interval over "
            "clusters, widened for skewness); null: fewer than 10 clusters, or too few of them "
            "have a difference",
            "score",
        ),
        make_float_column("high", "upper end of the interval", "score"),
        make_float_column(
            "p",
            "two-sided p-value of the null hypothesis that the mean difference is 0; that of a "
            "sign test if the difference is the same in all clusters; null as for `low`",
            "p",
        ),
        make_float_column(
            "p_corrected",
            "`p`, corrected for all pairs of groups with the same origin (Holm 1979)",
            "p",
        ),
        make_float_column(
            "threshold",
            "minimum score at which the toxicity rule of the corpus applies to a document",
            "score",
        ),
        make_float_column(
            "raised_share",
            "share of the sentences whose score reaches the threshold only after the group is "
            "replaced",
            "share",
        ),
        make_float_column(
            "lowered_share",
            "share of the sentences whose score reaches the threshold only before the group is "
            "replaced",
            "share",
        ),
    ),
    "swap_scores": table_schema(
        "Document, replaced terms and scores of each sentence from which the table "
        "`swap_differences` is computed.",
        make_label_column("origin", "corpus or templates"),
        make_label_column("axis", "kind of group"),
        make_label_column("group_name", "the group in the sentence"),
        make_label_column("other_group", "the group that replaces it"),
        make_label_column("term", "term for the group in the original sentence"),
        make_label_column("other_term", "the term that replaces it"),
        column(
            "doc_id",
            ID_TYPE,
            "id",
            "id of the document that contains the sentence; for a template, a hash of the template",
        ),
        make_float_column("score", "score of the original sentence", "score"),
        make_float_column("other_score", "score of the sentence with the other group", "score"),
    ),
}

#: Sentences sampled from a partition.
DRAWN_SENTENCES_SCHEMA = pa.schema(
    [
        ("doc_id", ID_TYPE),
        ("axis", pa.string()),
        ("group_name", pa.string()),
        ("parallel_index", pa.int32()),  # index in parallel_terms
        ("start", pa.int32()),  # characters of the term in the sentence
        ("end", pa.int32()),
        ("rank", pa.binary(16)),  # hash of the sentence; the lowest are kept
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
    documents: pa.RecordBatch, vocabulary: SwapVocabulary
) -> Iterator[Row]:
    """Yield rows of DRAWN_SENTENCES_SCHEMA.

    They are the sentences that mention one group of an axis, once and by a parallel term.
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
            rank = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            yield {
                "doc_id": documents["doc_id"][
                    int(document_rows[sentence_numbers[mention]])
                ].as_py(),
                "axis": axis,
                "group_name": group,
                "parallel_index": row,
                "start": start,
                "end": end,
                "rank": rank,
                "sentence": text,
            }


def keep_lowest_ranked_per_group(sentence_rows: pa.Table, max_per_group: int) -> pa.Table:
    """Keep, for each group and axis, the distinct sentences with the lowest hashes."""
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


# Swapping --------------------------------------------------------------------------------------

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


class SentencePair(NamedTuple):
    """Hold a sentence with one group, and the same sentence with another group."""

    origin: str  # corpus or templates
    axis: str
    group: str
    other_group: str
    term: str
    other_term: str
    cluster: bytes  # id of the document, or hash of the template
    sentence: str
    counterpart: str


def build_corpus_pairs(
    drawn_sentences: pa.Table, vocabulary: SwapVocabulary
) -> Iterator[SentencePair]:
    """Yield every sampled sentence with each other group of its parallel terms."""
    for drawn_row in drawn_sentences.to_pylist():
        row, text = vocabulary.parallel_terms[drawn_row["parallel_index"]], drawn_row["sentence"]
        original_term = row.terms[drawn_row["group_name"]]
        for other_group, term in row.terms.items():
            if other_group != drawn_row["group_name"]:
                counterpart = swap_term(
                    text, drawn_row["start"], drawn_row["end"], term, original_term
                )
                yield SentencePair(
                    CORPUS_ORIGIN,
                    row.axis,
                    drawn_row["group_name"],
                    other_group,
                    original_term,
                    term,
                    drawn_row["doc_id"],
                    text,
                    counterpart,
                )


def fill_template(template: str, term: str) -> str:
    """Fill a template with a term."""
    slot_start = template.index("{}")
    sentence = swap_term(template, slot_start, slot_start + 2, term, term)
    return sentence[:1].upper() + sentence[1:]


def build_template_pairs(vocabulary: SwapVocabulary) -> Iterator[SentencePair]:
    """Yield each template with every two groups of an axis, once per pair."""
    for row in vocabulary.parallel_terms:
        groups = list(row.terms)
        for template in vocabulary.templates_by_role.get(row.role, ()):
            cluster = hashlib.blake2b(template.encode(), digest_size=16).digest()
            for i, group in enumerate(groups):
                for other_group in groups[i + 1 :]:
                    term, other_term = row.terms[group], row.terms[other_group]
                    yield SentencePair(
                        TEMPLATE_ORIGIN,
                        row.axis,
                        group,
                        other_group,
                        term,
                        other_term,
                        cluster,
                        fill_template(template, term),
                        fill_template(template, other_term),
                    )


# Measuring -------------------------------------------------------------------------------------


def build_swap_difference_rows(
    pairs: Sequence[SentencePair],
    scores: NDArray[np.float64],
    counterpart_scores: NDArray[np.float64],
    threshold: float,
) -> list[Row]:
    """Build the rows of the table ``swap_differences``.

    Pairs with a missing score do not count.
    """
    pair_indices: dict[tuple[str, str, str, str], list[int]] = {}
    for i, pair in enumerate(pairs):
        if np.isfinite(scores[i]) and np.isfinite(counterpart_scores[i]):
            pair_indices.setdefault(
                (pair.origin, pair.axis, pair.group, pair.other_group), []
            ).append(i)
    rows: list[Row] = []
    for (origin, axis, group, other_group), indices in sorted(pair_indices.items()):
        original_scores, swapped_scores = scores[indices], counterpart_scores[indices]
        mean_difference = estimate_mean_or_share(
            swapped_scores - original_scores, [pairs[i].cluster for i in indices], null_value=0.0
        )
        rows.append(
            {
                "origin": origin,
                "axis": axis,
                "group_name": group,
                "other_group": other_group,
                "sentences": len(indices),
                "clusters": mean_difference.clusters,
                "score_difference": mean_difference.value,
                "low": mean_difference.low,
                "high": mean_difference.high,
                "p": mean_difference.p,
                "threshold": threshold,
                "raised_share": float(
                    ((original_scores < threshold) & (swapped_scores >= threshold)).mean()
                ),
                "lowered_share": float(
                    ((original_scores >= threshold) & (swapped_scores < threshold)).mean()
                ),
            }
        )
    for origin in (CORPUS_ORIGIN, TEMPLATE_ORIGIN):
        origin_rows = [row for row in rows if row["origin"] == origin]
        for row, p in zip(
            origin_rows, adjust_p_values_holm([row["p"] for row in origin_rows]), strict=True
        ):
            row["p_corrected"] = p
    return [
        {k: finite_or_none(v) if isinstance(v, float) else v for k, v in row.items()}
        for row in rows
    ]


# Tables ----------------------------------------------------------------------------------------


def draw_swappable_sentences(
    documents_groups_and_languages: tuple[TablePart, ...],
    search_share_by_group: Mapping[str, float],
    user_lexicons: UserLexicons,
    config: SwapConfig,
    out: TableWriters,
) -> FailureList:
    """Spill the sentences of a partition to be swapped, see DRAWN_SENTENCES_SCHEMA.

    Args:
        documents_groups_and_languages: The documents, their signals of the stage ``identities``,
            and those of the stage ``language``.
        search_share_by_group: For each group, the share of the documents that mention it to search.

    Returns:
        The documents for which the search failed.
    """
    documents, group_signals, language_signals = documents_groups_and_languages
    mentioned_groups = lookup_column_by_doc_id(
        group_signals, "identities", documents
    ).combine_chunks()
    document_shares = np.zeros(documents.row_count)
    if search_share_by_group:
        group_numbers = pc.index_in(
            pc.list_flatten(mentioned_groups), value_set=pa.array([*search_share_by_group])
        )
        row_numbers = pc.list_parent_indices(mentioned_groups).to_numpy()
        np.maximum.at(
            document_shares,
            row_numbers,
            np.array([*search_share_by_group.values()])[group_numbers.to_numpy()],
        )
    document_languages = lookup_column_by_doc_id(
        language_signals, "language", documents
    ).combine_chunks()
    is_scorable_language = pc.is_in(
        pc.fill_null(document_languages, UNDETERMINED_LANGUAGE),
        value_set=pa.array([UNDETERMINED_LANGUAGE, *scorer_languages(config.scorer)]),
    )
    rows: list[Row] = []
    start, vocabulary = 0, build_swap_vocabulary(user_lexicons)
    failures: FailureList = []
    for batch in documents.iter_batches(["doc_id", "text"]):
        row_range = slice(start, start + len(batch))
        start = row_range.stop
        is_selected = is_scorable_language[row_range].to_numpy(zero_copy_only=False)
        is_selected = is_selected & (
            hash_ids_to_uniform_draws(batch["doc_id"], 0, "swaps") < document_shares[row_range]
        )
        selected = batch.filter(pa.array(is_selected))
        sentence_rows, faults = run_with_failing_texts_emptied(
            lambda sub_batch: [*build_drawn_sentence_rows(sub_batch, vocabulary)], selected
        )
        failures += list_failures_by_doc_id(selected, faults)
        rows += sentence_rows
    drawn = pa.Table.from_pylist(rows, schema=DRAWN_SENTENCES_SCHEMA)
    out.get_spill_writer("drawn", DRAWN_SENTENCES_SCHEMA).write(
        keep_lowest_ranked_per_group(drawn, config.max_sentences_per_group)
    )
    return failures


class SwapRows(NamedTuple):
    """Hold the rows of the two tables about swaps."""

    differences: list[Row]
    """Rows of the table ``swap_differences``."""
    scores: list[Row]
    """Rows of the table ``swap_scores``."""


def build_swap_rows(
    drawn_sentences: pa.Table, threshold: float, user_lexicons: UserLexicons, config: SwapConfig
) -> SwapRows:
    """Score all pairs of sentences and build the rows about them."""
    vocabulary = build_swap_vocabulary(user_lexicons)
    pairs = [
        *build_corpus_pairs(
            keep_lowest_ranked_per_group(drawn_sentences, config.max_sentences_per_group),
            vocabulary,
        ),
        *build_template_pairs(vocabulary),
    ]
    texts = sorted({text for pair in pairs for text in (pair.sentence, pair.counterpart)})
    text_scores = open_scorer(config.scorer).score_toxicity(texts).astype(np.float64)
    score_by_text = dict(zip(texts, text_scores.tolist(), strict=True))
    original_scores = np.array([score_by_text[pair.sentence] for pair in pairs])
    counterpart_scores = np.array([score_by_text[pair.counterpart] for pair in pairs])
    score_rows = [
        {
            "origin": p.origin,
            "axis": p.axis,
            "group_name": p.group,
            "other_group": p.other_group,
            "term": p.term,
            "other_term": p.other_term,
            "doc_id": p.cluster,
            "score": finite_or_none(original_scores[i]),
            "other_score": finite_or_none(counterpart_scores[i]),
        }
        for i, p in enumerate(pairs)
    ]
    difference_rows = build_swap_difference_rows(
        pairs, original_scores, counterpart_scores, threshold
    )
    return SwapRows(difference_rows, score_rows)
