"""Test contrasts of groups: differences of means, and Wasserstein distances, by relabelling."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hallmark.tasks.measures.contrasts import (
    estimate_group_differences,
    estimate_wasserstein_distances,
    wasserstein_distance,
)

NUMBERS = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))


def test_values_shifted_by_one_have_a_distance_of_one():
    assert wasserstein_distance([0, 1, 1, 2], [True, True, False, False]) == 1
    assert wasserstein_distance([0, 1, 0, 1], [True, True, False, False]) == 0
    assert np.isnan(wasserstein_distance([1, 2], [True, True]))


@given(st.lists(NUMBERS, min_size=1, max_size=12), st.lists(NUMBERS, min_size=1, max_size=12))
def test_the_distance_equals_that_of_scipy(left, right):
    distance = wasserstein_distance(left + right, [True] * len(left) + [False] * len(right))
    assert distance == pytest.approx(stats.wasserstein_distance(left, right), abs=1e-9)


@pytest.mark.parametrize(("effect", "off"), [(0, 0.05), (4, 0.005)])
def test_p_of_a_distance_is_the_share_of_all_relabellings(effect, off):
    """Eight blocks of unequal size, four in each group: compare with all 70 relabellings."""
    rng = np.random.default_rng(6)
    block = np.repeat(np.arange(8), [1, 3, 2, 2, 1, 4, 2, 3])
    values = rng.normal(size=len(block)) + effect * (block < 4)
    every = [
        wasserstein_distance(values, np.isin(block, some)) for some in combinations(range(8), 4)
    ]
    estimates = estimate_wasserstein_distances(
        values, np.array([*"aaaabbbb"])[block], block, permutations=20_000
    )
    for name in "ab":
        row = estimates[name]
        assert row.value == pytest.approx(wasserstein_distance(values, block < 4))
        assert row.p == pytest.approx(np.mean(np.array(every) >= row.value - 1e-9), abs=off)
        assert row.null_value == pytest.approx(np.mean(every), rel=0.05)
        assert np.isnan(row.low) and np.isnan(row.minimum_detectable_effect)
        assert row.method.startswith("20,000" if effect else "999")
    row = estimates["a"]
    assert (row.n, row.clusters, estimates["b"].n) == (8, 4, 10)


def test_labels_are_permuted_only_within_strata():
    """A group is more frequent where values are high, but like the others within strata."""
    strata = np.repeat([0, 1], 30)
    groups = [*"ab" * 5, *"b" * 20, *"ab" * 5, *"a" * 20]
    values = 10 * strata + np.random.default_rng(0).normal(size=60)
    within = estimate_wasserstein_distances(values, groups, range(60), strata)["a"]
    assert within.p > 0.05 and "within each of 2" in within.method
    anywhere = estimate_wasserstein_distances(values, groups, range(60))["a"]
    assert anywhere.p < 0.001 and anywhere.value == within.value > within.null_value - 1
    moved = estimate_wasserstein_distances(
        values + 2.0 * (np.array(groups) == "a"), groups, range(60), strata
    )["a"]
    assert moved.p < 0.001


def test_p_is_uniform_if_groups_do_not_differ():
    rng = np.random.default_rng(1)
    p_values = []
    for seed in range(300):
        sizes = rng.integers(1, 6, 24)
        block = np.repeat(np.arange(24), sizes)
        values = rng.exponential(size=24)[block] + rng.exponential(size=len(block))
        groups = np.array([*"aaabbbbbcccccccc"] + ["d"] * 8)[block]
        rows = estimate_wasserstein_distances(values, groups, block, permutations=199, seed=seed)
        p_values.append([rows[name].p for name in "abcd"])
    for column in np.transpose(p_values):
        assert 0.02 <= (column <= 0.05).mean() <= 0.085 and 0.44 <= column.mean() <= 0.57


def test_missing_values_are_counted_and_ignored():
    nan = np.nan
    for estimate_function in (estimate_wasserstein_distances, estimate_group_differences):
        estimates = estimate_function(
            [1, nan, 2, 3, nan, 5], [*"aabbcc"], range(6), permutations=99
        )
        alone = estimate_function([1, 2, nan], [*"aab"], range(3), permutations=99)
        assert np.isnan([alone["b"].value, alone["a"].p]).all()
        assert (alone["b"].missing, alone["a"].missing) == (1, 0)
        assert "no items to measure" in alone["a"].method
        if estimate_function is estimate_wasserstein_distances:
            row = estimates["a"]
            assert (row.n, row.missing, estimates["c"].n) == (1, 1, 1)
            assert row.value == wasserstein_distance([1, 2, 3, 5], [True, False, False, False])
        else:
            assert (estimates["b"].n, estimates["b"].missing, estimates["b"].value) == (4, 2, -0.5)


def test_a_difference_of_means_equals_all_relabellings_of_blocks():
    """Seven blocks of unequal size, three in a group: all 5,040 orders.

    Means are rescaled to the standard deviation expected at their new place and compared with
    Welch's t. Of relabelling and Welch's t, the larger p and the wider interval count.
    """
    rng = np.random.default_rng(2)
    sizes = np.array([1, 3, 12, 9, 1, 4, 2])
    blocks = np.repeat(np.arange(7), sizes)
    values = rng.exponential(size=7)[blocks] + rng.exponential(size=len(blocks))
    groups = np.where(blocks < 3, "a", "b")
    estimates = estimate_group_differences(
        values, groups, blocks, permutations=40_000, confidence_level=0.9
    )
    means = np.array([values[blocks == block].mean() for block in range(7)])
    # Variance components within and between blocks, from one-way analysis of variance.
    within = sum(((values[blocks == i] - means[i]) ** 2).sum() for i in range(7)) / (32 - 7)
    squares = sum(sizes[i] * (means[i] - values.mean()) ** 2 for i in range(7)) / 6
    among = (squares - within) / ((32 - (sizes**2).sum() / 32) / 6)
    assert among > 0
    expected = np.sqrt(among + within / sizes)

    welch = stats.ttest_ind(means[:3], means[3:], equal_var=False)
    value, t = means[:3].mean() - means[3:].mean(), welch.statistic
    scaled = (means - means.mean()) / expected
    ways = np.array(list(permutations(range(7))))
    ratios = stats.ttest_ind(
        *np.split(scaled[ways] * expected, [3], axis=1), axis=1, equal_var=False
    ).statistic
    low, high = np.quantile(ratios, [0.05, 0.95])
    t_bound = stats.t.ppf(0.95, welch.df)
    low, high = min(low, -t_bound), max(high, t_bound)
    row = estimates["a"]
    assert (row.value, row.null_value, row.n) == (pytest.approx(value), 0, len(blocks))
    assert (row.low, row.high) == pytest.approx(
        (value - high * value / t, value - low * value / t), abs=0.1
    )
    tail = min((ratios >= t - 1e-9).mean(), (ratios <= t + 1e-9).mean())
    assert row.p == pytest.approx(max(2 * tail, welch.pvalue), abs=0.02)
    assert row.method == (
        "40,000 relabellings of 7 items, and Welch's t; the larger p and the wider interval are "
        "reported"
    )
    other = estimates["b"]
    assert other.value == pytest.approx(-value)
    assert (other.low, other.high) == pytest.approx((-row.high, -row.low), abs=0.1)


@pytest.mark.parametrize("relabelled", [99, 199, 999])
def test_an_interval_excludes_the_null_exactly_if_p_rejects_it(relabelled):
    """For random shifts in either direction."""
    rng = np.random.default_rng(relabelled)
    groups, refused = np.where(np.arange(24) < 8, "a", "b"), 0
    for seed in range(100):
        moved = rng.normal(size=24) + rng.choice([-1, 1]) * (groups == "a")
        row = estimate_group_differences(
            moved, groups, range(24), permutations=relabelled, seed=seed
        )["a"]
        assert (row.p < 0.05) == (row.low > 0 or row.high < 0)
        refused += row.p < 0.05
    assert 30 < refused < 85


@pytest.mark.parametrize("apart", [1, 60, 1000, 1e5])
def test_a_larger_distance_does_not_make_p_smaller(apart):
    """Two of the twenty ways to split three and three separate the groups completely."""
    for seed in range(20):
        values = np.random.default_rng(seed).random(6) + apart * np.array([0, 0, 0, 1, 1, 1])
        row = estimate_group_differences(
            values, [*"aaabbb"], range(6), permutations=999, seed=seed
        )["b"]
        # If they are close, Welch's t has the larger p.
        assert 0.05 < row.p < (0.3 if apart == 1 else 0.15)
        assert np.isnan(row.minimum_detectable_effect)


def test_each_block_counts_once():
    values, blocks = [0.0] + [9.0] * 9 + [2.0, 4.0], [0] + [1] * 9 + [2, 3]
    estimate = estimate_group_differences(values, [*"a" * 10, *"bb"], blocks, permutations=99)["a"]
    assert estimate.value == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("few", "skewed", "side"), [(6, False, 1), (6, True, -1), (30, False, -1), (30, True, -1)]
)
def test_the_detectable_effect_is_found_with_its_power(few, skewed, side):
    """A few people with more, correlated values; skewed values are shifted to the harder side."""
    rng = np.random.default_rng(7)
    sizes = [9] * few + [2] * (80 - few)
    blocks = np.repeat(np.arange(80), sizes)
    groups = np.where(blocks < few, "few", "many")

    def draw_values():
        values = 0.5 * rng.normal(size=80)[blocks] + rng.normal(size=len(blocks))
        return np.exp(values / 2) if skewed else values

    hits, reps = 0, 400
    for seed in range(reps):
        stated = estimate_group_differences(
            draw_values(), groups, blocks, permutations=399, seed=seed
        )["few"].minimum_detectable_effect
        moved = draw_values() + side * stated * (blocks < few)
        hits += (
            estimate_group_differences(moved, groups, blocks, permutations=399, seed=seed)["few"].p
            < 0.05
        )
    assert 0.74 <= hits / reps <= 0.87


def test_the_detectable_effect_follows_from_all_relabellings():
    """Three values and 17 others, by all ways to choose three; Welch's t must find it too."""
    values = np.random.default_rng(1).normal(size=20)
    chosen = np.array(list(combinations(range(20), 3)))
    inside = np.zeros((len(chosen), 20), bool)
    np.put_along_axis(inside, chosen, True, axis=1)

    def studentised_differences(values):
        sides = [
            np.ma.array(np.tile(values, (len(inside), 1)), mask=mask) for mask in (~inside, inside)
        ]
        errors = [np.array(side.var(axis=1, ddof=1) / side.count(axis=1)) for side in sides]
        degrees = sum(errors) ** 2 / (errors[0] ** 2 / 2 + errors[1] ** 2 / 16)
        apart = np.array(sides[0].mean(axis=1) - sides[1].mean(axis=1))
        return apart, sum(errors) ** 0.5, stats.t.ppf(0.975, degrees)

    def find_required_shift(side):
        apart, error, t_end = studentised_differences(side * values)
        end = np.quantile(apart / error, 0.975)
        return float(np.quantile(np.maximum(end, t_end) * error - apart, 0.8))

    expected = max(map(find_required_shift, (1, -1)))
    estimate = estimate_group_differences(
        values, [*"aaa", *"b" * 17], range(20), permutations=19999
    )["a"]
    assert estimate.minimum_detectable_effect == pytest.approx(expected, rel=0.04)


def test_pairs_are_compared_within_strata():
    """Compare with all ways to swap the members of pairs."""
    rng = np.random.default_rng(3)
    template = rng.normal(0, 10, 9)
    left, right = template + rng.normal(1, 1, 9), template + rng.normal(0, 1, 9)
    groups, strata = [*"a" * 9, *"b" * 9], [*range(9), *range(9)]
    row = estimate_group_differences([*left, *right], groups, range(18), strata)["a"]
    apart = left - right
    signs = np.array([[1 if bit >> i & 1 else -1 for i in range(9)] for bit in range(512)])
    studentised_differences = signs * apart
    ratios = studentised_differences.mean(1) / studentised_differences.std(1)
    own = apart.mean() / apart.std()
    test = stats.ttest_1samp(apart, 0)
    p = 2 * (ratios >= own - 1e-9).mean()
    assert row.p == pytest.approx(max(p, test.pvalue), abs=0.01)
    low, high = apart.mean() - apart.std() * np.quantile(ratios, [0.975, 0.025])
    interval = test.confidence_interval()
    low, high = min(low, interval.low), max(high, interval.high)
    assert (row.low, row.high) == pytest.approx((low, high), abs=0.06)
    assert "within each of 9" in row.method


def test_a_side_with_one_block_has_no_interval():
    row = estimate_group_differences([1, 2, 3, 4], [*"aabb"], [*"xxyz"], permutations=99)["a"]
    assert row.value == -2 and np.isnan([row.low, row.p]).all() and "fewer than two" in row.method
    alike = estimate_group_differences([1, 1, 1, 1], [*"aabb"], [*"wxyz"], permutations=99)["a"]
    assert alike.value == 0 and "do not vary" in alike.method and np.isnan(alike.p)


@pytest.mark.parametrize("kind", ["apart", "pairs", "unlike spreads"])
def test_intervals_cover_the_true_difference(kind):
    """Skewed values of clusters of unequal size; the true difference is 1."""
    rng = np.random.default_rng(4)
    covered, reps = 0, 300
    for seed in range(reps):
        cluster = np.repeat(np.arange(24), rng.integers(1, 7, 24))
        values = rng.gamma(0.5, 1, 24)[cluster] + rng.gamma(0.5, 1, len(cluster))
        inside = cluster < 9 if kind != "pairs" else rng.random(len(cluster)) < 0.4
        if kind == "unlike spreads":
            values = np.where(inside, 1 + 2 * (values - 1), values)
        blocks, strata = (range(len(values)), cluster) if kind == "pairs" else (cluster, None)
        estimate = estimate_group_differences(
            values + inside, np.where(inside, "a", "b"), blocks, strata, permutations=299, seed=seed
        )["a"]
        covered += estimate.low <= 1 <= estimate.high
    assert 0.925 <= covered / reps <= 0.98


@pytest.mark.parametrize(("few", "many"), [(4, 20), (8, 60)])
def test_intervals_cover_the_truth_if_few_blocks_vary_more(few, many):
    """Relabelling alone covers 85 to 90 %."""
    rng, covered, upper_errors = np.random.default_rng(9), 0, 0
    groups = [*"a" * few, *"b" * many]
    for seed in range(400):
        values = np.concatenate([rng.normal(0, 3, few), rng.normal(size=many)])
        row = estimate_group_differences(
            values, groups, range(few + many), permutations=199, seed=seed
        )["a"]
        assert (row.p < 0.05) == (row.low > 0 or row.high < 0)
        covered += row.low <= 0 <= row.high
        upper_errors += row.high < 0
    assert 0.92 <= covered / 400 <= 0.98 and upper_errors <= 22


@pytest.mark.parametrize("has_strata", [False, True])
@pytest.mark.parametrize("are_tied", [False, True])
def test_neither_the_order_of_rows_nor_names_matter(has_strata, are_tied):
    """Strata have the same values, and blocks of different groups too, if values are tied."""
    rng = np.random.default_rng(10)
    group_codes, block_codes, strata = np.array(
        [
            [code, 100 * stratum + 10 * code + block, stratum]
            for stratum in range(6)
            for code, blocks in enumerate([1, 1 + stratum % 2, 2])
            for block in range(blocks)
            for _ in range(rng.integers(1, 4))
        ]
    ).T
    values = rng.normal(size=len(strata))
    if are_tied:
        values = rng.integers(2, size=len(strata)).astype(float)
    values[3] = np.nan

    def estimate(order, names):
        new_names = rng.permutation(1000).tolist()
        return [
            estimate_function(
                values[order],
                [names[code] for code in group_codes[order]],
                [new_names[block] for block in block_codes[order]],
                [new_names[stratum] for stratum in strata[order]] if has_strata else None,
                permutations=199,
            )
            for estimate_function in (estimate_group_differences, estimate_wasserstein_distances)
        ]

    first = estimate(np.arange(len(strata)), "abc")
    second = estimate(rng.permutation(len(strata)), "zxy")
    for one, other in zip(first, second, strict=True):
        for old, new in zip("abc", "zxy", strict=True):
            for name, figure in vars(one[old]).items():
                same = getattr(other[new], name)
                assert figure == (
                    same if isinstance(figure, str) else pytest.approx(same, nan_ok=True)
                )


def test_only_small_p_get_more_relabellings():
    rng = np.random.default_rng(12)
    groups = np.repeat([*"abc"], 20)
    values = rng.normal(size=60) + 4 * (groups == "a")
    rows = estimate_group_differences(values, groups, range(60), permutations=999)
    assert rows["a"].method.startswith("2,997 ") and rows["a"].p == pytest.approx(2 / 2998)
    like_others = estimate_group_differences(
        values - 4 * (groups == "a"), groups, range(60), permutations=9999
    )["a"]
    assert like_others.p > 0.1 and like_others.method.startswith("1,998 ")
    distance = estimate_wasserstein_distances(values, groups, range(60), permutations=999)["a"]
    assert distance.p == pytest.approx(1 / 2998)


@pytest.mark.parametrize("skewed", [False, True])
def test_intervals_cover_the_truth_for_few_large_and_many_small_blocks(skewed):
    """As in BOLD: one person with 28 of 81 prompts, and hundreds with three."""
    sizes = [28, 20, 10, 8, 5, 4, 3, 3] + [3] * 150
    block, rng = np.repeat(np.arange(len(sizes)), sizes), np.random.default_rng(5)
    covered = 0
    for seed in range(300):
        shared = rng.normal(size=len(sizes))[block]
        values = 0.45 * shared + 0.9 * rng.normal(size=len(block))
        values = np.exp(0.5 * values) if skewed else values
        groups = np.where(block < 8, "few", "many")
        estimate = estimate_group_differences(values, groups, block, permutations=99, seed=seed)[
            "few"
        ]
        covered += estimate.low <= 0 <= estimate.high
    assert 0.925 <= covered / 300 <= 0.985


@pytest.mark.parametrize("few", [2, 3, 5])
def test_two_groups_have_opposite_differences_and_p_agrees_with_intervals(few):
    """With values of two kinds or of many; rounding errors must not matter."""
    rng = np.random.default_rng(8)
    for seed in range(40):
        values = rng.integers(2, size=8) * 0.2 + 0.1 if seed % 2 else rng.normal(size=8).round(1)
        groups = np.where(np.arange(8) < few, "few", "many")
        rows = estimate_group_differences(values, groups, range(8), permutations=199, seed=seed)
        one, other = rows["few"], rows["many"]
        assert one.value == pytest.approx(-other.value)
        if np.isnan(one.low) or np.isnan(other.low):
            reason = "only 28 different" if few == 2 else "do not vary"
            assert reason in one.method + other.method or "do not vary" in one.method
            continue
        assert abs(one.low) < 1e3 and abs(one.high) < 1e3
        assert one.low <= 0 <= one.high or one.p <= 0.06
    sure = estimate_group_differences([1.0] * 4 + [0.0] * 20, [*"a" * 4, *"b" * 20], range(24))["a"]
    assert "do not vary" in sure.method and np.isnan(sure.low)
    least = estimate_group_differences([1.0, 2.1, 5.0, 7.3], [*"aabb"], range(4), permutations=999)[
        "a"
    ]
    assert np.isnan([least.minimum_detectable_effect, least.low, least.high]).all()
    assert least.method.startswith(
        "no interval: only 6 different relabellings are possible, too few for a p below"
    )
    assert least.p > 0.3
