"""What is made of arms: oracles in closed form and by brute force, verdicts on known effects."""

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
    compare_paired_units,
    compare_with_seed_noise,
    compute_effects,
    compute_null_region,
    distance_from_zero,
    estimate_difference,
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
TRAITS = SECRETS.model_copy(update={"name": "traits", "unit": "nats", "kind": "association"})


def units(values, prefix="u"):
    return {f"{prefix}{n}": ComparisonUnit(f"{prefix}{n}", float(v)) for n, v in enumerate(values)}


def random_exposures(rng, n):
    return np.log2(REFERENCES) - np.log2(rng.integers(1, REFERENCES + 2, n))


def memorised(seed=0, left=0.0, n=20):
    """Secrets that stood before all others until they were removed; ``left``: bits that stay."""
    rng = np.random.default_rng(seed)
    top = np.full(n, np.log2(REFERENCES))
    gone = random_exposures(rng, n) + left
    arms = {BASE: top, REMOVED: gone, RANDOM: top - rng.random(n) / 4, "seed 1": top - 0.1}
    return CaseUnits(
        SECRETS,
        {arm: units(values) for arm, values in arms.items()},
        {arm: units(random_exposures(rng, n), "none") for arm in arms},
        REFERENCES,
    )


def by(found):
    return {(row["effect"], row["arm"]): row for row in found}


def test_what_was_memorised_and_is_gone_passes_every_line():
    found = compute_effects(memorised())
    rows = by(found)
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
    assert 0.7 < rows["explained_share", REMOVED]["value"] < 1.3
    assert [line["verdict"] for line in evaluate_criteria(SECRETS, found)] == ["pass"] * 6
    assert [line["unit"] for line in evaluate_criteria(SECRETS, found)] == ["units"] + ["bits"] * 5
    levels = {
        what: {row["confidence_level"] for row in found if row["effect"] == what}
        for what, _ in rows
    }
    # Those that are all alike have no interval.
    assert levels["change_from_base"] == levels["mean"] == {0.95, None} and levels[
        "null_region"
    ] == {0.99}
    methods = {what: row["method"] for (what, _), row in rows.items()}
    assert "an estimate" in methods["explained_share"] and "20 secrets" in methods["null_region"]


def test_what_stays_fails_and_says_where():
    found = compute_effects(memorised(left=5.0))
    said = {
        line["criterion"].split(",")[0]: line["verdict"]
        for line in evaluate_criteria(SECRETS, found)
    }
    assert said["after removal the mean"] == "fail"
    assert said["upper end of removed − never planted"] == "fail"
    few = compute_effects(memorised(n=8))
    assert (
        evaluate_criteria(SECRETS, few)[0] | {"verdict": "fail", "bound": MIN_UNITS}
        == evaluate_criteria(SECRETS, few)[0]
    )


def test_a_removal_that_changes_nothing_is_within_the_noise():
    known = memorised()
    same = replace(
        known,
        units_by_arm={**known.units_by_arm, REMOVED: known.units_by_arm[BASE]},
        null_units_by_arm={**known.null_units_by_arm, REMOVED: known.null_units_by_arm[BASE]},
    )
    found = compute_effects(same)
    assert by(found)["change_from_base", REMOVED]["verdict"] == "within noise"
    assert by(found)["explained_share", REMOVED]["value"] == 0
    assert "pass" not in [line["verdict"] for line in evaluate_criteria(SECRETS, found)[2:]]


def test_without_other_seeds_nothing_is_said_of_noise():
    known = memorised()
    two = {arm: known.units_by_arm[arm] for arm in (BASE, REMOVED, RANDOM)}
    found = compute_effects(replace(known, units_by_arm=two))
    assert {row["verdict"] for row in found} == {""}
    assert len(evaluate_criteria(SECRETS, found)) == 5


def test_a_change_counts_where_the_near_end_of_its_interval_is_beyond_the_noise():
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
        distance_from_zero(2.0, 4.0),
        distance_from_zero(-4.0, -2.0),
        distance_from_zero(-1.0, 2.0),
    ] == [2.0, 2.0, -1.0]
    assert distance_from_zero(None, 1.0) is distance_from_zero(1.0, None) is None


def test_changes_are_paired_by_unit():
    """Student's t of the differences, whatever the order of the units."""
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=12), rng.normal(1, 1, size=12)
    other = dict(reversed(units(second).items()))
    found = compare_paired_units(units(first), other, is_share=False)
    low, high = stats.t.interval(0.95, 11, (second - first).mean(), stats.sem(second - first))
    assert found["value"] == pytest.approx((second - first).mean())
    assert (found["low"], found["high"]) == (pytest.approx(low), pytest.approx(high))


def test_pairs_that_all_differ_alike_have_an_interval_all_the_same():
    ones, none = units([1.0] * 16), units([0.0] * 16)
    found = compare_paired_units(none, ones, is_share=True)
    assert found["value"] == 1 and found["high"] == 1
    # One that differs otherwise may do so by two.
    assert found["low"] == pytest.approx(1 - 2 * stats.binomtest(0, 16).proportion_ci().high)
    assert compare_paired_units(none, ones, is_share=False)["low"] is None


def test_shares_of_two_groups_differ_by_newcombes_interval():
    """56 of 70 and 48 of 80: Newcombe 1998, table II, method 10, case (a)."""
    left = units([1] * 56 + [0] * 14)
    right = units([1] * 48 + [0] * 32, "r")
    found = estimate_difference(left, right, is_share=True)
    assert found.value == pytest.approx(0.2)
    assert [found.low, found.high] == pytest.approx([0.0524, 0.3339], abs=1e-4)
    assert "70 and 80 units" in found.method
    nothing = estimate_difference(units([0] * 16), units([0] * 8, "r"), is_share=True)
    assert nothing.value == 0 and 0.15 < nothing.high < 0.25


def test_the_null_region_of_shares_is_that_of_every_split():
    own, none = [1.0, 0.5, 0, 0, 0], [0.0, 0, 0.25]
    found = CaseUnits(PASSAGES, {REMOVED: units(own)}, {REMOVED: units(none, "n")})
    low, high, expected, how = compute_null_region(found, REMOVED)
    means = [np.mean(each) for each in combinations([*own, *none], 5)]
    assert expected == pytest.approx(np.mean(none)) and "5 drawn" in how
    assert min(means) <= low <= np.quantile(means, 0.03)
    assert np.quantile(means, 0.97) <= high <= max(means)
    gone = CaseUnits(PASSAGES, {REMOVED: units([0] * 5)}, {REMOVED: units(none[:2], "n")})
    assert compute_null_region(gone, REMOVED)[:2] == (0, 0)
    unknown = units([np.nan] * 5)  # a model that gives no number
    assert (
        compute_null_region(
            CaseUnits(PASSAGES, {REMOVED: unknown}, found.null_units_by_arm), REMOVED
        )
        is None
    )
    assert (
        compute_null_region(CaseUnits(PASSAGES, found.units_by_arm, {REMOVED: unknown}), REMOVED)
        is None
    )
    assert compute_null_region(CaseUnits(PASSAGES, found.units_by_arm, {}), REMOVED) is None


def associations(fall):
    rng = np.random.default_rng(1)
    base = {f"s{n}": ComparisonUnit(f"pair {n % 12}", 2 + rng.normal() / 4) for n in range(96)}
    shifted = {item: u._replace(value=u.value - fall) for item, u in base.items()}
    arms = {BASE: base, REMOVED: shifted, RANDOM: base, "seed 1": base}
    even = {f"n{n}": ComparisonUnit(f"even {n % 4}", rng.normal() / 8) for n in range(32)}
    return CaseUnits(TRAITS, arms, dict.fromkeys(arms, even))


def test_an_association_must_fall_by_half_of_its_distance():
    rng = np.random.default_rng(5)
    for fall, expected in ((1.9, ["pass"] * 3), (0.5, ["fail", "pass", "pass"])):
        made = associations(fall)
        moved = {
            i: u._replace(value=u.value + rng.normal() / 10)
            for i, u in made.units_by_arm[REMOVED].items()
        }
        found = compute_effects(replace(made, units_by_arm={**made.units_by_arm, REMOVED: moved}))
        assert [line["verdict"] for line in evaluate_criteria(TRAITS, found)] == expected
        assert by(found)["explained_share", REMOVED]["value"] == pytest.approx(fall / 2, abs=0.1)


def test_where_there_was_no_effect_nothing_must_be_half_of_it():
    made = associations(0.0)
    flipped = replace(made, null_units_by_arm=made.units_by_arm)
    made = compute_effects(flipped)
    found = evaluate_criteria(TRAITS, made)
    assert found[0]["bound"] is None and found[0]["verdict"] == ""
    explained = by(made)["explained_share", REMOVED]
    assert explained["value"] is None and "there was none" in explained["method"]


def test_a_model_that_answers_nothing_leaves_no_figure_and_no_verdict():
    known = memorised()
    dumb = {**known.units_by_arm, REMOVED: {}}
    found = compute_effects(replace(known, units_by_arm=dumb))
    rows = by(found)
    assert ("mean", REMOVED) not in rows and ("effect_after", REMOVED) not in rows
    assert ("explained_share", REMOVED) not in rows and ("change_from_base", REMOVED) not in rows
    alone = by(compute_effects(replace(known, null_units_by_arm={})))
    assert {what for what, _ in alone} == {"mean", "change_from_base", "random_minus_removed"}


def test_attempts_at_one_text_are_one_unit():
    attempts = {
        "a": ComparisonUnit("x", 1.0),
        "b": ComparisonUnit("x", 0.0),
        "c": ComparisonUnit("y", float("nan")),
        "d": ComparisonUnit("y", 1.0),
        "e": ComparisonUnit("z", float("nan")),
    }
    found = merge_units_by_cluster(attempts)
    assert found["x"] == ComparisonUnit("x", 0.5) and found["y"] == ComparisonUnit("y", 1.0)
    assert np.isnan(found["z"][1]) and len(found) == 3


def test_verdicts():
    assert judge_criterion(1.0, "at least", 1.0) == judge_criterion(1.0, "at most", 1.0) == "pass"
    assert judge_criterion(1.0, "above", 1.0) == judge_criterion(1.0, "below", 1.0) == "fail"
    assert judge_criterion(None, "above", 1.0) == judge_criterion(1.0, "above", None) == ""


def test_what_grows_is_no_finding_that_goes_away():
    """However far beyond the noise: a finding of these kinds goes away by falling."""
    grown = associations(-3.0)
    rng = np.random.default_rng(5)
    moved = {
        i: u._replace(value=u.value + rng.normal() / 10)
        for i, u in grown.units_by_arm[REMOVED].items()
    }
    made = compute_effects(replace(grown, units_by_arm={**grown.units_by_arm, REMOVED: moved}))
    assert by(made)["change_from_base", REMOVED]["verdict"] == "beyond noise"
    assert [line["verdict"] for line in evaluate_criteria(TRAITS, made)] == ["fail"] * 3
    assert evaluate_criteria(TRAITS, made)[-1]["value"] == pytest.approx(-3, abs=0.2)
    other = evaluate_criteria(TRAITS.model_copy(update={"kind": "other"}), made)
    assert [line["verdict"] for line in other] == ["pass"]  # of these it is not known


def test_units_that_share_two_things_have_the_interval_of_two_way_clusters():
    rng = np.random.default_rng(2)
    pairs = {
        f"u{n}": ComparisonUnit(
            f"a{n % 8}", rng.normal() + (n % 8) + 3 * (n // 8 % 6), f"b{n // 8}"
        )
        for n in range(48)
    }
    each = [list(column) for column in zip(*pairs.values(), strict=True)]
    expected = estimate_mean_or_share(each[1], each[0], unit="units", crossed_clusters=each[2])
    found, alone = associations(1.0).estimate_mean(pairs), estimate_mean_or_share(each[1], each[0])
    assert (found.low, found.high) == (expected.low, expected.high)
    assert "two-way" in found.method and found.high - found.low > 1.3 * (alone.high - alone.low)
