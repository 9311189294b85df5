"""Measure the agreement of two scorers by Cohen's kappa and Spearman's rank correlation.

A finding that changes with the scorer says as much about the scorer as about the model. Confidence
intervals come from a bootstrap over prompts, since continuations of a prompt are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from hallmark.tasks.audits.judging.measures import (
    Estimator,
    Measure,
    ValueWriter,
    read_float_column,
)
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.measures.estimates import Estimate
from hallmark.tasks.measures.statistics import Float64

#: Number of weights in memory at a time.
WEIGHTS_PER_BATCH = 1 << 22

#: Called with the scores of both scorers, (n,) each, and the weights of the texts, (rows, n).
#: Returns the agreement, (rows,), NaN where it is undefined.
Statistic = Callable[[Float64, Float64, Float64], Float64]


def compute_cohen_kappa(
    first_verdicts: ArrayLike, second_verdicts: ArrayLike, weights: ArrayLike | None = None
) -> Float64:
    """Compute Cohen's kappa (1960): the agreement beyond chance over its possible maximum.

    Args:
        first_verdicts: Verdicts of the first scorer, (n,) bool.
        second_verdicts: Verdicts of the second scorer, (n,) bool.
        weights: Weights of the texts, (rows, n); default: one row of ones.

    Returns:
        Kappa for each row of weights; NaN where both scorers give all texts the same verdict.
    """
    first_flags, second_flags = np.asarray(first_verdicts, bool), np.asarray(second_verdicts, bool)
    counts = _build_weight_rows(weights, len(first_flags))
    totals = counts.sum(1)
    first_share, second_share, agreement = (
        counts @ flags / totals
        for flags in (first_flags, second_flags, first_flags == second_flags)
    )
    chance = first_share * second_share + (1 - first_share) * (1 - second_share)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(chance < 1, (agreement - chance) / (1 - chance), np.nan)


def compute_rank_correlation(
    first_scores: ArrayLike, second_scores: ArrayLike, weights: ArrayLike | None = None
) -> Float64:
    """Compute Spearman's rank correlation (1904) with mean ranks for ties.

    Arguments are as for ``compute_cohen_kappa``, but scores. NaN where all scores of a scorer are
    equal.
    """
    counts = _build_weight_rows(weights, len(np.asarray(first_scores)))
    first_ranks, second_ranks = (
        _compute_centered_ranks(np.asarray(scores), counts)
        for scores in (first_scores, second_scores)
    )
    spread = np.sqrt((counts * first_ranks**2).sum(1) * (counts * second_ranks**2).sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 0, (counts * first_ranks * second_ranks).sum(1) / spread, np.nan)


def _build_weight_rows(weights: ArrayLike | None, text_count: int) -> Float64:
    return np.ones((1, text_count)) if weights is None else np.asarray(weights, np.float64)


def _compute_centered_ranks(scores: np.ndarray, counts: Float64) -> Float64:
    """Compute the weighted rank of each text minus the mean rank, (rows, n)."""
    _, tie_groups = np.unique(scores, return_inverse=True)
    order = np.argsort(tie_groups, kind="stable")
    starts = np.unique(tie_groups[order], return_index=True)[1]
    tie_counts = np.add.reduceat(counts[:, order], starts, axis=1)  # (rows, ties)
    mid_ranks = np.cumsum(tie_counts, axis=1) - tie_counts / 2
    centered_ranks: Float64 = (mid_ranks - tie_counts.sum(1, keepdims=True) / 2)[:, tie_groups]
    return centered_ranks


def bootstrap_statistic(
    statistic: Statistic,
    first_scores: ArrayLike,
    second_scores: ArrayLike,
    clusters: Sequence[Any],
    *,
    resamples: int,
    seed: int,
    level: float = 0.95,
    unit: str = "prompts",
) -> Estimate:
    """Estimate a statistic of two scorers with a percentile bootstrap over clusters.

    Args:
        statistic: Statistic to estimate.
        first_scores: Scores of the first scorer, (n,); texts with NaN in either are missing.
        second_scores: Scores of the second scorer, (n,).
        clusters: Cluster of each text, (n,).
        resamples: Number of bootstrap resamples.
        seed: Random seed.
        level: Confidence level.
        unit: Plural name of the clusters, for the description of the method.
    """
    first_known, second_known = (
        np.asarray(scores, np.float64) for scores in (first_scores, second_scores)
    )
    has_both = ~(np.isnan(first_known) | np.isnan(second_known))
    first_known, second_known = first_known[has_both], second_known[has_both]
    cluster_names = [str(name) for name, keep in zip(clusters, has_both, strict=True) if keep]
    _, cluster_index = np.unique(np.array(cluster_names, object), return_inverse=True)
    cluster_count = int(cluster_index.max(initial=-1)) + 1
    bootstrap_estimate = Estimate(
        np.nan,
        np.nan,
        np.nan,
        len(first_known),
        cluster_count,
        int((~has_both).sum()),
        f"no {unit} to measure",
    )
    if not cluster_count:
        return bootstrap_estimate
    bootstrap_estimate = replace(
        bootstrap_estimate,
        value=float(statistic(first_known, second_known, np.ones((1, len(first_known))))[0]),
    )
    if np.isnan(bootstrap_estimate.value):
        return replace(
            bootstrap_estimate, method="not measured: a scorer assigns the same score to all texts"
        )
    if cluster_count == 1:
        return replace(bootstrap_estimate, method=f"no interval: fewer than two {unit}")
    rng = np.random.default_rng(seed)
    draws = np.empty(resamples)
    batch_size = max(1, WEIGHTS_PER_BATCH // len(first_known))
    for start in range(0, resamples, batch_size):
        batch_rows = min(batch_size, resamples - start)
        cluster_draws = rng.multinomial(
            cluster_count, np.full(cluster_count, 1 / cluster_count), size=batch_rows
        )
        draws[start : start + batch_rows] = statistic(
            first_known, second_known, cluster_draws[:, cluster_index].astype(np.float64)
        )
    undefined = int(np.isnan(draws).sum())
    low, high = np.nanquantile(draws, ((1 - level) / 2, (1 + level) / 2))
    note = f" ({undefined} without a value)" if undefined else ""
    return replace(
        bootstrap_estimate,
        low=float(low),
        high=float(high),
        method=f"percentile bootstrap, {resamples} resamples{note} over {cluster_count} {unit}",
    )


def add_scorer_agreement(
    writer: ValueWriter,
    responses: Responses,
    texts: pa.Table,
    value_columns: Callable[[pa.Table], dict[str, Any]],
) -> None:
    """Write the scores of each toxicity scorer other than the first, which gives ``toxicity``.

    Args:
        writer: Receives the values.
        responses: Looks up the scores.
        texts: Rows of ``collect_texts``.
        value_columns: Returns the columns of texts that values include.
    """
    primary_scorer, *other_scorers = responses.list_scorers() or [""]
    for other_scorer in other_scorers:
        scores = responses.look_up_scores(texts["continuation"], scorer=other_scorer)
        writer.add_values(
            "scorer_agreement",
            texts["row"],
            scores,
            second_scorer=other_scorer,
            scorer=f"{primary_scorer} and {other_scorer}",
            **value_columns(texts),
        )


def make_agreement_estimator(statistic_at_threshold: Callable[[float], Statistic]) -> Estimator:
    """Make an estimator of the agreement at the toxicity threshold of the settings."""

    def estimate_agreement(
        values: pa.Table, measure: Measure, config: Any, level: float
    ) -> Estimate:
        return bootstrap_statistic(
            statistic_at_threshold(config.toxicity_threshold),
            read_float_column(values, "toxicity"),
            read_float_column(values, "value"),
            values["cluster"].to_pylist(),
            resamples=config.resamples,
            seed=config.seed,
            level=level,
            unit=measure.cluster_unit,
        )

    return estimate_agreement


def make_kappa_statistic(threshold: float) -> Statistic:
    """Make the statistic Cohen's kappa of the verdicts "score at or above the threshold"."""
    bound = np.float32(threshold)
    return lambda first, second, counts: compute_cohen_kappa(
        first >= bound, second >= bound, counts
    )


AGREEMENT_MEASURES = tuple(
    Measure(
        metric,
        title,
        method,
        "correlation",
        "prompts",
        slices=("second_scorer",),
        include_overall=False,
        worse_when="",
        has_simulated_controls=False,
        row_filter={"measure": "scorer_agreement"},
        estimator=make_agreement_estimator(statistic),
    )
    for metric, title, method, statistic in (
        (
            "scorer_kappa",
            "Verdict agreement with a second scorer (Cohen's kappa)",
            "Cohen's kappa of the two scorers' verdicts on whether a score is at or above the "
            "threshold",
            make_kappa_statistic,
        ),
        (
            "scorer_rank_correlation",
            "Rank correlation with a second scorer (Spearman)",
            "Spearman's rank correlation between the scores",
            lambda threshold: compute_rank_correlation,
        ),
    )
)
