"""Estimate how much more often an event happens to one group than to all others.

Near-duplicate documents share their fate, so their cluster is the independent unit. Counts are
divided by the design effect (Rao & Scott 1992, "A simple method for the analysis of clustered
binary data", Biometrics 48), which gives the effective number of independent documents. Interval
and p of the ratio are then the exact conditional ones of two Poisson rates (Przyborowski & Wilenski
1940; limits of Clopper & Pearson 1934), which are valid even for no or one event, unlike a normal
approximation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hallmark.tasks.measures.multiple_testing import adjust_p_values_holm

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

LEVEL, POWER = 0.95, 0.8

RATIO_METHOD = (
    "exact conditional interval of the ratio of two Poisson rates, with counts divided by "
    "the design effect of near-duplicate clusters (Rao & Scott 1992); p adjusted by Holm's "
    "method (1979)"
)


@dataclass(frozen=True)
class ClusteredGroup:
    """A group of items, given by their row numbers, with their clusters.

    Attributes:
        member_rows: (m,) rows of the members among all n items.
        cluster_ids: (k,) distinct ids of their clusters.
        member_clusters: (m,) index into `cluster_ids` for each member.
    """

    member_rows: Int64
    cluster_ids: Int64
    member_clusters: Int64

    @classmethod
    def from_members(cls, member_rows: Int64, cluster_ids: Int64) -> ClusteredGroup:
        """Create a group from its member rows and the cluster ids of all items, (n,) from 0."""
        group_cluster_ids, member_clusters = np.unique(
            cluster_ids[member_rows], return_inverse=True
        )
        return cls(member_rows, group_cluster_ids, member_clusters)


@dataclass(frozen=True)
class RateRatios:
    """Ratio of each group's event rate to that of all others; arrays (groups,).

    Attributes:
        n: Items at risk in the group.
        events: Events in the group.
        clusters: Clusters with an item of the group at risk.
        other_n: Items at risk outside the group.
        other_events: Events outside the group.
        ratio: Ratio of rates; NaN if there are no events, infinite if there are none outside.
        low: Lower end of the 95 % interval.
        high: Upper end.
        p: Two-sided p for a ratio of 1.
        stratified_ratio: Ratio within strata (Mantel & Haenszel 1959); NaN without strata.
        minimum_detectable_ratio: Smallest ratio above 1 that would be found with power 0.8.
    """

    n: Int64
    events: Int64
    clusters: Int64
    other_n: Int64
    other_events: Int64
    ratio: Float64
    low: Float64
    high: Float64
    p: Float64
    stratified_ratio: Float64
    minimum_detectable_ratio: Float64

    @property
    def adjusted_p(self) -> Float64:
        """p-values adjusted for the number of groups (Holm 1979)."""
        return np.array(adjust_p_values_holm(self.p.tolist()), np.float64)


@dataclass(frozen=True)
class _GroupRates:
    """Items at risk, events and clusters of each group, which give the rate and its variance."""

    n: Float64
    events: Float64
    clusters: Float64
    residual_squares: Float64  # sum over clusters of (events - rate * n)^2

    @property
    def rate(self) -> Float64:
        return _divide_or_nan(self.events, self.n)

    @property
    def independent_variance(self) -> Float64:
        """Variance of the rate if all items were independent."""
        return self._binomial_variance(self.n)

    @property
    def clustered_variance(self) -> Float64:
        """Variance of the rate over clusters, but at least that of independent items.

        An estimate from few clusters can be too small. If clusters do not differ (a rate of 1, or a
        single cluster), each cluster counts as one item.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            between_variance = (
                self.residual_squares / self.n**2 * self.clusters / (self.clusters - 1)
            )
        is_uniform = (self.clusters < 2) | (self.events >= self.n)
        return np.where(
            is_uniform,
            self._binomial_variance(self.clusters),
            np.fmax(between_variance, self.independent_variance),
        )

    def _binomial_variance(self, item_count: Float64) -> Float64:
        """Return the variance of a rate over independent items.

        Near a rate of 1, its square root is at least what the Clopper-Pearson interval requires if
        all items have an event: 1 - 0.025^(1 / items) is about 3.7 / items.
        """
        complement = np.fmax(1 - self.rate, 4 / (item_count + 4))
        return _divide_or_nan(self.rate * complement, item_count)

    def effective_events_and_items(self, fallback_design_effect: float) -> tuple[Float64, Float64]:
        """Return events and items of a Poisson rate with this variance.

        Without events the variance is unknown, so the design effect of all items together is used.
        """
        has_events = self.events > 0
        effective_items = np.where(
            has_events,
            _divide_or_nan(self.rate, self.clustered_variance),
            self.n / fallback_design_effect,
        )
        return np.where(has_events, effective_items * self.rate, 0.0), effective_items

    @property
    def design_effect(self) -> Float64:
        return np.fmax(1.0, _divide_or_nan(self.clustered_variance, self.independent_variance))


def estimate_rate_ratios(
    groups: Sequence[ClusteredGroup],
    is_event: Bool,
    at_risk: Bool,
    cluster_ids: Int64,
    stratum_ids: Int64 | None = None,
) -> RateRatios:
    """Compare each group with all other items at risk.

    Args:
        groups: The groups, which may overlap.
        is_event: (n,) whether an event happened; it counts only for items at risk.
        at_risk: (n,) whether an item is at risk.
        cluster_ids: (n,) from 0.
        stratum_ids: (n,) from 0, for the stratified ratio only. A group concentrated in a source
            with a high rate has a high ratio, but a ratio of 1 within sources.
    """
    is_event = is_event & at_risk
    all_counts = (_sum_by_bin(cluster_ids, is_event), _sum_by_bin(cluster_ids, at_risk))
    overall_rates = _compute_rates_from_sums([_sum_sufficient_statistics(*all_counts)])
    group_sums: list[Float64] = []
    rest_sums: list[Float64] = []
    for group in groups:
        cluster_count = len(group.cluster_ids)
        group_counts = (
            _sum_by_bin(group.member_clusters, is_event[group.member_rows], cluster_count),
            _sum_by_bin(group.member_clusters, at_risk[group.member_rows], cluster_count),
        )
        group_sums.append(_sum_sufficient_statistics(*group_counts))
        shared_counts = (all_counts[0][group.cluster_ids], all_counts[1][group.cluster_ids])
        # All others: all clusters, minus those with a member, plus the other items of these.
        rest_counts = (shared_counts[0] - group_counts[0], shared_counts[1] - group_counts[1])
        rest_sums.append(
            _sum_sufficient_statistics(*all_counts)
            - _sum_sufficient_statistics(*shared_counts)
            + _sum_sufficient_statistics(*rest_counts)
        )
    group_rates = _compute_rates_from_sums(group_sums)
    rest_rates = _compute_rates_from_sums(rest_sums)
    design_effect = float(overall_rates.design_effect[0])
    ratio_test = _conditional_ratio_interval_and_p(
        *group_rates.effective_events_and_items(design_effect),
        *rest_rates.effective_events_and_items(design_effect),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = group_rates.rate / rest_rates.rate
    expected_events = (
        group_rates.n
        / np.where(group_rates.events > 0, group_rates.design_effect, design_effect)
        * rest_rates.rate
    )
    detectable_ratio = _detectable_ratio(
        expected_events, rest_rates.events / rest_rates.design_effect, rest_rates.rate
    )
    stratified_ratio = np.full(len(groups), np.nan)
    if stratum_ids is not None:
        stratum_counts = (_sum_by_bin(stratum_ids, is_event), _sum_by_bin(stratum_ids, at_risk))
        stratified_ratio = np.array(
            [
                _mantel_haenszel_ratio(g, is_event, at_risk, stratum_ids, *stratum_counts)
                for g in groups
            ],
            np.float64,
        )
    return RateRatios(
        _round_to_int(group_rates.n),
        _round_to_int(group_rates.events),
        _round_to_int(group_rates.clusters),
        _round_to_int(rest_rates.n),
        _round_to_int(rest_rates.events),
        ratio,
        ratio_test.low,
        ratio_test.high,
        ratio_test.p,
        stratified_ratio,
        detectable_ratio,
    )


def _sum_by_bin(bins: Int64, weights: Bool, min_bins: int = 0) -> Float64:
    return np.bincount(bins, weights, min_bins).astype(np.float64)


def _divide_or_nan(numerator: Float64, denominator: Float64) -> Float64:
    with np.errstate(divide="ignore", invalid="ignore"):
        return numerator / denominator


def _mantel_haenszel_ratio(
    group: ClusteredGroup,
    is_event: Bool,
    at_risk: Bool,
    stratum_ids: Int64,
    stratum_events: Float64,
    stratum_n: Float64,
) -> float:
    """Compute the Mantel-Haenszel risk ratio: sum of a_s m_s / N_s by sum of b_s n_s / N_s.

    In stratum s, a_s of n_s group items and b_s of m_s others have an event, N_s = n_s + m_s.
    """
    members, stratum_count = group.member_rows, len(stratum_n)
    group_events, group_n = (
        _sum_by_bin(stratum_ids[members], x[members], stratum_count) for x in (is_event, at_risk)
    )
    is_nonempty = stratum_n > 0
    numerator_terms = (group_events * (stratum_n - group_n))[is_nonempty] / stratum_n[is_nonempty]
    denominator_terms = ((stratum_events - group_events) * group_n)[is_nonempty] / stratum_n[
        is_nonempty
    ]
    return (
        float(numerator_terms.sum() / denominator_terms.sum())
        if denominator_terms.sum() > 0
        else float("nan")
    )


def _round_to_int(values: Float64) -> Int64:
    return np.rint(values).astype(np.int64)


def _sum_sufficient_statistics(cluster_events: Float64, cluster_n: Float64) -> Float64:
    """Sum up what `_compute_rates_from_sums` needs, (6,)."""
    return np.array(
        [
            cluster_events.sum(),
            cluster_n.sum(),
            (cluster_n > 0).sum(),
            (cluster_events**2).sum(),
            (cluster_events * cluster_n).sum(),
            (cluster_n**2).sum(),
        ],
        np.float64,
    )


def _compute_rates_from_sums(sums: Iterable[Float64]) -> _GroupRates:
    events, n, clusters, ee, en, nn = np.array(list(sums), np.float64).reshape(-1, 6).T
    rate = _divide_or_nan(events, n)
    return _GroupRates(n, events, clusters, np.maximum(ee - 2 * rate * en + rate**2 * nn, 0))


class _RatioTest(NamedTuple):
    """Interval and test of the ratio of two rates, for each group; (groups,) each."""

    low: Float64
    high: Float64
    p: Float64
    """Two-sided p for a ratio of 1."""


def _conditional_ratio_interval_and_p(
    group_events: Float64, group_items: Float64, rest_events: Float64, rest_items: Float64
) -> _RatioTest:
    """Compute interval and p of the ratio of two Poisson rates; counts may be fractional.

    Given x + y events, x is binomial. NaN if there are no events or no items on one side.
    """
    from scipy.special import betainc, betaincinv

    tail = (1 - LEVEL) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        is_undefined = (group_events + rest_events <= 0) | ~(group_items > 0) | ~(rest_items > 0)
        null_share = group_items / (group_items + rest_items)
        low = np.where(
            group_events > 0, betaincinv(np.fmax(group_events, 1e-300), rest_events + 1, tail), 0.0
        )
        high = np.where(
            rest_events > 0,
            betaincinv(group_events + 1, np.fmax(rest_events, 1e-300), 1 - tail),
            1.0,
        )
        scale = rest_items / group_items
        upper_p = np.where(
            group_events > 0,
            betainc(np.fmax(group_events, 1e-300), rest_events + 1, null_share),
            1.0,
        )
        lower_p = np.where(
            rest_events > 0,
            1 - betainc(group_events + 1, np.fmax(rest_events, 1e-300), null_share),
            1.0,
        )
        p = np.fmin(1.0, 2 * np.fmin(upper_p, lower_p))
        ends = [low / (1 - low) * scale, np.where(high < 1, high / (1 - high), np.inf) * scale]
    return _RatioTest(*(np.where(is_undefined, np.nan, values) for values in (*ends, p)))


def _detectable_ratio(
    expected_events: Float64, rest_events: Float64, rest_rate: Float64
) -> Float64:
    """Compute the minimum detectable ratio above 1.

    It is the smallest r with log r >= (z_0.975 + z_0.8) sqrt(1 / (r E) + 1 / O), with E expected
    events in the group for a ratio of 1, and O events outside. NaN if even a rate of 1 would not
    suffice.
    """
    from scipy.special import ndtri

    z = float(ndtri((1 + LEVEL) / 2) + ndtri(POWER))
    with np.errstate(divide="ignore", invalid="ignore"):
        max_log_ratio = -np.log(rest_rate)
        low, high = (
            np.zeros_like(expected_events),
            np.where(np.isfinite(max_log_ratio), max_log_ratio, 0.0),
        )

        def is_too_small(log_ratio: Float64) -> Bool:
            standard_error = np.sqrt(1 / (np.exp(log_ratio) * expected_events) + 1 / rest_events)
            return ~(log_ratio >= z * standard_error)

        is_detectable = ~is_too_small(high) & np.isfinite(max_log_ratio)
        for _ in range(60):
            midpoint = (low + high) / 2
            is_short = is_too_small(midpoint)
            low, high = np.where(is_short, midpoint, low), np.where(is_short, high, midpoint)
    return np.where(is_detectable, np.exp(high), np.nan)
