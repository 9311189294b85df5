"""Each checkpoint is audited while training continues, by a deployment on a real Prefect server."""

import os
import subprocess
import sys
from datetime import datetime

import pytest

from hallmark import open_run
from hallmark.flows.runs import list_run_ids
from hallmark.tasks.contract import Store
from tests.flows.test_checkpoint_events import read_events, train
from tests.flows.test_serve import api, prefect_server, wait_for

__all__ = ["prefect_server"]

pytestmark = pytest.mark.slow


@pytest.fixture
def environment(apart, prefect_server, tmp_path):
    return {
        **os.environ,
        "HALLMARK_STORE": str(apart.store),
        "PREFECT_API_URL": prefect_server,
        "PREFECT_HOME": str(tmp_path),
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
    }


def start_command(environment, log, *arguments):
    command = [sys.executable, "-m", "hallmark.flows.cli", *arguments]
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def test_each_checkpoint_is_audited_while_training_continues(
    apart, prefect_server, environment, tmp_path
):
    store = Store(apart.store)
    known_ids = {*list_run_ids(store)}
    log_path = tmp_path / "output.log"
    with log_path.open("w") as log:
        serve = start_command(
            environment, log, "serve", "smoke", "--audit-checkpoints", "--only", "bias"
        )
        name = f"each-checkpoint-{store.compute_secret_id()[:8]}"
        training = None
        try:

            def find_deployment():
                answer = api.get(f"{prefect_server}/deployments/name/audit/{name}")
                return answer.json() if answer.is_success else None

            deployment = wait_for("the deployment", find_deployment, serve)
            assert deployment["parameters"]["only"] == ["bias"]
            # The checkpoints of a store that nobody serves are announced, but not audited.
            read_events(prefect_server, lambda: train(Store(tmp_path / "other"), [0]), 0)
            # With one checkpoint before its end, which is long after the checkpoint.
            training = start_command(
                environment,
                log,
                *("run", "smoke", "--until", "pretrain", "--set=pretrain.train.seed=7"),
                *("--set=pretrain.train.steps=6000", "--set=pretrain.train.checkpoint_every=6000"),
            )

            def find_flow_runs():
                query = {"deployments": {"id": {"any_": [deployment["id"]]}}}
                return api.post(f"{prefect_server}/flow_runs/filter", json=query).json()

            [flow_run] = wait_for("the audit", find_flow_runs, training)
            [run_id] = [
                run_id
                for run_id in {*list_run_ids(store)} - known_ids
                if open_run(run_id, store).flow == "pipeline"
            ]
            run = open_run(run_id, store)
            [checkpoint] = run.list_committed_checkpoints()
            assert flow_run["parameters"]["checkpoint"] == checkpoint["artifact"]
            assert flow_run["parameters"]["store"] == store.uri
            artifact = store.open_artifact(checkpoint["artifact"])
            delay = datetime.fromisoformat(flow_run["created"]) - datetime.fromisoformat(
                artifact.manifest["created"]  # in whole seconds
            )
            assert delay.total_seconds() < 6

            def read_final_state():
                state = api.get(f"{prefect_server}/flow_runs/{flow_run['id']}").json()
                return state if state["state"]["type"] in ("COMPLETED", "FAILED") else None

            ended = wait_for("the end of the audit", read_final_state, training, 240)
            assert ended["state"]["type"] == "COMPLETED", log_path.read_text()
            assert training.poll() is None and "pretrain" not in open_run(run_id, store).stages
            audit = open_run(ended["name"], store)
            assert audit.record["checkpoint"] == f"{run_id}@0"
            assert "audit_bias" in audit.stages and "bias_trace" in audit.stages
            assert len(find_flow_runs()) == 1
        finally:
            for process in (serve, training):
                if process is not None:
                    process.terminate()
            for process in (serve, training):
                if process is not None:
                    process.wait(timeout=60)
