"""Compare Krippendorff's alpha with his example, a sum over all pairs, and chance."""

import itertools

import numpy as np
import pytest

from hallmark.tasks.measures.agreement import krippendorff_alpha

#: Four observers, twelve units ("Computing Krippendorff's Alpha-Reliability", 2011).
OBSERVERS = ("123321412***", "1233224125*3", "*3332342251*", "12332441251*")


def list_example_ratings():
    cells = ((unit, rating) for row in OBSERVERS for unit, rating in enumerate(row))
    return [(float(rating), unit) for unit, rating in cells if rating != "*"]


@pytest.mark.parametrize(("labels", "alpha"), [(True, 0.743), (False, 0.849)])
def test_the_example_of_the_paper(labels, alpha):
    values, units = zip(*list_example_ratings(), strict=True)
    estimate = krippendorff_alpha(values, units, nominal=labels)
    assert (
        estimate.value == pytest.approx(alpha, abs=5e-4) and estimate.n == 11
    )  # one alone says *3
    assert estimate.low < estimate.value < estimate.high <= 1


@pytest.mark.parametrize("labels", [True, False])
def test_alpha_equals_a_sum_over_all_pairs(labels):
    rng = np.random.default_rng(5)
    units = rng.integers(0, 30, 80)
    values = np.clip(np.round(units % 4 + rng.normal(size=80)), 0, 4).astype(int)
    paired = [k for k in range(80) if (units == units[k]).sum() > 1]

    def distance(a, b):
        return float(values[a] != values[b]) if labels else (values[a] - values[b]) ** 2

    within = sum(
        distance(a, b) / ((units == units[a]).sum() - 1)
        for a, b in itertools.permutations(paired, 2)
        if units[a] == units[b]
    ) / len(paired)
    every = [distance(a, b) for a, b in itertools.permutations(paired, 2)]
    estimate = krippendorff_alpha(values, units, nominal=labels)
    assert estimate.value == pytest.approx(1 - within / np.mean(every))


def test_random_ratings_have_an_alpha_of_zero():
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(100):
        estimate = krippendorff_alpha(rng.random(120), np.repeat(np.arange(60), 2))
        covered += estimate.low <= 0 <= estimate.high
    assert covered >= 88  # 95 are expected; fewer than 88 have a probability of 0.002


def test_the_jackknife_removes_all_texts_of_a_cluster():
    rng = np.random.default_rng(4)
    values, units = rng.random(80), np.repeat(np.arange(40), 2)
    alone = krippendorff_alpha(values, units)
    shared = krippendorff_alpha(values, units, units // 4)
    assert shared.value == pytest.approx(alone.value)
    assert (shared.clusters, alone.clusters) == (10, 40)


def test_an_estimate_without_a_value_or_interval_says_why():
    assert krippendorff_alpha([], []).method == "not measured: no text was rated by two people"
    assert np.isnan(krippendorff_alpha([0.1, 0.9], ["a", "b"]).value)
    assert (
        "all ratings are the same" in krippendorff_alpha(["x"] * 4, [*"aabb"], nominal=True).method
    )
    few = krippendorff_alpha([0, 1, 1, 1], [*"aabb"])
    assert np.isfinite(few.value) and np.isnan(few.low) and "too few" in few.method
