"""Test artifacts that a running stage commits, and what a commit records about the machine."""

import platform
import resource
import socket

import pytest

from hallmark.tasks.contract import StageConfig, StageContext, stage
from hallmark.tasks.contract.commit import UNIT_BY_PARALLEL_METRIC
from tests.tasks.contract.stages import MakeConfig, make


class StepsConfig(StageConfig):
    steps: tuple[int, ...] = (1, 2)
    again: bool = False


@stage(name="checkpoints")
def checkpoints(config: StepsConfig, context: StageContext) -> None:
    """Commit a child artifact for each step, the last one twice if ``again``."""
    names = []
    for step in (*config.steps, *config.steps[-1:] * config.again):
        folder = context.work_area / "child"
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "weights.bin").write_text(f"step {step}")
        child = context.commit_child_artifact("checkpoint", {"step": step}, folder)
        assert not folder.exists()
        names.append(child.name)
    context.prepare_output_path("names.txt").write_text("\n".join(names))


@pytest.mark.parametrize("again", [False, True])
def test_child_is_committed_once_for_each_key(session, again):
    heard = []
    known = []
    session.listener = lambda event: (
        heard.append((event.kind, event.artifact)),
        known.append(event.was_stored) if event.kind == "child" else None,
    )
    made = checkpoints(StepsConfig(again=again))
    children = session.store.list_artifacts("checkpoint")
    told = [artifact.name for kind, artifact in heard if kind == "child"]
    assert made.fetch_file("names.txt").read_text().split() == told and len(told) == 2 + again
    assert set(told) == {child.name for child in children} and len(children) == 2
    assert known == [False, False, True][: len(told)]  # the same child is not new again
    by_key = {child.manifest["parts"]["key"]["step"]: child for child in children}
    for step, child in by_key.items():
        assert child.stage == "checkpoint" and child.manifest["tables"] == {}
        assert child.manifest["parts"] == {
            "stage": "checkpoint",
            "parent": made.fingerprint,
            "config": made.manifest["parts"]["config"],
            "key": {"step": step},
        }
        assert child.fetch_file("deep/weights.bin").read_text() == f"step {step}"
        assert child.manifest["telemetry"] == {} and child.fingerprint != made.fingerprint


def test_manifest_records_stage_config_and_lineage(session):
    made = make(MakeConfig(documents=3))
    manifest = made.manifest
    assert (manifest["stage"], manifest["determinism"]) == ("make", "exact")
    assert manifest["parts"]["config"]["documents"] == 3 and manifest["lineage"] == {}
    assert manifest["files"] == {} and manifest["created"].endswith("+00:00")


def test_telemetry_has_units_and_machine_names(session):
    rows = {
        row["metric"]: row for row in make(MakeConfig(documents=3)).read_telemetry().to_pylist()
    }
    assert rows["host"]["note"] == socket.gethostname()
    assert rows["platform"]["note"] == platform.platform()
    assert rows["python"]["note"] == platform.python_version()
    assert {rows[name]["value"] for name in ("host", "platform", "python")} == {None}
    values = {"host", "platform", "python"} ^ rows.keys()
    assert {name: rows[name]["unit"] for name in values} == {
        "seconds": "s",
        "cpu_seconds": "s",
        "peak_memory": "MiB",
        **UNIT_BY_PARALLEL_METRIC,
    }
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts in KiB
    assert 0.5 * most < rows["peak_memory"]["value"] <= most
    assert 0 < rows["seconds"]["value"] < 300 and rows["cpu_seconds"]["value"] >= 0
    assert 0 < rows["parallel_seconds"]["value"] <= rows["seconds"]["value"]
    assert rows["parallel_items"]["value"] == 1
