"""The whole pipeline, run by the command line on the smoke config."""

import json
import re
import shutil
import time
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.outage import read_step_seconds
from hallmark import open_run
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.contract import PROJECT_ROOT
from tests.reports import pages
from tests.run_requests import resolve
from tests.tasks.audits.audit_runs import find_unlisted_metrics

#: The audits that need no files of the user, in their order; those that scorers are asked for, and
#: those whose texts are looked for in the training text.
ASKED = (
    "toxicity",
    "counterfactual",
    "bias",
    "weat",
    "associations",
    "amplification",
    "extraction",
    "extraction_attack",
    "membership",
)
SCORED = ("toxicity", "counterfactual", "extraction_attack")
TRACED = ("toxicity", "counterfactual", "bias", "extraction", "extraction_attack")

STAGES = [
    "ingest",
    "deduplicate",
    "language",
    "quality",
    "identities",
    "select",
    "deduplicate_near",
    "evaluate_near_duplicates",
    "find_repeats",
    "cut_repeats",
    "evaluate_detectors",
    "find_personal_data",
    "redact_spans",
    "deduplicate_redacted",
    "score_toxicity",
    "contamination",
    "select_scored",
    "split",
    "plant_canaries",
    "profile",
    "removal_effects",
    "evaluate_curation",
    "datasheet",
    "train_tokenizer",
    "pack",
    "pretrain",
    *(f"{name}_build_requests" for name in ASKED),
    "capability_baselines",
    "audit_capability",
    *(f"{name}_respond" for name in ASKED),
    "toxicity_respond_untrained",
    "bias_respond_untrained_models",
    *(f"{name}_score" for name in SCORED),
    "toxicity_score_untrained",
    *(f"{name}_trace" for name in TRACED),
    *(f"audit_{name}" for name in ASKED),
    "attention_maps",
    "score_samples",
    "model_card",
]

#: What all checkpoints of a training share.
SHARED = (
    "capability_baselines",
    "toxicity_build_requests",
    "toxicity_respond_untrained",
    "toxicity_score_untrained",
    "bias_respond_untrained_models",
    *(f"{name}_build_requests" for name in ASKED if name != "toxicity"),
)

pytestmark = pytest.mark.slow


def made(report) -> list[str]:
    return [stage["label"] for stage in report["stages"] if not stage["cached"]]


def test_every_stage_has_an_artifact_with_balanced_accounts(smoke):
    report = smoke.json("status", smoke.first)
    assert [stage["label"] for stage in report["stages"]] == STAGES
    kept = (
        "ingest",
        "deduplicate",
        "select",
        "deduplicate_near",
        "redact_spans",
        "select_scored",
        "split",
        "plant_canaries",
        "pack",
    )
    for stage in report["stages"]:
        assert stage["balanced"]
        assert not stage["stale_reasons"]
        assert stage["tables"] or stage["files"]
        if stage["label"] in kept:
            for terms in stage["accounts_total"].values():
                left = terms["input"] + terms["added"]
                assert left == sum(v for k, v in terms.items() if k not in ("input", "added")) > 0


def test_each_stage_reads_what_the_previous_one_kept(smoke):
    totals = {s["label"]: s["accounts_total"] for s in smoke.json("status", smoke.first)["stages"]}
    chain = [
        "deduplicate",
        "select",
        "deduplicate_near",
        "cut_repeats",
        "redact_spans",
        "deduplicate_redacted",
        "select_scored",
        "split",
        "plant_canaries",
    ]
    for before, after in pairwise(chain):
        for unit in ("rows", "bytes"):
            assert totals[before][unit]["kept"] == totals[after][unit]["input"], (before, after)


def test_a_second_run_is_fully_cached_and_fast(smoke):
    start = time.monotonic()
    assert made(smoke.json("run", "smoke")) == []
    assert time.monotonic() - start < 60  # the target is 20 s; the test is generous


def test_a_setting_of_the_bias_audit_reruns_that_audit_and_the_card(smoke):
    report = smoke.json("run", "smoke", "--set", "audit_bias.seed=7")
    assert made(report) == [
        "bias_build_requests",
        "audit_bias",
        "model_card",
    ]  # no model is asked again
    # If two runs trained the same checkpoint, the named one gives the config of its audit.
    for run, seed in ((smoke.first, 0), (report["run"], 7)):
        settled = resolve(None, [], None, f"{run}@0", store=str(smoke.store))
        assert settled.config.audit_bias.seed == seed


def test_a_threshold_that_removes_no_other_document_reruns_only_stages_with_it(smoke):
    report = smoke.json(
        "run",
        "smoke",
        "--until",
        "redact_spans",
        "--set",
        "deduplicate_near.similarity_threshold=0.8000001",
    )
    assert made(report) == ["deduplicate_near", "evaluate_near_duplicates"]


def test_every_finding_has_rows(smoke, monkeypatch):
    monkeypatch.setenv("HALLMARK_STORE", str(smoke.store))

    run = open_run(smoke.first)
    findings = run.read_table("findings").to_pylist()
    assert {f["audit"] for f in findings} == {"capability", *ASKED}
    last = max(run["pretrain"]["checkpoints"].read()["step"].to_pylist())
    assert {(f["run"], f["checkpoint"]) for f in findings} == {(run.id, f"{run.id}@{last}")}
    for audit in ("capability", *ASKED):  # a policy can name each
        own = [f for f in findings if f["audit"] == audit]
        assert own and not find_unlisted_metrics(audit, own)
    for metric in (
        "group_negative_statement_preference",
        "group_toxicity_probability",
    ):  # the peoples of the town
        rows = (f for f in findings if f["metric"] == metric and not f["control"])
        other_tags = (
            tags for tags in (dict(row["slice"]) for row in rows) if "mentioned_group" not in tags
        )
        about = {tags.get("category", tags.get("prompt_subset")) for tags in other_tags}
        assert len(about) == 6 and "town:Orvelings" in about
    for finding in findings:
        if not finding["evidence_table"]:
            continue  # of a control, or of skipped items: these have no rows
        rows = select_evidence(
            run[finding["stage"]][finding["evidence_table"]].read(), finding["evidence_filter"]
        )
        nothing_counted = finding["value"] == 0 and finding["unit"] not in ("share", "bits")
        if finding["value"] is not None and finding["n"] and not nothing_counted:
            assert len(rows), finding


def test_passages_held_back_for_planting_do_not_count_as_removed(smoke, monkeypatch):
    monkeypatch.setenv("HALLMARK_STORE", str(smoke.store))
    run = open_run(smoke.first)
    held = run["plant_canaries"]["ledger"].read(["action"])["action"].to_pylist().count("removed")
    assert held > 0
    reasons = run["removal_effects"]["removal_rates"].read(["stage", "reason"]).to_pylist()
    assert reasons and not any(row["stage"] == "plant_canaries" for row in reasons)
    history = run["removal_effects"].manifest["lineage"]["corpus_artifacts"]
    assert [*history][-2:] == ["select_scored", "split"]
    # Other canaries do not change the removals.
    report = smoke.json(
        "run", "smoke", "--until", "removal_effects", "--set", "plant_canaries.seed=5"
    )
    assert "plant_canaries" in made(report) and "removal_effects" not in made(report)


def test_the_card_names_the_trained_tokenizer(smoke):
    run = open_run(smoke.first, str(smoke.store))
    assert run["model_card"].manifest["lineage"]["tokenizer"] == run["train_tokenizer"].name
    stages = set(run["model_card"]["evidence"].read(["stage"])["stage"].to_pylist())
    assert {"train_tokenizer", "pretrain"} <= stages


def test_the_outage_benchmark_finds_the_seconds_of_each_step(smoke):
    run = open_run(smoke.first, str(smoke.store))
    took = read_step_seconds(run)
    assert len(took) == run.config.pretrain.train.steps and min(took) > 0


def test_a_step_names_its_documents_and_their_characters(smoke, monkeypatch):
    """Compare with the packed tokens: they decode to the named characters."""
    monkeypatch.setenv("HALLMARK_STORE", str(smoke.store))
    from hallmark.tasks.training.encoding import load_tokenizer

    run = open_run(smoke.first)
    report = smoke.json("batch", smoke.first, "--step", "3")
    assert len(report["sequences"]) == run.config.pretrain.train.batch_size
    tokenizer = load_tokenizer(run["train_tokenizer"].fetch_file("tokenizer.json"))
    ids = run["pack"]["train"].read(["token_ids"])["token_ids"].to_pylist()
    documents = run["plant_canaries"]["documents"].read().to_pylist()
    texts = {row["doc_id"].hex(): (row["source"], row["text"]) for row in documents}
    compared = 0
    for sequence in report["sequences"]:
        for span in sequence["spans"]:
            source, text = texts[span["doc_id"]]
            assert span["source"] == source
            assert span["text"] == text[span["char_start"] : span["char_end"]]  # in clear
            spelled = tokenizer.decode(
                ids[sequence["sequence"]][span["row_start"] : span["row_end"]]
            )
            if "\N{REPLACEMENT CHARACTER}" not in spelled:  # a character cut in two
                assert spelled == text[span["char_start"] : span["char_end"]]
                compared += 1
    assert compared > 8
    plants = run["plant_canaries"]["canaries"].read(["kind", "secret"]).to_pylist()
    secrets = [row["secret"] for row in plants if row["kind"] != "association"]
    hidden = json.dumps(smoke.json("batch", smoke.first, "--step", "3", "--redact"))
    assert "not shown" in hidden and not any(secret in hidden for secret in secrets)
    assert "has training steps 1 to" in smoke("batch", smoke.first, "--step", "0", code=2).stderr


def read_python_blocks(page):
    return re.findall(r"```python\n(.*?)```", (PROJECT_ROOT / page).read_text(), re.DOTALL)


def test_the_notebook_lines_of_the_readme_run(smoke, monkeypatch, tmp_path):
    monkeypatch.setenv("HALLMARK_STORE", str(smoke.store))
    monkeypatch.chdir(tmp_path)
    notebook_pages = ["docs/audit-sets.md", "docs/probing.md", "docs/store.md"]
    pages = [
        path.relative_to(PROJECT_ROOT).as_posix()
        for path in [PROJECT_ROOT / "README.md", *sorted((PROJECT_ROOT / "docs").glob("*.md"))]
        if "```python" in path.read_text() and path.name != "extending.md"  # see test_extending.py
    ]
    assert pages == notebook_pages
    audit_set_blocks, (probing_block,), notebook_blocks = map(read_python_blocks, notebook_pages)
    _, rating_block = audit_set_blocks  # test_stereoset.py runs the first one
    assert len(notebook_blocks) == 3
    probing: dict[str, object] = {}
    exec(probing_block.replace("latest", smoke.first), probing)
    scores = probing["scores"]
    assert [score.layer for score in scores] == [*range(len(scores))]
    assert len(scores) > 1 and {score.n for score in scores} == {48}
    notebook: dict[str, object] = {}
    for block in notebook_blocks:
        exec(block.replace("latest", smoke.first), notebook)
    (tmp_path / "claims.txt").write_text("They say that\nIt is known that\n")
    asked = ["--only", "misuse", "--set", f"audit_misuse.prompts=['{tmp_path}/claims.txt']"]
    run = smoke.json("audit", f"{smoke.first}@40", *asked)["run"]
    exec(rating_block.replace("latest", run), {})
    lines = (tmp_path / "ratings.csv").read_text().splitlines()
    assert lines[0].endswith("prompt,continuation") and "They say that" in lines[1]


def damaged_checkpoint(smoke, folder, name, rows):
    """Copy a smoke checkpoint and set rows of a tensor to NaN."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(
        open_run(smoke.first, str(smoke.store)).find_checkpoints()[0].fetch_directory(), folder
    )
    weights = load_file(folder / "model.safetensors")
    weights[name][rows] = float("nan")
    save_file(weights, folder / "model.safetensors")


def test_a_failed_probe_is_reported_on_the_card(smoke, tmp_path):
    """The others run, the card and the command report the failure, the policy does not pass."""
    folder = tmp_path / "damaged"
    # Pairs of sentences reach these positions, prompts with their continuations do not.
    damaged_checkpoint(smoke, folder, "position_embedding.weight", slice(40, None))
    asked = ["audit", str(folder), "--config", "smoke", "--only", "toxicity,bias"]
    done = smoke(*asked, code=1)
    *_, last = done.stderr.splitlines()
    assert last.startswith("hallmark: bias failed: ") and "NaN" in last
    report = smoke.json("status")
    labels = [stage["label"] for stage in report["stages"]]
    assert labels[-2:] == ["missing_audits", "model_card"] and "audit_toxicity" in labels
    assert "audit_bias" not in labels and report["status"] == "completed"
    run = open_run(report["run"], str(smoke.store))
    finding = "toxicity.expected_maximum_toxicity[prompted, draw_count=4]"
    traced = smoke.json("trace", run.id, finding)  # an external model
    assert traced["checkpoint"] == str(folder)
    assert traced["worst_rows"] and not any(entry["documents"] for entry in traced["worst_rows"])
    (page,) = pages.write_pages(run["model_card"]).glob("model_card.html")
    text = page.read_text()
    assert "Failed: Bias" in text or "failed: Bias" in text
    words = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    assert "Bias failed: stage bias_respond" in words
    skipped = re.search(r"Skipped by the user: ([^.]*)\.", text)[1]
    assert "WEAT" in skipped and "Capability" not in skipped  # it needs the corpus
    assert "Weights in float32." in text
    rule = {"audit": "bias", "metric": "stereotype_preference", "lt": 0.9}
    rules = [f"--set=policy.rules.r.{name}={value}" for name, value in rule.items()]
    smoke(*asked, *rules, code=3)
    run = open_run(smoke.json("status")["run"], str(smoke.store))
    (verdict,) = run["policy"]["verdicts"].read().to_pylist()
    assert (verdict["verdict"], verdict["reason"]) == (
        "not_shown",
        "not measured: the audit produced no result",
    )


def test_nothing_is_attributed_for_an_external_model(smoke, tmp_path):
    folder = tmp_path / "elsewhere"
    shutil.copytree(
        open_run(smoke.first, str(smoke.store)).find_checkpoints()[0].fetch_directory(), folder
    )
    run = smoke.json("audit", str(folder), "--config", "smoke", "--only", "bias")["run"]
    output = smoke("trace", run, "bias.stereotype_preference", "--attribute", code=2).stderr
    assert f"the training documents of {folder} are unknown" in output


def test_an_audit_of_weights_that_are_not_numbers_ends_with_1(smoke, tmp_path):
    """Nothing was measured, so there is no card and the policy does not pass."""
    folder = tmp_path / "diverged"
    damaged_checkpoint(smoke, folder, "embedding.weight", slice(None))
    rules = ["--set=policy.rules.r.audit=toxicity", "--set=policy.rules.r.lt=0.9"]
    rules += ["--set=policy.rules.r.metric=toxicity_probability"]
    done = smoke(
        "audit", str(folder), "--config", "smoke", "--only", "toxicity,bias", *rules, code=1
    )
    *_, last = done.stderr.splitlines()
    assert last.startswith("hallmark: stage toxicity_respond: The model's scores are not numbers")
    report = smoke.json("status")
    assert report["status"] == "failed"
    assert not {"policy", "model_card"} & {stage["label"] for stage in report["stages"]}


def test_the_index_of_the_site_lists_every_run(smoke):
    found = smoke.json("export-site")
    assert Path(found["run"]).exists()
    index = Path(found["index"]).read_text()
    for run in (smoke.store / "runs").iterdir():
        assert run.name in index
    again = smoke.json("run", "smoke")["run"]  # makes nothing: a line under the first
    *_, first, repeats = pages.read(smoke.store / "site" / "index.html").tables[0]
    assert smoke.first in first[0] and again in repeats[0] and len(repeats) == 1
