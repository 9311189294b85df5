"""Test the agreement of two scorers: kappa and rank correlation."""

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import cohen_kappa_score

from hallmark.tasks.audits.audit_tables import SCORES, build_items_schema
from hallmark.tasks.audits.judging.measures import (
    SCORED_BY,
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
from hallmark.tasks.audits.probe_settings import SeededConfig
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import column, hash_texts
from tests.findings import findings_to_rows

FEW = {"resamples": 300, "seed": 0}


class AgreementConfig(SeededConfig):
    toxicity_threshold: float = 0.5
    resamples: int = 300


def draw_two_scores(n=200, seed=0):
    """Draw correlated scores of two scorers."""
    rng = np.random.default_rng(seed)
    first = rng.uniform(size=n).round(2)
    return first, (0.6 * first + 0.4 * rng.uniform(size=n)).round(2)


def test_the_statistics_equal_those_of_scipy_and_scikit_learn():
    for seed in range(5):
        first, second = draw_two_scores(seed=seed)
        expected = cohen_kappa_score(first >= 0.5, second >= 0.5)
        assert compute_cohen_kappa(first >= 0.5, second >= 0.5) == pytest.approx(expected)
        assert compute_rank_correlation(first, second) == pytest.approx(
            spearmanr(first, second).statistic
        )
        assert_weights_repeat_texts(first, second, seed)
    assert np.isnan(compute_cohen_kappa([True] * 3, [True] * 3))
    assert compute_cohen_kappa([True, False], [False, True]) == -1
    assert np.isnan(compute_rank_correlation([1, 1, 1], [1, 2, 3]))


def assert_weights_repeat_texts(first, second, seed):
    """Check that a text with weight 2 counts like two equal texts."""
    weights = np.random.default_rng(seed).integers(0, 3, (2, len(first)))
    for row, correlation, kappa in zip(
        weights,
        compute_rank_correlation(first, second, weights),
        compute_cohen_kappa(first > 0.5, second > 0.5, weights),
        strict=True,
    ):
        one, other = np.repeat(first, row), np.repeat(second, row)
        assert correlation == pytest.approx(spearmanr(one, other).statistic)
        assert kappa == pytest.approx(cohen_kappa_score(one > 0.5, other > 0.5))


def test_prompts_are_resampled_instead_of_texts():
    """Equal texts of a prompt are no more evidence than one of them."""
    first, second = draw_two_scores(40)
    single = bootstrap_statistic(compute_rank_correlation, first, second, range(40), **FEW)
    repeated = bootstrap_statistic(
        compute_rank_correlation,
        np.repeat(first, 9),
        np.repeat(second, 9),
        np.repeat(range(40), 9),
        **FEW,
    )
    widths = [estimate.high - estimate.low for estimate in (single, repeated)]
    assert widths[1] == pytest.approx(widths[0], rel=0.15)
    assert (repeated.n, repeated.clusters) == (360, 40)


def test_the_interval_covers_the_true_correlation():
    covered = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        first, second = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 120).T
        estimate = bootstrap_statistic(
            compute_rank_correlation, first, second, range(120), resamples=200, seed=seed
        )
        true_value = 6 / np.pi * np.arcsin(0.6 / 2)  # Pearson 1907
        covered += estimate.low <= true_value <= estimate.high
    assert covered / 150 >= 0.88


def test_findings_of_agreement_need_two_scorers():
    first, second = draw_two_scores()
    second[7] = np.nan
    texts = pa.array([f"text {n}" for n in range(200)], pa.large_string())
    scores = {
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
    text_rows = pa.table({"row": np.arange(200) // 4, "continuation": texts, "toxicity": first})
    value_fields = (
        SCORED_BY,
        column("toxicity", pa.float32(), "figure", "score of the first scorer"),
        column("second_scorer", pa.string(), "label", "the second scorer"),
    )

    def compute_findings(scorers):
        responses = Responses(
            items,
            pa.table({}),
            pa.table({"request": []}),
            scores=pa.table(scores, schema=SCORES),
            scorers=scorers,
        )
        writer = ValueWriter(items, value_fields=value_fields)
        add_scorer_agreement(
            writer, responses, text_rows, lambda texts: {"toxicity": texts["toxicity"]}
        )
        return findings_to_rows(
            compute_measure_findings(
                "toxicity", writer.to_table(), AGREEMENT_MEASURES, AgreementConfig()
            )
        )

    assert compute_findings(scorers[:1]) == []
    kappa, correlation = compute_findings(scorers)
    has_both = ~np.isnan(second)
    expected = cohen_kappa_score(first[has_both] >= 0.5, second[has_both] >= 0.5)
    assert kappa["value"] == pytest.approx(expected) and kappa["low"] < expected < kappa["high"]
    expected = spearmanr(first[has_both], second[has_both]).statistic
    assert correlation["value"] == pytest.approx(expected)
    for row in (kappa, correlation):
        assert (row["n"], row["missing"], row["clusters"]) == (199, 1, 50)
        assert row["scorer"] == "one and two" and name_slice(row["slice"]) == "second_scorer=two"
        assert "bootstrap, 300 resamples over" in row["method"]


def test_constant_and_missing_scores_have_no_agreement():
    constant = bootstrap_statistic(compute_rank_correlation, [1, 1, 1], [1, 2, 3], range(3), **FEW)
    assert np.isnan(constant.value) and "assigns the same score to all texts" in constant.method
    missing = bootstrap_statistic(compute_rank_correlation, [np.nan], [1], range(1), **FEW)
    assert np.isnan(missing.value)
