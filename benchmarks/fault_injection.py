"""Kill parts of ``hallmark run smoke`` at random moments, and compare all digests.

    python -m benchmarks.fault_injection [--kills group=10 trainer=10 worker=8 ...] [--seed 0]

Every kill (SIGKILL) starts with a new store. Its target is one of ``TARGETS``. A run that does not
survive is repeated until it is complete. Afterwards:

- the content digests of all stages and checkpoints equal those of an undisturbed run, and no file
  of the store is damaged;
- no process that the run started is alive;
- once ``hallmark gc`` has removed what it names, the store has the same files as after an
  undisturbed run in a store of the same kind and gc, apart from the records of the runs.

Prints a line for each kill and a table, and exits with 1 if one of these is not true.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import boto3
import psutil
from moto.server import ThreadedMotoServer

from benchmarks.lost_replies import BUCKET, SECRET, collect_digests
from benchmarks.outage import HALLMARK, find_free_port, wait_until
from hallmark.flows.commands.verify import verify_store
from hallmark.flows.store_garbage import collect_garbage
from hallmark.tasks.contract import Store

#: Kills of each target by default: fifty.
DEFAULT_KILLS = {"group": 10, "trainer": 10, "worker": 8, "server": 8, "ray": 7, "store": 7}

#: The descriptions of the targets in the table.
TARGETS = {
    "group": "process group of the run",
    "trainer": "trainer",
    "worker": "worker process of a stage",
    "server": "Prefect server of the run",
    "ray": "Ray worker",
    "store": "object store",
}

#: What identifies the processes of the targets in their command lines.
COMMAND_PARTS = {
    "trainer": "hallmark.model.training.run",
    "server": "local_prefect_server.py",
}

#: Seconds within which the processes of a killed or completed run must have ended.
ORPHAN_SECONDS = 30.0

#: Number of times that a run is repeated until it is complete.
MAX_REPETITIONS = 3

#: What differs between two stores with equal content: ids and numbers of runs, and the names of the
#: lists of the copies that a process uses.
_RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
_RUN_NUMBER = re.compile(r"(?<=run-order/)\d+")
_LIST_NAME = re.compile(r"(?<=fetch-users/)[0-9a-f]+")

#: The part of the name of an artifact's file that each attempt of a stage chooses at random.
_ATTEMPT = re.compile(r"(artifacts/\w+/[0-9a-f]{16})/[0-9a-f]{12}/")

#: Records of runs, of which there are more after a rerun. The last one says when a killed run gave
#: its last sign of life.
RUN_RECORDS = ("runs/RUN/run.json", "run-order/NUMBER-RUN", "runs/RUN/progress.json")

#: Files and folders that are built from the rest, or that show the time of a remote store.
DERIVED_NAMES = {"site", "site-unredacted", "local", "clock"}


class Run:
    """A run in a process group of its own, and all processes that it starts.

    Args:
        store: The address of its store.
        log: The file to which its output is appended.
        options: Additional options of the command.
        environment: Additional variables of its environment.
    """

    def __init__(
        self, store: str, log: Path, options: Sequence[str], environment: dict[str, str]
    ) -> None:
        self.store = store
        with log.open("a") as output:
            self.process = subprocess.Popen(
                [*HALLMARK, "run", "smoke", "--only", "bias", *options],
                env={**os.environ, **environment, "HALLMARK_STORE": store},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._seen: set[psutil.Process] = set()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while self.process.poll() is None:
            self.list_children()
            time.sleep(0.25)

    def list_children(self) -> list[psutil.Process]:
        """List the processes that the run started, directly or not, and that are alive."""
        with suppress(psutil.Error):
            self._seen.update(psutil.Process(self.process.pid).children(recursive=True))
        return [process for process in [*self._seen] if is_alive(process)]

    def find_target(self, target: str) -> list[psutil.Process]:
        """Find the processes of a target."""
        found = []
        for process in self.list_children():
            with suppress(psutil.Error):
                command = " ".join(process.cmdline())
                if target == "ray":
                    is_target = command.startswith("ray::_run_item")
                elif target == "worker":  # forked by multiprocessing's server
                    parent = process.parent()
                    is_target = parent is not None and "forkserver" in " ".join(parent.cmdline())
                else:
                    is_target = COMMAND_PARTS[target] in command
                if is_target:
                    found.append(process)
        return found

    def list_orphans(self) -> list[str]:
        """List the processes of the ended run that do not end within ``ORPHAN_SECONDS``."""

        def find_living() -> list[psutil.Process]:
            marked = []
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if process.environ().get("HALLMARK_STORE") == self.store and is_alive(process):
                        marked.append(process)
            return [*{*marked, *self.list_children()}]

        wait_until(lambda: not find_living(), ORPHAN_SECONDS)
        orphans = []
        for process in find_living():
            with suppress(psutil.Error):
                orphans.append(" ".join(process.cmdline())[:100])
        return orphans


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class ObjectStore:
    """An S3 server behind a proxy process that can be killed and started again."""

    def __init__(self, upstream: str) -> None:
        self.upstream, self.port = upstream, find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "benchmarks.lossy_proxy", self.upstream, str(self.port)]
        self.proxy = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.proxy.stdout is not None
        self.proxy.stdout.readline()  # the proxy now listens

    def kill(self) -> None:
        self.proxy.kill()
        self.proxy.wait()


@dataclass
class Kill:
    """A kill and what came of it.

    Attributes:
        target: One of ``TARGETS``.
        number: The number of the kill among those of its target.
        moment: Seconds from the start of the run to the kill.
        exit_code: That of the killed run.
        repetitions: Number of times that the run was repeated.
        recovery_seconds: Seconds from the kill to the end of the first completed run.
        is_equal: Whether all digests are equal to those of the undisturbed run.
        faults: A sentence about everything else that is not as it must be.
        orphans: Processes that were alive after the end, and files that gc did not remove.
        garbage: What ``hallmark gc`` removed, by kind.
    """

    target: str
    number: int
    moment: float = 0.0
    exit_code: int | None = None
    repetitions: int = 0
    recovery_seconds: float = 0.0
    is_equal: bool = False
    faults: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    garbage: dict[str, int] = field(default_factory=dict)

    def format(self) -> str:
        end = "ended by itself" if not self.repetitions else f"{self.repetitions} reruns"
        garbage = ", ".join(f"{kind} {count}" for kind, count in sorted(self.garbage.items()))
        orphans = [f"{len(self.orphans)} orphans: {', '.join(self.orphans[:5])}"]
        problems = "; ".join([*self.faults, *(orphans if self.orphans else [])])
        return (
            f"{self.target} {self.number}: killed at {self.moment:.1f} s, exit code "
            f"{self.exit_code}, {end}, {self.recovery_seconds:.1f} s to the end; removed by gc: "
            f"{garbage or 'nothing'}; {problems or 'equal'}"
        )


class Undisturbed(NamedTuple):
    """What an undisturbed run leaves behind."""

    digests: dict[str, str]
    """Content digests of all stages and checkpoints, by name."""
    names: Counter[str]
    """The names of the files of its store after gc, see ``list_names``."""
    seconds: float


class Campaign:
    """Kills targets, each in a store of its own.

    Args:
        folder: A temporary folder.
        seed: Seed of the random moments.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self._undisturbed: dict[str, Undisturbed] = {}

    def read_undisturbed(self, target: str) -> Undisturbed:
        """Run without a kill, in a store of the kind that kills of a target use."""
        kind = "store" if target == "store" else "folder"
        if kind not in self._undisturbed:
            log = self.folder / f"undisturbed-{kind}.log"
            with self._open_store(kind, f"undisturbed-{kind}") as (store, environment, _):
                start = time.monotonic()
                if Run(store.uri, log, (), environment).process.wait():
                    raise SystemExit(log.read_text())
                seconds = time.monotonic() - start
                digests = collect_digests(store)
                collect_garbage(store, delete=True)
                self._undisturbed[kind] = Undisturbed(digests, Counter(list_names(store)), seconds)
        return self._undisturbed[kind]

    def make_store(self, name: str) -> Store:
        store = Store(self.folder / name)
        store.set_secret_if_absent(SECRET)  # the hashes in ledgers are keyed by it
        return store

    def kill(self, target: str, number: int) -> Kill | None:
        """Kill a target and repeat the run to the end; None if the target had ended before."""
        for attempt in range(5):
            rng = random.Random(f"{self.seed} {target} {number} {attempt}")
            if kill := self._try_to_kill(target, number, f"{target}-{number}-{attempt}", rng):
                return kill
        return None

    def _try_to_kill(self, target: str, number: int, name: str, rng: random.Random) -> Kill | None:
        kill, log = Kill(target, number), self.folder / f"{name}.log"
        options = ["--set", "mapper=ray"] if target == "ray" else []
        with self._open_store(target, name) as (store, environment, object_store):
            run = Run(store.uri, log, options, environment)
            start = time.monotonic()
            is_killed = self._kill_at_random_moment(run, target, object_store, rng)
            kill_time = time.monotonic()
            if not is_killed:
                run.process.wait()
                run.list_orphans()
                return None
            kill.moment, kill.exit_code = kill_time - start, run.process.wait()
            kill.recovery_seconds = time.monotonic() - kill_time
            kill.orphans = run.list_orphans()
            exit_code = kill.exit_code
            while exit_code and kill.repetitions < MAX_REPETITIONS:
                kill.repetitions += 1
                run = Run(store.uri, log, options, environment)
                exit_code = run.process.wait()
                kill.recovery_seconds = time.monotonic() - kill_time
                kill.orphans += run.list_orphans()
            if exit_code:
                kill.faults.append(f"the rerun failed: {log.read_text()[-300:]}")
            self._check_store(kill, store)
        if not kill.faults and not kill.orphans:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        return kill

    @contextmanager
    def _open_store(
        self, target: str, name: str
    ) -> Iterator[tuple[Store, dict[str, str], ObjectStore | None]]:
        """Make a store, and yield it with the environment of its runs and its server."""
        if target != "store":
            yield self.make_store(name), {}, None
            return
        object_store = ObjectStore(os.environ["AWS_ENDPOINT_URL"])
        try:
            # Local copies and work areas; the check below reads the objects without the proxy.
            work_folder = self.folder / name / "hallmark"
            environment = {
                "AWS_ENDPOINT_URL": object_store.url,
                "XDG_CACHE_HOME": str(self.folder / name),
            }
            uri = f"s3://{BUCKET}/{name}"
            store = Store(uri)
            store.set_secret_if_absent(SECRET)
            yield Store(uri, work_folder / store.work_folder.name), environment, object_store
        finally:
            object_store.kill()

    def _kill_at_random_moment(
        self, run: Run, target: str, object_store: ObjectStore | None, rng: random.Random
    ) -> bool:
        """Kill the target; return False if it had already ended."""
        seconds = self.read_undisturbed("folder").seconds
        if target in ("group", "store", "server"):
            try:
                run.process.wait(timeout=rng.uniform(1.0, seconds))
                return False
            except subprocess.TimeoutExpired:
                pass
        if target == "group":
            os.killpg(run.process.pid, signal.SIGKILL)
            return True
        if object_store is not None:
            object_store.kill()
            time.sleep(rng.uniform(0.0, 20.0))  # the time for which the store is away
            object_store.start()
            return True
        if target != "server":
            while not run.find_target(target) and run.process.poll() is None:
                time.sleep(0.05)
            time.sleep(rng.uniform(0.0, seconds / (5 if target == "trainer" else 2)))
        while run.process.poll() is None:  # workers come and go
            if victims := run.find_target(target):
                with suppress(psutil.Error):
                    rng.choice(victims).kill()
                    return True
            if target == "trainer":
                return False
            time.sleep(0.05)
        return False

    def _check_store(self, kill: Kill, store: Store) -> None:
        """Compare the store of a completed run with that of the undisturbed run."""
        digests = collect_digests(store)
        expected = self.read_undisturbed("folder").digests
        names = sorted(digests.keys() | expected.keys())
        different = [name for name in names if digests.get(name) != expected.get(name)]
        if different:
            kill.faults.append(f"different digests: {', '.join(different)}")
        damage_messages = verify_store(store).damage_messages
        kill.faults += damage_messages
        kill.is_equal = not different and not damage_messages
        for item in collect_garbage(store, delete=True).garbage:
            kill.garbage[item.kind] = kill.garbage.get(item.kind, 0) + 1
        remaining = Counter(list_names(store)) - self.read_undisturbed(kill.target).names
        kill.orphans += [name for name in sorted(remaining) if name not in RUN_RECORDS]


def list_names(store: Store) -> Iterator[str]:
    """List the names of the files of a store, without what differs from run to run."""
    keys = [key for key in store.list_stored_files("") if not key.startswith("work/")]
    work_files = [path for path in store.work_folder.rglob("*") if path.is_file()]
    work_names = [path.relative_to(store.work_folder).as_posix() for path in work_files]
    for name in [*keys, *work_names]:
        if name.split("/")[0] not in DERIVED_NAMES:
            name = _RUN_NUMBER.sub("NUMBER", _RUN_ID.sub("RUN", name))
            name = _LIST_NAME.sub("PROCESS", name)
            yield _ATTEMPT.sub(r"\1/ATTEMPT/", name)


def format_table(kills: Sequence[Kill]) -> str:
    """Format the kills of each target as a row of a Markdown table."""
    lines = [
        "| killed | kills | ended by themselves | ended after a rerun | equal | orphans "
        "| seconds to the end: median | maximum |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for target in (*TARGETS, None):
        selected = [kill for kill in kills if target in (None, kill.target)]
        if not selected:
            continue
        seconds = [kill.recovery_seconds for kill in selected]
        cells = [
            len(selected),
            sum(kill.exit_code == 0 for kill in selected),
            sum(kill.repetitions > 0 for kill in selected),
            sum(kill.is_equal for kill in selected),
            sum(len(kill.orphans) for kill in selected),
        ]
        lines.append(
            f"| {TARGETS[target] if target else 'all'} | {' | '.join(map(str, cells))} "
            f"| {statistics.median(seconds):.0f} | {max(seconds):.0f} |"
        )
    return "\n".join(lines)


def start_object_store() -> None:
    """Start an S3 server in this process, which the environment names."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
    }
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=BUCKET)


def parse_kill_counts(texts: Sequence[str]) -> dict[str, int]:
    """Parse texts such as "group=10"."""
    counts = {}
    for text in texts:
        target, _, count = text.partition("=")
        if target not in TARGETS or not count.isdecimal():
            raise SystemExit(f"--kills {text}: write TARGET=COUNT; targets: {', '.join(TARGETS)}")
        counts[target] = int(count)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default_counts = [f"{target}={count}" for target, count in DEFAULT_KILLS.items()]
    parser.add_argument("--kills", nargs="+", default=default_counts, metavar="TARGET=COUNT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="kills at the same time")
    options = parser.parse_args()
    counts = parse_kill_counts(options.kills)
    if counts.get("store"):
        start_object_store()
    folder = Path(tempfile.mkdtemp(prefix="hallmark-kill-"))
    campaign = Campaign(folder, options.seed)
    for target in counts:
        undisturbed = campaign.read_undisturbed(target)
    print(
        f"undisturbed: {undisturbed.seconds:.1f} s, {len(undisturbed.digests)} digests", flush=True
    )
    # The targets take turns, so that a campaign that is stopped has killed all of them.
    plan = sorted((n / count, t, n) for t, count in counts.items() for n in range(count))
    kills: list[Kill] = []

    def kill_and_report(target: str, number: int) -> None:
        if kill := campaign.kill(target, number):
            kills.append(kill)
            print(kill.format(), flush=True)

    with ThreadPoolExecutor(options.jobs) as threads:
        for _ in threads.map(lambda entry: kill_and_report(*entry[1:]), plan):
            pass
    print(format_table(kills))
    is_clean = len(kills) == len(plan) and not any(k.faults or k.orphans for k in kills)
    if is_clean:
        shutil.rmtree(folder)
    raise SystemExit(not is_clean)


if __name__ == "__main__":
    main()
