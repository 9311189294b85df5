"""Compare statistics with scipy, closed forms, brute force and simulations under a known null."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from hallmark.tasks.measures import statistics as st


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def test_clusters_are_weighted_by_their_number_of_items():
    sums, counts = st.sum_by_cluster([1.0, math.nan, 1.0, 1.0, 0.0], ["a", "b", "a", "a", "b"])
    assert (sums.tolist(), counts.tolist()) == ([3, 0], [3, 1])


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 10), (10, 10), (3, 10), (57, 200)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_wilson_agrees_with_scipy(k, n, level):
    peer = scipy.stats.binomtest(k, n).proportion_ci(level, method="wilson")
    assert st.wilson_interval(k, n, level) == pytest.approx((peer.low, peer.high))


def test_the_interval_of_no_trials_is_nan():
    assert all(math.isnan(end) for end in st.wilson_interval(0, 0))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_expected_maximum_equals_the_mean_over_all_subsets(rng, k):
    scores = rng.uniform(size=7).round(1)  # with ties
    subsets = list(itertools.combinations(scores, k))
    assert st.expected_maximum(scores, k) == pytest.approx(np.mean([max(s) for s in subsets]))
    reached = np.mean([max(s) >= 0.5 for s in subsets])
    assert st.probability_any_reaches(scores, k, 0.5) == pytest.approx(reached)


def test_expected_maximum_of_uniform_scores(rng):
    """The expected largest of 25 uniform numbers is 25/26, whether all or a sample are drawn."""
    whole = [st.expected_maximum(rng.uniform(size=25), 25) for _ in range(20_000)]
    assert np.mean(whole) == pytest.approx(25 / 26, abs=0.001)
    grid = (np.arange(100_000) + 0.5) / 100_000
    assert st.expected_maximum(grid, 25) == pytest.approx(25 / 26, abs=1e-4)


def test_expected_maximum_ignores_missing_scores():
    assert st.expected_maximum([0.2, math.nan, 0.8], 2) == 0.8
    assert math.isnan(st.expected_maximum([0.2, math.nan], 2))
    assert st.probability_any_reaches([0.2, math.nan, 0.8], 1, 0.5) == 0.5
    assert math.isnan(st.probability_any_reaches([math.nan], 1, 0.5))


def test_contributions_equal_infinitesimal_pseudo_values(rng):
    """Compare with the effect of small changes of the weights."""
    left, right = rng.normal(3, 1, 7), rng.normal(1, 4, 5)
    left[2] = right[0] = np.nan
    estimate = np.concatenate(st.contributions_to_mean_difference(left, right))
    both, first = np.concatenate([left, right]), np.arange(12) < 7

    def weighted_difference(weights):
        known = ~np.isnan(both)
        sides = [np.average(both[s & known], weights=weights[s & known]) for s in (first, ~first)]
        return sides[0] - sides[1]

    even = weighted_difference(np.ones(12))
    step = 1e-6
    moved = np.array(
        [(weighted_difference(np.ones(12) + step * (np.arange(12) == i)) - even) for i in range(12)]
    )
    expected = np.where(np.isnan(both), np.nan, even + 10 * moved / step)
    np.testing.assert_allclose(estimate, expected, rtol=1e-4)
    assert np.nanmean(estimate) == pytest.approx(even)
    nothing = st.contributions_to_mean_difference([1.0, 2.0], [np.nan])
    assert np.isnan(np.concatenate(nothing)).all() and [len(side) for side in nothing] == [2, 1]
