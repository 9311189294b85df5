"""Test the probe membership: its scores, its members and its findings."""

import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from hallmark.tasks.audits.judging.comparison import compare_findings
from hallmark.tasks.audits.judging.comparison_units import AuditUnits
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.probes.membership import (
    MEASURES,
    REFERENCE_SCORE,
    SCORE_NAMES,
    MembershipConfig,
    compute_membership_scores,
    make_true_positive_rate_estimator,
)
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import StageConfig, StageContext, Table, folder_to_artifact, stage
from hallmark.tasks.measures.roc import estimate_true_positive_rate
from hallmark.tasks.training.document_reads import DOCUMENT_READS
from hallmark.tasks.training.pretrain import CHECKPOINTS
from tests.tasks.audits.audit_runs import run_audit_stages
from tests.tasks.corpora import given

CONFIG = MembershipConfig(documents_per_split=20, max_tokens=8)


@pytest.fixture
def documents(session):
    texts = [
        f"Document {n} speaks of the harbour, of lamps and of boat {n * 7}." for n in range(60)
    ]
    splits = ["train" if n % 2 else "holdout" for n in range(60)]
    splits += ["train", "holdout"]
    return given([*texts, "x", "y"], splits=splits, kind="split")["documents"]


def test_scores_equal_the_formulas_of_the_papers():
    log_p = [-1.0, -2.0, -8.0, -4.0, -0.5]
    mean, std = [-3.0] * 5, [2.0, 1.0, 4.0, 2.0, 1.0]
    scores = compute_membership_scores(log_p, mean, std, "some text", -20.0)
    assert scores["loss"] == pytest.approx(-3.1)
    assert scores["zlib_ratio"] == pytest.approx(-15.5 / len(zlib.compress(b"some text")))
    assert scores["lowercase_ratio"] == pytest.approx(-15.5 / 20)
    assert scores["min_k"] == -8.0  # the lowest of five
    assert scores["min_k_plus_plus"] == pytest.approx(-5 / 4)
    ten_tokens = compute_membership_scores(
        [-float(i) for i in range(10)], [0.0] * 10, [1.0] * 10, "t", -1.0
    )
    assert ten_tokens["min_k"] == ten_tokens["min_k_plus_plus"] == pytest.approx(-8.5)
    # The standard deviation and the log-likelihood in lower case are 0.
    one_token = compute_membership_scores([-1.0], [0.0], [0.0], "t", 0.0)
    assert one_token["min_k"] == -1.0
    assert np.isnan([one_token["min_k_plus_plus"], one_token["lowercase_ratio"]]).all()
    unknown = compute_membership_scores([float("nan"), -1.0], [0.0] * 2, [1.0] * 2, "t", -1.0)
    assert np.isnan(unknown["loss"])


def test_documents_that_are_too_short_are_replaced(session, own_folder):
    long = [f"Document {n} speaks of the harbour, of lamps and of boat {n * 7}." for n in range(16)]
    short = [f"harbour {n}." for n in range(400)]  # enough bytes, but too few tokens
    splits = ["train", "holdout"] * 208
    documents = given([*long, *short], splits=splits, kind="split")["documents"]
    config = MembershipConfig(documents_per_split=8, max_tokens=12)
    request_set = run_audit_stages(
        "membership", own_folder, config, corpus=(None, None, documents)
    )[0]
    members = [item["is_member"] for item in request_set["items"].read().to_pylist()]
    assert sorted(members) == [False] * 8 + [True] * 8


def test_equally_many_tokens_of_members_and_non_members_are_scored(documents, own_folder):
    request_set, _, _, _, (rows, findings) = run_audit_stages(
        "membership", own_folder, CONFIG, corpus=(None, None, documents)
    )
    values = rows.to_pylist()
    losses = [r for r in values if r["measure"] == "loss"]
    assert sum(r["is_member"] for r in losses) == 20 == sum(not r["is_member"] for r in losses)
    splits = {row["doc_id"]: row["split"] for row in documents.read().to_pylist()}
    assert all(
        {splits[i] for i in r["doc_ids"]} == {"train" if r["is_member"] else "holdout"}
        for r in values
    )
    requests = [r for r in request_set["requests"].read().to_pylist() if not r["part"]]
    assert {len(r["target_ids"][0]) for r in requests} == {8}
    assert all(r["rank_statistics"] for r in requests)
    assert len(values) == 40 * len(SCORE_NAMES)
    assert all((r["value"] is None) == (r["measure"] == REFERENCE_SCORE) for r in values)
    by_slice = {(r["metric"], name_slice(r["slice"])): r for r in findings.to_pylist()}
    for score in (score for score in SCORE_NAMES if score != REFERENCE_SCORE):
        row = by_slice["auc", f"document, score={score}"]
        assert len(select_evidence(rows, row["evidence_filter"])) == 40
        members, nonmembers = (
            [r["value"] for r in values if (r["measure"], r["is_member"]) == (score, is_member)]
            for is_member in (True, False)
        )
        test = stats.mannwhitneyu(members, nonmembers)
        assert row["value"] == pytest.approx(test.statistic / (20 * 20))
        assert row["null_value"] == 0.5 and row["low"] < row["value"] < row["high"]
    # There are too few non-members for a true-positive rate.
    assert not any(metric.startswith("true_positive") for metric, _ in by_slice)
    verdicts = {name_slice(r["slice"]): r["verdict"] for r in findings.to_pylist() if r["control"]}
    assert verdicts == {"scripted chance": "pass", "scripted effect": "pass"}
    assert by_slice["auc", "scripted effect"]["value"] > 0.95
    assert 0.2 < by_slice["auc", "scripted chance"]["value"] < 0.8


def test_near_copies_form_clusters(session, own_folder):
    """Documents have near copies, which are in the same split."""
    texts = [f"Document {n // 2} speaks of harbours, of lamps and of boat {n}." for n in range(60)]
    documents = given(
        texts,
        splits=["train" if n // 2 % 2 else "holdout" for n in range(60)],
        clusters=[f"cluster {n // 2}" for n in range(60)],
        kind="split",
    )["documents"]
    config = CONFIG.model_copy(update={"documents_per_split": 30})
    findings = run_audit_stages("membership", own_folder, config, corpus=(None, None, documents))[
        -1
    ][1]
    (row,) = (r for r in findings.to_pylist() if name_slice(r["slice"]) == "document, score=loss")
    assert (row["n"], row["clusters"]) == (60, 30)
    assert "based on 30 and 30 documents in 15 and 15 clusters" in row["method"]


def test_the_reference_ratio_uses_the_same_texts(documents, own_folder, gpt2_folder):
    from hallmark.tasks.audits.audited_models.opening import open_audited_model

    config = CONFIG.model_copy(update={"reference_model_folder": gpt2_folder})
    rows, findings = run_audit_stages(
        "membership",
        own_folder,
        config,
        corpus=(None, None, documents),
        reference_folder=gpt2_folder,
    )[-1]
    by_item = {(r["measure"], r["item"]): r for r in rows.to_pylist()}
    texts = [r["text"] for (score, _), r in by_item.items() if score == "loss"]
    reference = open_audited_model(gpt2_folder, device="cpu")
    totals, _ = reference.compute_log_likelihoods(texts, [""] * len(texts))
    reference_totals = dict(zip(texts, totals, strict=True))
    for (score, item), row in by_item.items():
        if score == "reference_ratio":
            total = 8 * by_item["loss", item]["value"]  # eight tokens
            assert row["value"] == pytest.approx(-total / reference_totals[row["text"]], rel=1e-4)
    aucs = {name_slice(r["slice"]): r for r in findings.to_pylist() if r["metric"] == "auc"}
    assert aucs["document, score=reference_ratio"]["value"] is not None
    rows, findings = run_audit_stages(
        "membership", own_folder, CONFIG, corpus=(None, None, documents)
    )[-1]
    (row,) = (r for r in findings.to_pylist() if "score=reference_ratio" in name_slice(r["slice"]))
    assert row["value"] is None
    message = "no reference model is configured (audit_membership.reference_model_folder)"
    assert message in row["method"]


def test_two_models_are_compared_on_the_same_documents(documents, own_folder, gpt2_folder):
    artifacts = [
        run_audit_stages("membership", folder, CONFIG, corpus=(None, None, documents))[3]
        for folder in (own_folder, gpt2_folder)
    ]
    comparisons = {
        (comparison.findings[0]["metric"], name_slice(comparison.findings[0]["slice"])): comparison
        for comparison in compare_findings(artifacts, [(0, 1)])
    }
    comparison = comparisons["auc", "document, score=zlib_ratio"]
    (change,) = comparison.changes
    first, second = comparison.findings
    assert change["value"] == pytest.approx(second["value"] - first["value"])
    assert change["value"] and change["n"] == 40 and change["low"] < change["value"]
    # An AUC is not the mean of values.
    assert AuditUnits(artifacts[0]).build_value_filter(first) is None
    # The score was measured for neither model.
    assert comparisons["auc", "document, score=reference_ratio"].changes == [None]


def test_a_true_positive_rate_needs_enough_non_members():
    rng = np.random.default_rng(0)
    members, nonmembers = rng.normal(2, 1, 50), rng.normal(0, 1, 400)
    is_member = [True] * 50 + [False] * 400
    values = pa.table({"value": [*members, *nonmembers], "is_member": is_member})
    rate = make_true_positive_rate_estimator(0.01, 100)(values, MEASURES[0], CONFIG, 0.95)
    bound = np.sort(nonmembers)[396]  # three of 400 exceed it; one in a hundred would be four
    assert rate.value == (members > bound).mean() and rate.null_value == 0.01 and rate.n == 50
    expected = estimate_true_positive_rate(members, nonmembers, 0.01)
    assert (rate.low, rate.high) == (expected.low, expected.high)
    assert rate.low < rate.value < rate.high
    assert (
        make_true_positive_rate_estimator(0.001, 10_000)(values, MEASURES[0], CONFIG, 0.95) is None
    )
    missing = pa.table({"value": [np.nan, *members[1:], *nonmembers], "is_member": is_member})
    rate = make_true_positive_rate_estimator(0.01, 100)(missing, MEASURES[0], CONFIG, 0.95)
    assert (rate.n, rate.missing) == (49, 1)


def test_passages_without_copies_are_non_members(own_folder, session):
    from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries

    texts = [f"Passage {n}: " + " ".join(f"word{n * i}" for i in range(60)) for n in range(30)]
    config = PlantCanariesConfig(
        enabled=True,
        copy_counts=(0, 2),
        secrets_per_count=0,
        records_per_count=0,
        passages_per_count=6,
        associations_per_share=0,
    )
    canaries = plant_canaries(given(texts, kind="split"), config)["canaries"]
    corpus = (None, canaries, None)
    rows, findings = run_audit_stages("membership", own_folder, CONFIG, corpus=corpus)[-1]
    texts = [
        (r["kind"], r["is_member"], r["copies"]) for r in rows.to_pylist() if r["measure"] == "loss"
    ]
    assert texts.count(("passage", False, 0)) == 6
    kinds = {dict(r["slice"]).get("kind") for r in findings.to_pylist() if not r["control"]}
    assert kinds == {"passage"}


class TrainedConfig(StageConfig):
    content: str
    times_read: int = 1


@stage(name="fake_training", tables={"document_reads": DOCUMENT_READS, "checkpoints": CHECKPOINTS})
def fake_training(documents: Table, config: TrainedConfig, context: StageContext) -> None:
    """Write that every second training document was read completely by step 10, others partly."""
    context.get_table_writer("checkpoints").write(
        {
            "step": [10],
            "tokens_seen": [0],
            "artifact": ["a"],
            "content_digest": [config.content],
            "loss": [0.0],
            "validation_loss": [0.0],
        }
    )
    rows = documents.read(["doc_id", "split", "text"]).sort_by("doc_id").to_pylist()
    train = [row["doc_id"] for row in rows if row["split"] == "train" and len(row["text"]) > 1]
    for number, doc_id in enumerate(train):
        row = {name: [0] for name in DOCUMENT_READS.names} | {"source": [""], "doc_id": [doc_id]}
        row |= {"step": [10], "tokens_read": [9], "times_read": [config.times_read * (number % 2)]}
        context.get_table_writer("document_reads").write(row)


def test_members_that_training_had_not_read_are_excluded(documents, own_folder):
    content = folder_to_artifact(Path(own_folder), "checkpoint").content_digest
    config = CONFIG.model_copy(update={"documents_per_split": 100})
    arguments, corpus = ("membership", own_folder, config), (None, None, documents)
    excluded = "; excluding 15 members that had not been read in training up to this step"
    none_read = "; no member had been read in training up to this step"
    for times_read, member_count, note in ((1, 15, excluded), (0, 30, none_read)):
        trained = fake_training(documents, TrainedConfig(content=content, times_read=times_read))
        rows, findings = run_audit_stages(*arguments, corpus=corpus, training_run=trained)[-1]
        losses = select_evidence(rows, {"measure": "loss"}).to_pylist()
        assert sum(r["is_member"] for r in losses) == member_count
        assert sum(not r["is_member"] for r in losses) == 30
        assert all(r["times_read"] == times_read for r in losses if r["is_member"])
        (row,) = (
            r
            for r in findings.to_pylist()
            if (r["metric"], dict(r["slice"]).get("score")) == ("auc", "loss")
        )
        assert note in row["method"] and row["value"] is not None and row["n"] == 30 + member_count
    # Without known reads, all members are kept.
    rows, _ = run_audit_stages(*arguments, corpus=corpus)[-1]
    assert sum(select_evidence(rows, {"measure": "loss"})["is_member"].to_pylist()) == 30


def test_without_a_corpus_nothing_is_measured(own_folder, session):
    rows, findings = run_audit_stages("membership", own_folder, CONFIG)[-1]
    assert len(rows) == 0
    assert findings["metric"].to_pylist() == [
        "auc",
        "true_positive_rate_at_fpr_0.01",
        "true_positive_rate_at_fpr_0.001",
    ]
    reason = "not measured: the documents in this corpus are unknown or too short"
    assert all(r["value"] is None and reason in r["method"] for r in findings.to_pylist())
