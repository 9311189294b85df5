"""Slopes against least squares, and their intervals against clusters left out by hand."""

import numpy as np
import pytest
from scipy import stats

from hallmark.tasks.measures.estimates import estimate_linear_slope


def test_a_slope_is_that_of_least_squares():
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    y = 2 * x + rng.normal(size=60)
    found = estimate_linear_slope(np.append(y, np.nan), np.append(x, 1.0))
    expected = stats.linregress(x, y)
    assert found.value == pytest.approx(expected.slope) and found.missing == 1 and found.n == 60
    # What lies nowhere is on no slope, as what has no value is not.
    nowhere = estimate_linear_slope(np.append(y, [np.nan, 9.0]), np.append(x, [1.0, np.nan]))
    assert (nowhere.low, nowhere.high, nowhere.n) == (found.low, found.high, 60)
    assert nowhere.missing == 2
    # With clusters of one a jackknife is near the usual error where that of all is alike.
    half = (found.high - found.low) / 2
    usual = expected.stderr * stats.t.ppf(0.975, 58)
    assert half == pytest.approx(usual, rel=0.3)


def test_a_slopes_interval_is_a_jackknife_of_clusters():
    """Each cluster left out by hand."""
    rng = np.random.default_rng(1)
    names = np.repeat(np.arange(9), rng.integers(1, 6, 9))
    x, y = rng.normal(size=len(names)), rng.normal(size=len(names))
    found = estimate_linear_slope(y, x, names.tolist())
    value = stats.linregress(x, y).slope
    without = [stats.linregress(x[names != n], y[names != n]).slope for n in range(9)]
    error = np.sqrt(8 / 9 * np.sum((np.array(without) - value) ** 2))
    assert found.value == pytest.approx(value) and found.clusters == 9
    half = stats.t.ppf(0.975, 8) * error
    assert (found.low, found.high) == (pytest.approx(value - half), pytest.approx(value + half))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(value) / error, 8))


def test_a_slope_covers_nothing_as_often_as_it_says():
    """Clusters that share a shift, as associations do, of five doses with four each."""
    rng = np.random.default_rng(2)
    dose = np.repeat([0.5, 0.6, 0.75, 0.9, 1.0], 4)
    names = np.repeat(np.arange(20), 8)
    covered = 0
    for _ in range(1000):
        y = rng.normal(size=20)[names] + rng.normal(size=160)
        found = estimate_linear_slope(y, dose[names], names.tolist())
        covered += found.low <= 0 <= found.high
    assert 0.925 <= covered / 1000 <= 0.972


def test_what_has_no_slope_says_why():
    assert "single value" in estimate_linear_slope([1.0, 2.0], [3.0, 3.0]).method
    assert (
        "no items" in estimate_linear_slope([], []).method
        or "single value" in estimate_linear_slope([], []).method
    )
    few = estimate_linear_slope([1.0, 2.0, 4.0], [0.0, 1.0, 2.0], ["a", "a", "b"], unit="passages")
    assert (
        "too few passages" in few.method and np.isnan(few.low) and few.value == pytest.approx(1.5)
    )
    line = estimate_linear_slope([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0])
    assert "lie on a line" in line.method and line.value == pytest.approx(1.0)
