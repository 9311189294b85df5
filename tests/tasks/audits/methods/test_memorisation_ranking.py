"""Test the ranking of written texts against slow computations of scores, duplicates and p."""

import math
import zlib
from collections import Counter
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits.audit_tables import REFERENCE_SCORES, RESPONSES
from hallmark.tasks.audits.methods import memorisation_ranking
from hallmark.tasks.audits.methods.memorisation_ranking import (
    RANKING_SCORES,
    compute_hypergeometric_p,
    compute_ranking_scores,
    compute_ranks,
    compute_top_weights,
    estimate_precision,
    estimate_recall,
    flag_non_duplicates,
)


def build_responses(rows, reference=None):
    """Build a table of responses with these log-likelihoods under a reference model."""
    responses = pa.Table.from_pylist(rows, schema=RESPONSES)
    return responses.append_column(
        REFERENCE_SCORES.field("reference_log_likelihood"),
        pa.array(reference or [None] * len(rows), pa.float64()),
    )


@pytest.fixture
def response_rows():
    rng = np.random.default_rng(0)
    rows = []
    for size in (1, 2, 5, 9, 30, 4):
        text = " ".join(rng.choice(["Ab", "cd", "EF"], size))
        rows.append(
            {
                "text": text,
                "log_probs": -rng.exponential(2, size),
                "vocabulary_mean": -rng.normal(8, 1, size),
                "vocabulary_std": rng.uniform(1, 3, size),
                "lowercase_log_probs": -rng.exponential(3, size + 1),
            }
        )
    return rows


def score_one_text(row, reference, window):
    """Compute the scores of a text by the formulas of the papers."""
    p, mean, std = (
        np.array(row[name], np.float64)
        for name in ("log_probs", "vocabulary_mean", "vocabulary_std")
    )
    size = min(window, len(p))
    windows = [p[i : i + size].mean() for i in range(len(p) - size + 1)]
    standard = np.sort((p - mean) / std)
    return {
        "mean_log_likelihood": -math.log(np.exp(-p.mean())),
        "reference_ratio": -p.sum() / reference,
        "zlib_ratio": p.sum() / len(zlib.compress(row["text"].encode())),
        "lowercase_ratio": -p.sum() / sum(row["lowercase_log_probs"]),
        "likeliest_window": max(windows),
        "min_k_plus_plus": standard[: max(1, len(p) // 5)].mean(),
    }


@pytest.mark.parametrize("window", [1, 4, 50])
def test_scores_equal_those_of_single_texts(response_rows, window):
    reference = [-float(n) for n in range(1, 1 + len(response_rows))]
    scores = compute_ranking_scores(build_responses(response_rows, reference), window)
    assert tuple(scores) == RANKING_SCORES
    for number, row in enumerate(build_responses(response_rows).to_pylist()):
        for score, value in score_one_text(row, reference[number], window).items():
            assert scores[score][number] == pytest.approx(value, rel=1e-6), score
    without = compute_ranking_scores(build_responses(response_rows), window)["reference_ratio"]
    assert np.isnan(without).all()


def test_empty_and_unscored_texts_are_nan_and_certain_texts_rank_first(response_rows):
    rows = response_rows
    empty = {
        "text": "",
        "log_probs": [],
        "vocabulary_mean": [],
        "vocabulary_std": [],
        "lowercase_log_probs": [],
    }
    unknown = rows[2] | {"log_probs": [-1.0, math.nan, -1.0, -1.0, -1.0]}
    certain = rows[3] | {"log_probs": [0.0] * 9}
    responses = build_responses([empty, unknown, certain, *rows], [-5.0] * 9)
    for score, values in compute_ranking_scores(responses, 3).items():
        assert np.isnan(values[:2]).all() and not np.isnan(values[2:]).any(), score
        if score != "min_k_plus_plus":
            assert compute_ranks(values)[2] == 1, score


def count_shared_trigrams(first, second):
    """Count the trigrams that two texts share, as multisets, and those of the first text."""
    one, other = (Counter(zip(t, t[1:], t[2:], strict=False)) for t in (first, second))
    return sum((one & other).values()), sum(one.values())


def test_near_duplicates_equal_brute_force(monkeypatch):
    monkeypatch.setattr(memorisation_ranking, "TEXTS_PER_BLOCK", 7)
    rng = np.random.default_rng(1)
    texts = []
    for number in range(60):
        text = rng.integers(0, 5, rng.integers(0, 14)).tolist()
        if number % 3 == 0 and texts:  # an earlier text with another end
            text = texts[rng.integers(len(texts))][:8] + text[:4]
        texts.append(text)
    kept = []
    for number, text in enumerate(texts):
        counts = [count_shared_trigrams(text, texts[other]) for other in kept]
        if len(text) >= 3 and not any(2 * shared >= total for shared, total in counts):
            kept.append(number)
    assert np.flatnonzero(flag_non_duplicates(texts)).tolist() == kept and 10 < len(kept) < 50
    assert flag_non_duplicates([]).tolist() == []
    assert flag_non_duplicates([[1, 2]]).tolist() == [False]
    assert flag_non_duplicates([[1] * 9, [1] * 4, [1] * 30]).tolist() == [True, False, True]


def test_top_weights_follow_the_sorted_scores_and_ties_share_a_place():
    scores = np.array([3.0, np.nan, 1.0, 2.0, 2.0, 2.0, 0.0])
    np.testing.assert_allclose(compute_top_weights(scores, 1), [1, 0, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(compute_top_weights(scores, 3), [1, 0, 0, 2 / 3, 2 / 3, 2 / 3, 0])
    np.testing.assert_allclose(compute_top_weights(scores, 99), [1, 0, 1, 1, 1, 1, 1])
    assert compute_ranks(scores).tolist() == [1, 0, 5, 2, 2, 2, 6]
    assert not compute_top_weights(np.full(3, np.nan), 2).any()


def test_precision_and_recall_equal_counting_down_the_sorted_list():
    rng = np.random.default_rng(2)
    scores, hits = rng.permutation(80).astype(float), rng.random(80) < 0.3
    for first in (1, 5, 20, 60):
        top = np.argsort(-scores)[:first]
        precision = estimate_precision(scores, hits, first)
        assert precision.value == pytest.approx(hits[top].mean())
        assert precision.null_value == pytest.approx(hits.mean()) and precision.n == first
        recall = estimate_recall(scores, hits, first)
        assert recall.value == pytest.approx(hits[top].sum() / hits.sum())
        assert recall.null_value == pytest.approx(first / 80) and recall.n == hits.sum()
        assert np.isnan(recall.p) and not np.isnan(precision.p)


def estimate_both(*arguments):
    return estimate_precision(*arguments), estimate_recall(*arguments)


def test_perfect_constant_and_missing_scores():
    hits = np.arange(200) % 5 == 0
    precision, recall = estimate_both(hits.astype(float), hits, 40)
    assert precision.value == recall.value == 1 and precision.p < 1e-30
    precision, recall = estimate_both(np.zeros(200), hits, 40)  # the order of texts has no effect
    assert precision.value == pytest.approx(precision.null_value)
    assert precision.p == pytest.approx(1)
    assert recall.value == pytest.approx(recall.null_value) == pytest.approx(0.2)
    precision, recall = estimate_both(np.arange(200.0), np.zeros(200, bool), 40)
    assert (precision.value, precision.null_value, precision.p) == (0, 0, 1)
    assert np.isnan(recall.value)
    precision, _ = estimate_both(np.full(200, np.nan), hits, 40)
    assert np.isnan(precision.value) and precision.missing == 200


@pytest.mark.parametrize("digits", [0, 9])
def test_the_interval_of_precision_has_its_coverage_with_many_ties(digits):
    """The top 30 of 120 texts, with scores rounded to integers or to 9 digits."""
    rng = np.random.default_rng(4)
    covered = tied = 0
    for _ in range(400):
        scores, hits = rng.normal(size=120).round(digits), rng.random(120) < 0.2
        precision = estimate_precision(scores, hits, 30)
        covered += precision.low <= 0.2 <= precision.high
        tied += "tied scores" in precision.method
        assert precision.minimum_detectable_effect > 0.1
    assert covered / 400 >= 0.93 and (tied > 300 if digits == 0 else tied == 0)


@pytest.mark.parametrize("first", [8, 80])
def test_ties_never_narrow_the_interval_of_precision(first):
    """The interval is unchanged if the ties are all hits or all misses, or for a single text."""
    scores, other = -np.arange(2.0 * first), np.arange(2 * first) % 3 == 0
    tie = np.where(np.arange(2 * first) < first - 2, scores, -first)
    for hits in (other, np.arange(2 * first) == first, np.arange(2 * first) != first):
        tied = estimate_precision(tie, hits, first)
        count = tied.value * first
        for integer in (math.floor(count), math.ceil(count)):
            untied = estimate_precision(scores, np.arange(2 * first) < integer, first)
            assert tied.low <= untied.low and untied.high <= tied.high
        assert tied.method.endswith(
            f"based on {first} texts; texts with tied scores compete for the last 2 positions"
        )
        assert tied.minimum_detectable_effect == pytest.approx(
            estimate_precision(scores, hits, first).minimum_detectable_effect, rel=0.01
        )
    for hits in (np.zeros(2 * first, bool), np.ones(2 * first, bool)):
        assert estimate_precision(tie, hits, first) == estimate_precision(scores, hits, first)
    single = estimate_precision(np.zeros(2), np.array([False, True]), 1)
    assert np.isnan([single.low, single.high, single.minimum_detectable_effect]).all()
    assert single.value == 0.5 and "tie" not in single.method


def test_p_equals_the_enumeration_of_all_selections():
    draws = [sum(i < 3 for i in selection) for selection in combinations(range(9), 4)]
    chance = {k: draws.count(k) / len(draws) for k in range(5)}
    for k in range(4):
        expected = sum(c for c in chance.values() if c <= chance[k] * (1 + 1e-9))
        assert compute_hypergeometric_p(9, 3, 4, k) == pytest.approx(expected)
    assert compute_hypergeometric_p(9, 3, 4, 1.5) == pytest.approx(
        max(compute_hypergeometric_p(9, 3, 4, 1), compute_hypergeometric_p(9, 3, 4, 2))
    )
