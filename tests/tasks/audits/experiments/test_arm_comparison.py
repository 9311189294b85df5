"""Test the comparison of arms: closed forms, brute force, and verdicts on known effects."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from hallmark.tasks.audits.experiments.arm_comparison import (
    BASE,
    MIN_UNITS,
    RANDOM,
    REMOVED,
    CaseUnits,
    build_effect_rows,
    compare_paired_units,
    compare_with_seed_noise,
    compute_null_region,
    compute_signed_distance_from_zero,
    estimate_difference_from_null_units,
    evaluate_criteria,
    judge_criterion,
)
from hallmark.tasks.audits.experiments.removal_experiment import merge_units_by_cluster
from hallmark.tasks.audits.experiments.source_documents import RemovalCase
from hallmark.tasks.audits.judging.comparison_units import ComparisonUnit
from hallmark.tasks.audits.methods.exposure import compute_expected_null_exposure
from hallmark.tasks.measures.estimates import estimate_mean_or_share

REFERENCES = 1000

SECRETS = RemovalCase(
    name="secrets",
    audit="extraction",
    metric="exposure",
    finding_names=("x",),
    unit="bits",
    kind="memorised",
)
PASSAGES = SECRETS.model_copy(update={"name": "passages", "unit": "share", "metric": "extractable"})
ASSOCIATION_CASE = SECRETS.model_copy(
    update={"name": "traits", "unit": "nats", "kind": "association"}
)


def units(values, prefix="u"):
    return {f"{prefix}{n}": ComparisonUnit(f"{prefix}{n}", float(v)) for n, v in enumerate(values)}


def random_exposures(rng, n):
    return np.log2(REFERENCES) - np.log2(rng.integers(1, REFERENCES + 2, n))


def memorised(seed=0, left=0.0, n=20):
    """Secrets that are memorised until they are removed, except for ``left`` bits of exposure."""
    rng = np.random.default_rng(seed)
    memorised_bits = np.full(n, np.log2(REFERENCES))
    removed = random_exposures(rng, n) + left
    arms = {
        BASE: memorised_bits,
        REMOVED: removed,
        RANDOM: memorised_bits - rng.random(n) / 4,
        "seed 1": memorised_bits - 0.1,
    }
    return CaseUnits(
        SECRETS,
        {arm: units(values) for arm, values in arms.items()},
        {arm: units(random_exposures(rng, n), "none") for arm in arms},
        REFERENCES,
    )


def index_by_effect(effect_rows):
    return {(row["effect"], row["arm"]): row for row in effect_rows}


def test_a_removed_memory_meets_every_criterion():
    effect_rows = build_effect_rows(memorised())
    rows = index_by_effect(effect_rows)
    assert rows["mean", BASE]["value"] == pytest.approx(np.log2(REFERENCES))
    assert rows["change_from_base", REMOVED]["verdict"] == "beyond noise"
    assert rows["change_from_base", RANDOM]["verdict"] == "within noise"
    assert (
        rows["change_from_base", "seed 1"]["verdict"] == ""
        and rows["change_from_base", "seed 1"]["seed_noise"] is None
    )
    assert rows["change_from_base", REMOVED]["seed_noise"] == pytest.approx(0.1)
    assert rows["null_region", REMOVED]["value"] == pytest.approx(
        compute_expected_null_exposure(REFERENCES)
    )
    assert [line["verdict"] for line in evaluate_criteria(SECRETS, effect_rows)] == ["pass"] * 6
    assert [line["unit"] for line in evaluate_criteria(SECRETS, effect_rows)] == ["units"] + [
        "bits"
    ] * 5
    levels = {
        effect: {row["confidence_level"] for row in effect_rows if row["effect"] == effect}
        for effect, _ in rows
    }
    # Equal values have no interval.
    assert levels["change_from_base"] == levels["mean"] == {0.95, None} and levels[
        "null_region"
    ] == {0.99}
    methods = {effect: row["method"] for (effect, _), row in rows.items()}
    assert "20 secrets" in methods["null_region"]


def test_a_remaining_memory_fails_the_criteria():
    effect_rows = build_effect_rows(memorised(left=5.0))
    verdicts = {
        line["criterion"].split(" (limit")[0]: line["verdict"]
        for line in evaluate_criteria(SECRETS, effect_rows)
    }
    assert verdicts["mean after removal"] == "fail"
    criterion = (
        "upper end of the confidence interval for the mean after removal minus the mean of units "
        "that were never planted"
    )
    assert verdicts[criterion] == "fail"
    few_units = build_effect_rows(memorised(n=8))
    assert (
        evaluate_criteria(SECRETS, few_units)[0] | {"verdict": "fail", "bound": MIN_UNITS}
        == evaluate_criteria(SECRETS, few_units)[0]
    )


def test_a_removal_without_effect_is_within_the_noise():
    memory = memorised()
    unchanged = replace(
        memory,
        units_by_arm={**memory.units_by_arm, REMOVED: memory.units_by_arm[BASE]},
        null_units_by_arm={**memory.null_units_by_arm, REMOVED: memory.null_units_by_arm[BASE]},
    )
    effect_rows = build_effect_rows(unchanged)
    assert index_by_effect(effect_rows)["change_from_base", REMOVED]["verdict"] == "within noise"
    assert index_by_effect(effect_rows)["change_from_base", REMOVED]["value"] == 0
    assert "pass" not in [line["verdict"] for line in evaluate_criteria(SECRETS, effect_rows)[2:]]


def test_without_other_seeds_there_is_no_noise():
    memory = memorised()
    three_arms = {arm: memory.units_by_arm[arm] for arm in (BASE, REMOVED, RANDOM)}
    effect_rows = build_effect_rows(replace(memory, units_by_arm=three_arms))
    assert {row["verdict"] for row in effect_rows} == {""}
    assert len(evaluate_criteria(SECRETS, effect_rows)) == 5


def test_a_change_is_beyond_noise_if_its_nearest_end_is():
    row = {"value": -3.0, "low": -4.0, "high": -2.0}
    assert (
        compare_with_seed_noise(row, 1.9) == "beyond noise"
        and compare_with_seed_noise(row, 2.0) == "within noise"
    )
    assert compare_with_seed_noise({"value": 0.5, "low": -1.0, "high": 2.0}, 0.0) == "within noise"
    assert compare_with_seed_noise({"value": 3.0, "low": 2.0, "high": 4.0}, 1.0) == "beyond noise"
    assert compare_with_seed_noise({"value": 3.0, "low": None, "high": None}, 1.0) == "within noise"
    assert compare_with_seed_noise(row, None) == ""
    assert [
        compute_signed_distance_from_zero(2.0, 4.0),
        compute_signed_distance_from_zero(-4.0, -2.0),
        compute_signed_distance_from_zero(-1.0, 2.0),
    ] == [2.0, 2.0, -1.0]
    assert (
        compute_signed_distance_from_zero(None, 1.0)
        is compute_signed_distance_from_zero(1.0, None)
        is None
    )


def test_changes_are_paired_by_unit():
    """Student's t of the differences, for any order of the units."""
    rng = np.random.default_rng(3)
    first, half = rng.normal(size=12), rng.normal(size=6)
    second = first + 1 + np.concatenate([half, -half])  # differences without skewness
    reordered = dict(reversed(units(second).items()))
    change = compare_paired_units(units(first), reordered, is_share=False)
    low, high = stats.t.interval(0.95, 11, (second - first).mean(), stats.sem(second - first))
    assert change["value"] == pytest.approx((second - first).mean())
    assert (change["low"], change["high"]) == (pytest.approx(low), pytest.approx(high))


def test_equal_differences_of_shares_have_an_interval():
    ones, zeros = units([1.0] * 16), units([0.0] * 16)
    change = compare_paired_units(zeros, ones, is_share=True)
    assert change["value"] == 1 and change["high"] == 1
    # A pair that differs in the other direction may do so by two.
    assert change["low"] == pytest.approx(1 - 2 * stats.binomtest(0, 16).proportion_ci().high)
    assert compare_paired_units(zeros, ones, is_share=False)["low"] is None


def test_differences_of_shares_have_newcombes_interval():
    """56 of 70 and 48 of 80: Newcombe 1998, table II, method 10, case (a)."""
    first = units([1] * 56 + [0] * 14)
    second = units([1] * 48 + [0] * 32, "r")
    difference = estimate_difference_from_null_units(first, second, is_share=True)
    assert difference.value == pytest.approx(0.2)
    assert [difference.low, difference.high] == pytest.approx([0.0524, 0.3339], abs=1e-4)
    assert "70 and 80 units" in difference.method
    no_difference = estimate_difference_from_null_units(
        units([0] * 16), units([0] * 8, "r"), is_share=True
    )
    assert no_difference.value == 0 and 0.15 < no_difference.high < 0.25


def test_the_null_region_of_shares_equals_all_permutations():
    values, null_values = [1.0, 0.5, 0, 0, 0], [0.0, 0, 0.25]
    case_units = CaseUnits(PASSAGES, {REMOVED: units(values)}, {REMOVED: units(null_values, "n")})
    low, high, expected, method = compute_null_region(case_units, REMOVED)
    means = [np.mean(sample) for sample in combinations([*values, *null_values], 5)]
    assert expected == pytest.approx(np.mean(null_values))
    assert "mean of 5 values in each of 4,000 random draws" in method
    assert min(means) <= low <= np.quantile(means, 0.03)
    assert np.quantile(means, 0.97) <= high <= max(means)
    all_zero = CaseUnits(
        PASSAGES, {REMOVED: units([0] * 5)}, {REMOVED: units(null_values[:2], "n")}
    )
    assert compute_null_region(all_zero, REMOVED)[:2] == (0, 0)
    unknown = units([np.nan] * 5)  # the model gives no number
    assert (
        compute_null_region(
            CaseUnits(PASSAGES, {REMOVED: unknown}, case_units.null_units_by_arm), REMOVED
        )
        is None
    )
    assert (
        compute_null_region(
            CaseUnits(PASSAGES, case_units.units_by_arm, {REMOVED: unknown}), REMOVED
        )
        is None
    )
    assert compute_null_region(CaseUnits(PASSAGES, case_units.units_by_arm, {}), REMOVED) is None


def associations(fall):
    rng = np.random.default_rng(1)
    base = {f"s{n}": ComparisonUnit(f"pair {n % 12}", 2 + rng.normal() / 4) for n in range(96)}
    shifted = {item: u._replace(value=u.value - fall) for item, u in base.items()}
    arms = {BASE: base, REMOVED: shifted, RANDOM: base, "seed 1": base}
    even = {f"n{n}": ComparisonUnit(f"even {n % 4}", rng.normal() / 8) for n in range(32)}
    return CaseUnits(ASSOCIATION_CASE, arms, dict.fromkeys(arms, even))


def test_an_association_must_decrease_by_half():
    rng = np.random.default_rng(5)
    for decrease, expected in ((1.9, ["pass"] * 3), (0.5, ["fail", "pass", "pass"])):
        case_units = associations(decrease)
        noisy_units = {
            i: u._replace(value=u.value + rng.normal() / 10)
            for i, u in case_units.units_by_arm[REMOVED].items()
        }
        effect_rows = build_effect_rows(
            replace(case_units, units_by_arm={**case_units.units_by_arm, REMOVED: noisy_units})
        )
        assert [
            line["verdict"] for line in evaluate_criteria(ASSOCIATION_CASE, effect_rows)
        ] == expected
        change = index_by_effect(effect_rows)["change_from_base", REMOVED]
        assert change["value"] == pytest.approx(-decrease, abs=0.1)


def test_no_effect_is_divided_by_another():
    """An effect close to 0 that falls below 0 would fall by more than 100 %."""
    effect_rows = build_effect_rows(associations(3.0))
    rows = index_by_effect(effect_rows)
    assert rows["effect_after", REMOVED]["value"] < 0 < rows["effect_before", BASE]["value"]
    assert {row["unit"] for row in effect_rows if row.get("unit")} <= {ASSOCIATION_CASE.unit}
    assert {effect for effect, _ in rows} == {
        "mean",
        "null_mean",
        "effect_before",
        "effect_after",
        "change_from_base",
        "random_minus_removed",
    }


def test_without_an_effect_there_is_no_bound():
    effect_rows = associations(0.0)
    flipped = replace(effect_rows, null_units_by_arm=effect_rows.units_by_arm)
    effect_rows = build_effect_rows(flipped)
    criteria = evaluate_criteria(ASSOCIATION_CASE, effect_rows)
    assert criteria[0]["bound"] is None and criteria[0]["verdict"] == ""


def test_a_silent_model_has_no_effects():
    memory = memorised()
    silent = {**memory.units_by_arm, REMOVED: {}}
    effect_rows = build_effect_rows(replace(memory, units_by_arm=silent))
    rows = index_by_effect(effect_rows)
    assert ("mean", REMOVED) not in rows and ("effect_after", REMOVED) not in rows
    assert ("change_from_base", REMOVED) not in rows
    rows_without_nulls = index_by_effect(build_effect_rows(replace(memory, null_units_by_arm={})))
    assert {effect for effect, _ in rows_without_nulls} == {
        "mean",
        "change_from_base",
        "random_minus_removed",
    }


def test_attempts_at_one_text_are_one_unit():
    attempts = {
        "a": ComparisonUnit("x", 1.0),
        "b": ComparisonUnit("x", 0.0),
        "c": ComparisonUnit("y", float("nan")),
        "d": ComparisonUnit("y", 1.0),
        "e": ComparisonUnit("z", float("nan")),
    }
    merged = merge_units_by_cluster(attempts)
    assert merged["x"] == ComparisonUnit("x", 0.5) and merged["y"] == ComparisonUnit("y", 1.0)
    assert np.isnan(merged["z"][1]) and len(merged) == 3


def test_criteria_are_judged_by_their_comparison():
    assert judge_criterion(1.0, "at least", 1.0) == judge_criterion(1.0, "at most", 1.0) == "pass"
    assert judge_criterion(1.0, "above", 1.0) == judge_criterion(1.0, "below", 1.0) == "fail"
    assert judge_criterion(None, "above", 1.0) == judge_criterion(1.0, "above", None) == ""


def test_an_increase_fails_the_criteria():
    """Findings of these kinds disappear only by decreasing."""
    increased = associations(-3.0)
    rng = np.random.default_rng(5)
    noisy_units = {
        i: u._replace(value=u.value + rng.normal() / 10)
        for i, u in increased.units_by_arm[REMOVED].items()
    }
    effect_rows = build_effect_rows(
        replace(increased, units_by_arm={**increased.units_by_arm, REMOVED: noisy_units})
    )
    assert index_by_effect(effect_rows)["change_from_base", REMOVED]["verdict"] == "beyond noise"
    assert [line["verdict"] for line in evaluate_criteria(ASSOCIATION_CASE, effect_rows)] == [
        "fail"
    ] * 3
    assert evaluate_criteria(ASSOCIATION_CASE, effect_rows)[-1]["value"] == pytest.approx(
        -3, abs=0.2
    )
    other = evaluate_criteria(ASSOCIATION_CASE.model_copy(update={"kind": "other"}), effect_rows)
    assert [line["verdict"] for line in other] == ["pass"]  # the direction of others is unknown


def test_crossed_units_have_two_way_intervals():
    rng = np.random.default_rng(2)
    pairs = {
        f"u{n}": ComparisonUnit(
            f"a{n % 12}", rng.normal() + (n % 12) + 3 * (n // 12), f"b{n // 12}"
        )
        for n in range(120)
    }
    columns = [list(column) for column in zip(*pairs.values(), strict=True)]
    expected = estimate_mean_or_share(
        columns[1], columns[0], unit="units", crossed_clusters=columns[2]
    )
    estimate, one_way = (
        associations(1.0).estimate_mean(pairs),
        estimate_mean_or_share(columns[1], columns[0]),
    )
    assert (estimate.low, estimate.high) == (expected.low, expected.high)
    assert "two-way" in estimate.method and estimate.high - estimate.low > 1.3 * (
        one_way.high - one_way.low
    )
