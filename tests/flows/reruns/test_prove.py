"""`hallmark prove` on the smoke config.

Its models learn almost nothing, so these tests check the documents of the arms and the reports.
"""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from hallmark import open_run
from hallmark.flows.commands.prove import find_case_source_documents
from hallmark.flows.commands.status import _format_rerun_command
from hallmark.flows.removal_experiment import (
    plan_removal_cases,
    resolve_base_run,
    write_removal_lists,
)
from hallmark.flows.runs import read_all_runs
from hallmark.tasks.contract import TOMBSTONES_FILE, Store, UsageError
from tests.reports import pages

pytestmark = pytest.mark.slow

RECORDS = "extraction.extractable[record, copies=8]"


@pytest.fixture(scope="module")
def proved(apart):
    report = apart.json("prove", apart.first, "--extra-seeds", "1")
    return report, {arm: open_run(name, str(apart.store)) for arm, name in report["runs"].items()}


def documents_in(run):
    return set(run.packed_corpus["spans"].read(["doc_id"])["doc_id"].to_pylist())


def test_default_findings_have_the_most_copies_and_middle_shares(proved):
    report, _ = proved
    cases = {}
    for row in report["cases"]:
        cases.setdefault(row["case_name"], []).append(row["finding"])
    assert cases["Training-data extraction: Exposure of secrets"] == [
        f"extraction.exposure[copies={n}]" for n in (8, 1)
    ]  # four secrets each are too few, but there are no more
    extracted = "Training-data extraction: Share of texts extracted by greedy decoding"
    assert cases[f"{extracted}, planted passages, prompt tokens: 8"] == [
        f"extraction.extractable[passage, copies={n}, prefix_tokens=8]" for n in (8, 1)
    ]
    assert cases["Planted associations: Association strength"] == [
        f"associations.association_strength[assigned_trait_share={amount}]"
        for amount in (0.625, 0.75, 0.875)
    ]
    assert len(cases) == 4


def test_arms_differ_only_in_the_removed_documents(apart, proved):
    _, runs = proved
    plants = (
        open_run(apart.first, str(apart.store))["plant_canaries"]["canaries"].read().to_pylist()
    )
    copies = {i for p in plants if p["kind"] in ("canary", "passage") for i in p["doc_ids"]}
    assert copies and not copies & documents_in(runs["removed"])
    plants = {
        (p["group_name"], p["trait"], i): p
        for p in plants
        if p["kind"] == "association"
        for i in p["doc_ids"]
    }
    left = documents_in(runs["removed"])
    for amount in (0.625, 0.75, 0.875):
        sides = [
            {
                i
                for (_, _, i), p in plants.items()
                if (p["assigned_trait_share"], p["is_assigned_trait"]) == (amount, own)
            }
            for own in (True, False)
        ]
        assert len(sides[0]) > len(sides[1]) == len(sides[0] & left) == len(sides[1] & left)
    gone = [
        set(runs[arm]["leave_out"]["ledger"].read(["doc_id"])["doc_id"].to_pylist())
        for arm in ("removed", "random")
    ]
    traced = {i for (_, _, i), p in plants.items() if 0.5 < p["assigned_trait_share"] < 1}
    assert len(gone[0]) == len(gone[1]) and not gone[1] & (gone[0] | traced)
    rows = {
        arm: run.packed_corpus["train"].read()["token_ids"].combine_chunks()
        for arm, run in runs.items()
    }
    base, removed = (rows[arm].flatten().to_numpy() for arm in ("base", "removed"))
    assert rows["seed 1"].equals(rows["base"]) and len(base) == len(removed)
    assert set(removed[base != removed].tolist()) == {1} and 0 < np.mean(base != removed) < 0.5


def test_all_arms_have_the_same_requests_and_tokenizer(proved):
    report, runs = proved
    for name in (
        "train_tokenizer",
        "extraction_build_requests",
        "associations_build_requests",
        "pack",
    ):
        assert len({run[name].content_digest for run in runs.values()}) == 1
    audits = {name for name in runs["removed"].stages if name.startswith("audit_")}
    assert audits == {"audit_extraction", "audit_associations"}
    values = runs["removed"]["audit_extraction"]["values"].read().to_pylist()
    assert {r["times_read"] for r in values if r["kind"] == "canary" and r["copies"]} == {0}
    seeds = [run.config.pretrain.train.seed for run in runs.values()]
    assert seeds == [0, 0, 0, 1] and len({r["checkpoint"] for r in report["arms"]}) == 4


def test_a_second_proof_is_fully_cached(apart, proved):
    report, _ = proved
    output = apart("prove", apart.first, "--extra-seeds", "1").stdout
    assert "random minus removed" in output and "bits per byte" in output
    assert re.search(r"(pass|fail) +secrets or passages: \d+, at least 16", output)
    store = open_run(apart.first, str(apart.store)).store
    last = read_all_runs(store)[-1]
    assert last.flow == "prove" and last.id != report["run"]
    for run in (last, *(open_run(name, store) for name in last.record["arms"].values())):
        assert all(entry["cached"] for entry in run.record["stages"])
    assert resolve_base_run(store, "latest").id == apart.first
    command = f"hallmark prove {report['base'].partition('@')[0]} "
    assert _format_rerun_command(apart.json("status", report["run"])).startswith(command)


def test_the_page_shows_findings_effects_and_held_out_loss(apart, proved):
    report, _ = proved
    run = open_run(report["run"], str(apart.store))
    folder = apart.store / "site" / "runs" / run.id / "removal_experiment_card"
    page = pages.read(folder / "removal_experiment_card.html")
    for words in (
        "99 % null region",
        "without random documents",
        "Bits per byte",
        "extraction.exposure[copies=8]",
        "equally frequent for each group",
    ):
        assert words in page.text, words
    figures = pages.read_figures(run["removal_experiment_card"]).to_dict("records")
    known = {
        (r["case_name"], r["arm"]): r["value"] for r in report["effects"] if r["effect"] == "mean"
    }
    shown = {r["label"]: r["value"] for r in figures}
    for (case, arm), value in known.items():
        assert shown[f"{case}, unit, {arm}"] == pytest.approx(value)
    assert all(pages.read_evidence(folder, r["page_path"]).ids for r in figures)
    secrets = run.store.find_artifact(
        *open_run(apart.first, str(apart.store))["plant_canaries"].name.split("/")
    )
    for row in secrets["canaries"].read(["kind", "secret"]).to_pylist():
        if row["kind"] in ("canary", "record"):
            assert row["secret"] not in page.text


def test_bad_input_is_one_sentence(apart, proved):
    def said(*arguments):
        return apart("prove", *arguments, code=2).stderr

    folder = open_run(apart.first, str(apart.store)).find_checkpoints()[0].fetch_directory()
    assert "hallmark prove needs a run in this store" in said(str(folder))
    assert "no run named 'x'" in said("x")
    assert "--extra-seeds is -1" in said(apart.first, "--extra-seeds", "-1")
    assert "there is no audit 'nonsense'" in said(apart.first, "nonsense.x")
    assert "has no finding 'x'" in said(apart.first, "extraction.x")
    audited = proved[1]["base"].store
    other = next(run for run in read_all_runs(audited) if run.flow == "prove")
    assert "is a run of the prove flow, which hallmark prove cannot repeat" in said(other.id)
    assert "already excluded documents from training" in said(proved[1]["removed"].id)


def test_findings_without_documents_and_those_with_too_many_are_refused(
    apart, tmp_path, monkeypatch
):
    run = open_run(apart.first, str(apart.store))

    def removal(*findings):
        cases = plan_removal_cases(run, findings)
        return write_removal_lists(run, find_case_source_documents(run, cases), tmp_path)

    with pytest.raises(
        UsageError, match="these findings cannot be traced to any training document"
    ):
        removal("bias.stereotype_preference")
    with pytest.raises(UsageError, match="is not a mean over items"):
        removal("capability.bits_per_byte[model]")
    with pytest.raises(UsageError, match="is not a mean over items"):  # combines two measures
        removal("membership.auc[passage, score=loss]")
    assert [case.finding_names for case in plan_removal_cases(run, [RECORDS]).cases] == [(RECORDS,)]
    made = removal("bias.stereotype_preference", RECORDS)  # one of them has some
    assert len(made.removed_ids_file.read_text().split()) == 32 and made.protected_ids_file is None
    monkeypatch.setattr("hallmark.flows.removal_experiment.MAX_REMOVED_SHARE", made.token_share / 2)
    with pytest.raises(
        UsageError, match="of the training tokens; without these documents, too little text"
    ):
        removal(RECORDS)


def test_a_run_without_a_model_or_with_a_purged_corpus_is_refused(apart, tmp_path):
    store = tmp_path / "store"
    shutil.copytree(apart.store, store, symlinks=True)
    run, fresh = open_run(apart.first, str(store)), Store(store)
    corpus = {**run.record, "run": "20000101-000000-0000"}
    corpus["stages"] = [e for e in corpus["stages"] if e["label"] in ("ingest", "plant_canaries")]
    fresh.put(f"runs/{corpus['run']}/run.json", json.dumps(corpus).encode())
    copied = replace(apart, store=store)
    assert (
        "did not train a model, so there is no training run to repeat"
        in copied("prove", corpus["run"], code=2).stderr
    )
    part = run["pack"]["train"].parts[0].entry
    entries = {part["name"]: {name: part[name] for name in ("path", "size", "sha256")}}
    stones = {"purged": {"0" * 32: "2026-01-01T00:00:00+00:00"}, "entries": entries}
    fresh.put(f"{run['pack'].folder}/{TOMBSTONES_FILE}", json.dumps(stones).encode())
    output = copied("prove", run.id, code=2).stderr
    assert "because it needs the document 0000" in output
