"""Compare the arms of a removal experiment: what removing documents does to findings.

    base      trained on everything
    removed   trained without the source documents of the findings, with the same seed
    random    trained without random documents of the same number, sources and lengths, same seed
    seed N    trained on everything with another seed: how much trainings differ by chance

All arms get the same requests, so a change is a mean over pairs of the same unit. Units without an
effect (secrets never planted, groups with both traits stated equally often) show the value of a
finding that is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hallmark.tasks.audits.experiments.source_documents import RemovalCase
from hallmark.tasks.audits.judging.comparison import PairedChange, compute_paired_change
from hallmark.tasks.audits.judging.comparison_units import ComparisonUnit
from hallmark.tasks.audits.methods.exposure import (
    compute_expected_null_exposure,
    simulate_null_exposure_interval,
)
from hallmark.tasks.contract import Row, format_count
from hallmark.tasks.measures.estimates import (
    Estimate,
    estimate_mean_difference,
    estimate_mean_or_share,
)
from hallmark.tasks.measures.statistics import wilson_interval

BASE, REMOVED, RANDOM, SEED = "base", "removed", "random", "seed"

#: Probability that the mean of units without an effect lies in the null region.
NULL_REGION_LEVEL = 0.99

#: Minimum units of memorised text, maximum remaining share and minimum reduction of the effect.
MIN_UNITS, MAX_REMAINING_SHARE, MIN_REDUCTION_SHARE = 16, 0.25, 0.5

#: The criterion that counts units.
UNIT_COUNT_CRITERION = "secrets or passages"

UnitsById = Mapping[str, ComparisonUnit]


class NullRegion(NamedTuple):
    """Say where the mean of units lies if there is nothing to find in them.

    Attributes:
        low: Lower end of the region that has it with NULL_REGION_LEVEL.
        high: Upper end.
        expected: Expected value of the mean.
        method: How the region was computed, in a phrase.
    """

    low: float
    high: float
    expected: float
    method: str


@dataclass(frozen=True)
class CaseUnits:
    """Hold the units of a case in each arm of the experiment.

    Attributes:
        case: The case.
        units_by_arm: The units of its findings.
        null_units_by_arm: Units without an effect, for comparison.
        reference_count: For secrets, the number of references that each was ranked among, else 0.
        seed: Seed of the draws that give the null region.
    """

    case: RemovalCase
    units_by_arm: Mapping[str, UnitsById]
    null_units_by_arm: Mapping[str, UnitsById]
    reference_count: int = 0
    seed: int = 0

    @property
    def is_share(self) -> bool:
        """Whether the values of the units are shares."""
        return self.case.unit == "share"

    def estimate_mean(self, units: UnitsById) -> Estimate:
        """Estimate the mean or the share of units."""
        clusters = [unit.cluster for unit in units.values()]
        values = [unit.value for unit in units.values()]
        crossed_ids = [unit.crossed_cluster for unit in units.values()]
        return estimate_mean_or_share(
            values,
            clusters,
            is_share=self.is_share,
            unit="units",
            crossed_clusters=crossed_ids
            if any(crossed_id is not None for crossed_id in crossed_ids)
            else None,
        )

    def estimate_effect(self, arm: str) -> Estimate:
        """Estimate how much the units of an arm exceed its units without an effect."""
        return estimate_difference_from_null_units(
            self.units_by_arm[arm], self.null_units_by_arm[arm], self.is_share
        )


def compute_cluster_means(units: UnitsById) -> NDArray[np.float64]:
    """Compute the mean of each cluster that has a value, (clusters,)."""
    values_by_cluster: dict[str, list[float]] = {}
    for unit in units.values():
        if not np.isnan(unit.value):
            values_by_cluster.setdefault(unit.cluster, []).append(unit.value)
    return np.array([np.mean(cluster_values) for cluster_values in values_by_cluster.values()])


def estimate_difference_from_null_units(
    units: UnitsById, null_units: UnitsById, is_share: bool
) -> Estimate:
    """Estimate mean(units) - mean(null_units) over clusters, which the two must not share.

    ``null_units`` are those without an effect.

    The interval of shares is Newcombe's (1998, method 10), which stays valid for shares of 0 and 1.
    """
    cluster_means = [compute_cluster_means(side_units) for side_units in (units, null_units)]
    mean_difference = estimate_mean_difference(*cluster_means, unit="units")
    if not is_share or min(map(len, cluster_means)) == 0:
        return mean_difference
    side_means = [float(side.mean()) for side in cluster_means]
    wilson_intervals = [
        wilson_interval(mean * len(side), len(side), 0.95)
        for mean, side in zip(side_means, cluster_means, strict=True)
    ]
    lower_margin = np.hypot(
        side_means[0] - wilson_intervals[0][0], wilson_intervals[1][1] - side_means[1]
    )
    upper_margin = np.hypot(
        wilson_intervals[0][1] - side_means[0], side_means[1] - wilson_intervals[1][0]
    )
    method = (
        f"Newcombe interval for the difference between two shares, over {len(cluster_means[0])} "
        f"and {len(cluster_means[1])} units"
    )
    bounds = (
        mean_difference.value - float(lower_margin),
        mean_difference.value + float(upper_margin),
    )
    return replace(mean_difference, low=bounds[0], high=bounds[1], method=method)


def compare_paired_units(
    base_units: UnitsById, arm_units: UnitsById, is_share: bool
) -> PairedChange | None:
    """Estimate by how much the second arm exceeds the first, in pairs of units."""
    return compute_paired_change(base_units, arm_units, "share" if is_share else "")


def compute_null_region(case_units: CaseUnits, arm: str) -> NullRegion | None:
    """Compute the region of the mean of the units if there is nothing to find in them.

    For secrets it is simulated from random ranks. Otherwise the units and those without an effect
    are pooled and samples of the same size are drawn (a permutation test).

    Returns:
        The region; None without units or without units that have no effect.
    """
    if not case_units.null_units_by_arm.get(arm):
        return None
    arm_means, null_means = (
        compute_cluster_means(case_units.units_by_arm[arm]),
        compute_cluster_means(case_units.null_units_by_arm[arm]),
    )
    if not len(arm_means) or not len(null_means):
        return None
    if case_units.reference_count:
        low, high = simulate_null_exposure_interval(
            case_units.reference_count, len(arm_means), case_units.seed, NULL_REGION_LEVEL
        )
        expected = compute_expected_null_exposure(case_units.reference_count)
        return NullRegion(
            low,
            high,
            expected,
            f"simulation: each of {format_count(len(arm_means), 'secret')} is ranked at random "
            "among the references",
        )
    pooled_means = np.concatenate([arm_means, null_means])
    rng = np.random.default_rng(case_units.seed)
    draws = rng.permuted(np.tile(pooled_means, (4000, 1)), axis=1)[:, : len(arm_means)].mean(1)
    low, high = np.quantile(draws, ((1 - NULL_REGION_LEVEL) / 2, (1 + NULL_REGION_LEVEL) / 2))
    method = (
        f"permutation test: mean of {len(arm_means)} values in each of 4,000 random draws from a "
        f"pool of these values and the {len(null_means)} values of units that were never planted"
    )
    return NullRegion(float(low), float(high), float(null_means.mean()), method)


def build_effect_rows(case_units: CaseUnits) -> list[Row]:
    """Build the rows of EFFECTS of a case."""
    effect_rows = [*_build_arm_level_rows(case_units), *_build_arm_change_rows(case_units)]
    return [
        {"case_name": case_units.case.name, "unit": case_units.case.unit, **row}
        for row in effect_rows
    ]


def _build_arm_level_rows(case_units: CaseUnits) -> Iterator[Row]:
    """Yield rows of EFFECTS for each arm: means, with and without an effect, and the effect."""
    for arm, units in case_units.units_by_arm.items():
        if units:
            yield build_estimate_row("mean", arm, case_units.estimate_mean(units))
        if case_units.null_units_by_arm.get(arm):
            yield build_estimate_row(
                "null_mean", arm, case_units.estimate_mean(case_units.null_units_by_arm[arm])
            )
    if case_units.case.kind == "memorised" and (
        null_region := compute_null_region(case_units, REMOVED)
    ):
        yield {
            "effect": "null_region",
            "arm": REMOVED,
            "value": null_region.expected,
            "low": null_region.low,
            "high": null_region.high,
            "confidence_level": NULL_REGION_LEVEL,
            "n": len(compute_cluster_means(case_units.units_by_arm[REMOVED])),
            "clusters": None,
            "method": null_region.method,
            "seed_noise": None,
            "verdict": "",
        }
    for effect, arm in (("effect_before", BASE), ("effect_after", REMOVED)):
        if case_units.null_units_by_arm.get(arm) and case_units.units_by_arm[arm]:
            yield build_estimate_row(effect, arm, case_units.estimate_effect(arm))


def _build_arm_change_rows(case_units: CaseUnits) -> Iterator[Row]:
    """Yield rows of EFFECTS for changes: of each arm from the base, of random from removed."""
    changes = {
        arm: compare_paired_units(case_units.units_by_arm[BASE], units, case_units.is_share)
        for arm, units in case_units.units_by_arm.items()
        if arm != BASE
    }
    seed_changes = [
        change["value"] for arm, change in changes.items() if change and arm.startswith(SEED)
    ]
    noise = max((abs(value) for value in seed_changes if value is not None), default=None)
    for arm, change in changes.items():
        if change is not None:
            arm_noise = None if arm.startswith(SEED) else noise
            yield _build_change_row("change_from_base", arm, change) | {
                "seed_noise": arm_noise,
                "verdict": compare_with_seed_noise(change, arm_noise),
            }
    control_change = compare_paired_units(
        case_units.units_by_arm[REMOVED], case_units.units_by_arm[RANDOM], case_units.is_share
    )
    if control_change is not None:
        yield _build_change_row("random_minus_removed", RANDOM, control_change) | {
            "seed_noise": noise,
            "verdict": compare_with_seed_noise(control_change, noise),
        }


def compare_with_seed_noise(
    change: PairedChange, seed_noise: float | None
) -> Literal["", "beyond noise", "within noise"]:
    """Say whether a change is significantly larger than the difference between seeds."""
    if seed_noise is None or change["value"] is None:
        return ""
    nearest_bound = compute_signed_distance_from_zero(change["low"], change["high"])
    return (
        "beyond noise"
        if nearest_bound is not None and nearest_bound > seed_noise
        else "within noise"
    )


def compute_signed_distance_from_zero(low: float | None, high: float | None) -> float | None:
    """Return the distance from 0 of the nearest end of an interval.

    It is negative if 0 is inside, and None without an interval.
    """
    return None if low is None or high is None else max(low, -high)


def build_estimate_row(effect: str, arm: str, arm_estimate: Estimate) -> Row:
    """Build the row of EFFECTS of an estimate."""
    low, high = (
        None if np.isnan(bound) else float(bound) for bound in (arm_estimate.low, arm_estimate.high)
    )
    value = None if np.isnan(arm_estimate.value) else float(arm_estimate.value)
    return {
        "effect": effect,
        "arm": arm,
        "value": value,
        "low": low,
        "high": high,
        "confidence_level": None if low is None else 0.95,
        "n": arm_estimate.n,
        "clusters": arm_estimate.clusters,
        "method": arm_estimate.method,
        "seed_noise": None,
        "verdict": "",
    }


def _build_change_row(effect: str, arm: str, change: PairedChange) -> Row:
    """Build the row of EFFECTS of a change, without its seed noise and verdict."""
    return {
        "effect": effect,
        "arm": arm,
        "confidence_level": None if change["low"] is None else 0.95,
        "value": change["value"],
        "low": change["low"],
        "high": change["high"],
        "n": change["n"],
        "clusters": change["clusters"],
        "method": change["method"],
    }


def evaluate_criteria(case: RemovalCase, effect_rows: Sequence[Row]) -> list[Row]:
    """Compute the rows of CRITERIA of a case from its effects."""
    rows_by_effect = {(row["effect"], row["arm"]): row for row in effect_rows}

    def get_figure(effect: str, arm: str, figure: str = "value") -> float | None:
        row = rows_by_effect.get((effect, arm))
        return None if row is None else row[figure]

    base_effect = get_figure("effect_before", BASE)
    if base_effect is not None and base_effect <= 0:  # no effect that could disappear
        base_effect = None
    criteria: list[tuple[str, float | None, str, float | None]] = []
    if case.kind == "memorised":
        low, high = (
            get_figure("null_region", REMOVED, "low"),
            get_figure("null_region", REMOVED, "high"),
        )
        removed_mean = get_figure("mean", REMOVED)
        criteria = [
            (UNIT_COUNT_CRITERION, get_figure("mean", REMOVED, "clusters"), "at least", MIN_UNITS),
            (
                "mean after removal (limit: lower end of the 99 % null region of the mean)",
                removed_mean,
                "at least",
                low,
            ),
            (
                "mean after removal (limit: upper end of the 99 % null region of the mean)",
                removed_mean,
                "at most",
                high,
            ),
            (
                "upper end of the confidence interval for the mean after removal minus the mean "
                "of units that were never planted (limit: a quarter of the effect before removal)",
                get_figure("effect_after", REMOVED, "high"),
                "below",
                _scale_if_known(MAX_REMAINING_SHARE, base_effect),
            ),
            (
                "lower end of the confidence interval for the mean after random removal minus "
                "the mean after targeted removal (limit: half of the effect before removal)",
                get_figure("random_minus_removed", RANDOM, "low"),
                "above",
                _scale_if_known(MIN_REDUCTION_SHARE, base_effect),
            ),
        ]
    if case.kind == "association":
        change_value, change_high = (
            get_figure("change_from_base", REMOVED),
            get_figure("change_from_base", REMOVED, "high"),
        )
        criteria = [
            (
                "decrease in the mean after removal (limit: half of the effect before removal, "
                "which is the difference from the mean of groups for which both traits were "
                "planted equally often)",
                None if change_value is None else 0.0 - change_value,
                "at least",
                _scale_if_known(MIN_REDUCTION_SHARE, base_effect),
            ),
            (
                "lower end of the confidence interval for the decrease in the mean after removal",
                None if change_high is None else -change_high,
                "above",
                0.0,
            ),
        ]
    seed_noise = get_figure("change_from_base", REMOVED, "seed_noise")
    if seed_noise is not None:
        low, high = (get_figure("change_from_base", REMOVED, figure) for figure in ("low", "high"))
        direction, nearest_bound = "change", compute_signed_distance_from_zero(low, high)
        if case.kind != "other":  # such a finding disappears by decreasing
            direction, nearest_bound = "decrease", None if high is None else -high
        criteria.append(
            (
                f"end closer to 0 of the confidence interval for the {direction} in the mean after "
                "removal (limit: the largest difference between the base and a training run with "
                "another seed)",
                nearest_bound,
                "above",
                seed_noise,
            )
        )
    return [
        {
            "case_name": case.name,
            "criterion": criterion,
            "value": value,
            "comparison": comparison,
            "bound": bound,
            "unit": "units" if criterion == UNIT_COUNT_CRITERION else case.unit,
            "verdict": judge_criterion(value, comparison, bound),
        }
        for criterion, value, comparison, bound in criteria
    ]


def _scale_if_known(share: float, value: float | None) -> float | None:
    return None if value is None else share * value


def judge_criterion(value: float | None, comparison: str, bound: float | None) -> str:
    """Return pass or fail, or empty if either value is unknown."""
    if value is None or bound is None:
        return ""
    is_met = {
        "at least": value >= bound,
        "at most": value <= bound,
        "above": value > bound,
        "below": value < bound,
    }[comparison]
    return "pass" if is_met else "fail"
