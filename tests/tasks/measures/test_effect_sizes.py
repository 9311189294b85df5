"""Compare d and its p with known answers, scipy's permutation test and simulations."""

import numpy as np
import pytest
from scipy.stats import nct, permutation_test

from hallmark.tasks.measures.effect_sizes import (
    estimate_weat_effect_size,
    mean_difference_by_overall_sd,
    run_one_sided_permutation_test,
)

EIGHT = np.arange(16) < 8


def test_completely_separated_lists_have_known_answers():
    separated = EIGHT.astype(float)
    assert mean_difference_by_overall_sd(separated, EIGHT, ddof=0) == 2
    assert mean_difference_by_overall_sd(separated, EIGHT) == pytest.approx(1.936492, abs=1e-6)
    estimate = estimate_weat_effect_size(separated, EIGHT)
    assert estimate.p == pytest.approx(1 / 12870) and estimate.value == pytest.approx(
        1.936492, abs=1e-6
    )
    assert (
        np.isnan(estimate.low)
        and "no interval" in estimate.method
        and "12,870 permutations" in estimate.method
    )
    assert estimate_weat_effect_size(-separated, EIGHT).p == 1


@pytest.mark.parametrize(("m", "n", "decimals"), [(8, 16, 9), (3, 10, 9), (6, 12, 0)])
def test_p_equals_that_of_scipy(m, n, decimals):
    """Without decimals many splits have the same sum: ties count."""
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


def test_p_counts_the_observed_split_with_the_drawn_ones():
    rng = np.random.default_rng(1)
    side = np.arange(50) < 25
    assert run_one_sided_permutation_test(side.astype(float), side, 999, 0).p == 1 / 1000
    s = rng.normal(size=50) + 0.5 * side
    drawn = estimate_weat_effect_size(s, side, permutation_draws=20_000)
    t = (s[side].mean() - s[~side].mean()) / np.sqrt(
        s[side].var(ddof=1) / 25 + s[~side].var(ddof=1) / 25
    )
    assert drawn.p == pytest.approx(nct.sf(t, 48, 0), abs=0.01)
    assert (
        drawn.p
        == estimate_weat_effect_size(s, side, permutation_draws=20_000).p
        != estimate_weat_effect_size(s, side, permutation_seed=1).p
    )


def test_the_interval_inverts_the_noncentral_t():
    """At its ends the observed value is as unlikely as the confidence level says."""
    rng = np.random.default_rng(2)
    s = rng.normal(size=16) + EIGHT
    estimate = estimate_weat_effect_size(s, EIGHT, confidence_level=0.9)
    error = np.sqrt((s[EIGHT].var(ddof=1) + s[~EIGHT].var(ddof=1)) / 8)
    t = (s[EIGHT].mean() - s[~EIGHT].mean()) / error
    for end, tail in ((estimate.low, 0.05), (estimate.high, 0.95)):
        # d² = 4 t² (n - 1) / (n (n - 2 + t²)), solved for t
        distance = np.sign(end) * np.sqrt(14 * end**2 / (4 * 15 / 16 - end**2))
        assert nct.sf(t, 14, distance) == pytest.approx(tail, abs=1e-6)
    assert estimate.low < estimate.value < estimate.high


@pytest.mark.parametrize("distribution", ["normal", "laplace", "exponential"])
def test_intervals_cover_the_null(distribution):
    rng = np.random.default_rng(3)
    side = np.arange(10) < 5
    some = (
        estimate_weat_effect_size(getattr(rng, distribution)(size=10), side) for _ in range(300)
    )
    covered = np.mean([e.low <= 0 <= e.high for e in some])
    assert 0.91 < covered < 0.985


def test_the_detectable_effect_is_found_with_its_power():
    rng = np.random.default_rng(4)
    side = np.arange(12) < 6
    smallest = estimate_weat_effect_size(rng.normal(size=12), side).minimum_detectable_effect
    shift = np.sqrt(10 * smallest**2 / (4 * 11 / 12 - smallest**2)) / np.sqrt(3)
    tries = [
        estimate_weat_effect_size(rng.normal(size=12) + shift * side, side).p for _ in range(400)
    ]
    assert 0.74 < np.mean(np.array(tries) < 0.05) < 0.86


def test_an_estimate_without_a_value_says_why():
    side = np.array([True, True, False, False, False])
    gaps = estimate_weat_effect_size([1.0, np.nan, 0.0, 2.0, 3.0], side)
    assert np.isnan(gaps.value) and gaps.missing == 1 and "fewer than two" in gaps.method
    same = estimate_weat_effect_size([0.25] * 5, side)
    assert np.isnan(same.value) and np.isnan(same.p) and "the same value" in same.method
    assert estimate_weat_effect_size([1.0, 1.2, np.nan, 0.2, 0.3], side).n == 4
