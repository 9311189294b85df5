"""Run ``hallmark run smoke`` on an object store whose replies fail, and compare every digest.

    python -m benchmarks.lost_replies [--kinds "create manifest,put data"]

The run uses a moto S3 server on loopback through a proxy (``benchmarks.lossy_proxy``). First, an
undisturbed run gives the digests and the kinds of requests (operation and object type). Then
follow, each with its own store:

- two runs in which every request loses its first reply: by a reply 504, and by a reset connection;
- for each kind of request, runs in which the replies to this kind alone are delayed, duplicated
  (the server gets the request twice), truncated and reset in turn, until each of the four faults
  has happened.

After each run the content digests of all stages and checkpoints must equal those of the undisturbed
run, and every file of the store is compared with its manifest. Prints a row for each run, and exits
with 1 if one differs. It takes about half an hour on two cores.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

from benchmarks.lossy_proxy import Fault, Kind, LossyProxy, Request
from hallmark.flows.commands.verify import verify_store
from hallmark.flows.runs import open_run
from hallmark.tasks.contract import HallmarkError, Store

BUCKET = "hallmark"
#: The same in all stores, because the hashes in ledgers are keyed by it.
SECRET = b"k" * 32
FAULTS_IN_TURN: tuple[Fault, ...] = ("delay", "duplicate", "truncate", "reset")
COMMAND = [sys.executable, "-m", "hallmark.flows.cli", "run", "smoke", "--json"]

ChooseFault = Callable[[Request], Fault | None]


@dataclass
class Outcome:
    """The result of one run, and the requests and faults that it saw."""

    exit_code: int
    error: str
    """Last line of the error output, if the run failed."""
    digests: dict[str, str]
    damage_messages: list[str]
    seconds: float
    requests: Counter[Kind]
    faults: Counter[tuple[Kind, Fault]]


def fail_no_reply(request: Request) -> Fault | None:
    return None


def fail_first_replies(fault: Fault) -> ChooseFault:
    """Return a chooser of faults for the first reply to each request."""
    return lambda request: None if request.attempt else fault


class FaultsInTurn:
    """Chooses the four faults in turn for one kind of request, at most two for each request."""

    def __init__(self, kind: Kind, first_turn: int) -> None:
        self.kind, self.turn = kind, first_turn

    def __call__(self, request: Request) -> Fault | None:
        if request.kind != self.kind or request.attempt > 1:
            return None
        self.turn += 1
        return FAULTS_IN_TURN[(self.turn - 1) % len(FAULTS_IN_TURN)]


class ObjectStoreServer:
    """An S3 server on loopback on which smoke is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.server = ThreadedMotoServer(port=0, verbose=False)
        self.server.start()
        host, port = self.server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)

    def run_smoke(self, name: str, choose_fault: ChooseFault) -> Outcome:
        """Run smoke with a new store through the proxy, then read the store without the proxy."""
        uri, cache = f"s3://{BUCKET}/{name}", self.folder / name
        start = time.monotonic()
        with LossyProxy(self.url, choose_fault) as proxy:
            os.environ |= {"AWS_ENDPOINT_URL": proxy.url, "XDG_CACHE_HOME": str(cache)}
            Store(uri).set_secret_if_absent(SECRET)
            process = subprocess.run(
                COMMAND,
                env={**os.environ, "HALLMARK_STORE": uri},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        seconds = time.monotonic() - start
        os.environ["AWS_ENDPOINT_URL"] = self.url
        shutil.rmtree(cache, ignore_errors=True)  # read objects, not cached copies
        lines = process.stderr.strip().splitlines()
        return Outcome(
            exit_code=process.returncode,
            error=lines[-1] if process.returncode and lines else "",
            digests=collect_digests(Store(uri)),
            damage_messages=verify_store(Store(uri)).damage_messages,
            seconds=seconds,
            requests=proxy.requests,
            faults=proxy.faults,
        )


def collect_digests(store: Store) -> dict[str, str]:
    """Collect the content digests of the newest run's stages and checkpoints, by name."""
    try:
        run = open_run("latest", store)
        digests = {label: stage["content"] for label, stage in run.stages.items()}
        for number, checkpoint in enumerate(run.find_checkpoints()):
            digests[f"checkpoint {number}"] = checkpoint.content_digest
    except HallmarkError:
        return {}
    return digests


def print_row(label: str, outcome: Outcome, expected: dict[str, str]) -> bool:
    """Print the row of a run.

    Returns:
        Whether the run succeeded, no file is damaged, and all digests are equal.
    """
    equal = sum(outcome.digests.get(name) == digest for name, digest in expected.items())
    by_fault: Counter[str] = Counter()
    for (_, fault), count in outcome.faults.items():
        by_fault[fault] += count
    faults = ", ".join(f"{fault} {count}" for fault, count in sorted(by_fault.items())) or "none"
    print(
        f"| {label} | {sum(outcome.requests.values()):,} | {faults} | {outcome.exit_code} "
        f"| {equal} of {len(expected)} | {len(outcome.damage_messages)} | {outcome.seconds:.0f} |",
        flush=True,
    )
    for problem in filter(None, (outcome.error, *outcome.damage_messages[:3])):
        print(f"  {problem}", file=sys.stderr, flush=True)
    return outcome.exit_code == 0 and equal == len(expected) and not outcome.damage_messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kinds", help='kinds of requests, such as "create manifest,put data"; default: all'
    )
    selected_kinds = parser.parse_args().kinds
    folder = Path(tempfile.mkdtemp(prefix="hallmark-lost-replies-"))
    try:
        server = ObjectStoreServer(folder)
        undisturbed = server.run_smoke("undisturbed", fail_no_reply)
        expected = undisturbed.digests
        print("| replies | requests | faults | exit code | equal digests | damaged | seconds |")
        print("|---|---|---|---|---|---|---|")
        results = [print_row("undisturbed", undisturbed, expected) and bool(expected)]
        kinds = {" ".join(kind): kind for kind in sorted(undisturbed.requests)}
        if selected_kinds is None:
            for fault in ("lost", "reset"):
                outcome = server.run_smoke(f"every-{fault}", fail_first_replies(fault))
                results.append(print_row(f"every first reply: {fault}", outcome, expected))
        for number, label in enumerate(selected_kinds.split(",") if selected_kinds else kinds):
            kind = kinds[label]
            seen_faults: set[Fault] = set()
            for repetition in range(len(FAULTS_IN_TURN)):
                if seen_faults < set(FAULTS_IN_TURN):
                    faults = FaultsInTurn(kind, repetition + len(seen_faults) * bool(repetition))
                    outcome = server.run_smoke(f"kind-{number}-{repetition}", faults)
                    seen_faults |= {fault for _, fault in outcome.faults}
                    results.append(print_row(label, outcome, expected))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    raise SystemExit(not all(results))


if __name__ == "__main__":
    main()
