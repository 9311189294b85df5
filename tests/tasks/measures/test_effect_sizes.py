"""d and its p against known answers, scipy's permutation test and simulation."""

import numpy as np
import pytest
from scipy.stats import nct, permutation_test

from hallmark.tasks.measures.effect_sizes import (
    estimate_weat_effect_size,
    permutation_test_p,
    standardised_mean_difference,
)

EIGHT = np.arange(16) < 8


def test_known_answers():
    apart = EIGHT.astype(float)
    assert standardised_mean_difference(apart, EIGHT, ddof=0) == 2
    assert standardised_mean_difference(apart, EIGHT) == pytest.approx(1.936492, abs=1e-6)
    found = estimate_weat_effect_size(apart, EIGHT)
    assert found.p == pytest.approx(1 / 12870) and found.value == pytest.approx(1.936492, abs=1e-6)
    assert np.isnan(found.low) and "no interval" in found.method and "12,870 ways" in found.method
    assert estimate_weat_effect_size(-apart, EIGHT).p == 1


@pytest.mark.parametrize(("m", "n", "decimals"), [(8, 16, 9), (3, 10, 9), (6, 12, 0)])
def test_p_against_scipy(m, n, decimals):
    """With decimals 0 many ways give the same sum: ties count."""
    rng = np.random.default_rng(n)
    s, side = rng.normal(size=n).round(decimals), np.arange(n) < m
    expected = permutation_test(
        (s[side], s[~side]),
        lambda x, y, axis: x.mean(axis) - y.mean(axis),
        vectorized=True,
        permutation_type="independent",
        alternative="greater",
        n_resamples=np.inf,
    )
    assert estimate_weat_effect_size(s, side).p == pytest.approx(expected.pvalue)


def test_many_ways_are_drawn_and_the_given_one_counted_in():
    rng = np.random.default_rng(1)
    side = np.arange(50) < 25
    assert permutation_test_p(side.astype(float), side, 999, 0)[0] == 1 / 1000
    s = rng.normal(size=50) + 0.5 * side
    drawn = estimate_weat_effect_size(s, side, draws=20_000)
    t = (s[side].mean() - s[~side].mean()) / np.sqrt(
        s[side].var(ddof=1) / 25 + s[~side].var(ddof=1) / 25
    )
    assert drawn.p == pytest.approx(nct.sf(t, 48, 0), abs=0.01)
    assert (
        drawn.p
        == estimate_weat_effect_size(s, side, draws=20_000).p
        != estimate_weat_effect_size(s, side, seed=1).p
    )


def test_the_interval_is_of_the_distances_that_explain_the_value():
    """Its ends are where the value found is as rare as the level says."""
    rng = np.random.default_rng(2)
    s = rng.normal(size=16) + EIGHT
    found = estimate_weat_effect_size(s, EIGHT, confidence_level=0.9)
    error = np.sqrt((s[EIGHT].var(ddof=1) + s[~EIGHT].var(ddof=1)) / 8)
    t = (s[EIGHT].mean() - s[~EIGHT].mean()) / error
    for end, tail in ((found.low, 0.05), (found.high, 0.95)):
        # d² = 4 t² (n - 1) / (n (n - 2 + t²)), solved for t
        distance = np.sign(end) * np.sqrt(14 * end**2 / (4 * 15 / 16 - end**2))
        assert nct.sf(t, 14, distance) == pytest.approx(tail, abs=1e-6)
    assert found.low < found.value < found.high


@pytest.mark.parametrize("law", ["normal", "laplace", "exponential"])
def test_the_interval_covers_where_there_is_nothing(law):
    rng = np.random.default_rng(3)
    side = np.arange(10) < 5
    some = (estimate_weat_effect_size(getattr(rng, law)(size=10), side) for _ in range(300))
    covered = np.mean([e.low <= 0 <= e.high for e in some])
    assert 0.91 < covered < 0.985


def test_the_smallest_effect_is_found_four_times_of_five():
    rng = np.random.default_rng(4)
    side = np.arange(12) < 6
    smallest = estimate_weat_effect_size(rng.normal(size=12), side).minimum_detectable_effect
    shift = np.sqrt(10 * smallest**2 / (4 * 11 / 12 - smallest**2)) / np.sqrt(3)
    tries = [
        estimate_weat_effect_size(rng.normal(size=12) + shift * side, side).p for _ in range(400)
    ]
    assert 0.74 < np.mean(np.array(tries) < 0.05) < 0.86


def test_what_cannot_be_told_is_missing():
    side = np.array([True, True, False, False, False])
    gaps = estimate_weat_effect_size([1.0, np.nan, 0.0, 2.0, 3.0], side)
    assert np.isnan(gaps.value) and gaps.missing == 1 and "fewer than two" in gaps.method
    same = estimate_weat_effect_size([0.25] * 5, side)
    assert np.isnan(same.value) and np.isnan(same.p) and "the same value" in same.method
    assert estimate_weat_effect_size([1.0, 1.2, np.nan, 0.2, 0.3], side).n == 4
