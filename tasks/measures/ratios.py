"""How much more often something happens to one group than to all others, over clusters.

Documents that are copies of each other share their fate: a cluster is the unit. Counts are divided
by their design effect (Rao & Scott 1992, "A simple method for the analysis of clustered binary
data", Biometrics 48): what is left are the independent documents that would tell as much. Interval
and p-value of the ratio are then the exact conditional ones of two Poisson rates (Przyborowski &
Wilenski 1940; limits of Clopper & Pearson 1934), which hold where a normal curve does not: with no
event at all, or a single one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.measures.corrections import holm

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

LEVEL, POWER = 0.95, 0.8

METHOD = (
    "counts divided by their design effect over clusters of near copies (Rao & Scott 1992), then "
    "the exact conditional interval of two Poisson rates; p corrected after Holm (1979)"
)


@dataclass(frozen=True)
class Group:
    """Some of n items, by their places, with the clusters that these are in."""

    members: Int64  # (m,)
    clusters: Int64  # (k,) distinct numbers of clusters
    place: Int64  # (m,) which of ``clusters`` each is in

    @classmethod
    def of(cls, members: Int64, cluster: Int64) -> Group:
        """cluster: (n,) numbers from 0."""
        clusters, place = np.unique(cluster[members], return_inverse=True)
        return cls(members, clusters, place)


@dataclass(frozen=True)
class Ratios:
    """For each group; rates are events by items at risk. Arrays (groups,)."""

    n: Int64
    events: Int64
    clusters: Int64  # with an item at risk
    other_n: Int64
    other_events: Int64
    ratio: Float64  # of the rates; NaN where nothing happens in either, inf where only here
    low: Float64
    high: Float64
    p: Float64
    within: Float64  # the ratio within strata (Mantel & Haenszel 1959); NaN without any
    least: Float64  # the smallest ratio above 1 that would have been found, in four of five times

    @property
    def corrected(self) -> Float64:
        """p-values corrected for all groups together."""
        return np.array(holm(self.p.tolist()), np.float64)


@dataclass(frozen=True)
class _Side:
    """Items at risk and events of each group, what they weigh, and the variance of their rate."""

    n: Float64
    events: Float64
    clusters: Float64
    squares: Float64  # sum over clusters of (events - rate * n)^2

    @property
    def rate(self) -> Float64:
        return _over(self.events, self.n)

    @property
    def simple(self) -> Float64:
        """Variance of the rate, were all items independent."""
        return self._binomial(self.n)

    @property
    def variance(self) -> Float64:
        """No smaller than were all items independent: an estimate from few clusters may be. Where
        nothing differs between clusters, at a rate of 1 or in a single one, a cluster is an item.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = self.squares / self.n**2 * self.clusters / (self.clusters - 1)
        alike = (self.clusters < 2) | (self.events >= self.n)
        return np.where(alike, self._binomial(self.clusters), np.fmax(spread, self.simple))

    def _binomial(self, items: Float64) -> Float64:
        """Variance of a rate over independent items. Near a rate of 1 its square root is no less
        than the interval of Clopper & Pearson for all of ``items`` asks for: 1 - 0.025^(1 / items)
        is about 3.7 / items."""
        rest = np.fmax(1 - self.rate, 4 / (items + 4))
        return _over(self.rate * rest, items)

    def effective(self, design: float) -> tuple[Float64, Float64]:
        """Events and items of a Poisson rate with this variance. Without an event nothing is known
        of it: there the design effect of all items together stands in."""
        some = self.events > 0
        items = np.where(some, _over(self.rate, self.variance), self.n / design)
        return np.where(some, items * self.rate, 0.0), items

    @property
    def design(self) -> Float64:
        return np.fmax(1.0, _over(self.variance, self.simple))


def rate_ratios(
    groups: Sequence[Group], hit: Bool, risk: Bool, cluster: Int64, stratum: Int64 | None = None
) -> Ratios:
    """Each group against all other items at risk.

    hit, risk: (n,), an event counts at risk only; cluster, stratum: (n,) numbers from 0. Strata
    decide ``within`` alone: a group that is much in the one source of which much is taken has a
    high ratio, and one of 1 within sources.
    """
    hit = hit & risk
    of_all = (_binned(cluster, hit), _binned(cluster, risk))
    whole = _side(*of_all)
    own: list[Float64] = []
    rest: list[Float64] = []
    for group in groups:
        k = len(group.clusters)
        inside = (
            _binned(group.place, hit[group.members], k),
            _binned(group.place, risk[group.members], k),
        )
        own.append(_sums(*inside))
        there = (of_all[0][group.clusters], of_all[1][group.clusters])
        # All others: every cluster, less those with a member, plus what these hold beside it.
        outside = (there[0] - inside[0], there[1] - inside[1])
        rest.append(_sums(*of_all) - _sums(*there) + _sums(*outside))
    a, b = _from_sums(own), _from_sums(rest)
    design = float(whole.design[0])
    low, high, p = _conditional(*a.effective(design), *b.effective(design))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = a.rate / b.rate
    expected = a.n / np.where(a.events > 0, a.design, design) * b.rate
    least = _least(expected, b.events / b.design, b.rate)
    within = np.full(len(groups), np.nan)
    if stratum is not None:
        strata = (_binned(stratum, hit), _binned(stratum, risk))
        within = np.array([_within(g, hit, risk, stratum, *strata) for g in groups], np.float64)
    return Ratios(_whole(a.n), _whole(a.events), _whole(a.clusters), _whole(b.n), _whole(b.events),
                  ratio, low, high, p, within, least)  # fmt: skip


def _binned(place: Int64, weights: Bool, least: int = 0) -> Float64:
    return np.bincount(place, weights, least).astype(np.float64)


def _over(above: Float64, below: Float64) -> Float64:
    with np.errstate(divide="ignore", invalid="ignore"):
        return above / below


def _within(
    group: Group, hit: Bool, risk: Bool, stratum: Int64, events: Float64, n: Float64
) -> float:
    """The ratio of Mantel & Haenszel, for cohorts: sum of a_s m_s / N_s by sum of b_s n_s / N_s."""
    members, k = group.members, len(n)
    own, own_n = (_binned(stratum[members], x[members], k) for x in (hit, risk))
    some = n > 0
    above = (own * (n - own_n))[some] / n[some]
    below = ((events - own) * own_n)[some] / n[some]
    return float(above.sum() / below.sum()) if below.sum() > 0 else float("nan")


def _whole(values: Float64) -> Int64:
    return np.rint(values).astype(np.int64)


def _sums(events: Float64, n: Float64) -> Float64:
    """What rate and variance are computed from: (6,)."""
    return np.array([events.sum(), n.sum(), (n > 0).sum(), (events**2).sum(), (events * n).sum(),
                     (n**2).sum()], np.float64)  # fmt: skip


def _from_sums(sums: Iterable[Float64]) -> _Side:
    events, n, clusters, ee, en, nn = np.array(list(sums), np.float64).reshape(-1, 6).T
    rate = _over(events, n)
    return _Side(n, events, clusters, np.maximum(ee - 2 * rate * en + rate**2 * nn, 0))


def _side(events: Float64, n: Float64) -> _Side:
    return _from_sums([_sums(events, n)])


def _conditional(
    x: Float64, x_items: Float64, y: Float64, y_items: Float64
) -> tuple[Float64, Float64, Float64]:
    """Interval of the ratio of two Poisson rates, and p that it is 1: given x + y events, x is
    binomial. Counts need not be whole numbers."""
    from scipy.special import betainc, betaincinv

    tail = (1 - LEVEL) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        none = (x + y <= 0) | ~(x_items > 0) | ~(y_items > 0)
        share = x_items / (x_items + y_items)
        low = np.where(x > 0, betaincinv(np.fmax(x, 1e-300), y + 1, tail), 0.0)
        high = np.where(y > 0, betaincinv(x + 1, np.fmax(y, 1e-300), 1 - tail), 1.0)
        scale = y_items / x_items
        upper = np.where(x > 0, betainc(np.fmax(x, 1e-300), y + 1, share), 1.0)
        lower = np.where(y > 0, 1 - betainc(x + 1, np.fmax(y, 1e-300), share), 1.0)
        p = np.fmin(1.0, 2 * np.fmin(upper, lower))
        ends = [low / (1 - low) * scale, np.where(high < 1, high / (1 - high), np.inf) * scale]
    return tuple(np.where(none, np.nan, v) for v in (*ends, p))  # type: ignore[return-value]


def _least(expected: Float64, others: Float64, rate: Float64) -> Float64:
    """The smallest ratio r above 1 with log r >= (z_0.975 + z_0.8) sqrt(1 / (r E) + 1 / O), with E
    events expected here were the ratio 1, and O events elsewhere. NaN where not even all of the
    group, a rate of 1, would have been enough."""
    from scipy.special import ndtri

    z = float(ndtri((1 + LEVEL) / 2) + ndtri(POWER))
    with np.errstate(divide="ignore", invalid="ignore"):
        most = -np.log(rate)
        low, high = np.zeros_like(expected), np.where(np.isfinite(most), most, 0.0)

        def lacks(log_ratio: Float64) -> Bool:
            error = np.sqrt(1 / (np.exp(log_ratio) * expected) + 1 / others)
            return ~(log_ratio >= z * error)

        found = ~lacks(high) & np.isfinite(most)
        for _ in range(60):
            middle = (low + high) / 2
            short = lacks(middle)
            low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.where(found, np.exp(high), np.nan)
