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
    "exact conditional interval for the ratio of two Poisson rates, with counts divided by the "
    "design effect of near-duplicate clusters (Rao & Scott 1992); p adjusted with Holm's method "
    "(1979)"
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
        stratified_low: Lower end of the 95 % interval of `stratified_ratio`.
        stratified_high: Upper end.
        stratified_p: Two-sided p for a stratified ratio of 1.
        design_effect: Factor by which clusters increase the variance of the group's rate; that of
            all items together if the group has no events.
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
    stratified_low: Float64
    stratified_high: Float64
    stratified_p: Float64
    design_effect: Float64

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
            with a high rate has a high ratio, but a ratio of 1 within sources. Its interval treats
            the weighted counts as scaled Poisson counts. With one stratum, ratio and interval equal
            the unstratified ones.
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
    group_events, group_items = group_rates.effective_events_and_items(design_effect)
    rest_events, rest_items = rest_rates.effective_events_and_items(design_effect)
    ratio_test = _conditional_ratio_interval_and_p(
        group_events, group_items, rest_events, rest_items
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
    stratified_test = _RatioTest(stratified_ratio, stratified_ratio, stratified_ratio)
    if stratum_ids is not None:
        stratified_ratio, stratified_test = _estimate_stratified_ratios(
            [_WeightedEvents.from_group(group, is_event, at_risk, stratum_ids) for group in groups],
            _divide_or_nan(group_rates.n, group_items),
            _divide_or_nan(rest_rates.n, rest_items),
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
        stratified_test.low,
        stratified_test.high,
        stratified_test.p,
        np.where(group_rates.events > 0, group_rates.design_effect, design_effect),
    )


def _sum_by_bin(bins: Int64, weights: Bool, min_bins: int = 0) -> Float64:
    return np.bincount(bins, weights, min_bins).astype(np.float64)


def _divide_or_nan(numerator: Float64, denominator: Float64) -> Float64:
    with np.errstate(divide="ignore", invalid="ignore"):
        return numerator / denominator


class _WeightedEvents(NamedTuple):
    """Both sides of the Mantel-Haenszel risk ratio: sums of events, weighted by stratum."""

    group_sum: float
    rest_sum: float
    group_weight: float
    """Mean weight of an event: the variance of the sum under a Poisson law, divided by the sum. If
    the group has no events, the value for those expected at the rates of the others. NaN if no
    stratum has items on both sides and events."""
    rest_weight: float

    @classmethod
    def from_group(
        cls, group: ClusteredGroup, is_event: Bool, at_risk: Bool, stratum_ids: Int64
    ) -> _WeightedEvents:
        """Sum up a_s m_s / N_s for the group and b_s n_s / N_s for all others.

        In stratum s, a_s of n_s group items and b_s of m_s others have an event, N_s = n_s + m_s.
        """
        stratum_events, stratum_n = (_sum_by_bin(stratum_ids, x) for x in (is_event, at_risk))
        events, n = (
            _sum_by_bin(stratum_ids[group.member_rows], x[group.member_rows], len(stratum_n))
            for x in (is_event, at_risk)
        )
        is_shared = (n > 0) & (stratum_n > n)
        events, n = events[is_shared], n[is_shared]
        rest_events = stratum_events[is_shared] - events
        rest_n = stratum_n[is_shared] - n
        sums_and_weights = []
        for counts, expected_counts, weights in (
            (events, rest_events * n / rest_n, rest_n / (n + rest_n)),
            (rest_events, events * rest_n / n, n / (n + rest_n)),
        ):
            weighted_sum = (counts * weights).sum()
            counts_or_expected = counts if weighted_sum > 0 else expected_counts
            mean_weight = _divide_or_nan(
                (counts_or_expected * weights**2).sum(), (counts_or_expected * weights).sum()
            )
            sums_and_weights.append((float(weighted_sum), float(mean_weight)))
        (group_sum, group_weight), (rest_sum, rest_weight) = sums_and_weights
        return cls(group_sum, rest_sum, group_weight, rest_weight)


def _estimate_stratified_ratios(
    weighted_events: Sequence[_WeightedEvents], group_dependence: Float64, rest_dependence: Float64
) -> tuple[Float64, _RatioTest]:
    """Return Mantel-Haenszel ratios with their intervals and p.

    Args:
        weighted_events: Weighted sums of each group and of all others.
        group_dependence: (groups,) number of events that count as one independent event.
        rest_dependence: The same for all others.
    """
    group_sums, rest_sums, group_weights, rest_weights = (
        np.array(weighted_events, np.float64).reshape(-1, 4).T
    )
    group_scale, rest_scale = group_weights * group_dependence, rest_weights * rest_dependence
    with np.errstate(divide="ignore", invalid="ignore"):
        test = _conditional_ratio_interval_and_p(
            group_sums / group_scale, 1 / group_scale, rest_sums / rest_scale, 1 / rest_scale
        )
    return _divide_or_nan(group_sums, rest_sums), test


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
