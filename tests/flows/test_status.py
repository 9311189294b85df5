"""`hallmark status` names stale stages and the reasons."""

from dataclasses import replace

import pytest

from hallmark.flows.audit_selection import ALL_AUDITS
from hallmark.flows.commands.status import build_status_report, render_status
from hallmark.flows.runs import open_run
from hallmark.tasks.contract import STAGES, HallmarkError, Store

pytestmark = pytest.mark.slow


@pytest.fixture
def run(smoke, monkeypatch):
    monkeypatch.setenv("HALLMARK_STORE", str(smoke.store))
    return open_run(smoke.first, Store(smoke.store))


def stale(report):
    return {
        stage["label"]: stage["stale_reasons"]
        for stage in report["stages"]
        if stage["stale_reasons"]
    }


def test_nothing_is_stale_after_a_run(run):
    report = build_status_report(run)
    assert not stale(report)
    assert "all stages are up to date" in render_status(report)


def test_a_changed_setting_is_named_and_later_stages_may_change(run):
    run.record["request"]["overrides"] = ["audit_bias.seed=5"]
    report = build_status_report(run)
    reasons = stale(report)
    assert reasons["bias_build_requests"] == ["config: seed"]  # it runs with the same settings
    assert reasons["bias_respond"] == ["the input bias_build_requests is stale"]
    assert reasons["audit_bias"][0] == "config: seed"
    assert reasons["model_card"] == ["the input audit_bias is stale"]
    assert {*reasons} == {
        "bias_build_requests",
        "bias_respond",
        "bias_respond_untrained_models",
        "bias_trace",
        "audit_bias",
        "model_card",
    }
    assert "stale: config: seed" in render_status(report)


def test_steps_of_audits_are_compared_with_shared_settings(run, monkeypatch):
    run.record["request"]["overrides"] = [
        "trace.min_span_tokens=2",
        "score.additional_scorers=[{kind='words', path='moods.csv'}]",
    ]
    ask = replace(
        STAGES["build_requests_toxicity"],
        external_digests=lambda config, secret: {"prompts": "others"},
    )
    monkeypatch.setitem(STAGES, "build_requests_toxicity", ask)
    reasons = stale(build_status_report(run))
    assert reasons["toxicity_build_requests"] == ["external input: prompts"]
    assert reasons["toxicity_respond"] == ["the input toxicity_build_requests is stale"]
    assert reasons["extraction_attack_trace"] == ["config: min_span_tokens"]
    assert reasons["counterfactual_score"][0] == "config: additional_scorers"
    assert "config: additional_scorers" not in reasons["toxicity_score"]  # it would not be asked
    assert "the input toxicity_trace is stale" in reasons["audit_toxicity"]


def test_a_changed_library_is_named_with_both_versions(run, monkeypatch):
    import hallmark.tasks.contract.stage_call

    true = hallmark.tasks.contract.stage_call.read_library_versions
    monkeypatch.setattr(
        hallmark.tasks.contract.stage_call,
        "read_library_versions",
        lambda names: true(names) | ({"scipy": "99"} if "scipy" in names else {}),
    )
    reasons = stale(build_status_report(run))
    assert any(r.startswith("library: scipy ") and "→ 99" in r for r in reasons["deduplicate"])
    assert "the input deduplicate is stale" in reasons["select"]
    assert "the input cut_repeats is stale" in reasons["find_personal_data"]
    assert "ingest" not in reasons


def test_changed_code_is_named_by_its_module(run, monkeypatch):
    import hallmark.tasks.contract.stage_call

    true = hallmark.tasks.contract.stage_call.compute_reached_code_digests

    def changed(*stage):
        return {
            n: "0" if n.endswith(".measures.personal_data") else d for n, d in true(*stage).items()
        }

    monkeypatch.setattr(hallmark.tasks.contract.stage_call, "compute_reached_code_digests", changed)
    reasons = stale(build_status_report(run))
    assert reasons["find_personal_data"] == ["code: hallmark.tasks.measures.personal_data"]
    assert reasons["redact_spans"] == ["the input find_personal_data is stale"]
    assert "deduplicate" not in reasons


def test_libraries_external_files_and_removed_stages_are_named(run, monkeypatch):
    assert not stale(build_status_report(run))  # registers the stages
    stages = {
        "deduplicate": replace(STAGES["deduplicate"], libraries=("numpy",)),
        "select": replace(STAGES["select"], external_digests=lambda config, secret: {"list": "7"}),
    }

    def raise_error(config, secret):
        raise HallmarkError("the list is gone")

    stages["ingest"] = replace(STAGES["ingest"], external_digests=raise_error)
    for name, stage in stages.items():
        monkeypatch.setitem(STAGES, name, stage)
    monkeypatch.delitem(STAGES, "pack")
    reasons = stale(build_status_report(run))
    assert "external input: the list is gone" in reasons["ingest"]
    assert "external input: list" in reasons["select"]
    assert reasons["pack"] == ["the 'pack' stage no longer exists"]
    recorded = run["deduplicate"].manifest["parts"]["libraries"]
    changed = [reason for reason in reasons["deduplicate"] if reason.startswith("library: ")]
    assert changed == [f"library: scipy {recorded['scipy']} → None"]


def test_the_command_names_the_store_if_the_default_differs(run, monkeypatch):
    assert not build_status_report(run)["store_must_be_named"]
    monkeypatch.delenv("HALLMARK_STORE")
    assert build_status_report(run)["store_must_be_named"]
    run.record["request"]["overrides"] = [f"store={run.store.uri}"]
    assert not build_status_report(run)["store_must_be_named"]


def test_the_next_step_is_the_command_of_the_run(run, smoke):
    run.record["request"] |= {"config": "my file.toml", "overrides": ["audit_bias.seed=5"]}
    report = build_status_report(run)
    assert "my file.toml" in report["config_problem"] and "is stale" not in render_status(report)
    report |= {"config_problem": None, "checkpoint": "latest@0"}
    report["request"] |= {"start": "latest@0", "until": "pretrain", "hash_sources": True}
    report["stages"][0]["stale_reasons"] = ["code: tasks.text"]
    assert render_status(report).splitlines()[-1] == (
        "rerun stale stages with: hallmark run 'my file.toml' --set audit_bias.seed=5 --until "
        "pretrain --start-checkpoint latest@0 --hash-sources"
    )
    report["request"]["audits"] = [name for name in ALL_AUDITS if name != "capability"]
    assert "hallmark run 'my file.toml' --skip capability --set" in render_status(report)
    report["request"] = {
        "format": 1,
        "flow": "audit",
        "checkpoint": "latest",
        "config": "my file.toml",
        "audits": ["toxicity", "bias"],
    }
    command = "hallmark audit latest@0 --only toxicity,bias --config 'my file.toml'"
    assert render_status(report).endswith(f"stale stages with: {command}")
    report |= {"store_must_be_named": True}
    assert render_status(report).endswith(f"{command} --store {smoke.store}")
    assert "still running" in render_status({**report, "status": "running"})
