"""Krippendorff's alpha against his own example, a count of all pairs, and chance."""

import itertools

import numpy as np
import pytest

from hallmark.tasks.measures.agreement import krippendorff_alpha

#: Four observers, twelve units ("Computing Krippendorff's Alpha-Reliability", 2011).
OBSERVERS = ("123321412***", "1233224125*3", "*3332342251*", "12332441251*")


def example():
    cells = ((unit, said) for row in OBSERVERS for unit, said in enumerate(row))
    return [(float(said), unit) for unit, said in cells if said != "*"]


@pytest.mark.parametrize(("labels", "alpha"), [(True, 0.743), (False, 0.849)])
def test_the_example_of_the_paper(labels, alpha):
    values, units = zip(*example(), strict=True)
    found = krippendorff_alpha(values, units, nominal=labels)
    assert found.value == pytest.approx(alpha, abs=5e-4) and found.n == 11  # one alone says *3
    assert found.low < found.value < found.high <= 1


@pytest.mark.parametrize("labels", [True, False])
def test_by_all_pairs(labels):
    rng = np.random.default_rng(5)
    units = rng.integers(0, 30, 80)
    values = np.clip(np.round(units % 4 + rng.normal(size=80)), 0, 4).astype(int)
    paired = [k for k in range(80) if (units == units[k]).sum() > 1]

    def apart(a, b):
        return float(values[a] != values[b]) if labels else (values[a] - values[b]) ** 2

    within = sum(
        apart(a, b) / ((units == units[a]).sum() - 1)
        for a, b in itertools.permutations(paired, 2)
        if units[a] == units[b]
    ) / len(paired)
    every = [apart(a, b) for a, b in itertools.permutations(paired, 2)]
    found = krippendorff_alpha(values, units, nominal=labels)
    assert found.value == pytest.approx(1 - within / np.mean(every))


def test_who_rates_at_random_agrees_by_chance():
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(100):
        found = krippendorff_alpha(rng.random(120), np.repeat(np.arange(60), 2))
        covered += found.low <= 0 <= found.high
    assert covered >= 88  # 95 are expected; fewer than 88 have a probability of 0.002


def test_texts_of_a_prompt_are_left_out_together():
    rng = np.random.default_rng(4)
    values, units = rng.random(80), np.repeat(np.arange(40), 2)
    alone = krippendorff_alpha(values, units)
    shared = krippendorff_alpha(values, units, units // 4)
    assert shared.value == pytest.approx(alone.value)
    assert (shared.clusters, alone.clusters) == (10, 40)


def test_what_cannot_be_measured_says_why():
    assert krippendorff_alpha([], []).method == "no text was rated by two people"
    assert np.isnan(krippendorff_alpha([0.1, 0.9], ["a", "b"]).value)
    assert (
        "all ratings are the same" in krippendorff_alpha(["x"] * 4, [*"aabb"], nominal=True).method
    )
    few = krippendorff_alpha([0, 1, 1, 1], [*"aabb"])
    assert np.isfinite(few.value) and np.isnan(few.low) and "too few" in few.method
