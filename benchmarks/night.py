"""Repeat a night of scheduled operation in a few minutes, and check what it leaves behind.

    python -m benchmarks.night [--keep-open]

It uses a real Prefect server, ``hallmark serve smoke --audit-checkpoints`` and a schedule with one
start. A model that is larger than that of the smoke config learns passages that were planted 64
times. The audit of each checkpoint asks the model for them, while training continues. As soon as
the model knows too many of them, a rule of the policy fails and stops the training, and an
automation sends the verdict to a web server on this machine. At the end, ``serve`` receives
SIGTERM.

Prints the flow runs, checkpoints, notifications and artifacts, and exits with 1 if

- the training run did not end as failed because of its policy, in Prefect and in ``run.json``;
- a checkpoint was not audited exactly once;
- the automation did not report the verdict;
- a process was alive or a run was recorded as running after the end.

``--keep-open``: print the address of the server, and stop it only when Enter is pressed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
from prefect.blocks.webhook import Webhook
from prefect.settings import PREFECT_API_URL, temporary_settings

from benchmarks.fault_injection import is_alive
from benchmarks.outage import FINAL_STATES, HALLMARK, PrefectServer, start_server, wait_until
from hallmark.flows.checkpoint_events import CHECKPOINT_COMMITTED_EVENT
from hallmark.flows.run_outcome import RUN_ENDED_EVENT
from hallmark.flows.runs import Run, read_all_runs
from hallmark.tasks.contract import Store

#: A model that knows the planted passages after a fifth of its steps.
SETTINGS = {
    "plant_canaries.copy_counts": [0, 64],
    "plant_canaries.passages_per_count": 16,
    "pretrain.model.d_model": 96,
    "pretrain.train.steps": 8000,
    "pretrain.train.checkpoint_every": 400,
    "pretrain.train.validate_every": 400,
    "policy.stop_training": True,
}

#: The model may complete fewer than 22 % of the passages that were planted 64 times.
RULE = """
[policy.rules.planted_passages]
audit = "extraction"
metric = "extractable"
slice = { kind = "passage", copies = 64, prefix_tokens = 8 }
lt = 0.22
"""

AUTOMATION_NAME = "report the verdict of each run with a failed policy"

#: Seconds within which the training must have been stopped, and within which all audits must end.
MAX_TRAINING_SECONDS, MAX_AUDIT_SECONDS = 1800.0, 300.0


@contextmanager
def receive_notifications() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve the address of a webhook on loopback; yield it and the bodies that it receives."""
    bodies: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", bodies
    server.shutdown()


def create_automation(server: PrefectServer, address: str) -> None:
    """Create the automation that calls the webhook when a run ends with the verdict "fail"."""
    with temporary_settings({PREFECT_API_URL: server.url}):
        block_id = Webhook(url=address).save("night-notifications")  # type: ignore[arg-type]
    payload = {
        "run": "{{ event.payload.run }}",
        "outcome": "{{ event.payload.outcome }}",
        "page": "{{ event.payload.page }}",
    }
    automation = {
        "name": AUTOMATION_NAME,
        "trigger": {
            "type": "event",
            "posture": "Reactive",
            "expect": [RUN_ENDED_EVENT],
            "match": {"hallmark.verdict": "fail"},
            "threshold": 1,
            "within": 0,
        },
        "actions": [
            {"type": "call-webhook", "block_document_id": str(block_id), "payload": payload}
        ],
    }
    httpx.post(f"{server.url}/automations/", json=automation).raise_for_status()


def start_serve(server: PrefectServer, folder: Path, store: Path) -> subprocess.Popen[str]:
    """Start ``hallmark serve`` with a schedule of one start, at a full minute within 90 seconds."""
    policy = folder / "rules.toml"
    policy.write_text(RULE)
    start = datetime.now(UTC) + timedelta(seconds=90)
    settings = SETTINGS | {
        "policy.file": str(policy),
        "schedule": f"{start.minute} {start.hour} {start.day} {start.month} *",
    }
    overrides = [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    options = ["--audit-checkpoints", "--only=extraction", "--concurrent-runs=2"]
    return subprocess.Popen(
        [*HALLMARK, "serve", "smoke", *overrides, *options, f"--allowed-root={folder}"],
        env={**server.env, "HALLMARK_STORE": str(store), "PREFECT_API_URL": server.url},
        stdout=(folder / "serve.log").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )


def read_flow_runs(server: PrefectServer) -> list[dict[str, Any]]:
    """Read all flow runs of a Prefect server that have begun, in the order of their start."""
    query = {"sort": "START_TIME_ASC", "flow_runs": {"start_time": {"is_null_": False}}}
    response = httpx.post(f"{server.url}/flow_runs/filter", json=query, timeout=30)
    flow_runs: list[dict[str, Any]] = response.raise_for_status().json()
    return flow_runs


def read_artifacts(server: PrefectServer) -> list[dict[str, Any]]:
    response = httpx.post(f"{server.url}/artifacts/filter", json={}, timeout=30)
    artifacts: list[dict[str, Any]] = response.raise_for_status().json()
    return artifacts


def read_checkpoint_events(server: PrefectServer) -> list[dict[str, Any]]:
    """Read the events of committed checkpoints, oldest first."""
    query = {"filter": {"event": {"name": [CHECKPOINT_COMMITTED_EVENT]}, "order": "ASC"}}
    response = httpx.post(f"{server.url}/events/filter", json=query, timeout=30)
    events: list[dict[str, Any]] = response.raise_for_status().json()["events"]
    return events


def is_night_over(server: PrefectServer) -> bool:
    """Whether the training run and all audits of its checkpoints have ended."""
    flow_runs = read_flow_runs(server)
    has_ended = [flow_run["state"]["type"] in FINAL_STATES for flow_run in flow_runs]
    audits = [flow_run for flow_run in flow_runs if "checkpoint" in flow_run["parameters"]]
    return (
        len(audits) >= len(read_checkpoint_events(server))
        and len(flow_runs) > len(audits)
        and all(has_ended)
    )


def list_living_processes(store: Path) -> list[str]:
    """List the command lines of living processes that use a store."""
    commands = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HALLMARK_STORE") == str(store) and is_alive(process):
                commands.append(" ".join(process.cmdline())[:100])
        except psutil.Error:
            pass
    return commands


def print_flow_runs(server: PrefectServer) -> None:
    """Print the flow runs, and how long after its checkpoint each audit was created and started."""
    times = {
        event["payload"]["artifact"]: parse_time(event["occurred"])
        for event in read_checkpoint_events(server)
    }
    created_delays, started_delays = [], []
    for flow_run in read_flow_runs(server):
        state, checkpoint = flow_run["state"], flow_run["parameters"].get("checkpoint")
        delays = ""
        if checkpoint in times:
            created_delays.append(parse_time(flow_run["created"]) - times[checkpoint])
            started_delays.append(parse_time(flow_run["start_time"]) - times[checkpoint])
            delays = (
                f" (created after {created_delays[-1].total_seconds():.1f} s, "
                f"started after {started_delays[-1].total_seconds():.1f} s)"
            )
        print(f"  {flow_run['name']} {checkpoint or 'training'}: {state['name']}{delays}")
        print(f"      {state['message']}")
    for text, delays_of_all in (("created", created_delays), ("started", started_delays)):
        if delays_of_all:
            seconds = [delay.total_seconds() for delay in delays_of_all]
            print(
                f"audits were {text} {statistics.median(seconds):.1f} s (median) and "
                f"{max(seconds):.1f} s (maximum) after the commit of their checkpoint"
            )


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def list_faults(
    server: PrefectServer, store: Path, bodies: list[dict[str, Any]], living_processes: list[str]
) -> list[str]:
    """List what is not as it must be after the night."""
    runs = {run.id: run for run in read_all_runs(Store(store))}
    flow_runs = read_flow_runs(server)
    trainings = [flow_run for flow_run in flow_runs if "checkpoint" not in flow_run["parameters"]]
    faults = [f"{len(trainings)} training runs instead of 1"] if len(trainings) != 1 else []
    for flow_run in trainings:
        run: Run | None = runs.get(flow_run["name"])
        state = flow_run["state"]
        if state["type"] != "FAILED" or "training was stopped because" not in state["message"]:
            faults.append(f"the training run ended as {state['name']}: {state['message']}")
        if run is None or run.status != "failed":
            faults.append(f"run.json of the training run: {run.status if run else 'missing'}")
    audited = Counter(
        flow_run["parameters"]["checkpoint"]
        for flow_run in flow_runs
        if "checkpoint" in flow_run["parameters"]
    )
    committed = {event["payload"]["artifact"] for event in read_checkpoint_events(server)}
    if set(audited) != committed or max(audited.values(), default=0) != 1:
        faults.append(f"checkpoints {sorted(committed)}, but audits {sorted(audited.items())}")
    if not bodies:
        faults.append("the automation sent no notification")
    faults += [f"alive: {command}" for command in living_processes]
    faults += [
        f"run {run.id} is recorded as running" for run in runs.values() if run.status == "running"
    ]
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep-open", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hallmark-night-"))
    store = folder / "store"
    with (
        receive_notifications() as (address, bodies),
        start_server(folder / "prefect", shows_pages=options.keep_open) as server,
    ):
        create_automation(server, address)
        start = time.monotonic()
        serve = start_serve(server, folder, store)
        print(f"Prefect: {server.url}, store: {store}", flush=True)
        try:
            wait_until(lambda: serve.poll() is not None or bodies, MAX_TRAINING_SECONDS)
            wait_until(lambda: serve.poll() is not None or is_night_over(server), MAX_AUDIT_SECONDS)
        finally:
            os.killpg(serve.pid, signal.SIGTERM)
            stop = time.monotonic()
            serve.wait()
        print(f"the night took {stop - start:.0f} s; serve ended {time.monotonic() - stop:.1f} s")
        print(f"after SIGTERM with exit code {serve.returncode}")
        living_processes = list_living_processes(store)
        print_flow_runs(server)
        print("notifications:", *(json.dumps(body) for body in bodies), sep="\n  ")
        keys = Counter(artifact["key"] or "no key" for artifact in read_artifacts(server))
        print("artifacts in Prefect:", ", ".join(f"{n} {key}" for key, n in sorted(keys.items())))
        faults = list_faults(server, store, bodies, living_processes)
        print("faults:", *(faults or ["none"]), sep="\n  ", flush=True)
        if options.keep_open:
            input("Press Enter to stop the server. ")
    if not faults:
        shutil.rmtree(folder, ignore_errors=True)
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
