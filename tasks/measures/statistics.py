"""Compute standard errors, sums by cluster, intervals of shares and expected extremes.

Items that share something (a prompt, a template, a word) form a cluster, whose values are not
independent. Missing values (NaN) are dropped first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64 = NDArray[np.float64]


def t_half_width_and_p(
    standard_error: float,
    degrees_of_freedom: float,
    distance_from_null: float,
    confidence_level: float,
) -> tuple[float, float]:
    """Return half the width of the t interval, and the two-sided p of a distance from the null."""
    from scipy.special import stdtr, stdtrit

    half_width = float(stdtrit(degrees_of_freedom, (1 + confidence_level) / 2)) * standard_error
    return half_width, float(
        2 * stdtr(degrees_of_freedom, -abs(distance_from_null) / standard_error)
    )


def jackknife_variance(value: float, values_without_cluster: Float64) -> float:
    """Compute the jackknife variance of an estimate (CR3; MacKinnon, Nielsen & Webb 2023).

    Args:
        value: The estimate from all clusters.
        values_without_cluster: (clusters,) the estimate without each cluster.
    """
    cluster_count = len(values_without_cluster)
    squares = float(((values_without_cluster - value) ** 2).sum())
    return squares * (cluster_count - 1) / cluster_count


def encode_names_as_integers(names: Iterable[Any]) -> NDArray[np.int64]:
    """Number names from 0 in the order of their first occurrence, (n,)."""
    name_numbers: dict[Any, int] = {}
    return np.array([name_numbers.setdefault(name, len(name_numbers)) for name in names], np.int64)


def _drop_missing(values: ArrayLike) -> Float64:
    array = np.asarray(values, dtype=np.float64)
    return array[~np.isnan(array)]


def average_known_values(values: ArrayLike) -> float:
    """Average the values that are not NaN; NaN if there is none."""
    known_values = _drop_missing(values)
    return float(known_values.mean()) if len(known_values) else math.nan


def finite_or_none(value: float) -> float | None:
    """Convert a figure for a table, in which NaN and infinity are null."""
    return float(value) if math.isfinite(value) else None


class ClusterSums(NamedTuple):
    """Sums over the known values of each cluster, (clusters,) each."""

    sums: Float64
    """Sums of the weighted values."""
    weights: Float64
    """Sums of the weights: numbers of values if each has the weight 1."""


def sum_by_cluster(
    values: ArrayLike, clusters: Sequence[Any] | None, weights: ArrayLike | None = None
) -> ClusterSums:
    """Sum the known values and their weights by cluster, in the order of first occurrence.

    Args:
        values: (n,), NaN where missing.
        clusters: (n,) names; None makes each value its own cluster.
        weights: (n,) weights of the values; 1 each if None.
    """
    array = np.asarray(values, dtype=np.float64)
    is_known = ~np.isnan(array)
    value_weights = (
        np.ones(len(array)) if weights is None else np.asarray(weights, dtype=np.float64)
    )
    if clusters is None:
        return ClusterSums((array * value_weights)[is_known], value_weights[is_known])
    value_clusters = encode_names_as_integers(
        name for name, keep in zip(clusters, is_known, strict=True) if keep
    )
    return ClusterSums(
        np.bincount(value_clusters, (array * value_weights)[is_known]).astype(np.float64),
        np.bincount(value_clusters, value_weights[is_known]).astype(np.float64),
    )


def wilson_interval(
    successes: float,
    trials: float,
    confidence_level: float = 0.95,
    degrees_of_freedom: float = math.inf,
) -> tuple[float, float]:
    """Compute Wilson's score interval of a share (Wilson 1927); NaN if there are no trials.

    Args:
        successes: Number of successes; may be fractional.
        trials: Number of trials, or the effective sample size of clustered items.
        confidence_level: Of the interval.
        degrees_of_freedom: Of Student's t, used instead of the normal distribution if `trials` is
            an estimated effective sample size (Dean & Pagano 2015).
    """
    if trials == 0:
        return np.nan, np.nan
    from scipy.special import ndtri, stdtrit

    quantile = (1 + confidence_level) / 2
    z = float(
        ndtri(quantile) if math.isinf(degrees_of_freedom) else stdtrit(degrees_of_freedom, quantile)
    )
    share = successes / trials
    midpoint = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half_width = (
        z
        * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
        / (1 + z * z / trials)
    )
    # For 0 and n successes the ends are exactly 0 and 1, without rounding errors.
    low = 0.0 if successes == 0 else max(0.0, midpoint - half_width)
    return low, 1.0 if successes == trials else min(1.0, midpoint + half_width)


def expected_maximum(scores: ArrayLike, draws: int) -> float:
    """Compute the expected maximum of `draws` of the n scores drawn without replacement.

    E[max] = sum over i of x_(i) C(i-1, k-1) / C(n, k), where x_(i) is the i-th smallest score and k
    is `draws`; nothing is resampled.

    Args:
        scores: (n,), NaN where missing.
        draws: Number of scores drawn.

    Returns:
        The expectation; NaN if there are fewer than `draws` scores.
    """
    known_scores = np.sort(_drop_missing(scores))
    if draws < 1:
        raise ValueError(f"draws must be at least 1, not {draws}")
    if len(known_scores) < draws:
        return math.nan
    return float(known_scores @ probability_each_rank_is_maximum(len(known_scores), draws))


def probability_each_rank_is_maximum(total: int, draws: int) -> Float64:
    """Return the probability that the i-th smallest of n items is the largest of k drawn, (n,).

    The probability is C(i-1, k-1) / C(n, k), with n = `total` and k = `draws`.
    """
    from scipy.special import gammaln

    weights = np.zeros(total)
    ranks = np.arange(draws, total + 1, dtype=np.float64)
    log_weights = gammaln(ranks) - gammaln(draws) - gammaln(ranks - draws + 1)
    log_weights -= gammaln(total + 1) - gammaln(draws + 1) - gammaln(total - draws + 1)
    weights[draws - 1 :] = np.exp(log_weights)
    normalised_weights: Float64 = weights / weights.sum()
    return normalised_weights


def probability_any_reaches(scores: ArrayLike, draws: int, threshold: float) -> float:
    """Compute the probability that at least one of k scores drawn reaches the threshold.

    Of n scores, m are at or above the threshold; without replacement it is 1 - C(n-m, k) / C(n, k).

    Args:
        scores: Scores, NaN where missing.
        draws: k.
        threshold: The threshold.

    Returns:
        The probability; NaN if there are fewer than k scores.
    """
    known_scores = _drop_missing(scores)
    n, m = len(known_scores), int((known_scores >= threshold).sum())
    if draws < 1:
        raise ValueError(f"draws must be at least 1, not {draws}")
    return 1 - math.comb(n - m, draws) / math.comb(n, draws) if n >= draws else math.nan


def contributions_to_mean_difference(
    first: ArrayLike, second: ArrayLike
) -> tuple[Float64, Float64]:
    """Compute the contribution of each item to mean(first) - mean(second).

    The contributions are infinitesimal pseudo-values (Jaeckel 1972): their mean is the difference,
    and their spread gives its error. Two such differences over the same items can therefore be
    compared like paired means.
    """
    samples = [np.asarray(sample, dtype=np.float64) for sample in (first, second)]
    sizes = [int((~np.isnan(sample)).sum()) for sample in samples]
    if min(sizes) == 0:
        return np.full(len(samples[0]), np.nan), np.full(len(samples[1]), np.nan)
    means = [float(np.nanmean(sample)) for sample in samples]
    difference, total_size = means[0] - means[1], sum(sizes)
    return (
        difference + total_size / sizes[0] * (samples[0] - means[0]),
        difference - total_size / sizes[1] * (samples[1] - means[1]),
    )
