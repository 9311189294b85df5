"""The end of served runs: the runner or its server stops, or a process is killed."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.flows.test_serve import PrefectServer, api, created, wait_for

pytestmark = pytest.mark.slow


class Served:
    """A `hallmark serve` with its own Prefect server, and a run that trains for very long."""

    def __init__(self, store, folder):
        self.store = store
        self.server = PrefectServer(folder)
        self.log = folder / "serve.log"
        env = {
            **os.environ,
            "HALLMARK_STORE": str(store),
            "PREFECT_API_URL": self.server.url,
            "PREFECT_HOME": str(folder / "client"),
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        }
        settings = ("pretrain.train.steps=1000000", "pretrain.train.checkpoint_every=1000000")
        overrides = [part for setting in settings for part in ("--set", setting)]
        command = [sys.executable, "-m", "hallmark.flows.cli", "serve", "smoke", *overrides]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def start_run(self):
        """Request a run, and wait until its trainer works."""

        def find_deployment():
            found = api.get(f"{self.server.url}/deployments/name/pipeline/smoke")
            return found.json() if found.is_success else None

        deployment = wait_for("the deployment", find_deployment, self.process)
        url = f"{self.server.url}/deployments/{deployment['id']}/create_flow_run"
        request = {"parameters": deployment["parameters"]}
        self.flow_run_id = created(url, request, self.process)
        wait_for("the trainer", self.find_trainer, self.process)
        self.processes = psutil.Process(self.process.pid).children(recursive=True)

    def find_trainer(self):
        descendants = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in descendants if "hallmark.model.training.run" in one.cmdline()]

    def read_state(self):
        return api.get(f"{self.server.url}/flow_runs/{self.flow_run_id}").json()["state"]

    def wait_for_state(self, kind, seconds):
        def state():
            state = self.read_state()
            return state if state["type"] == kind else None

        return wait_for(kind, state, self.server.process, seconds)

    def read_status(self):
        name = api.get(f"{self.server.url}/flow_runs/{self.flow_run_id}").json()["name"]
        return json.loads((self.store / "runs" / name / "run.json").read_text())["status"]

    def check_no_process_is_left(self, seconds=30):
        _, alive = psutil.wait_procs(self.processes, timeout=seconds)
        assert not alive

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for process in [one for one in getattr(self, "processes", []) if one.is_running()]:
            process.kill()
        self.server.stop(signal.SIGKILL)


@pytest.fixture
def served(apart, tmp_path):
    served = Served(apart.store, tmp_path)
    yield served
    served.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_runs_of_serve(served, number):
    served.start_run()
    served.process.send_signal(number)
    assert served.process.wait(timeout=60) == 0, served.log.read_text()
    state = served.read_state()
    assert (state["type"], state["message"]) == ("CANCELLED", "Runner is shutting down.")
    assert served.read_status() != "running"
    served.check_no_process_is_left()
    assert f"{number.name}: stopping; all runs are cancelled\n" in served.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_can_be_cancelled_after_a_restart_of_the_server(served, number):
    served.start_run()
    served.server.stop(number)
    wait_for("a warning", lambda: "does not answer" in served.log.read_text(), served.process)
    served.server.start()
    wait_for("a notice", lambda: "answers again" in served.log.read_text(), served.process)
    assert served.read_state()["type"] == "RUNNING"
    request = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    url = f"{served.server.url}/flow_runs/{served.flow_run_id}/set_state"
    api.post(url, json=request).raise_for_status()
    served.wait_for_state("CANCELLED", 60)
    assert served.read_status() != "running"
    served.check_no_process_is_left()


def test_serve_stops_its_runs_without_a_server(served):
    served.start_run()
    served.server.stop(signal.SIGKILL)
    wait_for("a warning", lambda: "does not answer" in served.log.read_text(), served.process)
    served.process.terminate()
    assert served.process.wait(timeout=90) == 0, served.log.read_text()
    served.check_no_process_is_left()
