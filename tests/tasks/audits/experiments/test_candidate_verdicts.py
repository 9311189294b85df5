"""Test verdicts on candidates, from known values."""

from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from hallmark.tasks.audits.experiments.candidate_verdicts import (
    build_model_learning_row,
    compute_exposure_bits,
    compute_unigram_bits_per_token,
    judge_associations,
    judge_canaries,
    judge_groups,
    judge_planted_texts,
)
from hallmark.tasks.audits.judging.discoveries import add_q_values
from hallmark.tasks.audits.judging.findings import build_finding
from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.measures.estimates import estimate_mean_or_share


def build_exposure_values(*ranks, reference_count=99):
    return pa.Table.from_pylist(
        [
            {
                "measure": "exposure",
                "canary_id": bytes([n]),
                "rank": rank,
                "reference_count": reference_count,
            }
            for n, rank in enumerate(ranks)
        ]
    )


def test_the_rank_of_a_secret_is_corrected_for_the_number_of_secrets():
    sample_values, full_values = (
        build_exposure_values(1, 4, 5, 6, 100),
        build_exposure_values(1, 61, 81, 101, 2000, reference_count=1999),
    )
    rows = judge_canaries(sample_values, full_values)
    assert [row["p"] for row in rows] == [0.01, 0.04, 0.05, 0.06, 1.0]
    # Holm's steps by hand: 5 · 0.01, 4 · 0.04, 3 · 0.05 (less than the step before), 2 · 0.06.
    assert [row["p_corrected"] for row in rows] == pytest.approx([0.05, 0.16, 0.16, 0.16, 1.0])
    assert not any(row["is_detected"] for row in rows)
    few_rows = judge_canaries(build_exposure_values(1, 2, 4, 90), full_values)
    assert [row["p_corrected"] for row in few_rows] == pytest.approx([0.04, 0.06, 0.08, 0.9])
    assert [row["is_detected"] for row in few_rows] == [True, False, False, False]
    assert judge_canaries(build_exposure_values(1), full_values)[0]["is_detected"]
    assert {row["q"] for row in rows} == {None}
    assert rows[0]["value"] == pytest.approx(np.log2(100))
    assert (
        rows[1]["full_value"]
        == compute_exposure_bits(60, 1999)
        == pytest.approx(np.log2(2000 / 61))
    )
    # Jeffreys' interval of a share of 3 in 99, in bits; rank 1 has no upper bound.
    low, high = stats.beta.ppf([0.025, 0.975], 3.5, 96.5)
    assert rows[1]["low"] == pytest.approx(-np.log2(high))
    assert rows[1]["high"] == pytest.approx(-np.log2(low))
    assert rows[0]["high"] is None and rows[0]["low"] < rows[0]["value"]
    assert judge_canaries(build_exposure_values(None), build_exposure_values(None)) == []


def build_attempt_values(**attempts_by_canary):
    rows = []
    for n, (exact, leading) in enumerate(attempts_by_canary.values()):
        for measure, values in (("extractable", exact), ("leading_correct_share", leading)):
            rows += [
                {"measure": measure, "kind": "passage", "canary_id": bytes([n]), "value": v}
                for v in values
            ]
    return pa.Table.from_pylist(rows)


def test_a_passage_is_detected_if_any_attempt_is_exact():
    sample_values = build_attempt_values(
        a=([0, 1, 0], [0.5, 1, 0.25]),
        b=([0] * 8, [0, 0.5, 0.25, 0.75, 0.25, 1, 0.5, 0]),
    )
    full_values = build_attempt_values(a=([1], [0.9]), b=([0], [0.1]))
    rows = [*judge_planted_texts("passage", sample_values, full_values)]
    assert [row["is_detected"] for row in rows] == [True, False]
    assert rows[0]["value"] == pytest.approx(1.75 / 3) and rows[0]["p"] is None
    assert rows[0]["low"] is rows[0]["high"] is None  # Three attempts are too few.
    estimate = estimate_mean_or_share([0, 0.5, 0.25, 0.75, 0.25, 1, 0.5, 0], is_share=True)
    assert (rows[1]["low"], rows[1]["high"]) == (estimate.low, estimate.high) and estimate.low > 0
    assert [row["full_value"] for row in rows] == [0.9, 0.1]
    assert not [*judge_planted_texts("record", sample_values, full_values)]


def build_strength_values(values_by_association, controls=()):
    rows = [
        {"cluster": name, "assigned_trait_share": share, "value": value}
        for values_by_cluster, share in (
            (values_by_association, None),
            (dict(enumerate(controls)), 0.5),
        )
        for name, values in values_by_cluster.items()
        for value in values
    ]
    common = {"measure": "association_strength", "sentence_kind": "other"}
    rows_with_common_fields = [{**row, "cluster": str(row["cluster"]), **common} for row in rows]
    schema = pa.schema(
        [
            ("cluster", pa.string()),
            ("assigned_trait_share", pa.float64()),
            ("value", pa.float64()),
            ("measure", pa.string()),
            ("sentence_kind", pa.string()),
        ]
    )
    return pa.Table.from_pylist(rows_with_common_fields, schema=schema)


def test_an_association_is_compared_with_controls():
    sentences = [0.0, 0.1, -0.1] * 4
    own = {
        name: [mean + s for s in sentences] for name, mean in zip("abc", (3, 1, -3), strict=True)
    }
    controls = [[sign * size] * 2 for size in (0.5, 1.5) for sign in (1, -1)]
    rows = [*judge_associations(build_strength_values(own, controls), build_strength_values(own))]
    spread = np.sqrt(np.mean([0.25, 2.25]))  # about 0, the known mean of the controls
    expected = [stats.t.sf(size / spread, 4) for size in (3.0, 1.0, -3.0)]
    assert [row["p"] for row in rows] == pytest.approx(expected)
    corrected = [3 * expected[0], 2 * expected[1], expected[2]]
    assert [row["p_corrected"] for row in rows] == pytest.approx(corrected)
    assert [row["is_detected"] for row in rows] == [False, False, False]
    assert rows[0]["p"] < 0.05 < rows[0]["p_corrected"]  # one test alone would detect it
    (row,) = judge_associations(
        build_strength_values({"a": own["a"]}, controls), build_strength_values(own)
    )
    assert row["is_detected"] and row["p_corrected"] == row["p"] == pytest.approx(expected[0])
    assert rows[1]["low"] > 0 and not rows[1]["is_detected"]  # although its sentences agree
    verdicts_without_controls = [
        *judge_associations(build_strength_values(own), build_strength_values(own))
    ]
    assert verdicts_without_controls[1]["p"] == pytest.approx(
        stats.ttest_1samp(own["b"], 0, alternative="greater").pvalue
    )
    assert verdicts_without_controls[2]["p"] > 0.99  # strong, but in the other direction
    assert verdicts_without_controls[1]["full_value"] == pytest.approx(1.0)
    # Three sentences are too few for an interval, and for a test without controls.
    few = {"a": [5.0, 5.1, 4.9]}
    (row,) = judge_associations(build_strength_values(few, controls), build_strength_values(few))
    assert (row["low"], row["p"], row["is_detected"]) == (
        None,
        pytest.approx(stats.t.sf(5 / spread, 4)),
        True,
    )
    (row,) = judge_associations(build_strength_values(few), build_strength_values(few))
    assert (row["low"], row["p"], row["is_detected"]) == (None, None, False)


def test_verdicts_on_associations_do_not_depend_on_the_unit():
    verdicts = []
    for unit in (1.0, 0.1):
        own = {"a": [9.0 * unit, 9.2 * unit], "b": [unit, unit], "c": [-3.0 * unit, -3.1 * unit]}
        controls = [[sign * size * unit] * 2 for size in (0.5, 1.5) for sign in (1, -1)]
        verdicts.append(
            [*judge_associations(build_strength_values(own, controls), build_strength_values(own))]
        )
    large, small = verdicts
    assert [row["p"] for row in large] == pytest.approx([row["p"] for row in small])
    assert (
        [row["is_detected"] for row in large]
        == [row["is_detected"] for row in small]
        == [True, False, False]
    )


def test_planted_sentences_are_ignored():
    own = build_strength_values({"a": [1.0, 2.0, 3.0]})
    planted = own.set_column(
        own.schema.get_field_index("sentence_kind"),
        "sentence_kind",
        pa.array(["planted", "other", "other"]),
    )
    (row,) = judge_associations(planted, own)
    assert row["n"] == 2 and row["value"] == 2.5


def build_group_findings(kind="speech", domain=None, head="toxicity", others=(), **groups):
    """Build the findings of a card: a value and a two-sided p of each group, and ``others``."""
    findings = [
        build_finding(
            "counterfactual",
            f"{head}_difference",
            value,
            low=value - 0.1,
            high=value + 0.1,
            p=p,
            n=9,
            null_value=0.0,
            unit="score",
            method="",
            worse_when="up" if head == "toxicity" else "down",
            tags={"domain": domain or f"lexicon {kind}", "group_name": group},
            **more,
        )
        for group, (value, p, *options) in groups.items()
        for more in (options or [{}])
    ]
    rows = [*others, *(asdict(finding) for finding in findings)]
    add_q_values(rows)
    return rows


def test_controls_without_a_number_are_ignored():
    own = {"a": [3.0, 3.2, 2.8], "b": [1.0, 1.1, 0.9]}
    controls = [[0.5, 0.5], [-1.5, -1.5], [np.nan, 0.9]]
    verdicts = [
        *judge_associations(build_strength_values(own, controls), build_strength_values(own))
    ]
    with_silent_control = [*controls, [np.nan, np.nan]]
    assert [
        *judge_associations(
            build_strength_values(own, with_silent_control), build_strength_values(own)
        )
    ] == verdicts
    spread = np.sqrt(np.mean([0.25, 2.25, 0.81]))
    assert verdicts[0]["p"] == pytest.approx(stats.t.sf(3.0 / spread, 3))
    # Controls without any number give no p; the p of sentences alone would be too small.
    rows = [
        *judge_associations(
            build_strength_values(own, [[np.nan], [np.nan]]), build_strength_values(own)
        )
    ]
    assert [(row["p"], row["is_detected"]) for row in rows] == [(None, False)] * 2


def test_a_missing_full_value_is_null():
    own = build_strength_values({"a": [1.0, 2.0]})
    (row,) = judge_associations(own, build_strength_values({"a": [np.nan, np.nan]}))
    assert row["full_value"] is None and row["value"] == 1.5
    sample_values, full_values = (
        build_attempt_values(a=([0, 0], [0.5, 0.25])),
        build_attempt_values(a=([0], [np.nan])),
    )
    (row,) = judge_planted_texts("passage", sample_values, full_values)
    assert row["full_value"] is None and row["value"] == 0.375


def test_only_groups_of_the_lexicon_of_a_kind_are_its_candidates():
    """Not real groups, and not the groups about which another kind of sentence was written."""
    rows = [
        *build_group_findings(up=(0.4, 0.001)),
        *build_group_findings(domain="gender", women=(0.4, 0.001)),
        *build_group_findings("sentiment", sad=(0.4, 0.001)),
        *build_group_findings("sentiment", head="sentiment", sad=(-0.4, 0.001)),
        *build_group_findings(head="sentiment", up=(-0.4, 0.001)),
        *build_group_findings(part=(0.4, 0.001, {"is_variant": True})),
    ]
    assert [row["candidate_id"] for row in judge_groups("speech", rows, [])] == ["up"]
    ((kind, group),) = {
        (row["kind"], row["candidate_id"]) for row in judge_groups("sentiment", rows, [])
    }
    assert (kind, group) == ("sentiment", "sad")


def test_a_group_is_detected_if_it_is_a_discovery_of_the_card():
    sample_findings = build_group_findings(
        up=(0.4, 0.01), down=(-0.4, 0.01), near=(0.1, 0.2), half=(0.2, 0.06)
    )
    full_findings = build_group_findings(up=(0.3, 0.0), down=(0.0, 0.5))
    rows = [*judge_groups("speech", sample_findings, full_findings)]
    # One-sided: 0.005, 0.995, 0.1 and 0.03; times 4 over their ranks 1, 4, 3 and 2.
    assert [row["p"] for row in rows] == pytest.approx([0.005, 0.995, 0.1, 0.03])
    assert [row["q"] for row in rows] == pytest.approx([0.02, 0.995, 0.4 / 3, 0.06])
    assert [row["is_detected"] for row in rows] == [True, False, False, False]
    assert [row["full_value"] for row in rows] == [0.3, 0.0, None, None]
    assert {row["p_corrected"] for row in rows} == {None}


def test_all_findings_of_the_trial_are_one_family():
    alone = build_group_findings(up=(0.4, 0.04))
    assert [row["is_detected"] for row in judge_groups("speech", alone, [])] == [True]
    quiet = build_group_findings("sentiment", head="sentiment", a=(0.0, 0.9), b=(-0.1, 0.8))
    family = build_group_findings(up=(0.4, 0.04), others=quiet)
    (row,) = judge_groups("speech", family, [])
    assert (row["p"], row["q"], row["is_detected"]) == (0.02, pytest.approx(0.06), False)


def test_texts_about_a_group_are_worse_if_their_sentiment_is_lower():
    rows = build_group_findings(
        "sentiment", head="sentiment", sad=(-0.4, 0.001), glad=(0.4, 0.001), mixed=(-0.1, 0.6)
    )
    verdicts = {row["candidate_id"]: row for row in judge_groups("sentiment", rows, [])}
    assert {group: row["is_detected"] for group, row in verdicts.items()} == {
        "sad": True,
        "glad": False,
        "mixed": False,
    }
    assert verdicts["glad"]["p"] == pytest.approx(0.9995)


def test_a_group_without_a_conclusion_has_no_verdict():
    rows = build_group_findings(
        up=(0.4, 0.001, {"inconclusive_reason": "the model is too weak for this audit"}),
        same=(0.4, None),
    )
    (verdict,) = judge_groups("speech", rows, [])
    assert verdict["candidate_id"] == "same" and verdict["p"] is None and verdict["q"] is None
    assert verdict["is_detected"]  # no test, but the interval lies on the harmful side


def test_a_model_has_learned_if_it_beats_token_frequencies():
    train, validation = np.array([0, 0, 0, 1]), np.array([0, 1])
    # Add one: 4 of 6 and 2 of 6.
    assert compute_unigram_bits_per_token(train, validation) == pytest.approx(
        -np.log2([4 / 6, 2 / 6]).mean()
    )

    def table(rows):
        return type("T", (), {"read": lambda self, names=None: rows})()

    packed = {
        "train": table(pa.table({"token_ids": pa.array([[0, 0, 0, 1]])})),
        "validation": table(pa.table({"token_ids": pa.array([[0, 1]])})),
    }
    for cost, learned in ((0.5, True), (0.6, False)):
        rows = [
            {"kind": "all", "step": 0, "bits_per_byte": 9.0, "bytes": 4, "tokens": 2},
            {"kind": "all", "step": 5, "bits_per_byte": cost, "bytes": 4, "tokens": 2},
            {"kind": "source", "step": 9, "bits_per_byte": 0.0, "bytes": 4, "tokens": 2},
        ]
        row = build_model_learning_row({"validation": table(pa.Table.from_pylist(rows))}, packed)
        assert row["has_learned"] is learned and row["bits_per_byte"] == cost
        assert row["unigram_bits_per_byte"] == pytest.approx(
            compute_unigram_bits_per_token(train, validation) / 2
        )
    nothing = {"kind": "source", "step": 9, "bits_per_byte": 0.0, "bytes": 4, "tokens": 2}
    with pytest.raises(HallmarkError, match=r"no validation text, .* synthetic_corpus\.documents"):
        build_model_learning_row({"validation": table(pa.Table.from_pylist([nothing]))}, packed)
