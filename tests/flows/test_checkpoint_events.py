"""The events of committed checkpoints, on a real Prefect server."""

from datetime import UTC, datetime

import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from hallmark.flows.checkpoint_events import CHECKPOINT_COMMITTED_EVENT
from hallmark.flows.config import load_config
from hallmark.flows.run_recording import record_run
from hallmark.flows.run_request import RunRequest
from hallmark.flows.runs import open_run
from hallmark.tasks.contract import EmptyConfig, HallmarkError, StageContext, Store, stage
from tests.flows.test_run_outcome import read_from_server

#: The steps at which ``train_for_events`` commits a checkpoint before it fails; it then resumes.
steps_to_commit: list[int] = []


@stage(name="train_for_events")
def train_for_events(config: EmptyConfig, context: StageContext) -> None:
    """Commit checkpoints, write when, and fail, as a training that is stopped."""
    for step in steps_to_commit:
        folder = context.work_area / "checkpoint"
        folder.mkdir()
        (folder / "model.safetensors").write_text(f"step {step}")
        context.commit_child_artifact("checkpoint", {"step": step}, folder)
        (context.work_area.parent / f"{step}.time").write_text(datetime.now(UTC).isoformat())
    raise HallmarkError("the training was stopped")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def train(store, steps, label="pretrain", request=None):
    """Run a training that is stopped after these steps."""
    steps_to_commit[:] = steps
    with (
        pytest.raises(HallmarkError, match="was stopped"),
        record_run("pipeline", load_config("smoke"), store, request),
    ):
        train_for_events.with_label(label)(EmptyConfig())


def read_events(server, function, last_step):
    """Call a function in a flow; return its events up to the last step, in the emitted order."""
    with temporary_settings({PREFECT_API_URL: server}):
        state = flow(function)(return_state=True)
    state.result()
    related = f"prefect.flow-run.{state.state_details.flow_run_id}"
    names = [CHECKPOINT_COMMITTED_EVENT]
    query = {"filter": {"event": {"name": names}, "related": {"id": [related]}, "order": "ASC"}}
    events = []
    while not events or events[-1]["payload"]["step"] != last_step:
        events = read_from_server(server, "events", query)
    return events


def test_each_checkpoint_is_announced_within_a_second(server, store):
    def training():
        train(store, [0, 20])

    events = read_events(server, training, 20)
    run = open_run("latest", store)
    assert run.record["status"] == "failed"
    recorded = run.record["checkpoints"]
    assert [entry["step"] for entry in recorded] == [0, 20]
    assert run.list_committed_checkpoints() == [
        {name: entry[name] for name in ("step", "artifact")} for entry in recorded
    ]
    for event, entry in zip(events, recorded, strict=True):
        assert event["payload"] == {
            "run": run.id,
            "step": entry["step"],
            "artifact": entry["artifact"],
            "store": store.uri,
        }
        resource = event["resource"]
        fingerprint = entry["artifact"].partition("/")[2]
        assert resource["prefect.resource.id"] == f"hallmark.checkpoint.{fingerprint}"
        assert resource["prefect.resource.name"] == f"{run.id}@{entry['step']}"
        assert resource["hallmark.run"] == run.id and resource["hallmark.config"] == "smoke"
        assert resource["hallmark.stage"] == "pretrain"
        assert resource["hallmark.store-id"] == store.compute_secret_id()
        committed_at = (store.work_folder / f"{entry['step']}.time").read_text()
        delay = datetime.fromisoformat(event["occurred"]) - datetime.fromisoformat(committed_at)
        assert delay.total_seconds() < 1


def test_a_resumed_training_announces_only_its_new_checkpoints(server, store):
    def training():
        train(store, [0, 20])
        train(store, [0, 20, 40])

    events = read_events(server, training, 40)
    assert [event["payload"]["step"] for event in events] == [0, 20, 40]
    # The run itself records all of them.
    assert [row["step"] for row in open_run("latest", store).list_committed_checkpoints()] == [
        0,
        20,
        40,
    ]


def test_arms_of_experiments_are_not_announced(server, store):
    def training():
        arm = RunRequest(flow="pipeline", experiment_arm="the control arm of mitigate")
        train(store, [0, 20], request=arm)
        train(store, [40], label="finetune")

    [event] = read_events(server, training, 40)
    assert event["resource"]["hallmark.stage"] == "finetune"


def test_a_training_without_prefect_announces_nothing(store):
    train(store, [0])
    assert [row["step"] for row in open_run("latest", store).list_committed_checkpoints()] == [0]
