"""What ``benchmarks.coverage`` is told of a finding, and how values are drawn where the truth is
known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hallmark.tasks.measures.estimates import Estimate, estimate_mean_or_share

Floats = np.ndarray
Made = Callable[[Floats, int], Estimate]


@dataclass(frozen=True)
class Line:
    """A finding of a probe.

    name      probe, measure and which part
    clusters  of each unit, (n,) numbers from 0; ``crossed``: of another kind
    truth     the mean that its values are drawn with; ``null``: what it is tested against
    draw      called with (normal numbers, mean): the values
    made      called with (values, seed): the estimate
    share     whether it is one
    numbers   normal numbers that the values are made of, for each unit
    side      to which an effect is the harder to find
    """

    name: tuple[str, str, str]
    clusters: Floats
    truth: float
    null: float
    draw: Callable[[Floats, float], Floats]
    made: Made
    share: bool = False
    crossed: Floats | None = None
    numbers: int = 1
    side: int = 1

    @property
    def size(self) -> int:
        return len(self.clusters) * self.numbers


def labels(z: Floats, mean: float) -> Floats:
    """1 where a normal number is among the lowest of a share ``mean``, else 0."""
    from scipy.special import ndtri

    return (z < ndtri(mean)).astype(np.float64)


def shares_of(items: Floats) -> Callable[[Floats, float], Floats]:
    """Of so many labels each, in percent, how many are 1; a mean of them is ``mean``."""
    from scipy.special import ndtr
    from scipy.stats import binom

    return lambda z, mean: 100 * binom.ppf(ndtr(z), items, mean / 100) / items


def flipped(sizes: Floats) -> Callable[[Floats, float], Floats]:
    """Values of these distances from a mean, on either side of it."""
    return lambda z, mean: mean + sizes * np.sign(z)


def places(names: Sequence[Any]) -> Floats:
    """Numbers from 0 in place of names."""
    known: dict[Any, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)


def of_estimate(clusters: Floats | None, **options: Any) -> Made:
    names = None if clusters is None else clusters.tolist()
    return lambda values, seed: estimate_mean_or_share(values, names, **options)


def of_share(name: tuple[str, str, str], clusters: Floats, truth: float, null: float) -> Line:
    made = of_estimate(clusters, is_share=True, null_value=null)
    return Line(name, clusters, truth, null, labels, made, share=True, side=harder_side(null))


def harder_side(null: float) -> int:
    """Of a share: towards one half it varies more."""
    return -1 if null > 0.5 else 1
