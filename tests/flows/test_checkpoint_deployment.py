"""Each checkpoint is audited while training continues, by a deployment on a real Prefect server."""

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from hallmark import open_run
from hallmark.flows.checkpoint_events import CHECKPOINT_COMMITTED_EVENT
from hallmark.flows.run_order import list_run_ids
from hallmark.tasks.contract import PROJECT_ROOT, Store
from tests.flows.test_run_outcome import read_from_server
from tests.flows.test_serve import api, prefect_server, wait_for

__all__ = ["prefect_server"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: One checkpoint before the end, which is long after it.
LONG_TRAINING = [
    "--until=pretrain",
    "--set=pretrain.train.steps=20000",
    "--set=pretrain.train.checkpoint_every=20000",
]


#: In a process of its own, because Prefect sends the events of a process to one server only.
ANNOUNCE_CHECKPOINT = """
import sys
from prefect import flow
from hallmark.tasks.contract import PROJECT_ROOT, Store
from tests.flows.test_checkpoint_events import train
flow(lambda: train(Store(sys.argv[1]), [0]))()
"""


@dataclass
class Commands:
    """Commands in processes of their own, with one store and one Prefect server."""

    store: Store
    server: str
    environment: dict[str, str]
    log_path: Path

    @contextmanager
    def start(self, *arguments):
        command = [sys.executable, "-m", "hallmark.flows.cli", *arguments]
        with self.log_path.open("a") as log:
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
            try:
                yield process
            finally:
                process.terminate()
                process.wait(timeout=60)

    @contextmanager
    def serve_checkpoint_audits(self, audit):
        """Serve the store; yield the deployment that audits each of its checkpoints."""
        name = f"each-checkpoint-{self.store.compute_secret_id()[:8]}"

        def find_deployment():
            answer = api.get(f"{self.server}/deployments/name/audit/{name}")
            is_found = answer.is_success and answer.json()["parameters"]["audits"] == [audit]
            return answer.json() if is_found else None

        with self.start("serve", "smoke", "--audit-checkpoints", "--only", audit) as serve:
            yield wait_for("the deployment", find_deployment, serve)

    def announce_checkpoint(self, store_folder):
        """Commit a checkpoint to another store, and wait for its event."""
        command = [sys.executable, "-c", ANNOUNCE_CHECKPOINT, str(store_folder)]
        subprocess.run(command, env=self.environment, cwd=PROJECT_ROOT, check=True)
        query = {"filter": {"event": {"name": [CHECKPOINT_COMMITTED_EVENT]}}}
        read_from_server(self.server, "events", query)

    def find_flow_runs(self, deployment, known_ids=()):
        query = {"deployments": {"id": {"any_": [deployment["id"]]}}}
        flow_runs = api.post(f"{self.server}/flow_runs/filter", json=query).json()
        return [flow_run for flow_run in flow_runs if flow_run["id"] not in known_ids]

    def wait_for_end(self, flow_run, process):
        def read_final_state():
            flow_run_now = api.get(f"{self.server}/flow_runs/{flow_run['id']}").json()
            is_final = flow_run_now["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED")
            return flow_run_now if is_final else None

        return wait_for("the end of the audit", read_final_state, process, 300)

    def find_training_run(self, known_ids):
        runs = [open_run(run_id, self.store) for run_id in list_run_ids(self.store)]
        [run] = [run for run in runs if run.flow == "pipeline" and run.id not in known_ids]
        return run


@pytest.fixture
def commands(apart, prefect_server, tmp_path):
    environment = {
        **os.environ,
        "HALLMARK_STORE": str(apart.store),
        "PREFECT_API_URL": prefect_server,
        "PREFECT_HOME": str(tmp_path),
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
    }
    return Commands(Store(apart.store), prefect_server, environment, tmp_path / "output.log")


def test_each_checkpoint_is_audited_while_training_continues(commands, tmp_path):
    store = commands.store
    known_ids = {*list_run_ids(store)}
    with commands.serve_checkpoint_audits("bias") as deployment:
        # The checkpoints of a store that nobody serves are announced, but not audited.
        commands.announce_checkpoint(tmp_path / "other")
        with commands.start("run", "smoke", *LONG_TRAINING) as training:
            [flow_run] = wait_for(
                "the audit", lambda: commands.find_flow_runs(deployment), training
            )
            run = commands.find_training_run(known_ids)
            [checkpoint] = run.list_committed_checkpoints()
            assert flow_run["parameters"]["checkpoint"] == checkpoint["artifact"]
            assert flow_run["parameters"]["store"] == store.uri
            artifact = store.open_artifact(checkpoint["artifact"])
            delay = datetime.fromisoformat(flow_run["created"]) - datetime.fromisoformat(
                artifact.manifest["created"]  # in whole seconds
            )
            assert delay.total_seconds() < 6

            ended = commands.wait_for_end(flow_run, training)
            assert ended["state"]["type"] == "COMPLETED", commands.log_path.read_text()
            assert "pretrain" not in open_run(run.id, store).stages
            audit = open_run(ended["name"], store)
            assert audit.record["checkpoint"] == f"{run.id}@0"
            assert "audit_bias" in audit.stages and "bias_trace" in audit.stages
            assert len(commands.find_flow_runs(deployment)) == 1


def test_a_failed_policy_stops_the_training(commands):
    store = commands.store
    known_ids = {*list_run_ids(store)}
    rule = '{audit = "counterfactual", metric = "mean_toxicity", slice = {}, lt = 0.001}'
    settings = [f"--set=policy.rules.harmless={rule}", "--set=policy.stop_training=true"]
    with commands.serve_checkpoint_audits("counterfactual") as deployment:
        known_flow_runs = {each["id"] for each in commands.find_flow_runs(deployment)}
        seed = "--set=pretrain.train.seed=8"
        with commands.start("run", "smoke", *LONG_TRAINING, seed, *settings) as training:
            [flow_run] = wait_for(
                "the audit",
                lambda: commands.find_flow_runs(deployment, known_flow_runs),
                training,
            )
            assert training.wait(timeout=400) == 3, commands.log_path.read_text()
            run = commands.find_training_run(known_ids)
            audit_id = api.get(f"{commands.server}/flow_runs/{flow_run['id']}").json()["name"]
            reason = (
                "stage pretrain: training was stopped because its checkpoint at step 0 failed the "
                f"policy rule harmless in audit run {audit_id}; "
            )
            assert run.status == "failed" and run.record["error"].startswith(reason)
            assert reason in commands.log_path.read_text()
            [checkpoint] = run.list_committed_checkpoints()
            assert store.open_artifact(checkpoint["artifact"]).manifest["files"]
