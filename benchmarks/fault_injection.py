"""Kill ``hallmark run smoke`` at random moments, run it again to the end, compare every digest.

    python -m benchmarks.fault_injection [KILLS] [SEED]

Every kill starts from a fresh store. Half of them SIGKILL the whole process group of the run, half
the trainer alone (a run that loses its trainer must go on by itself). Afterwards the content
digest of every stage and checkpoint must equal an undisturbed run's, and no trainer may be alive.
"""

from __future__ import annotations

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

import psutil

COMMAND = [sys.executable, "-m", "hallmark.flows.cli", "run", "smoke", "--json"]


def start(store: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        COMMAND,
        env={**os.environ, "HALLMARK_STORE": str(store)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def finish(store: Path) -> tuple[dict[str, str], float]:
    """Run to the end; the content digest of every stage and of every checkpoint."""
    began = time.monotonic()
    process = start(store)
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the run failed with {process.returncode}")
    return digests(store, json.loads(out)), time.monotonic() - began


def digests(store: Path, report: dict) -> dict[str, str]:
    found = {stage["label"]: stage["content"] for stage in report["stages"]}
    for path in sorted((store / "artifacts" / "checkpoint").glob("*/manifest.json")):
        manifest = json.loads(path.read_text())
        found[f"checkpoint {manifest['parts']['key']['step']}"] = manifest["content"]
    return found


def trainers(store: Path) -> list[psutil.Process]:
    """Living trainers that work in this store."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if (
            "hallmark.model.training.run" in line
            and str(store) in line
            and process.info["status"] != "zombie"
        ):
            found.append(process)
    return found


def kill(process: subprocess.Popen[str], store: Path, victim: str, seconds: float) -> float | None:
    """Kill at a random moment; when that was, or None where the victim had ended before."""
    began = time.monotonic()
    hit = False
    if victim == "group":
        try:
            process.wait(timeout=random.uniform(0.5, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            hit = True
    else:
        while not trainers(store) and process.poll() is None:
            time.sleep(0.05)
        until = time.monotonic() + random.uniform(0.0, 4.0)
        while trainers(store) and time.monotonic() < until:
            time.sleep(0.02)
        for trainer in trainers(store):
            trainer.kill()
            hit = True
    moment = time.monotonic() - began
    process.communicate()
    return moment if hit else None


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    random.seed(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    base = Path(tempfile.mkdtemp(prefix="hallmark-kill-"))
    wanted, seconds = finish(base / "undisturbed")
    print(f"undisturbed: {seconds:.1f} s, {len(wanted)} digests", flush=True)
    bad = hits = missed = 0
    while hits < kills:
        store = base / f"kill-{hits + missed}"
        store.mkdir()
        shutil.copy(base / "undisturbed" / "secret", store / "secret")  # hashes in ledgers use it
        victim = "trainer" if hits % 2 else "group"
        process = start(store)
        moment = kill(process, store, victim, seconds)
        if moment is None:
            missed += 1
            continue
        hits += 1
        found, again = finish(store)
        left = trainers(store)
        same = found == wanted and not left
        bad += not same
        differ = [k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k)]
        verdict = "equal" if same else f"DIFFERS: {differ}, trainers left: {left}"
        how = f"exit {process.returncode}"
        print(
            f"kill {hits:2} of {victim:<7} at {moment:5.1f} s ({how}), "
            f"rerun {again:5.1f} s: {verdict}",
            flush=True,
        )
        shutil.rmtree(store)
    shutil.rmtree(base)
    print(f"{kills - bad} of {kills} equal; {missed} moments fell behind the end and do not count")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
