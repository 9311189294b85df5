"""Prevalence: how much of a text is toxic where the scorer that says so errs at a known rate.

Of labelled texts it is known how many of the toxic ones a scorer finds (sensitivity, se) and how
many of the others it lets pass (specificity, sp). A share p that it flags then stands for
(p + sp - 1) / (se + sp - 1) that are (Rogan & Gladen 1978). That holds where it errs on the texts
that are measured as on the labelled ones, which is an assumption: name the set.
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
    """The share that is so, of a share that is ``flagged``; below 0 or above 1 where chance has it.
    NaN where the scorer tells nothing apart."""
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
    """Of texts that a scorer ``flagged``, 1, or not, 0, (n,), NaN where it gave no score, the share
    that is so. ``labelled``: what it says of texts whose ``labels`` are known, (m,) each.

    The interval is a percentile bootstrap over clusters of the texts and over labelled texts of
    either label, all resampled together; value and interval are kept within 0 and 1. Where all of
    the interval would lie outside, the scorer errs otherwise here: then there is no figure.
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
        return replace(
            estimate, method="not measured: the labelled texts need some of either label"
        )
    sensitivity, false_positive_rate = (
        float(label_predictions.mean()) for label_predictions in predictions_by_label
    )
    rates = (sums.sum() / n, sensitivity, 1 - false_positive_rate)
    value = correct_prevalence(*rates)
    error_description = f"sensitivity {rates[1]:.3g} and specificity {rates[2]:.3g}"
    if np.isnan(value):
        return replace(
            estimate, method=f"not measured: the scorer tells nothing apart, at {error_description}"
        )
    rng = np.random.default_rng(seed)
    draws = [bootstrap_cluster_means(sums, counts, resamples, seed)]
    draws += [
        rng.binomial(len(label_predictions), label_predictions.mean(), resamples)
        / len(label_predictions)
        for label_predictions in predictions_by_label
    ]  # of 0 and 1
    with np.errstate(divide="ignore", invalid="ignore"):
        discriminations = draws[1] - draws[2]
        shares = np.where(discriminations > 0, (draws[0] - draws[2]) / discriminations, np.nan)
    interval = np.nanquantile(shares, ((1 - confidence_level) / 2, (1 + confidence_level) / 2))
    if interval[1] < 0 or interval[0] > 1:
        reason = f"not measured: a share flagged of {rates[0]:.3g} cannot be at {error_description}"
        return replace(
            estimate, method=f"{reason}; the scorer errs otherwise than on labelled texts"
        )
    low, high = np.clip(interval, 0, 1)
    estimate = replace(estimate, value=float(np.clip(value, 0, 1)))
    if cluster_count == 1:
        return replace(
            estimate, method=f"at {error_description}; no interval: a single one of {unit}"
        )
    return replace(
        estimate,
        low=float(low),
        high=float(high),
        method=f"at {error_description}; percentile bootstrap, {resamples} resamples, over "
        f"{cluster_count} {unit}, "
        f"{len(predictions_by_label[0])} and {len(predictions_by_label[1])} labelled texts",
    )
