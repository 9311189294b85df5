"""Test intervals and tests of few, unequal or dependent units by simulation.

    python -m benchmarks.coverage_small_samples [--only WORDS ...] [--repetitions 2000] [--seed 0]

Unlike ``coverage``, which uses the items of the probes, each design here is a known difficulty: few
units, unequal spreads, near-duplicates, heavy tails, ties, a dominant cluster, an uncertain
predictor. The truth of each design is known. They concern areas under the ROC curve, differences
between groups, slopes, and exposure.

Prints one row for each design: the share of repetitions with an interval; the share of these
intervals of 95 % that contain the truth; the shares whose upper end is below the truth, and whose
lower end is above it; and the share of tests at 5 % that reject a true null value. The last column
names what is outside the target: coverage of 92 to 98 %, upper ends that err in at most 4 %, and at
most 6.5 % false positives. All results are a function of the seed. It takes about ten minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np

from hallmark.tasks.audits.methods.exposure import (
    compute_expected_null_exposure,
    remove_interval_of_few_secrets,
)
from hallmark.tasks.measures.contrasts import estimate_group_differences
from hallmark.tasks.measures.estimates import (
    Estimate,
    estimate_mean_difference,
    estimate_mean_or_share,
)
from hallmark.tasks.measures.log_odds import (
    estimate_log_odds_slope,
    smoothed_log_odds,
    smoothed_log_odds_variance,
)
from hallmark.tasks.measures.roc import estimate_roc_auc
from hallmark.tasks.measures.slopes import estimate_linear_slope

Floats = np.ndarray
Rng = np.random.Generator

ACCEPTED_COVERAGE = 0.92, 0.98
MAX_UPPER_ERRORS, MAX_FALSE_POSITIVES = 0.04, 0.065

#: Relabellings for one interval of a difference between groups.
PERMUTATIONS = 499

#: References of a simulated secret.
REFERENCE_COUNT = 10_000


@dataclass(frozen=True)
class Design:
    """A design whose truth is known.

    Attributes:
        name: The kind of figure, and what is difficult about the design.
        truth: True value of the figure.
        estimate: Draws values and estimates the figure.
    """

    name: str
    truth: float
    estimate: Callable[[Rng], Estimate]


class DesignResult(NamedTuple):
    """Shares of repetitions; NaN where there is no interval or no test of a true null."""

    with_interval: float
    coverage: float
    upper_end_errs: float
    lower_end_errs: float
    false_positives: float

    def list_problems(self) -> list[str]:
        """Name the shares that miss the target."""
        problems = []
        if not np.isnan(self.coverage):
            if not ACCEPTED_COVERAGE[0] <= self.coverage <= ACCEPTED_COVERAGE[1]:
                problems.append("coverage")
            if self.upper_end_errs > MAX_UPPER_ERRORS:
                problems.append("upper end")
        if self.false_positives > MAX_FALSE_POSITIVES:
            problems.append("false positives")
        return problems


def measure_design(design: Design, repetitions: int, seed: int) -> DesignResult:
    """Repeat a design and count how often intervals and tests err."""
    rng = np.random.default_rng([seed, crc32(design.name.encode())])
    estimates = [design.estimate(rng) for _ in range(repetitions)]
    shown = [e for e in estimates if not np.isnan(e.low)]
    tested = [e for e in estimates if not np.isnan(e.p) and e.null_value == design.truth]

    def compute_share(flags: list[bool]) -> float:
        return float(np.mean(flags)) if flags else np.nan

    return DesignResult(
        len(shown) / repetitions,
        compute_share([e.low <= design.truth <= e.high for e in shown]),
        compute_share([e.high < design.truth for e in shown]),
        compute_share([e.low > design.truth for e in shown]),
        compute_share([e.p < 0.05 for e in tested]),
    )


# Areas under the ROC curve ------------------------------------------------------------------------


def draw_near_copies(rng: Rng, cluster_sizes: Floats) -> Floats:
    """Draw scores of near-duplicates, which differ little within a cluster."""
    cluster_scores = np.repeat(rng.normal(size=len(cluster_sizes)), cluster_sizes)
    return cluster_scores + 0.2 * rng.normal(size=len(cluster_scores))


def build_auc_designs() -> Iterator[Design]:
    """Yield designs of members and others."""
    from scipy.special import ndtri

    def build_normal_design(
        member_count: int, other_count: int, area: float = 0.5, spread: float = 1.0
    ) -> Design:
        shift = float(ndtri(area)) * np.sqrt(1 + spread**2)
        name = f"AUC {area:g}, {member_count} members, {other_count} others"
        return Design(
            name + (f", spread {spread:g}" if spread != 1 else ""),
            area,
            lambda rng: estimate_roc_auc(
                rng.normal(shift, spread, member_count), rng.normal(size=other_count)
            ),
        )

    for counts in ((2, 100), (3, 100), (5, 100), (8, 40), (20, 20)):
        yield build_normal_design(*counts)
    yield build_normal_design(8, 40, 0.76)
    yield build_normal_design(32, 8, 0.9)
    yield build_normal_design(100, 100, 0.97)
    yield build_normal_design(10, 100, spread=5)
    yield build_normal_design(40, 10, spread=0.2)
    yield Design(
        "AUC, heavy tails",
        0.5,
        lambda rng: estimate_roc_auc(rng.standard_t(1, 15), rng.standard_t(1, 30)),
    )
    yield Design(
        "AUC, three distinct values",
        0.5,
        lambda rng: estimate_roc_auc(
            rng.choice(3, 20, p=[0.8, 0.1, 0.1]), rng.choice(3, 30, p=[0.8, 0.1, 0.1])
        ),
    )

    def estimate_with_missing(rng: Rng) -> Estimate:
        samples = rng.normal(size=(2, 40))
        samples[rng.random(samples.shape) < 0.3] = np.nan
        return estimate_roc_auc(*samples)

    yield Design("AUC, partly missing", 0.5, estimate_with_missing)
    yield Design("AUC, all equal", 0.5, lambda rng: estimate_roc_auc(np.ones(20), np.ones(20)))
    for name, sizes in (
        ("near copies", np.full(15, 4)),
        ("a dominant cluster", np.array([15] + [1] * 15)),
    ):
        yield Design(
            f"AUC, {name}",
            0.5,
            lambda rng, sizes=sizes: estimate_roc_auc(
                draw_near_copies(rng, sizes),
                draw_near_copies(rng, np.full(15, 4)),
                (
                    np.repeat(np.arange(len(sizes)), sizes),
                    np.repeat(np.arange(15), 4) + len(sizes),
                ),
            ),
        )


# Differences between groups -----------------------------------------------------------------------


class Blocks(NamedTuple):
    """Values of blocks of a group and of the others."""

    values: Floats
    blocks: Floats
    """Number of the block of each value."""
    member_count: int
    """Number of blocks of the group, which are the first."""


def estimate_block_difference(drawn: Blocks) -> Estimate:
    """Estimate the difference between a group and the others."""
    groups = np.where(drawn.blocks < drawn.member_count, "group", "others").tolist()
    return estimate_group_differences(
        drawn.values, groups, drawn.blocks.tolist(), permutations=PERMUTATIONS
    )["group"]


def build_difference_designs() -> Iterator[Design]:
    """Yield designs of groups, without and with strata."""

    def build_single_values(
        name: str,
        member_count: int,
        other_count: int,
        spread: float = 1.0,
        draw: Callable[[Rng, int], Floats] = lambda rng, n: rng.normal(size=n),
    ) -> Design:
        def estimate(rng: Rng) -> Estimate:
            members, others = spread * draw(rng, member_count), draw(rng, other_count)
            values = np.concatenate([members, others])
            return estimate_block_difference(Blocks(values, np.arange(len(values)), member_count))

        name = f"difference, {member_count} and {other_count}, {name}"
        return Design(name + (f", spread {spread:g}" if spread != 1 else ""), 0.0, estimate)

    yield build_single_values("normal", 2, 10)
    yield build_single_values("normal", 3, 3)
    yield build_single_values("normal", 3, 20, 3)
    yield build_single_values("normal", 4, 20, 3)
    yield build_single_values("normal", 8, 60, 3)
    yield build_single_values("normal", 12, 30, 3)
    yield build_single_values("normal", 8, 60, 1 / 3)
    yield build_single_values("heavy tails", 5, 20, draw=lambda rng, n: rng.standard_t(2.5, n))
    yield build_single_values("skewed", 6, 40, draw=lambda rng, n: rng.exponential(size=n) - 1)
    yield build_single_values("skewed", 8, 40, 3, lambda rng, n: rng.gamma(4, 0.5, size=n) - 2)
    yield build_single_values("ties", 8, 30, draw=lambda rng, n: rng.binomial(4, 0.1, n) / 4)
    yield build_single_values("all equal", 8, 30, draw=lambda rng, n: np.zeros(n))

    def draw_unequal_blocks(rng: Rng, sizes: Floats, member_count: int, spread: float) -> Blocks:
        blocks = np.repeat(np.arange(len(sizes)), sizes)
        values = 0.5 * rng.normal(size=len(sizes))[blocks] + rng.normal(size=len(blocks))
        return Blocks(values * np.where(blocks < member_count, spread, 1), blocks, member_count)

    yield Design(
        "difference, unequal sizes, spread 3",
        0.0,
        lambda rng: estimate_block_difference(
            draw_unequal_blocks(rng, rng.integers(1, 10, 40), 10, 3.0)
        ),
    )
    yield Design(
        "difference, a dominant block",
        0.0,
        lambda rng: estimate_block_difference(
            draw_unequal_blocks(rng, np.array([60] + [3] * 25), 6, 1.0)
        ),
    )

    def estimate_partly_missing(rng: Rng) -> Estimate:
        drawn = draw_unequal_blocks(rng, np.full(24, 3), 6, 3.0)
        missing = rng.random(len(drawn.values)) < 0.4
        return estimate_block_difference(
            drawn._replace(values=np.where(missing, np.nan, drawn.values))
        )

    yield Design("difference, partly missing, spread 3", 0.0, estimate_partly_missing)

    def build_strata(stratum_count: int, group_count: int, spread: float) -> Design:
        def estimate(rng: Rng) -> Estimate:
            n = stratum_count * group_count
            group_codes, strata = np.arange(n) % group_count, np.arange(n) // group_count
            values = 2 * rng.normal(size=stratum_count)[strata]
            values += rng.normal(size=n) * np.where(group_codes == 0, spread, 1.0)
            return estimate_group_differences(
                values,
                [f"group {code}" for code in group_codes],
                range(n),
                strata.tolist(),
                permutations=PERMUTATIONS,
            )["group 0"]

        name = f"difference, {group_count} groups within {stratum_count} strata"
        return Design(name + (f", spread {spread:g}" if spread != 1 else ""), 0.0, estimate)

    yield build_strata(16, 5, 1.0)
    yield build_strata(16, 5, 3.0)
    yield build_strata(16, 2, 3.0)
    yield build_strata(4, 5, 3.0)


# Slopes -------------------------------------------------------------------------------------------


def build_slope_designs() -> Iterator[Design]:
    """Yield slopes over a known predictor, and log-odds slopes over that of a text."""

    def build_linear_design(
        name: str, predictor: Floats, draw: Callable[[Rng, int], Floats]
    ) -> Design:
        """Build a design with six values of each cluster, one cluster for each predictor."""
        clusters = np.repeat(np.arange(len(predictor)), 6)

        def estimate(rng: Rng) -> Estimate:
            values = draw(rng, len(predictor))[clusters] + rng.normal(size=len(clusters))
            return estimate_linear_slope(values, predictor[clusters], clusters.tolist())

        return Design(f"slope, {name}", 0.0, estimate)

    def draw_normals(rng: Rng, n: int) -> Floats:
        return rng.normal(size=n)

    doses = np.array([0.5, 0.6, 0.75, 0.9, 1.0])
    yield build_linear_design("20 clusters", np.repeat(doses, 4), draw_normals)
    yield build_linear_design("5 clusters", doses, draw_normals)
    yield build_linear_design("4 clusters", doses[:4], draw_normals)
    yield build_linear_design("3 clusters", doses[:3], draw_normals)
    yield build_linear_design(
        "10 clusters, heavy tails", np.repeat(doses, 2), lambda rng, n: rng.standard_t(2.5, n)
    )
    yield build_linear_design(
        "10 clusters, one with a distant predictor",
        np.array([*np.linspace(0, 1, 9), 4.0]),
        draw_normals,
    )

    def build_log_odds_design(
        occupation_count: int, fewest: int, most: int, slope: float, spread: float = 1.0
    ) -> Design:
        """Build a design of a model that reproduces the log-odds of its text times a slope.

        The log-odds vary with a spread; those of the model also vary by themselves (0.3). Both are
        seen through counts: ``fewest`` to ``most`` mentions in the text, four prompts with four
        mentions each in the model's words.
        """
        from scipy.special import expit

        clusters = np.repeat(np.arange(occupation_count), 16)
        strata = np.tile(np.repeat(np.arange(4), 4), occupation_count)

        def estimate(rng: Rng) -> Estimate:
            log_odds = spread * rng.normal(size=occupation_count)
            mentions = np.exp(rng.uniform(*np.log([fewest, most]), occupation_count)).astype(int)
            women = rng.binomial(mentions, expit(log_odds))
            own = slope * log_odds + 0.3 * rng.normal(size=occupation_count)
            chance = expit(0.5 * rng.normal(size=4)[strata] + own[clusters])
            return estimate_log_odds_slope(
                (rng.random(len(clusters)) < chance).astype(float),
                smoothed_log_odds(women, mentions)[clusters],
                strata.tolist(),
                clusters.tolist(),
                predictor_variances=smoothed_log_odds_variance(women, mentions)[clusters],
                null_value=slope,
            )

        name = f"amplification {slope:g}, {occupation_count} occupations of {fewest}-{most}"
        return Design(name + (f", spread {spread:g}" if spread != 1 else ""), slope, estimate)

    yield build_log_odds_design(30, 30, 60, 1.0)
    yield build_log_odds_design(30, 30, 1000, 1.0)
    yield build_log_odds_design(30, 30, 60, 2.0)
    yield build_log_odds_design(15, 30, 200, 1.0)
    yield build_log_odds_design(15, 30, 200, 1.0, 0.5)
    yield build_log_odds_design(8, 30, 200, 1.0)
    yield build_log_odds_design(4, 30, 200, 1.0)


# Exposure -----------------------------------------------------------------------------------------


def draw_never_planted(rng: Rng, n: int) -> Floats:
    """Draw exposures of secrets that were never planted: all ranks are equally likely."""
    ranks = rng.integers(1, REFERENCE_COUNT + 2, n)
    exposures: Floats = np.log2(REFERENCE_COUNT) - np.log2(ranks)
    return exposures


def draw_half_memorised(rng: Rng, n: int) -> Floats:
    """Draw exposures of secrets of which half rank first."""
    return np.where(rng.random(n) < 0.5, np.log2(REFERENCE_COUNT), draw_never_planted(rng, n))


def draw_mostly_memorised(rng: Rng, n: int) -> Floats:
    """Draw exposures of which half are the largest possible one, and the others somewhat lower."""
    return np.log2(REFERENCE_COUNT) - 1.2 * (rng.geometric(0.5, n) - 1)


def build_exposure_designs() -> Iterator[Design]:
    """Yield the exposure of secrets, and its difference from that of secrets never planted."""
    null_mean, ceiling = compute_expected_null_exposure(REFERENCE_COUNT), np.log2(REFERENCE_COUNT)
    kinds = (
        ("never planted", draw_never_planted, null_mean),
        ("half memorised", draw_half_memorised, (null_mean + ceiling) / 2),
        ("mostly memorised", draw_mostly_memorised, ceiling - 1.2),
    )
    for kind, draw, mean in kinds:
        for n in (4, 8, 16):
            yield Design(
                f"exposure, {n} secrets, {kind}",
                mean,
                lambda rng, draw=draw, n=n: remove_interval_of_few_secrets(
                    estimate_mean_or_share(draw(rng, n), unit="canaries"), n
                ),
            )
            yield Design(
                f"exposure difference, {n} secrets each, {kind}",
                mean - null_mean,
                lambda rng, draw=draw, n=n: remove_interval_of_few_secrets(
                    estimate_mean_difference(
                        draw(rng, n), draw_never_planted(rng, n), unit="canaries"
                    ),
                    n,
                ),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=(), help="words that names begin with")
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(
        f"{'design':<60}{'shown':>8}{'coverage':>10}{'upper errs':>12}{'lower errs':>12}"
        f"{'false pos.':>12}",
        flush=True,
    )
    for design in (
        *build_auc_designs(),
        *build_difference_designs(),
        *build_slope_designs(),
        *build_exposure_designs(),
    ):
        if options.only and not design.name.startswith(tuple(options.only)):
            continue
        result = measure_design(design, options.repetitions, options.seed)
        shares = [f"{'-' if np.isnan(share) else f'{share:.1%}'}" for share in result]
        print(
            f"{design.name:<60}{shares[0]:>8}{shares[1]:>10}{shares[2]:>12}{shares[3]:>12}"
            f"{shares[4]:>12}  {', '.join(result.list_problems())}",
            flush=True,
        )


if __name__ == "__main__":
    main()
