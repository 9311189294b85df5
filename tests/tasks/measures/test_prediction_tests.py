"""Test the prediction test against scipy, by simulation, and at its edges."""

import numpy as np
import pytest
from scipy import stats

from hallmark.tasks.audits.judging.harm import compute_harm_p
from hallmark.tasks.measures.estimates import estimate_mean_or_share
from hallmark.tasks.measures.prediction_tests import (
    compute_prediction_test,
    require_difference_from_baseline,
)

RNG = np.random.default_rng(0)


def test_p_is_that_of_student_s_t_for_a_new_draw():
    baseline = RNG.normal(0.5, 0.03, 24)
    result = compute_prediction_test(0.6, baseline)
    t = (0.6 - baseline.mean()) / (baseline.std(ddof=1) * np.sqrt(1 + 1 / 24))
    assert result.p == pytest.approx(2 * stats.t.sf(t, 23)) and result.is_normal
    assert (result.count, result.mean) == (24, pytest.approx(baseline.mean()))


def test_it_errs_as_often_as_it_says():
    draws = np.random.default_rng(1).normal(size=(2000, 21))
    p_values = np.array([compute_prediction_test(row[0], row[1:]).p for row in draws])
    assert 0.035 <= (p_values < 0.05).mean() <= 0.065


@pytest.mark.parametrize("distribution", ["exponential", "standard_cauchy"])
def test_scores_that_are_not_normal_are_compared_by_the_furthest(distribution):
    draws = getattr(np.random.default_rng(2), distribution)(size=(2000, 21))
    results = [compute_prediction_test(row[0], row[1:]) for row in draws]
    assert np.mean([result.p < 0.05 for result in results]) <= 0.065
    assert np.mean([not result.is_normal for result in results]) > 0.3
    baseline = [0.0] * 18 + [1.0, 1.0]
    inside, outside = (compute_prediction_test(score, baseline) for score in (0.9, 3.0))
    assert not inside.is_normal and inside.p == 1 and outside.p < 1e-4


def test_equal_scores_have_the_spread_of_one_item():
    result = compute_prediction_test(0.51, [0.5] * 20, smallest_deviation=0.01)
    assert result.p == pytest.approx(2 * stats.t.sf(1 / np.sqrt(1.05), 19))
    assert compute_prediction_test(0.5, [0.5] * 20).p == 1
    assert compute_prediction_test(0.6, [0.5] * 20).p == 0


def test_too_few_or_missing_scores_give_no_test():
    assert compute_prediction_test(0.5, [0.5] * 19) is None
    assert compute_prediction_test(0.5, [0.5] * 19 + [np.nan]) is None
    assert compute_prediction_test(np.nan, [0.5] * 20) is None


def test_the_larger_p_counts_and_a_value_between_both_is_no_difference():
    values = [1.0] * 65 + [0.0] * 35
    estimate = estimate_mean_or_share(values, is_share=True, null_value=0.5)
    assert estimate.p < 0.01

    def combine(mean, deviation):
        baseline = stats.norm.ppf((np.arange(20) + 0.5) / 20) * deviation + mean
        return require_difference_from_baseline(estimate, baseline, "untrained models", 0.0)

    assert combine(0.5, 0.01).p == estimate.p
    wide = combine(0.5, 0.1)
    assert (
        wide.p > 0.1 and "20 untrained models" in wide.method and "larger of the two" in wide.method
    )
    assert wide.minimum_detectable_effect > estimate.minimum_detectable_effect
    between = combine(0.8, 0.01)
    assert between.p == 1 and "p is 1 because the value is between 0.5" in between.method
    assert (wide.value, wide.low, wide.high) == (estimate.value, estimate.low, estimate.high)
    few = require_difference_from_baseline(estimate, [0.5] * 3, "untrained models", 0.0)
    assert (few.p, few.low) == (estimate.p, estimate.low)
    assert few.method.endswith(
        "untrained models: only 3 of these models have values, but at least 20 are required"
    )


def test_the_exact_one_sided_p_of_the_null_value_alone_is_not_kept():
    """25 of 30 is clear against one half, and not against untrained models near 0.7."""
    estimate = estimate_mean_or_share([1.0] * 25 + [0.0] * 5, is_share=True, null_value=0.5)
    assert estimate.p_above_null < 0.001
    baseline = stats.norm.ppf((np.arange(20) + 0.5) / 20) * 0.04 + 0.7
    combined = require_difference_from_baseline(estimate, baseline, "untrained models", 0.0)
    assert combined.p > 0.001 and np.isnan(combined.p_above_null)
    assert compute_harm_p(combined.p, combined.value, 0.5, "up", combined.p_above_null) == (
        pytest.approx(combined.p / 2)
    )
