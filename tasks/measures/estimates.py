"""Estimate means, shares, differences, slopes and ROC areas of clustered items.

An Estimate has all that a finding needs: value, interval, p and minimum detectable effect.

- The standard error of a mean is a jackknife over clusters, with Student's t; its degrees of
freedom follow from the effective number of clusters.
- A share has Wilson's interval for the effective sample size, and the matching score test. For few
independent units of 0 or 1, interval and test are exact.
- A mean with a null value has a t interval and a t test. A mean without one is more often skewed,
and its interval is corrected for skewness.
- The minimum detectable effect is computed under the null: an effect observed by chance would
otherwise make itself easier to detect. For a share, only the design effect of the clusters comes
from the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hallmark.tasks.measures.detectable_effects import (
    detectable_auc_effect,
    detectable_binomial_effect,
    detectable_share_effect,
    detectable_standard_errors,
)
from hallmark.tasks.measures.proportions import (
    binomial_test_p,
    binomial_test_p_above,
    clopper_pearson_interval,
    score_test_p,
)
from hallmark.tasks.measures.statistics import (
    Float64,
    jackknife_variance,
    sum_by_cluster,
    t_half_width_and_p,
    wilson_interval,
)

#: Below this number of independent units of 0 or 1, the interval is exact.
MAX_EXACT_UNITS = 40

#: Minimum number of degrees of freedom for estimating the skewness of a mean.
MIN_DEGREES_FOR_SKEWNESS = 10


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
    cluster_description = f"over {cluster_count} {unit}"
    if crossed_clusters is not None and clusters is not None:
        crossed_sums = sum_by_cluster(array, crossed_clusters, relative_weights)
        crossed_count = len(crossed_sums.sums)
        if crossed_count > 1:
            intersections = [*zip(clusters, crossed_clusters, strict=True)]
            clusterings += [
                crossed_sums,
                sum_by_cluster(array, intersections, relative_weights),
            ]
            cluster_description = (
                f"over two-way clusters: {cluster_count} {unit} and "
                f"{crossed_count} crossed clusters"
            )
            estimate = replace(estimate, clusters=min(cluster_count, crossed_count))
    value_variance = float(
        np.average((known_values - value) ** 2, weights=relative_weights[is_known])
    )
    variance, effective_clusters = _combine_two_way_clusters(
        [
            jackknife_variance(value, (sums.sum() - sums) / (counts.sum() - counts))
            for sums, counts in clusterings
        ],
        [
            _effective_cluster_count(*clustering, value, value_variance)
            for clustering in clusterings
        ],
    )
    degrees_of_freedom, standard_error = max(1, round(effective_clusters - 1)), variance**0.5
    if degrees_of_freedom + 1 < estimate.clusters:
        cluster_description += f", effective sample size {degrees_of_freedom + 1}"
    if is_share:
        return _with_share_interval(
            estimate,
            standard_error,
            degrees_of_freedom,
            cluster_description,
            known_values,
            confidence_level,
        )
    if standard_error < 1e-12 * max(1.0, abs(value)):
        return _with_sign_test(estimate, unit)
    half_width, p = t_half_width_and_p(
        standard_error, degrees_of_freedom, value - null_value, confidence_level
    )
    low, high, method = value - half_width, value + half_width, "Student's t"
    if (
        np.isnan(null_value)
        and len(clusterings) == 1
        and degrees_of_freedom >= MIN_DEGREES_FOR_SKEWNESS
    ):
        low, high = _hall_interval(
            *clusterings[0], value, standard_error, half_width / standard_error
        )
        method = "Student's t, corrected for skewness,"
    null_variances = [
        float(((sums - null_value * counts) ** 2).sum()) / n**2 for sums, counts in clusterings
    ]
    null_standard_error = (
        _combine_two_way_clusters(null_variances, [1.0] * len(clusterings)).variance ** 0.5
    )
    return replace(
        estimate,
        low=low,
        high=high,
        p=p,
        method=f"{method} {cluster_description}",
        minimum_detectable_effect=float(
            detectable_standard_errors(degrees_of_freedom, confidence_level, degrees_of_freedom + 1)
            * null_standard_error
        ),
    )


def _with_sign_test(estimate: Estimate, unit: str) -> Estimate:
    """Add p to an estimate whose clusters all have the same value, so that no error is known.

    p is that of a sign test in which all clusters are on the same side of the null.
    """
    distance = abs(estimate.value - estimate.null_value)
    p = (
        np.nan
        if np.isnan(distance)
        else min(1.0, 2.0 ** (1 - estimate.clusters))
        if distance
        else 1.0
    )
    p_description = (
        f"; p of a sign test, because all {estimate.clusters} {unit} lie on the same side of the "
        "null value"
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


def _with_share_interval(
    estimate: Estimate,
    standard_error: float,
    degrees_of_freedom: int,
    cluster_description: str,
    known_values: Float64,
    confidence_level: float,
) -> Estimate:
    """Add interval, p and minimum detectable effect to the estimate of a share."""
    value, null, cluster_count = estimate.value, estimate.null_value, estimate.clusters
    if cluster_count == estimate.n < MAX_EXACT_UNITS and bool(np.isin(known_values, (0, 1)).all()):
        low, high = clopper_pearson_interval(known_values.sum(), cluster_count, confidence_level)
        return replace(
            estimate,
            low=low,
            high=high,
            p=binomial_test_p(int(known_values.sum()), cluster_count, null),
            p_above_null=binomial_test_p_above(int(known_values.sum()), cluster_count, null),
            minimum_detectable_effect=detectable_binomial_effect(
                cluster_count, null, confidence_level
            ),
            method=f"Clopper-Pearson interval {cluster_description}",
        )
    if standard_error < 1e-12:  # All clusters have the same share; each counts once.
        # Upper bound on the share of clusters that differ, whose own share may be 0 or 1. For a
        # value of 0 or 1 this is the Clopper-Pearson interval.
        disagreeing_share = clopper_pearson_interval(0, cluster_count, confidence_level)[1]
        low, high = value * (1 - disagreeing_share), value + (1 - value) * disagreeing_share
        p_above_null = np.nan
        if np.isnan(null):
            p = np.nan
        elif value in (0, 1):
            p = binomial_test_p(int(value * cluster_count), cluster_count, null)
            p_above_null = binomial_test_p_above(int(value * cluster_count), cluster_count, null)
        else:  # The largest share of agreeing clusters with which the mean can be the null.
            agreeing_share = null / value if null < value else (1 - null) / (1 - value)
            p = min(1.0, 2 * agreeing_share**cluster_count)
        return replace(
            estimate,
            low=low,
            high=high,
            p=p,
            p_above_null=p_above_null,
            minimum_detectable_effect=detectable_share_effect(
                1 / cluster_count, degrees_of_freedom, null, confidence_level
            ),
            method=f"interval for clusters with equal shares, {cluster_description}",
        )
    variance_factor = standard_error**2 / (value * (1 - value))
    low, high = wilson_interval(
        value / variance_factor, 1 / variance_factor, confidence_level, degrees_of_freedom
    )
    return replace(
        estimate,
        low=low,
        high=high,
        p=score_test_p(value, null, variance_factor, degrees_of_freedom),
        minimum_detectable_effect=detectable_share_effect(
            variance_factor, degrees_of_freedom, null, confidence_level
        ),
        method=f"Wilson's interval with Student's t {cluster_description}",
    )


class _ClusteredVariance(NamedTuple):
    """Variance of a mean over clusters."""

    variance: float
    effective_clusters: float
    """Number of equal clusters that would estimate the variance as precisely."""


def _combine_two_way_clusters(
    variances: Sequence[float], effective_clusters: Sequence[float]
) -> _ClusteredVariance:
    """Combine the variances of a mean by two-way clustering.

    The variance is that of either clustering minus that of their intersection (Cameron, Gelbach &
    Miller 2011), but at least that of the intersection alone. In the latter case the effective
    number of clusters is the intersection's, because that of the fewer clusters would make the
    interval too wide.

    Args:
        variances: Variance by one clustering, or by the first, the second, and their intersection.
        effective_clusters: Effective number of clusters of each.
    """
    if len(variances) == 1:
        return _ClusteredVariance(variances[0], effective_clusters[0])
    first_variance, second_variance, intersection_variance = variances
    two_way_variance = first_variance + second_variance - intersection_variance
    if two_way_variance > intersection_variance:
        return _ClusteredVariance(two_way_variance, min(effective_clusters[:2]))
    return _ClusteredVariance(intersection_variance, effective_clusters[2])


def _effective_cluster_count(
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


def _hall_interval(
    sums: Float64, counts: Float64, mean: float, standard_error: float, t_bound: float
) -> tuple[float, float]:
    """Compute the interval of a skewed mean by Hall's transformation (1992, equation 2).

    It contains the means whose t, corrected for skewness, is within the bound.
    """
    cluster_deviations = sums - mean * counts
    skewness = float((cluster_deviations**3).sum() / (cluster_deviations**2).sum() ** 1.5)
    if abs(skewness) < 1e-9:
        return mean - t_bound * standard_error, mean + t_bound * standard_error
    high, low = (
        3 / skewness * (np.cbrt(1 + skewness * (t - skewness / 6)) - 1) for t in (t_bound, -t_bound)
    )
    return float(mean - high * standard_error), float(mean - low * standard_error)


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
        return replace(estimate, method=f"no {unit} in one of the groups")
    estimate = replace(estimate, value=float(known_samples[0].mean() - known_samples[1].mean()))
    if min(sizes) == 1:
        return replace(estimate, method=f"no interval: fewer than two {unit} in one of the groups")
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
            method=f"no interval: all {unit} of a group have the same value; p from random "
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
        method=f"Welch's t over {sizes[0]} and {sizes[1]} {unit}",
    )


def estimate_linear_slope(
    values: ArrayLike,
    predictor: ArrayLike,
    clusters: Sequence[Any] | None = None,
    *,
    confidence_level: float = 0.95,
    unit: str = "items",
) -> Estimate:
    """Estimate a slope by least squares; null 0.

    The interval is Student's t over a jackknife of clusters (CR3; MacKinnon, Nielsen & Webb 2023):
    the usual interval is too narrow for few clusters of unequal weight.

    Args:
        values: (n,), NaN where missing.
        predictor: (n,), NaN where missing.
        clusters: (n,) names; None makes each value its own cluster.
        confidence_level: Of the interval.
        unit: Plural name of the clusters, for the description of the method.
    """
    y, x = (np.asarray(array, dtype=np.float64) for array in (values, predictor))
    is_known = ~np.isnan(y) & ~np.isnan(x)
    cluster_codes = (
        np.arange(len(y)) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    )
    y, x = y[is_known], x[is_known]
    cluster_codes = np.unique(cluster_codes[is_known], return_inverse=True)[1]
    cluster_count = int(cluster_codes.max()) + 1 if len(y) else 0
    missing = int((~is_known).sum())
    estimate = Estimate(
        np.nan, np.nan, np.nan, len(y), cluster_count, missing, f"no {unit} to measure", 0.0
    )
    if len(np.unique(x)) < 2:
        return replace(estimate, method="not measured: the predictor has a single value")
    y, x = y - y.mean(), x - x.mean()
    moment_sums = [
        np.bincount(cluster_codes, weights=w, minlength=cluster_count)
        for w in (np.ones_like(x), x, y, x * x, x * y)
    ]

    def least_squares_slope(
        n: Float64, sx: Float64, sy: Float64, sxx: Float64, sxy: Float64
    ) -> Float64:
        with np.errstate(invalid="ignore", divide="ignore"):
            return (n * sxy - sx * sy) / (n * sxx - sx * sx)

    estimate = replace(
        estimate,
        value=float(least_squares_slope(*(moment_sum.sum() for moment_sum in moment_sums))),
    )
    slopes_without_cluster = least_squares_slope(
        *(moment_sum.sum() - moment_sum for moment_sum in moment_sums)
    )  # (clusters,)
    if cluster_count < 3 or not np.isfinite(slopes_without_cluster).all():
        return replace(estimate, method=f"no interval: too few {unit}")
    standard_error = jackknife_variance(estimate.value, slopes_without_cluster) ** 0.5
    if standard_error < 1e-12 * max(1.0, abs(estimate.value)):
        return replace(estimate, method="no interval: all points lie on one line")
    half_width, p = t_half_width_and_p(
        standard_error, cluster_count - 1, estimate.value, confidence_level
    )
    method = f"least squares; Student's t over a jackknife of {cluster_count} {unit}"
    return replace(
        estimate,
        low=estimate.value - half_width,
        high=estimate.value + half_width,
        p=p,
        method=method,
    )


class PlacementValues(NamedTuple):
    """Placement of each value in the other sample; ties count one half."""

    members: Float64
    """(m,) share of nonmembers below each member."""
    nonmembers: Float64
    """(n,) share of members above each nonmember."""


def compute_roc_placement_values(members: ArrayLike, nonmembers: ArrayLike) -> PlacementValues:
    """Compute placement values, whose mean on either side is the area under the ROC curve."""
    from scipy.stats import rankdata

    samples = [np.asarray(sample, np.float64) for sample in (members, nonmembers)]
    pooled_ranks, m = rankdata(np.concatenate(samples)), len(samples[0])
    shares_below = (pooled_ranks[:m] - rankdata(samples[0])) / len(samples[1])
    shares_above = 1 - (pooled_ranks[m:] - rankdata(samples[1])) / m
    return PlacementValues(shares_below, shares_above)


def estimate_roc_auc(
    members: ArrayLike,
    nonmembers: ArrayLike,
    *,
    confidence_level: float = 0.95,
    unit: str = "items",
) -> Estimate:
    """Estimate the area under the ROC curve; null 1/2.

    It is the probability that a member is above a nonmember, ties counting one half. The interval
    is DeLong's (1988), on the logit scale; p is from the rank test of no difference (Mann & Whitney
    1947).
    """
    from scipy.special import expit, logit, ndtr, ndtri
    from scipy.stats import rankdata, tiecorrect

    samples = [np.asarray(sample, np.float64) for sample in (members, nonmembers)]
    known_samples = [sample[~np.isnan(sample)] for sample in samples]
    m, n = map(len, known_samples)
    missing = sum(map(len, samples)) - m - n
    estimate = Estimate(
        np.nan, np.nan, np.nan, m + n, m + n, missing, f"no {unit} on one side", 0.5
    )
    if not m or not n:
        return estimate
    placements = compute_roc_placement_values(*known_samples)
    value = float(placements.members.mean())
    tie_factor = float(tiecorrect(rankdata(np.concatenate(known_samples))))
    null_variance = tie_factor * (m + n + 1) / (12 * m * n)
    if null_variance < 1e-12:
        return replace(
            estimate, value=value, p=1.0, method=f"no interval: all {unit} have the same value"
        )
    critical_value = float(ndtri((1 + confidence_level) / 2))
    estimate = replace(
        estimate,
        value=value,
        minimum_detectable_effect=detectable_auc_effect(m, n, critical_value * null_variance**0.5),
        p=float(2 * ndtr(-abs(value - 0.5) / null_variance**0.5)),
    )
    placement_variances = [
        float(sample.var(ddof=1)) / len(sample) for sample in placements if len(sample) > 1
    ]
    if len(placement_variances) < 2 or value in (0, 1):
        return replace(
            estimate,
            method=(
                f"no interval: too few {unit}, or all values of one group are above those of the "
                "other"
            ),
        )
    logit_standard_error = sum(placement_variances) ** 0.5 / (value * (1 - value))
    low, high = expit(
        logit(value) + np.array([-critical_value, critical_value]) * logit_standard_error
    )
    return replace(
        estimate,
        low=float(low),
        high=float(high),
        method=f"DeLong's interval over {m} and {n} {unit}",
    )


def estimate_true_positive_rate(
    members: ArrayLike,
    nonmembers: ArrayLike,
    false_positive_rate: float,
    *,
    confidence_level: float = 0.95,
    unit: str = "items",
) -> Estimate:
    """Estimate the share of members above the score exceeded by a given share of nonmembers.

    The interval is Wilson's with a reduced effective number of members, because the threshold is an
    estimate: it includes the change in the rate if the threshold moves by the standard error of its
    share of nonmembers.

    Args:
        members: (m,) scores, NaN where missing.
        nonmembers: (n,) scores, NaN where missing.
        false_positive_rate: Share of nonmembers above the threshold; also the null.
        confidence_level: Of the interval.
        unit: Plural name of the items, for the description of the method.
    """
    samples = [np.asarray(sample, np.float64) for sample in (members, nonmembers)]
    known_members, known_nonmembers = (sample[~np.isnan(sample)] for sample in samples)
    m, n = len(known_members), len(known_nonmembers)
    missing = sum(map(len, samples)) - m - n
    estimate = Estimate(
        np.nan, np.nan, np.nan, m, m, missing, f"no {unit} on one side", false_positive_rate
    )
    if not m or not n:
        return estimate
    share_error = (false_positive_rate * (1 - false_positive_rate) / n) ** 0.5
    tail_shares = np.clip(
        [false_positive_rate - share_error, false_positive_rate, false_positive_rate + share_error],
        0,
        1,
    )
    score_bounds = np.quantile(known_nonmembers, 1 - tail_shares, method="higher")
    lower_rate, value, upper_rate = (
        (known_members > score_bound).mean() for score_bound in score_bounds
    )
    smoothed_rate = (value * m + 1) / (m + 2)  # Rates of 0 and 1 would have no variance.
    rate_variance = smoothed_rate * (1 - smoothed_rate)
    effective_members = rate_variance / (
        rate_variance / m + max(upper_rate - value, value - lower_rate) ** 2
    )
    low, high = wilson_interval(value * effective_members, effective_members, confidence_level)
    return replace(
        estimate,
        value=float(value),
        low=low,
        high=high,
        method=(
            f"Wilson's interval over {m} {unit}, widened because the threshold is estimated from "
            f"{n} {unit} of the other group"
        ),
    )
