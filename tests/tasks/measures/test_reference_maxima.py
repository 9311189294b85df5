"""Test the comparison with reference windows against brute force and simulation."""

import itertools

import numpy as np
import pytest
from scipy import stats

from benchmarks.toxicity_reference import Design, simulate_p
from hallmark.tasks.measures.detectable_effects import detectable_standard_errors
from hallmark.tasks.measures.reference_maxima import (
    ReferenceWindows,
    compare_with_windows,
    compute_reference_maximum,
)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_expected_maximum_and_its_variance_are_those_of_all_subsets(k):
    scores = np.random.default_rng(k).random(7).round(1)
    maxima = [max(subset) for subset in itertools.combinations(scores, k)]
    maximum = compute_reference_maximum(scores, k)
    assert maximum.value == pytest.approx(np.mean(maxima))
    assert maximum.variance == pytest.approx(np.var(maxima))
    # One of two scores is new with the probability 2 / 9, drawn with replacement.
    unseen = compute_reference_maximum(scores, k, unseen_count=2).unseen_effect
    assert unseen == pytest.approx((1 - (7 / 9) ** k) * (1 - np.mean(maxima)))


def test_influences_are_the_derivative_of_the_expectation():
    """Against the change of the integral of 1 - F^k when a score gets more weight."""
    scores, k, step = np.array([0.1, 0.4, 0.4, 0.7, 0.95]), 3, 1e-6

    def integrate(weights):
        order = np.argsort(scores, kind="stable")
        shares = np.cumsum(weights[order]) / weights.sum()
        return scores[order][-1] - ((shares[:-1] ** k) @ np.diff(scores[order]))

    influences = compute_reference_maximum(scores, k).influences
    assert influences.sum() == pytest.approx(0)
    for index in range(len(scores)):
        weights = np.ones(len(scores))
        weights[index] += step
        change = (integrate(weights) - integrate(np.ones(len(scores)))) / step
        assert influences[index] == pytest.approx(change, abs=1e-5)


def test_the_jackknife_over_documents_equals_the_spread_of_repeated_samples():
    rng = np.random.default_rng(0)
    values, errors = [], []
    for _ in range(300):
        risks = rng.choice([0.0, 0.3], 100)
        scores = (rng.random((100, 5)) < risks[:, None]) * 1.0
        windows = ReferenceWindows.from_columns(
            scores.ravel(), ["non-toxic"] * 500, np.repeat(np.arange(100), 5)
        )
        maximum = windows.compute_maximum("non-toxic", 5)
        values.append(maximum.value)
        sums = windows.sum_influences("non-toxic", maximum.influences)
        errors.append(float((sums**2).sum()))
    assert np.var(values) == pytest.approx(np.mean(errors), rel=0.25)


def test_prompts_are_compared_with_windows_after_the_same_kind_of_text():
    windows = ReferenceWindows.from_columns(
        [0.1] * 50 + [0.8] * 50 + [np.nan], ["non-toxic"] * 50 + ["toxic"] * 51, range(101)
    )
    assert len(windows.scores) == 100
    result = compare_with_windows([0.8, 0.1], [5, 5], [25, 25], ["toxic", "non-toxic"], windows)
    assert result.null_value == pytest.approx(0.45)
    unknown = compare_with_windows([0.8, 0.1], [1, 1], [25, 25], [None, None], windows)
    assert unknown.null_value == pytest.approx(0.45)
    highest = ReferenceWindows.from_columns([1.0] * 20, ["toxic"] * 20, range(20))
    assert compare_with_windows([1.0, 1.0], [5, 5], [25, 25], ["toxic"] * 2, highest).p == 1
    nothing = compare_with_windows([np.nan], [1], [0], [None], windows)
    assert np.isnan(nothing.null_value) and nothing.reason


@pytest.mark.parametrize(("toxic_count", "model_share"), [(3, 0.1), (3, 0.6), (60, 0.7), (0, 0.1)])
def test_the_reference_has_the_variance_of_the_null_hypothesis(toxic_count, model_share):
    """Against the formulas for one window of each of 100 documents, toxic or not, at k = 1."""
    document_count, prompt_count = 100, 50
    scores = (np.arange(document_count) < toxic_count).astype(float)
    windows = ReferenceWindows.from_columns(scores, ["other"] * 100, range(document_count))
    values = model_share + 0.1 * np.resize([-1, 1], prompt_count)
    result = compare_with_windows(
        values, [1] * prompt_count, [25] * prompt_count, ["other"] * prompt_count, windows
    )
    share = toxic_count / document_count
    value_variance = max(np.var(values, ddof=1), share * (1 - share) / 25) / prompt_count
    unseen_effect = (1 - share) * 2 / (document_count + 2)

    def compute_error(true_share):
        spread = max(true_share * (1 - true_share), share * (1 - share)) if toxic_count else 0
        window_variance = spread * document_count / (document_count - 1) ** 2
        variance = value_variance + window_variance + unseen_effect**2
        uncertainty = value_variance**2 / (prompt_count - 1) + window_variance**2 / 99
        return variance**0.5, variance**2 / uncertainty

    error, degrees = compute_error(model_share)
    assert result.p == pytest.approx(stats.t.sf((model_share - share) / error, degrees))
    effect = result.minimum_detectable_effect
    error, degrees = compute_error(share + effect)
    assert effect == pytest.approx(
        error * detectable_standard_errors(round(degrees), 0.9), rel=0.001
    )


def test_prompts_after_toxic_text_only_have_few_false_positives():
    """Few windows follow toxic text: 26 on average, in some samples none of them toxic."""
    design = Design("null", draw_count=1, is_share=True, other_prompts=0)
    rng = np.random.default_rng(1)
    p_values = np.array([simulate_p(design, rng) for _ in range(400)])
    assert np.mean(p_values < 0.05) <= 0.065


@pytest.mark.parametrize("draw_count", [1, 25])
def test_false_positives_and_power(draw_count):
    """Of 200 models like their corpus few are accused; a model 30 times as toxic always is."""
    null_design = Design("null", draw_count=draw_count)
    rng = np.random.default_rng(0)
    p_values = np.array([simulate_p(null_design, rng) for _ in range(200)])
    assert np.mean(p_values < 0.05) <= 0.085
    toxic_design = Design("toxic", draw_count=draw_count, toxicity_factor=30.0)
    assert max(simulate_p(toxic_design, rng) for _ in range(10)) < 1e-3
