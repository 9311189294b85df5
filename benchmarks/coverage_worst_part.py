"""Test the interval of a part that is shown because it is the worst of several, by simulation.

    python -m benchmarks.coverage_worst_part [--repetitions N]

Nine parts have the same true mean, so the worst is worst by chance. Prints for each kind of values
how often the interval of the worst part contains the true mean: corrected for the choice, and
without the correction. Both are functions of the seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from hallmark.tasks.audits.judging.findings import build_finding_from_estimate
from hallmark.tasks.audits.judging.selection import correct_interval_for_choice
from hallmark.tasks.measures.estimates import estimate_mean_or_share

PART_COUNT = 9


class Design(NamedTuple):
    """How the values of each part are drawn."""

    name: str
    draw_values: Callable[[np.random.Generator], np.ndarray]
    true_mean: float
    unit: str


DESIGNS = (
    Design("normal, 12 values", lambda rng: rng.normal(size=12), 0.0, "score"),
    Design("exponential, 40 values", lambda rng: rng.exponential(size=40), 1.0, "score"),
    Design("share 0.3, 60 values", lambda rng: rng.random(60) < 0.3, 0.3, "share"),
    Design("share 0.5, 25 values", lambda rng: rng.random(25) < 0.5, 0.5, "share"),
    Design("share 0.05, 30 values", lambda rng: rng.random(30) < 0.05, 0.05, "share"),
)


class Coverage(NamedTuple):
    """How often the interval of the worst part contains the true mean."""

    corrected: float
    uncorrected: float


def build_finding_row(values: np.ndarray, unit: str) -> dict[str, Any]:
    """Build the row of a finding about one part."""
    estimate = estimate_mean_or_share(values, is_share=unit == "share")
    finding = build_finding_from_estimate(
        "audit", "metric", estimate, unit=unit, method_prefix="simulated", worse_when="up"
    )
    return asdict(finding)


def simulate_coverage(design: Design, repetitions: int, seed: int = 1) -> Coverage:
    """Draw all parts and choose the one whose interval begins highest, ``repetitions`` times."""
    rng = np.random.default_rng(seed)
    covered = uncorrected = 0
    for _ in range(repetitions):
        rows = [build_finding_row(design.draw_values(rng), design.unit) for _ in range(PART_COUNT)]
        worst = max(rows, key=lambda row: row["value"] if row["low"] is None else row["low"])
        interval = correct_interval_for_choice(worst, PART_COUNT)
        if interval is None:
            continue
        covered += interval[0] <= design.true_mean <= interval[1]
        uncorrected += worst["low"] <= design.true_mean <= worst["high"]
    return Coverage(covered / repetitions, uncorrected / repetitions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=2000)
    repetitions = parser.parse_args().repetitions
    print(f"{'values of each part':26}{'corrected':>12}{'usual':>10}")
    for design in DESIGNS:
        coverage = simulate_coverage(design, repetitions)
        print(f"{design.name:26}{coverage.corrected:12.1%}{coverage.uncorrected:10.1%}")


if __name__ == "__main__":
    main()
