"""What became of findings when documents were left out: arms of a training, compared unit by unit.

    base      trained on everything
    removed   without the documents behind the findings, from the same seed
    random    without as many others of the same sources and lengths, from the same seed
    seed N    trained on everything from another seed: how far trainings differ by themselves

All are asked the same, so that a change is a mean over pairs of the same unit. Units in which there
is nothing to find (secrets never planted, groups of whom both traits are said alike) tell where a
finding would be that is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hallmark.tasks.audits.experiments.source_documents import RemovalCase
from hallmark.tasks.audits.judging.comparison import compute_paired_change
from hallmark.tasks.audits.judging.comparison_units import ComparisonUnit
from hallmark.tasks.audits.methods.exposure import (
    compute_expected_null_exposure,
    simulate_null_exposure_interval,
)
from hallmark.tasks.measures.estimates import (
    Estimate,
    estimate_mean_difference,
    estimate_mean_or_share,
)
from hallmark.tasks.measures.statistics import wilson_interval

BASE, REMOVED, RANDOM, SEED = "base", "removed", "random", "seed"

#: A mean of units in which there is nothing to find lies in its null region with this probability.
NULL_REGION_LEVEL = 0.99

#: Units of memorised text that a proof needs, and what it must reach of the effect before.
MIN_UNITS, MAX_REMAINING_SHARE, MIN_REDUCTION_SHARE = 16, 0.25, 0.5

#: The line that counts them.
UNIT_COUNT_CRITERION = "secrets or passages"

Row = dict[str, Any]
UnitsById = Mapping[str, ComparisonUnit]


@dataclass(frozen=True)
class CaseUnits:
    """The units of a case by arm, and those in which there is nothing to find; ``references``:
    among how many secrets each was ranked, where it is one."""

    case: RemovalCase
    units_by_arm: Mapping[str, UnitsById]
    null_units_by_arm: Mapping[str, UnitsById]
    reference_count: int = 0
    seed: int = 0

    @property
    def is_share(self) -> bool:
        return self.case.unit == "share"

    def estimate_mean(self, units: UnitsById) -> Estimate:
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
        """How far its units are from those with nothing to find, of one arm."""
        return estimate_difference(
            self.units_by_arm[arm], self.null_units_by_arm[arm], self.is_share
        )


def average_by_cluster(units: UnitsById) -> NDArray[np.float64]:
    """The mean of each cluster that has a value, (clusters,)."""
    values_by_cluster: dict[str, list[float]] = {}
    for unit in units.values():
        if not np.isnan(unit.value):
            values_by_cluster.setdefault(unit.cluster, []).append(unit.value)
    return np.array([np.mean(cluster_values) for cluster_values in values_by_cluster.values()])


def estimate_difference(units: UnitsById, null_units: UnitsById, is_share: bool) -> Estimate:
    """mean(left) - mean(right) over clusters that have nothing in common. Of shares the interval is
    Newcombe's (1998, method 10), which also knows how far off a share of nothing or all may be."""
    cluster_means = [average_by_cluster(side_units) for side_units in (units, null_units)]
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
    method = f"Newcombe's interval over {len(cluster_means[0])} and {len(cluster_means[1])} units"
    bounds = (
        mean_difference.value - float(lower_margin),
        mean_difference.value + float(upper_margin),
    )
    return replace(mean_difference, low=bounds[0], high=bounds[1], method=method)


def compare_paired_units(base_units: UnitsById, arm_units: UnitsById, is_share: bool) -> Row | None:
    """What the second has more than the first, in pairs."""
    return compute_paired_change(base_units, arm_units, "share" if is_share else "")


def compute_null_region(case_units: CaseUnits, arm: str) -> tuple[float, float, float, str] | None:
    """Where the mean of the units lies with probability REGION if they are like those with nothing
    to find: low, high, what is expected, and how it is known. Of secrets in closed form; else by
    drawing as many of both together, as if it were chance which is which (a permutation)."""
    if not case_units.null_units_by_arm.get(arm):
        return None
    arm_means, null_means = (
        average_by_cluster(case_units.units_by_arm[arm]),
        average_by_cluster(case_units.null_units_by_arm[arm]),
    )
    if not len(arm_means) or not len(null_means):
        return None
    if case_units.reference_count:
        low, high = simulate_null_exposure_interval(
            case_units.reference_count, len(arm_means), case_units.seed, NULL_REGION_LEVEL
        )
        expected = compute_expected_null_exposure(case_units.reference_count)
        return low, high, expected, f"{len(arm_means)} secrets of random rank among the references"
    pooled_means = np.concatenate([arm_means, null_means])
    rng = np.random.default_rng(case_units.seed)
    draws = rng.permuted(np.tile(pooled_means, (4000, 1)), axis=1)[:, : len(arm_means)].mean(1)
    low, high = np.quantile(draws, ((1 - NULL_REGION_LEVEL) / 2, (1 + NULL_REGION_LEVEL) / 2))
    method = f"{len(arm_means)} drawn of these and of {len(null_means)} never planted, 4,000 times"
    return float(low), float(high), float(null_means.mean()), method


# Effects -------------------------------------------------------------------------------------


def compute_effects(case_units: CaseUnits) -> list[Row]:
    """Rows of EFFECTS of a case."""
    effect_rows = [*_compute_arm_levels(case_units), *_compute_arm_changes(case_units)]
    return [
        {"case_name": case_units.case.name, "unit": case_units.case.unit, **row}
        for row in effect_rows
    ]


def _compute_arm_levels(case_units: CaseUnits) -> Iterator[Row]:
    """What each arm has, of the units and of those with nothing to find."""
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
        low, high, expected, method = null_region
        yield {
            "effect": "null_region",
            "arm": REMOVED,
            "value": expected,
            "low": low,
            "high": high,
            "confidence_level": NULL_REGION_LEVEL,
            "n": len(average_by_cluster(case_units.units_by_arm[REMOVED])),
            "clusters": None,
            "method": method,
            "seed_noise": None,
            "verdict": "",
        }
    for effect, arm in (("effect_before", BASE), ("effect_after", REMOVED)):
        if case_units.null_units_by_arm.get(arm) and case_units.units_by_arm[arm]:
            yield build_estimate_row(effect, arm, case_units.estimate_effect(arm))


def _compute_arm_changes(case_units: CaseUnits) -> Iterator[Row]:
    """What each arm has more than the base, in pairs; and the random one than the removed one."""
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
    if case_units.null_units_by_arm.get(BASE) and case_units.units_by_arm[REMOVED]:
        base_effect, remaining_effect = (
            case_units.estimate_effect(BASE),
            case_units.estimate_effect(REMOVED),
        )
        has_base_effect = base_effect.value > 0
        method = "how much of the effect before is not left after the removal; "
        if np.isnan(base_effect.value):
            method += "it was not measured"
        else:
            method += "an estimate, without an interval" if has_base_effect else "there was none"
        is_known = has_base_effect and not np.isnan(remaining_effect.value)
        yield {
            "effect": "explained_share",
            "arm": REMOVED,
            "value": 1 - remaining_effect.value / base_effect.value if is_known else None,
            "low": None,
            "high": None,
            "confidence_level": None,
            "n": remaining_effect.n,
            "clusters": remaining_effect.clusters,
            "method": method,
            "seed_noise": None,
            "verdict": "",
            "unit": "share",
        }


def compare_with_seed_noise(change: Row, seed_noise: float | None) -> str:
    """Whether a change is surely larger than trainings differ by themselves."""
    if seed_noise is None or change["value"] is None:
        return ""
    nearest_bound = distance_from_zero(change["low"], change["high"])
    return (
        "beyond noise"
        if nearest_bound is not None and nearest_bound > seed_noise
        else "within noise"
    )


def distance_from_zero(low: float | None, high: float | None) -> float | None:
    """How far from 0 the end of an interval is that is nearest to it; below 0 where 0 is inside,
    None where there is no interval."""
    return None if low is None or high is None else max(low, -high)


def build_estimate_row(effect: str, arm: str, arm_estimate: Estimate) -> Row:
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


def _build_change_row(effect: str, arm: str, comparison: Row) -> Row:
    figures = ("value", "low", "high", "n", "clusters", "method")
    return {
        "effect": effect,
        "arm": arm,
        "confidence_level": None if comparison["low"] is None else 0.95,
        **{figure: comparison[figure] for figure in figures},
    }


# What must be reached ------------------------------------------------------------------------


def evaluate_criteria(case: RemovalCase, effect_rows: Sequence[Row]) -> list[Row]:
    """Rows of LINES of a case, from its effects."""
    rows_by_effect = {(row["effect"], row["arm"]): row for row in effect_rows}

    def get_figure(effect: str, arm: str, figure: str = "value") -> float | None:
        row = rows_by_effect.get((effect, arm))
        return None if row is None else row[figure]

    base_effect = get_figure("effect_before", BASE)
    if base_effect is not None and base_effect <= 0:  # nothing that could go away
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
                "after removal the mean, against the low end of the 99 % null region",
                removed_mean,
                "at least",
                low,
            ),
            (
                "after removal the mean, against the high end of the 99 % null region",
                removed_mean,
                "at most",
                high,
            ),
            (
                "upper end of removed − never planted, against a quarter of the effect before",
                get_figure("effect_after", REMOVED, "high"),
                "below",
                _scale_if_known(MAX_REMAINING_SHARE, base_effect),
            ),
            (
                "lower end of random − removed, against half of the effect before",
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
                "fall after removal, against half of the distance to groups planted at 50 %",
                None if change_value is None else 0.0 - change_value,
                "at least",
                _scale_if_known(MIN_REDUCTION_SHARE, base_effect),
            ),
            ("lower end of the fall", None if change_high is None else -change_high, "above", 0.0),
        ]
    seed_noise = get_figure("change_from_base", REMOVED, "seed_noise")
    if seed_noise is not None:
        low, high = (get_figure("change_from_base", REMOVED, figure) for figure in ("low", "high"))
        direction, nearest_bound = "change", distance_from_zero(low, high)
        if case.kind != "other":  # such a finding goes away by falling
            direction, nearest_bound = "fall", None if high is None else -high
        criteria.append(
            (
                f"{direction} after removal, its end nearest to 0, against the largest distance of "
                f"another seed from the base",
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
    """pass or fail; empty where either is not known."""
    if value is None or bound is None:
        return ""
    is_met = {
        "at least": value >= bound,
        "at most": value <= bound,
        "above": value > bound,
        "below": value < bound,
    }[comparison]
    return "pass" if is_met else "fail"
