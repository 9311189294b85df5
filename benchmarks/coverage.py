"""Test confidence intervals and stated powers of the audits' findings by simulation.

    python -m benchmarks.coverage [--data FOLDER] [--only PROBE ...] [--quick]

Each finding uses the real items of its probe (``coverage_findings``), with simulated values whose
true mean is known. A value is computed from a normal number. With independent values, the numbers
are independent; with clustered values, a share CLUSTER_SHARE of each number's variance is common to
its cluster. The values go through the estimator of the finding.

Prints one row for each finding: the number of units and of clusters; the share of 1,000 intervals
of 95 % that contain the true mean; the mean of the minimum detectable effects (80 % power) that
the finding states; and the share of 2,000 tests at 5 % that detect an effect of this size. Each
share is given for independent and for clustered values.

At the end come the findings whose coverage is outside 92 to 98 % (for shares with fewer than 40
units: below 92 %) or whose power is outside 74 to 84 %. Such a finding is first repeated with
another seed and four times as many repetitions, and only this result counts. All results are a
function of the seed. It takes ten to twenty minutes on two cores.
"""

from __future__ import annotations

import argparse
import functools
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

from benchmarks.coverage_findings import build_findings
from benchmarks.coverage_simulation import FindingName, SimulatedFinding
from benchmarks.coverage_text_findings import build_text_findings
from hallmark.tasks.measures.estimates import MAX_EXACT_UNITS

#: Share of the variance that is common to a cluster, where values are clustered.
CLUSTER_SHARE = 0.2

ACCEPTED_COVERAGE = 0.92, 0.98
ACCEPTED_POWER = 0.74, 0.84

#: Factor of repetitions with which an unacceptable result is measured again.
RECHECK_FACTOR = 4


class SharePair(NamedTuple):
    """A share of repetitions with independent and with clustered values; NaN if not measured."""

    independent: float
    clustered: float


class Power(NamedTuple):
    """The stated minimum detectable effect, and how often it is detected."""

    mean_effect: float
    """Mean of the minimum detectable effects that the estimates state."""
    detected_share: float
    """Share of tests that detect the effect."""


@dataclass(frozen=True)
class FindingResult:
    """Coverage and power of a finding; NaN where it has no interval or no test."""

    name: FindingName
    unit_count: int
    cluster_count: int
    is_share: bool
    minimum_detectable_effect: float
    """Mean of the stated effects, with independent values."""
    coverage: SharePair
    """Share of intervals that contain the true mean."""
    power: SharePair
    """Share of tests that detect the stated minimum detectable effect."""

    def list_problems(self) -> list[str]:
        """List the shares that are outside the accepted range."""
        low, high = ACCEPTED_COVERAGE
        high = 1.0 if self.is_share and self.cluster_count < MAX_EXACT_UNITS else high
        problems = []
        for quantity, shares, accepted_low, accepted_high in (
            ("coverage", self.coverage, low, high),
            ("power", self.power, *ACCEPTED_POWER),
        ):
            for values_are, share in shares._asdict().items():
                if not np.isnan(share) and not accepted_low <= share <= accepted_high:
                    problems.append(f"{quantity} {share:.1%}, {values_are} values")
        return problems


def draw_normals(
    finding: SimulatedFinding, rng: np.random.Generator, cluster_share: float
) -> np.ndarray:
    """Draw standard normal numbers for one simulation, (finding.normal_count,).

    Args:
        finding: The finding whose values are simulated.
        rng: The random generator.
        cluster_share: Share of the variance that is common to a cluster. Two kinds of clusters
            have half of it each.
    """
    independent = rng.normal(size=finding.normal_count)
    if not cluster_share:
        return independent
    clusterings = [c for c in (finding.clusters, finding.crossed_clusters) if c is not None]
    common = sum(rng.normal(size=clusters.max() + 1)[clusters] for clusters in clusterings)
    common_weight = np.sqrt(cluster_share / len(clusterings))
    return common_weight * common + np.sqrt(1 - cluster_share) * independent


def measure_coverage(
    finding: SimulatedFinding, seed: int, cluster_share: float, repetitions: int
) -> float:
    """Return the share of intervals that contain the true mean; NaN if there are no intervals."""
    rng = np.random.default_rng([seed, crc32(repr(tuple(finding.name)).encode())])
    covering_count, interval_count = 0, 0
    for number in range(repetitions):
        normals = draw_normals(finding, rng, cluster_share)
        estimate = finding.estimate(finding.simulate(normals, finding.truth), number)
        if not np.isnan(estimate.low):
            interval_count += 1
            covering_count += estimate.low <= finding.truth <= estimate.high
    return covering_count / interval_count if interval_count else np.nan


def measure_power(
    finding: SimulatedFinding, seed: int, cluster_share: float, repetitions: int
) -> Power:
    """Measure how often an effect of the stated minimum detectable size is detected."""
    rng = np.random.default_rng([seed, crc32(repr(tuple(finding.name)).encode()), 1])
    stated_effects, detected_count = [], 0
    for number in range(repetitions):
        normals = draw_normals(finding, rng, cluster_share)
        null_estimate = finding.estimate(finding.simulate(normals, finding.null), number)
        effect = null_estimate.minimum_detectable_effect
        mean = finding.null + effect * finding.harder_side
        if np.isnan(mean):
            continue
        stated_effects.append(effect)
        normals = draw_normals(finding, rng, cluster_share)
        detected_count += finding.estimate(finding.simulate(normals, mean), number).p < 0.05
    # Where only some repetitions state an effect, the power to detect it has no meaning.
    if len(stated_effects) <= 0.9 * repetitions:
        return Power(np.nan, np.nan)
    return Power(float(np.mean(stated_effects)), detected_count / len(stated_effects))


@functools.cache
def list_findings(public_sets: Path | None, probes: tuple[str, ...]) -> list[SimulatedFinding]:
    """List the findings of some probes, or of all probes if none is named."""
    return [
        *build_findings(public_sets, probes),
        *build_text_findings(public_sets, probes),
    ]


def check_finding(
    number: int, public_sets: Path | None, probes: tuple[str, ...], seed: int, quick: bool
) -> FindingResult:
    """Measure coverage and power of a finding, given by its number in ``list_findings``.

    Among hundreds of findings some are outside the accepted range by chance. Those are measured
    again with another seed and more repetitions. Each process builds the list of findings itself.
    """
    finding = list_findings(public_sets, probes)[number]
    intervals, tests = (50, 20) if quick else (1000, 2000)
    result = measure_finding(finding, seed, intervals, tests)
    if result.list_problems() and not quick:
        return measure_finding(
            finding, seed + 1, RECHECK_FACTOR * intervals, RECHECK_FACTOR * tests
        )
    return result


def measure_finding(
    finding: SimulatedFinding, seed: int, intervals: int, tests: int
) -> FindingResult:
    """Measure coverage and power of a finding.

    Args:
        finding: The finding.
        seed: Seed of the simulations.
        intervals: Number of intervals from which the coverage is computed.
        tests: Number of tests from which the power is computed.
    """
    unit_count, cluster_count = len(finding.clusters), int(finding.clusters.max()) + 1
    coverage: list[float] = []
    power: list[float] = []
    minimum_detectable_effect = np.nan
    for cluster_share in (0.0, CLUSTER_SHARE):
        has_clusters = finding.crossed_clusters is not None or cluster_count < unit_count
        if cluster_share and not has_clusters:
            coverage, power = [*coverage, np.nan], [*power, np.nan]
            continue
        coverage.append(measure_coverage(finding, seed, cluster_share, intervals))
        measured_power = measure_power(finding, seed, cluster_share, tests)
        power.append(measured_power.detected_share)
        if not cluster_share:
            minimum_detectable_effect = measured_power.mean_effect
    return FindingResult(
        finding.name,
        unit_count,
        cluster_count,
        finding.is_share,
        minimum_detectable_effect,
        SharePair(*coverage),
        SharePair(*power),
    )


def format_percent(value: float) -> str:
    return f"{'-':>7}" if np.isnan(value) else f"{value:7.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the public sets")
    parser.add_argument("--only", nargs="+", default=(), help="names of probes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions in one process, to try the program"
    )
    options = parser.parse_args()
    probes = tuple(options.only)
    count = len(list_findings(options.data, probes))
    print(
        f"{'':<19}{'':<34}{'':<34}{'':>5}{'':>9} {'coverage, values':>21}"
        f"{'detectable':>12} {'power, values':>21}"
    )
    print(
        f"{'probe':<19}{'metric':<34}{'part':<34}{'n':>5}{'clusters':>9} {'independ.':>10}"
        f" {'clustered':>10}{'effect':>12} {'independ.':>10} {'clustered':>10}",
        flush=True,
    )
    problems = []
    check = functools.partial(
        check_finding,
        public_sets=options.data,
        probes=probes,
        seed=options.seed,
        quick=options.quick,
    )
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:  # starts when first used
        for result in (map if options.quick else pool.map)(check, range(count)):
            probe, metric, part = result.name
            print(
                f"{probe:<19}{metric:<34}{part:<34}{result.unit_count:>5}{result.cluster_count:>9} "
                f"{format_percent(result.coverage.independent):>10} "
                f"{format_percent(result.coverage.clustered):>10}"
                f"{result.minimum_detectable_effect:>12.3g} "
                f"{format_percent(result.power.independent):>10} "
                f"{format_percent(result.power.clustered):>10}",
                flush=True,
            )
            title = ", ".join(filter(None, result.name))
            problems += [f"{title}: {problem}" for problem in result.list_problems()]
    print(f"{count} findings; outside the accepted range: {len(problems) or 'none'}")
    print("\n".join(problems))


if __name__ == "__main__":
    main()
