"""Statistics of corpus and audits: intervals, tests and corrections, vectorised and seeded.

Whatever items share (a prompt, a template, a word) is the unit of resampling: its items form a
cluster that is drawn as a whole. Missing values (NaN) are left out before anything is counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class ClusteredMean:
    """A mean with its interval: cluster-robust standard error, t with clusters - 1 degrees
    (Liang & Zeger 1986). NaN where a single cluster leaves nothing to compare."""

    value: float
    low: float
    high: float
    p: float
    clusters: int


def estimate_clustered_mean(values: Float64, clusters: Sequence[Any]) -> ClusteredMean:
    """values: (n,), n > 0."""
    from scipy.special import stdtr, stdtrit

    mean = float(values.mean())
    _, cluster_codes = np.unique(np.array(clusters, object).astype("S16"), return_inverse=True)
    deviation_sums = np.bincount(cluster_codes, values - mean)
    cluster_count = len(deviation_sums)
    if cluster_count < 2:
        return ClusteredMean(mean, np.nan, np.nan, np.nan, cluster_count)
    standard_error = float(
        np.sqrt((deviation_sums**2).sum() * cluster_count / (cluster_count - 1)) / len(values)
    )
    half_width = float(stdtrit(cluster_count - 1, 0.975)) * standard_error
    if standard_error == 0:
        return ClusteredMean(mean, mean, mean, 1.0 if mean == 0 else 0.0, cluster_count)
    p = 2 * float(stdtr(cluster_count - 1, -abs(mean) / standard_error))
    return ClusteredMean(mean, mean - half_width, mean + half_width, p, cluster_count)


def _drop_missing(values: ArrayLike) -> Float64:
    array = np.asarray(values, dtype=np.float64)
    return array[~np.isnan(array)]


def sum_by_cluster(
    values: ArrayLike, clusters: Sequence[Any] | None, weights: ArrayLike | None = None
) -> tuple[Float64, Float64]:
    """Sum and count of the values of each cluster, those that are known; each value its own without
    clusters. A value counts as its weight."""
    array = np.asarray(values, dtype=np.float64)
    is_known = ~np.isnan(array)
    value_weights = (
        np.ones(len(array)) if weights is None else np.asarray(weights, dtype=np.float64)
    )
    if clusters is None:
        return (array * value_weights)[is_known], value_weights[is_known]
    known_clusters = [name for name, keep in zip(clusters, is_known, strict=True) if keep]
    cluster_codes: dict[Any, int] = {}
    value_clusters = np.array(
        [cluster_codes.setdefault(name, len(cluster_codes)) for name in known_clusters],
        dtype=np.int64,
    )
    sums, counts = np.zeros(len(cluster_codes)), np.zeros(len(cluster_codes))
    np.add.at(sums, value_clusters, (array * value_weights)[is_known])
    np.add.at(counts, value_clusters, value_weights[is_known])
    return sums, counts


def bootstrap_cluster_means(sums: Float64, counts: Float64, resamples: int, seed: int) -> Float64:
    """Means of as many clusters, drawn with replacement, (resamples,); ``sums`` and ``counts``: of
    the values of each cluster (Davison & Hinkley 1997, 3.8)."""
    rng = np.random.default_rng(seed)
    cluster_count = len(sums)
    means = np.empty(resamples)
    batch_size = max(1, (1 << 24) // cluster_count)  # drawn clusters held at a time
    for start in range(0, resamples, batch_size):
        stop = min(start + batch_size, resamples)
        drawn_clusters = rng.integers(cluster_count, size=(stop - start, cluster_count))
        means[start:stop] = sums[drawn_clusters].sum(1) / counts[drawn_clusters].sum(1)
    return means


def wilson_interval(
    successes: float,
    trials: float,
    confidence_level: float = 0.95,
    degrees_of_freedom: float = math.inf,
) -> tuple[float, float]:
    """Wilson's score interval of a share (Wilson 1927). ``freedom``: of Student's t, where n is an
    estimate: as many independent units as would err as clusters do (Dean & Pagano 2015)."""
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
    # The ends at 0 and n successes are 0 and 1 exactly; rounding must not pass them.
    low = 0.0 if successes == 0 else max(0.0, midpoint - half_width)
    return low, 1.0 if successes == trials else min(1.0, midpoint + half_width)


def expected_maximum(scores: ArrayLike, draws: int, unscored_count: int = 0) -> float:
    """Expected maximum of k of the n scores drawn without replacement, without resampling.

    E[max] = sum over i of x_(i) C(i-1, k-1) / C(n, k), x_(i) the i-th smallest. NaN scores are
    missing. ``empty`` counts further draws that can be drawn but have no score (empty
    continuations): the expectation is then over those k that hold at least one score. NaN where
    fewer than k draws, or no score, are left.
    """
    known_scores = np.sort(_drop_missing(scores))
    n = len(known_scores) + unscored_count
    if draws < 1:
        raise ValueError(f"k must be at least 1, not {draws}")
    if n < draws or not len(known_scores):
        return math.nan
    weights = expected_maximum_weights(n, draws)[unscored_count:]
    return float(known_scores @ (weights / weights.sum()))


def expected_maximum_weights(total: int, draws: int) -> Float64:
    """P(the i-th smallest of n is the largest of k drawn) = C(i-1, k-1) / C(n, k), i = 1 ... n."""
    from scipy.special import gammaln

    weights = np.zeros(total)
    ranks = np.arange(draws, total + 1, dtype=np.float64)
    log_weights = gammaln(ranks) - gammaln(draws) - gammaln(ranks - draws + 1)
    log_weights -= gammaln(total + 1) - gammaln(draws + 1) - gammaln(total - draws + 1)
    weights[draws - 1 :] = np.exp(log_weights)
    return weights / weights.sum()


def probability_any_reaches(
    scores: ArrayLike, draws: int, threshold: float, unscored_count: int = 0
) -> float:
    """Probability that at least one of k of the n draws, without replacement, reaches the
    threshold: 1 - C(n-m, k) / C(n, k), m of n at or above it. NaN scores are missing; ``empty``
    draws cannot reach it. NaN where fewer than k draws are left."""
    known_scores = _drop_missing(scores)
    n, m = len(known_scores) + unscored_count, int((known_scores >= threshold).sum())
    if draws < 1:
        raise ValueError(f"k must be at least 1, not {draws}")
    return 1 - math.comb(n - m, draws) / math.comb(n, draws) if n >= draws else math.nan


def contributions_to_mean_difference(
    first: ArrayLike, second: ArrayLike
) -> tuple[Float64, Float64]:
    """What each item contributes to mean(left) - mean(right): values whose mean it is, and whose
    spread about that is its own, as of infinitesimal pseudo-values (Jaeckel 1972). So two such
    differences of the same items are compared as means are, in pairs."""
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
