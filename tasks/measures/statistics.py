"""Statistics of corpus and audits: intervals, tests and corrections, vectorised and seeded.

Whatever items share (a prompt, a template, a word) is the unit of resampling: its items form a
cluster that is drawn as a whole. Missing values (NaN) are left out before anything is counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class ClusteredMean:
    """A mean with its interval: cluster-robust standard error, t with clusters - 1 degrees
    (Liang & Zeger 1986). NaN where a single cluster leaves nothing to compare."""

    value: float
    low: float
    high: float
    p: float
    clusters: int


def clustered_mean(values: Float64, clusters: Sequence[Any]) -> ClusteredMean:
    """values: (n,), n > 0."""
    from scipy.special import stdtr, stdtrit

    mean = float(values.mean())
    _, place = np.unique(np.array(clusters, object).astype("S16"), return_inverse=True)
    sums = np.bincount(place, values - mean)
    count = len(sums)
    if count < 2:
        return ClusteredMean(mean, np.nan, np.nan, np.nan, count)
    error = float(np.sqrt((sums**2).sum() * count / (count - 1)) / len(values))
    half = float(stdtrit(count - 1, 0.975)) * error
    if error == 0:
        return ClusteredMean(mean, mean, mean, 1.0 if mean == 0 else 0.0, count)
    p = 2 * float(stdtr(count - 1, -abs(mean) / error))
    return ClusteredMean(mean, mean - half, mean + half, p, count)


def _known(values: ArrayLike) -> Float64:
    found = np.asarray(values, dtype=np.float64)
    return found[~np.isnan(found)]


def by_cluster(
    values: ArrayLike, clusters: Sequence[Any] | None, weights: ArrayLike | None = None
) -> tuple[Float64, Float64]:
    """Sum and count of the values of each cluster, those that are known; each value its own without
    clusters. A value counts as its weight."""
    array = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(array)
    counted = np.ones(len(array)) if weights is None else np.asarray(weights, dtype=np.float64)
    if clusters is None:
        return (array * counted)[known], counted[known]
    names = [name for name, keep in zip(clusters, known, strict=True) if keep]
    numbers: dict[Any, int] = {}
    index = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
    sums, counts = np.zeros(len(numbers)), np.zeros(len(numbers))
    np.add.at(sums, index, (array * counted)[known])
    np.add.at(counts, index, counted[known])
    return sums, counts


def resampled_means(sums: Float64, counts: Float64, resamples: int, seed: int) -> Float64:
    """Means of as many clusters, drawn with replacement, (resamples,); ``sums`` and ``counts``: of
    the values of each cluster (Davison & Hinkley 1997, 3.8)."""
    rng = np.random.default_rng(seed)
    groups = len(sums)
    means = np.empty(resamples)
    step = max(1, (1 << 24) // groups)  # drawn clusters held at a time
    for start in range(0, resamples, step):
        stop = min(start + step, resamples)
        drawn = rng.integers(groups, size=(stop - start, groups))
        means[start:stop] = sums[drawn].sum(1) / counts[drawn].sum(1)
    return means


def wilson(
    successes: float, n: float, level: float = 0.95, freedom: float = math.inf
) -> tuple[float, float]:
    """Wilson's score interval of a share (Wilson 1927). ``freedom``: of Student's t, where n is an
    estimate: as many independent units as would err as clusters do (Dean & Pagano 2015)."""
    if n == 0:
        return np.nan, np.nan
    from scipy.special import ndtri, stdtrit

    tail = (1 + level) / 2
    z = float(ndtri(tail) if math.isinf(freedom) else stdtrit(freedom, tail))
    p = successes / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # The ends at 0 and n successes are 0 and 1 exactly; rounding must not pass them.
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    return low, 1.0 if successes == n else min(1.0, middle + half)


def expected_maximum(scores: ArrayLike, k: int, empty: int = 0) -> float:
    """Expected maximum of k of the n scores drawn without replacement, without resampling.

    E[max] = sum over i of x_(i) C(i-1, k-1) / C(n, k), x_(i) the i-th smallest. NaN scores are
    missing. ``empty`` counts further draws that can be drawn but have no score (empty
    continuations): the expectation is then over those k that hold at least one score. NaN where
    fewer than k draws, or no score, are left.
    """
    known = np.sort(_known(scores))
    n = len(known) + empty
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if n < k or not len(known):
        return math.nan
    weights = maximum_weights(n, k)[empty:]
    return float(known @ (weights / weights.sum()))


def maximum_weights(n: int, k: int) -> Float64:
    """P(the i-th smallest of n is the largest of k drawn) = C(i-1, k-1) / C(n, k), i = 1 ... n."""
    from scipy.special import gammaln

    weights = np.zeros(n)
    i = np.arange(k, n + 1, dtype=np.float64)
    log = gammaln(i) - gammaln(k) - gammaln(i - k + 1)
    log -= gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    weights[k - 1 :] = np.exp(log)
    return weights / weights.sum()


def probability_any(scores: ArrayLike, k: int, threshold: float, empty: int = 0) -> float:
    """Probability that at least one of k of the n draws, without replacement, reaches the
    threshold: 1 - C(n-m, k) / C(n, k), m of n at or above it. NaN scores are missing; ``empty``
    draws cannot reach it. NaN where fewer than k draws are left."""
    known = _known(scores)
    n, m = len(known) + empty, int((known >= threshold).sum())
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    return 1 - math.comb(n - m, k) / math.comb(n, k) if n >= k else math.nan


def contributions(left: ArrayLike, right: ArrayLike) -> tuple[Float64, Float64]:
    """What each item contributes to mean(left) - mean(right): values whose mean it is, and whose
    spread about that is its own, as of infinitesimal pseudo-values (Jaeckel 1972). So two such
    differences of the same items are compared as means are, in pairs."""
    sides = [np.asarray(side, dtype=np.float64) for side in (left, right)]
    sizes = [int((~np.isnan(side)).sum()) for side in sides]
    if min(sizes) == 0:
        return np.full(len(sides[0]), np.nan), np.full(len(sides[1]), np.nan)
    means = [float(np.nanmean(side)) for side in sides]
    found, n = means[0] - means[1], sum(sizes)
    return (found + n / sizes[0] * (sides[0] - means[0]),
            found - n / sizes[1] * (sides[1] - means[1]))  # fmt: skip
