"""The end of served runs: the runner or its server stops, or a process is killed."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from hallmark.flows.dead_run_automation import SILENCE_SECONDS, SUSPENDED_EVENT
from hallmark.tasks.contract import PROJECT_ROOT
from tests.flows.test_serve import PrefectServer, api, created, post_until_answered, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


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

    def request_run(self):
        def find_deployment():
            found = api.get(f"{self.server.url}/deployments/name/pipeline/smoke")
            return found.json() if found.is_success else None

        deployment = wait_for("the deployment", find_deployment, self.process)
        url = f"{self.server.url}/deployments/{deployment['id']}/create_flow_run"
        request = {"parameters": deployment["parameters"]}
        self.flow_run_id = created(url, request, self.process)

    def start_run(self):
        """Request a run, and wait until its trainer works."""
        self.request_run()
        wait_for("the trainer", self.find_trainer, self.process)
        self.processes = psutil.Process(self.process.pid).children(recursive=True)

    def find_trainer(self):
        trainers = []
        for descendant in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # also a zombie
                if "hallmark.model.training.run" in descendant.cmdline():
                    trainers.append(descendant)
        return trainers

    def read_state(self):
        return api.get(f"{self.server.url}/flow_runs/{self.flow_run_id}").json()["state"]

    def wait_for_state(self, kind, seconds):
        def state():
            state = self.read_state()
            return state if state["type"] == kind else None

        return wait_for(kind, state, self.server.process, seconds)

    def set_state(self, **state):
        url = f"{self.server.url}/flow_runs/{self.flow_run_id}/set_state"
        post_until_answered(url, {"state": state}, self.process)

    def read_run(self):
        name = api.get(f"{self.server.url}/flow_runs/{self.flow_run_id}").json()["name"]
        path = self.store / "runs" / name / "run.json"
        return json.loads(path.read_text()) if path.exists() else None

    def check_no_process_is_left(self, seconds=30):
        _, alive = psutil.wait_procs(self.processes, timeout=seconds)
        assert not alive

    def stop(self):
        processes = [*getattr(self, "processes", [])]
        if self.process.poll() is None:
            processes += psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            self.process.wait()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
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
    run = served.read_run()
    assert (run["status"], run["error"]) == ("cancelled", "stopped by SIGTERM")
    served.check_no_process_is_left()
    assert f"{number.name}: stopping; all runs are cancelled\n" in served.log.read_text()


def test_serve_stops_a_run_that_was_deleted_in_prefect(served):
    served.start_run()
    url = f"{served.server.url}/flow_runs/{served.flow_run_id}"
    wait_for("the deletion", lambda: api.delete(url).is_success, served.process)
    served.process.terminate()
    assert served.process.wait(timeout=120) == 0, served.log.read_text()
    served.check_no_process_is_left()


#: Serves a flow whose process ends only when a file exists, after the run.
LINGERING_SCRIPT = """
import atexit, asyncio, time
from pathlib import Path
from prefect import flow

def wait_for_file():
    while not Path(__file__).with_name("end").exists():
        time.sleep(0.05)

@flow
def linger():
    atexit.register(wait_for_file)

if __name__ == "__main__":
    from hallmark.flows.deployment_runner import DeploymentRunner
    asyncio.run(DeploymentRunner().serve("lingering", [linger.to_deployment("lingering")]))
"""


def test_the_end_of_serve_keeps_the_state_of_a_run_that_has_ended(tmp_path):
    server = PrefectServer(tmp_path)
    script, log = tmp_path / "lingering.py", tmp_path / "serve.log"
    script.write_text(LINGERING_SCRIPT)
    env = {
        **os.environ,
        "PREFECT_API_URL": server.url,
        "PREFECT_HOME": str(tmp_path / "client"),
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        "PYTHONPATH": str(PROJECT_ROOT),
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(script)], env=env, cwd=tmp_path, stdout=output, stderr=output
        )
    try:

        def find_deployment():
            found = api.get(f"{server.url}/deployments/name/linger/lingering")
            return found.json()["id"] if found.is_success else None

        deployment_id = wait_for("the deployment", find_deployment, process)
        flow_run_id = created(
            f"{server.url}/deployments/{deployment_id}/create_flow_run", {}, process
        )

        def read_state_type():
            return api.get(f"{server.url}/flow_runs/{flow_run_id}").json()["state"]["type"]

        wait_for("the end of the run", lambda: read_state_type() == "COMPLETED", process)
        process.terminate()
        wait_for("the end of serve", lambda: "stopping" in log.read_text(), process)
        (tmp_path / "end").touch()
        assert process.wait(timeout=60) == 0, log.read_text()
        assert read_state_type() == "COMPLETED"
    finally:
        (tmp_path / "end").touch()
        process.kill()
        process.wait()
        server.stop(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_can_be_cancelled_after_a_restart_of_the_server(served, number):
    served.start_run()
    served.server.stop(number)
    wait_for("a warning", lambda: "does not respond" in served.log.read_text(), served.process)
    served.server.start()
    wait_for("a notice", lambda: "responds again" in served.log.read_text(), served.process)
    assert served.read_state()["type"] == "RUNNING"
    served.set_state(type="CANCELLING", name="Cancelling")
    served.wait_for_state("CANCELLED", 60)
    run = served.read_run()
    assert (run["status"], run["error"]) == ("cancelled", "stopped by SIGTERM")
    served.check_no_process_is_left()


def test_serve_stops_its_runs_without_a_server(served):
    served.start_run()
    served.server.stop(signal.SIGKILL)
    wait_for("a warning", lambda: "does not respond" in served.log.read_text(), served.process)
    served.process.terminate()
    assert served.process.wait(timeout=90) == 0, served.log.read_text()
    served.check_no_process_is_left()


def test_a_run_whose_process_and_runner_were_killed_becomes_crashed(served):
    served.start_run()
    for process in served.processes:
        process.kill()
    served.process.kill()
    served.process.wait()
    assert served.read_state()["type"] == "RUNNING"
    state = served.wait_for_state("CRASHED", 2 * SILENCE_SECONDS)
    assert "sent no heartbeat for 90 s" in state["message"]


def test_a_paused_run_ends_after_its_stage_and_is_resumed(tmp_path):
    served = Served(tmp_path / "store", tmp_path)
    try:
        served.request_run()

        def find_run(other_than=""):
            run = served.read_run()
            return run if run and run["stages"] and run["run"] != other_than else None

        first = wait_for("a stage", find_run, served.process)
        served.processes = psutil.Process(served.process.pid).children(recursive=True)
        # What Prefect's pages send for "Pause".
        timeout = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        details = {"pause_reschedule": True, "pause_timeout": timeout}
        served.set_state(type="PAUSED", name="Suspended", state_details=details)
        served.check_no_process_is_left(60)
        run = json.loads((served.store / "runs" / first["run"] / "run.json").read_text())
        assert (run["status"], run["error"]) == (
            "interrupted",
            "paused in Prefect, which will continue it as another run",
        )
        resource = {"id": [f"prefect.flow-run.{served.flow_run_id}"]}
        query = {"filter": {"event": {"name": [SUSPENDED_EVENT]}, "resource": resource}}

        def find_event():
            return api.post(f"{served.server.url}/events/filter", json=query).json()["events"]

        [event] = wait_for("the event", find_event, served.process)
        related = [one["prefect.resource.id"].rpartition(".")[0] for one in event["related"]]
        assert "prefect.deployment" in related
        assert served.read_state()["name"] == "Suspended"
        url = f"{served.server.url}/flow_runs/{served.flow_run_id}/resume"
        post_until_answered(url, {}, served.process)
        resumed = wait_for("the next run", lambda: find_run(first["run"]), served.process)
        assert resumed["stages"][0]["cached"]
    finally:
        served.stop()


RUN_WITHOUT_LONG_WAIT = """
import sys
from hallmark.flows import cli
from hallmark.flows.run_recording import frontend

frontend.server_wait_seconds = float(sys.argv[1])
cli.main(["run", "bounded.toml", "--until", "select_scored"])
"""


class CommandRun:
    """`hallmark run` in a folder with a small corpus, whose server dies during the first stages."""

    def __init__(self, folder, server, wait_seconds):
        (folder / "notes").mkdir()
        (folder / "notes" / "a.txt").write_text("Words of the corpus.")
        source = '[[ingest.sources]]\nkind = "text"\nname = "notes"\npath = "notes"\n'
        (folder / "bounded.toml").write_text(f'name = "bounded"\nstore = "store"\n{source}')
        env = {
            **os.environ,
            "PREFECT_API_URL": server.url,
            "PREFECT_HOME": str(folder / "client"),
            "PREFECT_CLIENT_MAX_RETRIES": "1",
        }
        command = [sys.executable, "-c", RUN_WITHOUT_LONG_WAIT, str(wait_seconds)]
        self.folder, self.output = folder, folder / "output"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                command, env=env, cwd=folder, stdout=output, stderr=output
            )
        wait_for("a stage", lambda: self.read_run()["stages"], self.process)
        server.stop(signal.SIGKILL)

    def read_run(self):
        files = [*self.folder.glob("store/runs/*/run.json")]
        return json.loads(files[0].read_text()) if files else {"stages": []}


def test_the_end_of_a_run_is_reported_to_a_server_that_returns(tmp_path):
    (tmp_path / "server").mkdir()
    server = PrefectServer(tmp_path / "server")
    command = CommandRun(tmp_path, server, 120)
    try:
        waiting = f"the Prefect server at {server.url} does not respond; waiting up to 120 s"
        wait_for("a warning", lambda: waiting in command.output.read_text(), command.process)
        run = command.read_run()
        assert run["status"] == "completed"
        server.start()
        assert command.process.wait(timeout=60) == 0, command.output.read_text()
        query = {"flow_runs": {"name": {"any_": [run["run"]]}}}
        [flow_run] = api.post(f"{server.url}/flow_runs/filter", json=query).json()
        assert flow_run["state"]["type"] == "COMPLETED"
        assert "Prefect was not notified" not in command.output.read_text()
        assert "Traceback" not in command.output.read_text()
    finally:
        command.process.kill()
        server.stop(signal.SIGKILL)


def test_a_command_says_that_prefect_was_not_told(tmp_path):
    (tmp_path / "server").mkdir()
    command = CommandRun(tmp_path, PrefectServer(tmp_path / "server"), 2)
    assert command.process.wait(timeout=120) == 0, command.output.read_text()
    run = command.read_run()
    output = command.output.read_text()
    assert run["status"] == "completed"
    assert (
        f"run {run['run']} is recorded as completed in the store, but Prefect was not notified"
        in output
    )
    assert "Traceback" not in output
