"""How a run ended, in Prefect: its state, its event and its page."""

import time
from types import SimpleNamespace

import httpx
import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from hallmark.flows import run_outcome
from hallmark.flows.audit_execution import record_failure
from hallmark.flows.run_outcome import (
    RUN_ENDED_EVENT,
    build_outcome_fields,
    conclude_flow,
    outcome_to_markdown,
    verdicts_to_markdown,
)
from hallmark.tasks.contract import HallmarkError, PolicyViolationError, UsageError

ROWS = [
    {"rule": rule, "audit": "bias", "metric": "m", "slice": {}, "bound": "< 1", "value": 1.0}
    | {"verdict": verdict, "distance": distance, "reason": reason}
    for rule, verdict, distance, reason in (
        ("kind", "pass", -0.25, "well"),
        ("safe", "not_shown", None, "no interval: a | b"),
        ("fair", "fail", 0.5, "too high\u202e"),
    )
]


def ended_run(*rules, failures=None):
    """A run without a model card whose policy has these verdicts."""
    return SimpleNamespace(
        id="r1",
        stages={},
        page=None,
        audited_checkpoint="r1@9",
        record={"config_name": "demo"},
        store=SimpleNamespace(uri="./runs"),
        read_failure_reason_by_audit=lambda: failures or {},
        list_verdicts=lambda: [*rules],
    )


def test_each_verdict_has_a_line_with_distance_and_reason_the_worst_first():
    _, _, *lines = verdicts_to_markdown(ROWS).splitlines()
    assert lines == [
        "| fair | bias.m | failed | 0.5 | too high‹U+202E› |",
        "| safe | bias.m | not shown | – | no interval: a \\| b |",
        "| kind | bias.m | passed | -0.25 | well |",
    ]


def test_names_from_audit_files_are_no_markup():
    name = "[x](javascript:alert(1))\n| a <img src=x>"
    row = ROWS[0] | {"slice": {"group": name}, "reason": name}
    *_, line = verdicts_to_markdown([row]).splitlines()
    escaped = r"\[x\](javascript:alert(1)) \| a \<img src=x\>"
    assert line == rf"| kind | bias.m\[group={escaped}\] | passed | -0.25 | {escaped} |"


@pytest.mark.parametrize(
    ("rules", "failures", "verdict", "outcome"),
    [
        ((), {}, "none", "no policy is configured"),
        ((), {"bias": "why"}, "audit_failed", "no policy is configured; failed audits: bias"),
        (ROWS[:1], {}, "pass", "policy passed: 1 rule"),
        (
            ROWS[:1],
            {"bias": "why", "bold": "why"},
            "audit_failed",
            "policy passed: 1 rule; failed audits: bias, bold",
        ),
        (
            ROWS[:2],
            {},
            "not_shown",
            "policy not shown to pass: 1 of 2 rules could not be judged",
        ),
        (
            ROWS,
            {"bias": "why"},
            "fail",
            "policy failed: 1 of 3 rules failed, 1 could not be judged; failed audits: bias",
        ),
    ],
)
def test_the_outcome_is_the_worst_that_applies(rules, failures, verdict, outcome):
    run = ended_run(*rules, failures=failures)
    fields = build_outcome_fields(run)
    assert (fields["verdict"], fields["outcome"]) == (verdict, outcome)
    assert fields["failed_audits"] == [*failures]
    title, *lines = outcome_to_markdown(run).splitlines()
    assert title == f"# {outcome}"
    reasons = [line for line in lines if line.startswith("The audit ")]
    assert reasons == [f"The audit {audit} failed: {reason}" for audit, reason in failures.items()]
    assert any("| rule | finding |" in line for line in lines) == bool(rules)


def read_from_server(server, kind, query, seconds=30):
    """Wait until the server lists something that fits the query."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = httpx.post(f"{server}/{kind}/filter", json=query).json()
        if found := found if isinstance(found, list) else found["events"]:
            return found
    raise AssertionError(f"no {kind} within {seconds} s")


def test_a_flow_run_with_an_unmet_policy_fails_with_its_sentence(server):
    run = ended_run(*ROWS)

    @flow
    def judge():
        return conclude_flow(run)

    with temporary_settings({PREFECT_API_URL: server}):
        state = judge(return_state=True)
    flow_run_id = str(state.state_details.flow_run_id)
    stored = httpx.get(f"{server}/flow_runs/{flow_run_id}").json()["state"]
    assert (stored["type"], stored["name"]) == ("FAILED", "Failed")
    assert stored["message"].startswith("policy failed: 1 of 3 rules failed, 1 could not be")
    with pytest.raises(PolicyViolationError):
        state.result()
    query = {"artifacts": {"key": {"any_": ["run-outcome"]}}}
    query["flow_runs"] = {"id": {"any_": [flow_run_id]}}
    [page] = read_from_server(server, "artifacts", query)
    assert page["description"].startswith("policy failed: 1 of 3 rules failed")
    assert page["data"] == outcome_to_markdown(run)
    related = f"prefect.flow-run.{flow_run_id}"
    query = {"filter": {"event": {"name": [RUN_ENDED_EVENT]}, "related": {"id": [related]}}}
    [event] = read_from_server(server, "events", query)
    assert event["resource"]["prefect.resource.id"] == "hallmark.run.r1"
    assert event["resource"]["hallmark.verdict"] == "fail"
    assert event["payload"] == build_outcome_fields(run)


def test_a_flow_run_that_met_its_policy_completes(server):
    @flow
    def judge():
        return conclude_flow(ended_run(ROWS[0]))

    with temporary_settings({PREFECT_API_URL: server}):
        state = judge(return_state=True)
    assert state.is_completed() and state.result() == "r1"


def test_a_failed_audit_fails_the_flow_run(server):
    @flow
    def judge():
        return conclude_flow(ended_run(failures={"bias": "why"}))

    with temporary_settings({PREFECT_API_URL: server}):
        state = judge(return_state=True)
    assert state.is_failed() and state.message.startswith("bias failed: why; all other results")


def test_a_server_that_is_gone_costs_a_warning(server, monkeypatch, caplog):
    def refuse(*_, **__):
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(run_outcome, "create_markdown_artifact", refuse)

    @flow
    def judge():
        return conclude_flow(ended_run())

    with temporary_settings({PREFECT_API_URL: server}):
        assert judge() == "r1"
    assert "the server is gone; the run continues without it" in caplog.text


def test_outside_of_prefect_the_error_is_raised(monkeypatch):
    def publish(*_, **__):
        raise AssertionError("there is no flow")

    monkeypatch.setattr(run_outcome, "create_markdown_artifact", publish)
    assert conclude_flow(ended_run()) == "r1"
    with pytest.raises(HallmarkError, match="bias failed: why"):
        conclude_flow(ended_run(failures={"bias": "why"}))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "stage a: artifact a/0 is damaged: /home/ada/my-runs/artifacts/a/0/x.parquet has 3 "
            "bytes instead of 4; remove the artifact's folder and run again to rebuild it",
            "stage a: artifact a/0 is damaged: x.parquet has 3 bytes instead of 4",
        ),
        (
            "the store s3://bucket/prefix cannot be used: timeout; check its address, its "
            "permissions, then run again to resume from the last commit",
            "the store s3://bucket/prefix cannot be used: timeout",
        ),
        ("cannot read '/data/ada/x.toml' (1/2 of it)", "cannot read 'x.toml' (1/2 of it)"),
        ("no scorer of toxicity/score is usable", "no scorer of toxicity/score is usable"),
    ],
)
def test_a_card_has_neither_local_folders_nor_remedies_of_a_failure(message, reason, caplog):
    reasons = {}
    with record_failure(reasons, "bias"):
        raise HallmarkError(message)
    assert reasons == {"bias": reason}
    assert f"bias failed: {message}" in caplog.text


def test_wrong_usage_ends_the_run():
    reasons = {}
    with pytest.raises(UsageError), record_failure(reasons, "bias"):
        raise UsageError("no")
    assert not reasons
