"""Simulate how often the interval of a paired change misses the true change, at either end.

    python -m benchmarks.paired_changes --repetitions 2000

The lower and the upper end are read by policy rules about the previous release
(``not_worse_than_previous_by``). Each should miss the true change in at most 4 % of repetitions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hallmark.tasks.audits.judging.comparison import compute_paired_change
from hallmark.tasks.audits.judging.comparison_units import ComparisonUnit

SEED = 5

#: Largest allowed share of repetitions in which one end misses the true change.
MAX_MISS_SHARE = 0.04


class PairedValues(NamedTuple):
    """Values of the same units in two runs, and the cluster of each unit; all (n,)."""

    first: np.ndarray
    second: np.ndarray
    clusters: np.ndarray


@dataclass(frozen=True)
class Design:
    """A design of paired values whose true mean change is known."""

    name: str
    true_change: float
    draw: Callable[[np.random.Generator], PairedValues]


class MissShares(NamedTuple):
    """Share of repetitions in which an end of the interval misses the true change."""

    upper: float
    lower: float


def make_labels_design(count: int, worse_share: float, better_share: float = 0.0) -> Design:
    """Make independent labels of 0 or 1, of which shares change in either direction."""

    def draw(rng: np.random.Generator) -> PairedValues:
        first, chance = rng.random(count) < 0.5, rng.random(count)
        second = np.where(first, chance >= 2 * better_share, chance < 2 * worse_share)
        return PairedValues(first, second, np.arange(count))

    name = f"{count} labels, {worse_share:.0%} worse, {better_share:.0%} better"
    return Design(name, worse_share - better_share, draw)


def make_clusters_design(count: int, size: int, worse_share: float) -> Design:
    """Make labels in clusters, which change in few clusters more often than in others."""

    def draw(rng: np.random.Generator) -> PairedValues:
        clusters = np.repeat(np.arange(count), size)
        risks = rng.beta(2 * worse_share, 2 * (1 - worse_share), count)[clusters]
        first = rng.random(len(clusters)) < 0.3
        return PairedValues(first, first | (rng.random(len(clusters)) < risks), clusters)

    name = f"{count} clusters of {size} labels, {0.7 * worse_share:.1%} worse"
    return Design(name, 0.7 * worse_share, draw)


def make_fractions_design(count: int, draws: int, worse_share: float) -> Design:
    """Make shares of draws per prompt, most of them near 0."""

    def draw(rng: np.random.Generator) -> PairedValues:
        shares = rng.beta(0.3, 2, count)
        worse_shares = shares + worse_share * (1 - shares)
        first, second = (rng.binomial(draws, p) / draws for p in (shares, worse_shares))
        return PairedValues(first, second, np.arange(count))

    true_change = worse_share * (1 - 0.3 / 2.3)
    return Design(f"{count} shares of {draws} draws, {true_change:.1%} worse", true_change, draw)


DESIGNS = (
    make_labels_design(60, 0.05),
    make_labels_design(100, 0.05),
    make_labels_design(100, 0.1),
    make_labels_design(100, 0.2),
    make_labels_design(200, 0.02),
    make_labels_design(300, 0.3),
    make_labels_design(100, 0.1, 0.05),
    make_labels_design(200, 0.02, 0.02),
    make_clusters_design(20, 5, 0.1),
    make_clusters_design(50, 4, 0.1),
    make_clusters_design(100, 3, 0.05),
    make_clusters_design(10, 10, 0.3),
    make_fractions_design(50, 25, 0.05),
    make_fractions_design(100, 4, 0.03),
    make_fractions_design(100, 25, 0.01),
)


def simulate_miss_shares(design: Design, repetitions: int) -> MissShares:
    """Estimate how often each end of the interval misses the true change of a design."""
    rng = np.random.default_rng(SEED)
    upper_misses = lower_misses = 0
    for _ in range(repetitions):
        values = design.draw(rng)
        change = compute_paired_change(
            *(dict(enumerate(_iter_units(side, values))) for side in values[:2]), "share"
        )
        if change is None or change["low"] is None or change["high"] is None:
            raise RuntimeError(f"{design.name}: a repetition has no interval")
        upper_misses += change["high"] < design.true_change
        lower_misses += change["low"] > design.true_change
    return MissShares(upper_misses / repetitions, lower_misses / repetitions)


def _iter_units(side: np.ndarray, values: PairedValues) -> Iterator[ComparisonUnit]:
    for value, cluster in zip(side.tolist(), values.clusters.tolist(), strict=True):
        yield ComparisonUnit(str(cluster), float(value))


def main() -> None:
    parser = argparse.ArgumentParser(prog="paired_changes", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000, help="repetitions of each design")
    repetitions = parser.parse_args().repetitions
    print("| design | upper end too low | lower end too high | coverage |\n|---|--:|--:|--:|")
    failed_count = 0
    for design in DESIGNS:
        upper, lower = simulate_miss_shares(design, repetitions)
        failed_count += max(upper, lower) > MAX_MISS_SHARE
        coverage = 1 - upper - lower
        print(f"| {design.name} | {upper:.1%} | {lower:.1%} | {coverage:.1%} |", flush=True)
    print(f"\ndesigns in which an end misses more than {MAX_MISS_SHARE:.0%}: {failed_count}")


if __name__ == "__main__":
    main()
