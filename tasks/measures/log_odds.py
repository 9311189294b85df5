"""How log-odds go with a figure: a slope over units, and the ratio of one unit.

Logistic regression after Firth (1993, "Bias reduction of maximum likelihood estimates", Biometrika
80), which stays finite where all counts are on one side, and whose first-order bias is zero. The
interval is Student's t over a jackknife of clusters (CR3), as that of ``estimates.slope``: units
differ from each other in more than the figure, so their draws are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.measures.estimates import Estimate

Float64 = NDArray[np.float64]

#: Newton's steps: at most so many, and none further than this.
STEPS, FURTHEST = 100, 2.0


def log_odds(successes: ArrayLike, n: ArrayLike) -> Float64:
    """With one half more on either side, which keeps them finite (Haldane 1956)."""
    k, of = np.asarray(successes, np.float64), np.asarray(n, np.float64)
    return np.log((k + 0.5) / (of - k + 0.5))


def log_odds_slope(
    values: ArrayLike,
    over: ArrayLike,
    strata: Sequence[Any],
    clusters: Sequence[Any],
    *,
    null: float = 1.0,
    level: float = 0.95,
    unit: str = "items",
) -> Estimate:
    """By how much the log-odds of a value being 1 (others are 0, NaN is missing) change for each 1
    of ``over``, with an intercept for each stratum. n counts the values."""
    y, x = (np.asarray(each, np.float64) for each in (values, over))
    known = ~np.isnan(y) & ~np.isnan(x)
    stratum, cluster = (
        np.unique(np.asarray(names, object)[known].astype(str), return_inverse=True)[1]
        for names in (strata, clusters)
    )
    groups = int(cluster.max()) + 1 if known.any() else 0
    missing = int((~known).sum())
    made = Estimate(np.nan, np.nan, np.nan, int(known.sum()), groups, missing,
                    f"no {unit} to measure", null)  # fmt: skip
    y, x = y[known], x[known]
    if not groups:
        return made
    if len(np.unique(x)) < 2:
        return replace(made, method="not measured: of a single value nothing changes")
    # Alike in all but the value: one cell.
    keys, cell = np.unique(np.stack([x, stratum, cluster]), axis=1, return_inverse=True)
    cell = cell.reshape(-1)
    counts, ones = np.bincount(cell).astype(np.float64), np.bincount(cell, y)
    design = np.column_stack([keys[0], np.eye(int(stratum.max()) + 1)[keys[1].astype(int)]])
    of = keys[2].astype(int)
    keep = np.vstack([np.ones(len(of)), of != np.arange(groups)[:, None]])  # all, then one left out
    slopes = firth(ones * keep, counts * keep, design)[:, 0]
    if np.isnan(slopes[0]):
        return replace(made, method="not measured: the regression did not converge")
    made = replace(made, value=float(slopes[0]))
    if groups < 3 or np.isnan(slopes).any():
        return replace(made, method=f"no interval: too few {unit}")
    from scipy.special import stdtr, stdtrit

    error = float(np.sqrt((groups - 1) / groups * ((slopes[1:] - slopes[0]) ** 2).sum()))
    half = float(stdtrit(groups - 1, (1 + level) / 2)) * error
    p = float(2 * stdtr(groups - 1, -abs(made.value - null) / error)) if error else np.nan
    how = (
        f"logistic regression after Firth (1993), an intercept for each of {len(design[0]) - 1} "
        f"strata; Student's t over a jackknife of {groups} {unit}"
    )
    return replace(made, low=made.value - half, high=made.value + half, p=p, method=how)


def firth(successes: Float64, n: Float64, design: Float64) -> Float64:
    """Coefficients of several regressions over the same cells, (regressions, columns): successes
    and n are (regressions, cells), design (cells, columns). NaN where one does not converge.

    Each solves X'(k - n p + h (1/2 - p)) = 0, h the leverage of a cell: as if h more had been
    counted in it, half of them successes. Newton's steps are those of these counts: of the cells'
    own alone they go round in circles where a column has a single count. A column without any
    keeps 0.
    """
    found = np.zeros((len(n), design.shape[1]))
    tiny = 1e-9 * np.eye(design.shape[1])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-(found @ design.T)))
        weight = n * p * (1 - p)
        inverse = np.linalg.inv(np.swapaxes(weight[..., None] * design, 1, 2) @ design + tiny)
        leverage = weight * ((design @ inverse) * design).sum(-1)
        score = (successes - n * p + leverage * (0.5 - p)) @ design
        weight = (n + leverage) * p * (1 - p)
        information = np.swapaxes(weight[..., None] * design, 1, 2) @ design + tiny
        step = np.linalg.solve(information, score[..., None])[..., 0]
        found += np.clip(step, -FURTHEST, FURTHEST)
        done = np.abs(step).max(1) < 1e-8
        if done.all():
            return found
    found[~done] = np.nan
    return found


def log_odds_ratio(
    values: ArrayLike, of: float, *, null: float = 1.0, level: float = 0.95, unit: str = "draws"
) -> Estimate:
    """The log-odds of a value being 1, as a multiple of the log-odds ``of``. Values are independent
    of each other; the interval is Gart's (1966)."""
    from scipy.special import ndtri

    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    n, missing = len(known), np.size(values) - len(known)
    made = Estimate(np.nan, np.nan, np.nan, n, n, missing, f"no {unit} to measure", null)
    if not n:
        return made
    ones = float(known.sum())
    error = (1 / (ones + 0.5) + 1 / (n - ones + 0.5)) ** 0.5
    middle, half = float(log_odds(ones, n)), float(ndtri((1 + level) / 2)) * error
    low, high = sorted(end / of for end in (middle - half, middle + half))
    return replace(made, value=middle / of, low=low, high=high,
                   method=f"interval after Gart (1966) over {n} {unit}")  # fmt: skip
