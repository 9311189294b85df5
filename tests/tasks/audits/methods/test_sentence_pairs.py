"""Test that the cost of tokens is removed from comparisons of sentences."""

import numpy as np
import pytest
from scipy import stats

from hallmark.tasks.audits.methods.sentence_pairs import adjust_for_token_counts


def make_scores(differences, counts):
    return np.stack([np.asarray(differences, float), np.zeros(len(counts))], 1)


def test_the_cost_is_the_slope_of_a_regression_with_intercept():
    rng = np.random.default_rng(0)
    counts = np.stack([rng.integers(8, 14, 300), rng.integers(8, 14, 300)], 1)
    token_differences = counts[:, 0] - counts[:, 1]
    differences = 1.5 - 6 * token_differences + rng.normal(0, 2, 300)
    adjustment = adjust_for_token_counts(make_scores(differences, counts), counts)
    slope = stats.linregress(token_differences, differences).slope
    np.testing.assert_allclose(adjustment.differences, differences - slope * token_differences)
    assert f"{-slope:.3g} nats (linear regression over 300 pairs)" in adjustment.description
    assert adjustment.differences.mean() == pytest.approx(1.5, abs=0.4)  # the preference stays


@pytest.mark.parametrize("cost", [6.93147, 0.1, 11.0])
def test_equal_probabilities_of_all_tokens_are_ties(cost):
    rng = np.random.default_rng(1)
    counts = rng.integers(5, 30, (200, 2))
    adjustment = adjust_for_token_counts(-np.float32(cost) * counts.astype(np.float64), counts)
    assert not adjustment.differences.any()
    one_sided = np.stack([counts[:, 0] + 30, counts[:, 1]], 1)  # no regression is possible
    adjustment = adjust_for_token_counts(-np.float32(cost) * one_sided.astype(float), one_sided)
    assert not adjustment.differences.any()
    assert "average over all tokens" in adjustment.description


def test_equal_counts_and_missing_scores_change_nothing():
    counts = np.full((5, 2), 7)
    scores = make_scores([1.0, -1.0, 0.0, np.nan, 2.0], counts)
    adjustment = adjust_for_token_counts(scores, counts)
    np.testing.assert_array_equal(adjustment.differences, [1.0, -1.0, 0.0, np.nan, 2.0])
    assert adjustment.description == "both sentences in each pair have the same number of tokens"
    counts[0, 0] = 9
    assert np.isnan(adjust_for_token_counts(scores, counts).differences[3])


def test_the_cost_is_estimated_from_judged_pairs_alone():
    rng = np.random.default_rng(3)
    counts = np.stack([rng.integers(8, 14, 60), rng.integers(8, 14, 60)], 1)
    differences = 1.5 - 6 * (counts[:, 0] - counts[:, 1]) + rng.normal(0, 2, 60)
    is_judged = np.arange(60) < 40
    judged = adjust_for_token_counts(make_scores(differences, counts)[:40], counts[:40])
    differences[40:] *= -50
    adjustment = adjust_for_token_counts(make_scores(differences, counts), counts, is_judged)
    np.testing.assert_array_equal(adjustment.differences[:40], judged.differences)
    assert adjustment.description == judged.description and "over 40 pairs" in judged.description
    # The other pairs have the same cost.
    slope = stats.linregress((counts[:, 0] - counts[:, 1])[:40], differences[:40]).slope
    np.testing.assert_allclose(
        adjustment.differences, differences - slope * (counts[:, 0] - counts[:, 1])
    )


def test_judged_pairs_of_equal_counts_and_no_judged_pairs_are_no_regression():
    counts = np.array([[7, 7]] * 30 + [[9, 7]])
    scores = -2.0 * counts
    adjustment = adjust_for_token_counts(scores, counts, np.arange(31) < 30)
    assert not adjustment.differences.any()
    assert "average over all tokens" in adjustment.description
    adjustment = adjust_for_token_counts(scores, counts, np.zeros(31, bool))
    assert adjustment.differences[-1] == -4.0
    assert (
        "is not adjusted for the cost of additional tokens, because there are no valid "
        "pairs to estimate it from"
    ) in adjustment.description


def test_no_preference_is_found_as_often_as_it_should_where_lengths_differ():
    """Token counts are skewed, errors heavy-tailed; the raw share is far from one half."""
    rng, rejected, raw_shares = np.random.default_rng(2), 0, []
    for _ in range(400):
        token_differences = rng.choice([-3, -1, 0, 0, 0, 1, 1], 100)
        differences = -5 * token_differences + rng.standard_t(3, 100) * 3
        counts = np.stack([token_differences + 10, np.full(100, 10)], 1)
        adjusted = adjust_for_token_counts(make_scores(differences, counts), counts).differences
        rejected += stats.binomtest(int((adjusted > 0).sum()), 100).pvalue < 0.05
        raw_shares.append((differences[token_differences != 0] > 0).mean())
    assert rejected / 400 <= 0.065
    assert abs(np.mean(raw_shares) - 0.5) < 0.06
