"""Kill a run in mid-training, and continue it on another host from the states in object storage.

    python -m benchmarks.other_host [KILLS] [STEPS]

The store is a moto S3 server on loopback. Each host is a process group with a local cache of its
own, which begins empty. First, two undisturbed runs train at the same time, so that both have the
same load; one of them sends no states. The ratio of their steps per second is the cost of sending,
and their digest is the expected one. Then, KILLS times, each in a store of its own: a host runs the
config and is killed (SIGKILL) as soon as a state from a random step on is in the store, and another
host runs the same command.

Prints the ratio, and for each kill the step of the newest state in the store, the step from which
the other host continued, the seconds from the kill to that step, and whether the digest is that of
the undisturbed run. Exits with 1 if a digest differs, a run failed, training continued later than
after 60 seconds, or sending costs more than 5 % of the speed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import boto3

from benchmarks.outage import read_step_seconds
from hallmark import open_run

BUCKET = "hallmark"
MAX_SECONDS, MIN_SPEED_RATIO = 60.0, 0.95

#: Serves S3 on loopback in a process of its own, and prints the port.
SERVE_S3 = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""

#: Runs the command line; with True as the first argument, trainings send no states.
RUN_HALLMARK = """
import sys
from hallmark.flows.cli import main
from hallmark.tasks.contract.stored_states import StoredStates
if sys.argv.pop(1) == "True":
    StoredStates.send = lambda *arguments: None
main()
"""

SENT_PATTERN = re.compile(r"the state of step (\d+) is in the store")
START_PATTERN = re.compile(r"trainer: training .* from step (\d+) of")


@contextmanager
def serve_s3() -> Iterator[None]:
    """Serve a bucket on loopback, and set the environment variables of its clients."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE_S3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(server.stdout.readline())}",
        "AWS_ALLOW_HTTP": "true",
    }
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=BUCKET)
    try:
        yield
    finally:
        server.communicate()


class Host:
    """A host that runs the config in a process group, with a local cache of its own."""

    def __init__(
        self, cache: Path, store: str, options: Sequence[str], *, sends_states: bool = True
    ) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", RUN_HALLMARK, str(not sends_states), "run", "smoke"),
                *("--store", store, "--debug", *options),
            ],
            env=os.environ | {"XDG_CACHE_HOME": str(cache)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.lines = self.process.stdout

    def wait_for_step(self, pattern: re.Pattern[str], min_step: int = 0) -> int:
        """Read lines up to one that names a step from ``min_step`` on; return the step."""
        last_lines = []
        for line in self.lines:
            last_lines = [*last_lines[-20:], line]
            match = pattern.search(line)
            if match is not None and int(match[1]) >= min_step:
                return int(match[1])
        raise RuntimeError(f"the run ended before step {min_step}:\n{''.join(last_lines)}")

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def wait_until_completed(self) -> None:
        output, _ = self.process.communicate()
        if self.process.returncode:
            raise RuntimeError(f"the run failed:\n{output[-3000:]}")


def copy_store(source: str, target: str) -> None:
    """Copy the objects of one store in the bucket into another one."""
    client = boto3.client("s3", region_name="us-east-1")
    for page in client.get_paginator("list_objects_v2").paginate(
        Bucket=BUCKET, Prefix=f"{source}/"
    ):
        for item in page["Contents"]:
            key = f"{target}{item['Key'].removeprefix(source)}"
            client.copy({"Bucket": BUCKET, "Key": item["Key"]}, BUCKET, key)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kills", type=int, nargs="?", default=5)
    parser.add_argument("steps", type=int, nargs="?", default=3000)
    options = parser.parse_args(arguments)
    settings = {
        "steps": options.steps,
        "threads": 1,
        "checkpoint_every": options.steps // 4,
        "validate_every": options.steps // 4,
        "state_every": max(1, options.steps // 30),
    }
    training = ["--until", "pretrain"]
    for name, value in settings.items():
        training += ["--set", f"pretrain.train.{name}={value}"]
    has_failed = False
    with serve_s3(), tempfile.TemporaryDirectory(prefix="hallmark-hosts-") as folder:
        caches = Path(folder)
        Host(caches / "corpus", f"s3://{BUCKET}/corpus", ["--until", "pack"]).wait_until_completed()
        for name in ("sending", "silent"):
            copy_store("corpus", name)
        hosts = [
            Host(caches / name, f"s3://{BUCKET}/{name}", training, sends_states=name == "sending")
            for name in ("sending", "silent")
        ]
        for host in hosts:
            host.wait_until_completed()
        trained = {
            name: open_run("latest", store=f"s3://{BUCKET}/{name}")
            for name in ("sending", "silent")
        }
        speeds = {
            name: options.steps / sum(read_step_seconds(run)) for name, run in trained.items()
        }
        ratio = speeds["sending"] / speeds["silent"]
        digests = {run["pretrain"].content_digest for run in trained.values()}
        has_failed |= ratio < MIN_SPEED_RATIO or len(digests) != 1
        print(
            f"{speeds['sending']:.1f} steps per second with and {speeds['silent']:.1f} without "
            f"sending states: {ratio:.1%}; {len(digests)} digest",
            flush=True,
        )
        print("| kill | newest state | continued from | seconds | digest |\n|---|---|---|---|---|")
        for kill in range(options.kills):
            store = f"killed-{kill}"
            copy_store("corpus", store)
            first = Host(caches / f"{kill} first", f"s3://{BUCKET}/{store}", training)
            sent = first.wait_for_step(SENT_PATTERN, random.randrange(options.steps * 2 // 3))
            first.kill()
            killed_at = time.monotonic()
            second = Host(caches / f"{kill} second", f"s3://{BUCKET}/{store}", training)
            start = second.wait_for_step(START_PATTERN)
            seconds = time.monotonic() - killed_at
            second.wait_until_completed()
            run = open_run("latest", store=f"s3://{BUCKET}/{store}")
            is_equal = {run["pretrain"].content_digest} == digests
            has_failed |= not is_equal or start < sent or seconds > MAX_SECONDS
            print(
                f"| {kill + 1} | {sent} | {start} | {seconds:.1f} | "
                f"{'equal' if is_equal else 'DIFFERENT'} |",
                flush=True,
            )
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
