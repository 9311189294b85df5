"""Checkpoints of a training that continues or was killed, audited before and after its end."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from hallmark import open_run
from hallmark.flows.checkpoint_resolution import resolve_checkpoint
from hallmark.flows.runs import list_run_ids
from hallmark.reports.sections.training import TRAINING_NOT_ENDED_NOTE
from hallmark.tasks.contract import Store, UsageError

pytestmark = pytest.mark.slow

TRAINING = [
    "--set=pretrain.train.seed=5",
    "--set=pretrain.train.steps=300",
    "--set=pretrain.train.checkpoint_every=60",
    "--set=pretrain.train.threads=1",
]

#: Audits with traces, and those that need to know what the training had read.
AUDITS = ["bias", "extraction", "membership"]


@pytest.fixture(scope="module")
def unfinished(apart):
    """The id of a run that was killed after it had committed its second checkpoint."""
    store = Store(apart.store)
    known_ids = {*list_run_ids(store)}
    command = [sys.executable, "-m", "hallmark.flows.cli", "run", "smoke", *TRAINING]
    environment = {**os.environ, "HALLMARK_STORE": str(apart.store)}
    process = subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        run = None
        while run is None or len(run.list_committed_checkpoints()) < 2:
            assert process.poll() is None, process.stderr.read().decode()
            if new_ids := {*list_run_ids(store)} - known_ids:
                run = open_run(*new_ids, store)
            time.sleep(0.05)
        assert run.status == "running"
        resolved = resolve_checkpoint(store, f"{run.id}@60")
        assert resolved.name == f"{run.id}@60" and resolved.source_run.id == run.id
        assert resolved.corpus.documents and resolved.training_run is None
        # "latest" remains the newest run that completed its pretraining.
        assert resolve_checkpoint(store, "latest").source_run.id == apart.first
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return run.id


def test_a_training_that_continues_an_unfinished_one_knows_what_that_had_read(apart, unfinished):
    settings = {"steps": 6, "warmup_steps": 0, "checkpoint_every": 6, "validate_every": 6}
    options = [f"--set=pretrain.train.{name}={value}" for name, value in settings.items()]
    start = f"{unfinished}@60"
    report = apart.json(
        "run", "smoke", "--start-checkpoint", start, *options, "--only", "extraction"
    )
    run = open_run(report["run"], str(apart.store))
    assert run["pretrain"].manifest["lineage"]["start_checkpoint"].startswith("checkpoint/")
    reads = run["reconstruct_reads_1"]
    assert reads["checkpoints"].read(["step"]).to_pylist() == [{"step": 60}]
    [older] = [
        name
        for number, name in run["extraction_trace"].manifest["lineage"]["training_runs"].items()
        if number == "1"
    ]
    assert older.startswith(reads.name)


def audit(hallmark, checkpoint):
    options = [option for audit in AUDITS for option in ("--only", audit)]
    report = hallmark.json("audit", checkpoint, *options)
    return open_run(report["run"], str(hallmark.store))


def test_an_audit_before_the_end_of_the_training_gives_the_same_findings(apart, unfinished):
    store = Store(apart.store)
    report = apart.json("status", unfinished)
    assert [row["step"] for row in report["checkpoints"]][:2] == [0, 60]
    artifact_name = report["checkpoints"][1]["artifact"]
    # The name of the artifact leads to the same step, corpus and run.
    assert resolve_checkpoint(store, artifact_name).name == f"{unfinished}@60"
    with pytest.raises(UsageError, match=r"has no checkpoint for step 61; it has .*: 0, 60"):
        resolve_checkpoint(store, f"{unfinished}@61")

    before = audit(apart, artifact_name)
    assert before.record["checkpoint"] == f"{unfinished}@60"
    assert "score_samples" not in before.stages
    card = json.dumps(before["model_card"]["sections"].read().to_pylist(), default=str)
    assert TRAINING_NOT_ENDED_NOTE in card and ", the model had read" in card
    # Traces of findings also know what had been read.
    assert resolve_checkpoint(store, artifact_name).training_run.name == (
        before["reconstruct_reads"].name
    )

    finished = apart.json("run", "smoke", *TRAINING, "--until", "pretrain")["run"]
    trained = resolve_checkpoint(store, f"{unfinished}@60")
    assert trained.checkpoint.name == artifact_name
    assert trained.training_run.name == open_run(finished, store)["pretrain"].name
    after = audit(apart, f"{finished}@60")
    assert "reconstruct_reads" not in after.stages and "score_samples" in after.stages
    table_names = {
        "values",
        "findings",
        "training_overlap",
        "occurrence_counts",
        "matched_spans",
        "responses",
    }
    compared = 0
    for label in before.stages:
        for name in table_names & {*before[label].tables}:
            assert before[label][name].read().equals(after[label][name].read()), (label, name)
            compared += 1
    assert compared > 10
    reads = [
        run_artifact["coverage"].read().filter(step_is_60(run_artifact["coverage"].read()))
        for run_artifact in (before["reconstruct_reads"], trained.training_run)
    ]
    assert reads[0].num_rows and reads[0].equals(reads[1])


def step_is_60(table):
    import pyarrow.compute as pc

    return pc.equal(table["step"], 60)
