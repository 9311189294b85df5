"""`hallmark findings`, and what `latest` means for commands that read a model or its findings."""

import json
import os
import shutil
from dataclasses import replace

import pytest

from hallmark.flows.checkpoint_comparison import (
    find_checkpoint_audits,
    list_checkpoint_names,
    open_audit_run,
)
from hallmark.flows.checkpoint_resolution import resolve_checkpoint
from hallmark.flows.commands.findings import list_findings, render_findings, sort_by_risk
from hallmark.flows.corpus_additions import resolve_addition_chain
from hallmark.flows.finding_trace import find_finding
from hallmark.flows.mitigation import resolve_trained_checkpoint
from hallmark.flows.removal_experiment import resolve_base_run
from hallmark.flows.run_request import RunRequest
from hallmark.flows.runs import Run, open_run, open_store
from hallmark.tasks.audits.judging.discoveries import read_card_findings
from hallmark.tasks.audits.judging.findings import read_findings
from hallmark.tasks.contract import UsageError

pytestmark = pytest.mark.slow


@pytest.fixture
def copied(smoke, tmp_path):
    """A store with the artifacts of the smoke run, and its record alone."""
    runs = tmp_path / "store" / "runs"
    shutil.copytree(smoke.store / "runs" / smoke.first, runs / smoke.first)
    artifacts = tmp_path / "store" / "artifacts"
    shutil.copytree(smoke.store / "artifacts", artifacts, copy_function=os.link)
    return replace(smoke, store=tmp_path / "store")


def add_run(hallmark, run_id, labels, **fields):
    """Add a newer run with some stages of the smoke run."""
    record = json.loads((hallmark.store / "runs" / hallmark.first / "run.json").read_text())
    stages = [entry for entry in record["stages"] if entry["label"] in labels]
    if "flow" in fields:
        record["request"] = None
    record |= {"run": run_id, "stages": stages} | fields
    (hallmark.store / "runs" / run_id).mkdir()
    (hallmark.store / "runs" / run_id / "run.json").write_text(json.dumps(record))
    return run_id


def test_audits_of_other_models_and_studies_do_not_change_latest(copied):
    audit = {"labels": ("audit_bias",), "flow": "audit"}
    add_run(copied, "99990101-000000-aaaa", **audit, checkpoint=f"{copied.first}@0")
    add_run(copied, "99990102-000000-aaaa", **audit, checkpoint="/models/gpt2")
    add_run(copied, "99990103-000000-aaaa", labels=(), flow="study")
    store = open_store(str(copied.store))
    assert open_audit_run(store, "latest", "bias").id == copied.first
    assert open_audit_run(store, "latest").id == copied.first
    assert find_checkpoint_audits(store, "latest").audit_run.id == copied.first
    assert resolve_trained_checkpoint(store, "latest").source_run.id == copied.first
    assert resolve_base_run(store, "latest").id == copied.first
    assert open_run("latest", store).id == "99990103-000000-aaaa"
    done = copied("trace", "latest", "bias.stereotype_preference", "--json")
    assert json.loads(done.stdout)["run"] == copied.first
    assert done.stderr == (
        f"latest refers to run {copied.first}, the newest run that audited the newest trained "
        "model\n"
    )
    newest = add_run(copied, "99990104-000000-aaaa", **audit, checkpoint=f"{copied.first}@60")
    assert open_audit_run(store, "latest", "bias").id == newest
    assert open_audit_run(store, "latest", "toxicity").id == copied.first


def arm(name):
    return RunRequest(flow="pipeline", experiment_arm=name).to_record()


def test_latest_is_never_an_arm_of_an_experiment(copied):
    """Arms are trained and audited as other runs are, and opened by their ids."""
    labels = open_run(copied.first, str(copied.store)).stages
    newest = "99990105-000000-aaaa"
    add_run(copied, "99990101-000000-aaaa", labels, request=arm("control arm of mitigate"))
    add_run(copied, "99990102-000000-aaaa", labels, request=arm("base arm of prove"))
    add_run(copied, newest, labels, flow="trial")
    store = open_store(str(copied.store))
    assert open_audit_run(store, "latest", "bias").id == copied.first
    assert resolve_checkpoint(store, "latest").name == f"{copied.first}@60"
    checkpoint_name = resolve_checkpoint(store, "latest").checkpoint.name
    assert resolve_checkpoint(store, checkpoint_name).name == f"{copied.first}@60"
    assert list_checkpoint_names(store, "latest@all")[-1] == f"{copied.first}@60"
    assert resolve_base_run(store, "latest").id == copied.first
    assert resolve_addition_chain(store, "latest")[-1].id == copied.first
    for stage in (None, "ingest", "pretrain"):
        assert open_run("latest", store, stage=stage).id == copied.first
    assert open_run("99990101", store).id == "99990101-000000-aaaa"
    assert resolve_checkpoint(store, "99990102@60").source_run.id == "99990102-000000-aaaa"
    for name in ("latest", "99990102-000000-aaaa"):
        with pytest.raises(UsageError, match=f"has no checkpoint for step {'9' * 18}; it has"):
            resolve_checkpoint(store, f"{name}@{'9' * 18}")
    lines = copied("runs").stdout.splitlines()
    assert "pipeline, control arm of mitigate  " in lines[2]
    assert "pipeline, base arm of prove  " in lines[3]


def test_without_a_trained_model_latest_is_the_newest_audit(copied):
    audit = {"labels": ("audit_bias", "model_card"), "flow": "audit"}
    newest = add_run(copied, "99990101-000000-aaaa", **audit, checkpoint="/models/gpt2")
    shutil.rmtree(copied.store / "runs" / copied.first)
    done = copied("findings", "--json")
    assert {row["audit"] for row in json.loads(done.stdout)} == {"bias"}
    assert done.stderr == f"latest refers to run {newest}, the newest run that audited a model\n"


def test_every_command_says_which_run_latest_is(copied):
    add_run(copied, "99990101-000000-aaaa", ("ingest",), flow="corpus")
    for command, run, reason in (
        (["status"], "99990101-000000-aaaa", "the newest run"),
        (["batch", "--step", "1"], copied.first, "the newest run with the pretrain stage"),
        (["findings"], copied.first, "the newest run that audited the newest trained model"),
        (["compare", "latest@all"], copied.first, "the newest run with the pretrain stage"),
        (["mitigate", "latest"], copied.first, "the newest run that trained a model"),
        (
            ["prove", "latest", "x.y"],
            copied.first,
            "the newest run that trained and audited a model",
        ),
        (["verify", "latest"], "99990101-000000-aaaa", "the newest run"),
    ):
        code = 0 if command[0] in ("status", "batch", "findings", "verify") else 2
        first_line = copied(*command, code=code).stderr.splitlines()[0]
        assert first_line == f"latest refers to run {run}, {reason}"


def test_findings_are_listed_by_risk_with_names_that_trace_accepts(copied):
    rows = copied.json("findings")
    run = open_run(copied.first, str(copied.store))
    findings = [find_finding(run, row["finding"]) for row in rows]
    assert {row["finding"] for row in findings} == {
        finding["finding"]
        for audit_rows in read_card_findings(
            {name: run[f"audit_{name}"] for name in {row["audit"] for row in rows}}
        ).values()
        for finding in audit_rows
        if not finding["control"]
    }
    assert len(rows) == len({row["finding"] for row in rows}) > 50
    assert all(
        finding["value"] == row["value"] for finding, row in zip(findings, rows, strict=True)
    )
    harmful = [row["conclusion"].startswith(("higher", "lower")) for row in rows]
    assert harmful == sorted(harmful, reverse=True)
    bias_rows = copied.json("findings", "latest", "--audit", "bias")
    assert bias_rows == [row for row in rows if row["audit"] == "bias"] != []
    assert bias_rows[0]["title"] == "Stereotype preference"
    header, *lines = copied("findings", "--audit", "bias").stdout.splitlines()
    assert header.split("  ")[0] == "value" and len(lines) == len(bias_rows)
    assert [line.split("  ")[-1].strip() for line in lines] == [row["finding"] for row in bias_rows]


def test_the_largest_risk_comes_first():
    """By the nearer end of the interval, as a share of the range of the unit."""

    def finding(metric, low, high, unit="share", worse_when="up", p=0.01):
        row = {"metric": metric, "low": low, "value": high, "high": high, "null_value": 0.0}
        row |= {"control": "", "is_variant": False, "inconclusive_reason": ""}
        return row | {"unit": unit, "worse_when": worse_when, "p": p, "q": p}

    ordered = [
        finding("far", 0.3, 0.4),
        finding("near", 0.1, 0.9),
        finding("no range", 5.0, 6.0, unit="tokens"),
        finding("by chance", 0.2, 0.9, p=0.2),
        finding("better", 0.5, 0.6, worse_when="down", p=0.99),
    ]
    shuffled = [ordered[index] for index in (3, 2, 4, 1, 0)]
    assert [row["metric"] for row in sort_by_risk(shuffled)] == [
        *("far", "near", "no range", "by chance", "better")
    ]


def test_findings_name_the_rules_of_the_policy_that_they_break(copied, monkeypatch):
    verdict = {"audit": "bias", "metric": "stereotype_preference", "slice": "", "verdict": "fail"}
    broken = {**verdict, "rule": "fair", "distance": 0.2}
    not_shown = {**verdict, "rule": "shown", "distance": None, "verdict": "not_shown"}
    passed = {**verdict, "rule": "kind", "distance": -0.1, "verdict": "pass"}
    other = {**passed, "metric": "tie_share"}
    monkeypatch.setattr(Run, "list_verdicts", lambda run: [broken, not_shown, passed, other])
    rows = list_findings(open_run(copied.first, str(copied.store)), "bias")
    (row,) = (row for row in rows if row["failed_rules"])
    assert row["finding"] == "bias.stereotype_preference"
    assert (row["failed_rules"], row["not_shown_rules"]) == (["fair"], ["shown"])
    assert (row["policy"], row["passed_rules"]) == ("fail", ["kind"])
    assert {row["policy"] for row in rows} == {"fail", "pass", None}
    (line,) = (line for line in render_findings(rows).splitlines() if "  passed  " in line)
    assert line.endswith("bias.tie_share")
    (line,) = (line for line in render_findings(rows).splitlines() if "  failed  " in line)
    assert line.endswith(row["finding"])


def test_a_rule_with_a_wrong_slice_is_answered_with_the_values_of_an_earlier_run(copied):
    rule = "policy.rules.r={audit='extraction', metric='extractable', slice={passage='8'}, lt=0.9}"
    output = copied("audit", copied.first, "--set", rule, code=2).stderr
    findings = read_findings(open_run(copied.first, str(copied.store))["audit_extraction"])
    slices = [row["slice"] for row in findings if row["metric"] == "extractable"]
    kinds = ", ".join(dict.fromkeys(tags["kind"] for tags in slices))
    assert f"values in run {copied.first}: " in output and f"kind: {kinds};" in output
    dry_run = ["run", "smoke", "--dry-run", "--set", rule]
    assert f"kind: {kinds};" in copied(*dry_run, code=2).stderr
    shutil.rmtree(copied.store / "runs" / copied.first)
    with_no_run = copied(*dry_run, code=2).stderr
    assert "slices by copies, kind, prefix_tokens" in with_no_run and "values" not in with_no_run


def test_a_run_without_audits_has_no_findings(copied):
    run = add_run(copied, "99990101-000000-aaaa", ("ingest",), flow="corpus")
    for arguments, expected in (
        ([run], f"run {run} has no audits and therefore no findings; choose an audited run"),
        (["--audit", "bais"], "--audit: there is no audit 'bais' (did you mean bias?)"),
        ([copied.first, "--audit", "bbq"], f"run {copied.first} has no 'bbq' audit; its audits: "),
        (["--audit", "bbq"], "has no audit bbq yet; run: hallmark audit "),
    ):
        (line,) = copied("findings", *arguments, code=2).stderr.splitlines()
        assert expected in line
    with pytest.raises(UsageError, match="newest run that trained a model, has no audit bbq yet"):
        open_audit_run(open_store(str(copied.store)), "latest", "bbq")
