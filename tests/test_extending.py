"""The snippets of docs/extending.md work in a copy of the project, with no other change."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from hallmark.flows.flow_registry import register_all_stages
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import PROJECT_ROOT, STAGES
from hallmark.tasks.contract.code_digests import PROJECT_PACKAGES
from hallmark.tasks.contract.fingerprint import compute_fingerprint
from tests.tasks.audits.conftest import make_own

SNIPPET = re.compile(r"^```python\n# (\S+\.py)(?:, in (\w+))?\n(.*?)^```", re.DOTALL | re.MULTILINE)

#: Run in the copy. It prints what a user would see, as JSON.
SCRIPT = """
import json, sys
from pathlib import Path

from hallmark.flows.config import load_config
from hallmark.flows.flow_registry import register_all_stages
from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.run_comparison import ComparedRun, compare_runs, render_comparison_page
from hallmark.reports.sections.checkpoint_comparison import TrainingCheckpoint
from hallmark.tasks.audits.audit_descriptions import AuditDescription
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS, compute_descriptions_digest
from hallmark.tasks.contract import (
    PROJECT_ROOT, STAGES, Session, Store, folder_to_artifact, open_session,
)
from hallmark.tasks.corpus.ingest import ingest
from tests.tasks.audits.audit_runs import run_audit_stages
from tests.test_extending import compute_stage_digests
from tests.reports import artifacts, pages

work, checkpoint, other_checkpoint = map(Path, sys.argv[1:])
source = {"kind": "letters", "name": "letters", "path": str(work / "letters")}
config = load_config({"name": "x", "ingest": {"sources": [source]}})
with open_session(Session(Store(work / "store"))):
    raw = ingest(config.ingest)
    history = artifacts.curated(raw)
    profile = artifacts.profiled(history)
    sheet = build_datasheet(profile, history, DatasheetConfig())
    *_, audit, (_, findings) = run_audit_stages("agreement", checkpoint, config.audit_agreement)
    card = pages.card_of(folder_to_artifact(checkpoint, "checkpoint"), {"agreement": audit})
    *_, other, _ = run_audit_stages("agreement", other_checkpoint, config.audit_agreement)
    sides = [
        ComparedRun(name, name, {}, TrainingCheckpoint(0, {name: {"audit_agreement": artifact}}))
        for name, artifact in (("before", audit), ("after", other))
    ]
    comparison = render_comparison_page(compare_runs(*sides))
json.dump(
    {
        "root": str(PROJECT_ROOT),
        "digests": compute_stage_digests(),
        "descriptions": compute_descriptions_digest(None, ""),
        "audits": list(AUDIT_DESCRIPTIONS),
        "metadata": raw["documents"].read(["text", "metadata"]).to_pylist(),
        "errors": raw["errors"].read().to_pylist(),
        "sources": profile["sources"].read().to_pylist(),
        "composition": profile["composition"].read().to_pylist(),
        "tables": pages.read_whole_card(pages.write_pages(sheet) / "datasheet.html").tables,
        "findings": findings.drop_columns("finding").to_pylist(),
        "card_links": pages.read(pages.write_pages(card) / "model_card.html").links,
        "audit_page": pages.read(pages.write_pages(card) / "audit-agreement.html").text,
        "comparison": comparison,
    },
    sys.stdout,
)
"""


def compute_stage_digests():
    """Return the digest of code and libraries of each stage of the project."""
    register_all_stages()
    return {
        name: compute_fingerprint(
            {"code": stage.compute_code_digests(), "libraries": stage.read_library_versions()}
        )
        for name, stage in STAGES.items()
        if stage.body.__module__.startswith("hallmark.")
    }


def copy_project(folder):
    """Copy the packages of the project to where an installation has them."""
    unread = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT_ROOT / "hallmark", folder / "hallmark", ignore=unread)
    for package in PROJECT_PACKAGES:
        shutil.copytree(PROJECT_ROOT / package, folder / "hallmark" / package, ignore=unread)


def plant_snippets(folder):
    """Write the snippets to their files, or into the containers that they name."""
    page = (PROJECT_ROOT / "docs/extending.md").read_text(encoding="utf-8")
    for name, container, code in SNIPPET.findall(page):
        path = folder / name
        if not container:
            assert not path.exists()
            path.write_text(code, encoding="utf-8")
            continue
        text = path.read_text(encoding="utf-8")
        (opening,) = re.findall(rf"^{container}(?:: .*)? = [({{]\n", text, re.MULTILINE)
        entry = textwrap.indent(code.rstrip().rstrip(",") + ",\n", "    ")
        edited = text.replace(opening, opening + entry, 1)
        path.write_text(edited, encoding="utf-8")
    return [name for name, _, _ in SNIPPET.findall(page)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy")
    copy_project(folder)
    planted = plant_snippets(folder / "hallmark")
    assert len(planted) == 4
    letters = folder / "letters"
    letters.mkdir()
    for number in range(30):
        text = f"Ann\nLetter {number} tells of boats that came home late in the evening."
        (letters / f"{number}.letter").write_text(text)
    (letters / "bad.letter").write_bytes(b"Ann\n\xff")
    checkpoint = make_own(tmp_path_factory.mktemp("checkpoint"))
    environment = os.environ | {"PYTHONPATH": str(PROJECT_ROOT)}
    other = make_own(tmp_path_factory.mktemp("other"), n_layers=1)
    command = [sys.executable, "-c", SCRIPT, str(folder), str(checkpoint), str(other)]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    report = json.loads(result.stdout.splitlines()[-1], parse_constant=lambda name: None)
    assert report["root"] == str(folder / "hallmark")
    return report


@pytest.mark.slow
def test_the_new_probe_runs_and_is_on_the_cards(seen):
    (finding,) = (f for f in seen["findings"] if f["metric"] == "right_verb_share")
    assert finding["n"] == 11 and 0 <= finding["value"] <= 1 and finding["low"] is not None
    assert [name for name in seen["audits"] if name != "agreement"] == list(AUDIT_DESCRIPTIONS)
    assert "agreement" in seen["audits"]
    assert ["audit-agreement.html", "Plural verbs"] in seen["card_links"]
    assert "Does the model prefer verbs that agree with plural nouns?" in seen["audit_page"]
    assert "Share of right verbs" in seen["audit_page"]


@pytest.mark.slow
def test_the_new_probe_is_compared_between_two_runs(seen):
    html = seen["comparison"]
    (section,) = re.findall(r'<section id="plural-verbs">.*?</section>', html, re.DOTALL)
    assert "Share of right verbs" in section and "How often the model gives the verb" in section


@pytest.mark.slow
def test_the_new_reader_reads_and_carries_metadata(seen):
    assert len(seen["metadata"]) == 30
    assert {row["text"][:6] for row in seen["metadata"]} == {"Letter"}
    assert all(row["metadata"] == [["author", "Ann"]] for row in seen["metadata"])
    assert [row["error"] for row in seen["errors"]] == ["not valid UTF-8"]
    fields = [table for table in seen["tables"] if table[0][:1] == ["field"]]
    assert ["author", "Ann"] in [row[:2] for row in fields[1]]


@pytest.mark.slow
def test_the_new_columns_are_in_the_profile_and_on_the_datasheet(seen):
    rows = [row for row in seen["sources"] if row["source"] == "letters"]
    documents, words = (sum(row[name] for row in rows) for name in ("documents", "words"))
    assert words == 12 * documents > 0
    (table,) = (t for t in seen["tables"] if t[0][:2] == ["source", "documents"])
    cells = {
        name: row[table[0].index("words")]
        for name, *_ in table[1:]
        for row in table[1:]
        if row[0] == name
    }
    assert cells["letters"].split()[0] == f"{words:,}"
    counts = {
        r["value"]: r["documents"]
        for r in seen["composition"]
        if r["dimension"] == "planted" and r["split"] == ""
    }
    assert counts["no"] == documents and counts["yes"] > 0
    shown = [row[:2] for table in seen["tables"] for row in table]
    assert ["planted", "yes"] in shown and ["planted", "no"] in shown


@pytest.mark.slow
def test_no_other_stage_is_stale(seen):
    """The reader is code of ingest, and the columns of the profile; the probe of nothing else."""
    before = compute_stage_digests()
    added = {"build_requests_agreement", "audit_agreement"}
    assert seen["digests"].keys() - before.keys() == added
    changed = {name for name, digest in before.items() if seen["digests"][name] != digest}
    assert changed == {"ingest", "profile"}


@pytest.mark.slow
def test_stages_that_show_descriptions_depend_on_them(seen):
    from hallmark.tasks.audits.registry import compute_descriptions_digest

    register_all_stages()
    showing = {
        name: stage
        for name, stage in STAGES.items()
        if stage.body.__module__.startswith("hallmark.")
        and "hallmark.tasks.audits.registry" in stage.compute_code_digests()
    }
    assert showing.keys() == {
        "compare_with_previous",
        "judge_candidates",
        "model_card",
        "policy",
        "removal_experiment_card",
        "study_card",
        "task_card",
    }
    assert {stage.external_digests for stage in showing.values()} == {compute_descriptions_digest}
    assert seen["descriptions"] != compute_descriptions_digest(None, "")
