"""Compare the sentiment of the sentences of the training text that mention a group of people.

A sentence counts if it mentions exactly one group of an axis (kind of group), once and by a term
with parallel terms, like the sentences of the swap test. The term is replaced by a neutral word
before scoring, so that the scorer does not judge the name. Groups are compared with the other
groups of their axis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract import ID_TYPE, Row, Table, column, table_schema
from hallmark.tasks.corpus.group_effects.group_sentences import (
    SentenceDraw,
    build_swap_vocabulary,
    keep_lowest_ranked_per_group,
    swap_term,
)
from hallmark.tasks.corpus.identities import UserLexicons
from hallmark.tasks.corpus.profiles.sentiment_conclusions import (
    NO_OTHER_GROUP,
    OTHER_GROUPS,
    THE_GROUP,
    TOO_FEW_CLUSTERS,
)
from hallmark.tasks.corpus.table_columns import (
    make_count_column,
    make_float_column,
    make_label_column,
)
from hallmark.tasks.measures.contrasts import estimate_group_differences
from hallmark.tasks.measures.estimates import MIN_CLUSTERS, Estimate
from hallmark.tasks.measures.multiple_testing import compute_false_discovery_rates
from hallmark.tasks.measures.scorers import (
    SCORER_CLASSES,
    check_any_text_scored,
    open_scorer,
    scorer_languages,
)
from hallmark.tasks.measures.statistics import finite_or_none

SENTIMENT_SCORER = SCORER_CLASSES["vader"].config_class.model_validate({"kind": "vader"})

#: Replaces the name of the group; no word of VADER's list.
NEUTRAL_WORD = "people"

#: Documents that are searched for each sentence to keep. Most documents that mention a group have
#: no sentence that mentions it alone, once and by a parallel term.
SEARCHED_DOCUMENTS_PER_SENTENCE = 10

SENTIMENT_TABLES = {
    "group_sentiment": table_schema(
        "Sentiment of the sentences in the training text that mention a group of people, "
        "compared with sentences that mention other groups of the same kind. Planted documents "
        "are excluded. The scores of the sentences about a group are averaged within each "
        "cluster of near-duplicate documents, so that each cluster has the same weight.",
        make_label_column("axis", "kind of group"),
        make_label_column("group_name", "group that the sentences mention"),
        make_count_column("sentences", "number of sentences with a score", "sentences"),
        make_count_column(
            "missing_sentences",
            "number of sentences for which the scorer failed; they are not counted in any other "
            "column",
            "sentences",
        ),
        make_count_column(
            "clusters",
            "number of clusters of near-duplicate documents that contain the sentences",
            "clusters",
        ),
        make_float_column(
            "mean_sentiment",
            "mean, over all clusters, of the mean sentiment of the sentences in each cluster, from "
            "-1 (negative) to 1 (positive)",
            "score",
        ),
        make_float_column(
            "difference",
            "`mean_sentiment` minus the corresponding mean for the sentences about all other "
            "groups of the same kind; null if no sentence is about another group",
            "score",
        ),
        make_float_column(
            "low",
            "lower end of the 95 % confidence interval of `difference`; null if there is no "
            "interval (see `method` for the reason)",
            "score",
        ),
        make_float_column(
            "high", "upper end of the 95 % confidence interval of `difference`", "score"
        ),
        make_float_column(
            "p",
            "p-value of a one-sided test for a lower mean sentiment than the other groups, "
            "computed with the same method as the interval; null if `low` is null",
            "p",
        ),
        make_float_column(
            "q",
            "q-value: p-value adjusted to control the false discovery rate (Benjamini & Hochberg "
            "1995) across all groups in the table; null if `low` is null",
            "p",
        ),
        make_float_column(
            "minimum_detectable_difference",
            "smallest difference that the test would detect at 95 % confidence with 80 % power; "
            "null if `low` is null",
            "score",
        ),
        column("method", pa.string(), "project text", "how the interval was computed"),
    ),
    "group_sentences": table_schema(
        "Document and sentiment score for each sentence used to compute the `group_sentiment` "
        "table.",
        column("doc_id", ID_TYPE, "id", "id of the document that contains the sentence"),
        make_label_column("axis", "kind of group"),
        make_label_column("group_name", "group that the sentence mentions"),
        make_float_column(
            "sentiment",
            "sentiment of the sentence with the group's name replaced by a neutral word, from -1 "
            "(negative) to 1 (positive)",
            "score",
        ),
    ),
}


def plan_sentence_draw(identity_signals: Table, max_sentences_per_group: int) -> SentenceDraw:
    """Plan in which training documents to search for sentences about each group."""
    counts: Counter[str] = Counter()
    for batch in identity_signals.iter_batches(["identities"]):
        for row in pc.value_counts(pc.list_flatten(batch["identities"])).to_pylist():
            counts[row["values"]] += row["counts"]
    searched_count = SEARCHED_DOCUMENTS_PER_SENTENCE * max_sentences_per_group
    return SentenceDraw(
        {group: searched_count / count for group, count in counts.items()},
        max_sentences_per_group,
        scorer_languages(SENTIMENT_SCORER),
        split="train",
        # How a text speaks includes what it repeats.
        counts_clusters=True,
    )


class SentimentRows(NamedTuple):
    """Hold the rows of the two tables about sentiment."""

    summary: list[Row]
    """Rows of the ``group_sentiment`` table."""
    sentences: list[Row]
    """Rows of the ``group_sentences`` table."""


def build_sentiment_rows(
    drawn_sentences: pa.Table, user_lexicons: UserLexicons, max_sentences_per_group: int
) -> SentimentRows:
    """Score drawn sentences without the names of the groups, and compare the groups.

    Raises:
        HallmarkError: The scorer failed for all sentences.
    """
    parallel_terms = build_swap_vocabulary(user_lexicons).parallel_terms
    sentences = keep_lowest_ranked_per_group(drawn_sentences, max_sentences_per_group).to_pylist()
    masked_texts = [
        swap_term(
            row["sentence"],
            row["start"],
            row["end"],
            NEUTRAL_WORD,
            parallel_terms[row["parallel_index"]].terms[row["group_name"]],
        )
        for row in sentences
    ]
    if not sentences:
        return SentimentRows([], [])
    scorer = open_scorer(SENTIMENT_SCORER)
    scores = scorer.score_by_head(masked_texts)[:, scorer.columns.index("sentiment")]
    scored_count = int(np.isfinite(scores).sum())
    check_any_text_scored(scorer.name, scored_count, len(sentences), scorer.failure_reason)
    # Scores are float32; tables show them as VADER gives them, with four decimals.
    sentiments = np.round(scores.astype(np.float64), 4).tolist()
    sentence_rows = [
        {**row, "sentiment": finite_or_none(sentiment)}
        for row, sentiment in zip(sentences, sentiments, strict=True)
    ]
    return SentimentRows(
        [*build_group_sentiment_rows(sentence_rows)],
        [row for row in sentence_rows if row["sentiment"] is not None],
    )


def build_group_sentiment_rows(sentence_rows: list[Row]) -> Iterator[Row]:
    """Yield the rows of the ``group_sentiment`` table.

    Args:
        sentence_rows: axis, group_name, cluster and sentiment of each sentence; the sentiment is
            None if the scorer failed.
    """
    rows_by_axis: dict[str, list[Row]] = {}
    for row in sentence_rows:
        rows_by_axis.setdefault(row["axis"], []).append(row)
    rows = [
        row
        for axis, axis_rows in sorted(rows_by_axis.items())
        for row in _compare_groups_of_axis(axis, axis_rows)
    ]
    tested_rows = [row for row in rows if row["p"] is not None]
    q_values = compute_false_discovery_rates([row["p"] for row in tested_rows])
    q_by_group = {
        (row["axis"], row["group_name"]): q for row, q in zip(tested_rows, q_values, strict=True)
    }
    for row in rows:
        yield row | {"q": q_by_group.get((row["axis"], row["group_name"]))}


def _compare_groups_of_axis(axis: str, axis_rows: list[Row]) -> Iterator[Row]:
    """Yield the row of each group of an axis, without q."""
    estimates = estimate_group_differences(
        [np.nan if row["sentiment"] is None else row["sentiment"] for row in axis_rows],
        [row["group_name"] for row in axis_rows],
        [row["cluster"] for row in axis_rows],
        unit="clusters of documents",
    )
    total_clusters = len(
        {(row["group_name"], row["cluster"]) for row in axis_rows if row["sentiment"] is not None}
    )
    for group, estimate in sorted(estimates.items()):
        sentiments_by_cluster: dict[bytes, list[float]] = {}
        for row in axis_rows:
            if row["group_name"] == group and row["sentiment"] is not None:
                sentiments_by_cluster.setdefault(row["cluster"], []).append(row["sentiment"])
        cluster_means = [*map(np.mean, sentiments_by_cluster.values())]
        sentence_count = sum(map(len, sentiments_by_cluster.values()))
        yield {
            "axis": axis,
            "group_name": group,
            "sentences": sentence_count,
            "missing_sentences": sum(row["group_name"] == group for row in axis_rows)
            - sentence_count,
            "clusters": len(cluster_means),
            "mean_sentiment": float(np.mean(cluster_means)) if cluster_means else None,
            **_describe_difference(
                estimate, len(cluster_means), total_clusters - len(cluster_means)
            ),
        }


def _describe_difference(estimate: Estimate, cluster_count: int, other_count: int) -> Row:
    """Return the columns about the difference of a group; without an interval there is no p.

    Args:
        estimate: The difference.
        cluster_count: Number of clusters with sentences about the group.
        other_count: The same for all other groups of the axis, added up.
    """
    method = estimate.method
    if not cluster_count:
        method = "no interval: the scorer failed for all sentences about the group"
    elif not other_count:
        method = NO_OTHER_GROUP
    elif min(cluster_count, other_count) < MIN_CLUSTERS:
        method = TOO_FEW_CLUSTERS.format(
            THE_GROUP if cluster_count < MIN_CLUSTERS else OTHER_GROUPS
        )
    row: Row = {"difference": finite_or_none(estimate.value), "method": method}
    row |= dict.fromkeys(("low", "high", "p", "minimum_detectable_difference"))
    if not method.startswith("no "):
        row |= {
            "low": estimate.low,
            "high": estimate.high,
            "p": estimate.p / 2 if estimate.value < 0 else 1 - estimate.p / 2,
            "minimum_detectable_difference": finite_or_none(estimate.minimum_detectable_effect),
        }
    return row
