"""Estimates: a mean or a share of items that share things, with all that a finding says of it.

The interval is chosen by what there is to estimate it from: exact where units of yes or no are few,
Student's t over clusters where these are few, a bootstrap over clusters else. Against a null there
is a p, and the smallest effect that the same items would show, from the null and not from what was
found: an effect by chance would make itself smaller. Of a share only how much clusters hold alike
is taken from the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tasks.measures.statistics import Float64, by_cluster, resampled_means, wilson

#: Fewer clusters than this: Student's t; a bootstrap is too narrow there (Cameron et al. 2008).
FEW = 50

#: Up to so many units of yes or no, each its own cluster: an exact interval.
EXACT = 40

POWER = 0.8


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
    resamples: int = 2000,
    seed: int = 0,
    unit: str = "items",
    crossed: Sequence[Any] | None = None,
) -> Estimate:
    """The mean of values; ``share``: of values from 0 to 1. ``unit`` names what a cluster is.
    ``crossed``: clusters of another kind, where items share two things."""
    if crossed is not None and clusters is not None:
        return _crossed(values, clusters, crossed, share, null, level, unit)
    array = np.asarray(values, dtype=np.float64)
    known = array[~np.isnan(array)]
    sums, counts = by_cluster(array, clusters)
    groups, n = len(sums), len(known)
    if not groups:
        return Estimate(np.nan, np.nan, np.nan, 0, 0, len(array), f"no {unit} to measure", null)
    value = float(known.mean())
    made = Estimate(value, np.nan, np.nan, n, groups, len(array) - n, "", null)
    if groups == 1:
        return replace(made, method=f"no interval: a single one of {unit} tells no spread")
    binary = share and bool(np.isin(known, (0, 1)).all())
    error = float(np.sqrt(((sums - value * counts) ** 2).sum() * groups / (groups - 1)) / n)
    smallest = (share_effect(value, error, groups, null, level) if share
                else smallest_effect(sums, counts, null, level))  # fmt: skip
    if binary and groups == n and n < EXACT:
        low, high = clopper_pearson(known.sum(), n, level)
        how, p = "Clopper-Pearson interval", binomial_p(int(known.sum()), n, null)
        smallest = binomial_effect(n, null, level)
    elif error < 1e-12 * max(1.0, abs(value)):
        how = "no interval: all have the same value"
        low, high, p = np.nan, np.nan, np.nan
        if share:  # units that agree within themselves: one value each
            low, high = wilson(value * groups, groups, level)
            if value in (0, 1):
                low, high = clopper_pearson(value * groups, groups, level)
                p = binomial_p(int(value * groups), groups, null)
            how = f"interval of as many independent {unit} (no spread to estimate it from)"
    else:
        half, p = student(error, groups - 1, value - null, level)
        low, high, how = value - half, value + half, "Student's t"
        if groups >= FEW:
            draws = resampled_means(sums, counts, resamples, seed)
            low, high = np.quantile(draws, ((1 - level) / 2, (1 + level) / 2))
            how = f"percentile bootstrap, {resamples} resamples,"
        if share:
            low, high = max(0.0, low), min(1.0, high)
    method = how if how.startswith(("no ", "interval")) else f"{how} over {groups} {unit}"
    return replace(made, low=float(low), high=float(high), p=float(p), smallest=smallest,
                   method=method)  # fmt: skip


def _crossed(
    values: ArrayLike,
    first: Sequence[Any],
    second: Sequence[Any],
    share: bool,
    null: float,
    level: float,
    unit: str,
) -> Estimate:
    """The variance of two-way clusters: that of either less that of both together (Cameron, Gelbach
    & Miller 2011), at least the larger of the two; Student's t over the fewer."""
    array = np.asarray(values, dtype=np.float64)
    whole = estimate(array, first, share=share, null=null, level=level, unit=unit)
    ways = [
        by_cluster(array, names) for names in (first, second, [*zip(first, second, strict=True)])
    ]
    fewest = min(len(sums) for sums, _ in ways[:2])
    if fewest < 2 or whole.method.startswith("no "):
        return whole
    centred, under = ([_spread(way, at, whole.n) for way in ways] for at in (whole.value, null))
    error, expected = (_two_way(spread) ** 0.5 for spread in (centred, under))
    if error < 1e-12 * max(1.0, abs(whole.value)):
        return whole
    half, p = student(error, fewest - 1, whole.value - null, level)
    smallest = reach(fewest - 1, level, fewest) * expected
    if share:
        smallest = share_effect(whole.value, error, fewest, null, level)
    low, high = whole.value - half, whole.value + half
    if share:
        low, high = max(0.0, low), min(1.0, high)
    how = f"Student's t over two-way clusters: {len(ways[0][0])} {unit}, and {len(ways[1][0])} more"
    return replace(whole, low=low, high=high, p=p, smallest=float(smallest),
                   clusters=fewest, method=how)  # fmt: skip


def _spread(way: tuple[Float64, Float64], centre: float, n: int) -> float:
    """The variance of a mean of n values whose clusters have these sums and counts."""
    sums, counts = way
    groups = len(sums)
    return float(((sums - centre * counts) ** 2).sum() * groups / max(1, groups - 1) / n**2)


def _two_way(spread: Sequence[float]) -> float:
    first, second, both = spread
    return max(first + second - both, first, second)


@cache
def reach(freedom: int, level: float, stated: int = 0) -> float:
    """How many standard errors an effect must be away for a two-sided t test to find it with power
    0.8. ``stated``: the degrees of freedom from which the error is estimated that it is stated in,
    0 where that is known; then the power is 0.8 on average over such estimates, which of few
    clusters are often too small."""
    from scipy.special import gammaincinv, ndtr, stdtrit

    def errors(freedom: int) -> Float64:
        """Quantiles of an estimated error over the true one."""
        middle = (np.arange(400) + 0.5) / 400
        return np.sqrt(gammaincinv(freedom / 2, middle) * 2 / freedom)

    bound = float(stdtrit(freedom, (1 + level) / 2)) * errors(freedom)[:, None]
    size = errors(stated) if stated else np.ones(1)
    low, high = 0.0, 1e3
    for _ in range(60):
        many = (low + high) / 2
        enough = ndtr(many * size - bound).mean() >= POWER
        low, high = (low, many) if enough else (many, high)
    return high


def smallest_effect(sums: Float64, counts: Float64, null: float, level: float) -> float:
    """The distance from the null that the mean of such clusters shows, NaN without a null. Under it
    each cluster is as likely on either side of it: the variance is that of signs flipped."""
    if np.isnan(null) or len(sums) < 2:
        return np.nan
    variance = ((sums - null * counts) ** 2).sum() / counts.sum() ** 2
    return float(reach(len(sums) - 1, level, len(sums)) * np.sqrt(variance))


def share_effect(value: float, error: float, groups: int, null: float, level: float) -> float:
    """The same of a share: the larger of the distances to either side. Its error has the size of
    p (1 - p) at the share p that is to be found, times what clusters that hold alike add to it
    (the design effect, Kish 1965), as in the values themselves. Where these are all the same,
    clusters count once."""
    if np.isnan(null):
        return np.nan
    spread = value * (1 - value)
    each = error**2 / spread if error > 0 and spread > 0 else 1 / groups
    low = min(null, 1 - null)
    square = reach(groups - 1, level, groups - 1) ** 2 * each
    # s^2 = square (low + s) (1 - low - s)
    middle = square * (1 - 2 * low)
    root = np.sqrt(middle**2 + 4 * (1 + square) * square * low * (1 - low))
    return float((middle + root) / (2 * (1 + square)))


def binomial_effect(n: int, null: float, level: float) -> float:
    """The same of the exact test: from it on at least 0.8 of all counts are too unlikely under the
    null. NaN where none is: too few units."""
    from scipy.special import gammaln, xlog1py, xlogy

    if np.isnan(null):
        return np.nan
    low = min(null, 1 - null)
    k = np.arange(n + 1)
    found = np.array([binomial_p(int(count), n, low) for count in k]) < 1 - level
    log = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    nearest, furthest = low, 1.0
    if not found[-1]:
        return np.nan
    for _ in range(40):
        share = (nearest + furthest) / 2
        power = np.exp(log + xlogy(k, share) + xlog1py(n - k, -share))[found].sum()
        nearest, furthest = (nearest, share) if power >= POWER else (share, furthest)
    return float(furthest - low)


def student(error: float, freedom: float, distance: float, level: float) -> tuple[float, float]:
    """Half the width of the interval, and the two-sided p of a distance from the null."""
    from scipy.special import stdtr, stdtrit

    half = float(stdtrit(freedom, (1 + level) / 2)) * error
    return half, float(2 * stdtr(freedom, -abs(distance) / error))


def clopper_pearson(successes: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share (Clopper & Pearson 1934)."""
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, tail))
    high = 1.0 if successes == n else float(betaincinv(successes + 1, n - successes, 1 - tail))
    return low, high


def binomial_p(successes: int, n: int, null: float) -> float:
    """Two-sided exact p: of all counts that are no likelier than this one."""
    from scipy.special import gammaln, xlog1py, xlogy

    if np.isnan(null):
        return np.nan
    k = np.arange(n + 1)
    log = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    chance = np.exp(log + xlogy(k, null) + xlog1py(n - k, -null))
    return float(min(1.0, chance[chance <= chance[successes] * (1 + 1e-7)].sum()))


def difference(
    left: ArrayLike,
    right: ArrayLike,
    *,
    spread: float = np.nan,
    level: float = 0.95,
    unit: str = "items",
) -> Estimate:
    """mean(left) - mean(right) of two groups of independent items (Welch 1947). ``spread``: the
    variance of an item where there is nothing to find."""
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
    smallest = reach(n - 2, level) * np.sqrt(sum(spread / size for size in sizes))
    made = replace(made, smallest=float(smallest))
    parts = [float(side.var(ddof=1)) / size for side, size in zip(known, sizes, strict=True)]
    error = sum(parts) ** 0.5
    if error < 1e-12 * max(1.0, abs(made.value)):
        return replace(made, method=f"no interval: all {unit} of a group have the same value")
    freedom = error**4 / sum(p * p / (s - 1) for p, s in zip(parts, sizes, strict=True))
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
    """By how much values change for each 1 of ``over``: least squares, null 0. The interval is
    Student's t over a jackknife of clusters (CR3; MacKinnon, Nielsen & Webb 2023): of few clusters
    of unlike weight the usual one is too narrow."""
    y, x = (np.asarray(each, dtype=np.float64) for each in (values, over))
    known = ~np.isnan(y)
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


def _area_effect(m: int, n: int, bound: float) -> float:
    """How far above one half the area must be for that of m and n to be above ``bound`` with power
    0.8. The larger it is the less it varies (Hanley & McNeil 1982, equation 2)."""
    from scipy.special import ndtri

    low, high = 0.0, 0.5
    for _ in range(40):
        effect = (low + high) / 2
        area = 0.5 + effect
        own = (m - 1) * (area / (2 - area) - area**2)
        other = (n - 1) * (2 * area**2 / (1 + area) - area**2)
        error = ((area * (1 - area) + own + other) / (m * n)) ** 0.5
        enough = effect >= bound + float(ndtri(POWER)) * error
        low, high = (low, effect) if enough else (effect, high)
    return high


def auc(
    members: ArrayLike, others: ArrayLike, *, level: float = 0.95, unit: str = "items"
) -> Estimate:
    """The probability that one of ``members`` is above one of ``others``, ties by half (the area
    under the ROC curve), null 1/2. The interval is DeLong's (1988), drawn on the logit; p is that
    of ranks without any difference (Mann & Whitney 1947)."""
    from scipy.special import expit, logit, ndtr, ndtri
    from scipy.stats import rankdata

    sides = [np.asarray(side, np.float64) for side in (members, others)]
    known = [side[~np.isnan(side)] for side in sides]
    m, n = map(len, known)
    missing = sum(map(len, sides)) - m - n
    made = Estimate(np.nan, np.nan, np.nan, m + n, m + n, missing, f"no {unit} of one kind", 0.5)
    if not m or not n:
        return made
    whole = rankdata(np.concatenate(known))
    # How much of the other kind lies below (above) each one: (m,) and (n,).
    below = (whole[:m] - rankdata(known[0])) / n
    above = 1 - (whole[m:] - rankdata(known[1])) / m
    value = float(below.mean())
    chance = (m + n + 1) / (12 * m * n)
    reach = float(ndtri((1 + level) / 2))
    made = replace(made, value=value, smallest=_area_effect(m, n, reach * chance**0.5),
                   p=float(2 * ndtr(-abs(value - 0.5) / chance**0.5)))  # fmt: skip
    spread = [float(side.var(ddof=1)) / len(side) for side in (below, above) if len(side) > 1]
    if len(spread) < 2 or sum(spread) == 0 or value in (0, 1):
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
