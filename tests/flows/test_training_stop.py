"""A failing policy stops the training whose checkpoint was audited."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from hallmark.flows import training_stop
from hallmark.flows.config import load_config
from hallmark.flows.run_recording import record_run
from hallmark.flows.runs import open_run
from hallmark.flows.training_stop import (
    TrainingStopReader,
    format_stop_key,
    parse_training_stop,
    request_training_stops,
)
from hallmark.tasks.contract import (
    Artifact,
    EmptyConfig,
    HallmarkError,
    PolicyViolationError,
    StageContext,
    Store,
    stage,
)

FAILED = {"rule": "fair", "verdict": "fail"}
NOT_SHOWN = {"rule": "safe", "verdict": "not_shown"}
STOP = {"audit_run": "20260101-000000-0000", "step": 20, "failed_rules": ["fair"]}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture(autouse=True)
def looks_at_each_step(monkeypatch):
    monkeypatch.setattr(training_stop, "CHECK_INTERVAL_SECONDS", 0.0)


@dataclass
class Auditor:
    """What the training calls after its checkpoint; a test sets what it does."""

    audit: Callable[[Artifact], None] = lambda checkpoint: None
    steps: list[int] = field(default_factory=list)


auditor = Auditor()


@stage(name="train_until_stopped")
def train_until_stopped(config: EmptyConfig, context: StageContext) -> None:
    """Commit a checkpoint, and continue until the training is stopped, for three steps at most."""
    folder = context.work_area / "checkpoint"
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")
    checkpoint = context.commit_child_artifact("checkpoint", {"step": 20}, folder)
    auditor.audit(checkpoint)
    for step in (21, 22, 23):
        context.check_not_stopped()
        auditor.steps.append(step)


def train_and_audit(store, audit):
    """Train with an audit after the checkpoint; return the steps that followed it."""
    auditor.audit, auditor.steps = audit, []
    with record_run("pretrain", load_config("smoke"), store):
        train_until_stopped.with_label("pretrain")(EmptyConfig())
    return auditor.steps


def audit_run(store, *verdicts, stop_training=True):
    policy = SimpleNamespace(stop_training=stop_training)
    return SimpleNamespace(
        id=STOP["audit_run"],
        store=store,
        config=SimpleNamespace(policy=policy),
        list_verdicts=lambda: [*verdicts],
    )


@pytest.mark.parametrize("kind", ["folder", "object storage"])
def test_a_failed_rule_stops_the_training_at_the_next_step(kind, tmp_path, bucket):
    address = str(tmp_path / "store") if kind == "folder" else f"s3://hallmark/{tmp_path.name}"
    store = Store(address)

    def audit(checkpoint):  # on another host
        request_training_stops(audit_run(Store(address), FAILED, NOT_SHOWN), checkpoint)

    with pytest.raises(PolicyViolationError) as error:
        train_and_audit(store, audit)
    assert auditor.steps == []
    assert str(error.value) == (
        "stage pretrain: training was stopped because its checkpoint at step 20 failed the policy "
        f"rule fair in audit run {STOP['audit_run']}; its checkpoints remain in the store; to "
        "continue training, run the same command again"
    )
    run = open_run("latest", store)
    assert (run.record["status"], run.record["error"]) == ("failed", str(error.value))
    [checkpoint] = run.list_committed_checkpoints()
    assert store.open_artifact(checkpoint["artifact"]).manifest["files"]
    # The same command continues: the request was for the run that has ended.
    assert train_and_audit(store, lambda checkpoint: None) == [21, 22, 23]


@pytest.mark.parametrize(
    ("verdicts", "stop_training"),
    [([FAILED], False), ([NOT_SHOWN], True), ([], True)],
    ids=["not configured", "not shown", "no policy"],
)
def test_other_audits_stop_nothing(store, verdicts, stop_training):
    def audit(checkpoint):
        request_training_stops(audit_run(store, *verdicts, stop_training=stop_training), checkpoint)

    assert train_and_audit(store, audit) == [21, 22, 23]


def test_only_running_trainings_of_the_checkpoint_are_stopped(store):
    with record_run("pretrain", load_config("smoke"), store) as other:
        checkpoints = []
        assert train_and_audit(store, checkpoints.append) == [21, 22, 23]
        request_training_stops(audit_run(store, FAILED), *checkpoints)  # after its end
        assert not list(store.root_folder.rglob("stop.json"))
        assert TrainingStopReader(store, other.id).find_stop_reason() is None


def test_several_rules_are_named(store):
    store.put(format_stop_key("r"), json.dumps(STOP | {"failed_rules": ["a", "b\u202e"]}).encode())
    reason = TrainingStopReader(store, "r").find_stop_reason()
    assert "failed the policy rules a, b‹U+202E› in audit run" in reason


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b"null",
        *(
            json.dumps(STOP | changes).encode()
            for changes in (
                {"audit_run": 7},
                {"audit_run": "../../x"},
                {"audit_run": "a\nb"},
                {"step": "20"},
                {"step": True},
                {"failed_rules": []},
                {"failed_rules": 7},
                {"failed_rules": "abc"},
                {"failed_rules": [7]},
                {"failed_rules": ["a\nb"]},
                {"failed_rules": ["a" * 100_000]},
            )
        ),
    ],
)
def test_a_damaged_request_stops_the_training_with_a_sentence(store, request_bytes):
    assert parse_training_stop(request_bytes) is None
    store.put(format_stop_key("r"), request_bytes)
    assert TrainingStopReader(store, "r").find_stop_reason() == (
        f"training was stopped because the file {store.uri}/runs/r/stop.json requests it, but this "
        "file is damaged; find out who wrote the file; to continue training, run the same command "
        "again"
    )


def test_a_store_that_does_not_answer_stops_nothing(store, monkeypatch):
    def refuse(key):
        raise HallmarkError("the store does not answer")

    store.put(format_stop_key("r"), json.dumps(STOP).encode())
    monkeypatch.setattr(store, "get", refuse)
    assert TrainingStopReader(store, "r").find_stop_reason() is None


def test_the_store_is_read_at_most_every_interval(store, monkeypatch):
    monkeypatch.setattr(training_stop, "CHECK_INTERVAL_SECONDS", 1e9)
    store.put(format_stop_key("r"), json.dumps(STOP).encode())
    assert TrainingStopReader(store, "r").find_stop_reason() is None
