"""Test that the probe associations detects planted shares, and nothing without an effect."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits.audit_tables import REQUESTS, RESPONSES, RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.judging.findings import build_finding
from hallmark.tasks.audits.judging.training_exposure import TrainingExposure
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes.associations import (
    PROBE,
    AssociationsConfig,
    build_item_columns_by_pair,
    compute_trained_trait_shares,
    derive_findings,
    get_trained_or_planted_shares,
)
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.measures.association_canaries import PLANTED_FRAMES
from hallmark.tasks.measures.sentence_frames import SENTENCE_FRAMES as GRAMMAR
from hallmark.tasks.measures.sentence_frames import sample_sentence_frames
from tests.tasks.audits.audit_runs import compute_simulated_findings, run_audit_stages
from tests.tasks.corpora import given

CONFIG = AssociationsConfig()
FRAMES = len(PLANTED_FRAMES) + CONFIG.unplanted_sentences


@pytest.fixture
def canaries(session):
    config = PlantCanariesConfig(
        enabled=True,
        secrets_per_count=0,
        passages_per_count=0,
        records_per_count=0,
        sentences_per_group=40,
    )
    return plant_canaries(given([f"text {i}" for i in range(50)], kind="split"), config)["canaries"]


def test_both_traits_of_each_group_are_scored_in_each_sentence(canaries, own_folder):
    request_set, *_, (rows, findings) = run_audit_stages(
        "associations", own_folder, CONFIG, corpus=(None, canaries, None)
    )
    items = request_set["items"].read().to_pylist()
    assert len(items) == 20 * 2 * FRAMES and len(rows) == 2 * 20 * FRAMES
    requests = request_set["requests"].read().to_pylist()
    assert all(len(r["target_ids"]) == 2 for r in requests)
    for first, second in zip(items[::2], items[1::2], strict=True):
        assert (first["cluster"], first["assigned_trait"]) == (
            second["cluster"],
            second["other_trait"],
        )
        assert first["text"].replace(first["group_name"], second["group_name"]) == second["text"]
    strengths = {
        name_slice(row["slice"]): row
        for row in findings.to_pylist()
        if row["metric"] == "association_strength"
    }
    assert {
        "",
        "assigned_trait_share=0.5",
        "assigned_trait_share=1.0",
        "sentence_kind=planted",
        "sentence_kind=other",
    } <= {*strengths}
    assert strengths["assigned_trait_share=0.75"]["clusters"] == 4
    assert strengths[""]["clusters"] == 20
    controls = [row for row in findings.to_pylist() if row["control"]]
    assert {row["verdict"] for row in controls} == {"pass"} and len(controls) == 7


@pytest.mark.parametrize(("count", "control_count"), [(10, 0), (11, 6)])
def test_controls_need_enough_clusters(count, control_count, session, own_folder):
    trait_shares = tuple(float(share) for share in np.linspace(0.5, 1, count))
    config = PlantCanariesConfig(
        enabled=True,
        secrets_per_count=0,
        passages_per_count=0,
        records_per_count=0,
        sentences_per_group=40,
        associations_per_share=1,
        trait_shares=trait_shares,
    )
    canaries = plant_canaries(given([f"text {i}" for i in range(50)], kind="split"), config)
    corpus = (None, canaries["canaries"], None)
    _, findings = run_audit_stages("associations", own_folder, CONFIG, corpus=corpus)[-1]
    verdicts = [
        row["verdict"] for row in findings.to_pylist() if "script" in name_slice(row["slice"])
    ]
    assert verdicts == ["pass"] * control_count


def make_model(strength):
    """Simulate a model for which assigned traits are likelier by ``strength(planted share)``.

    Some traits are likelier than others for all groups.
    """

    def compute_log_likelihood(item, target):
        trait = item["other_trait"] if target else item["assigned_trait"]
        trait_frequency = sum(map(ord, trait)) % 7
        noise = (sum(map(ord, item["text"])) * 31 % 101 / 101 - 0.5) / 50
        effect = 0.0 if target else strength(item["assigned_trait_share"])
        return trait_frequency + effect + noise

    return compute_log_likelihood


def test_the_trained_share_counts_the_sentences_that_were_read(canaries, own_folder):
    """Only some of the planted sentences were read, and some of these twice."""
    rows = canaries.read().to_pylist()
    ids = sorted(i for row in rows for i in row["doc_ids"])
    read_counts = {doc_id: 1 + (number % 9 == 0) for number, doc_id in enumerate(ids) if number % 3}
    builder = RequestBuilder()
    tokenizer = open_audited_tokenizer(own_folder)
    PROBE.build_requests(builder, tokenizer, CorpusTables(canaries=canaries), CONFIG)
    items = builder.build_items_table(PROBE.item_schema)
    empty = REQUESTS.empty_table(), RESPONSES.empty_table()
    trained_share = compute_trained_trait_shares(
        Responses(items, *empty, training_exposure=TrainingExposure(read_counts))
    )
    assigned_reads, total_reads = Counter(), Counter()
    for row in rows:
        reads = sum(read_counts.get(i, 0) for i in row["doc_ids"])
        assigned_reads[row["association"]] += reads * bool(row["is_assigned_trait"])
        total_reads[row["association"]] += reads
    names = items["cluster"].to_pylist()[::2]
    np.testing.assert_allclose(
        trained_share, [assigned_reads[name] / total_reads[name] for name in names]
    )
    planted_share = items["assigned_trait_share"].to_numpy()[::2]
    assert np.abs(trained_share - planted_share).max() > 0.01
    assert np.corrcoef(trained_share, planted_share)[0, 1] > 0.9
    assert np.isnan(compute_trained_trait_shares(Responses(items, *empty))).all()
    assert np.isnan(
        compute_trained_trait_shares(
            Responses(items, *empty, training_exposure=TrainingExposure({}))
        )
    ).all()
    values = pa.table({"assigned_trait_share": [0.5, 1.0], "trained_trait_share": [None, 0.75]})
    assert get_trained_or_planted_shares(values)[1] == 0.75 and np.isnan(
        get_trained_or_planted_shares(values)[0]
    )
    values = pa.table(
        {"assigned_trait_share": [0.5, 1.0], "trained_trait_share": pa.nulls(2, pa.float64())}
    )
    assert get_trained_or_planted_shares(values).tolist() == [0.5, 1.0]


def test_the_smallest_detected_share_and_the_slope_are_found(canaries, own_folder):
    step = make_model(lambda share: 2.0 if share > 0.7 else 0.0)
    _, findings = compute_simulated_findings(
        "associations", own_folder, CONFIG, step, canaries=canaries
    )
    for share, value in ((0.5, 0.0), (0.6, 0.0), (0.75, 2.0), (0.9, 2.0), (1.0, 2.0)):
        row = findings["association_strength", f"assigned_trait_share={share}"]
        assert row["value"] == pytest.approx(value, abs=0.02)
    assert findings["association_preference", "assigned_trait_share=1.0"]["value"] == 1.0
    smallest = findings["smallest_detected_trait_share", ""]
    assert smallest["value"] == 0.75 and smallest["n"] == 5
    line = make_model(lambda share: 4 * (share - 0.5))
    _, findings = compute_simulated_findings(
        "associations", own_folder, CONFIG, line, canaries=canaries
    )
    slope = findings["strength_by_trait_share", ""]
    assert slope["value"] == pytest.approx(4, abs=0.05) and slope["low"] > 3.5 and slope["p"] < 1e-6


def test_a_model_that_learned_nothing_has_no_smallest_share(canaries, own_folder):
    unaffected = make_model(lambda share: 0.0)
    _, findings = compute_simulated_findings(
        "associations", own_folder, CONFIG, unaffected, canaries=canaries
    )
    smallest = findings["smallest_detected_trait_share", ""]
    assert smallest["value"] is None
    assert (
        "not measured: the confidence interval for the strength is not entirely above 0 at "
        "any planted share"
    ) in smallest["method"]
    slope = findings["strength_by_trait_share", ""]
    assert slope["value"] == pytest.approx(0, abs=1e-6)  # responses have single precision
    assert findings["association_strength", "planted chance"]["verdict"] == "pass"


def test_a_preference_at_a_share_of_one_half_fails_the_control(canaries, own_folder):
    leaked = make_model(lambda share: 3.0)
    _, findings = compute_simulated_findings(
        "associations", own_folder, CONFIG, leaked, canaries=canaries
    )
    assert findings["association_strength", "planted chance"]["verdict"] == "fail"


def test_all_shares_above_the_smallest_detected_one_must_be_detected():
    lows = {0.5: 0.1, 0.6: 0.2, 0.75: -0.1, 0.9: 0.1, 1.0: 0.2}
    rows = [
        build_finding(
            "associations",
            "association_strength",
            0.5,
            n=9,
            unit="nats",
            method="",
            tags={"assigned_trait_share": share},
            low=low,
            high=1.0,
            p=0.5,
        )
        for share, low in lows.items()
    ]
    assert derive_findings(rows, None, None)[0].value == 0.9
    # The largest share is not detected, but a smaller one is.
    rows[-1] = replace(rows[-1], low=-0.1)
    finding = derive_findings(rows, None, None)[0]
    assert finding.value is None
    assert finding.method.endswith(
        "not measured: at the largest planted share, 1, the confidence interval for the "
        "strength is not entirely above 0"
    )
    chance = [row for row in rows if row.slice == {"assigned_trait_share": "0.5"}]
    assert derive_findings(chance, None, None)[0].method.endswith(
        "no share above one half was planted"
    )
    assert derive_findings([], None, None) == []


def test_without_planted_associations_nothing_is_measured(own_folder, session):
    rows, findings = run_audit_stages("associations", own_folder, CONFIG)[-1]
    assert not len(rows) and {row["value"] for row in findings.to_pylist()} == {None}
    assert all("has no planted associations" in r["method"] for r in findings.to_pylist())
    empty = dict.fromkeys(
        ("association", "is_assigned_trait", "group_name", "trait", "assigned_trait_share")
    )
    empty |= {"doc_ids": []}
    one_group = [
        empty | {"association": "a", "is_assigned_trait": True, "group_name": "x", "trait": "t"},
        empty,
    ]
    assert [*build_item_columns_by_pair(one_group)] == []


def test_sentences_of_the_grammar_are_drawn_without_repeats():
    assert len({*GRAMMAR}) == len(GRAMMAR)
    assert {*sample_sentence_frames(len(GRAMMAR), 3)} == {*GRAMMAR}
    sample = sample_sentence_frames(9, 3)
    assert sample == sample_sentence_frames(20, 3)[:9] != sample_sentence_frames(9, 4)
    assert not {*GRAMMAR} & {*PLANTED_FRAMES}
    assert all(frame.count("{group}") == 1 for frame in GRAMMAR)


def test_groups_have_their_assigned_traits():
    rows = [
        {
            "association": "a",
            "is_assigned_trait": is_assigned,
            "group_name": group,
            "trait": trait,
            "assigned_trait_share": 0.9,
            "doc_ids": [bytes([number])],
        }
        for number, (is_assigned, group, trait) in enumerate(
            ((True, "x", "t"), (False, "x", "u"), (True, "y", "u"))
        )
    ]
    ((x, y),) = build_item_columns_by_pair(rows)
    assert (x["group_name"], x["assigned_trait"], x["other_trait"]) == ("x", "t", "u")
    assert (y["group_name"], y["assigned_trait"], y["other_trait"]) == ("y", "u", "t")
    assert np.isclose(x["assigned_trait_share"], 0.9)
    assert (x["assigned_trait_doc_ids"], y["assigned_trait_doc_ids"]) == ([b"\0"], [b"\2"])
    assert x["doc_ids"] == [b"\0", b"\1"] and y["doc_ids"] == [b"\2"]
