"""Measure the cost of a Prefect server that is away for a minute during training.

    python -m benchmarks.outage [STEPS] [SECONDS_AWAY]

Twice, two runs are started at the same time, so that both have the same load: the smoke config with
more steps, one thread for the trainer, each run with its own store and its own real
``prefect server start`` (home folder, port and process group). During training, the server of one
of the two goes away. The first time, it is killed (SIGKILL) and started again with the same
database; the second time, it is stopped (SIGSTOP, SIGCONT), so that connections hang.

Prints for each run the trainer's steps per second and its longest step, the seconds of the command,
its exit code, and the last states in run.json and in Prefect. Exits with 1 if a run was not
completed, or if its training speed was below 95 % of the other's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from hallmark import open_run
from hallmark.flows.runs import Run

SETTINGS = {
    "pretrain.train.threads": 1,
    "pretrain.train.checkpoint_every": 100_000,
    "pretrain.train.validate_every": 100_000,
}
#: Seconds of training before the server goes away.
SECONDS_BEFORE_OUTAGE = 15
HALLMARK = [sys.executable, "-m", "hallmark.flows.cli"]
FINAL_STATES = ("COMPLETED", "FAILED", "CRASHED")


class PrefectServer:
    """A ``prefect server start`` that can be killed and started again with its database.

    Args:
        home: Its new folder, for the database and the log.
        shows_pages: Whether it serves Prefect's pages for browsers.
    """

    def __init__(self, home: Path, shows_pages: bool = False) -> None:
        home.mkdir()
        self.port = find_free_port()
        self.url = f"http://127.0.0.1:{self.port}/api"
        self.env = {
            **os.environ,
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_UI_ENABLED": str(shows_pages),
            "PREFECT_SERVER_UI_API_URL": self.url,
        }
        self.env.pop("PREFECT_API_URL", None)
        self.log = (home / "server.log").open("a")

    def start(self) -> None:
        command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(self.port)]
        self.process = subprocess.Popen(
            command, env=self.env, stdout=self.log, stderr=self.log, start_new_session=True
        )
        wait_until(self._is_healthy, 180)

    def _is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=2).is_success
        except httpx.HTTPError:
            return False

    def send_signal(self, number: int) -> None:
        """Send a signal to the process group of the server."""
        os.killpg(self.process.pid, number)
        if number == signal.SIGKILL:
            self.process.wait()

    def read_run_state(self, run: str) -> str:
        """Return the state of a run in Prefect, after waiting for a final one."""
        query = {"flow_runs": {"name": {"any_": [run]}}}

        def fetch_state() -> str:
            response = httpx.post(f"{self.url}/flow_runs/filter", json=query, timeout=30)
            [flow_run] = response.json()
            return flow_run["state"]["type"]

        wait_until(lambda: fetch_state() in FINAL_STATES, 30)
        return fetch_state()


def find_free_port() -> int:
    """Find a port on loopback that nobody uses."""
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port: int = free_socket.getsockname()[1]
    return port


@contextmanager
def start_server(home: Path, shows_pages: bool = False) -> Iterator[PrefectServer]:
    """Start a server that is killed when the context is closed."""
    server = PrefectServer(home, shows_pages)
    server.start()
    try:
        yield server
    finally:
        server.send_signal(signal.SIGCONT)
        server.send_signal(signal.SIGKILL)


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until a condition is true; return False if it is not after some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def read_step_seconds(run: Run) -> list[float]:
    """Read the seconds of each training step of a run."""
    return run["pretrain"].read_telemetry("speed")["seconds"].to_pylist()


class RunReport(NamedTuple):
    """The result of one run."""

    steps_per_second: float
    longest_step_seconds: float
    command_seconds: float
    exit_code: int
    recorded_state: str
    """State in run.json."""
    prefect_state: str

    def format(self) -> str:
        return (
            f"{self.steps_per_second:.2f} steps per second, longest step "
            f"{self.longest_step_seconds:.2f} s, command {self.command_seconds:.2f} s, exit code "
            f"{self.exit_code}, run.json {self.recorded_state}, Prefect {self.prefect_state}"
        )


class TrainingRun:
    """The command ``hallmark run`` with a store in which only training is missing."""

    def __init__(self, corpus: Path, store: Path, server: PrefectServer, steps: int) -> None:
        shutil.copytree(corpus, store)
        self.store, self.server = store, server
        settings = SETTINGS | {"pretrain.train.steps": steps}
        self.errors = store.with_suffix(".stderr")
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            [*HALLMARK, "run", "smoke", *(f"--set={k}={v}" for k, v in settings.items())],
            env={**server.env, "HALLMARK_STORE": str(store), "PREFECT_API_URL": server.url},
            stdout=subprocess.DEVNULL,
            stderr=self.errors.open("w"),
        )

    def is_training(self) -> bool:
        return any(self.store.glob("work/pretrain-*/training-*"))

    def wait_for_report(self) -> RunReport:
        """Wait until the command ends, and report its result."""
        self.process.wait()
        seconds = time.monotonic() - self.start
        records = [json.loads(path.read_text()) for path in self.store.glob("runs/*/run.json")]
        [record] = [record for record in records if record["request"]["until"] is None]
        step_seconds = read_step_seconds(open_run(record["run"], str(self.store)))
        return RunReport(
            steps_per_second=len(step_seconds) / sum(step_seconds),
            longest_step_seconds=max(step_seconds),
            command_seconds=seconds,
            exit_code=self.process.returncode,
            recorded_state=record["status"],
            prefect_state=self.server.read_run_state(record["run"]),
        )


def compare_runs(
    folder: Path, name: str, steps: int, interrupt: Callable[[PrefectServer], None]
) -> bool:
    """Run once with and once without an outage, at the same time, and print both reports.

    Args:
        folder: Has the store "corpus", in which only training is missing.
        name: Name of the outage.
        steps: Training steps of each run.
        interrupt: Takes the server away, and brings it back.

    Returns:
        Whether both runs were completed at about the same speed.
    """
    with (
        start_server(folder / f"server-{name}") as interrupted_server,
        start_server(folder / f"undisturbed-server-{name}") as other_server,
    ):
        disturbed = TrainingRun(folder / "corpus", folder / name, interrupted_server, steps)
        undisturbed = TrainingRun(
            folder / "corpus", folder / f"undisturbed-{name}", other_server, steps
        )
        runs = {name: disturbed, "undisturbed": undisturbed}
        if not wait_until(lambda: all(run.is_training() for run in runs.values()), 180):
            raise SystemExit(disturbed.errors.read_text())
        time.sleep(SECONDS_BEFORE_OUTAGE)
        interrupt(interrupted_server)
        still_training = disturbed.process.poll() is None and disturbed.is_training()
        reports = {label: run.wait_for_report() for label, run in runs.items()}
    for label, report in reports.items():
        print(f"{label:<12} {report.format()}")
    speed_share = reports[name].steps_per_second / reports["undisturbed"].steps_per_second
    print(f"{name}: {speed_share:.1%} of the undisturbed speed")
    if not still_training:
        print("the training ended before the server was back: use more STEPS")
    print(disturbed.errors.read_text(), file=sys.stderr, flush=True)
    final_states = {(r.exit_code, r.recorded_state, r.prefect_state) for r in reports.values()}
    return (
        still_training and speed_share >= 0.95 and final_states == {(0, "completed", "COMPLETED")}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="?", type=int, default=5000)
    parser.add_argument("seconds_away", nargs="?", type=float, default=60.0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hallmark-outage-"))

    def kill_and_restart(server: PrefectServer) -> None:
        server.send_signal(signal.SIGKILL)
        time.sleep(options.seconds_away)
        server.start()

    def stop_and_continue(server: PrefectServer) -> None:
        server.send_signal(signal.SIGSTOP)
        time.sleep(options.seconds_away)
        server.send_signal(signal.SIGCONT)

    outages = {"killed": kill_and_restart, "stopped": stop_and_continue}
    try:
        env = {**os.environ, "HALLMARK_STORE": str(folder / "corpus")}
        command = [*HALLMARK, "run", "smoke", "--until", "pack"]
        subprocess.run(command, env=env, check=True, capture_output=True)
        print(
            f"{options.steps} steps; the server is away for {options.seconds_away:g} s", flush=True
        )
        results = [
            compare_runs(folder, name, options.steps, interrupt)
            for name, interrupt in outages.items()
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    raise SystemExit(not all(results))


if __name__ == "__main__":
    main()
