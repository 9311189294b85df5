"""Swap the group in sentences and compare the scorer's results.

Sentences come from the corpus, selected by their hash; they mention exactly one group of an axis,
by a term that has parallel terms. In addition, Hallmark's own templates are filled with each group
of an axis, so that small corpora have figures, too. The counterfactual is that of Garg et al. 2019,
"Counterfactual Fairness in Text Classification through Robustness": a difference comes from the
scorer alone, whatever the corpus holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from hallmark.tasks.contract import (
    ID_TYPE,
    Row,
    StageConfig,
    column,
    table_schema,
)
from hallmark.tasks.corpus.group_effects.group_sentences import (
    SwapVocabulary,
    build_swap_vocabulary,
    keep_lowest_ranked_per_group,
    swap_term,
)
from hallmark.tasks.corpus.identities import UserLexicons
from hallmark.tasks.corpus.table_columns import (
    make_count_column,
    make_float_column,
    make_label_column,
)
from hallmark.tasks.measures.estimates import estimate_mean_or_share
from hallmark.tasks.measures.multiple_testing import adjust_p_values_holm
from hallmark.tasks.measures.scorers import ScorerConfig, open_scorer
from hallmark.tasks.measures.statistics import finite_or_none

CORPUS_ORIGIN, TEMPLATE_ORIGIN = "corpus", "templates"


class SwapConfig(StageConfig):
    """Configure the swapping of groups in sentences."""

    scorer: ScorerConfig = Field(
        default=ScorerConfig(), description="scorer for the swapped sentences"
    )
    documents_per_group: int = Field(
        500,
        ge=0,
        description="approximate number of documents per group to search for sentences that "
        "mention the group",
    )
    max_sentences_per_group: int = Field(
        100,
        ge=0,
        le=10_000,
        description="maximum number of sentences per group and axis (kind of group) in which to "
        "replace the group with another",
    )


SWAP_TABLES = {
    "swap_differences": table_schema(
        "Mean change in the toxicity score of a sentence when the group that it mentions is "
        "replaced with another group.",
        make_label_column(
            "origin",
            "origin of the sentences: corpus (sentences from the corpus) or templates "
            "(sentences written for Hallmark)",
        ),
        make_label_column("axis", "kind of group"),
        make_label_column("group_name", "group that the original sentence mentions"),
        make_label_column("other_group", "group that replaces the original group"),
        make_count_column("sentences", "number of sentences", "sentences"),
        make_count_column(
            "clusters",
            "number of documents or templates that contain the sentences",
            "clusters",
        ),
        make_float_column(
            "score_difference",
            "mean score of the sentences with the other group minus the mean score of the "
            "original sentences",
            "score",
        ),
        make_float_column(
            "low",
            "lower end of the 95 % confidence interval of `score_difference` (t interval with "
            "clustered standard errors, widened for skewness); null if there are fewer than 10 "
            "clusters, or if the score changes in too few clusters",
            "score",
        ),
        make_float_column(
            "high", "upper end of the 95 % confidence interval of `score_difference`", "score"
        ),
        make_float_column(
            "p",
            "two-sided p-value for the null hypothesis that the mean difference is 0; the p-value "
            "is from a sign test if the difference is the same in all clusters; null if `low` is "
            "null",
            "p",
        ),
        make_float_column(
            "p_corrected",
            "`p`, corrected for the number of group pairs compared in sentences with the same "
            "origin (Holm 1979)",
            "p",
        ),
        make_float_column(
            "threshold",
            "minimum score at which the toxicity rule in the config applies to a document",
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
        "Document, replaced terms and scores for each sentence used to compute the "
        "`swap_differences` table.",
        make_label_column("origin", "corpus or templates"),
        make_label_column("axis", "kind of group"),
        make_label_column("group_name", "group that the original sentence mentions"),
        make_label_column("other_group", "group that replaces the original group"),
        make_label_column("term", "term in the original sentence that mentions the group"),
        make_label_column("other_term", "term for the other group that replaces the original term"),
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

# Swapping --------------------------------------------------------------------------------------


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
    """Build the rows of the ``swap_differences`` table.

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


class SwapRows(NamedTuple):
    """Hold the rows of the two tables about swaps."""

    differences: list[Row]
    """Rows of the ``swap_differences`` table."""
    scores: list[Row]
    """Rows of the ``swap_scores`` table."""


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
