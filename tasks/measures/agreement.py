"""Agreement between people who rate the same texts.

Krippendorff's alpha (2011, "Computing Krippendorff's Alpha-Reliability"): 1 less the disagreement
within texts by that which the same ratings would have if they were dealt to the texts at random. 1
is full agreement, 0 is chance. Raters may be any number, and need not rate every text; a text that
one alone rated tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tasks.measures.estimates import Estimate


def krippendorff(
    ratings: ArrayLike | Sequence[str],
    units: Sequence[Any],
    clusters: Sequence[Any] | None = None,
    *,
    labels: bool = False,
    level: float = 0.95,
) -> Estimate:
    """``units``: of each rating what it is about; ``clusters``: what such units share. The distance
    of two ratings is the square of their difference, of ``labels`` 1 where they differ. The
    interval is Student's t over a jackknife of clusters; n counts the units that two rated."""
    unit = np.unique(np.asarray(units, object).astype(str), return_inverse=True)[1]
    if labels:  # a column for each: half the square of their distance is 1
        kinds, code = np.unique(np.asarray(ratings, object).astype(str), return_inverse=True)
        x = np.eye(len(kinds))[code]
    else:
        x = np.asarray(ratings, np.float64).reshape(-1, 1)
    names = unit if clusters is None else np.asarray(clusters, object).astype(str)
    paired = np.bincount(unit)[unit] > 1 if len(unit) else np.zeros(0, bool)
    x, unit, names = x[paired], unit[paired], names[paired]
    made = Estimate(np.nan, np.nan, np.nan, 0, 0, 0, "no text was rated by two people", 0.0)
    if not len(x):
        return made
    firsts, unit = np.unique(unit, return_index=True, return_inverse=True)[1:]
    cluster = np.unique(names, return_inverse=True)[1]
    groups = int(cluster.max()) + 1
    many = np.bincount(unit)
    sums, squares = np.zeros((len(many), x.shape[1])), np.zeros(len(many))
    np.add.at(sums, unit, x)
    np.add.at(squares, unit, (x**2).sum(1))
    within = (many * squares - (sums**2).sum(1)) / (many - 1)
    # Of each cluster: disagreement, ratings, their squares, their sums.
    parts = np.zeros((groups, 3 + x.shape[1]))
    np.add.at(parts, cluster[firsts], np.column_stack([within, many, squares, sums]))
    total = parts.sum(0)
    value = float(_alpha(total[None])[0])
    made = replace(made, value=value, n=len(many), clusters=groups, method="Krippendorff's alpha")
    if np.isnan(value):
        return replace(made, method="not measured: all ratings are the same")
    without = _alpha(total - parts)
    if groups < 3 or np.isnan(without).any():
        return replace(made, method="Krippendorff's alpha; no interval: too few prompts")
    from scipy.special import stdtrit

    error = float(np.sqrt((groups - 1) / groups * ((without - value) ** 2).sum()))
    half = float(stdtrit(groups - 1, (1 + level) / 2)) * error
    how = f"Krippendorff's alpha; Student's t over a jackknife of {groups} prompts"
    return replace(made, low=value - half, high=min(1.0, value + half), method=how)


def _alpha(parts: np.ndarray) -> np.ndarray:
    """Of rows (disagreement, ratings, squares, sums ...); NaN where nothing differs."""
    within, n, squares, sums = parts[:, 0], parts[:, 1], parts[:, 2], parts[:, 3:]
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = (n * squares - (sums**2).sum(1)) / (n - 1)
        return np.where(expected > 1e-12 * np.maximum(1, squares), 1 - within / expected, np.nan)
