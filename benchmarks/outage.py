"""A Prefect server that goes away for a minute in mid-training: what it costs the run.

    python -m benchmarks.outage [STEPS] [SECONDS_AWAY]

Twice two runs at the same time, so that both meet the same load: the smoke config with more steps,
one thread a trainer, each run with a store of its own and a real ``prefect server start`` of its
own (home, port and process group). The server of one of the two goes away in mid-training: first
it is killed (SIGKILL) and started again on the same database, then it is stopped (SIGSTOP,
SIGCONT), so that connections hang. Prints for each run the trainer's steps per second and its
longest step, the whole command's seconds, its exit code, and the last states in run.json and in
Prefect. Exits with 1 where a run did not end completed, or trained at less than 95 % of the speed
of the other.
"""

from __future__ import annotations

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
from typing import Any

import httpx

from hallmark import open_run
from hallmark.flows.runs import Run

OPTIONS = {
    "pretrain.train.threads": 1,
    "pretrain.train.checkpoint_every": 100_000,
    "pretrain.train.validate_every": 100_000,
}
#: Seconds of training before the server goes away.
BEFORE = 15
HALLMARK = [sys.executable, "-m", "hallmark.flows.cli"]
FINAL = ("COMPLETED", "FAILED", "CRASHED")


class Server:
    """A ``prefect server start`` that can be killed and started again on its database."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/api"
        self.env = {
            **os.environ,
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_UI_ENABLED": "false",
        }
        self.env.pop("PREFECT_API_URL", None)
        self.log = (home / "server.log").open("a")

    def start(self) -> None:
        command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(self.port)]
        self.process = subprocess.Popen(
            command, env=self.env, stdout=self.log, stderr=self.log, start_new_session=True
        )
        wait_for(self._answers, 180)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=2).is_success
        except httpx.HTTPError:
            return False

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)
        if number == signal.SIGKILL:
            self.process.wait()

    def state(self, run: str) -> str:
        """Prefect's own state of a run, after some time for it to become a final one."""
        query = {"flow_runs": {"name": {"any_": [run]}}}

        def asked() -> str:
            [found] = httpx.post(f"{self.url}/flow_runs/filter", json=query, timeout=30).json()
            return found["state"]["type"]

        wait_for(lambda: asked() in FINAL, 30)
        return asked()


@contextmanager
def serving(home: Path) -> Iterator[Server]:
    server = Server(home)
    server.start()
    try:
        yield server
    finally:
        server.signal(signal.SIGCONT)
        server.signal(signal.SIGKILL)


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def step_seconds(run: Run) -> list[float]:
    """Seconds of each training step of a run."""
    return run["pretrain"].read_telemetry("speed")["seconds"].to_pylist()


class Training:
    """The command, with a store that has all but the training, and a server."""

    def __init__(self, corpus: Path, store: Path, server: Server, steps: int) -> None:
        shutil.copytree(corpus, store)
        self.store, self.server = store, server
        options = OPTIONS | {"pretrain.train.steps": steps}
        self.errors = store.with_suffix(".stderr")
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [*HALLMARK, "run", "smoke", *(f"--set={k}={v}" for k, v in options.items())],
            env={**server.env, "HALLMARK_STORE": str(store), "PREFECT_API_URL": server.url},
            stdout=subprocess.DEVNULL,
            stderr=self.errors.open("w"),
        )

    def trains(self) -> bool:
        return any(self.store.glob("work/pretrain-*/training-*"))

    def finish(self) -> dict[str, Any]:
        self.process.wait()
        seconds = time.monotonic() - self.began
        records = [json.loads(path.read_text()) for path in self.store.glob("runs/*/run.json")]
        [record] = [record for record in records if not record.get("last_stage")]
        took = step_seconds(open_run(record["run"], str(self.store)))
        return {
            "steps per second": len(took) / sum(took),
            "longest step": max(took),
            "seconds": seconds,
            "exit": self.process.returncode,
            "run.json": record["status"],
            "Prefect": self.server.state(record["run"]),
        }


def pair(base: Path, name: str, steps: int, outage: Callable[[Server], None]) -> bool:
    """One run with and one without an outage, at the same time; whether all is well."""
    with serving(base / f"server-{name}") as away, serving(base / f"other-{name}") as stays:
        runs = {
            name: Training(base / "corpus", base / name, away, steps),
            "undisturbed": Training(base / "corpus", base / f"beside-{name}", stays, steps),
        }
        if not wait_for(lambda: all(run.trains() for run in runs.values()), 180):
            raise SystemExit(runs[name].errors.read_text())
        time.sleep(BEFORE)
        outage(away)
        goes_on = runs[name].process.poll() is None and runs[name].trains()
        found = {label: run.finish() for label, run in runs.items()}
    for label, figures in found.items():
        said = ", ".join(
            f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items()
        )
        print(f"{label:<12} {said}")
    share = found[name]["steps per second"] / found["undisturbed"]["steps per second"]
    print(f"{name}: {share:.1%} of the undisturbed speed")
    if not goes_on:
        print("the training ended before the server was back: give more STEPS")
    print(runs[name].errors.read_text(), file=sys.stderr, flush=True)
    ends = {(f["exit"], f["run.json"], f["Prefect"]) for f in found.values()}
    return goes_on and share >= 0.95 and ends == {(0, "completed", "COMPLETED")}


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    base = Path(tempfile.mkdtemp(prefix="hallmark-outage-"))

    def killed(server: Server) -> None:
        server.signal(signal.SIGKILL)
        time.sleep(seconds)
        server.start()

    def stopped(server: Server) -> None:
        server.signal(signal.SIGSTOP)
        time.sleep(seconds)
        server.signal(signal.SIGCONT)

    try:
        env = {**os.environ, "HALLMARK_STORE": str(base / "corpus")}
        corpus = [*HALLMARK, "run", "smoke", "--until", "pack"]
        subprocess.run(corpus, env=env, check=True, capture_output=True)
        print(f"{steps} steps; the server is away for {seconds:g} s", flush=True)
        good = [pair(base, outage.__name__, steps, outage) for outage in (killed, stopped)]
    finally:
        shutil.rmtree(base, ignore_errors=True)
    raise SystemExit(not all(good))


if __name__ == "__main__":
    main()
