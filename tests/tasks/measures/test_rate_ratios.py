"""Compare rate ratios over clusters with brute force, textbook values and simulations."""

import numpy as np
import pytest
import scipy.stats

from hallmark.tasks.measures.rate_ratios import ClusteredGroup, estimate_rate_ratios


def compute_ratios(is_event, group, cluster=None, risk=None):
    n = len(is_event)
    cluster = np.arange(n) if cluster is None else np.asarray(cluster)
    risk = np.ones(n, bool) if risk is None else np.asarray(risk)
    groups = [ClusteredGroup.from_members(np.flatnonzero(g), cluster) for g in np.atleast_2d(group)]
    return estimate_rate_ratios(groups, np.asarray(is_event, bool), risk, cluster)


def cluster_rate_variance(is_event, inside, cluster):
    """Compute the variance of the rate of the selected items, cluster by cluster."""
    rate = is_event[inside].mean()
    sums = [
        (is_event[cluster_members] - rate).sum()
        for c in np.unique(cluster[inside])
        if (cluster_members := inside & (cluster == c)).any()
    ]
    return sum(s**2 for s in sums) / inside.sum() ** 2 * len(sums) / (len(sums) - 1)


def test_rates_and_variances_equal_those_of_brute_force():
    random = np.random.default_rng(1)
    cluster = random.integers(40, size=300)
    is_event = random.random(300) < 0.2 + 0.5 * (cluster % 5 == 0)
    group = random.random(300) < 0.3
    risk = random.random(300) < 0.8
    estimate = compute_ratios(is_event, group, cluster, risk)
    a, b = group & risk, ~group & risk
    assert (estimate.n[0], estimate.events[0]) == (a.sum(), is_event[a].sum())
    assert (estimate.other_n[0], estimate.other_events[0]) == (b.sum(), is_event[b].sum())
    assert estimate.clusters[0] == len(np.unique(cluster[a]))
    assert estimate.ratio[0] == pytest.approx(is_event[a].mean() / is_event[b].mean())
    # The interval is that of Poisson counts with the same variances.
    x, y = (is_event[s].mean() ** 2 / cluster_rate_variance(is_event, s, cluster) for s in (a, b))
    exposure = (x / is_event[a].mean()) / (y / is_event[b].mean())
    low = scipy.stats.beta.ppf(0.025, x, y + 1)
    high = scipy.stats.beta.ppf(0.975, x + 1, y)
    assert estimate.low[0] == pytest.approx(low / (1 - low) / exposure)
    assert estimate.high[0] == pytest.approx(high / (1 - high) / exposure)


def test_rare_independent_events_give_the_exact_poisson_test():
    """So many items that 1 - rate is nearly 1."""
    n = 1_000_000
    is_event, group = np.zeros(n, bool), np.zeros(n, bool)
    group[: n // 4] = True
    is_event[[*range(7), *range(n - 9, n)]] = True
    estimate = compute_ratios(is_event, group)
    test = scipy.stats.binomtest(7, 16, 0.25)
    interval = test.proportion_ci(method="exact")
    assert estimate.low[0] == pytest.approx(interval.low / (1 - interval.low) * 3, rel=1e-3)
    assert estimate.high[0] == pytest.approx(interval.high / (1 - interval.high) * 3, rel=1e-3)
    twice = 2 * scipy.stats.binomtest(7, 16, 0.25, alternative="greater").pvalue
    assert estimate.p[0] == pytest.approx(twice, rel=1e-3)


def test_copies_add_no_information():
    random = np.random.default_rng(2)
    is_event, group = random.random(200) < 0.3, random.random(200) < 0.5
    once = compute_ratios(is_event, group)
    ten = compute_ratios(
        np.repeat(is_event, 10), np.repeat(group, 10), np.repeat(np.arange(200), 10)
    )
    assert ten.ratio[0] == pytest.approx(once.ratio[0])
    assert np.log(ten.high / ten.low) == pytest.approx(np.log(once.high / once.low), rel=0.03)
    alone = compute_ratios(np.repeat(is_event, 10), np.repeat(group, 10))
    assert np.log(alone.high / alone.low)[0] < 0.4 * np.log(once.high / once.low)[0]


def test_no_events_in_a_group_give_an_upper_bound_and_none_at_all_give_nan():
    group = np.arange(1000) < 100
    is_event = np.arange(1000) >= 950
    none = compute_ratios(is_event, group)
    assert (none.ratio[0], none.low[0]) == (0, 0) and 0.3 < none.high[0] < 1 and none.p[0] < 0.05
    only = compute_ratios(~is_event & group, group)
    assert np.isinf(only.ratio[0]) and np.isinf(only.high[0]) and only.p[0] < 1e-9
    nothing = compute_ratios(np.zeros(1000, bool), group)
    assert np.isnan([nothing.ratio[0], nothing.low[0], nothing.high[0], nothing.p[0]]).all()
    empty = compute_ratios(is_event, np.zeros(1000, bool))
    assert np.isnan(
        [empty.ratio[0], empty.low[0], empty.p[0], empty.minimum_detectable_ratio[0]]
    ).all()
    every = compute_ratios(np.ones(1000, bool), group)
    assert every.ratio[0] == 1 and every.low[0] > 0.6 and every.p[0] > 0.9


def test_few_clusters_use_the_variance_between_them():
    """Three clusters of two items, with one event: the squares sum to 2/3."""
    cluster = np.append(np.repeat([0, 1, 2], 2), 3 + np.arange(1000))
    group = np.arange(1006) < 6
    is_event = np.append(np.arange(6) == 0, np.arange(1000) % 10 == 0)
    estimate = compute_ratios(is_event, group, cluster)
    x, y = (
        is_event[s].mean() ** 2 / cluster_rate_variance(is_event, s, cluster)
        for s in (group, ~group)
    )
    exposure = (x / is_event[group].mean()) / (y / is_event[~group].mean())
    low = scipy.stats.beta.ppf(0.025, x, y + 1)
    assert estimate.low[0] == pytest.approx(low / (1 - low) / exposure)


def test_a_single_event_or_item_has_an_interval():
    group = np.arange(100_000) < 25_000
    one = compute_ratios(np.arange(100_000) == 0, group)
    assert one.p[0] == pytest.approx(2 * 0.25, rel=1e-3) and np.isinf(one.high[0])
    assert one.low[0] == pytest.approx(0.025 / 0.975 * 3, rel=1e-3)
    other = compute_ratios(np.arange(100_000) == 99_999, group)
    assert other.low[0] == 0 and other.p[0] == 1 and np.isfinite(other.high[0])
    alone = compute_ratios(np.arange(1000) % 10 == 5, np.arange(1000) == 0)
    assert (alone.low[0], alone.p[0]) == (0, 1) and 1 < alone.high[0] < 1000


def test_effective_counts_can_be_less_than_one():
    """Half of a single cluster: variance 0.5 x 0.8, so 0.625 events of 1.25 items."""
    is_event = np.append(np.arange(30) < 15, np.arange(10_000) % 10 == 0)
    group = np.arange(10_030) < 30
    cluster = np.append(np.zeros(30, int), 1 + np.arange(10_000))
    estimate = compute_ratios(is_event, group, cluster)
    x, y = 0.625, 0.1**2 / cluster_rate_variance(is_event, ~group, cluster)
    share = 1.25 / (1.25 + y / 0.1)
    more, less = scipy.stats.beta.cdf(share, x, y + 1), scipy.stats.beta.sf(share, x + 1, y)
    assert estimate.p[0] == pytest.approx(2 * min(more, less))
    low = scipy.stats.beta.ppf(0.025, x, y + 1)
    assert estimate.low[0] == pytest.approx(low / (1 - low) * (1 - share) / share)


@pytest.mark.parametrize("size", [1, 2, 400])
def test_swapping_group_and_others_inverts_the_ratio(size):
    is_event, group = np.arange(1000) % 10 == 5, np.arange(1000) < size
    estimate = compute_ratios(is_event, [group, ~group])
    assert estimate.p[0] == pytest.approx(estimate.p[1])
    with np.errstate(divide="ignore"):
        assert estimate.ratio[1] == pytest.approx(1 / estimate.ratio[0])
        assert estimate.low[1] == pytest.approx(1 / estimate.high[0])
        assert estimate.high[1] == pytest.approx(1 / estimate.low[0])


def test_a_stratum_without_items_at_risk_is_ignored():
    random = np.random.default_rng(8)
    stratum = np.repeat([0, 1, 2], 500)
    is_event, member = random.random(1500) < 0.2, random.random(1500) < 0.3
    some = stratum < 2
    groups = [ClusteredGroup.from_members(np.flatnonzero(member), np.arange(1500))]
    estimate = estimate_rate_ratios(groups, is_event, some, np.arange(1500), stratum)
    cluster_members = [ClusteredGroup.from_members(np.flatnonzero(member[some]), np.arange(1000))]
    alone = estimate_rate_ratios(
        cluster_members,
        is_event[some],
        np.ones(1000, bool),
        np.arange(1000),
        np.repeat([0, 1], 500),
    )
    assert np.isfinite(estimate.stratified_ratio[0]) and estimate.stratified_ratio[
        0
    ] == pytest.approx(alone.stratified_ratio[0])


def test_a_group_with_all_events_is_not_overconfident():
    """By exact binomial probabilities, 20 of 20 events at 0.9 each have a two-sided p of 0.24."""
    is_event = np.append(np.ones(20, bool), np.arange(10_000) % 10 > 0)
    estimate = compute_ratios(is_event, np.arange(10_020) < 20)
    assert estimate.ratio[0] == pytest.approx(1 / 0.9) and 0.1 < estimate.p[0] < 0.5
    exact = scipy.stats.binomtest(20, 20).proportion_ci(method="exact").low / 0.9
    assert estimate.low[0] == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("taken", [30, 15])
def test_a_single_cluster_is_one_item(taken):
    """Thirty near-duplicates with events in all or half, and one in ten other documents."""
    is_event = np.append(np.arange(30) < taken, np.arange(10_000) % 10 == 0)
    cluster = np.append(np.zeros(30, int), 1 + np.arange(10_000))
    estimate = compute_ratios(is_event, np.arange(10_030) < 30, cluster)
    assert (
        estimate.clusters[0] == 1 and estimate.p[0] > 0.1 and estimate.low[0] < 1 < estimate.high[0]
    )


def draw_clustered_events(random, ratio, rate=0.05, clusters=1500, groups=1):
    """Draw clusters of 1 to 6 items with the same outcome; groups are spread over clusters."""
    size = random.integers(1, 7, clusters)
    cluster = np.repeat(np.arange(clusters), size)
    of_group = random.random((groups, clusters)) < 0.2
    has_event = random.random(clusters) < np.where(of_group[0], rate * ratio, rate)
    member = of_group[:, cluster] & (random.random((groups, len(cluster))) < 0.9)
    return has_event[cluster], member, cluster


def test_intervals_cover_the_true_ratio():
    random = np.random.default_rng(3)
    covered, estimate = [], []
    for _ in range(300):
        is_event, member, cluster = draw_clustered_events(random, 2.5)
        r = compute_ratios(is_event, member, cluster)
        # One in ten of the items in clusters of the group does not belong to it.
        others = (0.2 * 0.1 * 2.5 + 0.8) / (0.2 * 0.1 + 0.8)
        covered.append(r.low[0] <= 2.5 / others <= r.high[0])
        estimate.append(np.log(r.ratio[0]))
    assert np.mean(covered) >= 0.93
    assert np.exp(np.median(estimate)) == pytest.approx(2.4, rel=0.1)


@pytest.mark.parametrize("rate", [0.003, 0.05, 0.4])
def test_adjusted_p_rejects_few_true_nulls(rate):
    random = np.random.default_rng(4)
    wrong, plain = [], []
    for _ in range(200):
        is_event, member, cluster = draw_clustered_events(
            random, 1.0, rate=rate, clusters=800, groups=20
        )
        r = compute_ratios(is_event, member, cluster)
        wrong.append(np.nanmin(r.adjusted_p, initial=1) < 0.05)
        plain.append(np.nanmin(r.p, initial=1) < 0.05)
    assert np.mean(wrong) <= 0.08  # 0.05 and three standard errors of 200 runs would be 0.096
    assert (
        rate < 0.01 or np.mean(plain) > 0.2
    )  # Without correction, chance makes some group significant.


def test_the_detectable_ratio_is_found_with_its_power():
    random = np.random.default_rng(5)
    null = [
        compute_ratios(*draw_clustered_events(random, 1.0, clusters=3000)).minimum_detectable_ratio[
            0
        ]
        for _ in range(20)
    ]
    detectable = float(np.median(null))
    assert 1.2 < detectable < 3
    estimate = [
        compute_ratios(*draw_clustered_events(random, detectable * 1.03, clusters=3000)).p[0] < 0.05
        for _ in range(200)
    ]
    assert 0.68 < np.mean(estimate) < 0.93


def test_the_detectable_ratio_is_nan_if_no_ratio_suffices():
    group = np.arange(400) < 2
    is_event = np.arange(400) % 2 == 0
    assert np.isnan(compute_ratios(is_event, group).minimum_detectable_ratio[0])


def test_a_ratio_between_strata_vanishes_within_them():
    """Simpson's paradox: the group is frequent in the stratum with a high rate."""
    random = np.random.default_rng(6)
    stratum = np.repeat([0, 1], 20_000)
    is_event = random.random(40_000) < np.where(stratum == 0, 0.02, 0.4)
    group = random.random(40_000) < np.where(stratum == 0, 0.05, 0.5)
    every = ClusteredGroup.from_members(np.flatnonzero(group), np.arange(40_000))
    estimate = estimate_rate_ratios(
        [every], is_event, np.ones(40_000, bool), np.arange(40_000), stratum
    )
    tables = [
        [(is_event & s & g).sum() for g in (group, ~group)] + [(s & group).sum(), s.sum()]
        for s in (stratum == 0, stratum == 1)
    ]
    above = sum(a * (total - n) / total for a, _, n, total in tables)
    below = sum(b * n / total for _, b, n, total in tables)
    assert estimate.stratified_ratio[0] == pytest.approx(above / below)
    assert estimate.ratio[0] > 1.8 and estimate.stratified_ratio[0] == pytest.approx(1, abs=0.06)


def estimate_by_stratum(is_event, member, stratum, cluster=None):
    cluster = np.arange(len(is_event)) if cluster is None else cluster
    groups = [ClusteredGroup.from_members(np.flatnonzero(member), cluster)]
    return estimate_rate_ratios(
        groups, is_event, np.ones(len(is_event), bool), cluster, np.asarray(stratum)
    )


@pytest.mark.parametrize("events_in_group", [0, 7, 60])
def test_with_one_stratum_the_stratified_ratio_is_the_plain_one(events_in_group):
    member = np.arange(900) < 60
    is_event = (np.arange(900) < events_in_group) | (np.arange(900) >= 820)
    cluster = np.arange(900) // 2
    both = estimate_by_stratum(is_event, member, np.zeros(900, int), cluster)
    assert both.stratified_ratio == pytest.approx(both.ratio)
    assert both.stratified_low == pytest.approx(both.low)
    assert both.stratified_high == pytest.approx(both.high)
    assert both.stratified_p == pytest.approx(both.p)


def test_the_stratified_interval_agrees_with_the_variance_of_greenland_and_robins():
    """Log-normal interval of the Mantel-Haenszel risk ratio, Biometrics 41 (1985), with counts so
    large that both approximations hold; rates are low, so that Poisson and binomial agree."""
    random = np.random.default_rng(4)
    stratum = np.repeat([0, 1, 2], [40_000, 30_000, 50_000])
    member = random.random(120_000) < np.array([0.1, 0.5, 0.3])[stratum]
    rate = np.array([0.01, 0.03, 0.02])[stratum] * np.where(member, 1.3, 1.0)
    is_event = random.random(120_000) < rate
    result = estimate_by_stratum(is_event, member, stratum)
    numerator = denominator = variance = 0.0
    for s in range(3):
        inside, outside = member & (stratum == s), ~member & (stratum == s)
        a, b, n, m = is_event[inside].sum(), is_event[outside].sum(), inside.sum(), outside.sum()
        numerator += a * m / (n + m)
        denominator += b * n / (n + m)
        variance += ((a + b) * n * m - a * b * (n + m)) / (n + m) ** 2
    half_width = 1.96 * np.sqrt(variance / (numerator * denominator))
    assert result.stratified_ratio[0] == pytest.approx(numerator / denominator)
    log_ends = np.log([result.stratified_low[0], result.stratified_high[0]])
    log_ratio = np.log(numerator / denominator)
    assert log_ends == pytest.approx([log_ratio - half_width, log_ratio + half_width], abs=0.01)


def test_stratified_intervals_cover_the_ratio_within_strata():
    """Clusters share their outcome; one stratum has many events and most of the group."""
    random = np.random.default_rng(6)
    covered, crude_covered = [], []
    for _ in range(300):
        size = random.integers(1, 5, 900)
        cluster = np.repeat(np.arange(900), size)
        cluster_stratum, in_group = random.integers(0, 3, 900), random.random(900)
        is_member = in_group < np.array([0.05, 0.1, 0.6])[cluster_stratum]
        rate = np.array([0.02, 0.05, 0.3])[cluster_stratum] * np.where(is_member, 0.7, 1.0)
        has_event = random.random(900) < rate
        result = estimate_by_stratum(
            has_event[cluster], is_member[cluster], cluster_stratum[cluster], cluster
        )
        covered.append(result.stratified_low[0] <= 0.7 <= result.stratified_high[0])
        crude_covered.append(result.low[0] <= 0.7 <= result.high[0])
    assert 0.92 < np.mean(covered) <= 1 and np.mean(crude_covered) < 0.2


def test_strata_that_cannot_be_compared_give_no_stratified_ratio():
    """The group has a stratum for itself; and a stratum without others adds nothing."""
    member, is_event = np.arange(100) < 50, np.arange(100) % 4 == 0
    alone = estimate_by_stratum(is_event, member, np.where(member, 0, 1))
    assert np.isnan(
        [alone.stratified_ratio[0], alone.stratified_low[0], alone.stratified_p[0]]
    ).all()
    assert alone.ratio[0] > 0
    some = estimate_by_stratum(is_event, member, np.where(np.arange(100) < 20, 0, 1))
    shared = (np.arange(100) >= 20) & member
    assert some.stratified_ratio[0] == pytest.approx(
        is_event[shared].mean() / is_event[~member].mean()
    )


def test_stratified_intervals_without_events_on_one_side():
    stratum = np.arange(2000) % 3
    member = np.arange(2000) < 200
    none = estimate_by_stratum(np.arange(2000) >= 1800, member, stratum)
    assert none.stratified_ratio[0] == none.stratified_low[0] == 0
    assert 0 < none.stratified_high[0] < 1 and none.stratified_p[0] < 0.05
    only = estimate_by_stratum(np.arange(2000) < 20, member, stratum)
    assert np.isinf([only.stratified_ratio[0], only.stratified_high[0]]).all()
    assert only.stratified_low[0] > 1 and only.stratified_p[0] < 0.05
    every = estimate_by_stratum(np.ones(2000, bool), member, stratum)
    assert every.stratified_ratio[0] == pytest.approx(1)
    assert every.stratified_low[0] < 1 < every.stratified_high[0]
