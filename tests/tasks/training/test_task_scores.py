"""Compare scores of tasks with scikit-learn, sacrebleu and explicit bootstraps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sklearn.metrics import accuracy_score, f1_score

from hallmark.tasks.training.task_scores import (
    RESAMPLE_COUNT,
    compute_label_differences,
    compute_label_scores,
    compute_text_differences,
    compute_text_scores,
    predict_most_frequent_labels,
    predict_with_bag_of_words,
)


def drawn(n, seed):
    random = np.random.default_rng(seed)
    gold = random.choice(["a", "b", "c", "d"], n, p=[0.6, 0.2, 0.15, 0.05])
    given = np.where(random.random(n) < 0.7, gold, random.choice(["a", "b", "e"], n))
    return gold.tolist(), given.tolist()


def test_accuracy_and_f1_equal_those_of_scikit_learn():
    gold, given = drawn(300, 1)
    rows = {
        (r.metric, r.slice): r for r in compute_label_scores("x", given, gold, range(300), "abcde")
    }
    assert rows["accuracy", ""].value == pytest.approx(accuracy_score(gold, given))
    assert rows["macro-F1", ""].value == pytest.approx(f1_score(gold, given, average="macro"))
    names = sorted({*gold, *given})
    each = f1_score(gold, given, average=None, labels=names)
    for name, value in zip(names, each, strict=True):
        assert rows["F1", name].value == pytest.approx(value)
        assert rows["F1", name].n == gold.count(name)
    for row in rows.values():
        if row.low is None:  # It is never correct.
            assert row.value == 0 and "give the same value" in row.method
        else:
            assert row.low <= row.value <= row.high


def test_labels_are_numbered_and_one_without_test_rows_has_no_score():
    """Labels of the model come first, in its order, then unknown ones."""
    labels, gold, given = ("b", "a", "idle"), ["a", "b", "new", "a"], ["a", "b", "a", "a"]
    rows = {
        r.slice: r
        for r in compute_label_scores("x", given, gold, range(4), labels)
        if r.metric == "F1"
    }
    assert {name: row.label_id for name, row in rows.items()} == {
        "b": 0,
        "a": 1,
        "idle": 2,
        "new": 3,
    }
    assert (rows["idle"].value, rows["idle"].n) == (None, 0)
    assert "no test row has this label" in rows["idle"].method
    assert (rows["new"].value, rows["new"].n) == (0, 1)
    whole = {
        r.metric: r
        for r in compute_label_scores("x", given, gold, range(4), labels)
        if r.label_id is None
    }
    assert whole["macro-F1"].value == pytest.approx((1 + 0.8 + 0) / 3)  # Over labels that occur.


def test_the_interval_of_macro_f1_covers_the_truth():
    """About 95 % of intervals of samples cover the population's macro-F1."""
    gold, given = drawn(200_000, 9)
    truth = f1_score(gold, given, average="macro")
    covered = 0
    for start in range(0, 60 * 400, 400):
        part = slice(start, start + 400)
        rows = list(compute_label_scores("x", given[part], gold[part], range(400), "abcde"))
        [scores] = [row for row in rows if row.metric == "macro-F1"]
        covered += scores.low <= truth <= scores.high
    assert covered >= 50


def test_words_of_one_text_are_resampled_together():
    """Ten texts, each all correct or all wrong: as uncertain as ten words, not a hundred."""
    gold, given = ["a", "b"] * 50, (["a", "b"] * 5 + ["b", "a"] * 5) * 5
    alone = compute_label_scores("x", given, gold, range(100), "ab")
    alone = {r.metric: r for r in alone if not r.slice}
    rows = [i // 10 for i in range(100)]
    texts = compute_label_scores("x", given, gold, rows, "ab")
    texts = {r.metric: r for r in texts if not r.slice}
    for metric in ("accuracy", "macro-F1"):
        wide = [r[metric].high - r[metric].low for r in (texts, alone)]
        assert wide[0] > 2 * wide[1]


def test_texts_are_scored_by_sacrebleu_with_its_signature():
    gold = ["the cat sat on the mat today", "a dog barks at night again"]
    rows = {row.metric: row for row in compute_text_scores("x", gold, gold)}
    assert rows["BLEU"].value == pytest.approx(100) and rows["chrF2"].value == 100
    assert rows["exact match"].value == 1.0
    assert rows["BLEU"].scorer.startswith("sacrebleu nrefs:1|")
    assert rows["BLEU"].low is None and "give the same value" in rows["BLEU"].method
    generated = ["the cat sat on the mat", "a dog barks at night again"]
    rows = {row.metric: row for row in compute_text_scores("x", generated, gold)}
    # All n-grams match, so only the brevity penalty for 12 of 13 words counts.
    assert rows["BLEU"].value == pytest.approx(100 * math.exp(1 - 13 / 12), abs=1e-6)
    assert rows["exact match"].value == 0.5
    assert rows["chrF2"].low <= rows["chrF2"].value <= rows["chrF2"].high


def test_rows_of_a_group_are_resampled_together():
    """Eight authors of ten texts, all correct or all wrong: as uncertain as eight texts."""
    gold = ["the lamp burns at night", "a boat is late today"] * 40
    other = gold[1:] + gold[:1]
    given = [(gold, other)[i // 10 % 2][i] for i in range(80)]
    authors, labels = [f"author {i // 10}" for i in range(80)], sorted(set(gold))
    for wide, narrow in (
        (
            compute_text_scores("x", given, gold, authors, "groups"),
            compute_text_scores("x", given, gold),
        ),
        (
            compute_text_differences("x", given, other, gold, authors, "groups"),
            compute_text_differences("x", given, other, gold),
        ),
        (
            compute_label_scores("x", given, gold, authors, labels, cluster_unit="groups"),
            compute_label_scores("x", given, gold, range(80), labels),
        ),
        (
            compute_label_differences("x", given, other, gold, authors, labels, "groups"),
            compute_label_differences("x", given, other, gold, range(80), labels),
        ),
    ):
        for wider, row in zip(wide, narrow, strict=True):
            assert "8 groups" in wider.method and "80 texts" in row.method
            assert (wider.value, wider.n) == (pytest.approx(row.value), row.n)
            assert wider.high - wider.low > 2 * (row.high - row.low)


def test_the_interval_of_a_text_score_equals_a_bootstrap_within_the_scale(monkeypatch):
    monkeypatch.setattr("hallmark.tasks.training.task_scores.RESAMPLE_COUNT", 100)
    words = ["the old lamp of a harbour burns", "wind and rain at night", "a boat is late today"]
    gold = [f"{text} {i}" for i in range(8) for text in words]
    generated = ["zz", *gold[1:]]
    scores = {r.metric: r for r in compute_text_scores("x", generated, gold)}
    for metric in (CHRF(), BLEU()):
        draws, drawn = np.random.default_rng(0), []
        for _ in range(100):
            chosen = draws.integers(24, size=24)
            ours, of = ([each[i] for i in chosen] for each in (generated, gold))
            drawn.append(metric.corpus_score(ours, [of]).score)
        row = scores[metric.corpus_score(generated, [gold]).name]
        assert row.value == pytest.approx(metric.corpus_score(generated, [gold]).score)
        ends = (row.low, row.high)
        assert ends == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
        assert row.low < row.value < row.high <= 100 + 1e-9


def test_texts_without_common_ngrams_are_scored():
    gold = ["yes"] * 20
    for right in (0, 1, 2):
        generated = ["yes"] * right + [""] * (20 - right)
        rows = {row.metric: row for row in compute_text_scores("x", generated, gold)}
        assert rows["exact match"].value == right / 20
        assert (rows["chrF2"].low is None) == (right == 0)


def test_no_rows_have_no_score():
    for rows in (compute_text_scores("x", [], []), compute_label_scores("x", [], [], [], "ab")):
        assert [(row.value, row.n) for row in rows] == [(None, 0)]


def test_the_baselines_learn_from_words():
    train = [[5, 6], [5, 7], [8, 6], [8, 7]] * 10
    labels = ["a", "a", "b", "b"] * 10
    assert predict_with_bag_of_words(train, labels, [[5], [8, 9], [5, 5, 8]], 10) == ["a", "b", "a"]
    told = [(["fish", "fish", "the"], ["NOUN", "VERB", "DET"]), (["fish"], ["NOUN"])]
    assert predict_most_frequent_labels(told, [["the", "fish"], ["unknown"]]) == [
        "DET",
        "NOUN",
        "NOUN",
    ]


# Differences on the same texts, against brute force ----------------------------------------------


def draw_labels_of_words(texts=40, words=5):
    """Draw labels of words: gold, two systems that share many mistakes, and the text of each."""
    random = np.random.default_rng(3)
    n = texts * words
    gold = random.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1])
    hard = random.random(n) < 0.4
    one = np.where(hard, random.choice(["a", "b", "c"], n), gold)
    other = np.where(random.random(n) < 0.1, random.choice(["a", "b", "c"], n), one)
    return gold, one, other, np.repeat(np.arange(texts), words)


def test_differences_of_labels_equal_an_explicit_bootstrap():
    gold, one, other, rows = draw_labels_of_words()
    told = one.tolist(), other.tolist(), gold.tolist()
    scores = {r.metric: r for r in compute_label_differences("x", *told, rows, "abc")}
    assert {r.system for r in scores.values()} == {"model minus x"}

    def macro(chosen):
        return [f1_score(gold[chosen], each[chosen], average="macro") for each in (one, other)]

    random, drawn = np.random.default_rng(0), {"accuracy": [], "macro-F1": []}
    for _ in range(RESAMPLE_COUNT):
        texts = random.integers(40, size=40)
        chosen = np.concatenate([np.flatnonzero(rows == text) for text in texts])
        ours, theirs = macro(chosen)
        drawn["macro-F1"].append(100 * (ours - theirs))
        right = [(each[chosen] == gold[chosen]).mean() for each in (one, other)]
        drawn["accuracy"].append(100 * (right[0] - right[1]))
    ours, theirs = macro(np.arange(len(gold)))
    assert scores["macro-F1"].value == pytest.approx(100 * (ours - theirs))
    right = [(each == gold).mean() for each in (one, other)]
    assert scores["accuracy"].value == pytest.approx(100 * (right[0] - right[1]))
    for metric, draws in drawn.items():
        low, high = np.quantile(draws, [0.025, 0.975])
        # Macro-F1 uses the same draws; accuracy uses Student's t instead of a bootstrap.
        close = 1e-9 if metric == "macro-F1" else 0.15 * (high - low)
        assert scores[metric].low == pytest.approx(low, abs=close)
        assert scores[metric].high == pytest.approx(high, abs=close)
        assert scores[metric].method.endswith(
            "computed from the differences between the model and the baseline on the same texts"
        )
        assert (scores[metric].n, scores[metric].unit) == (200, "points")


def test_paired_intervals_are_narrower_for_shared_mistakes():
    gold, one, other, rows = (each.tolist() for each in draw_labels_of_words())
    alone = [next(compute_label_scores("x", each, gold, rows, "abc")) for each in (one, other)]
    apart = next(compute_label_differences("x", one, other, gold, rows, "abc"))
    assert apart.high - apart.low < 100 * min(r.high - r.low for r in alone)


def test_differences_of_texts_equal_an_explicit_bootstrap():
    random = np.random.default_rng(5)
    words = ["the", "old", "lamp", "of", "a", "harbour", "burns", "in", "wind", "and", "rain"]
    gold = [" ".join(random.choice(words, 7)) for _ in range(12)]
    one = [" ".join(w if random.random() < 0.8 else "x" for w in text.split()) for text in gold]
    other = [" ".join(w if random.random() < 0.6 else "y" for w in text.split()) for text in gold]
    scores = {r.metric: r for r in compute_text_differences("x", one, other, gold)}
    for metric in (CHRF(), BLEU()):

        def score(chosen, metric=metric):
            ours, theirs, of = ([each[i] for i in chosen] for each in (one, other, gold))
            return metric.corpus_score(ours, [of]).score - metric.corpus_score(theirs, [of]).score

        draws = np.random.default_rng(0)
        drawn = [score(draws.integers(12, size=12)) for _ in range(RESAMPLE_COUNT)]
        row = scores["BLEU" if isinstance(metric, BLEU) else "chrF2"]
        assert row.value == pytest.approx(score(range(12)))
        ends = (row.low, row.high)
        assert ends == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    assert set(scores) == {"exact match", "chrF2", "BLEU"}


def test_differences_without_spread_do_not_claim_certainty():
    """All correct against all wrong differ; equal answers do not; a single text shows nothing."""
    gold = ["a", "b"] * 15
    wrong = ["b", "a"] * 15
    told = {r.metric: r for r in compute_label_differences("x", gold, wrong, gold, range(30), "ab")}
    assert told["accuracy"].value == 100 and 50 < told["accuracy"].low < 90
    assert "Clopper-Pearson" in told["accuracy"].method
    assert told["macro-F1"].low is None and "give the same value" in told["macro-F1"].method
    told = next(compute_label_differences("x", wrong, wrong, gold, range(30), "ab"))
    assert told.value == 0 and told.low < 0 < told.high
    for rows in (
        compute_label_differences("x", ["a"], ["b"], ["a"], [0], "ab"),
        compute_text_differences("x", ["a"], ["b"], ["a"]),
    ):
        assert all(row.low is None for row in rows)
    for rows in (
        compute_label_differences("x", [], [], [], [], "ab"),
        compute_text_differences("x", [], [], []),
    ):
        assert [(row.value, row.n) for row in rows] == [(None, 0)]
