"""Measure the overhead of orchestration: Prefect, store and manifests, with trivial stages.

    python -m benchmarks.orchestration [REPETITIONS]

Each repetition is a new process with a new store. It runs a flow of 20 stages in a chain, each of
which passes on one document and writes a ledger, so that it pays for tables, hashes, commit,
run.json, the Prefect task and its page. Then the same flow runs again, with all stages cached.
Prints medians: seconds to start Prefect and to end the run, milliseconds for each stage, and the
overhead of a part on each mapper, measured with parts that do nothing.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hallmark.tasks.contract import StageConfig

STAGE_COUNT = 20


def measure_flow(store: str) -> None:
    """Run the flow twice, in a new process, and print the times as JSON."""
    from hallmark.flows.commands.flow_execution import (
        configure_prefect_environment,
        start_prefect_and_progress,
    )

    configure_prefect_environment()
    atexit.register(gc.freeze)  # as the command line does
    with start_prefect_and_progress(lambda: None):
        times = run_flow_twice(store)
    print(json.dumps(times))


class FlowTimes(NamedTuple):
    """Seconds of one run of the flow."""

    flow_seconds: float
    stage_seconds: float
    """Seconds of the stages, without the start and the end of the flow."""


def run_flow_twice(store_folder: str) -> list[FlowTimes]:
    """Run the flow with an empty store, then with all stages cached."""
    from prefect import flow

    from hallmark.flows import run_recording
    from hallmark.tasks.contract import Session, Store, open_session

    store = Store(store_folder)
    stage_seconds: list[float] = []

    @flow(flow_run_name=run_recording.generate_flow_run_name)
    def chain() -> None:
        start = time.perf_counter()
        with open_session(Session(store)):
            artifact = STAGES.create(STAGES.config_class())
            for number in range(STAGE_COUNT - 1):
                artifact = STAGES.copy(artifact, STAGES.config_class(number=number))
        stage_seconds.append(time.perf_counter() - start)

    times = []
    for _ in range(2):
        start = time.perf_counter()
        chain()
        times.append(FlowTimes(time.perf_counter() - start, stage_seconds[-1]))
    return times


class TrivialStages(NamedTuple):
    """Two stages that do almost nothing."""

    create: Callable[..., Any]
    """Creates one document."""
    copy: Callable[..., Any]
    """Copies the documents of another stage."""
    config_class: type[StageConfig]


def define_stages() -> TrivialStages:
    """Define the two stages."""
    import pyarrow as pa

    from hallmark.tasks.contract import (
        DOCUMENTS,
        LEDGER,
        StageConfig,
        StageContext,
        Table,
        fill_document_columns,
        hash_texts,
        hash_to_ids,
        stage,
    )

    class Config(StageConfig):
        number: int = 0

    @stage(name="create_document", tables={"documents": DOCUMENTS})
    def create_document(config: Config, context: StageContext) -> None:
        key, text = hash_to_ids(["a"]), pa.array(["text"], pa.large_string())
        row = {"doc_id": key, "source": ["s"], "cluster": key, "text": text}
        context.get_table_writer("documents").write(
            fill_document_columns(row | {"text_hash": hash_texts(text)})
        )

    @stage(name="copy_documents", tables={"documents": DOCUMENTS, "ledger": LEDGER})
    def copy_documents(documents: Table, config: Config, context: StageContext) -> None:
        for batch in documents.iter_batches():
            context.get_table_writer("documents").write(batch)

    # Annotations are strings of local names, which the stage cannot resolve.
    create_document.body.__annotations__ = {"config": Config, "context": StageContext}
    copy_documents.body.__annotations__ = {
        "documents": Table,
        "config": Config,
        "context": StageContext,
    }
    return TrivialStages(create_document, copy_documents, Config)


STAGES = define_stages()


def return_number(number: int) -> int:
    """Return the argument: a part of a stage whose only cost is its transport to a worker."""
    return number


def measure_part_overhead(kind: str, workers: int, parts: int = 2000) -> float:
    """Return the milliseconds for each part, after the workers have started."""
    from hallmark.tasks.contract import make_mapper
    from hallmark.tasks.contract.resources import DEFAULT_RESOURCES

    with make_mapper(kind, workers) as mapper:
        list(mapper(return_number, [(0,)] * 16, DEFAULT_RESOURCES))
        start = time.perf_counter()
        list(mapper(return_number, [(number,) for number in range(parts)], DEFAULT_RESOURCES))
        return 1000 * (time.perf_counter() - start) / parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repetitions", nargs="?", type=int, default=5)
    parser.add_argument("--measure-flow", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_flow:
        measure_flow(options.measure_flow)
        return
    repetitions = options.repetitions
    start_seconds, computed_ms, cached_ms = [], [], []
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as store:
            start = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.orchestration", "--measure-flow", store]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            process_seconds = time.perf_counter() - start
        computed, cached = (FlowTimes(*times) for times in json.loads(out.splitlines()[-1]))
        computed_ms.append(1000 * computed.stage_seconds / STAGE_COUNT)
        cached_ms.append(1000 * cached.stage_seconds / STAGE_COUNT)
        start_seconds.append(process_seconds - computed.stage_seconds - cached.flow_seconds)
    print(f"{repetitions} repetitions, {STAGE_COUNT} stages, medians (minimum to maximum)")
    for name, values, unit in (
        ("a run without its stages (imports, Prefect's server, end)", start_seconds, "s"),
        ("a computed stage", computed_ms, "ms"),
        ("a cached stage", cached_ms, "ms"),
    ):
        spread = f"({min(values):.1f} to {max(values):.1f})"
        print(f"{name:<60} {statistics.median(values):7.1f} {unit} {spread}")
    mappers = [("in this process", "processes", 1), ("2 processes", "processes", 2)]
    if importlib.util.find_spec("ray"):
        mappers.append(("Ray, 2 workers", "ray", 2))
    for name, kind, workers in mappers:
        overheads = [measure_part_overhead(kind, workers) for _ in range(repetitions)]
        spread = f"({min(overheads):.4f} to {max(overheads):.4f})"
        print(f"{'a part, ' + name:<60} {statistics.median(overheads):7.4f} ms {spread}")


if __name__ == "__main__":
    main()
