"""Kill ``hallmark run smoke`` at random moments, repeat it to the end, and compare all digests.

    python -m benchmarks.fault_injection [KILLS] [SEED]

Every kill starts with a new store. Half of the kills send SIGKILL to the whole process group of the
run, half to the trainer alone; a run that loses its trainer must continue by itself. Afterwards the
content digests of all stages and checkpoints must equal those of an undisturbed run, and no trainer
may be alive.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

COMMAND = [sys.executable, "-m", "hallmark.flows.cli", "run", "smoke", "--json"]


def start_run(store: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        COMMAND,
        env={**os.environ, "HALLMARK_STORE": str(store)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


class CompletedRun(NamedTuple):
    """A run that ended without an error."""

    digests: dict[str, str]
    """Content digests of all stages and checkpoints, by name."""
    seconds: float


def complete_run(store: Path) -> CompletedRun:
    """Run to the end.

    Raises:
        SystemExit: if the run fails.
    """
    start = time.monotonic()
    process = start_run(store)
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the run failed with exit code {process.returncode}")
    return CompletedRun(collect_digests(store, json.loads(out)), time.monotonic() - start)


def collect_digests(store: Path, report: dict[str, Any]) -> dict[str, str]:
    """Collect the content digests of a run's stages and of the store's checkpoints.

    Args:
        store: Folder of the store.
        report: What the run printed as JSON.
    """
    digests = {stage["label"]: stage["content"] for stage in report["stages"]}
    for path in sorted((store / "artifacts" / "checkpoint").glob("*/manifest.json")):
        manifest = json.loads(path.read_text())
        digests[f"checkpoint {manifest['parts']['key']['step']}"] = manifest["content"]
    return digests


def find_trainers(store: Path) -> list[psutil.Process]:
    """Find the living trainers that work in this store."""
    trainers = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = " ".join(process.info["cmdline"] or [])
        if (
            "hallmark.model.training.run" in command
            and str(store) in command
            and process.info["status"] != "zombie"
        ):
            trainers.append(process)
    return trainers


def kill_at_random_moment(
    process: subprocess.Popen[str], store: Path, victim: str, max_seconds: float
) -> float | None:
    """Kill the run or its trainer at a random moment, and wait until the run has ended.

    Args:
        process: The run.
        store: Folder of its store.
        victim: "group" for the run's process group, "trainer" for the trainer alone.
        max_seconds: Latest moment for the process group.

    Returns:
        Seconds until the kill; None if the victim had already ended.
    """
    start = time.monotonic()
    was_killed = False
    if victim == "group":
        try:
            process.wait(timeout=random.uniform(0.5, max_seconds))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            was_killed = True
    else:
        while not find_trainers(store) and process.poll() is None:
            time.sleep(0.05)
        deadline = time.monotonic() + random.uniform(0.0, 4.0)
        while find_trainers(store) and time.monotonic() < deadline:
            time.sleep(0.02)
        for trainer in find_trainers(store):
            trainer.kill()
            was_killed = True
    seconds = time.monotonic() - start
    process.communicate()
    return seconds if was_killed else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", nargs="?", type=int, default=20)
    parser.add_argument("seed", nargs="?", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="hallmark-kill-"))
    undisturbed = complete_run(folder / "undisturbed")
    expected = undisturbed.digests
    print(f"undisturbed: {undisturbed.seconds:.1f} s, {len(expected)} digests", flush=True)
    failure_count = kill_count = missed_count = 0
    while kill_count < options.kills:
        store = folder / f"kill-{kill_count + missed_count}"
        store.mkdir()
        # The hashes in ledgers are keyed by the secret.
        shutil.copy(folder / "undisturbed" / "secret", store / "secret")
        victim = "trainer" if kill_count % 2 else "group"
        process = start_run(store)
        moment = kill_at_random_moment(process, store, victim, undisturbed.seconds)
        if moment is None:
            missed_count += 1
            continue
        kill_count += 1
        digests, rerun_seconds = complete_run(store)
        living_trainers = find_trainers(store)
        is_equal = digests == expected and not living_trainers
        failure_count += not is_equal
        different = [
            k for k in expected.keys() | digests.keys() if expected.get(k) != digests.get(k)
        ]
        verdict = (
            "equal" if is_equal else f"DIFFERS: {different}, living trainers: {living_trainers}"
        )
        print(
            f"kill {kill_count:2} of {victim:<7} at {moment:5.1f} s (exit code "
            f"{process.returncode}), rerun {rerun_seconds:5.1f} s: {verdict}",
            flush=True,
        )
        shutil.rmtree(store)
    shutil.rmtree(folder)
    print(
        f"{options.kills - failure_count} of {options.kills} equal; {missed_count} attempts came "
        "after the end of the run and do not count"
    )
    raise SystemExit(bool(failure_count))


if __name__ == "__main__":
    main()
