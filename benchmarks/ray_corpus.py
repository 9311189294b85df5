"""Compare the corpus stages in local processes and on Ray: digests, processor time, memory.

    python -m benchmarks.ray_corpus [--megabytes 500] [--ray-workers 1 2 4] [--folder FOLDER]

Writes a corpus of generated text (see ``benchmarks.planner``) and runs all stages before the
training once with two local processes and once on a Ray cluster of this machine for each number of
workers, each in a process of its own and with a new store. Prints for each of them whether all
content digests equal those of the local processes, the seconds, the processor seconds of all
processes (Ray's own included) and of the stages, the serial share, and the peak memory of a worker
and of the main process.

The serial share is the part of the stages' seconds in which no item of the stage ran. Wall seconds
depend on what else the machine does, processor seconds hardly. With ``--folder``, the corpus is
kept, and an existing one is used again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.planner import compose_texts, divide, measure_stages, write_corpus
from hallmark.flows.forecast.scale_plan import LAST_CORPUS_STAGE
from hallmark.flows.forecast.unit_costs import StageMeasurement
from hallmark.flows.runs import Run, open_run
from hallmark.tasks.contract import Store

#: Number of local processes with which Ray is compared.
LOCAL_WORKERS = 2

#: All stores have the same key, because the hashes of personal data depend on it.
STORE_KEY = b"k" * 32

#: Seconds between two looks at the processor time of a run's processes. What a process uses between
#: the last look and its end is not counted.
SAMPLING_SECONDS = 0.2

CONFIG = """\
name = "ray-corpus"
mapper = "{mapper}"
workers = {workers}

[[ingest.sources]]
kind = "jsonl"
name = "generated"
path = {path}
"""


@dataclass(frozen=True)
class MeasuredRun:
    """A run and what it used.

    Attributes:
        digests: The content digest of each stage by label.
        stages: What the telemetry says of each stage by label.
        seconds: Wall seconds of the command.
        processor_seconds: Processor seconds of all processes of the command.
        stage_seconds: Wall seconds of each stage by label.
    """

    digests: dict[str, str]
    stages: dict[str, StageMeasurement]
    seconds: float
    processor_seconds: float
    stage_seconds: dict[str, float]

    @property
    def stage_processor_seconds(self) -> float:
        """Processor seconds of the stages: of the main process and of the items."""
        return sum(stage.costs["processor_seconds"] for stage in self.stages.values())

    @property
    def serial_share(self) -> float:
        serial_seconds = sum(stage.costs["serial_seconds"] for stage in self.stages.values())
        return divide(serial_seconds, sum(self.stage_seconds.values()))


def measure_run(folder: Path, corpus: Path, mapper: str, workers: int) -> MeasuredRun:
    """Run the stages before the training in a process of its own, with a new store.

    Args:
        folder: Folder of the config and of the store, which is removed at the end.
        corpus: Folder of the corpus.
        mapper: "processes" or "ray".
        workers: Number of workers.
    """
    config, store = folder / f"{mapper}-{workers}.toml", folder / f"store-{mapper}-{workers}"
    Store(store, create_missing=True).set_secret_if_absent(STORE_KEY)
    path = json.dumps(f"{corpus}/*.jsonl")
    config.write_text(CONFIG.format(mapper=mapper, workers=workers, path=path))
    command = [sys.executable, "-m", "hallmark.flows.cli", "run", str(config), "--json"]
    command += ["--until", LAST_CORPUS_STAGE, "--store", str(store)]
    started = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True) as process,
    ):
        processor_seconds = sum_processor_seconds(psutil.Process(process.pid))
        seconds = time.monotonic() - started
        errors = process.stderr.read() if process.stderr else ""
        if process.wait():
            sys.exit(errors)
        output.seek(0)
        run = open_run(json.loads(output.read())["run"], str(store))
    measured = summarize_run(run, seconds, processor_seconds)
    shutil.rmtree(store)
    return measured


def sum_processor_seconds(root: psutil.Process) -> float:
    """Add up the processor seconds of a process and all its descendants until it ends."""
    seconds_by_process: dict[psutil.Process, float] = {}
    while root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
        with suppress(psutil.Error):
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    seconds_by_process[process] = times.user + times.system
        time.sleep(SAMPLING_SECONDS)
    return sum(seconds_by_process.values())


def summarize_run(run: Run, seconds: float, processor_seconds: float) -> MeasuredRun:
    """Read the digests and the telemetry of a run."""
    stages = measure_stages(run)
    return MeasuredRun(
        {label: run[label].content_digest for label in run.stages},
        stages,
        seconds,
        processor_seconds,
        {label: run.stages[label]["seconds"] for label in stages},
    )


def print_runs(runs: dict[str, MeasuredRun]) -> None:
    """Print one row per run; the first is the reference."""
    reference = next(iter(runs.values()))
    print(
        f"{'run':<22}{'digests':>9}{'s':>9}{'processor s':>13}{'ratio':>7}{'of stages':>11}"
        f"{'ratio':>7}{'serial':>8}{'worker MB':>11}{'main MB':>9}"
    )
    for name, run in runs.items():
        differing = [
            label for label, digest in run.digests.items() if digest != reference.digests[label]
        ]
        rows = run.stages.values()
        print(
            f"{name:<22}{'differ' if differing else 'equal':>9}{run.seconds:>9.1f}"
            f"{run.processor_seconds:>13.1f}"
            f"{divide(run.processor_seconds, reference.processor_seconds):>7.2f}"
            f"{run.stage_processor_seconds:>11.1f}"
            f"{divide(run.stage_processor_seconds, reference.stage_processor_seconds):>7.2f}"
            f"{run.serial_share:>8.1%}{max(row.worker_memory_bytes for row in rows) / 1e6:>11,.0f}"
            f"{max(row.costs['main_memory_bytes'] for row in rows) / 1e6:>9,.0f}"
        )
        for label in differing:
            print(f"    differs: {label}")


def print_stages(runs: dict[str, MeasuredRun]) -> None:
    """Print the seconds, the serial share and the processor seconds of each stage."""
    print(f"{'stage':<24}" + "".join(f"{name:>26}" for name in runs))
    print(f"{'':<24}" + f"{'s':>10}{'serial':>8}{'cpu s':>8}" * len(runs))
    for label in next(iter(runs.values())).stages:
        cells = [
            f"{run.stage_seconds[label]:>10.2f}"
            f"{divide(stage.costs['serial_seconds'], run.stage_seconds[label]):>8.0%}"
            f"{stage.costs['processor_seconds']:>8.1f}"
            for run in runs.values()
            for stage in [run.stages[label]]
        ]
        print(f"{label:<24}" + "".join(cells))


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--ray-workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--folder", type=Path, help="keep the corpus in this folder")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="hallmark-ray-corpus-") as scratch:
        folder = (options.folder or Path(scratch)).absolute()
        corpus = folder / f"corpus-{options.megabytes}"
        write_corpus(corpus, options.megabytes * 1e6, compose_texts())
        runs = {
            f"{LOCAL_WORKERS} processes": measure_run(folder, corpus, "processes", LOCAL_WORKERS)
        }
        for workers in options.ray_workers:
            runs[f"Ray, {workers} workers"] = measure_run(folder, corpus, "ray", workers)
        print(f"corpus of {options.megabytes} MB")
        print_runs(runs)
        print_stages(runs)


if __name__ == "__main__":
    main()
