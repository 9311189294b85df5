"""Describe a finding for ``benchmarks.coverage``, and simulate values whose true mean is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hallmark.tasks.measures.estimates import Estimate, estimate_mean_or_share

Floats = np.ndarray
#: Called with (standard normal numbers, true mean); returns values of the finding's units.
Simulator = Callable[[Floats, float], Floats]
#: Called with (values, seed); returns the estimate of the finding.
Estimator = Callable[[Floats, int], Estimate]


class FindingName(NamedTuple):
    """What identifies a finding: the probe, its metric, and the part of the items (or "")."""

    probe: str
    metric: str
    part: str


@dataclass(frozen=True)
class SimulatedFinding:
    """A finding of a probe, with values that are simulated instead of measured."""

    name: FindingName
    clusters: Floats
    """Number of each unit's cluster, (n,), from 0."""
    truth: float
    """True mean of the values whose intervals are tested."""
    null: float
    """Null value that the finding is tested against; NaN if it is not tested."""
    simulate: Simulator
    estimate: Estimator
    is_share: bool = False
    crossed_clusters: Floats | None = None
    """Number of each unit's cluster of a second kind, (n,), if there is one."""
    normals_per_unit: int = 1
    """Normal numbers from which the value of one unit is computed."""
    harder_side: int = 1
    """1 or -1: direction from the null value in which an effect of a given size is harder to
    detect."""

    @property
    def normal_count(self) -> int:
        """Return the number of normal numbers of one simulation."""
        return len(self.clusters) * self.normals_per_unit


def simulate_labels(normals: Floats, mean: float) -> Floats:
    """Return 1 for normal numbers below the quantile ``mean``, and 0 for the others."""
    from scipy.special import ndtri

    return (normals < ndtri(mean)).astype(np.float64)


def build_percent_simulator(item_counts: Floats) -> Simulator:
    """Build a simulator of percentages of labels that are 1.

    Args:
        item_counts: Number of labels of each value.
    """
    from scipy.special import ndtr
    from scipy.stats import binom

    return lambda normals, mean: (
        100 * binom.ppf(ndtr(normals), item_counts, mean / 100) / item_counts
    )


def build_sign_flip_simulator(distances: Floats) -> Simulator:
    """Build a simulator of values at given distances above or below the mean."""
    return lambda normals, mean: mean + distances * np.sign(normals)


def number_names(names: Sequence[Any]) -> Floats:
    """Replace names by numbers from 0, in the order of their first occurrence."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)


def build_mean_estimator(clusters: Floats | None, **options: Any) -> Estimator:
    """Build an estimator of a mean or a share.

    Args:
        clusters: Cluster of each value; None if values are independent.
        options: Passed to ``estimate_mean_or_share``.
    """
    names = None if clusters is None else clusters.tolist()
    return lambda values, seed: estimate_mean_or_share(values, names, **options)


def build_share_finding(
    name: FindingName, clusters: Floats, *, truth: float, null: float
) -> SimulatedFinding:
    """Build the finding of a share of labels."""
    return SimulatedFinding(
        name,
        clusters,
        truth,
        null,
        simulate_labels,
        build_mean_estimator(clusters, is_share=True, null_value=null),
        is_share=True,
        harder_side=find_harder_side(null),
    )


def find_harder_side(null: float) -> int:
    """Return the direction from a share's null value towards one half, where shares vary more."""
    return -1 if null > 0.5 else 1
