"""Ranking what a model wrote: scores against one text at a time, near-duplicates against going
through all of them, precision against drawing by lot."""

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


def drawn_of(rows, reference=None):
    made = pa.Table.from_pylist(rows, schema=RESPONSES)
    return made.append_column(
        REFERENCE_SCORES.field("reference_log_likelihood"),
        pa.array(reference or [None] * len(rows), pa.float64()),
    )


@pytest.fixture
def drawn():
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


def one_by_one(row, other, window):
    """The scores of a text as their papers have them."""
    p, mean, std = (
        np.array(row[name], np.float64)
        for name in ("log_probs", "vocabulary_mean", "vocabulary_std")
    )
    size = min(window, len(p))
    windows = [p[i : i + size].mean() for i in range(len(p) - size + 1)]
    standard = np.sort((p - mean) / std)
    return {
        "perplexity": -math.log(np.exp(-p.mean())),
        "reference_ratio": -p.sum() / other,
        "zlib_ratio": p.sum() / len(zlib.compress(row["text"].encode())),
        "lowercase_ratio": -p.sum() / sum(row["lowercase_log_probs"]),
        "likeliest_window": max(windows),
        "min_k_plus_plus": standard[: max(1, len(p) // 5)].mean(),
    }


@pytest.mark.parametrize("window", [1, 4, 50])
def test_scores_are_those_of_each_text_by_itself(drawn, window):
    other = [-float(n) for n in range(1, 1 + len(drawn))]
    found = compute_ranking_scores(drawn_of(drawn, other), window)
    assert tuple(found) == RANKING_SCORES
    for number, row in enumerate(drawn_of(drawn).to_pylist()):
        for score, value in one_by_one(row, other[number], window).items():
            assert found[score][number] == pytest.approx(value, rel=1e-6), score
    without = compute_ranking_scores(drawn_of(drawn), window)["reference_ratio"]
    assert np.isnan(without).all()


def test_what_is_no_number_is_none(drawn):
    """An empty text, one of which the model gave no number, and a certain one, which is first."""
    rows = drawn
    empty = {
        "text": "",
        "log_probs": [],
        "vocabulary_mean": [],
        "vocabulary_std": [],
        "lowercase_log_probs": [],
    }
    unknown = rows[2] | {"log_probs": [-1.0, math.nan, -1.0, -1.0, -1.0]}
    certain = rows[3] | {"log_probs": [0.0] * 9}
    found = compute_ranking_scores(drawn_of([empty, unknown, certain, *rows], [-5.0] * 9), 3)
    for score, values in found.items():
        assert np.isnan(values[:2]).all() and not np.isnan(values[2:]).any(), score
        if score != "min_k_plus_plus":
            assert compute_ranks(values)[2] == 1, score


def shared(left, right):
    """The trigrams that two texts share, as multisets, and those of the first."""
    one, other = (Counter(zip(t, t[1:], t[2:], strict=False)) for t in (left, right))
    return sum((one & other).values()), sum(one.values())


def test_near_duplicates_are_those_of_brute_force(monkeypatch):
    monkeypatch.setattr(memorisation_ranking, "TEXTS_PER_BLOCK", 7)
    rng = np.random.default_rng(1)
    texts = []
    for number in range(60):
        text = rng.integers(0, 5, rng.integers(0, 14)).tolist()
        if number % 3 == 0 and texts:  # one before, with another end
            text = texts[rng.integers(len(texts))][:8] + text[:4]
        texts.append(text)
    kept = []
    for number, text in enumerate(texts):
        many = [shared(text, texts[other]) for other in kept]
        if len(text) >= 3 and not any(2 * both >= own for both, own in many):
            kept.append(number)
    found = flag_non_duplicates(texts)
    assert np.flatnonzero(found).tolist() == kept and 10 < len(kept) < 50
    assert flag_non_duplicates([]).tolist() == [] and flag_non_duplicates([[1, 2]]).tolist() == [
        False
    ]
    assert flag_non_duplicates([[1] * 9, [1] * 4, [1] * 30]).tolist() == [True, False, True]


def test_the_first_are_those_of_sorting_and_ties_are_shared():
    scores = np.array([3.0, np.nan, 1.0, 2.0, 2.0, 2.0, 0.0])
    np.testing.assert_allclose(compute_top_weights(scores, 1), [1, 0, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(compute_top_weights(scores, 3), [1, 0, 0, 2 / 3, 2 / 3, 2 / 3, 0])
    np.testing.assert_allclose(compute_top_weights(scores, 99), [1, 0, 1, 1, 1, 1, 1])
    assert compute_ranks(scores).tolist() == [1, 0, 5, 2, 2, 2, 6]
    assert not compute_top_weights(np.full(3, np.nan), 2).any()


def test_precision_and_recall_are_those_of_going_down_the_list():
    rng = np.random.default_rng(2)
    scores, hits = rng.permutation(80).astype(float), rng.random(80) < 0.3
    for first in (1, 5, 20, 60):
        top = np.argsort(-scores)[:first]
        found = estimate_precision(scores, hits, first)
        assert found.value == pytest.approx(hits[top].mean())
        assert found.null_value == pytest.approx(hits.mean()) and found.n == first
        every = estimate_recall(scores, hits, first)
        assert every.value == pytest.approx(hits[top].sum() / hits.sum())
        assert every.null_value == pytest.approx(first / 80) and every.n == hits.sum()
        assert np.isnan(every.p) and not np.isnan(found.p)


def both(*given):
    return estimate_precision(*given), estimate_recall(*given)


def test_who_knows_all_of_them_and_who_knows_nothing():
    hits = np.arange(200) % 5 == 0
    found, every = both(hits.astype(float), hits, 40)
    assert found.value == every.value == 1 and found.p < 1e-30
    constant, every = both(np.zeros(200), hits, 40)  # whatever the order of the texts
    assert constant.value == pytest.approx(constant.null_value) and constant.p == pytest.approx(1)
    assert every.value == pytest.approx(every.null_value) == pytest.approx(0.2)
    none, nothing = both(np.arange(200.0), np.zeros(200, bool), 40)
    assert (none.value, none.null_value, none.p) == (0, 0, 1) and np.isnan(nothing.value)
    unknown, _ = both(np.full(200, np.nan), hits, 40)
    assert np.isnan(unknown.value) and unknown.missing == 200


@pytest.mark.parametrize("digits", [0, 9])
def test_the_interval_of_precision_covers_where_many_tie_for_the_last_places(digits):
    """Of 120 texts the first 30, scores rounded to whole numbers or nearly not."""
    rng = np.random.default_rng(4)
    covered = tied = 0
    for _ in range(400):
        scores, hits = rng.normal(size=120).round(digits), rng.random(120) < 0.2
        found = estimate_precision(scores, hits, 30)
        covered += found.low <= 0.2 <= found.high
        tied += "tie" in found.method
        assert found.minimum_detectable_effect > 0.1
    assert covered / 400 >= 0.93 and (tied > 300 if digits == 0 else tied == 0)


@pytest.mark.parametrize("first", [8, 80])
def test_the_interval_of_precision_is_no_narrower_where_texts_tie(first):
    """Nor another where those that tie are all hits or none, or where it is of a single text."""
    scores, other = -np.arange(2.0 * first), np.arange(2 * first) % 3 == 0
    tie = np.where(np.arange(2 * first) < first - 2, scores, -first)
    for hits in (other, np.arange(2 * first) == first, np.arange(2 * first) != first):
        found = estimate_precision(tie, hits, first)
        count = found.value * first
        for whole in (math.floor(count), math.ceil(count)):
            sure = estimate_precision(scores, np.arange(2 * first) < whole, first)
            assert found.low <= sure.low and sure.high <= found.high
        assert found.method.endswith(f"over {first} texts, of which the last 2 tie with others")
        assert found.minimum_detectable_effect == pytest.approx(
            estimate_precision(scores, hits, first).minimum_detectable_effect, rel=0.01
        )
    for hits in (np.zeros(2 * first, bool), np.ones(2 * first, bool)):
        assert estimate_precision(tie, hits, first) == estimate_precision(scores, hits, first)
    alone = estimate_precision(np.zeros(2), np.array([False, True]), 1)
    assert (
        np.isnan([alone.low, alone.high, alone.minimum_detectable_effect]).all()
        and alone.value == 0.5
    )
    assert "tie" not in alone.method


def test_p_is_that_of_all_ways_to_draw():
    draws = [sum(i < 3 for i in drawn) for drawn in combinations(range(9), 4)]
    chance = {k: draws.count(k) / len(draws) for k in range(5)}
    for k in range(4):
        expected = sum(c for c in chance.values() if c <= chance[k] * (1 + 1e-9))
        assert compute_hypergeometric_p(9, 3, 4, k) == pytest.approx(expected)
    assert compute_hypergeometric_p(9, 3, 4, 1.5) == pytest.approx(
        max(compute_hypergeometric_p(9, 3, 4, 1), compute_hypergeometric_p(9, 3, 4, 2))
    )
