"""Estimate the prevalence of toxic texts, corrected for the known error rates of a scorer.

On labelled texts the scorer has a sensitivity se and a specificity sp. A flagged share p then
corresponds to a true share of (p + sp - 1) / (se + sp - 1) (Rogan & Gladen 1978). This assumes the
same error rates on the measured texts as on the labelled ones, so reports must name the labelled
data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hallmark.tasks.measures.estimates import Estimate
from hallmark.tasks.measures.statistics import bootstrap_cluster_means, sum_by_cluster


def correct_prevalence(flagged_share: float, sensitivity: float, specificity: float) -> float:
    """Correct a flagged share for the errors of the scorer; by chance it can be outside 0 to 1.

    NaN if the scorer is no better than chance.
    """
    discrimination = sensitivity + specificity - 1
    return (flagged_share + specificity - 1) / discrimination if discrimination > 0 else np.nan


def estimate_prevalence(
    flagged: ArrayLike,
    clusters: Sequence[Any] | None,
    labelled_predictions: ArrayLike,
    labels: ArrayLike,
    *,
    resamples: int = 2000,
    confidence_level: float = 0.95,
    seed: int = 0,
    unit: str = "prompts",
) -> Estimate:
    """Estimate the true share of texts from the share that a scorer flags.

    The interval is a percentile bootstrap: clusters of the texts, and labelled texts of either
    label, are resampled together. Value and interval are clipped to 0 to 1. If the whole interval
    is outside, the scorer's error rates differ on these texts, and the value is NaN.

    Args:
        flagged: (n,) 1 if the scorer flags a text, 0 if not, NaN without a score.
        clusters: (n,) names; None makes each text its own cluster.
        labelled_predictions: (m,) the same for labelled texts.
        labels: (m,) whether each labelled text is truly positive.
        resamples: Number of bootstrap resamples.
        confidence_level: Of the interval.
        seed: Of the bootstrap.
        unit: Plural name of the clusters, for the description of the method.
    """
    predictions, is_positive = (
        np.asarray(labelled_predictions, np.float64),
        np.asarray(labels, bool),
    )
    predictions_by_label = [predictions[is_positive], predictions[~is_positive]]
    predictions_by_label = [
        label_predictions[~np.isnan(label_predictions)]
        for label_predictions in predictions_by_label
    ]
    sums, counts = sum_by_cluster(flagged, clusters)
    n, cluster_count = int(counts.sum()), len(sums)
    total = np.asarray(flagged).size
    estimate = Estimate(
        np.nan, np.nan, np.nan, n, cluster_count, total - n, f"no {unit} to measure"
    )
    if not cluster_count:
        return estimate
    if not all(map(len, predictions_by_label)):
        return replace(estimate, method="not measured: the labelled texts must include both labels")
    sensitivity, false_positive_rate = (
        float(label_predictions.mean()) for label_predictions in predictions_by_label
    )
    rates = (sums.sum() / n, sensitivity, 1 - false_positive_rate)
    value = correct_prevalence(*rates)
    error_description = f"sensitivity {rates[1]:.3g} and specificity {rates[2]:.3g}"
    if np.isnan(value):
        return replace(
            estimate,
            method=f"not measured: the scorer is no better than chance ({error_description})",
        )
    rng = np.random.default_rng(seed)
    draws = [bootstrap_cluster_means(sums, counts, resamples, seed)]
    draws += [
        rng.binomial(len(label_predictions), label_predictions.mean(), resamples)
        / len(label_predictions)
        for label_predictions in predictions_by_label
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        discriminations = draws[1] - draws[2]
        shares = np.where(discriminations > 0, (draws[0] - draws[2]) / discriminations, np.nan)
    interval = np.nanquantile(shares, ((1 - confidence_level) / 2, (1 + confidence_level) / 2))
    if interval[1] < 0 or interval[0] > 1:
        reason = (
            f"a flagged share of {rates[0]:.3g} is impossible for a scorer with {error_description}"
        )
        return replace(
            estimate,
            method=f"not measured: {reason}, so its error rates differ from those on the labelled "
            "texts",
        )
    low, high = np.clip(interval, 0, 1)
    estimate = replace(estimate, value=float(np.clip(value, 0, 1)))
    if cluster_count == 1:
        return replace(
            estimate,
            method=f"corrected for {error_description}; no interval: fewer than two {unit}",
        )
    return replace(
        estimate,
        low=float(low),
        high=float(high),
        method=f"corrected for {error_description}; percentile bootstrap ({resamples} resamples) "
        f"over {cluster_count} {unit}, {len(predictions_by_label[0])} positive and "
        f"{len(predictions_by_label[1])} negative labelled texts",
    )
