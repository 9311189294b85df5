"""Provide the context of a stage body: table writers, work area, parallel work, progress.

``stages.py`` creates a ``StageContext`` for each execution, and ``commit.py`` commits what the body
wrote. Items of parallel work survive a kill: a resumed stage reuses the finished ones.
"""

from __future__ import annotations

import errno
import hmac
import json
import logging
import os
import resource
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hallmark.tasks.contract.artifact import TablePart
from hallmark.tasks.contract.columns import columns_to_json, get_table_meaning, is_partitioned
from hallmark.tasks.contract.errors import (
    HallmarkError,
    PolicyViolationError,
    get_first_error_line,
)
from hallmark.tasks.contract.local_objects import read_regular_file
from hallmark.tasks.contract.manifests import compute_table_digest
from hallmark.tasks.contract.ray_mapper import RayMapper
from hallmark.tasks.contract.resources import DEFAULT_RESOURCES, Mapper, Resources, SerialMapper
from hallmark.tasks.contract.settings import DeviceName
from hallmark.tasks.contract.table_writers import TableWriters
from hallmark.tasks.contract.tombstones import ManifestEntry

if TYPE_CHECKING:
    from hallmark.tasks.contract.artifact import Artifact
    from hallmark.tasks.contract.stored_states import StoredStates

log = logging.getLogger("hallmark")

#: Called with (completed, total, description); total is 0 if unknown.
ProgressCallback = Callable[[int, int, str], None]


@dataclass(frozen=True)
class ItemUsage:
    """What the work on one item used.

    Attributes:
        process: Host and id of the process.
        cpu_seconds: Processor seconds.
        peak_memory: Peak memory of the process since it started, in MiB.
    """

    process: str
    cpu_seconds: float
    peak_memory: float


@dataclass(frozen=True)
class ItemResult:
    """The result of the work on one item.

    Attributes:
        folder: Folder with the files of the parts and spilled tables.
        value: Small JSON value that the item's function returned.
        parts: Manifest entries of the parts of the stage's tables, by table.
        spilled: Bytes of the spilled tables, which only this stage reads, by name.
        usage: What the work used, as the JSON value of an ``ItemUsage``.
    """

    folder: Path
    value: Any
    parts: dict[str, ManifestEntry]
    spilled: dict[str, int]
    usage: dict[str, Any]

    def table_path(self, name: str) -> Path:
        return self.folder / f"{name}.parquet"

    @property
    def spill_names(self) -> list[str]:
        """Names of the spilled tables, sorted."""
        return sorted(self.spilled)

    def spill_path(self, name: str) -> Path:
        return self.folder / f"{name}.arrow"

    def open_spilled_table(self, name: str, schema: pa.Schema) -> pa.Table:
        """Map a spilled table into memory; return an empty table if there is none of that name.

        The file is not kept open; the mapping lasts as long as the table.
        """
        if name not in self.spilled:
            return schema.empty_table()
        with pa.memory_map(str(self.spill_path(name))) as source:
            return pa.ipc.open_file(source).read_all()

    def is_complete(self) -> bool:
        """Whether all files exist with their recorded sizes.

        A kill during the commit may have moved files away, a power failure truncated them.
        """
        sizes = {self.table_path(name): part["size"] for name, part in self.parts.items()}
        sizes |= {self.spill_path(name): size for name, size in self.spilled.items()}
        return all(path.exists() and path.stat().st_size == sizes[path] for path in sizes)


@dataclass
class ParallelUsage:
    """What all items of a stage used, over all its calls of ``map_items`` and ``map_partitions``.

    Attributes:
        parallel_seconds: Seconds in which items ran; in the others only the main process worked.
        worker_seconds: Seconds in which items ran, times the number of processes that ran them.
        worker_cpu_seconds: Processor seconds of items that ran outside the main process.
        worker_peak_memory: Largest peak memory of a process that ran items, in MiB.
        parallel_items: Largest number of items of one call, which limits the useful workers.
        reused_items: Number of items that an earlier, interrupted attempt computed.
        temporary_bytes: Bytes of the spilled tables.
    """

    parallel_seconds: float = 0.0
    worker_seconds: float = 0.0
    worker_cpu_seconds: float = 0.0
    worker_peak_memory: float = 0.0
    parallel_items: int = 0
    reused_items: int = 0
    temporary_bytes: int = 0

    def add_map(
        self, results: Sequence[ItemResult], computed_indices: set[int], seconds: float
    ) -> None:
        """Add a call.

        Args:
            results: The results of its items.
            computed_indices: The items that this attempt computed.
            seconds: Seconds that the call took.
        """
        usages = [ItemUsage(**results[index].usage) for index in sorted(computed_indices)]
        processes = {usage.process for usage in usages}
        self.parallel_seconds += seconds
        self.worker_seconds += seconds * len(processes)
        self.worker_cpu_seconds += sum(
            usage.cpu_seconds for usage in usages if usage.process != get_process_name()
        )
        self.worker_peak_memory = max(
            [self.worker_peak_memory, *(usage.peak_memory for usage in usages)]
        )
        self.parallel_items = max(self.parallel_items, len(results))
        self.reused_items += len(results) - len(computed_indices)
        self.temporary_bytes += sum(sum(result.spilled.values()) for result in results)


def get_process_name() -> str:
    """Return a name of this process that no process of another host has."""
    return f"{socket.gethostname()}/{os.getpid()}"


def read_peak_memory_mebibytes() -> float:
    """Read the peak memory of this process since it started."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts in KiB


def concat_spilled_tables(results: Sequence[ItemResult], name: str, schema: pa.Schema) -> pa.Table:
    """Concatenate the spilled tables of several items in order, mapped from their files."""
    return pa.concat_tables(
        [schema.empty_table(), *(result.open_spilled_table(name, schema) for result in results)]
    )


@dataclass
class StageContext(TableWriters):
    """The context that every stage body receives; tests can create one from a folder alone.

    ``output_folder`` receives the files and assembled tables of this attempt, ``folder`` the tables
    that are written in this process. The inherited writers write those tables.
    """

    #: Survives a kill and is removed at commit, so a resumable stage can store its state there.
    work_area: Path
    declared_schemas: Mapping[str, pa.Schema]
    mapper: Mapper = field(default_factory=SerialMapper)
    #: Key of the hashes of personal data.
    secret: bytes = b"secret of a work area without a store"
    on_progress: ProgressCallback = lambda completed, total, description: None
    #: Commits a folder as a separate artifact: (stage, identifying values, folder) -> Artifact.
    commit_child_artifact: Callable[[str, Mapping[str, Any], Path], Artifact] | None = None
    resources: Resources = DEFAULT_RESOURCES
    #: Number of retries of each item that fails.
    max_retries: int = 1
    #: Ids of the documents that were purged from the store, for a stage that is an entry point.
    purged_ids: frozenset[bytes] = frozenset()
    #: Determinism of this artifact; the stage body may replace the stage's class by a weaker one.
    determinism: str = "exact"
    #: Names in ``work_area`` to keep after the commit, for runs with other settings that share it.
    preserved_names: set[str] = field(default_factory=set)
    #: Returns why a training must stop at its next step, because its policy failed; or None.
    find_stop_reason: Callable[[], str | None] = lambda: None
    #: The states of the stage in the store; None if work areas are in the store themselves.
    stored_states: StoredStates | None = None
    #: Called with (step, metrics).
    on_metrics: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None

    def __post_init__(self) -> None:
        super().__init__(self.work_area / "tables", self.declared_schemas)
        self.output_folder = self.work_area / "out"
        self.output_folder.mkdir(parents=True, exist_ok=True)
        self.measurements: list[dict[str, Any]] = []
        self.parallel_usage = ParallelUsage()
        self.map_results: list[list[ItemResult]] = []
        self.parts_per_segment: list[int] = []

    def prepare_output_path(self, name: str) -> Path:
        """Return the path for a file of the artifact, and create its folder."""
        path = self.output_folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def report_progress(self, completed: int, total: int, description: str = "") -> None:
        self.on_progress(completed, total, description)

    def report_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report metrics of a step to the session's listener; they are not stored."""
        self.on_metrics(step, metrics)

    def check_not_stopped(self) -> None:
        """Check that a training may continue.

        Raises:
            PolicyViolationError: The audit of a checkpoint requested to stop the training; the
                sentence names the rules of the policy.
            LeaseLostError: Another process has taken the training over.
        """
        if self.stored_states is not None:
            self.stored_states.lease.check_not_lost()
        reason = self.find_stop_reason()
        if reason is not None:
            raise PolicyViolationError(reason)

    def record_measurement(self, metric: str, value: float, unit: str) -> None:
        """Record a measurement of this machine in the telemetry."""
        self.measurements.append({"metric": metric, "value": float(value), "unit": unit})

    def hash_with_secret(self, values: Sequence[str]) -> list[bytes]:
        """Compute 16-byte hashes with the store's secret as key.

        Without a key, short values could be found by guessing.
        """
        return [
            hmac.digest(self.secret, value.encode("utf-8", "surrogatepass"), "sha256")[:16]
            for value in values
        ]

    # Parallel work -------------------------------------------------------------------------

    def share_model_between_items(self, device: DeviceName) -> DeviceName:
        """Let the items of the next calls run where a model that they open stays open.

        On Ray, these are workers that last until other items need their resources, and each opens
        the model once. Otherwise it is this process: the kernels of a model use all processors, so
        that several processes would only need more memory.

        Args:
            device: The device of the model in the config.

        Returns:
            The device with which items must open the model.

        Raises:
            UsageError: The device is a GPU, but the Ray cluster has none.
        """
        if not isinstance(self.mapper, RayMapper):
            self.mapper = SerialMapper()
            return device
        self.resources = self.mapper.choose_model_resources(device)
        return "cuda" if self.resources.gpus else "cpu"

    def map_partitions(
        self, function: Callable[..., Any], items: Sequence[Any], *arguments: Any
    ) -> list[ItemResult]:
        """Run ``map_items`` such that item k writes part k of every partitioned table of the stage.

        A part without rows is written too. If the items are parts of a table, or begin with one,
        the stage's tables get the same segments as that table.
        """
        partitioned_tables = [
            name for name, schema in self.schemas.items() if is_partitioned(schema)
        ]
        segment_starts = [
            index
            for index, item in enumerate(items)
            if (part := _find_item_part(item)) and not part.index
        ]
        segment_ends = [*segment_starts, len(items)][1:]
        self.parts_per_segment = [
            end - start for start, end in zip(segment_starts, segment_ends, strict=True)
        ]
        return self._map_with_retries(function, items, arguments, partitioned_tables)

    def map_items(
        self, function: Callable[..., Any], items: Sequence[Any], *arguments: Any
    ) -> list[ItemResult]:
        """Run ``function(item, *arguments, writers)`` for every item.

        ``writers`` are ``TableWriters`` for the stage's tables and spilled tables. The function
        must return a JSON value. Finished items survive a kill; a failing item is retried before it
        fails the stage. So function, items and arguments must be the same each time that the stage
        runs on the same inputs.

        Returns:
            The results in the order of the items.

        Raises:
            HallmarkError: An item failed more than ``max_retries`` times.
        """
        return self._map_with_retries(function, items, arguments, [])

    def _map_with_retries(
        self,
        function: Callable[..., Any],
        items: Sequence[Any],
        arguments: tuple[Any, ...],
        partitioned_tables: Sequence[str],
    ) -> list[ItemResult]:
        function_name = function.__name__
        results_folder = self.work_area / "parts" / f"{len(self.map_results)}-{function_name}"
        results: dict[int, ItemResult] = {}
        computed_indices: set[int] = set()
        failure_counts: Counter[int] = Counter()
        start_time = time.perf_counter()
        while True:
            for index in range(len(items)):
                if index not in results and (
                    result := _read_item_result(results_folder / f"{index:05d}")
                ):
                    results[index] = result
            self.report_progress(len(results), len(items), function_name)
            pending_indices = [index for index in range(len(items)) if index not in results]
            if not pending_indices:
                self.map_results.append([results[index] for index in range(len(items))])
                self.parallel_usage.add_map(
                    self.map_results[-1], computed_indices, time.perf_counter() - start_time
                )
                return self.map_results[-1]
            computed_indices.update(pending_indices)
            argument_tuples = [
                (
                    function,
                    items[item_index],
                    arguments,
                    results_folder / f"{item_index:05d}",
                    self.schemas,
                    partitioned_tables,
                )
                for item_index in pending_indices
            ]
            # Items return in order, so the next one is the one that fails.
            returned_count = 0
            try:
                for _ in self.mapper(_run_item, argument_tuples, self.resources):
                    returned_count += 1
                    self.report_progress(len(results) + returned_count, len(items), function_name)
            except (HallmarkError, MemoryError):
                raise
            except (Exception, BrokenExecutor) as error:
                if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # The mapper may also fail after the last item; then that item counts as failed.
                failed_index = pending_indices[min(returned_count, len(pending_indices) - 1)]
                failure_counts[failed_index] += 1
                if failure_counts[failed_index] > self.max_retries:
                    raise HallmarkError(_explain_failure(error, items[failed_index])) from error
                log.warning(
                    "a parallel task of %s failed (%s); retrying",
                    function_name,
                    get_first_error_line(error),
                )

    def assemble_tables(self, table_names: Iterable[str]) -> dict[str, ManifestEntry]:
        """Move the parts of each table into its folder under their numbers.

        Parts are renamed, not copied. A table without parts gets one part without rows.

        Returns:
            Manifest entries of the tables, by name.
        """
        entries = {}
        for name in table_names:
            schema = self.schemas[name]
            part_files = [
                (result.table_path(name), result.parts[name])
                for results in self.map_results
                for result in results
                if name in result.parts
            ]
            if name in self.table_writers or not part_files:
                self.get_table_writer(name).close()
                part_files.append(
                    (
                        self.get_table_writer(name).path,
                        self.table_writers[name].build_manifest_entry(name),
                    )
                )
            parts = []
            for index, (path, entry) in enumerate(part_files):
                output_path = self.prepare_output_path(f"{name}/{index:05d}.parquet")
                os.rename(path, output_path)
                parts.append({**entry, "name": f"{name}/{index:05d}.parquet"})
            table_entry: ManifestEntry = {
                "columns": columns_to_json(schema),
                "meaning": get_table_meaning(schema),
            }
            table_entry["parts"] = parts
            if is_partitioned(schema) and len(self.parts_per_segment) > 1:
                table_entry["pieces"] = self.parts_per_segment
            totals = {"rows": sum(part["rows"] for part in parts)}
            entries[name] = {**table_entry, **totals, "sha256": compute_table_digest(table_entry)}
        return entries


def _find_item_part(item: Any) -> TablePart | None:
    """Return the table part that an item is or begins with; None if there is none."""
    if is_dataclass(item) and not isinstance(item, TablePart):
        item = tuple(getattr(item, field.name) for field in fields(item))
    first_element = item[0] if isinstance(item, tuple) and item else item
    return first_element if isinstance(first_element, TablePart) else None


def _read_item_result(folder: Path) -> ItemResult | None:
    """Read the result of an item; return None if it is missing or incomplete.

    Results are not synced to disk before the commit, which would take 12 ms per item and can cost
    more than the work itself. So after a power failure any file may be truncated or empty.
    """
    path = folder / "done.json"
    if not path.exists():
        return None
    try:
        result = ItemResult(folder, **json.loads(read_regular_file(path)))
        ItemUsage(**result.usage)
        return result if result.is_complete() else None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _run_item(
    function: Callable[..., Any],
    item: Any,
    arguments: tuple[Any, ...],
    folder: Path,
    schemas: Mapping[str, pa.Schema],
    partitioned_tables: Sequence[str],
) -> None:
    """Run one item in the worker: write into a scratch folder, and rename it when complete."""
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    writers = TableWriters(scratch, schemas)
    cpu_start = time.process_time()
    try:
        value = function(item, *arguments, writers)
        for name in partitioned_tables:
            writers.get_table_writer(name)
        writers.close()
        parts = {
            name: writer.build_manifest_entry(name)
            for name, writer in writers.table_writers.items()
        }
    except (HallmarkError, OSError):
        raise
    except MemoryError as error:
        raise MemoryError(f"{item}: {get_first_error_line(error)}") from error
    except Exception as error:
        raise RuntimeError(f"{item}: {get_first_error_line(error)}") from error
    finally:
        writers.close_quietly()
    spilled = {name: writer.path.stat().st_size for name, writer in writers.spill_writers.items()}
    usage = ItemUsage(
        get_process_name(), time.process_time() - cpu_start, read_peak_memory_mebibytes()
    )
    record = {"value": value, "parts": parts, "spilled": spilled, "usage": asdict(usage)}
    (scratch / "done.json").write_text(json.dumps(record))
    if _read_item_result(folder):  # of an earlier try that finished meanwhile
        shutil.rmtree(scratch)
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(scratch, folder)


def _explain_failure(error: BaseException, item: Any) -> str:
    if isinstance(error, BrokenExecutor):
        return (
            f"{item}: the worker process that computed this or another part of the stage was "
            "killed, probably because memory ran out; run again with fewer workers or on a machine "
            "with more memory; finished work is kept"
        )
    return get_first_error_line(error)


class Stopwatch:
    """Measure wall and processor seconds since its creation."""

    def __init__(self) -> None:
        self.wall_start, self.cpu_start = time.perf_counter(), time.process_time()

    def read_wall_and_cpu_seconds(self) -> tuple[float, float]:
        return time.perf_counter() - self.wall_start, time.process_time() - self.cpu_start
