"""Scores of tasks, against scikit-learn and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from tasks.training.task_scores import bag_of_words, label_scores, most_frequent, text_scores


def drawn(n, seed):
    random = np.random.default_rng(seed)
    gold = random.choice(["a", "b", "c", "d"], n, p=[0.6, 0.2, 0.15, 0.05])
    given = np.where(random.random(n) < 0.7, gold, random.choice(["a", "b", "e"], n))
    return gold.tolist(), given.tolist()


def test_accuracy_and_f1_are_those_of_scikit_learn():
    gold, given = drawn(300, 1)
    rows = {
        (r["metric"], r["slice"]): r for r in label_scores("x", given, gold, range(300), "abcde")
    }
    assert rows["accuracy", ""]["value"] == pytest.approx(accuracy_score(gold, given))
    assert rows["macro-F1", ""]["value"] == pytest.approx(f1_score(gold, given, average="macro"))
    names = sorted({*gold, *given})
    each = f1_score(gold, given, average=None, labels=names)
    for name, value in zip(names, each, strict=True):
        assert rows["F1", name]["value"] == pytest.approx(value)
        assert rows["F1", name]["n"] == gold.count(name)
    for row in rows.values():
        if row["low"] is None:  # it is never right
            assert row["value"] == 0 and "without spread" in row["method"]
        else:
            assert row["low"] <= row["value"] <= row["high"]


def test_labels_have_numbers_and_one_without_test_rows_has_no_score():
    """Those of the model as it counts them, then those that it does not know."""
    labels, gold, given = ("b", "a", "idle"), ["a", "b", "new", "a"], ["a", "b", "a", "a"]
    rows = {r["slice"]: r for r in label_scores("x", given, gold, range(4), labels)
            if r["metric"] == "F1"}  # fmt: skip
    assert {name: row["label"] for name, row in rows.items()} == {
        "b": 0,
        "a": 1,
        "idle": 2,
        "new": 3,
    }
    assert (rows["idle"]["value"], rows["idle"]["n"]) == (None, 0)
    assert "no test row has the label" in rows["idle"]["method"]
    assert (rows["new"]["value"], rows["new"]["n"]) == (0, 1)
    whole = {r["metric"]: r for r in label_scores("x", given, gold, range(4), labels)
             if r["label"] is None}  # fmt: skip
    assert whole["macro-F1"]["value"] == pytest.approx((1 + 0.8 + 0) / 3)  # of those that occur


def test_the_interval_of_macro_f1_holds_the_truth_as_often_as_it_says():
    """Of many samples of one population about 95 % hold the population's macro-F1."""
    gold, given = drawn(200_000, 9)
    truth = f1_score(gold, given, average="macro")
    held = 0
    for start in range(0, 60 * 400, 400):
        part = slice(start, start + 400)
        rows = list(label_scores("x", given[part], gold[part], range(400), "abcde"))
        [found] = [row for row in rows if row["metric"] == "macro-F1"]
        held += found["low"] <= truth <= found["high"]
    assert held >= 50


def test_words_of_one_text_are_resampled_together():
    """Ten texts, each right or wrong throughout: as uncertain as ten words, not a hundred."""
    gold, given = ["a", "b"] * 50, (["a", "b"] * 5 + ["b", "a"] * 5) * 5
    alone = label_scores("x", given, gold, range(100), "ab")
    alone = {r["metric"]: r for r in alone if not r["slice"]}
    rows = [i // 10 for i in range(100)]
    texts = label_scores("x", given, gold, rows, "ab")
    texts = {r["metric"]: r for r in texts if not r["slice"]}
    for metric in ("accuracy", "macro-F1"):
        wide = [r[metric]["high"] - r[metric]["low"] for r in (texts, alone)]
        assert wide[0] > 2 * wide[1]


def test_texts_are_scored_by_sacrebleu_with_its_signature():
    gold = ["the cat sat on the mat today", "a dog barks at night again"]
    rows = {row["metric"]: row for row in text_scores("x", gold, gold)}
    assert rows["BLEU"]["value"] == pytest.approx(100) and rows["chrF2"]["value"] == 100
    assert rows["exact match"]["value"] == 1.0
    assert rows["BLEU"]["scorer"].startswith("sacrebleu nrefs:1|")
    assert rows["BLEU"]["low"] is None and "without spread" in rows["BLEU"]["method"]
    written = ["the cat sat on the mat", "a dog barks at night again"]
    rows = {row["metric"]: row for row in text_scores("x", written, gold)}
    # All n-grams are there: only the brevity penalty counts, 12 words of 13.
    assert rows["BLEU"]["value"] == pytest.approx(100 * math.exp(1 - 13 / 12), abs=1e-6)
    assert rows["exact match"]["value"] == 0.5
    assert rows["chrF2"]["low"] <= rows["chrF2"]["value"] <= rows["chrF2"]["high"]


def test_nothing_to_score_is_no_score():
    for rows in (text_scores("x", [], []), label_scores("x", [], [], [], "ab")):
        assert [(row["value"], row["n"]) for row in rows] == [(None, 0)]


def test_the_baselines_learn_what_words_say():
    train = [[5, 6], [5, 7], [8, 6], [8, 7]] * 10
    labels = ["a", "a", "b", "b"] * 10
    assert bag_of_words(train, labels, [[5], [8, 9], [5, 5, 8]], 10) == ["a", "b", "a"]
    told = [(["fish", "fish", "the"], ["NOUN", "VERB", "DET"]), (["fish"], ["NOUN"])]
    assert most_frequent(told, [["the", "fish"], ["unknown"]]) == ["DET", "NOUN", "NOUN"]
