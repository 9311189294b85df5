"""Membership inference: scores by hand, members told apart where they can be, and nowhere else."""

import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from hallmark.tasks.audits.judging.comparison import compare_findings
from hallmark.tasks.audits.judging.comparison_units import AuditUnits
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.tags import parse_tags
from hallmark.tasks.audits.probes.membership import (
    MEASURES,
    REFERENCE_SCORE,
    SCORE_NAMES,
    MembershipConfig,
    compute_membership_scores,
    make_true_positive_estimator,
)
from hallmark.tasks.contract import StageConfig, StageContext, Table, folder_to_artifact, stage
from hallmark.tasks.measures.estimates import estimate_roc_auc, estimate_true_positive_rate
from hallmark.tasks.training.document_reads import DOCUMENT_READS
from hallmark.tasks.training.pretrain import CHECKPOINTS
from tests.tasks.audits.asking import stages_of
from tests.tasks.corpora import given

CONFIG = MembershipConfig(documents_per_split=20, max_tokens=8)


@pytest.fixture
def documents(session):
    texts = [
        f"Document {n} speaks of the harbour, of lamps and of boat {n * 7}." for n in range(60)
    ]
    splits = ["train" if n % 2 else "holdout" for n in range(60)]
    return given([*texts, "x", "y"], splits=[*splits, "train", "holdout"], kind="split")[
        "documents"
    ]


def test_scores_are_those_of_their_papers():
    log_p = [-1.0, -2.0, -8.0, -4.0, -0.5]
    mean, std = [-3.0] * 5, [2.0, 1.0, 4.0, 2.0, 1.0]
    found = compute_membership_scores(log_p, mean, std, "some text", -20.0)
    assert found["loss"] == pytest.approx(-3.1)
    assert found["zlib_ratio"] == pytest.approx(-15.5 / len(zlib.compress(b"some text")))
    assert found["lowercase_ratio"] == pytest.approx(
        -15.5 / 20
    )  # 0.775 of what the lower case costs
    assert found["min_k"] == -8.0  # the lowest of five
    assert found["min_k_plus_plus"] == pytest.approx(-5 / 4)
    ten = compute_membership_scores(
        [-float(i) for i in range(10)], [0.0] * 10, [1.0] * 10, "t", -1.0
    )
    assert ten["min_k"] == ten["min_k_plus_plus"] == pytest.approx(-8.5)
    one = compute_membership_scores(
        [-1.0], [0.0], [0.0], "t", 0.0
    )  # no spread, nothing in lower case
    assert (
        one["min_k"] == -1.0
        and np.isnan(one["min_k_plus_plus"])
        and np.isnan(one["lowercase_ratio"])
    )
    none = compute_membership_scores([float("nan"), -1.0], [0.0] * 2, [1.0] * 2, "t", -1.0)
    assert np.isnan(none["loss"])


def test_documents_that_are_too_short_take_nobodys_place(session, own_folder):
    long = [f"Document {n} speaks of the harbour, of lamps and of boat {n * 7}." for n in range(16)]
    short = [f"harbour {n}." for n in range(400)]  # more bytes than are needed, fewer tokens
    splits = ["train", "holdout"] * 208
    documents = given([*long, *short], splits=splits, kind="split")["documents"]
    config = MembershipConfig(documents_per_split=8, max_tokens=12)
    asked = stages_of("membership", own_folder, config, corpus=(None, None, documents))[0]
    members = [item["is_member"] for item in asked["items"].read().to_pylist()]
    assert sorted(members) == [False] * 8 + [True] * 8


def test_every_document_is_read_over_as_many_tokens(documents, own_folder):
    asked, _, _, _, (rows, findings) = stages_of(
        "membership", own_folder, CONFIG, corpus=(None, None, documents)
    )
    values = rows.to_pylist()
    mine = [r for r in values if r["measure"] == "loss"]
    assert sum(r["is_member"] for r in mine) == 20 == sum(not r["is_member"] for r in mine)
    splits = dict(zip(*(documents.read()[n].to_pylist() for n in ("doc_id", "split")), strict=True))
    assert all(
        {splits[i] for i in r["doc_ids"]} == {"train" if r["is_member"] else "holdout"}
        for r in values
    )
    requests = [r for r in asked["requests"].read().to_pylist() if not r["part"]]
    assert {len(r["target_ids"][0]) for r in requests} == {8} and all(
        r["rank_statistics"] for r in requests
    )
    assert len(values) == 40 * len(SCORE_NAMES)
    assert all((r["value"] is None) == (r["measure"] == REFERENCE_SCORE) for r in values)
    made = {(r["metric"], r["slice"]): r for r in findings.to_pylist()}
    for score in (score for score in SCORE_NAMES if score != REFERENCE_SCORE):
        row = made["auc", f"document, score={score}"]
        assert len(select_evidence(rows, row["evidence_filter"])) == 40
        inside, outside = (
            [r["value"] for r in values if (r["measure"], r["is_member"]) == (score, m)]
            for m in (True, False)
        )
        test = stats.mannwhitneyu(inside, outside)
        assert row["value"] == pytest.approx(test.statistic / (20 * 20))
        assert row["null_value"] == 0.5 and row["low"] < row["value"] < row["high"]
    assert not any(metric.startswith("true_positives") for metric, _ in made)  # too few others
    verdicts = {r["slice"]: r["verdict"] for r in findings.to_pylist() if r["control"]}
    assert verdicts == {"scripted chance": "pass", "scripted effect": "pass"}
    assert made["auc", "scripted effect"]["value"] > 0.95
    assert 0.2 < made["auc", "scripted chance"]["value"] < 0.8


def test_a_reference_reads_the_same_texts(documents, own_folder, gpt2_folder):
    from hallmark.tasks.audits.audited_models.opening import open_audited_model

    config = CONFIG.model_copy(update={"reference_model_folder": gpt2_folder})
    rows, findings = stages_of(
        "membership", own_folder, config, corpus=(None, None, documents), reference=gpt2_folder
    )[-1]
    made = {(r["measure"], r["item"]): r for r in rows.to_pylist()}
    texts = [r["text"] for (score, _), r in made.items() if score == "loss"]
    totals, _ = open_audited_model(gpt2_folder, device="cpu").compute_log_likelihoods(
        texts, [""] * len(texts)
    )
    known = dict(zip(texts, totals, strict=True))
    for (score, item), row in made.items():
        if score == "reference_ratio":
            total = 8 * made["loss", item]["value"]  # of eight tokens
            assert row["value"] == pytest.approx(-total / known[row["text"]], rel=1e-4)
    found = {r["slice"]: r for r in findings.to_pylist() if r["metric"] == "auc"}
    assert found["document, score=reference_ratio"]["value"] is not None
    rows, findings = stages_of("membership", own_folder, CONFIG, corpus=(None, None, documents))[-1]
    (row,) = (r for r in findings.to_pylist() if "score=reference_ratio" in r["slice"])
    assert row["value"] is None
    assert "no other model is named (audit_membership.reference_model_folder)" in row["method"]


def test_two_models_are_compared_by_the_documents_of_both(documents, own_folder, gpt2_folder):
    made = [
        stages_of("membership", folder, CONFIG, corpus=(None, None, documents))[3]
        for folder in (own_folder, gpt2_folder)
    ]
    found = {
        (each.findings[0]["metric"], each.findings[0]["slice"]): each
        for each in compare_findings(made, [(0, 1)])
    }
    each = found["auc", "document, score=zlib_ratio"]
    (change,) = each.changes
    assert change["value"] == pytest.approx(each.findings[1]["value"] - each.findings[0]["value"])
    assert change["value"] and change["n"] == 40 and change["low"] < change["value"]
    assert (
        AuditUnits(made[0]).build_value_filter(each.findings[0]) is None
    )  # the mean of no values of a table
    assert found["auc", "document, score=reference_ratio"].changes == [None]  # measured of neither


def test_true_positives_need_enough_others():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(2, 1, 50), rng.normal(0, 1, 400)
    member = [True] * 50 + [False] * 400
    values = pa.table({"value": [*inside, *outside], "is_member": member})
    found = make_true_positive_estimator(0.01, 100)(values, MEASURES[0], CONFIG, 0.95)
    bound = np.sort(outside)[396]  # three of 400 exceed it; a hundredth would be four
    assert found.value == (inside > bound).mean() and found.null_value == 0.01 and found.n == 50
    expected = estimate_true_positive_rate(inside, outside, 0.01)
    assert (found.low, found.high) == (expected.low, expected.high)
    assert found.low < found.value < found.high
    assert make_true_positive_estimator(0.001, 10_000)(values, MEASURES[0], CONFIG, 0.95) is None
    missing = pa.table({"value": [np.nan, *inside[1:], *outside], "is_member": member})
    found = make_true_positive_estimator(0.01, 100)(missing, MEASURES[0], CONFIG, 0.95)
    assert (found.n, found.missing) == (49, 1)


def test_of_passages_those_without_copies_are_no_members(own_folder, session):
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
    made = plant_canaries(given(texts, kind="split"), config)
    corpus = (None, made["canaries"], None)
    rows, findings = stages_of("membership", own_folder, CONFIG, corpus=corpus)[-1]
    told = [
        (r["kind"], r["is_member"], r["copies"]) for r in rows.to_pylist() if r["measure"] == "loss"
    ]
    assert told.count(("passage", False, 0)) == 6
    kinds = {parse_tags(r).get("kind") for r in findings.to_pylist() if not r["control"]}
    assert kinds == {"passage"}


class TrainedConfig(StageConfig):
    content: str
    passes: int = 1


@stage(name="fake_training", tables={"document_reads": DOCUMENT_READS, "checkpoints": CHECKPOINTS})
def fake_training(documents: Table, config: TrainedConfig, context: StageContext) -> None:
    """By step 10 every other training document was read so often; of the others a part."""
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
        told = {name: [0] for name in DOCUMENT_READS.names} | {"source": [""], "doc_id": [doc_id]}
        context.get_table_writer("document_reads").write(
            told | {"step": [10], "tokens_read": [9], "times_read": [config.passes * (number % 2)]}
        )


def test_who_was_not_read_yet_is_no_member(documents, own_folder):
    content = folder_to_artifact(Path(own_folder), "checkpoint").content_digest
    given = ("membership", own_folder, CONFIG.model_copy(update={"documents_per_split": 100}))
    corpus = (None, None, documents)
    left_out = "; without 15 members that training had not read by then"
    none = "; training had read no member by then"
    for passes, members, said in ((1, 15, left_out), (0, 30, none)):
        trained = fake_training(documents, TrainedConfig(content=content, passes=passes))
        rows, findings = stages_of(*given, corpus=corpus, pretrained=trained)[-1]
        losses = select_evidence(rows, {"measure": "loss"}).to_pylist()
        assert sum(r["is_member"] for r in losses) == members
        assert sum(not r["is_member"] for r in losses) == 30
        assert all(r["times_read"] == passes for r in losses if r["is_member"])
        (row,) = (
            r
            for r in findings.to_pylist()
            if (r["metric"], parse_tags(r).get("score")) == ("auc", "loss")
        )
        assert row["n"] == (30 + members if members else 0) or row["value"] is None
        assert said in row["method"] and row["value"] is not None and row["n"] == 30 + members
    rows, _ = stages_of(*given, corpus=corpus)[-1]  # where that is not known all of them are
    assert sum(select_evidence(rows, {"measure": "loss"})["is_member"].to_pylist()) == 30


def test_without_a_corpus_nothing_is_measured(own_folder, session):
    rows, findings = stages_of("membership", own_folder, CONFIG)[-1]
    assert len(rows) == 0
    told = findings.to_pylist()
    assert [r["metric"] for r in told] == [
        "auc",
        "true_positive_rate_at_fpr_0.01",
        "true_positive_rate_at_fpr_0.001",
    ]
    assert all(r["value"] is None and "not measured: no documents" in r["method"] for r in told)


# The area under the curve ------------------------------------------------------------------------


def test_the_area_is_the_share_of_pairs():
    assert estimate_roc_auc([2, 3], [1, 3]).value == 0.625
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, 30), rng.integers(0, 4, 20)
    by_hand = np.mean([(x > y) + (x == y) / 2 for x in a for y in b])
    found = estimate_roc_auc([*a.astype(float), np.nan], b)
    assert found.value == pytest.approx(by_hand) and found.missing == 1 and found.n == 50
    tied = stats.mannwhitneyu(a, b, method="asymptotic", use_continuity=False)
    assert found.p == pytest.approx(tied.pvalue) and tied.pvalue < 0.9
    alike = estimate_roc_auc([1.0] * 30, [1.0] * 20)
    assert (alike.value, alike.p) == (0.5, 1) and "all items are alike" in alike.method
    test = stats.mannwhitneyu(
        rng.normal(size=30), rng.normal(size=20), method="asymptotic", use_continuity=False
    )
    rng = np.random.default_rng(0)
    rng.integers(0, 5, 30), rng.integers(0, 4, 20)
    assert estimate_roc_auc(rng.normal(size=30), rng.normal(size=20)).p == pytest.approx(
        test.pvalue
    )


@pytest.mark.parametrize(("m", "n", "shift"), [(20, 20, 0.0), (100, 100, 0.0), (50, 200, 0.7)])
def test_the_interval_covers_as_often_as_it_says(m, n, shift):
    rng = np.random.default_rng(3)
    true = stats.norm.cdf(shift / 2**0.5)
    covered = 0
    for _ in range(1000):
        found = estimate_roc_auc(rng.normal(shift, 1, m), rng.normal(0, 1, n))
        covered += found.low <= true <= found.high
    assert 0.925 <= covered / 1000 <= 0.972


@pytest.mark.parametrize(("m", "n"), [(100, 100), (32, 8)])
def test_the_smallest_effect_is_found_with_its_power(m, n):
    rng = np.random.default_rng(4)
    smallest = estimate_roc_auc(rng.normal(size=m), rng.normal(size=n)).minimum_detectable_effect
    shift = stats.norm.ppf(0.5 + smallest) * 2**0.5
    found = [
        estimate_roc_auc(rng.normal(shift, 1, m), rng.normal(size=n)).p < 0.05 for _ in range(2000)
    ]
    assert 0.76 <= np.mean(found) <= 0.84


@pytest.mark.parametrize(("m", "n", "shift"), [(200, 200, 0.0), (200, 200, 1.0), (400, 1000, 2.0)])
def test_the_share_above_a_bound_counts_that_the_bound_is_an_estimate(m, n, shift):
    """Were the bound taken for known, 0.60 of the second intervals would hold the truth."""
    rng = np.random.default_rng(n)
    truth, held = stats.norm.sf(stats.norm.isf(0.01) - shift), 0
    for _ in range(1000):
        found = estimate_true_positive_rate(rng.normal(shift, 1, m), rng.normal(size=n), 0.01)
        held += found.low <= truth <= found.high
    assert 0.925 <= held / 1000 <= 0.985


def test_the_share_above_a_bound_by_hand():
    others = np.arange(200.0)
    found = estimate_true_positive_rate([197.5, 198.5, 250.0, np.nan], others, 0.01)
    assert (found.value, found.n, found.missing, found.null_value) == (2 / 3, 3, 1, 0.01)
    assert 0 < found.low < 2 / 3 < found.high < 1 and "of 200 others" in found.method
    # Bounds 0.7 % off would have 1 or 3 of 3 above them: worth 1.26 members, by Wilson.
    near = (2 + 1) / (3 + 2)
    n = near * (1 - near) / (near * (1 - near) / 3 + (1 / 3) ** 2)
    z = stats.norm.ppf(0.975)
    middle = (2 / 3 + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * np.sqrt(2 / 9 / n + (z / n) ** 2 / 4) / (1 + z**2 / n)
    assert (found.low, found.high) == pytest.approx((middle - half, middle + half))
    assert estimate_true_positive_rate([1.0] * 9, others, 0.01).low == 0
    assert estimate_true_positive_rate([300.0] * 9, others, 0.01).high == 1
    assert np.isnan(estimate_true_positive_rate([], others, 0.01).value)


def test_what_has_no_area_or_no_interval_says_why():
    assert (
        np.isnan(estimate_roc_auc([], [1.0]).value)
        and "of one kind" in estimate_roc_auc([], [1.0]).method
    )
    apart = estimate_roc_auc([2.0, 3.0], [0.0, 1.0])
    assert apart.value == 1 and np.isnan(apart.low) and apart.p < 0.2
    assert np.isnan(estimate_roc_auc([1.0], [0.0, 2.0]).low)
    below = estimate_roc_auc([0.0, 1.0], [2.0, 3.0])
    assert below.value == 0 and np.isnan(below.low) and "all of one kind above" in below.method
    assert pa.scalar(estimate_roc_auc([1.0, 2.0], [1.0, 2.0]).value).as_py() == 0.5
