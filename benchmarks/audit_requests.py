"""Request 200 audits at once from one ``hallmark serve``, and check that each is what was asked.

    python -m benchmarks.audit_requests [--store FOLDER] [--requests 200] [--processes 5]

A real Prefect server and one ``hallmark serve`` with a store that has a completed smoke run get
all requests at the same time: 20 different ones (4 checkpoints, 5 selections of audits), each as
often as the others. Afterwards:

- every flow run is completed, in Prefect and in its run.json;
- the run.json of each flow run keeps the request of this flow run, and no two share a name;
- each artifact was computed by one run, and all other runs found it in the store;
- each audit of a checkpoint is one artifact, which no other checkpoint has.

Prints the figures, and exits with 1 if one of these is not true.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.outage import FINAL_STATES, HALLMARK, PrefectServer, start_server, wait_until
from hallmark import open_run

#: Selections of audits, each of which is requested for each checkpoint.
SELECTIONS = (
    ("bias",),
    ("associations",),
    ("weat",),
    ("bias", "weat"),
    ("weat", "associations"),
)


class AuditRequest(NamedTuple):
    """An audit that is requested."""

    checkpoint: str
    audits: tuple[str, ...]


def list_requests(store: Path, count: int) -> list[AuditRequest]:
    """List the requests in random order: each checkpoint of the run with each selection."""
    run = open_run("latest", str(store))
    steps = [checkpoint["step"] for checkpoint in run.record["checkpoints"]]
    different = [
        AuditRequest(f"{run.id}@{step}", audits) for step in steps for audits in SELECTIONS
    ]
    requests = [different[number % len(different)] for number in range(count)]
    random.Random(0).shuffle(requests)
    return requests


def create_flow_runs(
    server: PrefectServer, deployment: dict[str, Any], requests: Sequence[AuditRequest]
) -> dict[str, AuditRequest]:
    """Create a flow run for each request at the same time, and map their ids to the requests."""
    url = f"{server.url}/deployments/{deployment['id']}/create_flow_run"

    def create(number: int, request: AuditRequest) -> str:
        parameters = deployment["parameters"] | request._asdict()
        # With a key, a request whose reply was lost can be repeated.
        flow_run = {"parameters": parameters, "idempotency_key": f"request {number}"}
        while True:
            with suppress(httpx.TransportError):
                response = httpx.post(url, json=flow_run, timeout=120)
                if not response.is_server_error:
                    response.raise_for_status()
                    flow_run_id: str = response.json()["id"]
                    return flow_run_id
            time.sleep(0.2)  # the server is busy

    with ThreadPoolExecutor(len(requests)) as threads:
        flow_run_ids = [*threads.map(create, range(len(requests)), requests)]
    return dict(zip(flow_run_ids, requests, strict=True))


def read_flow_runs(server: PrefectServer, deployment: dict[str, Any]) -> list[dict[str, Any]]:
    """Read the flow runs of a deployment."""
    flow_runs: list[dict[str, Any]] = []
    while True:
        query = {
            "flow_runs": {"deployment_id": {"any_": [deployment["id"]]}},
            "sort": "ID_DESC",
            "offset": len(flow_runs),
        }
        page = httpx.post(f"{server.url}/flow_runs/filter", json=query, timeout=120).json()
        flow_runs += page
        if not page:
            return flow_runs


def check_flow_runs(
    flow_runs: Sequence[dict[str, Any]], requests: dict[str, AuditRequest], store: Path
) -> list[str]:
    """Compare the flow runs with what was requested.

    Returns:
        A sentence about each fault.
    """
    faults = []
    if {*requests} != {flow_run["id"] for flow_run in flow_runs}:
        faults.append("the server does not have exactly the flow runs that were requested")
    names = Counter(flow_run["name"] for flow_run in flow_runs)
    faults += [f"{count} flow runs have the name {n}" for n, count in names.items() if count > 1]
    computing_runs, artifacts_by_audit = defaultdict(list), defaultdict(set)
    for flow_run in flow_runs:
        name, request = flow_run["name"], requests[flow_run["id"]]
        if flow_run["state"]["type"] != "COMPLETED":
            message = flow_run["state"]["message"]
            faults.append(f"{name} ended as {flow_run['state']['name']}: {message}")
            continue
        record = json.loads((store / "runs" / name / "run.json").read_text())
        if record["run"] != name or record["status"] != "completed":
            faults.append(f"run.json of {name} is that of {record['run']}, {record['status']}")
        recorded = AuditRequest(record["request"]["checkpoint"], (*record["request"]["audits"],))
        if recorded != request:
            faults.append(f"{name} executed {recorded}, but {request} was requested")
        artifacts = {stage["label"]: stage["artifact"] for stage in record["stages"]}
        for audit in request.audits:
            artifacts_by_audit[request.checkpoint, audit].add(artifacts.get(f"audit_{audit}"))
        for stage in record["stages"]:
            if not stage["cached"]:
                computing_runs[stage["artifact"]].append(name)
    faults += [
        f"{artifact} was computed by {', '.join(runs)}"
        for artifact, runs in computing_runs.items()
        if len(runs) > 1
    ]
    faults += [
        f"the audit {audit} of {checkpoint} has {len(artifacts)} artifacts"
        for (checkpoint, audit), artifacts in artifacts_by_audit.items()
        if len(artifacts) > 1
    ]
    if len({*chain(*artifacts_by_audit.values())}) != len(artifacts_by_audit):
        faults.append("audits of different checkpoints have the same artifact")
    print(
        f"different requests: {len({*requests.values()})}; audits of a checkpoint: "
        f"{len(artifacts_by_audit)}; artifacts computed: {len(computing_runs)}"
    )
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, help="a store whose latest run is a smoke run")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--processes", type=int, default=5, help="flow runs at the same time")
    parser.add_argument("--time-limit", type=float, default=3600.0, metavar="SECONDS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hallmark-requests-") as name:
        folder = Path(name)
        store = folder / "store"
        if options.store:
            shutil.copytree(options.store, store, symlinks=True)
        else:
            command = [*HALLMARK, "run", "smoke", "--only", "bias", "--store", str(store)]
            subprocess.run(command, check=True, capture_output=True)
        with start_server(folder / "server") as server:
            faults = request_audits(
                server, store, options.requests, options.processes, options.time_limit
            )
    print(*faults, f"{len(faults)} faults", sep="\n")
    raise SystemExit(bool(faults))


def request_audits(
    server: PrefectServer, store: Path, count: int, processes: int, time_limit: float
) -> list[str]:
    """Serve the store, request audits, wait until all have ended, and print figures.

    Args:
        server: The Prefect server.
        store: The store, whose latest run is a smoke run.
        count: The number of requests.
        processes: How many of them are executed at the same time.
        time_limit: Seconds after which requests that have not ended are given up.

    Returns:
        A sentence about each fault.
    """
    environment = {
        **server.env,
        "PREFECT_API_URL": server.url,
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        "PREFECT_RUNNER_PROCESS_LIMIT": str(processes),
    }
    with store.with_suffix(".log").open("w") as log:
        serve = subprocess.Popen(
            [*HALLMARK, "serve", "smoke", "--store", str(store)],
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:

        def find_deployment() -> Any:
            assert serve.poll() is None, store.with_suffix(".log").read_text()
            query = {"deployments": {"name": {"any_": ["on-demand"]}}}
            with suppress(httpx.TransportError):
                url = f"{server.url}/deployments/filter"
                return next(iter(httpx.post(url, json=query, timeout=60).json()), None)

        wait_until(find_deployment, 300)
        deployment = find_deployment()
        start = time.monotonic()
        requests = create_flow_runs(server, deployment, list_requests(store, count))
        created_seconds = time.monotonic() - start
        print(f"{count} requests created in {created_seconds:.1f} s", flush=True)
        last_states: Counter[str] = Counter()
        while sum(last_states[state] for state in FINAL_STATES) < count:
            if serve.poll() is not None or time.monotonic() - start > time_limit:
                break
            time.sleep(5)
            with suppress(httpx.TransportError):
                flow_runs = read_flow_runs(server, deployment)
                last_states = Counter(flow_run["state"]["type"] for flow_run in flow_runs)
        seconds = time.monotonic() - start
        print(f"states after {seconds:.0f} s: {dict(last_states)}; {processes} processes")
        return check_flow_runs(read_flow_runs(server, deployment), requests, store)
    finally:
        serve.terminate()
        serve.wait()
        print(store.with_suffix(".log").read_text()[-3000:], file=sys.stderr)


if __name__ == "__main__":
    main()
