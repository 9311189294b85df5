"""What orchestration costs: Prefect, store and manifests, under stages that do next to nothing.

    python -m benchmarks.orchestration [REPETITIONS]

Every repetition is a fresh process with a fresh store that runs one flow of 20 chained stages,
each of which passes one document on and keeps a ledger (so it pays for tables, accounts, hashes,
commit, run.json, the Prefect task and its page). Then the same flow again, all from the store.
Prints medians: seconds to start Prefect and end the run, milliseconds a stage; and what a part
costs on each mapper, by parts that do nothing.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STAGES = 20


def measure(store: str) -> None:
    """In a fresh process: run the flow twice and print the times as JSON."""
    from hallmark.flows.commands.flow_execution import (
        configure_prefect_environment,
        start_prefect_and_progress,
    )

    configure_prefect_environment()
    atexit.register(gc.freeze)  # as the command line does
    with start_prefect_and_progress(lambda: None):
        results = _run_twice(store)
    print(json.dumps({"runs": results}))


def _run_twice(store: str) -> list[dict[str, float]]:
    from prefect import flow

    from hallmark.flows import run_recording
    from hallmark.tasks.contract import Session, Store, open_session

    runs_store = Store(store)
    inside: dict[str, float] = {}

    @flow(flow_run_name=run_recording.generate_flow_run_name)
    def chain() -> None:
        started = time.perf_counter()
        with open_session(Session(runs_store)):
            artifact = _first(_Config())
            for number in range(STAGES - 1):
                artifact = _next(artifact, _Config(number=number))
        inside["seconds"] = time.perf_counter() - started

    results = []
    for _ in range(2):
        start = time.perf_counter()
        chain()
        results.append({"flow": time.perf_counter() - start, "stages": inside["seconds"]})
    return results


def _stages() -> tuple[object, object, type]:
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

    @stage(name="first", tables={"documents": DOCUMENTS})
    def first(config: Config, context: StageContext) -> None:
        key, text = hash_to_ids(["a"]), pa.array(["text"], pa.large_string())
        row = {"doc_id": key, "source": ["s"], "cluster": key, "text": text}
        context.get_table_writer("documents").write(
            fill_document_columns(row | {"text_hash": hash_texts(text)})
        )

    @stage(name="then", tables={"documents": DOCUMENTS, "ledger": LEDGER})
    def then(documents: Table, config: Config, context: StageContext) -> None:
        for batch in documents.iter_batches():
            context.get_table_writer("documents").write(batch)

    # The annotations are local names: hand them over resolved.
    first.body.__annotations__ = {"config": Config, "context": StageContext}
    then.body.__annotations__ = {"documents": Table, "config": Config, "context": StageContext}
    return first, then, Config


_first, _next, _Config = _stages()


def part(number: int) -> int:
    """A part that costs nothing but its way to where it is worked on, and back."""
    return number


def overhead(kind: str, workers: int, parts: int = 2000) -> float:
    """Milliseconds a part, once the workers are there."""
    from hallmark.tasks.contract import make_mapper
    from hallmark.tasks.contract.resources import DEFAULT_RESOURCES

    with make_mapper(kind, workers) as mapper:
        list(mapper(part, [(0,)] * 16, DEFAULT_RESOURCES))
        start = time.perf_counter()
        list(mapper(part, [(number,) for number in range(parts)], DEFAULT_RESOURCES))
        return 1000 * (time.perf_counter() - start) / parts


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    walls, starts, fresh, cached = [], [], [], []
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as store:
            start = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.orchestration", "--once", store]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            walls.append(time.perf_counter() - start)
        result = json.loads(out.splitlines()[-1])
        one, two = result["runs"]
        fresh.append(1000 * one["stages"] / STAGES)
        cached.append(1000 * two["stages"] / STAGES)
        starts.append(walls[-1] - one["stages"] - two["flow"])
    print(f"{repetitions} repetitions, {STAGES} stages, medians (least to most)")
    for name, values, unit in (
        ("a run without its stages (imports, Prefect's server, end)", starts, "s"),
        ("a stage that runs", fresh, "ms"),
        ("a stage from the store", cached, "ms"),
    ):
        spread = f"({min(values):.1f} to {max(values):.1f})"
        print(f"{name:<60} {statistics.median(values):7.1f} {unit} {spread}")
    mappers = [("in this process", "processes", 1), ("2 processes", "processes", 2)]
    if importlib.util.find_spec("ray"):
        mappers.append(("Ray, 2 workers", "ray", 2))
    for name, kind, workers in mappers:
        times = [overhead(kind, workers) for _ in range(repetitions)]
        spread = f"({min(times):.4f} to {max(times):.4f})"
        print(f"{'a part, ' + name:<60} {statistics.median(times):7.4f} ms {spread}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        measure(str(Path(sys.argv[2])))
    else:
        main()
