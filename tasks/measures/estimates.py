"""Estimate means, shares and differences of clustered items.

An Estimate has all that a finding needs: value, interval, p and minimum detectable effect.

- The standard error of a mean is a jackknife over clusters, with Student's t; its degrees of
freedom follow from the effective number of clusters.
- A share has Wilson's interval for the effective sample size, and the matching score test. For
independent units of 0 or 1 that are few, or of which few are 1 or few are 0, interval and test are
exact.
- Other values may be skewed: rare, near zero, or following their weights. Their interval is widened
at the end of the longer tail (``clustered_means``).
- An interval excludes the null value exactly if p is below 1 - confidence level. Where no method
reaches its level, there is neither, and the method says why: few clusters, or a mean that depends
on few of them. A share that depends on few clusters has the widest interval that they allow.
- The minimum detectable effect is computed under the null: an effect observed by chance would
otherwise make itself easier to detect. For a share, only the design effect of the clusters comes
from the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hallmark.tasks.measures.clustered_means import (
    Interval,
    MeanError,
    compute_widening_by_chance,
    estimate_mean_error,
    widen_for_skewness,
)
from hallmark.tasks.measures.detectable_effects import (
    detectable_binomial_effect,
    detectable_share_effect,
    detectable_standard_errors,
)
from hallmark.tasks.measures.proportions import (
    binomial_test_p,
    binomial_test_p_above,
    clopper_pearson_interval,
    double_lower_tail_probability,
    score_test_p,
)
from hallmark.tasks.measures.statistics import (
    ClusterSums,
    Float64,
    jackknife_variance,
    sum_by_cluster,
    t_half_width_and_p,
    wilson_interval,
)

#: Below this number of independent units of 0 or 1, or if fewer than MIN_EVENTS of them are 1 or
#: are 0, the interval is exact.
MAX_EXACT_UNITS = 40
MIN_EVENTS = 10

#: Minimum number of clusters of an interval, for means and for shares: the mean of fewer skewed
#: values is beyond the interval of any method too often. Clusters with unequal weights count like
#: fewer with equal ones.
MIN_CLUSTERS = 10
MIN_CLUSTERS_OF_SHARES = 6

#: Minimum effective number of clusters from which the variance comes.
MIN_EFFECTIVE_CLUSTERS = 3

#: Minimum effective number of clusters that differ from the median cluster, for means and for
#: shares: fewer do not show how much the mean varies. Shares have another interval then.
MIN_DIFFERING_CLUSTERS = 3
MIN_DIFFERING_CLUSTERS_OF_SHARES = 4


@dataclass(frozen=True)
class Estimate:
    """An estimated value with its interval and test.

    Attributes:
        value: NaN if it could not be measured.
        low: Lower end of the interval; NaN if the error is unknown.
        high: Upper end of the interval; NaN if the error is unknown.
        n: Number of values.
        clusters: Number of independent clusters.
        missing: Number of missing values (NaN), not included in n.
        method: Description of the method, or why there is no value or interval.
        null_value: Value if there is nothing to find; NaN if there is no null.
        p: Two-sided unless the method says otherwise; NaN without a null.
        minimum_detectable_effect: Distance from the null that the test at 1 - confidence level
            finds with power 0.8; NaN without a null.
        p_above_null: One-sided p of a value above the null, of a test that is not symmetric; NaN:
            half of p.
    """

    value: float
    low: float
    high: float
    n: int
    clusters: int
    missing: int
    method: str
    null_value: float = np.nan
    p: float = np.nan
    minimum_detectable_effect: float = np.nan
    p_above_null: float = np.nan


def estimate_mean_or_share(
    values: ArrayLike,
    clusters: Sequence[Any] | None = None,
    *,
    is_share: bool = False,
    null_value: float = np.nan,
    confidence_level: float = 0.95,
    unit: str = "items",
    crossed_clusters: Sequence[Any] | None = None,
    weights: ArrayLike | None = None,
) -> Estimate:
    """Estimate a mean, or a share.

    Args:
        values: (n,), NaN where missing.
        clusters: (n,) names; None makes each value its own cluster.
        is_share: Whether the values are from 0 to 1, so that share intervals apply.
        null_value: Value if there is nothing to find; NaN if there is no null.
        confidence_level: Of the interval.
        unit: Plural name of the clusters, for the description of the method.
        crossed_clusters: (n,) names of clusters of another kind, if items share two things.
        weights: (n,) weights of values that are not shares. The mean is then a ratio of two sums,
            such as bits per byte over documents; an item of twice the weight is like a cluster of
            twice the items.
    """
    array = np.asarray(values, dtype=np.float64)
    is_known = ~np.isnan(array)
    known_values, n = array[is_known], int(is_known.sum())
    if not n:
        return Estimate(
            np.nan, np.nan, np.nan, 0, 0, len(array), f"no {unit} to measure", null_value
        )
    relative_weights = (
        np.ones(len(array)) if weights is None else np.asarray(weights, dtype=np.float64)
    )
    relative_weights = relative_weights / relative_weights[is_known].mean()
    clusterings = [sum_by_cluster(array, clusters, relative_weights)]
    cluster_count = len(clusterings[0].sums)
    value = float(np.average(known_values, weights=relative_weights[is_known]))
    estimate = Estimate(value, np.nan, np.nan, n, cluster_count, len(array) - n, "", null_value)
    if cluster_count == 1:
        return replace(estimate, method=f"no interval: fewer than two {unit}")
    cluster_description = f"based on {cluster_count} {unit}"
    if crossed_clusters is not None and clusters is not None:
        crossed_sums = sum_by_cluster(array, crossed_clusters, relative_weights)
        crossed_count = len(crossed_sums.sums)
        if crossed_count > 1:
            intersections = [*zip(clusters, crossed_clusters, strict=True)]
            clusterings += [crossed_sums, sum_by_cluster(array, intersections, relative_weights)]
            cluster_description = (
                f"with two-way clustering: {cluster_count} {unit} and {crossed_count} "
                "clusters in the second dimension"
            )
            estimate = replace(estimate, clusters=min(cluster_count, crossed_count))
    if is_share and estimate.clusters == n and bool(np.isin(known_values, (0, 1)).all()):
        return _with_binomial_interval(
            estimate, int(known_values.sum()), cluster_description, confidence_level
        )
    value_variance = float(
        np.average((known_values - value) ** 2, weights=relative_weights[is_known])
    )
    mean_error = estimate_mean_error(clusterings, value, value_variance)
    largest_value = float(np.abs(known_values).max())
    if not is_share and mean_error.standard_error <= 1e-12 * largest_value:
        return _with_sign_test(estimate, unit)
    reason = _find_reason_against_interval(
        estimate,
        mean_error,
        unit if estimate.clusters == cluster_count else "clusters in the second dimension",
        is_share=is_share,
        weights=None if weights is None else relative_weights[is_known],
    )
    if reason:
        return replace(estimate, method=f"no interval: {reason}")
    if is_share and mean_error.differing_clusters < MIN_DIFFERING_CLUSTERS_OF_SHARES:
        return _with_widest_share_interval(
            estimate,
            min(clusterings[:2], key=lambda clustering: len(clustering.sums)),
            cluster_description,
            confidence_level,
        )
    return _with_clustered_interval(
        estimate,
        mean_error,
        clusterings,
        cluster_description,
        confidence_level,
        is_share=is_share,
    )


def _with_clustered_interval(
    estimate: Estimate,
    mean_error: MeanError,
    clusterings: Sequence[ClusterSums],
    cluster_description: str,
    confidence_level: float,
    *,
    is_share: bool,
) -> Estimate:
    """Add Wilson's or Student's interval, widened for skewness, p and detectable effect."""
    value, null_value = estimate.value, estimate.null_value
    degrees_of_freedom = max(1, round(mean_error.effective_clusters - 1))
    if degrees_of_freedom + 1 < estimate.clusters:
        cluster_description += f", effective sample size {degrees_of_freedom + 1}"
    method, interval = (
        _share_interval(value, mean_error, null_value, degrees_of_freedom, confidence_level)
        if is_share
        else _mean_interval(value, mean_error, null_value, degrees_of_freedom, confidence_level)
    )
    low, high, p = widen_for_skewness(
        interval, value, mean_error, null_value, degrees_of_freedom, confidence_level
    )
    widening = compute_widening_by_chance(degrees_of_freedom, confidence_level)
    if low < interval.low or high > interval.high:
        method += ", widened for skewness,"
    return replace(
        estimate,
        low=max(0.0, low) if is_share else low,
        high=min(1.0, high) if is_share else high,
        p=p,
        method=f"{method} {cluster_description}",
        minimum_detectable_effect=(
            detectable_share_effect(
                mean_error.standard_error**2 / (value * (1 - value)),
                degrees_of_freedom,
                null_value,
                confidence_level,
                widening,
            )
            if is_share
            else _detectable_mean_effect(
                clusterings, estimate.n, null_value, degrees_of_freedom, confidence_level, widening
            )
        ),
    )


def estimate_normal_mean(
    values: ArrayLike,
    clusters: Sequence[Any],
    *,
    null_value: float = np.nan,
    confidence_level: float = 0.95,
    unit: str = "items",
) -> Estimate:
    """Estimate a mean; that of fewer than MIN_CLUSTERS clusters by assuming normal cluster means.

    Args:
        values: (n,), NaN where missing.
        clusters: (n,) names.
        null_value: Value if there is nothing to find; NaN if there is no null.
        confidence_level: Of the interval.
        unit: Plural name of the clusters, for the description of the method.
    """
    estimate = estimate_mean_or_share(
        values, clusters, null_value=null_value, confidence_level=confidence_level, unit=unit
    )
    if not 1 < estimate.clusters < MIN_CLUSTERS:
        return estimate
    sums, counts = sum_by_cluster(values, clusters)
    means_without_cluster = (sums.sum() - sums) / (counts.sum() - counts)
    standard_error = jackknife_variance(estimate.value, means_without_cluster) ** 0.5
    if standard_error <= 1e-12 * float(np.nanmax(np.abs(values))):
        return estimate
    degrees_of_freedom = estimate.clusters - 1
    half_width, p = t_half_width_and_p(
        standard_error, degrees_of_freedom, estimate.value - null_value, confidence_level
    )
    return replace(
        estimate,
        low=estimate.value - half_width,
        high=estimate.value + half_width,
        p=p,
        minimum_detectable_effect=_detectable_mean_effect(
            [ClusterSums(sums, counts)],
            estimate.n,
            null_value,
            degrees_of_freedom,
            confidence_level,
        ),
        method=f"Student's t interval based on {estimate.clusters} {unit}, whose means are assumed "
        "to be normally distributed",
    )


def find_min_clusters(*, is_share: bool) -> int:
    """Return with how many clusters the interval of a mean, or of a share, reaches its level."""
    return MIN_CLUSTERS_OF_SHARES if is_share else MIN_CLUSTERS


def _find_reason_against_interval(
    estimate: Estimate, mean_error: MeanError, unit: str, *, is_share: bool, weights: Float64 | None
) -> str:
    """Say why no interval reaches its level; empty if one does."""
    if is_share and not mean_error.differing_clusters:
        return ""
    min_clusters = find_min_clusters(is_share=is_share)
    if estimate.clusters < min_clusters:
        return f"fewer than {min_clusters} {unit}"
    if weights is not None:
        effective_weights = float(weights.sum() ** 2 / (weights**2).sum())
        if effective_weights < min_clusters - 1e-9:
            return (
                f"{estimate.clusters} {unit} with unequal weights are equivalent to "
                f"{effective_weights:.1f} with equal weights, fewer than the required "
                f"{min_clusters}"
            )
    if mean_error.fewest_clusters < MIN_EFFECTIVE_CLUSTERS:
        return f"one or two large {unit} dominate the mean"
    if not is_share and mean_error.differing_clusters < MIN_DIFFERING_CLUSTERS:
        return (
            f"the mean is determined by fewer than {MIN_DIFFERING_CLUSTERS} of the "
            f"{estimate.clusters} {unit}"
        )
    return ""


def _mean_interval(
    value: float,
    mean_error: MeanError,
    null_value: float,
    degrees_of_freedom: int,
    confidence_level: float,
) -> tuple[str, Interval]:
    """Name and compute Student's t interval of a mean."""
    half_width, p = t_half_width_and_p(
        mean_error.standard_error, degrees_of_freedom, value - null_value, confidence_level
    )
    return "Student's t interval", Interval(value - half_width, value + half_width, p)


def _share_interval(
    value: float,
    mean_error: MeanError,
    null_value: float,
    degrees_of_freedom: int,
    confidence_level: float,
) -> tuple[str, Interval]:
    """Name and compute Wilson's interval of a share with an effective sample size."""
    variance_factor = mean_error.standard_error**2 / (value * (1 - value))
    low, high = wilson_interval(
        value / variance_factor, 1 / variance_factor, confidence_level, degrees_of_freedom
    )
    p = score_test_p(value, null_value, variance_factor, degrees_of_freedom)
    return "Wilson interval (with Student's t)", Interval(low, high, p)


def _detectable_mean_effect(
    clusterings: Sequence[ClusterSums],
    n: int,
    null_value: float,
    degrees_of_freedom: int,
    confidence_level: float,
    widening: float = 0.0,
) -> float:
    """Compute the minimum detectable effect of a mean, from its error under the null."""
    null_variances = [
        float(((sums - null_value * weights) ** 2).sum()) / n**2 for sums, weights in clusterings
    ]
    if len(null_variances) == 1:
        null_variance = null_variances[0]
    else:
        first_variance, second_variance, intersection_variance = null_variances
        null_variance = max(
            first_variance + second_variance - intersection_variance, intersection_variance
        )
    return float(
        detectable_standard_errors(
            degrees_of_freedom, confidence_level, degrees_of_freedom + 1, widening
        )
        * null_variance**0.5
    )


def _with_sign_test(estimate: Estimate, unit: str) -> Estimate:
    """Add p to an estimate whose clusters all have the same value, so that no error is known.

    p is that of a sign test in which all clusters are on the same side of the null. Values that are
    all 0, with another null, have no p: values that are mostly 0 may all be 0 by chance.
    """
    distance = abs(estimate.value - estimate.null_value)
    if distance > 0 and not estimate.value:
        distance = np.nan
    p = (
        np.nan
        if np.isnan(distance)
        else min(1.0, 2.0 ** (1 - estimate.clusters))
        if distance
        else 1.0
    )
    p_description = (
        f"; p is from a sign test because all {estimate.clusters} {unit} are on the same side of "
        "the null value"
        if distance > 0
        else ""
    )
    return replace(
        estimate, p=p, method=f"no interval: all {unit} have the same value{p_description}"
    )


def scale_estimate(estimate: Estimate, factor: float) -> Estimate:
    """Multiply value, interval, null value and minimum detectable effect by a factor."""
    return replace(
        estimate,
        value=estimate.value * factor,
        low=estimate.low * factor,
        high=estimate.high * factor,
        null_value=estimate.null_value * factor,
        minimum_detectable_effect=estimate.minimum_detectable_effect * factor,
    )


def _with_binomial_interval(
    estimate: Estimate, successes: int, cluster_description: str, confidence_level: float
) -> Estimate:
    """Add interval, p and minimum detectable effect to the share of independent units of 0 or 1."""
    value, null_value, n = estimate.value, estimate.null_value, estimate.n
    if n < MAX_EXACT_UNITS or min(successes, n - successes) < MIN_EVENTS:
        low, high = clopper_pearson_interval(successes, n, confidence_level)
        return replace(
            estimate,
            low=low,
            high=high,
            p=binomial_test_p(successes, n, null_value),
            p_above_null=binomial_test_p_above(successes, n, null_value),
            minimum_detectable_effect=detectable_binomial_effect(n, null_value, confidence_level),
            method=f"Clopper-Pearson interval {cluster_description}",
        )
    low, high = wilson_interval(value * (n - 1), n - 1, confidence_level, n - 1)
    return replace(
        estimate,
        low=low,
        high=high,
        p=score_test_p(value, null_value, 1 / (n - 1), n - 1),
        minimum_detectable_effect=detectable_share_effect(
            1 / (n - 1), n - 1, null_value, confidence_level
        ),
        method=f"Wilson interval (with Student's t) {cluster_description}",
    )


def _with_widest_share_interval(
    estimate: Estimate,
    cluster_sums: ClusterSums,
    cluster_description: str,
    confidence_level: float,
) -> Estimate:
    """Add the widest interval of a share from which too few clusters differ to estimate its error.

    The median share of the clusters is the share of most. Of the distances from it, upwards to 1
    and downwards to 0, a part is observed; each has the exact upper bound of a share of clusters,
    because the values of a cluster may all change together. If no cluster differs, this is the
    largest share of clusters that may differ (for a share of 0 or 1, the Clopper-Pearson interval).
    """
    sums, weights = cluster_sums
    median = float(np.median(sums / weights))
    # As many equal clusters; the number of clusters if their weights are equal (Kish 1965).
    cluster_count = float(weights.sum() ** 2 / (weights**2).sum())
    differences = (sums - median * weights) / weights.sum()
    null_value = estimate.null_value
    # Observed distance and largest possible distance, downwards and upwards.
    (down, max_down), (up, max_up) = (
        (float(-differences[differences < 0].sum()), median),
        (float(differences[differences > 0].sum()), 1 - median),
    )

    def bound_distance(observed: float, maximum: float) -> float:
        if not maximum:
            return 0.0
        successes = min(cluster_count, cluster_count * observed / maximum)
        return maximum * clopper_pearson_interval(successes, cluster_count, confidence_level)[1]

    def compute_p(observed: float, maximum: float, null_distance: float) -> float:
        successes = min(cluster_count, cluster_count * observed / maximum)
        return double_lower_tail_probability(successes, cluster_count, null_distance / maximum)

    p = np.nan
    if not np.isnan(null_value):
        p = (
            compute_p(up, max_up, null_value - median)
            if null_value > median
            else compute_p(down, max_down, median - null_value)
            if null_value < median
            else 1.0
        )
    return replace(
        estimate,
        low=median - bound_distance(down, max_down),
        high=median + bound_distance(up, max_up),
        p=p,
        minimum_detectable_effect=detectable_share_effect(
            1 / cluster_count, max(1, round(cluster_count - 1)), null_value, confidence_level
        ),
        method=(
            f"widest possible interval, because fewer than {MIN_DIFFERING_CLUSTERS_OF_SHARES} "
            f"clusters differ from the others, {cluster_description}"
        ),
    )


def estimate_mean_difference(
    first: ArrayLike,
    second: ArrayLike,
    *,
    null_variance: float = np.nan,
    confidence_level: float = 0.95,
    unit: str = "items",
) -> Estimate:
    """Estimate mean(first) - mean(second) of independent groups (Welch 1947); null 0.

    Args:
        first: (m,), NaN where missing.
        second: (n,), NaN where missing.
        null_variance: Variance of an item under the null, for the minimum detectable effect; NaN to
            estimate it from the values.
        confidence_level: Of the interval.
        unit: Plural name of the items, for the description of the method.
    """
    samples = [np.asarray(sample, dtype=np.float64) for sample in (first, second)]
    known_samples = [sample[~np.isnan(sample)] for sample in samples]
    sizes = [len(sample) for sample in known_samples]
    n = sum(sizes)
    estimate = Estimate(np.nan, np.nan, np.nan, n, n, sum(map(len, samples)) - n, "", 0.0)
    if min(sizes) == 0:
        return replace(estimate, method=f"one of the groups has no {unit}")
    estimate = replace(estimate, value=float(known_samples[0].mean() - known_samples[1].mean()))
    if min(sizes) == 1:
        return replace(estimate, method=f"no interval: one of the groups has fewer than two {unit}")
    mean_variances = [float(sample.var(ddof=1)) / len(sample) for sample in known_samples]
    standard_error = sum(mean_variances) ** 0.5
    null_standard_error = sum(null_variance / size for size in sizes) ** 0.5
    estimate = replace(
        estimate,
        minimum_detectable_effect=float(
            detectable_standard_errors(n - 2, confidence_level) * null_standard_error
        ),
    )
    if standard_error < 1e-12 * max(1.0, abs(estimate.value)):
        # The probability that random labels separate the values like this.
        p = min(1.0, 2 / comb(n, sizes[0])) if abs(estimate.value) > 0 else 1.0
        return replace(
            estimate,
            p=p,
            method=f"no interval: all {unit} in each group have the same value; p is from random "
            "relabelling",
        )
    degrees_of_freedom = standard_error**4 / sum(
        p * p / (size - 1) for p, size in zip(mean_variances, sizes, strict=True)
    )
    if np.isnan(null_variance):
        rounded_degrees_of_freedom = max(1, round(degrees_of_freedom))
        estimate = replace(
            estimate,
            minimum_detectable_effect=float(
                detectable_standard_errors(
                    rounded_degrees_of_freedom, confidence_level, rounded_degrees_of_freedom
                )
                * standard_error
            ),
        )
    half_width, p = t_half_width_and_p(
        standard_error, degrees_of_freedom, estimate.value, confidence_level
    )
    return replace(
        estimate,
        low=estimate.value - half_width,
        high=estimate.value + half_width,
        p=p,
        method=f"Welch's t interval based on {sizes[0]} and {sizes[1]} {unit}",
    )
