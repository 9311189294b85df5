"""Estimates: a mean or a share of items that share things, with all that a finding says of it.

One rule for few clusters and many. How far off a mean may be is a jackknife of its clusters, with
Student's t of as many as would err alike if all had one weight. The interval of a share is Wilson's
of as many independent units as would err so, and its p that of the same score; of few units of yes
or no both are exact. Of a mean with a null, interval and p are those of t; without one it is more
often skewed, and the interval is drawn where it is not. The smallest effect that the same items
would show is that of the null: an effect by chance would make itself smaller. Of a share only how
much clusters hold alike is taken from the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tasks.measures.effects import area_effect, binomial_effect, reach, share_effect
from tasks.measures.shares import binomial_p, clopper_pearson, score_p
from tasks.measures.statistics import Float64, by_cluster, wilson

#: Up to so many units of yes or no, each its own cluster: an exact interval.
EXACT = 40

#: From so many degrees of freedom on it is told how skewed a mean is.
SKEWED = 10


@dataclass(frozen=True)
class Estimate:
    """n counts the values, ``missing`` those that were not there (NaN). low and high are NaN where
    nothing shows how far off the value may be; p and smallest are NaN without a null. smallest is
    the distance from the null that a two-sided test at 1 - level finds with power 0.8."""

    value: float
    low: float
    high: float
    n: int
    clusters: int
    missing: int
    method: str
    null: float = np.nan
    p: float = np.nan
    smallest: float = np.nan


def estimate(
    values: ArrayLike,
    clusters: Sequence[Any] | None = None,
    *,
    share: bool = False,
    null: float = np.nan,
    level: float = 0.95,
    unit: str = "items",
    crossed: Sequence[Any] | None = None,
    weights: ArrayLike | None = None,
) -> Estimate:
    """The mean of values; ``share``: of values from 0 to 1. ``unit`` names what a cluster is.
    ``crossed``: clusters of another kind, where items share two things. ``weights``: of values that
    are no share; the mean is then a ratio of two sums, as bits per byte over documents, and an item
    of twice the weight as a cluster of twice the items."""
    array = np.asarray(values, dtype=np.float64)
    there = ~np.isnan(array)
    known, n = array[there], int(there.sum())
    if not n:
        return Estimate(np.nan, np.nan, np.nan, 0, 0, len(array), f"no {unit} to measure", null)
    weigh = np.ones(len(array)) if weights is None else np.asarray(weights, dtype=np.float64)
    weigh = weigh / weigh[there].mean()
    ways = [by_cluster(array, clusters, weigh)]
    groups = len(ways[0][0])
    value = float(np.average(known, weights=weigh[there]))
    made = Estimate(value, np.nan, np.nan, n, groups, len(array) - n, "", null)
    if groups == 1:
        return replace(made, method=f"no interval: a single one of {unit} tells no spread")
    over = f"over {groups} {unit}"
    if crossed is not None and clusters is not None:
        other = by_cluster(array, crossed, weigh)
        if len(other[0]) > 1:
            ways += [other, by_cluster(array, [*zip(clusters, crossed, strict=True)], weigh)]
            over = f"over two-way clusters: {groups} {unit}, and {len(other[0])} more"
            made = replace(made, clusters=min(groups, len(other[0])))
    spread = float(np.average((known - value) ** 2, weights=weigh[there]))
    variance, alike = _two_way(
        [_jackknifed(*way, value) for way in ways], [_alike(*way, value, spread) for way in ways]
    )
    freedom, error = max(1, round(alike - 1)), variance**0.5
    if freedom + 1 < made.clusters:
        over += f", which weigh as {freedom + 1}"
    if share:
        return _share(made, error, freedom, over, known, level)
    if error < 1e-12 * max(1.0, abs(value)):
        return _agreeing(made, unit)
    half, p = student(error, freedom, value - null, level)
    low, high, how = value - half, value + half, "Student's t"
    if np.isnan(null) and len(ways) == 1 and freedom >= SKEWED:
        low, high = _unskewed(*ways[0], value, error, half / error)
        how = "Student's t, skewness taken out,"
    signs = [float(((sums - null * counts) ** 2).sum()) / n**2 for sums, counts in ways]
    expected = _two_way(signs, [1.0] * len(ways))[0] ** 0.5
    return replace(made, low=low, high=high, p=p, method=f"{how} {over}",
                   smallest=float(reach(freedom, level, freedom + 1) * expected))  # fmt: skip


def _agreeing(made: Estimate, unit: str) -> Estimate:
    """``made`` of clusters that are all alike: no spread is known, and p is that of as many signs
    that agree."""
    apart = abs(made.value - made.null)
    p = np.nan if np.isnan(apart) else min(1.0, 2.0 ** (1 - made.clusters)) if apart else 1.0
    said = f"; p of {made.clusters} {unit} on one side" if apart > 0 else ""
    return replace(made, p=p, method=f"no interval: all have the same value{said}")


def scaled(found: Estimate, by: float) -> Estimate:
    """The same in a unit ``by`` times as small."""
    return replace(found, value=found.value * by, low=found.low * by, high=found.high * by,
                   null=found.null * by, smallest=found.smallest * by)  # fmt: skip


def _share(
    made: Estimate, error: float, freedom: int, over: str, known: Float64, level: float
) -> Estimate:
    """``made``, with the interval, p and smallest effect of a share."""
    value, null, groups = made.value, made.null, made.clusters
    if groups == made.n < EXACT and bool(np.isin(known, (0, 1)).all()):
        low, high = clopper_pearson(known.sum(), groups, level)
        return replace(made, low=low, high=high, p=binomial_p(int(known.sum()), groups, null),
                       smallest=binomial_effect(groups, null, level),
                       method=f"Clopper-Pearson interval {over}")  # fmt: skip
    if error < 1e-12:  # clusters agree: each counts once
        # So many may do otherwise, and then be 0 or 1; at 0 and 1 it is Clopper and Pearson's.
        others = clopper_pearson(0, groups, level)[1]
        low, high = value * (1 - others), value + (1 - value) * others
        if np.isnan(null):
            p = np.nan
        elif value in (0, 1):
            p = binomial_p(int(value * groups), groups, null)
        else:  # of those who would do otherwise the fewest that put the mean at the null
            alike = null / value if null < value else (1 - null) / (1 - value)
            p = min(1.0, 2 * alike**groups)
        return replace(made, low=low, high=high, p=p,
                       smallest=share_effect(1 / groups, freedom, null, level),
                       method=f"interval of clusters that agree, each once, {over}")  # fmt: skip
    each = error**2 / (value * (1 - value))
    low, high = wilson(value / each, 1 / each, level, freedom)
    return replace(made, low=low, high=high, p=score_p(value, null, each, freedom),
                   smallest=share_effect(each, freedom, null, level),
                   method=f"Wilson's interval with Student's t {over}")  # fmt: skip


def _jackknifed(sums: Float64, counts: Float64, mean: float) -> float:
    """The variance of the mean: each cluster left out (CR3; MacKinnon, Nielsen & Webb 2023)."""
    without = (sums.sum() - sums) / (counts.sum() - counts)
    return float(((without - mean) ** 2).sum()) * (len(sums) - 1) / len(sums)


def _two_way(variances: Sequence[float], alike: Sequence[float]) -> tuple[float, float]:
    """The variance of a mean by its clusters, and how many would know it as well (see ``_alike``).

    By two-way clusters that of either less that of both together (Cameron, Gelbach & Miller 2011),
    but at least as if items shared nothing but both: that is known as well as so many more clusters
    know it, and an interval by the few would be too wide.
    """
    if len(variances) == 1:
        return variances[0], alike[0]
    first, second, both = variances
    if first + second - both > both:
        return first + second - both, min(alike[:2])
    return both, alike[2]


def _alike(sums: Float64, counts: Float64, mean: float, spread: float) -> float:
    """How many clusters of one weight would know the variance of their mean as well as these
    (Satterthwaite 1946): as many as there are where sizes are alike, fewer where some are large and
    hold alike. How much a cluster's values share is told from themselves (Imbens & Kolesár 2016);
    ``spread``: the variance of a value."""
    n = counts.sum()
    pairs = float((counts**2).sum() - n)
    shared = 0.0
    if pairs and spread:
        between = float(((sums - mean * counts) ** 2).sum()) / spread
        shared = min(1.0, max(0.0, (between - n) / pairs))
    variance = counts * (1 + (counts - 1) * shared)
    return float(variance.sum() ** 2 / (variance**2).sum())


def _unskewed(
    sums: Float64, counts: Float64, mean: float, error: float, bound: float
) -> tuple[float, float]:
    """The interval of a skewed mean whose t, with its skewness taken out, is within the bound:
    Hall's transformation (1992, equation 2)."""
    off = sums - mean * counts
    a = float((off**3).sum() / (off**2).sum() ** 1.5)
    if abs(a) < 1e-9:
        return mean - bound * error, mean + bound * error
    high, low = (3 / a * (np.cbrt(1 + a * (t - a / 6)) - 1) for t in (bound, -bound))
    return float(mean - high * error), float(mean - low * error)


def student(error: float, freedom: float, distance: float, level: float) -> tuple[float, float]:
    """Half the width of the interval, and the two-sided p of a distance from the null."""
    from scipy.special import stdtr, stdtrit

    half = float(stdtrit(freedom, (1 + level) / 2)) * error
    return half, float(2 * stdtr(freedom, -abs(distance) / error))


def difference(
    left: ArrayLike,
    right: ArrayLike,
    *,
    spread: float = np.nan,
    level: float = 0.95,
    unit: str = "items",
) -> Estimate:
    """mean(left) - mean(right) of two groups that share nothing (Welch 1947). ``spread``: the
    variance of an item where there is nothing to find, if that is known."""
    sides = [np.asarray(side, dtype=np.float64) for side in (left, right)]
    known = [side[~np.isnan(side)] for side in sides]
    sizes = [len(side) for side in known]
    n = sum(sizes)
    made = Estimate(np.nan, np.nan, np.nan, n, n, sum(map(len, sides)) - n, "", 0.0)
    if min(sizes) == 0:
        return replace(made, method=f"no {unit} in one of the groups")
    made = replace(made, value=float(known[0].mean() - known[1].mean()))
    if min(sizes) == 1:
        return replace(made, method=f"no interval: a single one of {unit} tells no spread")
    parts = [float(side.var(ddof=1)) / len(side) for side in known]
    error, expected = sum(parts) ** 0.5, sum(spread / size for size in sizes) ** 0.5
    made = replace(made, smallest=float(reach(n - 2, level) * expected))
    if error < 1e-12 * max(1.0, abs(made.value)):
        # As often as labels drawn by lot part them like that.
        p = min(1.0, 2 / comb(n, sizes[0])) if abs(made.value) > 0 else 1.0
        return replace(made, p=p, method=f"no interval: all {unit} of a group have the same value; "
                                         f"p of their labels drawn by lot")  # fmt: skip
    freedom = error**4 / sum(p * p / (size - 1) for p, size in zip(parts, sizes, strict=True))
    if np.isnan(spread):
        whole = max(1, round(freedom))
        made = replace(made, smallest=float(reach(whole, level, whole) * error))
    half, p = student(error, freedom, made.value, level)
    return replace(made, low=made.value - half, high=made.value + half, p=p,
                   method=f"Welch's t over {sizes[0]} and {sizes[1]} {unit}")  # fmt: skip


def slope(
    values: ArrayLike,
    over: ArrayLike,
    clusters: Sequence[Any] | None = None,
    *,
    level: float = 0.95,
    unit: str = "items",
) -> Estimate:
    """By how much values change for each 1 of ``over``: least squares, null 0, over those of which
    both are known. The interval is Student's t over a jackknife of clusters (CR3; MacKinnon,
    Nielsen & Webb 2023): of few clusters of unlike weight the usual one is too narrow."""
    y, x = (np.asarray(each, dtype=np.float64) for each in (values, over))
    known = ~np.isnan(y) & ~np.isnan(x)
    names = np.arange(len(y)) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    y, x, names = y[known], x[known], np.unique(names[known], return_inverse=True)[1]
    groups = int(names.max()) + 1 if len(y) else 0
    missing = int((~known).sum())
    made = Estimate(np.nan, np.nan, np.nan, len(y), groups, missing, f"no {unit} to measure", 0.0)
    if len(np.unique(x)) < 2:
        return replace(made, method="not measured: of a single value nothing changes")
    y, x = y - y.mean(), x - x.mean()
    parts = [np.bincount(names, weights=w, minlength=groups)
             for w in (np.ones_like(x), x, y, x * x, x * y)]  # fmt: skip

    def of(n: Any, sx: Any, sy: Any, sxx: Any, sxy: Any) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):
            return (n * sxy - sx * sy) / (n * sxx - sx * sx)

    made = replace(made, value=float(of(*(part.sum() for part in parts))))
    without = of(*(part.sum() - part for part in parts))  # each cluster left out, (groups,)
    if groups < 3 or not np.isfinite(without).all():
        return replace(made, method=f"no interval: too few {unit}")
    error = float(np.sqrt((groups - 1) / groups * ((without - made.value) ** 2).sum()))
    if error < 1e-12 * max(1.0, abs(made.value)):
        return replace(made, method="no interval: all lie on a line")
    half, p = student(error, groups - 1, made.value, level)
    how = f"least squares; Student's t over a jackknife of {groups} {unit}"
    return replace(made, low=made.value - half, high=made.value + half, p=p, method=how)


def placements(members: ArrayLike, others: ArrayLike) -> tuple[Float64, Float64]:
    """Of each of ``members`` the share of ``others`` that is below it, (m,), and of each of these
    the share of members that is above it, (n,); ties by half. The mean of either is the area under
    the ROC curve."""
    from scipy.stats import rankdata

    sides = [np.asarray(side, np.float64) for side in (members, others)]
    whole, m = rankdata(np.concatenate(sides)), len(sides[0])
    below = (whole[:m] - rankdata(sides[0])) / len(sides[1])
    return below, 1 - (whole[m:] - rankdata(sides[1])) / m


def auc(
    members: ArrayLike, others: ArrayLike, *, level: float = 0.95, unit: str = "items"
) -> Estimate:
    """The probability that one of ``members`` is above one of ``others``, ties by half (the area
    under the ROC curve), null 1/2. The interval is DeLong's (1988), drawn on the logit; p is that
    of ranks without any difference (Mann & Whitney 1947)."""
    from scipy.special import expit, logit, ndtr, ndtri

    sides = [np.asarray(side, np.float64) for side in (members, others)]
    known = [side[~np.isnan(side)] for side in sides]
    m, n = map(len, known)
    missing = sum(map(len, sides)) - m - n
    made = Estimate(np.nan, np.nan, np.nan, m + n, m + n, missing, f"no {unit} of one kind", 0.5)
    if not m or not n:
        return made
    below, above = placements(*known)
    value = float(below.mean())
    _, tied = np.unique(np.concatenate(known), return_counts=True)
    ties = float((tied**3 - tied).sum()) / ((m + n) * (m + n - 1))
    chance = (m + n + 1 - ties) / (12 * m * n)
    if chance < 1e-12:
        return replace(made, value=value, p=1.0, method=f"no interval: all {unit} are alike")
    reach = float(ndtri((1 + level) / 2))
    made = replace(made, value=value, smallest=area_effect(m, n, reach * chance**0.5),
                   p=float(2 * ndtr(-abs(value - 0.5) / chance**0.5)))  # fmt: skip
    spread = [float(side.var(ddof=1)) / len(side) for side in (below, above) if len(side) > 1]
    if len(spread) < 2 or value in (0, 1):  # of one side, or without any
        return replace(made, method=f"no interval: too few {unit}, or all of one kind above")
    error = sum(spread) ** 0.5 / (value * (1 - value))
    low, high = expit(logit(value) + np.array([-reach, reach]) * error)
    return replace(made, low=float(low), high=float(high),
                   method=f"DeLong's interval over {m} and {n} {unit}")  # fmt: skip


def true_positives(
    members: ArrayLike, others: ArrayLike, alarm: float, *, level: float = 0.95, unit: str = "items"
) -> Estimate:
    """The share of members above the score that a share ``alarm`` of the others exceeds. The
    interval is Wilson's, of fewer members: that score is an estimate, too, and were it off by the
    standard error of its share of others, so many more or fewer members would be above it."""
    sides = [np.asarray(side, np.float64) for side in (members, others)]
    inside, outside = (side[~np.isnan(side)] for side in sides)
    m, n = len(inside), len(outside)
    missing = sum(map(len, sides)) - m - n
    made = Estimate(np.nan, np.nan, np.nan, m, m, missing, f"no {unit} of one kind", alarm)
    if not m or not n:
        return made
    off = (alarm * (1 - alarm) / n) ** 0.5
    shares = np.clip([alarm - off, alarm, alarm + off], 0, 1)
    bounds = np.quantile(outside, 1 - shares, method="higher")
    fewer, value, more = ((inside > bound).mean() for bound in bounds)
    near = (value * m + 1) / (m + 2)  # of 0 and 1 nothing would seem to vary
    spread = near * (1 - near)
    alone = spread / (spread / m + max(more - value, value - fewer) ** 2)
    low, high = wilson(value * alone, alone, level)
    return replace(made, value=float(value), low=low, high=high,
                   method=f"Wilson's interval over {m} {unit}, wider as their bound is an estimate "
                          f"of {n} others")  # fmt: skip
