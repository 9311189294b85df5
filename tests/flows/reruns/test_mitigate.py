"""`hallmark mitigate` trains without the documents of findings, and a control."""

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from hallmark import open_run
from hallmark.flows.checkpoint_comparison import CheckpointAudits
from hallmark.flows.checkpoint_resolution import ResolvedCheckpoint
from hallmark.flows.commands.mitigate import mitigate, render_mitigation
from hallmark.flows.config import load_config
from hallmark.flows.mitigation import (
    build_arm_overrides,
    find_source_document_ids,
    write_document_id_list,
)
from hallmark.flows.runs import Run
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import Store, UsageError
from tests.reports import pages

pytestmark = pytest.mark.slow

FINDING = "extraction.extractable[record, copies=8]"


@pytest.fixture(scope="module")
def mitigated(apart):
    report = apart.json(
        "mitigate",
        apart.first,
        FINDING,
        "--from-scratch",
        "--steps",
        "20",
        "--set",
        "pretrain.train.warmup_steps=2",
    )
    return report, [open_run(s["run"], str(apart.store)) for s in report["checkpoints"]]


def test_the_documents_of_a_finding_and_as_many_random_ones_are_removed(apart, mitigated):
    report, (control, without) = mitigated
    plants = (
        open_run(apart.first, str(apart.store))["plant_canaries"]["canaries"].read().to_pylist()
    )
    copies = {i for p in plants if (p["kind"], p["copies"]) == ("record", 8) for i in p["doc_ids"]}
    assert [arm["removed_documents"] for arm in report["arms"]] == [len(copies)] * 2 and copies
    ids = Path(report["documents_file"]).read_text().split()
    assert {bytes.fromhex(i) for i in ids} == copies
    packed = [
        set(r["pack"]["spans"].read(["doc_id"])["doc_id"].to_pylist()) for r in (control, without)
    ]
    assert not copies & packed[1] and len(copies & packed[0]) > len(copies) / 2
    gone = set(control["leave_out"]["ledger"].read(["doc_id"])["doc_id"].to_pylist())
    assert not gone & copies and not gone & packed[0]


def test_both_arms_have_the_same_requests_and_tokenizer(mitigated):
    report, runs = mitigated
    for label in (
        "train_tokenizer",
        "extraction_build_requests",
        "bias_build_requests",
        "toxicity_build_requests",
    ):
        assert len({run[label].content_digest for run in runs}) == 1
    assert report["incomparable"] == {}
    rows = {(r["metric"], name_slice(r["slice"])): r for r in report["rows"]}
    assert rows["extractable", "record, copies=8"]["differences"][0]["n"] == 4
    priced = {(row["kind"], row["name"]) for row in report["heldout_loss"]}
    assert ("all", "all") in priced and len(priced) > 3
    bytes_of = {(row["kind"], row["name"]): row["bytes"] for row in report["heldout_loss"]}
    assert sum(n for (kind, _), n in bytes_of.items() if kind == "source") == bytes_of["all", "all"]
    # The answer is last, after the comparison.
    *_, answer = render_mitigation(report).split("\n\n")
    assert (
        FINDING in answer
        and "treatment minus control: " in answer
        and "removal cost in bits per byte" in answer
    )
    assert f"findings were traced are listed in {report['documents_file']}" in answer
    pages_of_arms = [Path(arm["page"]) for arm in report["arms"]]
    assert [page.parent.name for page in pages_of_arms] == [run.id for run in runs]
    assert all(page.exists() and str(page) in answer for page in pages_of_arms)
    # Paired over the same held-out documents.
    (change,) = rows["bits_per_byte", "model"]["differences"]
    assert change["low"] < change["value"] < change["high"] and change["n"] > 10
    # Removed documents were not read, so their copies count as never read.
    values = runs[1]["audit_extraction"]["values"].read().to_pylist()
    read = {r["times_read"] for r in values if (r["kind"], r["copies"]) == ("record", 8)}
    assert read == {0}


def test_the_arms_are_not_the_latest_run(apart, mitigated):
    _, runs = mitigated
    assert [run.experiment_arm for run in runs] == [
        "control arm of mitigate",
        "treatment arm of mitigate",
    ]
    latest = open_run("latest", str(apart.store))
    assert latest.experiment_arm is None and latest.id not in {run.id for run in runs}


def test_a_dry_run_lists_the_documents_and_writes_nothing(apart, mitigated):
    _, (_, without) = mitigated
    before = sorted(apart.store.rglob("*"))
    arguments = ("mitigate", apart.first, FINDING, "--steps", "20", "--dry-run")
    dry_run = apart.json(*arguments)
    removed = without["leave_out"]["ledger"].read(["doc_id"])["doc_id"].to_pylist()
    assert [row["doc_id"] for row in dry_run["documents"]] == sorted(i.hex() for i in removed)
    trained_steps = open_run(apart.first, str(apart.store)).config.pretrain.train.steps
    longer = apart.json(*arguments[:3], "--steps", str(10 * trained_steps), "--dry-run")
    training, more_training = (r["seconds_per_arm"]["training"] for r in (dry_run, longer))
    assert more_training == pytest.approx(training * 10 * trained_steps / 20)
    assert dry_run["seconds_per_arm"]["audits"] > 0
    output = apart(*arguments).stdout
    assert all(row["doc_id"] in output for row in dry_run["documents"])
    assert "estimated time: about" in output
    wrong = apart("mitigate", apart.first, FINDING, "--steps", "0", "--dry-run", code=2).stderr
    assert "steps must be between 1" in wrong
    toxic = apart.json("mitigate", apart.first, "--toxicity-threshold", "0", "--dry-run")
    assert len(toxic["documents"]) > len(dry_run["documents"])
    assert sorted(apart.store.rglob("*")) == before


def test_cards_name_the_removed_documents(mitigated):
    _, (control, without) = mitigated
    for run, why in ((control, "at random, as a control"), (without, "excluded from training.")):
        page = pages.read_whole_card(pages.write_pages(run["model_card"]) / "model_card.html")
        assert "Excluded from training" in page.text and why in page.text


def test_a_checkpoint_of_an_arm_knows_its_whole_corpus(apart, mitigated):
    _, (_, without) = mitigated
    report = apart.json("audit", f"{without.id}@0", "--only", "extraction")
    run = open_run(report["run"], str(apart.store))
    page = pages.read_whole_card(pages.write_pages(run["model_card"]) / "model_card.html")
    assert "Excluded from training" in page.text
    assert (
        run["extraction_build_requests"].content_digest
        == without["extraction_build_requests"].content_digest
    )


def test_bad_input_is_one_sentence(apart, tmp_path):
    assert "nothing to remove" in apart("mitigate", apart.first, code=2).stderr
    few = apart("mitigate", apart.first, FINDING, "--rows", "0", code=2).stderr
    assert "--rows is 0" in few
    none = apart("mitigate", apart.first, FINDING, "--steps", "0", code=2).stderr
    assert "steps must be between 1" in none
    assert "has no finding 'x'" in apart("mitigate", apart.first, "bias.x", code=2).stderr
    output = apart("mitigate", apart.first, "bias.stereotype_preference", code=2).stderr
    assert "bias.stereotype_preference cannot be traced to any training document" in output
    folder = open_run(apart.first, str(apart.store)).find_checkpoints()[0].fetch_directory()
    elsewhere = tmp_path / "model"
    elsewhere.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (elsewhere / name).write_bytes((folder / name).read_bytes())
    output = apart("mitigate", str(elsewhere), "--toxicity-threshold", "0.5", code=2).stderr
    assert f"the training documents of {elsewhere} are not in the store, so none" in output
    threshold = "--set=leave_out.toxicity_threshold=0.5"
    assert (
        "leave_out and earlier_run cannot be combined"
        in apart("run", "smoke", "--set=earlier_run=latest", threshold, code=2).stderr
    )


def test_documents_excluded_before_stay_excluded(apart, mitigated):
    _, (_, without) = mitigated
    store, last = str(apart.store), without.find_checkpoints()[-1].name
    one = find_source_document_ids(
        without.store, last, ["extraction.extractable[record, copies=1]"], 100
    )
    before = without["leave_out"]["ledger"].read(["doc_id"])["doc_id"].to_pylist()
    assert {*before} < {*one} and open_run(without.id, store)


def test_arms_read_relative_paths_from_the_folder_of_the_run_and_write_to_the_same_store(
    tmp_path, monkeypatch
):
    """The store may be a relative path, too."""
    (folder := tmp_path / "of the run").mkdir()
    monkeypatch.chdir(tmp_path)
    place = Store("store")
    run = Run(
        place, {"config": load_config("smoke").model_dump(mode="json"), "folder": str(folder)}
    )
    begun = []
    for name, stub in {
        "resolve_trained_checkpoint": lambda *_: ResolvedCheckpoint(None, source_run=run),
        "start_prefect_and_progress": lambda check: nullcontext(check()),
        "run_request": lambda request: begun.append((os.getcwd(), request.store)),
        "build_mitigation_report": lambda *_: {},
        "print_result": lambda *_: None,
    }.items():
        monkeypatch.setattr(f"hallmark.flows.commands.mitigate.{name}", stub)
    mitigate("x", toxicity_threshold=0.5, from_scratch=True, store="store")
    assert begun == [(str(folder), str(tmp_path / "store"))] * 2


def test_latest_means_the_run_before_the_arms(tmp_path, monkeypatch):
    run = Run(
        Store(tmp_path),
        {"config": load_config("smoke").model_dump(mode="json"), "folder": str(tmp_path)},
    )
    trained = ["first"]
    for name, stub in {
        "open_store": lambda *_, **more: Store(tmp_path),
        "resolve_trained_checkpoint": lambda *_: SimpleNamespace(source_run=run, name="first@60"),
        "find_checkpoint_audits": lambda *_: trained[-1],
        "start_prefect_and_progress": lambda check: nullcontext(),
        "run_request": lambda request: trained.append("an arm"),
        "build_mitigation_report": lambda runs, start, findings: {"start": start},
        "print_result": lambda found, *_: shown.append(found["start"]),
    }.items():
        monkeypatch.setattr(f"hallmark.flows.commands.mitigate.{name}", stub)
    shown = []
    mitigate("latest", toxicity_threshold=0.5)
    assert shown == ["first"] and trained == ["first", "an arm", "an arm"]


def test_a_finding_is_that_of_the_newest_run_with_its_audit(monkeypatch):
    newest, older = (SimpleNamespace(stages={f"audit_{a}": {}}) for a in ("weat", "bias"))
    asked = []
    monkeypatch.setattr(
        "hallmark.flows.mitigation.find_checkpoint_audits",
        lambda *_: CheckpointAudits("x", newest, [older]),
    )
    monkeypatch.setattr(
        "hallmark.flows.mitigation.resolve_trained_checkpoint",
        lambda *_: SimpleNamespace(corpus=SimpleNamespace(latest={})),
    )
    monkeypatch.setattr(
        "hallmark.flows.mitigation.find_finding_document_ids",
        lambda run, *_: asked.append(run) or set(),
    )
    with pytest.raises(UsageError, match="cannot be traced to any training document"):
        find_source_document_ids(
            None, "x", ["bias.stereotype_preference[a.b]", "weat.effect", "bold.such"], 5
        )
    assert asked == [older, newest, newest]


def test_any_path_may_name_the_list(tmp_path):
    path = write_document_id_list([b"a" * 16], tmp_path / 'a "quoted" \\ folder')
    config = load_config("smoke", build_arm_overrides("control", path, 0.5, 7))
    assert config.leave_out.doc_ids_file == path and config.leave_out.random_control
    assert (config.leave_out.toxicity_threshold, config.pretrain.train.steps) == (0.5, 7)


def test_a_list_is_named_by_its_content(tmp_path):
    one = write_document_id_list([b"a" * 16], tmp_path / "x")
    assert (
        one
        == write_document_id_list([b"a" * 16], tmp_path / "x")
        != write_document_id_list([b"b" * 16], tmp_path)
    )
    assert one.read_text() == f"{(b'a' * 16).hex()}\n"
