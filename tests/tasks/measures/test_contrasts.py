"""Contrasts of groups: means with their intervals, and distances with a p by relabelling."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tasks.measures.contrasts import contrast, distances, wasserstein

NUMBERS = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))


def test_the_distance_of_values_moved_by_one_is_one():
    assert wasserstein([0, 1, 1, 2], [True, True, False, False]) == 1
    assert wasserstein([0, 1, 0, 1], [True, True, False, False]) == 0
    assert np.isnan(wasserstein([1, 2], [True, True]))


@given(st.lists(NUMBERS, min_size=1, max_size=12), st.lists(NUMBERS, min_size=1, max_size=12))
def test_the_distance_is_that_of_scipy(left, right):
    found = wasserstein(left + right, [True] * len(left) + [False] * len(right))
    assert found == pytest.approx(stats.wasserstein_distance(left, right), abs=1e-9)


@pytest.mark.parametrize(("effect", "off"), [(0, 0.05), (4, 0.005)])
def test_p_is_the_share_of_all_relabellings(effect, off):
    """Of eight blocks of unlike size, four in each group: all 70 ways by brute force."""
    rng = np.random.default_rng(6)
    block = np.repeat(np.arange(8), [1, 3, 2, 2, 1, 4, 2, 3])
    values = rng.normal(size=len(block)) + effect * (block < 4)
    every = [wasserstein(values, np.isin(block, some)) for some in combinations(range(8), 4)]
    found = distances(values, np.array([*"aaaabbbb"])[block], block, permutations=20_000)
    for name in "ab":
        row = found[name]
        assert row.value == pytest.approx(wasserstein(values, block < 4))
        assert row.p == pytest.approx(np.mean(np.array(every) >= row.value - 1e-9), abs=off)
        assert row.null == pytest.approx(np.mean(every), rel=0.05)
        assert np.isnan(row.low) and np.isnan(row.smallest)
        assert row.method.startswith("20,000" if effect else "999")
    assert (found["a"].n, found["a"].clusters, found["b"].n) == (8, 4, 10)


def test_labels_change_hands_within_a_stratum_alone():
    """One group stands more often where values are high, and is no other there than the rest."""
    strata = np.repeat([0, 1], 30)
    groups = [*"ab" * 5, *"b" * 20, *"ab" * 5, *"a" * 20]
    values = 10 * strata + np.random.default_rng(0).normal(size=60)
    within = distances(values, groups, range(60), strata)["a"]
    assert within.p > 0.05 and "within each of 2" in within.method
    anywhere = distances(values, groups, range(60))["a"]
    assert anywhere.p < 0.001 and anywhere.value == within.value > within.null - 1
    moved = distances(values + 2.0 * (np.array(groups) == "a"), groups, range(60), strata)["a"]
    assert moved.p < 0.001


def test_p_is_uniform_where_groups_do_not_differ():
    rng = np.random.default_rng(1)
    found = []
    for seed in range(300):
        sizes = rng.integers(1, 6, 24)
        block = np.repeat(np.arange(24), sizes)
        values = rng.exponential(size=24)[block] + rng.exponential(size=len(block))
        groups = np.array([*"aaabbbbbcccccccc"] + ["d"] * 8)[block]
        rows = distances(values, groups, block, permutations=199, seed=seed)
        found.append([rows[name].p for name in "abcd"])
    for column in np.transpose(found):
        assert 0.02 <= (column <= 0.05).mean() <= 0.085 and 0.44 <= column.mean() <= 0.57


def test_what_has_no_value_is_counted_and_left_out():
    nan = np.nan
    found = distances([1, nan, 2, 3, nan, 5], [*"aabbcc"], range(6), permutations=99)
    assert (found["a"].n, found["a"].missing, found["c"].n) == (1, 1, 1)
    assert found["a"].value == wasserstein([1, 2, 3, 5], [True, False, False, False])
    nobody = distances([1, 2, nan], [*"aab"], range(3), permutations=99)
    assert np.isnan([nobody["a"].value, nobody["b"].value, nobody["b"].p]).all()
    assert "no items of any other group" in nobody["a"].method


def test_unpaired_clusters_of_one_have_the_interval_of_welch():
    rng = np.random.default_rng(2)
    left, right = rng.normal(1, 1, 12), rng.normal(0, 3, 30)
    found = contrast([*left, *right], [True] * 12 + [False] * 30, range(42))
    theirs = stats.ttest_ind(left, right, equal_var=False)
    low, high = theirs.confidence_interval()
    assert (found.low, found.high, found.p) == pytest.approx((low, high, theirs.pvalue))
    assert found.value == pytest.approx(left.mean() - right.mean()) and found.null == 0


def test_pairs_have_the_interval_of_their_differences():
    rng = np.random.default_rng(3)
    template = rng.normal(0, 10, 9)
    left, right = template + rng.normal(1, 1, 9), template + rng.normal(0, 1, 9)
    names = [*range(9), *range(9)]
    found = contrast([*left, *right], [True] * 9 + [False] * 9, names, unit="templates")
    theirs = stats.ttest_rel(left, right)
    low, high = theirs.confidence_interval()
    assert (found.low, found.high, found.p) == pytest.approx((low, high, theirs.pvalue))
    assert "9 templates in pairs" in found.method


def test_a_side_of_one_cluster_has_no_interval():
    found = contrast([1, 2, 3, 4], [True, True, False, False], ["x", "x", "y", "z"])
    assert found.value == -2 and np.isnan(found.low) and "a single one" in found.method
    nobody = contrast([1, 2, np.nan], [True, True, False], [*"xyz"])
    assert np.isnan(nobody.value) and nobody.missing == 1
    alike = contrast([1, 1, 1, 1], [True, True, False, False], [*"wxyz"])
    assert alike.value == 0 and "say the same" in alike.method and np.isnan(alike.p)


@pytest.mark.parametrize("kind", ["apart", "pairs", "some shared"])
def test_intervals_cover_no_difference_in_95_of_100(kind):
    """Skewed values of clusters of unlike size."""
    rng = np.random.default_rng(4)
    covered, reps = 0, 600
    for _ in range(reps):
        clusters = np.repeat(np.arange(24), rng.integers(1, 7, 24))
        values = rng.gamma(2, 1, 24)[clusters] + rng.gamma(2, 1, len(clusters))
        inside = clusters < 9
        if kind == "pairs":
            inside = rng.random(len(clusters)) < 0.4
        if kind == "some shared":
            inside = inside ^ ((clusters > 20) & (rng.random(len(clusters)) < 0.5))
        found = contrast(values, inside, clusters)
        covered += found.low <= 0 <= found.high
    assert 0.925 <= covered / reps <= 0.985
