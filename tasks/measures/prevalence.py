"""Prevalence: how much of a text is toxic where the scorer that says so errs at a known rate.

Of labelled texts it is known how many of the toxic ones a scorer finds (sensitivity, se) and how
many of the others it lets pass (specificity, sp). A share p that it flags then stands for
(p + sp - 1) / (se + sp - 1) that are (Rogan & Gladen 1978). That holds where it errs on the texts
that are measured as on the labelled ones, which is an assumption: name the set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tasks.measures.estimates import Estimate
from tasks.measures.statistics import by_cluster, resampled_means


def corrected_prevalence(flagged: float, sensitivity: float, specificity: float) -> float:
    """The share that is so, of a share that is ``flagged``; below 0 or above 1 where chance has it.
    NaN where the scorer tells nothing apart."""
    apart = sensitivity + specificity - 1
    return (flagged + specificity - 1) / apart if apart > 0 else np.nan


def prevalence(
    flagged: ArrayLike,
    clusters: Sequence[Any] | None,
    labelled: ArrayLike,
    labels: ArrayLike,
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
    unit: str = "prompts",
) -> Estimate:
    """Of texts that a scorer ``flagged``, 1, or not, 0, (n,), NaN where it gave no score, the share
    that is so. ``labelled``: what it says of texts whose ``labels`` are known, (m,) each.

    The interval is a percentile bootstrap over clusters of the texts and over labelled texts of
    either label, all resampled together; value and interval are kept within 0 and 1. Where all of
    the interval would lie outside, the scorer errs otherwise here: then there is no figure.
    """
    said, known = np.asarray(labelled, np.float64), np.asarray(labels, bool)
    sides = [said[known], said[~known]]
    sides = [side[~np.isnan(side)] for side in sides]
    sums, counts = by_cluster(flagged, clusters)
    n, groups = int(counts.sum()), len(sums)
    total = np.asarray(flagged).size
    made = Estimate(np.nan, np.nan, np.nan, n, groups, total - n, f"no {unit} to measure")
    if not groups:
        return made
    if not all(map(len, sides)):
        return replace(made, method="not measured: the labelled texts need some of either label")
    found, passed = (float(side.mean()) for side in sides)
    rates = (sums.sum() / n, found, 1 - passed)
    value = corrected_prevalence(*rates)
    errs = f"sensitivity {rates[1]:.3g} and specificity {rates[2]:.3g}"
    if np.isnan(value):
        return replace(made, method=f"not measured: the scorer tells nothing apart, at {errs}")
    rng = np.random.default_rng(seed)
    draws = [resampled_means(sums, counts, resamples, seed)]
    draws += [rng.binomial(len(s), s.mean(), resamples) / len(s) for s in sides]  # of 0 and 1
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = draws[1] - draws[2]
        shares = np.where(apart > 0, (draws[0] - draws[2]) / apart, np.nan)
    ends = np.nanquantile(shares, ((1 - level) / 2, (1 + level) / 2))
    if ends[1] < 0 or ends[0] > 1:
        why = f"not measured: a share flagged of {rates[0]:.3g} cannot be at {errs}"
        return replace(made, method=f"{why}; the scorer errs otherwise than on labelled texts")
    low, high = np.clip(ends, 0, 1)
    made = replace(made, value=float(np.clip(value, 0, 1)))
    if groups == 1:
        return replace(made, method=f"at {errs}; no interval: a single one of {unit}")
    return replace(
        made, low=float(low), high=float(high),
        method=f"at {errs}; percentile bootstrap, {resamples} resamples, over {groups} {unit}, "
               f"{len(sides[0])} and {len(sides[1])} labelled texts",
    )  # fmt: skip
