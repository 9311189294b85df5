"""Compare estimates with scipy, closed forms, and simulations with known truth."""

import itertools
from dataclasses import astuple

import numpy as np
import pytest
from scipy import stats

from hallmark.tasks.audits.probes.bias import read_bias_pairs
from hallmark.tasks.measures.clustered_means import (
    SKEWNESS_FACTOR,
    compute_widening_by_chance,
    estimate_mean_error,
)
from hallmark.tasks.measures.detectable_effects import detectable_standard_errors
from hallmark.tasks.measures.estimates import (
    MAX_EXACT_UNITS,
    estimate_mean_difference,
    estimate_mean_or_share,
    estimate_normal_mean,
)
from hallmark.tasks.measures.proportions import binomial_test_p, clopper_pearson_interval
from hallmark.tasks.measures.statistics import sum_by_cluster


def test_exact_intervals_and_p_equal_those_of_scipy():
    """p is twice the smaller tail, so it is below 0.1 where the 90 % interval excludes the null."""
    for n in (1, 2, 7, 39):
        for k in range(n + 1):
            for null in (0.5, 0.44, 0.05):
                low, high = stats.binomtest(k, n, null).proportion_ci(0.9, method="exact")
                assert clopper_pearson_interval(k, n, 0.9) == pytest.approx((low, high), abs=1e-12)
                tails = stats.binom.cdf(k, n, null), stats.binom.sf(k - 1, n, null)
                p = binomial_test_p(k, n, null)
                assert p == pytest.approx(min(1, 2 * min(tails)), rel=1e-9)
                assert (p < 0.1) == (not low <= null <= high)
    estimate = estimate_mean_or_share([1.0] * 9 + [0.0] * 3, is_share=True, null_value=0.5)
    peer = stats.binomtest(9, 12, 0.5)
    assert (estimate.low, estimate.high) == pytest.approx(tuple(peer.proportion_ci(method="exact")))
    assert estimate.p == pytest.approx(peer.pvalue) and estimate.method.startswith(
        "Clopper-Pearson"
    )


def test_symmetric_clusters_of_equal_size_have_the_t_interval_of_their_means():
    rng = np.random.default_rng(0)
    for groups, size in ((10, 1), (12, 4), (50, 3)):
        half = rng.normal(size=(groups // 2, size)) + rng.normal(size=(groups // 2, 1))
        values = 0.2 + np.concatenate([half, -half])
        estimate = estimate_mean_or_share(
            values.ravel(), np.repeat(np.arange(groups), size), null_value=0.3
        )
        means = values.mean(1)
        low, high = stats.t.interval(0.95, groups - 1, means.mean(), stats.sem(means))
        assert (estimate.low, estimate.high) == pytest.approx((low, high))
        assert estimate.p == pytest.approx(stats.ttest_1samp(means, 0.3).pvalue)
        assert (estimate.n, estimate.clusters, estimate.missing) == (groups * size, groups, 0)
        assert estimate.method == f"Student's t interval based on {groups} items"


UNEQUAL = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], [*"aaabccd"]


def jackknife_standard_error(values, clusters):
    """Compute the standard error of the mean by removing each cluster explicitly."""
    array, names = np.array(values), np.array(clusters)
    without = [array[names != name].mean() for name in {*clusters}]
    groups = len(without)
    return ((groups - 1) / groups * sum((w - array.mean()) ** 2 for w in without)) ** 0.5


def compute_mean_error(values, clusters, weights=None):
    """Compute the error of a mean over one clustering."""
    mean = np.average(values, weights=weights)
    variance = np.average((values - mean) ** 2, weights=weights)
    return estimate_mean_error([sum_by_cluster(values, clusters, weights)], mean, variance)


def test_clusters_of_unequal_sizes_have_fewer_degrees_of_freedom():
    values, clusters = np.array(UNEQUAL[0]), UNEQUAL[1]
    mean_error, mean = compute_mean_error(values, clusters), 5 / 7
    # The intraclass correlation, from squared deviations of clusters and of single values.
    off = [2 - 3 * mean, 1 - mean, 1 - 2 * mean, 1 - mean]
    shared = (sum(x * x for x in off) / np.var(values) - 7) / (3 * 2 + 2 * 1)
    assert shared < 0  # Treated as 0: a cluster of 3 has the weight of three clusters of 1.
    weights = np.array([3, 1, 2, 1])
    assert mean_error.effective_clusters == pytest.approx(weights.sum() ** 2 / (weights**2).sum())
    assert mean_error.standard_error == pytest.approx(jackknife_standard_error(values, clusters))
    # The median share of a cluster is 5/6.
    differences = np.array([3 * 5 / 6 - 2, 1 / 6, 2 * 5 / 6 - 1, 1 / 6])
    assert mean_error.differing_clusters == pytest.approx(
        differences.sum() ** 2 / (differences**2).sum()
    )


def test_correlated_clusters_have_fewer_degrees_of_freedom():
    names = [*"aaaaaabbbbccde"]
    values = np.array([1.0, 0.9, 1.1, 0.2, 1, 1, 0, 0.1, 0.9, 0, 0.5, 0.6, 0.3, 0.2])
    mean_error, mean = compute_mean_error(values, names), values.mean()
    counts = np.array([names.count(name) for name in "abcde"])
    off = np.array(
        [
            values[[n == name for n in names]].sum() - count * mean
            for name, count in zip("abcde", counts, strict=True)
        ]
    )
    pairs = sum(count * (count - 1) for count in counts)
    shared = (np.square(off).sum() / values.var() - len(values)) / pairs
    assert 0.2 < shared < 0.8
    variance = [count + count * (count - 1) * shared for count in counts]
    assert mean_error.effective_clusters == pytest.approx(
        sum(variance) ** 2 / np.square(variance).sum()
    )
    assert mean_error.standard_error == pytest.approx(jackknife_standard_error(values, names))
    skewness = (off**3).sum() / (off**2).sum() ** 1.5 * (5 * 4) ** 0.5 / 3
    assert mean_error.skewness == pytest.approx(SKEWNESS_FACTOR * skewness)


def test_a_weight_equals_a_cluster_of_as_many_items():
    rng = np.random.default_rng(0)
    weights, values = rng.integers(1, 9, 40), rng.normal(size=40)
    estimate = estimate_mean_or_share([*values, np.nan], null_value=0.1, weights=[*weights, 3])
    assert estimate.value == pytest.approx(np.average(values, weights=weights))
    assert (estimate.n, estimate.clusters, estimate.missing) == (40, 40, 1)
    weighted = compute_mean_error(values, None, weights / weights.mean())
    copied = compute_mean_error(np.repeat(values, weights), np.repeat(np.arange(40), weights))
    assert weighted.standard_error == pytest.approx(copied.standard_error)
    assert weighted.skewness == pytest.approx(copied.skewness)
    alike, plain = (
        estimate_mean_or_share(values, null_value=0.1, weights=w) for w in (np.full(40, 7.0), None)
    )
    assert (alike.low, alike.high, alike.p) == pytest.approx((plain.low, plain.high, plain.p))


@pytest.mark.parametrize("noise", ["of any size alike", "less of long ones"])
def test_intervals_of_weighted_means_cover_the_truth(noise):
    """Documents of very different sizes."""
    rng = np.random.default_rng(1)
    for sizes in (np.exp(rng.normal(0, 0.7, 60)), np.exp(rng.normal(0, 1, 200))):
        deviation = 1 / np.sqrt(sizes) if noise.startswith("less") else np.ones(len(sizes))
        covered = coverage(
            [*range(len(sizes))],
            lambda draws, d=deviation: draws.normal(0, d),
            0.0,
            null_value=0.0,
            weights=sizes,
        )
        assert 0.935 <= covered <= 0.978


def test_a_mean_that_few_weights_decide_has_no_interval():
    rng = np.random.default_rng(1)
    for sizes, count in (
        (np.array([*[1.0] * 35, 35.0]), "3.9"),
        (np.array([60.0, 80, 120, 300, 1439]), ""),
        (np.exp(rng.normal(0, 2, 36)), "4.6"),
    ):
        estimate = estimate_mean_or_share(
            rng.normal(size=len(sizes)), null_value=0.0, weights=sizes, unit="documents"
        )
        assert np.isnan([estimate.low, estimate.high, estimate.p]).all()
        reason = (
            f"documents with unequal weights are equivalent to {count} with equal weights, fewer "
            "than the required 10"
        )
        assert (
            estimate.method.endswith(reason)
            if count
            else estimate.method == "no interval: fewer than 10 documents"
        )


def test_a_share_has_wilsons_interval_for_its_effective_sample_size():
    """For clusters of one value it is scipy's; its ends are where the test no longer rejects."""
    values = np.arange(2000) % 5 == 0
    estimate = estimate_mean_or_share(values, is_share=True, null_value=0.2)
    assert (estimate.low, estimate.high) == pytest.approx(
        tuple(stats.binomtest(400, 2000).proportion_ci(method="wilson")), abs=1e-4
    )
    assert (
        estimate.p == 1
        and estimate.method == "Wilson interval (with Student's t) based on 2000 items"
    )
    for values, clusters in (
        (np.arange(120) % 7 == 0, np.arange(120) // 4),
        (np.arange(120) % 7 == 0, np.arange(120) // 9),
    ):
        estimate = estimate_mean_or_share(values, clusters, is_share=True)
        for end in (estimate.low, estimate.high):
            assert 0 < end < 1
            assert estimate_mean_or_share(
                values, clusters, is_share=True, null_value=end
            ).p == pytest.approx(0.05)
        assert estimate.high - estimate.value != pytest.approx(estimate.value - estimate.low)


def test_a_few_large_clusters_reduce_the_degrees_of_freedom():
    """Six correlated clusters of 40 and fourteen of 3 have about six degrees of freedom."""
    clusters = np.repeat(np.arange(20), [40] * 6 + [3] * 14)
    rng = np.random.default_rng(0)

    def draw(rng):
        return rng.normal(size=20)[clusters] + 0.5 * rng.normal(size=len(clusters))

    assert (
        "based on 20 items, effective sample size"
        in estimate_mean_or_share(draw(rng), clusters).method
    )
    assert 0.925 <= coverage(clusters, draw, 0.0, null_value=0.0) <= 0.985
    assert coverage(clusters, lambda rng: (draw(rng) < 0) * 1.0, 0.5, is_share=True) >= 0.925
    # Clusters of equal size all count.
    equal = estimate_mean_or_share(draw(rng)[:60], np.repeat(np.arange(20), 3))
    assert equal.method.endswith("based on 20 items")


def test_the_interval_of_a_skewed_mean_is_wider_on_the_side_of_the_longer_tail():
    """Find the upper end where p is 0.05; the lower one is that of Student's t."""
    from scipy.optimize import brentq

    values = np.random.default_rng(1).exponential(size=40)
    estimate = estimate_mean_or_share(values)
    peer = stats.ttest_1samp(values, 1.0).confidence_interval()
    skewness = SKEWNESS_FACTOR * stats.skew(values, bias=False) / 40**0.5
    bound = stats.t.ppf(0.975, 39)
    width = stats.sem(values) * (bound + skewness * (2 * bound**2 + 1) / 6)
    assert (estimate.low, estimate.high) == pytest.approx((peer.low, values.mean() + width))
    assert estimate.method == "Student's t interval, widened for skewness, based on 40 items"

    def compute_p(null):
        return estimate_mean_or_share(values, null_value=null).p

    assert brentq(lambda null: compute_p(null) - 0.05, values.mean(), 9) == pytest.approx(
        estimate.high
    )
    assert compute_p(0.7) == pytest.approx(stats.ttest_1samp(values, 0.7).pvalue)
    reflected = estimate_mean_or_share(-values)
    assert (reflected.low, reflected.high) == pytest.approx((-estimate.high, -estimate.low))


@pytest.mark.parametrize("n", [12, 16, 60])
def test_intervals_of_skewed_means_cover_the_truth(n):
    """Exponential values, like the exposure of secrets that are not memorised."""
    worlds = [*range(n)]
    for options in ({}, {"null_value": 1.0}):
        covered = coverage(worlds, lambda rng: rng.exponential(size=n), 1.0, **options)
        assert 0.925 <= covered <= 0.975


def test_two_way_clusters_cover_the_truth():
    """Values of a grid with correlated rows and columns."""
    rng = np.random.default_rng(4)
    rows, columns = (each.ravel().tolist() for each in np.indices((12, 15)))
    hits = {"mean": 0, "share": 0, "rows": 0}
    for _ in range(400):
        common = rng.normal(size=12)[rows] + rng.normal(size=15)[columns]
        values = common + rng.normal(size=180)
        low = (values < 0) * 1.0
        mean = estimate_mean_or_share(values, rows, crossed_clusters=columns)
        share = estimate_mean_or_share(
            low, rows, crossed_clusters=columns, is_share=True, null_value=0.5
        )
        alone = estimate_mean_or_share(values, rows, null_value=0.0)
        hits["mean"] += mean.low <= 0 <= mean.high
        hits["share"] += share.low <= 0.5 <= share.high
        hits["rows"] += alone.low <= 0 <= alone.high
        assert share.low >= 0 and share.high <= 1 and mean.clusters == 12
        assert (share.p < 0.05) == (not share.low <= 0.5 <= share.high)
    assert min(hits["mean"], hits["share"]) >= 0.92 * 400
    assert hits["rows"] < 0.9 * 400
    # Two identical clusterings count as one.
    twice = estimate_mean_or_share(values, rows, null_value=0.0, crossed_clusters=rows)
    assert (twice.low, twice.high) == pytest.approx((alone.low, alone.high))
    assert twice.method.endswith(
        "two-way clustering: 12 items and 12 clusters in the second dimension"
    )
    # A clustering with a single cluster is ignored.
    assert estimate_mean_or_share(values, rows, crossed_clusters=["x"] * 180).clusters == 12


def test_missing_values_are_counted_and_ignored():
    values = [1.0, np.nan, 0.0, 1.0, np.nan]
    estimate = estimate_mean_or_share(values, list("abcde"), is_share=True, null_value=0.5)
    whole = estimate_mean_or_share([1.0, 0.0, 1.0], list("acd"), is_share=True, null_value=0.5)
    assert (estimate.n, estimate.clusters, estimate.missing, whole.missing) == (3, 3, 2, 0)
    assert (estimate.value, estimate.low, estimate.high, estimate.p) == (
        whole.value,
        whole.low,
        whole.high,
        whole.p,
    )


def test_values_without_spread_have_no_interval():
    """If all secrets are at the maximum, an interval of zero width would claim certainty."""
    top = estimate_mean_or_share([13.3] * 16, null_value=1.4)
    assert np.isnan([top.low, top.high]).all() and top.value == pytest.approx(13.3)
    assert "no interval" in top.method
    # All values are on one side of the null: a sign test.
    assert (
        top.p == stats.binomtest(16, 16).pvalue
        and "p is from a sign test because all 16 items" in top.method
    )
    pairs = estimate_mean_or_share([1.0] * 16, np.repeat(np.arange(4), 4), null_value=0.0)
    assert pairs.p == stats.binomtest(4, 4).pvalue  # Only clusters count as independent.
    assert estimate_mean_or_share([0.5] * 9, null_value=0.5).p == 1 and np.isnan(
        estimate_mean_or_share([0.5] * 9).p
    )
    none = estimate_mean_or_share([], is_share=True)
    assert np.isnan([none.value, none.low]).all() and "no items to measure" in none.method
    alone = estimate_mean_or_share([1.0, 0.0], ["a", "a"], is_share=True, null_value=0.5)
    assert alone.value == 0.5 and np.isnan([alone.low, alone.p]).all()
    halves = [0.0, 1.0] * 40  # Clusters with equal shares.
    assert np.isnan(estimate_mean_or_share(halves, np.repeat(np.arange(40), 2), is_share=True).p)
    sure = estimate_mean_or_share(
        [1.0] * 24, np.repeat(np.arange(6), 4), is_share=True, null_value=0.5
    )
    assert (sure.low, sure.high) == pytest.approx((0.025 ** (1 / 6), 1))
    assert sure.p == pytest.approx(2 / 64)


def test_the_difference_of_two_groups_is_welchs_t():
    rng = np.random.default_rng(2)
    left, right = rng.normal(1, 2, 12), rng.normal(0, 1, 30)
    estimate = estimate_mean_difference([*left, np.nan], right)
    peer = stats.ttest_ind(left, right, equal_var=False)
    low, high = peer.confidence_interval(0.95)
    assert estimate.value == pytest.approx(left.mean() - right.mean())
    assert (estimate.low, estimate.high, estimate.p) == pytest.approx((low, high, peer.pvalue))
    assert (estimate.n, estimate.missing) == (42, 1)
    sure = estimate_mean_difference([3.0] * 5, [3.0] * 5)
    assert np.isnan(sure.low) and sure.p == 1 and "no interval" in sure.method
    separated = estimate_mean_difference([3.0] * 4, [2.0] * 5)
    permuted = stats.permutation_test(([3.0] * 4, [2.0] * 5), lambda a, b: a.mean() - b.mean())
    assert separated.p == pytest.approx(permuted.pvalue) and np.isnan(separated.low)
    assert np.isnan(estimate_mean_difference([], right).value) and np.isnan(
        estimate_mean_difference([1.0], right).low
    )
    # With a known error, the power is that of a noncentral t.
    effect = (
        estimate_mean_difference(left, right, null_variance=4.0).minimum_detectable_effect
        / (4 / 12 + 4 / 30) ** 0.5
    )
    assert stats.nct.sf(stats.t.ppf(0.975, 40), 40, effect) == pytest.approx(0.8, abs=1e-3)


def coverage(clusters, draw, truth, **options):
    """Return the share of 1,000 simulations whose interval covers the truth."""
    rng = np.random.default_rng(len(clusters))
    hits = [
        (estimate := estimate_mean_or_share(draw(rng), clusters, **options)).low
        <= truth
        <= estimate.high
        for _ in range(1000)
    ]
    return np.mean(hits)


PAIRS = read_bias_pairs(None)
CATEGORIES = ["", *sorted({pair.category for pair in PAIRS})]


@pytest.mark.parametrize("category", CATEGORIES)
def test_intervals_cover_the_null_of_randomly_swapped_pairs(category):
    """Swap the sides of pairs at random, with the templates of the project's own pairs."""
    clusters = [p.template for p in PAIRS if not category or p.category == category]

    def draw_swapped_pairs(rng):
        return rng.integers(2, size=len(clusters)).astype(float)

    assert 0.925 <= coverage(clusters, draw_swapped_pairs, 0.5, is_share=True) <= 0.98


@pytest.mark.parametrize("category", CATEGORIES)
def test_intervals_cover_differences_with_random_signs(category):
    clusters = [p.template for p in PAIRS if not category or p.category == category]
    sizes = np.random.default_rng(5).gamma(2.0, size=len(clusters))

    def draw_flipped_signs(rng):
        return sizes * rng.choice([-1.0, 1.0], len(sizes))

    assert 0.925 <= coverage(clusters, draw_flipped_signs, 0.0) <= 0.98


@pytest.mark.parametrize(("n", "truth"), [(16, 0.1), (30, 0.5), (39, 0.02), (17, 0.9)])
def test_exact_intervals_cover_at_least_their_level(n, truth):
    assert n < MAX_EXACT_UNITS
    estimate = coverage(
        [*range(n)], lambda rng: rng.binomial(1, truth, n).astype(float), truth, is_share=True
    )
    assert estimate >= 0.925


def draw_correlated_labels(rng, clusters, share, rho):
    """Draw labels with the given share and correlation within clusters."""
    cut = stats.norm.ppf(share)
    common = rng.normal(size=clusters.max() + 1)[clusters]
    return (rho**0.5 * common + (1 - rho) ** 0.5 * rng.normal(size=len(clusters)) < cut) * 1.0


@pytest.mark.parametrize(
    ("groups", "size", "rho", "null"),
    [
        (60, 1, 0.0, 1 / 3),
        (15, 4, 0.0, 0.5),
        (15, 4, 0.3, 0.6),
        (50, 20, 0.2, 0.5),
        (12, 24, 0.2, 0.5),
    ],
)
def test_the_detectable_effect_of_a_share_is_found_with_its_power(groups, size, rho, null):
    """Shift the null by the detectable effect, which is estimated again in each simulation."""
    clusters = np.repeat(np.arange(groups), size)
    rng, estimate = np.random.default_rng(groups), []
    options = {"is_share": True, "null_value": null}
    for _ in range(2000):
        under = estimate_mean_or_share(
            draw_correlated_labels(rng, clusters, null, rho), clusters, **options
        )
        at = null + under.minimum_detectable_effect * (1 if null <= 0.5 else -1)
        estimate.append(
            estimate_mean_or_share(
                draw_correlated_labels(rng, clusters, at, rho), clusters, **options
            ).p
            < 0.05
        )
    assert 0.74 <= np.mean(estimate) <= 0.84


@pytest.mark.parametrize(("groups", "size"), [(10, 6), (20, 3)])
def test_the_detectable_effect_of_a_mean_is_found_with_its_power(groups, size):
    clusters = np.repeat(np.arange(groups), size)
    rng, estimate = np.random.default_rng(groups), []

    def draw_values():
        return rng.normal(size=groups)[clusters] + rng.normal(size=len(clusters))

    for _ in range(2000):
        smallest = estimate_mean_or_share(
            draw_values(), clusters, null_value=0.0
        ).minimum_detectable_effect
        estimate.append(
            estimate_mean_or_share(draw_values() + smallest, clusters, null_value=0.0).p < 0.05
        )
    assert 0.76 <= np.mean(estimate) <= 0.84


@pytest.mark.parametrize(("n", "null"), [(12, 0.5), (39, 0.3), (30, 0.8)])
def test_the_detectable_effect_of_few_units_is_that_of_the_exact_test(n, null):
    values = np.arange(n) % 2.0
    effect = estimate_mean_or_share(
        values, is_share=True, null_value=null
    ).minimum_detectable_effect
    rejected = [k for k in range(n + 1) if binomial_test_p(k, n, null) < 0.05]
    at = null + effect if null <= 0.5 else null - effect
    assert stats.binom.pmf(rejected, n, at).sum() == pytest.approx(0.8, abs=1e-6)
    # With three units no count is unlikely enough.
    assert np.isnan(
        estimate_mean_or_share(
            [1.0, 0.0, 1.0], is_share=True, null_value=0.5
        ).minimum_detectable_effect
    )


@pytest.mark.parametrize(("freedom", "stated"), [(3, 4), (14, 14), (40, 0)])
def test_detectable_standard_errors_allow_for_estimated_errors(freedom, stated):
    rng = np.random.default_rng(freedom)
    draws = 200_000
    said = (rng.chisquare(stated, draws) / stated) ** 0.5 if stated else np.ones(draws)
    error = (rng.chisquare(freedom, draws) / freedom) ** 0.5
    t = (rng.normal(size=draws) + detectable_standard_errors(freedom, 0.95, stated) * said) / error
    assert (t > stats.t.ppf(0.975, freedom)).mean() == pytest.approx(0.8, abs=0.005)


@pytest.mark.parametrize("n", [10, 30])
def test_normal_values_widen_intervals_by_chance(n):
    values = np.random.default_rng(n).normal(size=(20_000, n))
    skewness = SKEWNESS_FACTOR * stats.skew(values, axis=1, bias=False) / n**0.5
    bound = stats.t.ppf(0.975, n - 1)
    widenings = skewness * (2 * bound**2 + 1) / 6
    assert compute_widening_by_chance(n - 1, 0.95) == pytest.approx(widenings.std(), rel=0.02)


def test_the_detectable_effect_does_not_depend_on_the_observed_effect():
    """If it did, a share near 1 would seem to detect effects of any size."""
    values = np.array([1.0] * 59 + [0.0])
    assert estimate_mean_or_share(
        values, is_share=True, null_value=0.5
    ).minimum_detectable_effect == pytest.approx(
        estimate_mean_or_share(1 - values, is_share=True, null_value=0.5).minimum_detectable_effect
    )
    assert (
        estimate_mean_or_share(values, is_share=True, null_value=0.5).minimum_detectable_effect
        > 0.15
    )
    assert np.isnan(estimate_mean_or_share(values, is_share=True).minimum_detectable_effect)


def test_the_detectable_effect_of_a_mean_uses_the_error_under_the_null():
    """Flip the signs of whole clusters in all ways, about a null that is not 0."""
    values, clusters = np.random.default_rng(0).normal(1, 1, 20), np.arange(20) // 2
    null = 0.5
    off = values.reshape(10, 2).sum(1) - null * 2
    flips = 1 - 2 * (np.arange(1024)[:, None] >> np.arange(10) & 1)
    spread = ((flips @ off) / 20).std()
    widening = compute_widening_by_chance(9, 0.95)
    expected = detectable_standard_errors(9, 0.95, 10, widening) * spread
    assert estimate_mean_or_share(
        values, clusters, null_value=null
    ).minimum_detectable_effect == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("groups", [8, 53])
def test_the_interval_of_equal_clusters_contains_all_plausible_means(value, groups):
    """A mean outside requires an event with a probability of less than 0.025, by brute force."""
    clusters = np.repeat(np.arange(groups), 4).tolist()
    estimate = estimate_mean_or_share(
        np.tile([0, 0, 0, 1] if value == 0.25 else [value] * 4, groups),
        clusters,
        is_share=True,
        null_value=0.5,
    )
    assert estimate.value == value
    for share, other in itertools.product(np.linspace(0, 1, 201), (0.0, 0.1, 0.9, 1.0)):
        mean = (1 - share) * value + share * other
        if not estimate.low - 1e-9 <= mean <= estimate.high + 1e-9:
            assert (1 - share) ** groups <= 0.025
    assert estimate.p == (
        1.0 if value == 0.5 else pytest.approx(2 * {0.25: 2 / 3}.get(value, 0.5) ** groups)
    )
    assert estimate.high - estimate.low < 1 - 0.025 ** (1 / groups) + 1e-9


def test_clusters_of_all_0_or_all_1_have_the_exact_p():
    clusters = np.repeat(np.arange(8), 4).tolist()
    for value in (0, 1):
        estimate = estimate_mean_or_share(
            [float(value)] * 32, clusters, is_share=True, null_value=0.3
        )
        tails = stats.binom.cdf(8 * value, 8, 0.3), stats.binom.sf(8 * value - 1, 8, 0.3)
        assert estimate.p == pytest.approx(2 * min(tails))


def test_equal_pairs_have_the_interval_of_few_differences():
    """In points, at most the Clopper-Pearson bound of no difference in 53 pairs."""
    answers = np.full(53, 0.5)  # No difference, scaled to a share.
    estimate = estimate_mean_or_share(answers, is_share=True)
    most = stats.binomtest(0, 53).proportion_ci().high
    assert (2 * estimate.low - 1, 2 * estimate.high - 1) == pytest.approx((-most, most))


def test_few_clusters_that_differ_have_the_widest_share_interval():
    """From 0 events on, the interval grows without a jump and never excludes what it should not."""
    clusters = np.repeat(np.arange(20), 10)
    highs = []
    for events in range(5):
        values = np.zeros(200)
        values[np.arange(events) * 10] = 1
        estimate = estimate_mean_or_share(values, clusters, is_share=True, null_value=0.3)
        highs.append(estimate.high)
        assert estimate.low <= estimate.value
        # The events of a cluster may all come together: shares of 20 units, not of 200.
        if events < 4:
            share = stats.beta.ppf(0.975, events / 10 + 1, 20 - events / 10)
            assert estimate.high == pytest.approx(share) and estimate.low == 0
            assert (
                "widest possible interval, because fewer than 4 clusters differ from the others, "
                in estimate.method
            )
            assert estimate.p == pytest.approx(
                2 * stats.beta.sf(0.3, events / 10 + 1, 20 - events / 10)
            )
    assert highs[:4] == sorted(highs[:4]) and highs[4] < highs[3]
    # Paired differences, scaled to shares: upwards and downwards count separately.
    changes = np.full(60, 0.5)
    changes[:2] = 1.0
    estimate = estimate_mean_or_share(changes, is_share=True, null_value=0.5)
    assert estimate.p == 1
    assert estimate.low == pytest.approx(0.5 - 0.5 * stats.beta.ppf(0.975, 1, 60))
    assert estimate.high == pytest.approx(0.5 + 0.5 * stats.beta.ppf(0.975, 3, 58))
    for null in np.linspace(0.4, 0.6, 21):
        tested = estimate_mean_or_share(changes, is_share=True, null_value=null)
        assert (tested.p < 0.05) == (not estimate.low <= null <= estimate.high)


def test_means_that_few_values_decide_have_no_interval():
    values = np.zeros(20)
    values[:2] = 1.0, 0.9
    estimate = estimate_mean_or_share(values, null_value=0.5, unit="prompts")
    assert np.isnan([estimate.low, estimate.high, estimate.p]).all()
    assert (
        estimate.method == "no interval: the mean is determined by fewer than 3 of the 20 prompts"
    )
    # Values that are all 0 say nothing about how often others are not.
    assert np.isnan(estimate_mean_or_share(np.zeros(20), null_value=0.5).p)
    large = estimate_mean_or_share(
        np.random.default_rng(0).normal(size=12)[np.repeat(np.arange(12), [200, *[1] * 11])],
        np.repeat(np.arange(12), [200, *[1] * 11]),
        unit="prompts",
    )
    assert large.method == "no interval: one or two large prompts dominate the mean"
    rows, columns = np.indices((30, 2))
    crossed = estimate_mean_or_share(
        rows.ravel() % 7.0, rows.ravel(), crossed_clusters=columns.ravel()
    )
    assert crossed.method == "no interval: fewer than 10 clusters in the second dimension"
    share = estimate_mean_or_share(UNEQUAL[0], UNEQUAL[1], is_share=True, unit="prompts")
    assert np.isnan(share.low) and share.method == "no interval: fewer than 6 prompts"


def test_the_normal_mean_of_few_clusters_is_a_t_test():
    values = np.array([0.4, 1.2, 0.9, 2.0])
    estimate = estimate_normal_mean(
        np.repeat(values, 3), np.repeat(np.arange(4), 3), null_value=0.0
    )
    peer = stats.ttest_1samp(values, 0.0)
    assert (estimate.low, estimate.high) == pytest.approx(tuple(peer.confidence_interval()))
    assert estimate.p == pytest.approx(peer.pvalue)
    assert estimate.method == (
        "Student's t interval based on 4 items, whose means are assumed to be normally distributed"
    )
    many = np.random.default_rng(0).normal(size=30)
    np.testing.assert_equal(
        astuple(estimate_normal_mean(many, [*range(30)])),
        astuple(estimate_mean_or_share(many, [*range(30)])),
    )
    equal = estimate_normal_mean([0.3, 0.3, 0.3], [0, 1, 2], null_value=0.0)
    assert equal.method.startswith("no interval: all items have the same value")


@pytest.mark.parametrize("kind", ["mean", "share", "rare share", "two-way", "weights"])
def test_estimates_do_not_depend_on_order_scale_and_origin(kind):
    rng = np.random.default_rng(3)
    clusters, crossed = np.arange(240) % 24, np.arange(240) // 20
    values = rng.exponential(size=24)[clusters] + rng.normal(size=240)
    weights = rng.uniform(1, 2, 240)
    options = {}
    if "share" in kind:
        values = (values > (4 if "rare" in kind else 1)).astype(float)
        options = {"is_share": True}

    def estimate(values, order=slice(None), null_value=0.4):
        extra = dict(options)
        if kind == "two-way":
            extra["crossed_clusters"] = crossed[order].tolist()
        if kind == "weights":
            extra["weights"] = weights[order]
        result = estimate_mean_or_share(
            values[order], clusters[order].tolist(), null_value=null_value, **extra
        )
        return np.array([result.value, result.low, result.high, result.p])

    expected, order = estimate(values), rng.permutation(240)
    assert not np.isnan(expected).any()
    assert estimate(values, order) == pytest.approx(expected, rel=1e-9)
    if "share" in kind:  # Counting what does not happen is the same share, from the other side.
        value, low, high, p = expected
        reflected = [1 - value, 1 - high, 1 - low, p]
        assert estimate(1 - values, null_value=0.6) == pytest.approx(reflected, rel=1e-9)
        return
    for factor, shift in ((1e-6, 0.0), (-1000.0, 5.0), (1.0, 100.0)):
        value, low, high, p = expected
        ends = sorted((factor * low + shift, factor * high + shift))
        assert estimate(factor * values + shift, null_value=0.4 * factor + shift) == pytest.approx(
            [factor * value + shift, *ends, p], rel=1e-6
        )
