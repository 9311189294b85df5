"""Rate ratios over clusters: against brute force, textbook values and simulations."""

import numpy as np
import pytest
import scipy.stats

from hallmark.tasks.measures.rate_ratios import ClusteredGroup, estimate_rate_ratios


def ratios(hit, group, cluster=None, risk=None):
    n = len(hit)
    cluster = np.arange(n) if cluster is None else np.asarray(cluster)
    risk = np.ones(n, bool) if risk is None else np.asarray(risk)
    groups = [ClusteredGroup.from_members(np.flatnonzero(g), cluster) for g in np.atleast_2d(group)]
    return estimate_rate_ratios(groups, np.asarray(hit, bool), risk, cluster)


def spread(hit, inside, cluster):
    """Variance of the rate of the items inside, cluster by cluster."""
    rate = hit[inside].mean()
    sums = [
        (hit[here] - rate).sum()
        for c in np.unique(cluster[inside])
        if (here := inside & (cluster == c)).any()
    ]
    return sum(s**2 for s in sums) / inside.sum() ** 2 * len(sums) / (len(sums) - 1)


def test_rates_and_variances_equal_those_by_brute_force():
    random = np.random.default_rng(1)
    cluster = random.integers(40, size=300)
    hit = random.random(300) < 0.2 + 0.5 * (cluster % 5 == 0)
    group = random.random(300) < 0.3
    risk = random.random(300) < 0.8
    found = ratios(hit, group, cluster, risk)
    a, b = group & risk, ~group & risk
    assert (found.n[0], found.events[0]) == (a.sum(), hit[a].sum())
    assert (found.other_n[0], found.other_events[0]) == (b.sum(), hit[b].sum())
    assert found.clusters[0] == len(np.unique(cluster[a]))
    assert found.ratio[0] == pytest.approx(hit[a].mean() / hit[b].mean())
    # The interval is that of Poisson counts with the variances of the clusters.
    x, y = (hit[s].mean() ** 2 / spread(hit, s, cluster) for s in (a, b))
    exposure = (x / hit[a].mean()) / (y / hit[b].mean())
    low = scipy.stats.beta.ppf(0.025, x, y + 1)
    high = scipy.stats.beta.ppf(0.975, x + 1, y)
    assert found.low[0] == pytest.approx(low / (1 - low) / exposure)
    assert found.high[0] == pytest.approx(high / (1 - high) / exposure)


def test_rare_events_of_independent_items_give_the_exact_test_of_two_poisson_rates():
    """Of as many items that 1 - rate is 1."""
    n = 1_000_000
    hit, group = np.zeros(n, bool), np.zeros(n, bool)
    group[: n // 4] = True
    hit[[*range(7), *range(n - 9, n)]] = True
    found = ratios(hit, group)
    test = scipy.stats.binomtest(7, 16, 0.25)
    interval = test.proportion_ci(method="exact")
    assert found.low[0] == pytest.approx(interval.low / (1 - interval.low) * 3, rel=1e-3)
    assert found.high[0] == pytest.approx(interval.high / (1 - interval.high) * 3, rel=1e-3)
    twice = 2 * scipy.stats.binomtest(7, 16, 0.25, alternative="greater").pvalue
    assert found.p[0] == pytest.approx(twice, rel=1e-3)


def test_copies_tell_nothing_new():
    random = np.random.default_rng(2)
    hit, group = random.random(200) < 0.3, random.random(200) < 0.5
    once = ratios(hit, group)
    ten = ratios(np.repeat(hit, 10), np.repeat(group, 10), np.repeat(np.arange(200), 10))
    assert ten.ratio[0] == pytest.approx(once.ratio[0])
    assert np.log(ten.high / ten.low) == pytest.approx(np.log(once.high / once.low), rel=0.03)
    alone = ratios(np.repeat(hit, 10), np.repeat(group, 10))
    assert np.log(alone.high / alone.low)[0] < 0.4 * np.log(once.high / once.low)[0]


def test_no_event_here_has_an_upper_end_and_none_at_all_has_nothing():
    group = np.arange(1000) < 100
    hit = np.arange(1000) >= 950
    none = ratios(hit, group)
    assert (none.ratio[0], none.low[0]) == (0, 0) and 0.3 < none.high[0] < 1 and none.p[0] < 0.05
    only = ratios(~hit & group, group)
    assert np.isinf(only.ratio[0]) and np.isinf(only.high[0]) and only.p[0] < 1e-9
    nothing = ratios(np.zeros(1000, bool), group)
    assert np.isnan([nothing.ratio[0], nothing.low[0], nothing.high[0], nothing.p[0]]).all()
    empty = ratios(hit, np.zeros(1000, bool))
    assert np.isnan(
        [empty.ratio[0], empty.low[0], empty.p[0], empty.minimum_detectable_ratio[0]]
    ).all()
    every = ratios(np.ones(1000, bool), group)
    assert every.ratio[0] == 1 and every.low[0] > 0.6 and every.p[0] > 0.9


def test_few_clusters_with_little_between_them():
    """Three clusters of two, in one of which one item was hit: squares sum to 2/3."""
    cluster = np.append(np.repeat([0, 1, 2], 2), 3 + np.arange(1000))
    group = np.arange(1006) < 6
    hit = np.append(np.arange(6) == 0, np.arange(1000) % 10 == 0)
    found = ratios(hit, group, cluster)
    x, y = (hit[s].mean() ** 2 / spread(hit, s, cluster) for s in (group, ~group))
    exposure = (x / hit[group].mean()) / (y / hit[~group].mean())
    low = scipy.stats.beta.ppf(0.025, x, y + 1)
    assert found.low[0] == pytest.approx(low / (1 - low) / exposure)


def test_one_event_and_one_item_are_enough_for_an_interval():
    group = np.arange(100_000) < 25_000
    one = ratios(np.arange(100_000) == 0, group)
    assert one.p[0] == pytest.approx(2 * 0.25, rel=1e-3) and np.isinf(one.high[0])
    assert one.low[0] == pytest.approx(0.025 / 0.975 * 3, rel=1e-3)
    other = ratios(np.arange(100_000) == 99_999, group)
    assert other.low[0] == 0 and other.p[0] == 1 and np.isfinite(other.high[0])
    alone = ratios(np.arange(1000) % 10 == 5, np.arange(1000) == 0)
    assert (alone.low[0], alone.p[0]) == (0, 1) and 1 < alone.high[0] < 1000


def test_less_than_one_event_tells_little():
    """Half of one cluster: variance 0.5 x 0.8, so 0.625 events of 1.25 items."""
    hit = np.append(np.arange(30) < 15, np.arange(10_000) % 10 == 0)
    group = np.arange(10_030) < 30
    cluster = np.append(np.zeros(30, int), 1 + np.arange(10_000))
    found = ratios(hit, group, cluster)
    x, y = 0.625, 0.1**2 / spread(hit, ~group, cluster)
    share = 1.25 / (1.25 + y / 0.1)
    more, less = scipy.stats.beta.cdf(share, x, y + 1), scipy.stats.beta.sf(share, x + 1, y)
    assert found.p[0] == pytest.approx(2 * min(more, less))
    low = scipy.stats.beta.ppf(0.025, x, y + 1)
    assert found.low[0] == pytest.approx(low / (1 - low) * (1 - share) / share)


@pytest.mark.parametrize("size", [1, 2, 400])
def test_the_others_against_a_group_are_the_group_against_the_others(size):
    hit, group = np.arange(1000) % 10 == 5, np.arange(1000) < size
    found = ratios(hit, [group, ~group])
    assert found.p[0] == pytest.approx(found.p[1])
    with np.errstate(divide="ignore"):
        assert found.ratio[1] == pytest.approx(1 / found.ratio[0])
        assert found.low[1] == pytest.approx(1 / found.high[0])
        assert found.high[1] == pytest.approx(1 / found.low[0])


def test_a_stratum_with_nobody_at_risk_says_nothing():
    random = np.random.default_rng(8)
    stratum = np.repeat([0, 1, 2], 500)
    hit, member = random.random(1500) < 0.2, random.random(1500) < 0.3
    some = stratum < 2
    groups = [ClusteredGroup.from_members(np.flatnonzero(member), np.arange(1500))]
    found = estimate_rate_ratios(groups, hit, some, np.arange(1500), stratum)
    here = [ClusteredGroup.from_members(np.flatnonzero(member[some]), np.arange(1000))]
    alone = estimate_rate_ratios(
        here, hit[some], np.ones(1000, bool), np.arange(1000), np.repeat([0, 1], 500)
    )
    assert np.isfinite(found.stratified_ratio[0]) and found.stratified_ratio[0] == pytest.approx(
        alone.stratified_ratio[0]
    )


def test_a_group_that_was_taken_whole_is_no_proof_of_much():
    """Exact binomial chances: of 20 of 20 at 0.9 each two-sided 0.24."""
    hit = np.append(np.ones(20, bool), np.arange(10_000) % 10 > 0)
    found = ratios(hit, np.arange(10_020) < 20)
    assert found.ratio[0] == pytest.approx(1 / 0.9) and 0.1 < found.p[0] < 0.5
    exact = scipy.stats.binomtest(20, 20).proportion_ci(method="exact").low / 0.9
    assert found.low[0] == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("taken", [30, 15])
def test_a_single_cluster_is_one_item(taken):
    """Thirty near copies of one document, of which all or half were taken: one in ten documents of
    others were."""
    hit = np.append(np.arange(30) < taken, np.arange(10_000) % 10 == 0)
    cluster = np.append(np.zeros(30, int), 1 + np.arange(10_000))
    found = ratios(hit, np.arange(10_030) < 30, cluster)
    assert found.clusters[0] == 1 and found.p[0] > 0.1 and found.low[0] < 1 < found.high[0]


def world(random, ratio, rate=0.05, clusters=1500, groups=1):
    """Clusters of 1 to 6 items with one fate each; a group is spread over clusters."""
    size = random.integers(1, 7, clusters)
    cluster = np.repeat(np.arange(clusters), size)
    of_group = random.random((groups, clusters)) < 0.2
    gone = random.random(clusters) < np.where(of_group[0], rate * ratio, rate)
    member = of_group[:, cluster] & (random.random((groups, len(cluster))) < 0.9)
    return gone[cluster], member, cluster


def test_a_planted_ratio_is_covered_by_its_interval():
    random = np.random.default_rng(3)
    covered, found = [], []
    for _ in range(300):
        hit, member, cluster = world(random, 2.5)
        r = ratios(hit, member, cluster)
        # One in ten of the items in clusters of the group does not belong to it.
        others = (0.2 * 0.1 * 2.5 + 0.8) / (0.2 * 0.1 + 0.8)
        covered.append(r.low[0] <= 2.5 / others <= r.high[0])
        found.append(np.log(r.ratio[0]))
    assert np.mean(covered) >= 0.93
    assert np.exp(np.median(found)) == pytest.approx(2.4, rel=0.1)


@pytest.mark.parametrize("rate", [0.003, 0.05, 0.4])
def test_without_an_effect_few_runs_find_one_among_many_groups(rate):
    random = np.random.default_rng(4)
    wrong, plain = [], []
    for _ in range(200):
        hit, member, cluster = world(random, 1.0, rate=rate, clusters=800, groups=20)
        r = ratios(hit, member, cluster)
        wrong.append(np.nanmin(r.adjusted_p, initial=1) < 0.05)
        plain.append(np.nanmin(r.p, initial=1) < 0.05)
    assert np.mean(wrong) <= 0.08  # 0.05 and three standard errors of 200 runs would be 0.096
    assert rate < 0.01 or np.mean(plain) > 0.2  # uncorrected, some group stands out by chance


def test_the_least_ratio_is_found_in_four_of_five_runs():
    random = np.random.default_rng(5)
    null = [
        ratios(*world(random, 1.0, clusters=3000)).minimum_detectable_ratio[0] for _ in range(20)
    ]
    least = float(np.median(null))
    assert 1.2 < least < 3
    found = [ratios(*world(random, least * 1.03, clusters=3000)).p[0] < 0.05 for _ in range(200)]
    assert 0.68 < np.mean(found) < 0.93


def test_the_least_ratio_is_missing_where_nothing_could_have_shown():
    group = np.arange(400) < 2
    hit = np.arange(400) % 2 == 0
    assert np.isnan(ratios(hit, group).minimum_detectable_ratio[0])


def test_a_ratio_that_lies_between_strata_is_gone_within_them():
    """Simpson: the group is much in the stratum of which much is taken."""
    random = np.random.default_rng(6)
    stratum = np.repeat([0, 1], 20_000)
    hit = random.random(40_000) < np.where(stratum == 0, 0.02, 0.4)
    group = random.random(40_000) < np.where(stratum == 0, 0.05, 0.5)
    every = ClusteredGroup.from_members(np.flatnonzero(group), np.arange(40_000))
    found = estimate_rate_ratios([every], hit, np.ones(40_000, bool), np.arange(40_000), stratum)
    tables = [
        [(hit & s & g).sum() for g in (group, ~group)] + [(s & group).sum(), s.sum()]
        for s in (stratum == 0, stratum == 1)
    ]
    above = sum(a * (total - n) / total for a, _, n, total in tables)
    below = sum(b * n / total for _, b, n, total in tables)
    assert found.stratified_ratio[0] == pytest.approx(above / below)
    assert found.ratio[0] > 1.8 and found.stratified_ratio[0] == pytest.approx(1, abs=0.06)
