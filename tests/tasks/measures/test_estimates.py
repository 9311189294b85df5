"""Estimates against scipy, closed forms, and worlds whose truth is known."""

import itertools
import re

import numpy as np
import pytest
from scipy import stats

from hallmark.tasks.audits.probes.bias import read_bias_pairs
from hallmark.tasks.measures.detectable_effects import detectable_standard_errors
from hallmark.tasks.measures.estimates import (
    MAX_EXACT_UNITS,
    estimate_mean_difference,
    estimate_mean_or_share,
)
from hallmark.tasks.measures.proportions import binomial_test_p, clopper_pearson_interval


def test_exact_intervals_and_p_are_scipys():
    for n in (1, 2, 7, 39):
        for k in range(n + 1):
            for null in (0.5, 0.44, 0.05):
                peer = stats.binomtest(k, n, null)
                low, high = peer.proportion_ci(0.9, method="exact")
                assert clopper_pearson_interval(k, n, 0.9) == pytest.approx((low, high), abs=1e-12)
                assert binomial_test_p(k, n, null) == pytest.approx(peer.pvalue, rel=1e-9)
    found = estimate_mean_or_share([1.0] * 9 + [0.0] * 3, is_share=True, null_value=0.44)
    peer = stats.binomtest(9, 12, 0.44)
    assert (found.low, found.high) == pytest.approx(tuple(peer.proportion_ci(method="exact")))
    assert found.p == pytest.approx(peer.pvalue) and found.method.startswith("Clopper-Pearson")


def test_few_clusters_have_the_interval_of_students_t():
    """Clusters of one size: that of their means."""
    rng = np.random.default_rng(0)
    for groups, size in ((2, 1), (6, 4), (49, 3)):
        values = rng.normal(size=(groups, size)) + rng.normal(size=(groups, 1))
        found = estimate_mean_or_share(
            values.ravel(), np.repeat(np.arange(groups), size), null_value=0.3
        )
        means = values.mean(1)
        low, high = stats.t.interval(0.95, groups - 1, means.mean(), stats.sem(means))
        assert (found.low, found.high) == pytest.approx((low, high))
        assert found.p == pytest.approx(stats.ttest_1samp(means, 0.3).pvalue)
        assert (found.n, found.clusters, found.missing) == (groups * size, groups, 0)
        assert found.method == f"Student's t over {groups} items"


UNEQUAL = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], [*"aaabccd"]


def jackknife(values, clusters):
    """The standard error of the mean, each cluster left out by hand."""
    array, names = np.array(values), np.array(clusters)
    without = [array[names != name].mean() for name in {*clusters}]
    groups = len(without)
    return ((groups - 1) / groups * sum((w - array.mean()) ** 2 for w in without)) ** 0.5


def test_clusters_of_unequal_sizes_by_hand():
    values, clusters = UNEQUAL
    found = estimate_mean_or_share(values, clusters, null_value=0.5)
    mean, error = 5 / 7, jackknife(values, clusters)
    # What is off from the mean, squared, over what it is of single values, over pairs of them.
    off = [2 - 3 * mean, 1 - mean, 1 - 2 * mean, 1 - mean]
    shared = (sum(x * x for x in off) / np.var(values) - 7) / (3 * 2 + 2 * 1)
    assert shared < 0  # so a cluster of 3 weighs as much as three of 1
    weights = np.array([3, 1, 2, 1])
    freedom = round(weights.sum() ** 2 / (weights**2).sum() - 1)
    assert found.value == pytest.approx(mean) and freedom == 2 < 3
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 2, mean, error))
    assert found.p == pytest.approx(2 * stats.t.sf((mean - 0.5) / error, 2))
    assert found.method == "Student's t over 4 items, which weigh as 3"


def test_clusters_that_hold_alike_weigh_as_fewer_by_hand():
    names = [*"aaaaaabbbbccde"]
    values = np.array([1.0, 0.9, 1.1, 0.2, 1, 1, 0, 0.1, 0.9, 0, 0.5, 0.6, 0.3, 0.2])
    found, mean = estimate_mean_or_share(values, names, null_value=0.5), values.mean()
    counts = np.array([names.count(name) for name in "abcde"])
    off = [
        values[[n == name for n in names]].sum() - count * mean
        for name, count in zip("abcde", counts, strict=True)
    ]
    pairs = sum(count * (count - 1) for count in counts)
    shared = (np.square(off).sum() / values.var() - len(values)) / pairs
    assert 0.2 < shared < 0.8
    variance = [count + count * (count - 1) * shared for count in counts]
    freedom = round(sum(variance) ** 2 / np.square(variance).sum() - 1)
    error = jackknife(values, names)
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, freedom, mean, error))
    assert found.method == f"Student's t over 5 items, which weigh as {freedom + 1}"


def test_a_weighted_mean_is_that_of_clusters_of_as_many_items():
    rng = np.random.default_rng(0)
    weights, values = rng.integers(1, 9, 20), rng.normal(size=20)
    found = estimate_mean_or_share([*values, np.nan], null_value=0.1, weights=[*weights, 3])
    copies = estimate_mean_or_share(
        np.repeat(values, weights), np.repeat(np.arange(20), weights), null_value=0.1
    )
    assert found.value == pytest.approx(np.average(values, weights=weights))
    assert (found.n, found.clusters, found.missing) == (20, 20, 1)
    errors = [
        (each.high - each.low) / 2 / stats.t.ppf(0.975, freedom_of(each))
        for each in (found, copies)
    ]
    assert errors[0] == pytest.approx(errors[1])
    alike, plain = (
        estimate_mean_or_share(values, null_value=0.1, weights=w) for w in (np.full(20, 7.0), None)
    )
    assert (alike.low, alike.high, alike.p) == pytest.approx((plain.low, plain.high, plain.p))


def freedom_of(found):
    alike = re.search(r"weigh as (\d+)", found.method)
    return (int(alike[1]) if alike else found.clusters) - 1


@pytest.mark.parametrize("noise", ["of any size alike", "less of long ones"])
def test_weighted_means_cover_what_they_are_of(noise):
    """Documents of very different sizes, of one that is half of all, and of a few."""
    rng = np.random.default_rng(1)
    for sizes in (
        np.exp(rng.normal(0, 1.5, 36)),
        np.array([*[1.0] * 35, 35.0]),
        np.exp(rng.normal(0, 1, 200)),
        np.array([60.0, 80, 120, 300, 1439]),
    ):
        deviation = 1 / np.sqrt(sizes) if noise.startswith("less") else np.ones(len(sizes))
        covered = coverage(
            [*range(len(sizes))],
            lambda draws, d=deviation: draws.normal(0, d),
            0.0,
            null_value=0.0,
            weights=sizes,
        )
        assert covered >= 0.94
        if len(sizes) == 200:  # and not by being wide
            assert covered <= 0.975


def test_a_share_has_wilsons_interval_of_as_many_units_as_would_err_alike():
    """Where each cluster is a value it is scipy's; its ends are what the test refuses no more."""
    values = np.arange(2000) % 5 == 0
    found = estimate_mean_or_share(values, is_share=True, null_value=0.2)
    assert (found.low, found.high) == pytest.approx(
        tuple(stats.binomtest(400, 2000).proportion_ci(method="wilson")), abs=1e-4
    )
    assert found.p == 1 and found.method == "Wilson's interval with Student's t over 2000 items"
    for values, clusters in (UNEQUAL, (np.arange(120) % 7 == 0, np.arange(120) // 4)):
        found = estimate_mean_or_share(values, clusters, is_share=True)
        for end in (found.low, found.high):
            assert 0 < end < 1
            assert estimate_mean_or_share(
                values, clusters, is_share=True, null_value=end
            ).p == pytest.approx(0.05)
        assert found.high - found.value != pytest.approx(found.value - found.low)


def test_where_some_clusters_are_large_as_few_as_they_are_count():
    """Three of 40 beside seventeen of 3, which hold much alike: their t is that of about three."""
    clusters = np.repeat(np.arange(20), [40] * 3 + [3] * 17)
    rng = np.random.default_rng(0)

    def draw(rng):
        return rng.normal(size=20)[clusters] + 0.5 * rng.normal(size=len(clusters))

    assert "over 20 items, which weigh as" in estimate_mean_or_share(draw(rng), clusters).method
    assert 0.925 <= coverage(clusters, draw, 0.0, null_value=0.0) <= 0.985
    assert coverage(clusters, lambda rng: (draw(rng) < 0) * 1.0, 0.5, is_share=True) >= 0.925
    # Of one size each counts.
    equal = estimate_mean_or_share(draw(rng)[:60], np.repeat(np.arange(20), 3))
    assert equal.method.endswith("over 20 items")


def test_the_interval_of_a_skewed_mean_is_one_of_its_transformed_t():
    """Hall's transformation, its ends found by bisection."""
    from scipy.optimize import brentq

    values = np.random.default_rng(1).exponential(size=40)
    error, off = stats.sem(values), values - values.mean()
    skew = (off**3).mean() / off.std() ** 3
    bound = stats.t.ppf(0.975, 39)

    def beyond(mean, side):
        t = (values.mean() - mean) / error
        root = 40**0.5
        return t + skew * (t**2 / 3 + 1 / 6) / root + skew**2 * t**3 / 27 / 40 - side * bound

    found = estimate_mean_or_share(values)
    low, high = (brentq(beyond, values.mean() - 3, values.mean() + 3, (side,)) for side in (1, -1))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.high - found.value > found.value - found.low  # the longer tail
    assert "skewness taken out, over 40 items" in found.method
    few = estimate_mean_or_share(values[:8])
    assert (few.low, few.high) == pytest.approx(
        stats.t.interval(0.95, 7, values[:8].mean(), stats.sem(values[:8]))
    )
    # With a null, interval and p are those of one test.
    tested = estimate_mean_or_share(values, null_value=1.0)
    peer = stats.ttest_1samp(values, 1.0)
    assert (tested.low, tested.high) == pytest.approx(tuple(peer.confidence_interval()))
    assert tested.p == pytest.approx(peer.pvalue)


@pytest.mark.parametrize("n", [12, 16, 60])
def test_intervals_of_skewed_means_cover_them(n):
    """As exposures of secrets, whose ranks are as good as drawn by lot: exponential."""
    worlds = [*range(n)]
    assert 0.925 <= coverage(worlds, lambda rng: rng.exponential(size=n), 1.0) <= 0.972
    plain = coverage(worlds, lambda rng: rng.exponential(size=n), 1.0, null_value=1.0)
    assert plain < 0.93 or n == 60


def test_items_that_share_two_things_count_once_for_both():
    """Values of a grid, of which rows and columns hold much alike."""
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
    # Of two ways of which one is the other, that one.
    twice = estimate_mean_or_share(values, rows, null_value=0.0, crossed_clusters=rows)
    assert (twice.low, twice.high) == pytest.approx((alone.low, alone.high))
    assert twice.method == "Student's t over two-way clusters: 12 items, and 12 more"
    # A thing that all share tells nothing.
    assert estimate_mean_or_share(values, rows, crossed_clusters=["x"] * 180).clusters == 12


def test_what_is_missing_is_counted_and_counts_for_nothing():
    values = [1.0, np.nan, 0.0, 1.0, np.nan]
    found = estimate_mean_or_share(values, list("abcde"), is_share=True, null_value=0.5)
    whole = estimate_mean_or_share([1.0, 0.0, 1.0], list("acd"), is_share=True, null_value=0.5)
    assert (found.n, found.clusters, found.missing, whole.missing) == (3, 3, 2, 0)
    assert (found.value, found.low, found.high, found.p) == (
        whole.value,
        whole.low,
        whole.high,
        whole.p,
    )


def test_where_nothing_shows_a_spread_none_is_claimed():
    """Secrets that all stand at the ceiling: an interval of no width would be a certainty."""
    top = estimate_mean_or_share([13.3] * 16, null_value=1.4)
    assert np.isnan([top.low, top.high]).all() and top.value == pytest.approx(13.3)
    assert "no interval" in top.method
    # All on one side of the null: as unlikely as 16 signs that agree.
    assert top.p == stats.binomtest(16, 16).pvalue and "p of 16 items on one side" in top.method
    pairs = estimate_mean_or_share([1.0] * 16, np.repeat(np.arange(4), 4), null_value=0.0)
    assert pairs.p == stats.binomtest(4, 4).pvalue  # items of a cluster may agree anyway
    assert estimate_mean_or_share([0.5] * 9, null_value=0.5).p == 1 and np.isnan(
        estimate_mean_or_share([0.5] * 9).p
    )
    none = estimate_mean_or_share([], is_share=True)
    assert np.isnan([none.value, none.low]).all() and "no items to measure" in none.method
    alone = estimate_mean_or_share([1.0, 0.0], ["a", "a"], is_share=True, null_value=0.5)
    assert alone.value == 0.5 and np.isnan([alone.low, alone.p]).all()
    halves = [0.0, 1.0] * 40  # clusters that agree
    assert np.isnan(estimate_mean_or_share(halves, np.repeat(np.arange(40), 2), is_share=True).p)
    sure = estimate_mean_or_share(
        [1.0] * 24, np.repeat(np.arange(6), 4), is_share=True, null_value=0.5
    )
    assert (sure.low, sure.high) == pytest.approx((0.025 ** (1 / 6), 1))
    assert sure.p == pytest.approx(2 / 64)


def test_the_difference_of_two_groups_is_welchs():
    rng = np.random.default_rng(2)
    left, right = rng.normal(1, 2, 12), rng.normal(0, 1, 30)
    found = estimate_mean_difference([*left, np.nan], right)
    peer = stats.ttest_ind(left, right, equal_var=False)
    low, high = peer.confidence_interval(0.95)
    assert found.value == pytest.approx(left.mean() - right.mean())
    assert (found.low, found.high, found.p) == pytest.approx((low, high, peer.pvalue))
    assert (found.n, found.missing) == (42, 1)
    sure = estimate_mean_difference([3.0] * 5, [3.0] * 5)
    assert np.isnan(sure.low) and sure.p == 1 and "no interval" in sure.method
    parted = estimate_mean_difference([3.0] * 4, [2.0] * 5)
    by_lot = stats.permutation_test(([3.0] * 4, [2.0] * 5), lambda a, b: a.mean() - b.mean())
    assert parted.p == pytest.approx(by_lot.pvalue) and np.isnan(parted.low)
    assert np.isnan(estimate_mean_difference([], right).value) and np.isnan(
        estimate_mean_difference([1.0], right).low
    )
    # Where the error is known power is that of a t that is not central.
    effect = (
        estimate_mean_difference(left, right, null_variance=4.0).minimum_detectable_effect
        / (4 / 12 + 4 / 30) ** 0.5
    )
    assert stats.nct.sf(stats.t.ppf(0.975, 40), 40, effect) == pytest.approx(0.8, abs=1e-3)


def coverage(clusters, draw, truth, **options):
    """Share of 1,000 worlds whose interval covers the truth."""
    rng = np.random.default_rng(len(clusters))
    hits = [
        (found := estimate_mean_or_share(draw(rng), clusters, **options)).low <= truth <= found.high
        for _ in range(1000)
    ]
    return np.mean(hits)


PAIRS = read_bias_pairs(None)
CATEGORIES = ["", *sorted({pair.category for pair in PAIRS})]


@pytest.mark.parametrize("category", CATEGORIES)
def test_intervals_cover_the_null_of_swapped_pairs(category):
    """The sides of each pair swapped by a coin, on the templates of the project's own pairs."""
    clusters = [p.template for p in PAIRS if not category or p.category == category]

    def swapped(rng):
        return rng.integers(2, size=len(clusters)).astype(float)

    assert 0.925 <= coverage(clusters, swapped, 0.5, is_share=True) <= 0.972


@pytest.mark.parametrize("category", CATEGORIES)
def test_intervals_cover_differences_whose_signs_were_flipped(category):
    clusters = [p.template for p in PAIRS if not category or p.category == category]
    sizes = np.random.default_rng(5).gamma(2.0, size=len(clusters))

    def flipped(rng):
        return sizes * rng.choice([-1.0, 1.0], len(sizes))

    assert 0.925 <= coverage(clusters, flipped, 0.0) <= 0.972


@pytest.mark.parametrize(("n", "truth"), [(16, 0.1), (30, 0.5), (39, 0.02), (17, 0.9)])
def test_intervals_of_few_units_cover_at_least_what_they_say(n, truth):
    assert n < MAX_EXACT_UNITS
    found = coverage(
        [*range(n)], lambda rng: rng.binomial(1, truth, n).astype(float), truth, is_share=True
    )
    assert found >= 0.925


def held_alike(rng, clusters, share, rho):
    """Labels of which clusters share so much."""
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
        (8, 24, 0.2, 0.5),
    ],
)
def test_the_smallest_effect_is_found_with_the_power_it_names(groups, size, rho, null):
    """Simulated from the null moved by it: shares, of clusters that hold alike or do not; what is
    stated is drawn anew each time, too."""
    clusters = np.repeat(np.arange(groups), size)
    rng, found = np.random.default_rng(groups), []
    options = {"is_share": True, "null_value": null}
    for _ in range(2000):
        under = estimate_mean_or_share(held_alike(rng, clusters, null, rho), clusters, **options)
        at = null + under.minimum_detectable_effect * (1 if null <= 0.5 else -1)
        found.append(
            estimate_mean_or_share(held_alike(rng, clusters, at, rho), clusters, **options).p < 0.05
        )
    assert 0.76 <= np.mean(found) <= 0.84


@pytest.mark.parametrize(("groups", "size"), [(4, 6), (20, 3)])
def test_the_smallest_difference_is_found_with_the_power_it_names(groups, size):
    clusters = np.repeat(np.arange(groups), size)
    rng, found = np.random.default_rng(groups), []

    def drawn():
        return rng.normal(size=groups)[clusters] + rng.normal(size=len(clusters))

    for _ in range(2000):
        smallest = estimate_mean_or_share(
            drawn(), clusters, null_value=0.0
        ).minimum_detectable_effect
        found.append(estimate_mean_or_share(drawn() + smallest, clusters, null_value=0.0).p < 0.05)
    assert 0.76 <= np.mean(found) <= 0.84


@pytest.mark.parametrize(("n", "null"), [(12, 0.5), (39, 0.3), (30, 0.8)])
def test_the_smallest_effect_on_few_units_is_that_of_their_exact_test(n, null):
    values = np.arange(n) % 2.0
    effect = estimate_mean_or_share(
        values, is_share=True, null_value=null
    ).minimum_detectable_effect
    rejected = [k for k in range(n + 1) if stats.binomtest(k, n, null).pvalue < 0.05]
    at = null + effect if null <= 0.5 else null - effect
    assert stats.binom.pmf(rejected, n, at).sum() == pytest.approx(0.8, abs=1e-6)
    # Of three units none is ever too unlikely.
    assert np.isnan(
        estimate_mean_or_share(
            [1.0, 0.0, 1.0], is_share=True, null_value=0.5
        ).minimum_detectable_effect
    )


@pytest.mark.parametrize(("freedom", "stated"), [(3, 4), (14, 14), (40, 0)])
def test_an_effects_reach_counts_that_its_error_is_an_estimate(freedom, stated):
    rng = np.random.default_rng(freedom)
    draws = 200_000
    said = (rng.chisquare(stated, draws) / stated) ** 0.5 if stated else np.ones(draws)
    error = (rng.chisquare(freedom, draws) / freedom) ** 0.5
    t = (rng.normal(size=draws) + detectable_standard_errors(freedom, 0.95, stated) * said) / error
    assert (t > stats.t.ppf(0.975, freedom)).mean() == pytest.approx(0.8, abs=0.005)


def test_an_effect_does_not_make_itself_easy_to_find():
    """From what was found, a share near one would seem to be seen at any size."""
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


def test_the_smallest_difference_comes_from_signs_that_were_flipped():
    """Of whole clusters, about a null that is not 0, by all flips there are."""
    values, clusters = np.array([0.2, 1.4, -0.3, 2.0, 0.9, -1.1, 0.1, 0.7]), np.arange(8) // 2
    null = 0.5
    off = values.reshape(4, 2).sum(1) - null * 2
    flips = 1 - 2 * (np.arange(16)[:, None] >> np.arange(4) & 1)
    spread = ((flips @ off) / 8).std()
    expected = detectable_standard_errors(3, 0.95, 4) * spread
    assert estimate_mean_or_share(
        values, clusters, null_value=null
    ).minimum_detectable_effect == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("groups", [8, 53])
def test_where_clusters_agree_the_interval_holds_what_could_make_them_do_so(value, groups):
    """By brute force over shares of clusters that would be otherwise, and at what: a mean outside
    lets all of these agree with a chance of less than 0.025."""
    clusters = np.repeat(np.arange(groups), 4).tolist()
    found = estimate_mean_or_share(
        np.tile([0, 0, 0, 1] if value == 0.25 else [value] * 4, groups),
        clusters,
        is_share=True,
        null_value=0.5,
    )
    assert found.value == value
    for share, other in itertools.product(np.linspace(0, 1, 201), (0.0, 0.1, 0.9, 1.0)):
        mean = (1 - share) * value + share * other
        if not found.low - 1e-9 <= mean <= found.high + 1e-9:
            assert (1 - share) ** groups <= 0.025
    assert found.p == (
        1.0 if value == 0.5 else pytest.approx(2 * {0.25: 2 / 3}.get(value, 0.5) ** groups)
    )
    assert found.high - found.low < 1 - 0.025 ** (1 / groups) + 1e-9


def test_clusters_that_are_all_0_or_all_1_have_the_exact_p_of_as_many():
    clusters = np.repeat(np.arange(8), 4).tolist()
    for value in (0, 1):
        found = estimate_mean_or_share([float(value)] * 32, clusters, is_share=True, null_value=0.3)
        assert found.p == pytest.approx(stats.binomtest(8 * value, 8, 0.3).pvalue)


def test_where_no_pair_differs_few_others_could():
    """In points: no more than if one in so many pairs did, either way."""
    answers = np.full(53, 0.5)  # right in both, put to where shares lie
    found = estimate_mean_or_share(answers, is_share=True)
    most = stats.binomtest(0, 53).proportion_ci().high
    assert (2 * found.low - 1, 2 * found.high - 1) == pytest.approx((-most, most))
