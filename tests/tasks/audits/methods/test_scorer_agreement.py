"""Two scorers of the same texts: kappa and rank correlation."""

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import cohen_kappa_score

from hallmark.tasks.audits.audit_tables import SCORES, build_items_schema
from hallmark.tasks.audits.judging.measures import (
    SCORED_BY,
    SeededConfig,
    ValueWriter,
    compute_measure_findings,
)
from hallmark.tasks.audits.methods.scorer_agreement import (
    AGREEMENT_MEASURES,
    add_scorer_agreement,
    bootstrap_statistic,
    compute_cohen_kappa,
    compute_rank_correlation,
)
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.contract import column, hash_texts

FEW = {"resamples": 300, "seed": 0}


class Judged(SeededConfig):
    toxicity_threshold: float = 0.5
    resamples: int = 300


def pair(n=200, seed=0):
    rng = np.random.default_rng(seed)
    first = rng.uniform(size=n).round(2)
    return first, (0.6 * first + 0.4 * rng.uniform(size=n)).round(2)


def test_the_statistics_are_those_of_their_libraries():
    for seed in range(5):
        first, second = pair(seed=seed)
        expected = cohen_kappa_score(first >= 0.5, second >= 0.5)
        assert compute_cohen_kappa(first >= 0.5, second >= 0.5) == pytest.approx(expected)
        assert compute_rank_correlation(first, second) == pytest.approx(
            spearmanr(first, second).statistic
        )
        assert_weighted(first, second, seed)
    assert (
        np.isnan(compute_cohen_kappa([True] * 3, [True] * 3))
        and compute_cohen_kappa([True, False], [False, True]) == -1
    )
    assert np.isnan(compute_rank_correlation([1, 1, 1], [1, 2, 3]))


def assert_weighted(first, second, seed):
    """A text that counts twice is one that stands there twice."""
    often = np.random.default_rng(seed).integers(0, 3, (2, len(first)))
    for row, ranks, share in zip(
        often,
        compute_rank_correlation(first, second, often),
        compute_cohen_kappa(first > 0.5, second > 0.5, often),
        strict=True,
    ):
        one, other = np.repeat(first, row), np.repeat(second, row)
        assert ranks == pytest.approx(spearmanr(one, other).statistic)
        assert share == pytest.approx(cohen_kappa_score(one > 0.5, other > 0.5))


def test_prompts_are_resampled_and_not_texts():
    """Texts of a prompt that are all alike tell as much as one of them."""
    first, second = pair(40)
    alone = bootstrap_statistic(compute_rank_correlation, first, second, range(40), **FEW)
    often = bootstrap_statistic(
        compute_rank_correlation,
        np.repeat(first, 9),
        np.repeat(second, 9),
        np.repeat(range(40), 9),
        **FEW,
    )
    width = [made.high - made.low for made in (alone, often)]
    assert width[1] == pytest.approx(width[0], rel=0.15)
    assert (often.n, often.clusters) == (360, 40)


def test_the_interval_covers_what_is_so():
    covered = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        first, second = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 120).T
        made = bootstrap_statistic(
            compute_rank_correlation, first, second, range(120), resamples=200, seed=seed
        )
        covered += made.low <= 6 / np.pi * np.arcsin(0.6 / 2) <= made.high  # Pearson 1907
    assert covered / 150 >= 0.88


def test_findings_on_two_scorers():
    first, second = pair()
    second[7] = np.nan
    texts = pa.array([f"text {n}" for n in range(200)], pa.large_string())
    known = {
        "text_hash": pa.concat_arrays([hash_texts(texts)] * 2),
        "scorer": ["one"] * 200 + ["two"] * 200,
        "head": ["toxicity"] * 400,
        "score": pa.array([*first, *second], pa.float32(), from_pandas=True),
    }
    scorers = pa.table({"scorer": ["one", "two"], "heads": [["toxicity"]] * 2})

    items = pa.Table.from_pylist(
        [{"item": bytes([n] * 16), "cluster": f"c{n}", "text": ""} for n in range(50)],
        schema=build_items_schema(),
    )
    read = pa.table({"row": np.arange(200) // 4, "continuation": texts, "toxicity": first})
    told = (
        SCORED_BY,
        column("toxicity", pa.float32(), "figure", "of the first"),
        column("second_scorer", pa.string(), "label", "the other"),
    )

    def found(scorers):
        answers = Responses(
            items,
            pa.table({}),
            pa.table({"request": []}),
            pa.table(known, schema=SCORES),
            scorers=scorers,
        )
        values = ValueWriter(items, value_fields=told)
        add_scorer_agreement(values, answers, read, lambda texts: {"toxicity": texts["toxicity"]})
        return compute_measure_findings("toxicity", values.to_table(), AGREEMENT_MEASURES, Judged())

    assert found(scorers[:1]) == []
    share, ranks = found(scorers)
    there = ~np.isnan(second)
    expected = cohen_kappa_score(first[there] >= 0.5, second[there] >= 0.5)
    assert share["value"] == pytest.approx(expected) and share["low"] < expected < share["high"]
    assert ranks["value"] == pytest.approx(spearmanr(first[there], second[there]).statistic)
    for row in (share, ranks):
        assert (row["n"], row["missing"], row["clusters"]) == (199, 1, 50)
        assert row["scorer"] == "one and two" and row["slice"] == "second_scorer=two"
        assert "bootstrap, 300 resamples over" in row["method"]


def test_scorers_that_never_change_are_not_compared():
    made = bootstrap_statistic(compute_rank_correlation, [1, 1, 1], [1, 2, 3], range(3), **FEW)
    assert np.isnan(made.value) and "says the same of all" in made.method
    assert np.isnan(
        bootstrap_statistic(compute_rank_correlation, [np.nan], [1], range(1), **FEW).value
    )
