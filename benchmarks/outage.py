"""A Prefect server that goes away for a minute in mid-training: what it costs the run.

    python -m benchmarks.outage [STEPS] [SECONDS_AWAY]

Three runs of the smoke config with more steps, each in a store of its own, all with one corpus and
against one real ``prefect server start`` with a home, a port and a process group of its own:
undisturbed, with the server killed (SIGKILL) and started again on the same database, and with the
server stopped (SIGSTOP, SIGCONT), so that connections hang. Prints for each the trainer's steps
per second over the time of the outage (for the undisturbed run: over as long a time), the whole
command's seconds, its exit code, and the final states in run.json and in Prefect. Exits with 1
where a run did not end completed or trained at less than 95 % of the undisturbed speed.
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
from collections.abc import Callable
from pathlib import Path

import httpx
import pyarrow.parquet as pq

OPTIONS = {
    "pretrain.train.checkpoint_every": 100_000,
    "pretrain.train.validate_every": 100_000,
}
#: Seconds of training before the server goes away.
BEFORE = 15


class Server:
    """A ``prefect server start`` that can be killed and started again on its database."""

    def __init__(self, home: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/api"
        self.env = {
            **os.environ, "PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_UI_ENABLED": "false",
        }  # fmt: skip
        self.env.pop("PREFECT_API_URL", None)
        self.log = (home / "server.log").open("a")

    def start(self) -> None:
        command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(self.port)]
        self.process = subprocess.Popen(
            command, env=self.env, stdout=self.log, stderr=self.log, start_new_session=True
        )
        wait_for(lambda: self.process.poll() is not None or self._answers(), 180)

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
        """Prefect's own state of a run, as soon as it is a final one."""
        query = {"flow_runs": {"name": {"any_": [run]}}}

        def asked() -> str:
            [found] = httpx.post(f"{self.url}/flow_runs/filter", json=query, timeout=30).json()
            return found["state"]["type"]

        wait_for(lambda: asked() in ("COMPLETED", "FAILED", "CRASHED"), 30)
        return asked()


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def steps(store: Path) -> list[tuple[float, int]]:
    """When which steps were done, as the trainer notes them in its work area and its artifact."""
    found: list[tuple[float, int]] = []
    for path in store.glob("artifacts/pretrain/*/*/speed.parquet"):
        rows = pq.read_table(path).to_pylist()
        found += [(row["seconds"], row["step"]) for row in rows]
    return found


def trained(base: Path, name: str, count: int, server: Server, outage: Callable[[], None]) -> dict:
    """Run in a copy of the base store; ``outage`` is called once the trainer has trained."""
    store = base / name
    shutil.copytree(base / "corpus", store)
    command = [sys.executable, "-m", "flows.cli", "run", "smoke", "--json"]
    options = OPTIONS | {"pretrain.train.steps": count}
    command += [f"--set={key}={value}" for key, value in options.items()]
    env = {**os.environ, "HALLMARK_STORE": str(store), "PREFECT_API_URL": server.url,
           "PREFECT_HOME": str(base / "client")}  # fmt: skip
    errors = (base / f"{name}.stderr").open("w")
    began = time.monotonic()
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)
    training = lambda: list(store.glob("work/pretrain-*/training"))  # noqa: E731
    if not wait_for(lambda: process.poll() is not None or training(), 180):
        raise SystemExit(f"{name}: no training began")
    if not wait_for(lambda: process.poll() is not None, BEFORE):
        outage()
    process.communicate()
    seconds = time.monotonic() - began
    told = (base / f"{name}.stderr").read_text()
    records = [json.loads(path.read_text()) for path in store.glob("runs/*/run.json")]
    if not (records := [record for record in records if not record.get("until")]):
        raise SystemExit(f"{name}: there is no run; the command said: {told}")
    record = records[0]
    return {
        "name": name,
        "code": process.returncode,
        "seconds": seconds,
        "steps": speed(store),
        "run": record["status"],
        "prefect": server.state(record["run"]),
        "said": told.count("\n"),
    }


def speed(store: Path) -> float:
    """Steps per second of the whole training, by the trainer's own clock."""
    rows = steps(store)
    seconds = sum(took for took, _ in rows)
    return len(rows) / seconds if seconds else 0.0


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    away = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    base = Path(tempfile.mkdtemp(prefix="hallmark-outage-"))
    (base / "server").mkdir()
    server = Server(base / "server")
    server.start()

    def killed() -> None:
        server.signal(signal.SIGKILL)
        time.sleep(away)
        server.start()

    def stopped() -> None:
        server.signal(signal.SIGSTOP)
        time.sleep(away)
        server.signal(signal.SIGCONT)

    try:
        corpus = [sys.executable, "-m", "flows.cli", "run", "smoke", "--until", "pack"]
        env = {**os.environ, "HALLMARK_STORE": str(base / "corpus"), "PREFECT_API_URL": server.url}
        subprocess.run(corpus, env=env, check=True, capture_output=True)
        print(f"{count} steps; the server is away for {away:g} s")
        results = []
        for name, outage in (("undisturbed", lambda: None), ("killed", killed),
                             ("stopped", stopped)):  # fmt: skip
            results.append(found := trained(base, name, count, server, outage))
            share = found["steps"] / results[0]["steps"]
            print(f"{name:<12} {found['steps']:7.2f} steps/s ({share:6.1%}), "
                  f"{found['seconds']:6.1f} s, exit {found['code']}, run.json: {found['run']}, "
                  f"Prefect: {found['prefect']}, lines of stderr: {found['said']}",
                  flush=True)  # fmt: skip
            print((base / f"{name}.stderr").read_text(), file=sys.stderr)
    finally:
        server.signal(signal.SIGCONT)
        server.signal(signal.SIGKILL)
        shutil.rmtree(base, ignore_errors=True)
    good = all(r["run"] == "completed" and r["code"] == 0 for r in results)
    fast = all(r["steps"] >= 0.95 * results[0]["steps"] for r in results)
    raise SystemExit(not (good and fast))


if __name__ == "__main__":
    main()
