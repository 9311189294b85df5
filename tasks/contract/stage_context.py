"""What a stage body works with: writers for its tables, its work area, parts, progress."""

from __future__ import annotations

import errno
import hmac
import json
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hallmark.tasks.contract.artifact import TablePart, compute_table_digest
from hallmark.tasks.contract.columns import columns_to_json, get_table_meaning, is_partitioned
from hallmark.tasks.contract.errors import HallmarkError
from hallmark.tasks.contract.resources import DEFAULT_RESOURCES, Mapper, Resources, SerialMapper
from hallmark.tasks.contract.table_writers import TableWriters

if TYPE_CHECKING:
    from hallmark.tasks.contract.artifact import Artifact

log = logging.getLogger("hallmark")

#: Called with (done, total, what); total is 0 where it is not known.
ProgressCallback = Callable[[int, int, str], None]


@dataclass(frozen=True)
class ItemResult:
    """What the work on one item left: a small JSON value, parts of the stage's tables, and
    spilled tables that only this stage reads."""

    folder: Path
    value: Any
    parts: dict[str, dict[str, Any]]  # manifest entries of the stage's tables, by table
    spilled: dict[str, int]  # bytes of the spilled tables, by name

    def table_path(self, name: str) -> Path:
        return self.folder / f"{name}.parquet"

    @property
    def spill_names(self) -> list[str]:
        """Names of what it spilled, in order."""
        return sorted(self.spilled)

    def spill_path(self, name: str) -> Path:
        return self.folder / f"{name}.arrow"

    def open_spilled_table(self, name: str, schema: pa.Schema) -> pa.Table:
        """What was spilled under a name; empty if nothing was. It stays in its file, which is not
        held open: the mapping lasts as long as the table."""
        if name not in self.spilled:
            return schema.empty_table()
        with pa.memory_map(str(self.spill_path(name))) as source:
            return pa.ipc.open_file(source).read_all()

    def is_complete(self) -> bool:
        """Whether all of it is still there, as long as it was: a kill in mid-commit moves parts
        away, a power cut shortens them."""
        sizes = {self.table_path(name): part["size"] for name, part in self.parts.items()}
        sizes |= {self.spill_path(name): size for name, size in self.spilled.items()}
        return all(path.exists() and path.stat().st_size == sizes[path] for path in sizes)


def concat_spilled_tables(results: Sequence[ItemResult], name: str, schema: pa.Schema) -> pa.Table:
    """What several items spilled under a name, in their order, mapped from their files."""
    return pa.concat_tables(
        [schema.empty_table(), *(result.open_spilled_table(name, schema) for result in results)]
    )


@dataclass
class StageContext(TableWriters):
    """Handed to every stage body; made from a folder alone, it serves a test as well.

    ``area`` survives a kill and is removed at commit: what a resumable stage keeps there it
    finds again, and parts that are done stay done. What is ``kept`` there stays behind the commit,
    too, for runs with other settings that share the area. ``out`` receives the tables and files of
    this attempt, ``folder`` the tables that are written in this process.
    """

    work_area: Path
    declared_schemas: Mapping[str, pa.Schema]
    mapper: Mapper = field(default_factory=SerialMapper)
    secret: bytes = b"secret of a work area without a store"
    on_progress: ProgressCallback = lambda completed, total, description: None
    #: Commits a folder as an artifact of its own: (stage, key, folder) -> Artifact.
    commit_child_artifact: Callable[[str, Mapping[str, Any], Path], Artifact] | None = None
    resources: Resources = DEFAULT_RESOURCES
    max_retries: int = 1
    #: Ids of the documents that were purged from the store, for a stage that lets documents in.
    purged_ids: frozenset[bytes] = frozenset()
    #: Of this very artifact: the stage's, unless its body finds that less can be said.
    determinism: str = "exact"
    preserved_names: set[str] = field(default_factory=set)
    on_metrics: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None

    def __post_init__(self) -> None:
        super().__init__(self.work_area / "tables", self.declared_schemas)
        self.output_folder = self.work_area / "out"
        self.output_folder.mkdir(parents=True, exist_ok=True)
        self.measurements: list[dict[str, Any]] = []
        self.map_results: list[list[ItemResult]] = []
        self.parts_per_segment: list[int] = []

    def prepare_output_path(self, name: str) -> Path:
        """Where to write a file of the artifact; its folder exists."""
        path = self.output_folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def report_progress(self, completed: int, total: int, description: str = "") -> None:
        self.on_progress(completed, total, description)

    def report_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Let whoever watches see figures of a step, now: they are kept nowhere."""
        self.on_metrics(step, metrics)

    def record_measurement(self, metric: str, value: float, unit: str) -> None:
        """Note a measurement of this machine (telemetry: no part of the content digest)."""
        self.measurements.append({"metric": metric, "value": float(value), "unit": unit})

    def hash_with_secret(self, values: Sequence[str]) -> list[bytes]:
        """16-byte hashes keyed by the store's secret: plain ones of short values can be guessed."""
        return [
            hmac.digest(self.secret, value.encode("utf-8", "surrogatepass"), "sha256")[:16]
            for value in values
        ]

    # Parts ---------------------------------------------------------------------------------

    def map_partitions(
        self, function: Callable[..., Any], items: Sequence[Any], *arguments: Any
    ) -> list[ItemResult]:
        """``map`` where item k makes part k of every table of the stage that is about documents,
        be it without a row. Where items are parts of documents, or begin with one, and these are
        of several pieces, so are the tables."""
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
        """Run ``function(item, *arguments, out)`` for every item; what they left, in their order.

        ``out`` has writers for the tables of the stage and for spills. What the function returns
        must be a JSON value. An item that is done survives a kill; one that fails is tried again
        before it fails the stage. So function, items and arguments must be the same each time that
        the stage runs on the same inputs.
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
        failure_counts: Counter[int] = Counter()
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
                return self.map_results[-1]
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
            # How many of them came back: they do in their order, so the next one is what fails.
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
                failed_index = pending_indices[
                    min(returned_count, len(pending_indices) - 1)
                ]  # behind the last: who was told of it
                failure_counts[failed_index] += 1
                if failure_counts[failed_index] > self.max_retries:
                    raise HallmarkError(_explain_failure(error, items[failed_index])) from error
                log.warning(
                    "a part of %s failed (%s); trying again", function_name, summarize_error(error)
                )

    def assemble_tables(self, table_names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Put the parts of each table into its folder under their numbers; the tables' entries.

        Parts are renamed: whoever wrote one has written it where it stays. A table that nobody
        wrote to is one part without rows.
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
            table_entry: dict[str, Any] = {
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
    """The part that an item is about."""
    if is_dataclass(item) and not isinstance(item, TablePart):
        item = tuple(getattr(item, field.name) for field in fields(item))
    first_element = item[0] if isinstance(item, tuple) and item else item
    return first_element if isinstance(first_element, TablePart) else None


def _read_item_result(folder: Path) -> ItemResult | None:
    """What was left there; None where it is not, or no longer, all of what was written.

    Nothing here is forced to the disk before the commit: that takes 12 ms for each part, which may
    be more than the work on it. So after a power cut any file may be short or empty.
    """
    path = folder / "done.json"
    if not path.exists():
        return None
    try:
        result = ItemResult(folder, **json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        return None
    return result if result.is_complete() else None


def _run_item(
    function: Callable[..., Any],
    item: Any,
    arguments: tuple[Any, ...],
    folder: Path,
    schemas: Mapping[str, pa.Schema],
    partitioned_tables: Sequence[str],
) -> None:
    """In the worker: do one item into a scratch folder and rename it when it is whole."""
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    writers = TableWriters(scratch, schemas)
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
        raise MemoryError(f"{item}: {summarize_error(error)}") from error
    except Exception as error:
        raise RuntimeError(f"{item}: {summarize_error(error)}") from error
    finally:
        writers.close_quietly()
    spilled = {name: writer.path.stat().st_size for name, writer in writers.spill_writers.items()}
    record = {"value": value, "parts": parts, "spilled": spilled}
    (scratch / "done.json").write_text(json.dumps(record))
    if _read_item_result(folder):  # by another try that was still at it when this one began
        shutil.rmtree(scratch)
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(scratch, folder)


def _explain_failure(error: BaseException, item: Any) -> str:
    if isinstance(error, BrokenExecutor):
        return (
            f"{item}: a process that worked on it, or on one beside it, was killed, as where "
            f"memory runs out; run again with fewer workers, or where there is more: it goes on, "
            f"nothing is lost"
        )
    return summarize_error(error)


def summarize_error(error: BaseException) -> str:
    """The first line of what it says, else its name."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class Stopwatch:
    """Wall and processor seconds since it was made."""

    def __init__(self) -> None:
        self.wall_start, self.cpu_start = time.perf_counter(), time.process_time()

    def read_wall_and_cpu_seconds(self) -> tuple[float, float]:
        return time.perf_counter() - self.wall_start, time.process_time() - self.cpu_start
