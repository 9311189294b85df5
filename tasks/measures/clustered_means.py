"""Compute the error of a mean of clustered values, and widen its interval for skewness.

The mean of rare, sparse or unequally weighted values has a skewed distribution, and Student's t is
then too narrow on the side of the longer tail. The interval is widened on this side by the first
term of the Cornish-Fisher expansion of t (Johnson 1978), and p is that of the widened interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hallmark.tasks.measures.statistics import ClusterSums, Float64, jackknife_variance

#: The skewness of few values is much smaller than that of their distribution, and the expansion
#: ends after its first term. With this factor the intervals of exponential and lognormal values
#: reach their level (measured by ``benchmarks.coverage_designs``).
SKEWNESS_FACTOR = 2.5


class MeanError(NamedTuple):
    """The error of a mean over clusters.

    Attributes:
        standard_error: By a jackknife over clusters.
        skewness: Skewness of the mean's distribution, corrected for few clusters.
        effective_clusters: Number of equal clusters that would estimate the variance as precisely.
        fewest_clusters: Effective number of clusters of the clustering that has fewest.
        differing_clusters: Effective number of clusters that differ from the median cluster.
    """

    standard_error: float
    skewness: float
    effective_clusters: float
    fewest_clusters: float
    differing_clusters: float


def estimate_mean_error(
    clusterings: Sequence[ClusterSums], mean: float, value_variance: float
) -> MeanError:
    """Estimate the error of a mean by one or by two clusterings.

    With two-way clusters, variance and third moment are those of either clustering minus those of
    their intersection (Cameron, Gelbach & Miller 2011), unless the variance is then smaller than
    that of the intersection alone. In this case all comes from the intersection, because the
    number of the fewer clusters would make the interval too wide.

    Args:
        clusterings: One clustering, or the first, the second, and their intersection.
        mean: Mean of all values.
        value_variance: Variance of a single value.
    """
    jackknife_variances = np.array(
        [
            jackknife_variance(mean, (sums.sum() - sums) / (weights.sum() - weights))
            for sums, weights in clusterings
        ]
    )
    # (clusterings, 2): second and third moments of the contributions of clusters.
    moments = np.array(
        [
            [float(((sums - mean * weights) ** power).sum()) for power in (2, 3)]
            for sums, weights in clusterings
        ]
    )
    effective_clusters = [
        effective_cluster_count(*clustering, mean, value_variance) for clustering in clusterings
    ]
    used = np.ones(1)
    effective_count, cluster_count = effective_clusters[0], len(clusterings[0].sums)
    if len(clusterings) == 3:
        used = np.array([1.0, 1.0, -1.0])
        effective_count = min(effective_clusters[:2])
        cluster_count = min(len(sums) for sums, _ in clusterings[:2])
        if used @ jackknife_variances <= jackknife_variances[2]:
            used = np.array([0.0, 0.0, 1.0])
            effective_count, cluster_count = effective_clusters[2], len(clusterings[2].sums)
    variance_sum, third_moment = used @ moments
    return MeanError(
        standard_error=float(used @ jackknife_variances) ** 0.5,
        skewness=_correct_skewness(third_moment, variance_sum, cluster_count),
        effective_clusters=effective_count,
        fewest_clusters=min(effective_clusters[:2]),
        differing_clusters=min(map(_count_differing_clusters, clusterings[:2])),
    )


def _correct_skewness(third_moment: float, variance_sum: float, cluster_count: int) -> float:
    """Compute the skewness of a mean, without its bias for normal values; 0 where undefined."""
    if cluster_count < 3 or variance_sum <= 0:
        return 0.0
    bias_factor = (cluster_count * (cluster_count - 1)) ** 0.5 / (cluster_count - 2)
    return float(SKEWNESS_FACTOR * bias_factor * third_moment / variance_sum**1.5)


def _count_differing_clusters(clustering: ClusterSums) -> float:
    """Count the clusters that differ from the median cluster (Kish's effective number).

    Clusters with a larger difference weigh more: if one has nearly the whole difference, the number
    is little more than 1. For rare events that are equally frequent in some clusters, it is the
    number of these clusters.
    """
    sums, weights = clustering
    differences = np.abs(sums - np.median(sums / weights) * weights)
    squares = float((differences**2).sum())
    # Rounding errors of equal clusters are no differences.
    if squares <= (1e-12 * float(np.abs(sums).max())) ** 2:
        return 0.0
    return float(differences.sum() ** 2 / squares)


def effective_cluster_count(
    sums: Float64, counts: Float64, mean: float, value_variance: float
) -> float:
    """Compute how many equal clusters would estimate the variance of their mean as precisely.

    The number of clusters if their sizes are equal; fewer if some are large and correlated within
    (Satterthwaite 1946). The intraclass correlation is estimated from the values (Imbens & Kolesár
    2016).

    Args:
        sums: (clusters,) sums of values.
        counts: (clusters,) weights.
        mean: Mean of all values.
        value_variance: Variance of a single value.
    """
    n = counts.sum()
    pairs_in_clusters = float((counts**2).sum() - n)
    intraclass_correlation = 0.0
    if pairs_in_clusters and value_variance:
        between_ratio = float(((sums - mean * counts) ** 2).sum()) / value_variance
        intraclass_correlation = min(1.0, max(0.0, (between_ratio - n) / pairs_in_clusters))
    cluster_variances = counts * (1 + (counts - 1) * intraclass_correlation)
    return float(cluster_variances.sum() ** 2 / (cluster_variances**2).sum())


class Interval(NamedTuple):
    """An interval of a mean, and p of its null value by the same method."""

    low: float
    high: float
    p: float


def widen_for_skewness(
    interval: Interval,
    mean: float,
    mean_error: MeanError,
    null_value: float,
    degrees_of_freedom: float,
    confidence_level: float,
) -> Interval:
    """Widen an interval of a mean at the end of the longer tail, unless it is wide enough.

    A t of a skewed mean has the quantile q - skewness (2 q^2 + 1) / 6, where q is the quantile of
    Student's t.
    """
    from scipy.special import stdtr, stdtrit

    skewness = abs(mean_error.skewness)
    if skewness < 1e-9:
        return interval
    quantile = float(stdtrit(degrees_of_freedom, (1 + confidence_level) / 2))
    width = mean_error.standard_error * (quantile + skewness * (2 * quantile**2 + 1) / 6)
    is_upper = mean_error.skewness > 0
    t = (null_value - mean) / mean_error.standard_error * (1 if is_upper else -1)
    p = interval.p
    if t > 0:  # The null value is on the side of the longer tail.
        squared_root = max(1.0, 1 + 4 / 3 * skewness * (t - skewness / 6))
        p = max(p, 2 * float(stdtr(degrees_of_freedom, (1 - squared_root**0.5) * 1.5 / skewness)))
    return (
        Interval(interval.low, max(interval.high, mean + width), p)
        if is_upper
        else Interval(min(interval.low, mean - width), interval.high, p)
    )


def compute_widening_by_chance(degrees_of_freedom: int, confidence_level: float) -> float:
    """Compute the standard deviation of the widening for skewness of normal values.

    Returns:
        In standard errors of the mean; 0 for fewer than three values.
    """
    from scipy.special import stdtrit

    n = degrees_of_freedom + 1
    if n < 3:
        return 0.0
    skewness_variance = 6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3))
    quantile = float(stdtrit(degrees_of_freedom, (1 + confidence_level) / 2))
    skewness = SKEWNESS_FACTOR * (skewness_variance / n) ** 0.5
    return float(skewness * (2 * quantile**2 + 1) / 6)
