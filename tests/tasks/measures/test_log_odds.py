"""Compare slopes of log-odds with a numerical maximum, closed forms and simulations."""

import numpy as np
import pytest

from hallmark.tasks.measures.log_odds import (
    calibrate_predictor,
    estimate_log_odds_multiple,
    estimate_log_odds_slope,
    fit_firth_regressions,
    smoothed_log_odds,
    smoothed_log_odds_variance,
)


def draw_cells(rng, groups=12, strata=3):
    x = rng.normal(size=groups)
    group, stratum = np.indices((groups, strata)).reshape(2, -1)
    design = np.column_stack([x[group], np.eye(strata)[stratum]])
    n = rng.integers(1, 12, len(group)).astype(float)
    p = 1 / (1 + np.exp(-design @ np.r_[1.5, np.linspace(-1, 1, strata)]))
    return design, n, rng.binomial(n.astype(int), p).astype(float)


def test_firth_maximises_the_penalised_likelihood():
    """Maximise log L + 1/2 log det of the information with another method (Firth 1993)."""
    from scipy.optimize import minimize

    rng = np.random.default_rng(3)
    for _ in range(3):
        design, n, k = draw_cells(rng)

        def loss(beta, design=design, n=n, k=k):
            eta = design @ beta
            p = 1 / (1 + np.exp(-eta))
            information = design.T @ (design * (n * p * (1 - p))[:, None])
            likelihood = (k * eta - n * np.logaddexp(0, eta)).sum()
            return -likelihood - 0.5 * np.linalg.slogdet(information)[1]

        best = minimize(loss, np.zeros(design.shape[1]), method="BFGS", options={"gtol": 1e-9}).x
        assert fit_firth_regressions(k[None], n[None], design)[0] == pytest.approx(best, abs=1e-4)


def test_the_slope_is_finite_for_separable_values():
    x = np.repeat([-1.0, -0.5, 0.5, 1.0], 10)
    estimate = estimate_log_odds_slope(x > 0, x, ["a"] * 40, x)
    assert np.isfinite(estimate.value) and estimate.value > 3
    assert smoothed_log_odds(0, 10) == pytest.approx(np.log(0.5 / 10.5))


def test_the_regression_converges_for_few_draws_per_unit():
    """Few draws of 21 units for four prompts, one of them with a single draw.

    Plain Newton steps do not converge for all of these, nor for each jackknife sample.
    """
    rng = np.random.default_rng(17)
    for _ in range(40):
        x = smoothed_log_odds(rng.integers(1, 80, 21), 80)
        many = rng.integers(1, 8, 21)
        unit = np.repeat(np.arange(21), many)
        prompt = rng.choice(4, len(unit), p=[0.12, 0.25, 0.01, 0.62])
        values = rng.random(len(unit)) < 1 / (1 + np.exp(-x[unit] * rng.normal()))
        estimate = estimate_log_odds_slope(values, x[unit], prompt, unit)
        assert np.isfinite([estimate.value, estimate.low, estimate.high]).all()


def test_an_intercept_alone_equals_haldanes_log_odds():
    """Firth's estimate of an intercept adds one half to either count."""
    k, n = np.array([[7.0]]), np.array([[9.0]])
    assert fit_firth_regressions(k, n, np.ones((1, 1)))[0, 0] == pytest.approx(
        float(smoothed_log_odds(7, 9))
    )


def draw_values(rng, slope, spread=0.0, groups=20, strata=4):
    x = np.linspace(-2.5, 2.5, groups)
    shift, own = rng.normal(size=strata), spread * rng.normal(size=groups)
    group, stratum = np.indices((groups, strata)).reshape(2, -1)
    many = rng.poisson(6, len(group))
    group, stratum = np.repeat(group, many), np.repeat(stratum, many)
    p = 1 / (1 + np.exp(-(shift[stratum] + slope * x[group] + own[group])))
    return (rng.random(len(p)) < p).astype(float), x[group], stratum, group


@pytest.mark.parametrize(("slope", "spread"), [(1.0, 0.0), (1.0, 0.3), (2.0, 0.0), (0.0, 0.0)])
def test_intervals_cover_the_true_slope(slope, spread):
    """Of 150 intervals 142.5 are expected to cover; fewer than 134 have a probability of 0.002."""
    rng = np.random.default_rng(11)
    estimate = [estimate_log_odds_slope(*draw_values(rng, slope, spread)) for _ in range(150)]
    assert sum(one.low <= slope <= one.high for one in estimate) >= 134
    assert np.mean([one.value for one in estimate]) == pytest.approx(slope, abs=0.08)
    if slope == 2:
        assert all(one.low > 1 for one in estimate)


def test_a_predictor_is_calibrated_by_its_reliability():
    """Compare with the variance between units at which the weighted squares equal n - 1."""
    from scipy.optimize import brentq

    rng = np.random.default_rng(12)
    variances = rng.uniform(0.1, 1, 12)
    x = rng.normal(2, 1, 12) + variances**0.5 * rng.normal(size=12)
    selections = np.array([np.ones(12, bool), np.arange(12) != 3])
    calibrated = calibrate_predictor(x, variances, selections)
    for selection, expected, reliability in zip(selections, *calibrated, strict=True):
        some, error = x[selection], variances[selection]

        def excess_squares(between, some=some, error=error):
            weights = 1 / (error + between)
            mean = np.average(some, weights=weights)
            return (weights * (some - mean) ** 2).sum() - (len(some) - 1)

        between = brentq(excess_squares, 0, 100)
        shares = between / (between + error)
        mean = np.average(some, weights=1 / (error + between))
        assert expected[selection] == pytest.approx(mean + shares * (some - mean))
        assert reliability == pytest.approx(shares.mean())
    # Values that differ less than by their errors have no reliability.
    none = calibrate_predictor(np.array([0.0, 0.1, 0.2]), np.ones(3), np.ones((1, 3), bool))
    assert none.reliability == pytest.approx([0]) and none.expected == pytest.approx(0.1)


def draw_counted_units(rng, slope, units=30):
    """Draw values of units whose log-odds are known only from 30 to 60 counts."""
    log_odds = rng.normal(size=units)
    trials = rng.integers(30, 60, units)
    successes = rng.binomial(trials, 1 / (1 + np.exp(-log_odds)))
    unit = np.repeat(np.arange(units), 16)
    values = rng.random(len(unit)) < 1 / (1 + np.exp(-slope * log_odds[unit]))
    counts = successes[unit], trials[unit]
    return values, smoothed_log_odds(*counts), smoothed_log_odds_variance(*counts), unit


def test_the_error_of_the_predictor_does_not_flatten_the_slope():
    rng, plain, calibrated = np.random.default_rng(13), [], []
    for _ in range(60):
        values, x, variances, unit = draw_counted_units(rng, 2.0)
        arguments = values, x, [0] * len(x), unit
        plain.append(estimate_log_odds_slope(*arguments))
        calibrated.append(estimate_log_odds_slope(*arguments, predictor_variances=variances))
    assert np.mean([one.value for one in plain]) < 1.8
    assert np.mean([one.value for one in calibrated]) == pytest.approx(2, abs=0.12)
    assert sum(one.low <= 2 <= one.high for one in plain) < 50
    assert sum(one.low <= 2 <= one.high for one in calibrated) >= 53
    assert "predictor calibrated for its sampling error (reliability 0." in calibrated[0].method


def test_each_jackknife_sample_is_calibrated_by_itself():
    values, x, variances, unit = draw_counted_units(np.random.default_rng(14), 1.0, units=8)
    strata = np.arange(len(x)) % 2

    def estimate(keep):
        return estimate_log_odds_slope(
            values[keep], x[keep], strata[keep], unit[keep], predictor_variances=variances[keep]
        )

    whole = estimate(unit >= 0)
    without = np.array([estimate(unit != number).value for number in range(8)])
    error = (7 / 8 * ((without - whole.value) ** 2).sum()) ** 0.5
    plain, half = estimate_log_odds_slope(values, x, strata, unit), 2.364624 * error
    assert whole.low == pytest.approx(min(plain.low, whole.value - half), rel=1e-5)
    assert whole.high == pytest.approx(max(plain.high, whole.value + half), rel=1e-5)
    assert whole.p >= plain.p and plain.value < whole.value and whole.high > plain.high
    # A predictor that may vary only by chance has the plain slope, without an interval.
    flat = estimate_log_odds_slope(
        values, x, strata, unit, predictor_variances=np.full(len(x), 100.0)
    )
    assert flat.value == estimate_log_odds_slope(values, x, strata, unit).value
    assert np.isnan([flat.low, flat.p]).all()
    assert flat.method.startswith(
        "no interval: almost all of the variation in the predictor is sampling error"
    )


def test_an_estimate_without_a_value_or_interval_says_why():
    assert estimate_log_odds_slope([], [], [], []).method == "no items to measure"
    constant = estimate_log_odds_slope([1, 0, 1], [2, 2, 2], [*"aaa"], [*"abc"])
    assert "predictor has the same value everywhere" in constant.method
    two = estimate_log_odds_slope([1, 0, 1, 1], [0, 0, 1, 1], [*"aaaa"], [0, 0, 1, 1])
    assert np.isfinite(two.value) and np.isnan(two.low) and "too few" in two.method
    missing = estimate_log_odds_slope([1, np.nan, 0, 1], [0, 0, 1, 2], [*"aaaa"], [*"abcd"])
    assert (missing.n, missing.missing) == (3, 1)


def test_the_multiple_of_reference_log_odds_has_garts_interval():
    values = np.r_[np.ones(30), np.zeros(10), np.nan]
    estimate = estimate_log_odds_multiple(values, -2.0)
    assert estimate.value == pytest.approx(np.log(30.5 / 10.5) / -2)
    half = 1.959964 * (1 / 30.5 + 1 / 10.5) ** 0.5
    assert (estimate.low, estimate.high) == pytest.approx(
        [(np.log(30.5 / 10.5) + half) / -2, (np.log(30.5 / 10.5) - half) / -2]
    )
    assert estimate.n == 40 and estimate.missing == 1
    assert np.isnan(estimate_log_odds_multiple([], 1.0).value)


@pytest.mark.parametrize("reference", [-2.0, 1.2])
def test_the_interval_of_a_multiple_allows_for_the_error_of_the_reference(reference):
    """At its ends, the distance of the log-odds from the multiple is 1.96 standard errors."""
    values = np.r_[np.ones(30), np.zeros(10)]
    estimate = estimate_log_odds_multiple(values, reference, reference_variance=0.1)
    midpoint = np.log(30.5 / 10.5)
    for end in (estimate.low, estimate.high):
        error = (1 / 30.5 + 1 / 10.5 + 0.1 * end**2) ** 0.5
        assert abs(midpoint - end * reference) / error == pytest.approx(1.959964)
    assert estimate.low < estimate.value < estimate.high
    plain = estimate_log_odds_multiple(values, reference)
    assert estimate.low < plain.low and plain.high < estimate.high
    near_zero = estimate_log_odds_multiple(values, 0.3, reference_variance=0.1)
    assert np.isnan(near_zero.low) and near_zero.method.startswith(
        "no interval: the log-odds of the reference"
    )
