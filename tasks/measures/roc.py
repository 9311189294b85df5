"""Estimate areas under the ROC curve and true-positive rates of members and others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hallmark.tasks.measures.detectable_effects import (
    compute_normal_auc_variance,
    detectable_auc_effect,
)
from hallmark.tasks.measures.estimates import Estimate
from hallmark.tasks.measures.proportions import (
    binomial_test_p,
    clopper_pearson_interval,
    score_test_p,
)
from hallmark.tasks.measures.statistics import (
    Float64,
    encode_names_as_integers,
    wilson_interval,
)

#: With fewer independent units on one side, an area under the ROC curve has no interval or test.
MIN_UNITS_PER_SIDE = 6


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


class _Side(NamedTuple):
    """Placement values of one sample, by cluster.

    Attributes:
        shifts: (clusters of both samples,) change of the area without each cluster of this sample,
            scaled so that the sum of squares is the jackknife variance.
        cluster_count: Number of clusters of this sample.
        effective_count: Number of clusters of equal size whose variance would be as well known if
            the items of a cluster were copies of each other (Satterthwaite 1946).
        single_count: Number of single items whose mean would vary as much if the items of a cluster
            were copies of each other (Kish 1965).
    """

    shifts: Float64
    cluster_count: int
    effective_count: float
    single_count: float

    @classmethod
    def from_placements(
        cls, placements: Float64, cluster_codes: NDArray[np.int64], code_count: int
    ) -> _Side:
        counts = np.bincount(cluster_codes, minlength=code_count)
        deviation_sums = np.bincount(
            cluster_codes, placements - placements.mean(), minlength=code_count
        )
        cluster_count = int((counts > 0).sum())
        shifts = np.zeros(code_count)
        if cluster_count > 1:
            jackknife_factor = ((cluster_count - 1) / cluster_count) ** 0.5
            shifts = jackknife_factor * deviation_sums / (len(placements) - counts)
        squares = counts.astype(np.float64) ** 2
        return cls(
            shifts,
            cluster_count,
            float(squares.sum() ** 2 / (squares**2).sum()),
            float(len(placements) ** 2 / squares.sum()),
        )


def estimate_roc_auc(
    members: ArrayLike,
    nonmembers: ArrayLike,
    clusters: tuple[Sequence[Any], Sequence[Any]] | None = None,
    *,
    confidence_level: float = 0.95,
    unit: str = "items",
) -> Estimate:
    """Estimate the area under the ROC curve; null 1/2.

    It is the probability that a member is above a nonmember, ties counting one half. Two score
    tests and their intervals are computed; p is the larger p, and each end the more distant one:

    * The variance and the degrees of freedom of t are those of Brunner & Munzel (2000), which allow
      for unequal spreads; the variance, which is also DeLong's (1988), is a jackknife over
      clusters. As for other shares, they give Wilson's interval. If few pairs are in the other
      order, the jackknife is often too small.
    * The variance is that of normal values of equal spreads with the area in question, as in
      Newcombe's (2006) intervals. A cluster counts as one value.

    If all members are above all nonmembers, or below, test and interval are those of a sign test on
    pairs of a member and a nonmember, which holds for any two distributions.

    Args:
        members: (m,), NaN where missing.
        nonmembers: (n,), NaN where missing.
        clusters: (m,) and (n,) names of clusters, such as near-duplicates; None makes each value
            its own cluster.
        confidence_level: Of the interval.
        unit: Plural name of the items, for the description of the method.
    """
    samples = [np.asarray(sample, np.float64) for sample in (members, nonmembers)]
    is_known = [~np.isnan(sample) for sample in samples]
    known_samples = [sample[known] for sample, known in zip(samples, is_known, strict=True)]
    m, n = map(len, known_samples)
    known_rows = np.flatnonzero(np.concatenate(is_known)).tolist()
    names: Sequence[Any] = range(sum(map(len, samples)))
    if clusters is not None:
        names = [*clusters[0], *clusters[1]]
    cluster_codes = encode_names_as_integers(names[row] for row in known_rows)
    code_count = int(cluster_codes.max(initial=-1)) + 1
    estimate = Estimate(
        np.nan,
        np.nan,
        np.nan,
        m + n,
        code_count,
        len(names) - m - n,
        f"one of the two groups has no {unit}",
        0.5,
    )
    if not m or not n:
        return estimate
    placements = compute_roc_placement_values(*known_samples)
    value = float(placements.members.mean())
    estimate = replace(estimate, value=value)
    if len(np.unique(np.concatenate(known_samples))) == 1:
        return replace(estimate, p=1.0, method=f"no interval: all {unit} have the same value")
    sides = [
        _Side.from_placements(side_placements, codes, code_count)
        for side_placements, codes in zip(placements, np.split(cluster_codes, [m]), strict=True)
    ]
    unit_counts = [side.effective_count for side in sides]
    if min(unit_counts) < MIN_UNITS_PER_SIDE:
        reason = (
            f"no interval: fewer than {MIN_UNITS_PER_SIDE} independent {unit} in one of the two "
            "groups"
        )
        return replace(estimate, method=reason)
    estimate = replace(
        estimate,
        minimum_detectable_effect=detectable_auc_effect(*unit_counts, confidence_level),
    )
    counts_description = f"{m} and {n} {unit}"
    if sides[0].cluster_count + sides[1].cluster_count < m + n:
        counts_description += f" in {sides[0].cluster_count} and {sides[1].cluster_count} clusters"
    if value in (0, 1):
        pair_count = math.floor(min(unit_counts))
        win_count = int(value * pair_count)
        low, high = clopper_pearson_interval(win_count, pair_count, confidence_level)
        return replace(
            estimate,
            low=low,
            high=high,
            p=binomial_test_p(win_count, pair_count, 0.5),
            method=f"sign test and Clopper-Pearson interval based on {pair_count} pairs from "
            f"{counts_description}, because all values in one group are higher than all values in "
            "the other",
        )
    variances = [float((side.shifts**2).sum()) for side in sides]
    standard_error = float(((sides[0].shifts + sides[1].shifts) ** 2).sum()) ** 0.5
    degrees_of_freedom = sum(variances) ** 2 / sum(
        variance**2 / (count - 1) for variance, count in zip(variances, unit_counts, strict=True)
    )
    variance_factor = standard_error**2 / (value * (1 - value))
    robust_low, robust_high = wilson_interval(
        value / variance_factor, 1 / variance_factor, confidence_level, degrees_of_freedom
    )
    robust_p = score_test_p(value, 0.5, variance_factor, degrees_of_freedom)
    normal_low, normal_high, normal_p = _compute_normal_score_interval(
        value, sides[0].single_count, sides[1].single_count, confidence_level
    )
    return replace(
        estimate,
        low=min(robust_low, normal_low),
        high=max(robust_high, normal_high),
        p=max(robust_p, normal_p),
        method=f"Wilson interval with Brunner-Munzel's t, based on {counts_description}; at least "
        "as wide as the interval for normal distributions of equal variance",
    )


def _compute_normal_score_interval(
    value: float, member_count: float, nonmember_count: float, confidence_level: float
) -> tuple[float, float, float]:
    """Compute the score interval of an area between 0 and 1, and p, for normal values.

    It contains the areas whose own standard error times z is at least their distance from `value`.

    Returns:
        The ends of the interval, and the two-sided p of the area 1/2.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr, ndtri

    z = float(ndtri((1 + confidence_level) / 2))

    def compute_variance(area: float) -> float:
        return float(
            compute_normal_auc_variance(np.array([area]), member_count, nonmember_count)[0]
        )

    def compute_excess(area: float) -> float:
        return (value - area) ** 2 - z * z * compute_variance(area)

    return (
        float(brentq(compute_excess, 0.0, value)),
        float(brentq(compute_excess, value, 1.0)),
        float(2 * ndtr(-abs(value - 0.5) / compute_variance(0.5) ** 0.5)),
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
        np.nan,
        np.nan,
        np.nan,
        m,
        m,
        missing,
        f"one of the two groups has no {unit}",
        false_positive_rate,
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
            f"Wilson interval based on {m} {unit}, widened because the threshold is estimated from "
            f"{n} {unit} in the other group"
        ),
    )
