"""Test that the interval of the worst of several parts holds, by simulation and by scipy."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.coverage_worst_part import DESIGNS, build_finding_row, simulate_coverage
from hallmark.tasks.audits.judging.selection import (
    correct_interval_for_choice,
    correct_ratio_interval_for_choice,
)


def test_the_interval_of_a_mean_is_that_of_bonferroni():
    half = np.random.default_rng(0).normal(size=6)
    values = np.concatenate([half, -half])  # without skewness, the interval is Student's
    row = build_finding_row(values, "score")
    expected = stats.t.interval(1 - 0.05 / 8, 11, values.mean(), stats.sem(values))
    assert correct_interval_for_choice(row, 8) == pytest.approx(expected)
    assert correct_interval_for_choice(row, 1) == pytest.approx((row["low"], row["high"]))


@pytest.mark.parametrize("hits", [0, 20])
def test_the_interval_of_a_share_at_the_end_of_the_range_is_as_wide_as_the_exact_one(hits):
    row = build_finding_row(np.arange(20) < hits, "share")
    low, high = correct_interval_for_choice(row, 9)
    exact = stats.binomtest(hits, 20).proportion_ci(1 - 0.05 / 9)
    assert (low, high) == pytest.approx((exact.low, exact.high), abs=0.06)
    assert low >= 0 and high <= 1
    assert high - low >= exact.high - exact.low


def test_without_an_interval_there_is_none():
    assert correct_interval_for_choice(build_finding_row(np.ones(9), "score"), 4) is None


def test_the_interval_of_the_highest_ratio_is_widened_on_the_logarithmic_scale():
    low, high = correct_ratio_interval_for_choice(2.0, 1.0, 4.0, 10)
    stretch = stats.norm.isf(0.0025) / stats.norm.isf(0.025)
    assert (low, high) == pytest.approx((2 / 2**stretch, 2 * 2**stretch), rel=1e-4)
    assert correct_ratio_interval_for_choice(2.0, 1.0, 4.0, 1) == pytest.approx((1.0, 4.0))
    assert correct_ratio_interval_for_choice(2.0, 0.0, None, 10) == (0.0, None)
    assert correct_ratio_interval_for_choice(0.0, None, None, 10) == (None, None)


@pytest.mark.parametrize("design", DESIGNS[:4], ids=lambda design: design.name)
def test_the_interval_of_the_worst_of_nine_parts_covers_its_value(design):
    """The usual interval of the part that was chosen covers its value too rarely."""
    coverage = simulate_coverage(design, 300)
    assert coverage.corrected >= 0.92 and coverage.uncorrected < 0.94
    assert 1 - coverage.uncorrected > 4 * (1 - coverage.corrected)
