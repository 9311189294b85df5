"""Run ``hallmark run smoke`` on an object store whose replies fail, and compare every digest.

    python -m benchmarks.lost_replies [--kinds "create manifest,put data"]

A proxy (``benchmarks.lossy_proxy``) stands between the run and a moto S3 server on loopback. First
an undisturbed run gives the digests and the kinds of requests (operation and object type). Then,
each with a store of its own:

- two runs in which every request loses its first reply, by a reply 504 and by a reset connection;
- for each kind of request runs in which the replies to this kind alone are delayed, doubled (the
  server gets the request twice), truncated and reset in turn, until each of the four has happened.

After each run the content digests of all stages and checkpoints must equal the undisturbed run's,
and every file of the store is read and compared with its manifest. Prints a row for each run and
exits with 1 where one differs. About half an hour on two cores.
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
SECRET = b"k" * 32  # the same in all stores: ledgers hold hashes that are keyed by it
IN_TURN: tuple[Fault, ...] = ("delay", "duplicate", "truncate", "reset")
COMMAND = [sys.executable, "-m", "hallmark.flows.cli", "run", "smoke", "--json"]

ChooseFault = Callable[[Request], Fault | None]


@dataclass
class Outcome:
    """What one run left, and what happened to its requests."""

    exit_code: int
    error: str
    digests: dict[str, str]
    damaged: list[str]
    seconds: float
    requests: Counter[Kind]
    faults: Counter[tuple[Kind, Fault]]


def fail_no_reply(request: Request) -> Fault | None:
    return None


def fail_first_replies(fault: Fault) -> ChooseFault:
    """Each request's first reply gets this fault."""
    return lambda request: None if request.attempt else fault


class FaultsInTurn:
    """The replies to one kind of request get the four faults in turn, two to a request at most."""

    def __init__(self, kind: Kind, first: int) -> None:
        self.kind, self.turn = kind, first

    def __call__(self, request: Request) -> Fault | None:
        if request.kind != self.kind or request.attempt > 1:
            return None
        self.turn += 1
        return IN_TURN[(self.turn - 1) % len(IN_TURN)]


class Bench:
    """An S3 server on loopback, and runs of smoke on it."""

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
        """Run smoke into a store of its own behind the proxy, then read the store without it."""
        uri, cache = f"s3://{BUCKET}/{name}", self.folder / name
        began = time.monotonic()
        with LossyProxy(self.url, choose_fault) as proxy:
            os.environ |= {"AWS_ENDPOINT_URL": proxy.url, "XDG_CACHE_HOME": str(cache)}
            Store(uri).set_secret_if_absent(SECRET)
            done = subprocess.run(
                COMMAND,
                env={**os.environ, "HALLMARK_STORE": uri},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        seconds = time.monotonic() - began
        os.environ["AWS_ENDPOINT_URL"] = self.url
        shutil.rmtree(cache, ignore_errors=True)  # no fetched copy may stand in for an object
        lines = done.stderr.strip().splitlines()
        return Outcome(
            exit_code=done.returncode,
            error=lines[-1] if done.returncode and lines else "",
            digests=content_digests(Store(uri)),
            damaged=verify_store(Store(uri)).damage_messages,
            seconds=seconds,
            requests=proxy.requests,
            faults=proxy.faults,
        )


def content_digests(store: Store) -> dict[str, str]:
    """Content digests of the newest run's stages and checkpoints."""
    try:
        run = open_run("latest", store)
        digests = {label: stage["content"] for label, stage in run.stages.items()}
        for number, checkpoint in enumerate(run.find_checkpoints()):
            digests[f"checkpoint {number}"] = checkpoint.content_digest
    except HallmarkError:
        return {}
    return digests


def print_row(label: str, outcome: Outcome, expected: dict[str, str]) -> bool:
    """Print one run; whether nothing was lost and every digest is equal."""
    equal = sum(outcome.digests.get(name) == digest for name, digest in expected.items())
    by_fault: Counter[str] = Counter()
    for (_, fault), count in outcome.faults.items():
        by_fault[fault] += count
    faults = ", ".join(f"{fault} {count}" for fault, count in sorted(by_fault.items())) or "none"
    print(
        f"| {label} | {sum(outcome.requests.values()):,} | {faults} | {outcome.exit_code} "
        f"| {equal} of {len(expected)} | {len(outcome.damaged)} | {outcome.seconds:.0f} |",
        flush=True,
    )
    for problem in filter(None, (outcome.error, *outcome.damaged[:3])):
        print(f"  {problem}", file=sys.stderr, flush=True)
    return outcome.exit_code == 0 and equal == len(expected) and not outcome.damaged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", help='only these, such as "create manifest,put data"')
    chosen = parser.parse_args().kinds
    folder = Path(tempfile.mkdtemp(prefix="hallmark-lost-replies-"))
    try:
        bench = Bench(folder)
        undisturbed = bench.run_smoke("undisturbed", fail_no_reply)
        expected = undisturbed.digests
        print("| replies | requests | faults | exit code | equal digests | damaged | seconds |")
        print("|---|---|---|---|---|---|---|")
        good = [print_row("undisturbed", undisturbed, expected) and bool(expected)]
        kinds = {" ".join(kind): kind for kind in sorted(undisturbed.requests)}
        if chosen is None:
            for fault in ("lost", "reset"):
                outcome = bench.run_smoke(f"every-{fault}", fail_first_replies(fault))
                good.append(print_row(f"every first reply: {fault}", outcome, expected))
        for number, label in enumerate(chosen.split(",") if chosen else kinds):
            kind = kinds[label]
            happened: set[Fault] = set()
            for first in range(len(IN_TURN)):
                if happened < set(IN_TURN):
                    faults = FaultsInTurn(kind, first + len(happened) * bool(first))
                    outcome = bench.run_smoke(f"kind-{number}-{first}", faults)
                    happened |= {fault for _, fault in outcome.faults}
                    good.append(print_row(label, outcome, expected))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    raise SystemExit(not all(good))


if __name__ == "__main__":
    main()
