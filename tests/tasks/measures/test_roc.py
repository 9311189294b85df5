"""Compare areas under the ROC curve and true-positive rates with SciPy, and by simulation."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import integrate, optimize, stats

from hallmark.tasks.measures.roc import estimate_roc_auc, estimate_true_positive_rate


def compute_larger_p(members, nonmembers):
    """Compute p of both tests from SciPy's.

    The score test of Brunner & Munzel scales the standard error to that of a share of one half. Its
    degrees of freedom follow from the statistic and p.
    """
    test = stats.brunnermunzel(nonmembers, members)
    area = np.mean([(x > y) + (x == y) / 2 for x in members for y in nonmembers])
    degrees = optimize.brentq(
        lambda df: 2 * stats.t.sf(abs(test.statistic), df) - test.pvalue, 0.5, 1e4
    )
    t = abs(test.statistic) * 2 * (area * (1 - area)) ** 0.5
    normal = stats.mannwhitneyu(members, nonmembers, use_continuity=False, method="asymptotic")
    return area, 2 * stats.t.sf(abs(t), degrees), normal.pvalue


def compute_normal_error(area, counts):
    """Compute the standard error of an area of normal values of equal spreads by integration."""
    shift = stats.norm.ppf(area) * 2**0.5

    def integrate_square(cdf, pdf):
        return integrate.quad(lambda x: cdf(x) ** 2 * pdf(x), -12, 12)[0]

    square = integrate_square(stats.norm.cdf, lambda x: stats.norm.pdf(x - shift))
    assert square == pytest.approx(
        integrate_square(lambda x: stats.norm.sf(x - shift), stats.norm.pdf)
    )
    variance = area * (1 - area) + (sum(counts) - 2) * (square - area**2)
    return (variance / np.prod(counts)) ** 0.5


def test_the_auc_is_the_share_of_pairs_and_p_the_larger_of_two():
    assert estimate_roc_auc([2, 3], [1, 3]).value == 0.625
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, 30), rng.integers(0, 4, 20)
    auc = estimate_roc_auc([*a.astype(float), np.nan], b)
    assert auc.value == pytest.approx(compute_larger_p(a, b)[0])
    assert auc.missing == 1 and auc.n == 50
    constant = estimate_roc_auc([1.0] * 30, [1.0] * 20)
    assert (constant.value, constant.p) == (
        0.5,
        1,
    ) and "all items have the same value" in constant.method
    larger = set()
    for counts in ((60, 10), (10, 60)):
        a, b = rng.normal(1, 3, size=counts[0]), rng.normal(size=counts[1])
        _, *p_values = compute_larger_p(a, b)
        assert estimate_roc_auc(a, b).p == pytest.approx(max(p_values))
        larger.add(p_values.index(max(p_values)))
    assert larger == {0, 1}


@pytest.mark.parametrize("area", [0.5, 0.8])
def test_p_and_interval_of_the_auc_agree_and_err_rarely_for_unequal_spreads(area):
    """The rank test of equal distributions rejects one half in 17 % of these cases."""
    rng = np.random.default_rng(5)
    shift, errors, upper_errors = stats.norm.ppf(area) * 26**0.5, 0, 0
    for _ in range(1000):
        auc = estimate_roc_auc(rng.normal(shift, 5, 10), rng.normal(size=40))
        assert (auc.p < 0.05) == (auc.low > 0.5 or auc.high < 0.5)
        errors += not auc.low <= area <= auc.high
        upper_errors += auc.high < area
    assert errors <= 80 and upper_errors <= 40


def test_near_copies_count_as_one_unit():
    rng = np.random.default_rng(6)
    names = np.repeat(np.arange(15), 4)
    errors = 0
    for _ in range(400):
        samples = [rng.normal(size=15)[names] + 0.1 * rng.normal(size=60) for _ in range(2)]
        auc = estimate_roc_auc(*samples, ([f"a{n}" for n in names], [f"b{n}" for n in names]))
        errors += not auc.low <= 0.5 <= auc.high
    assert errors <= 28
    assert (auc.n, auc.clusters) == (120, 30)
    assert "based on 60 and 60 items in 15 and 15 clusters" in auc.method
    # Exact copies have the interval of single items.
    exact = [sample[::4] for sample in samples]
    copies = estimate_roc_auc(*(sample.repeat(4) for sample in exact), (names, 15 + names))
    single = estimate_roc_auc(*exact)
    assert (copies.low, copies.high, copies.p) == pytest.approx((single.low, single.high, single.p))


def test_the_variance_is_a_jackknife_of_clusters():
    """Remove each cluster explicitly; two clusters have items on both sides."""
    rng = np.random.default_rng(7)
    a, b = rng.normal(size=30), rng.normal(0.3, 2, size=24)
    names = rng.permutation(np.arange(30) % 12), rng.permutation(np.arange(24) % 10 + 10)
    value = estimate_roc_auc(a, b).value

    def count_pairs(x, y):
        return np.mean([(i > j) + (i == j) / 2 for i in x for j in y])

    changes = np.array(
        [
            [
                (11 / 12) ** 0.5 * (count_pairs(a[names[0] != name], b) - value),
                (9 / 10) ** 0.5 * (count_pairs(a, b[names[1] != name]) - value),
            ]
            for name in range(20)
        ]
    )
    error = np.sqrt((changes.sum(1) ** 2).sum())
    variances = (changes**2).sum(0)
    squares = [np.bincount(side).astype(float) ** 2 for side in names]
    counts = np.array([side.sum() ** 2 / (side**2).sum() for side in squares])
    degrees = variances.sum() ** 2 / (variances**2 / (counts - 1)).sum()
    single_counts = [side.sum() ** 2 / (side**2).sum() for side in map(np.bincount, names)]
    auc, t = estimate_roc_auc(a, b, names), stats.t.ppf(0.975, degrees)
    # Ends whose distance is t standard errors, scaled to a share of this size (Wilson 1927), or z
    # standard errors of normal values, if these are more.
    for end in (auc.low, auc.high):
        scale = (end * (1 - end) / value / (1 - value)) ** 0.5
        normal_distance = stats.norm.ppf(0.975) * compute_normal_error(end, single_counts)
        assert abs(value - end) == pytest.approx(max(t * error * scale, normal_distance))
    null_error = 0.5 * error / (value * (1 - value)) ** 0.5
    robust_p = 2 * stats.t.sf(abs(value - 0.5) / null_error, degrees)
    normal_p = 2 * stats.norm.sf(abs(value - 0.5) / compute_normal_error(0.5, single_counts))
    assert auc.p == pytest.approx(max(robust_p, normal_p))
    assert auc.clusters == 20


def test_the_order_of_rows_does_not_matter():
    rng = np.random.default_rng(8)
    a, b, names = rng.normal(size=30), rng.normal(size=20).round(1), rng.integers(30, size=50)
    first = estimate_roc_auc(a, b, (names[:30], names[30:]))
    ways = rng.permutation(30), rng.permutation(20)
    second = estimate_roc_auc(
        a[ways[0]], b[ways[1]], (100 - names[:30][ways[0]], 100 - names[30:][ways[1]])
    )
    assert first.method == second.method and first.clusters < 50 and not np.isnan(first.low)
    for name in ("value", "low", "high", "p", "minimum_detectable_effect"):
        assert getattr(first, name) == pytest.approx(getattr(second, name), rel=1e-12)


@pytest.mark.parametrize(("m", "n", "shift"), [(20, 20, 0.0), (100, 100, 0.0), (50, 200, 0.7)])
def test_the_interval_of_the_auc_has_its_nominal_coverage(m, n, shift):
    rng = np.random.default_rng(3)
    true_auc = stats.norm.cdf(shift / 2**0.5)
    covered = 0
    for _ in range(1000):
        auc = estimate_roc_auc(rng.normal(shift, 1, m), rng.normal(0, 1, n))
        covered += auc.low <= true_auc <= auc.high
    assert 0.925 <= covered / 1000 <= 0.972


@pytest.mark.parametrize(("area", "spread"), [(0.93, 1), (0.93, 3), (0.98, 1)])
def test_an_area_near_1_of_few_texts_has_its_coverage(area, spread):
    """The jackknife alone covers 0.93 in 83 % of the samples with a spread of 3."""
    rng = np.random.default_rng(9)
    shift, errors = stats.norm.ppf(area) * (1 + spread**2) ** 0.5, 0
    for _ in range(600):
        auc = estimate_roc_auc(rng.normal(shift, spread, 12), rng.normal(size=50))
        assert (auc.p < 0.05) == (auc.low > 0.5 or auc.high < 0.5)
        errors += not auc.low <= area <= auc.high
    assert errors <= 36


@pytest.mark.parametrize(("m", "n"), [(100, 100), (32, 8), (10, 40)])
def test_the_minimum_detectable_effect_has_its_power(m, n):
    rng = np.random.default_rng(4)
    smallest = estimate_roc_auc(rng.normal(size=m), rng.normal(size=n)).minimum_detectable_effect
    shift = stats.norm.ppf(0.5 + smallest) * 2**0.5
    is_significant = [
        estimate_roc_auc(rng.normal(shift, 1, m), rng.normal(size=n)).p < 0.05 for _ in range(2000)
    ]
    assert 0.76 <= np.mean(is_significant) <= 0.84


@pytest.mark.parametrize(("m", "n", "shift"), [(200, 200, 0.0), (200, 200, 1.0), (400, 1000, 2.0)])
def test_the_interval_of_the_true_positive_rate_has_its_nominal_coverage(m, n, shift):
    """Treated as known, the score bound would give 60 % coverage in the second case."""
    rng = np.random.default_rng(n)
    true_rate, covered = stats.norm.sf(stats.norm.isf(0.01) - shift), 0
    for _ in range(1000):
        rate = estimate_true_positive_rate(rng.normal(shift, 1, m), rng.normal(size=n), 0.01)
        covered += rate.low <= true_rate <= rate.high
    assert 0.925 <= covered / 1000 <= 0.985


def test_the_interval_of_the_true_positive_rate_in_closed_form():
    nonmembers = np.arange(200.0)
    rate = estimate_true_positive_rate([197.5, 198.5, 250.0, np.nan], nonmembers, 0.01)
    assert (rate.value, rate.n, rate.missing, rate.null_value) == (2 / 3, 3, 1, 0.01)
    assert (
        0 < rate.low < 2 / 3 < rate.high < 1 and "from 200 items in the other group" in rate.method
    )
    # Bounds 0.7 % off would have 1 or 3 of 3 above them: a Wilson interval with 1.26 members.
    near = (2 + 1) / (3 + 2)
    n = near * (1 - near) / (near * (1 - near) / 3 + (1 / 3) ** 2)
    z = stats.norm.ppf(0.975)
    middle = (2 / 3 + z**2 / (2 * n)) / (1 + z**2 / n)
    half_width = z * np.sqrt(2 / 9 / n + (z / n) ** 2 / 4) / (1 + z**2 / n)
    assert (rate.low, rate.high) == pytest.approx((middle - half_width, middle + half_width))
    assert estimate_true_positive_rate([1.0] * 9, nonmembers, 0.01).low == 0
    assert estimate_true_positive_rate([300.0] * 9, nonmembers, 0.01).high == 1
    assert np.isnan(estimate_true_positive_rate([], nonmembers, 0.01).value)


def test_an_auc_without_value_or_interval_has_a_reason():
    without_members = estimate_roc_auc([], [1.0])
    assert (
        np.isnan(without_members.value) and "one of the two groups has no" in without_members.method
    )
    few = estimate_roc_auc([2.0, 3.0, 4.0, 5.0, 6.0], np.arange(100.0))
    assert few.value == pytest.approx(0.045)
    assert np.isnan([few.low, few.p, few.minimum_detectable_effect]).all()
    assert few.method == "no interval: fewer than 6 independent items in one of the two groups"
    assert np.isnan(estimate_roc_auc([1.0], [0.0, 2.0]).low)
    # One cluster has half of the members, so there are about as many units as if it were alone.
    dominant = estimate_roc_auc(
        np.arange(20.0), np.arange(20.0), ([0] * 10 + [*range(1, 11)], range(11, 31))
    )
    assert "fewer than 6 independent" in dominant.method


@pytest.mark.parametrize(("members", "nonmembers"), [(8, 30), (6, 6), (40, 9)])
def test_separated_samples_have_a_sign_test_of_pairs(members, nonmembers):
    low, high = np.arange(float(members)), 100 + np.arange(float(nonmembers))
    above, below = estimate_roc_auc(high, low), estimate_roc_auc(low, high)
    pairs = min(members, nonmembers)
    test = stats.binomtest(pairs, pairs)
    interval = test.proportion_ci(method="exact")
    assert (above.value, above.low, above.high) == (1, pytest.approx(interval.low), 1)
    assert (below.value, below.low, below.high) == (0, 0, pytest.approx(1 - interval.low))
    assert above.p == pytest.approx(test.pvalue) == pytest.approx(below.p)
    assert f"based on {pairs} pairs" in above.method
    assert pa.scalar(estimate_roc_auc([1.0, 2.0], [1.0, 2.0]).value).as_py() == 0.5
