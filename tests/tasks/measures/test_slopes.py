"""Compare slopes with least squares, and their intervals with an explicit jackknife."""

import numpy as np
import pytest
from scipy import stats

from hallmark.tasks.measures.slopes import estimate_linear_slope


def test_a_slope_equals_least_squares():
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    y = 2 * x + rng.normal(size=60)
    estimate = estimate_linear_slope(np.append(y, np.nan), np.append(x, 1.0))
    expected = stats.linregress(x, y)
    assert (
        estimate.value == pytest.approx(expected.slope)
        and estimate.missing == 1
        and estimate.n == 60
    )
    # Items with a missing predictor are ignored, like missing values.
    missing_predictor = estimate_linear_slope(
        np.append(y, [np.nan, 9.0]), np.append(x, [1.0, np.nan])
    )
    assert (missing_predictor.low, missing_predictor.high, missing_predictor.n) == (
        estimate.low,
        estimate.high,
        60,
    )
    assert missing_predictor.missing == 2
    # For independent errors of equal variance, the jackknife is close to the usual error.
    half = (estimate.high - estimate.low) / 2
    usual = expected.stderr * stats.t.ppf(0.975, 58)
    assert half == pytest.approx(usual, rel=0.3)


def test_the_interval_is_a_jackknife_of_clusters():
    """Remove each cluster explicitly."""
    rng = np.random.default_rng(1)
    names = np.repeat(np.arange(9), rng.integers(1, 6, 9))
    x, y = rng.normal(size=len(names)), rng.normal(size=len(names))
    estimate = estimate_linear_slope(y, x, names.tolist())
    value = stats.linregress(x, y).slope
    without = [stats.linregress(x[names != n], y[names != n]).slope for n in range(9)]
    error = np.sqrt(8 / 9 * np.sum((np.array(without) - value) ** 2))
    assert estimate.value == pytest.approx(value) and estimate.clusters == 9
    half = stats.t.ppf(0.975, 8) * error
    assert (estimate.low, estimate.high) == (
        pytest.approx(value - half),
        pytest.approx(value + half),
    )
    assert estimate.p == pytest.approx(2 * stats.t.sf(abs(value) / error, 8))


def test_intervals_cover_a_slope_of_zero():
    """Clusters with a common shift, like associations: five shares with four each."""
    rng = np.random.default_rng(2)
    amount = np.repeat([0.5, 0.6, 0.75, 0.9, 1.0], 4)
    names = np.repeat(np.arange(20), 8)
    covered = 0
    for _ in range(1000):
        y = rng.normal(size=20)[names] + rng.normal(size=160)
        estimate = estimate_linear_slope(y, amount[names], names.tolist())
        covered += estimate.low <= 0 <= estimate.high
    assert 0.925 <= covered / 1000 <= 0.972


def test_an_estimate_without_a_value_or_interval_says_why():
    assert "same value" in estimate_linear_slope([1.0, 2.0], [3.0, 3.0]).method
    assert "same value" in estimate_linear_slope([], []).method
    few = estimate_linear_slope([1.0, 2.0, 4.0], [0.0, 1.0, 2.0], ["a", "a", "b"], unit="passages")
    assert (
        "too few passages" in few.method and np.isnan(few.low) and few.value == pytest.approx(1.5)
    )
    line = estimate_linear_slope([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0])
    assert "lie on one line" in line.method and line.value == pytest.approx(1.0)
