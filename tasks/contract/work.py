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

from tasks.contract.artifact import Part, table_digest
from tasks.contract.columns import is_cut, meaning, to_json
from tasks.contract.errors import HallmarkError
from tasks.contract.mappers import ONE, InProcess, Mapper, Needs
from tasks.contract.writer import Tables

if TYPE_CHECKING:
    from tasks.contract.artifact import Artifact

log = logging.getLogger("hallmark")

#: Called with (done, total, what); total is 0 where it is not known.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Done:
    """What the work on one item left: a small JSON value, parts of the stage's tables, and
    spilled tables that only this stage reads."""

    folder: Path
    value: Any
    parts: dict[str, dict[str, Any]]  # manifest entries of the stage's tables, by table
    spilled: dict[str, int]  # bytes of the spilled tables, by name

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.parquet"

    @property
    def spills(self) -> list[str]:
        """Names of what it spilled, in order."""
        return sorted(self.spilled)

    def spill(self, name: str) -> Path:
        return self.folder / f"{name}.arrow"

    def mapped(self, name: str, schema: pa.Schema) -> pa.Table:
        """What was spilled under a name; empty if nothing was. It stays in its file, which is not
        held open: the mapping lasts as long as the table."""
        if name not in self.spilled:
            return schema.empty_table()
        with pa.memory_map(str(self.spill(name))) as source:
            return pa.ipc.open_file(source).read_all()

    def whole(self) -> bool:
        """Whether all of it is still there, as long as it was: a kill in mid-commit moves parts
        away, a power cut shortens them."""
        sizes = {self.path(name): part["size"] for name, part in self.parts.items()}
        sizes |= {self.spill(name): size for name, size in self.spilled.items()}
        return all(path.exists() and path.stat().st_size == sizes[path] for path in sizes)


def together(results: Sequence[Done], name: str, schema: pa.Schema) -> pa.Table:
    """What several items spilled under a name, in their order, mapped from their files."""
    return pa.concat_tables([schema.empty_table(), *(d.mapped(name, schema) for d in results)])


@dataclass
class Work(Tables):
    """Handed to every stage body; made from a folder alone, it serves a test as well.

    ``area`` survives a kill and is removed at commit: what a resumable stage keeps there it
    finds again, and parts that are done stay done. What is ``kept`` there stays behind the commit,
    too, for runs with other settings that share the area. ``out`` receives the tables and files of
    this attempt, ``folder`` the tables that are written in this process.
    """

    area: Path
    tables: Mapping[str, pa.Schema]
    mapper: Mapper = field(default_factory=InProcess)
    secret: bytes = b"secret of a work area without a store"
    on_progress: Progress = lambda done, total, what: None
    #: Commits a folder as an artifact of its own: (stage, key, folder) -> Artifact.
    commit_child: Callable[[str, Mapping[str, Any], Path], Artifact] | None = None
    needs: Needs = ONE
    retries: int = 1
    #: Ids of the documents that were purged from the store, for a stage that lets documents in.
    denied: frozenset[bytes] = frozenset()
    #: Of this very artifact: the stage's, unless its body finds that less can be said.
    determinism: str = "exact"
    kept: set[str] = field(default_factory=set)
    on_figures: Callable[[int, Mapping[str, float]], None] = lambda step, figures: None

    def __post_init__(self) -> None:
        super().__init__(self.area / "tables", self.tables)
        self.out = self.area / "out"
        self.out.mkdir(parents=True, exist_ok=True)
        self.measurements: list[dict[str, Any]] = []
        self.calls: list[list[Done]] = []
        self.pieces: list[int] = []

    def file(self, name: str) -> Path:
        """Where to write a file of the artifact; its folder exists."""
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def progress(self, done: int, total: int, what: str = "") -> None:
        self.on_progress(done, total, what)

    def show(self, step: int, figures: Mapping[str, float]) -> None:
        """Let whoever watches see figures of a step, now: they are kept nowhere."""
        self.on_figures(step, figures)

    def measure(self, metric: str, value: float, unit: str) -> None:
        """Note a measurement of this machine (telemetry: no part of the content digest)."""
        self.measurements.append({"metric": metric, "value": float(value), "unit": unit})

    def keyed_hashes(self, values: Sequence[str]) -> list[bytes]:
        """16-byte hashes keyed by the store's secret: plain ones of short values can be guessed."""
        return [
            hmac.digest(self.secret, value.encode("utf-8", "surrogatepass"), "sha256")[:16]
            for value in values
        ]

    # Parts ---------------------------------------------------------------------------------

    def parts(
        self, function: Callable[..., Any], items: Sequence[Any], *arguments: Any
    ) -> list[Done]:
        """``map`` where item k makes part k of every table of the stage that is about documents,
        be it without a row. Where items are parts of documents, or begin with one, and these are
        of several pieces, so are the tables."""
        cut = [name for name, schema in self.schemas.items() if is_cut(schema)]
        begins = [k for k, item in enumerate(items) if (part := _part(item)) and not part.number]
        ends = [*begins, len(items)][1:]
        self.pieces = [end - begin for begin, end in zip(begins, ends, strict=True)]
        return self._map(function, items, arguments, cut)

    def map(
        self, function: Callable[..., Any], items: Sequence[Any], *arguments: Any
    ) -> list[Done]:
        """Run ``function(item, *arguments, out)`` for every item; what they left, in their order.

        ``out`` has writers for the tables of the stage and for spills. What the function returns
        must be a JSON value. An item that is done survives a kill; one that fails is tried again
        before it fails the stage. So function, items and arguments must be the same each time that
        the stage runs on the same inputs.
        """
        return self._map(function, items, arguments, [])

    def _map(
        self,
        function: Callable[..., Any],
        items: Sequence[Any],
        arguments: tuple[Any, ...],
        cut: Sequence[str],
    ) -> list[Done]:
        name = function.__name__
        base = self.area / "parts" / f"{len(self.calls)}-{name}"
        results: dict[int, Done] = {}
        failed: Counter[int] = Counter()
        while True:
            for index in range(len(items)):
                if index not in results and (found := _read(base / f"{index:05d}")):
                    results[index] = found
            self.progress(len(results), len(items), name)
            todo = [index for index in range(len(items)) if index not in results]
            if not todo:
                self.calls.append([results[index] for index in range(len(items))])
                return self.calls[-1]
            calls = [
                (function, items[i], arguments, base / f"{i:05d}", self.schemas, cut) for i in todo
            ]
            # How many of them came back: they do in their order, so the next one is what fails.
            back = 0
            try:
                for _ in self.mapper(_run_item, calls, self.needs):
                    back += 1
                    self.progress(len(results) + back, len(items), name)
            except (HallmarkError, MemoryError):
                raise
            except (Exception, BrokenExecutor) as error:
                if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                    raise
                here = todo[min(back, len(todo) - 1)]  # behind the last: who was told of it
                failed[here] += 1
                if failed[here] > self.retries:
                    raise HallmarkError(_why(error, items[here])) from error
                log.warning("a part of %s failed (%s); trying again", name, reason(error))

    def assemble(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Put the parts of each table into its folder under their numbers; the tables' entries.

        Parts are renamed: whoever wrote one has written it where it stays. A table that nobody
        wrote to is one part without rows.
        """
        entries = {}
        for name in names:
            schema = self.schemas[name]
            made = [(d.path(name), d.parts[name]) for c in self.calls for d in c if name in d.parts]
            if name in self.written or not made:
                self.table(name).close()
                made.append((self.table(name).path, self.written[name].entry(name)))
            parts = []
            for number, (path, entry) in enumerate(made):
                place = self.file(f"{name}/{number:05d}.parquet")
                os.rename(path, place)
                parts.append({**entry, "name": f"{name}/{number:05d}.parquet"})
            described: dict[str, Any] = {"columns": to_json(schema), "meaning": meaning(schema)}
            described["parts"] = parts
            if is_cut(schema) and len(self.pieces) > 1:
                described["pieces"] = self.pieces
            rows = {"rows": sum(part["rows"] for part in parts)}
            entries[name] = {**described, **rows, "sha256": table_digest(described)}
        return entries


def _part(item: Any) -> Part | None:
    """The part that an item is about."""
    if is_dataclass(item) and not isinstance(item, Part):
        item = tuple(getattr(item, field.name) for field in fields(item))
    first = item[0] if isinstance(item, tuple) and item else item
    return first if isinstance(first, Part) else None


def _read(folder: Path) -> Done | None:
    """What was left there; None where it is not, or no longer, all of what was written.

    Nothing here is forced to the disk before the commit: that takes 12 ms for each part, which may
    be more than the work on it. So after a power cut any file may be short or empty.
    """
    path = folder / "done.json"
    if not path.exists():
        return None
    try:
        found = Done(folder, **json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        return None
    return found if found.whole() else None


def _run_item(
    function: Callable[..., Any],
    item: Any,
    arguments: tuple[Any, ...],
    folder: Path,
    schemas: Mapping[str, pa.Schema],
    cut: Sequence[str],
) -> None:
    """In the worker: do one item into a scratch folder and rename it when it is whole."""
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    out = Tables(scratch, schemas)
    try:
        value = function(item, *arguments, out)
        for name in cut:
            out.table(name)
        out.close()
        parts = {name: writer.entry(name) for name, writer in out.written.items()}
    except (HallmarkError, OSError):
        raise
    except MemoryError as error:
        raise MemoryError(f"{item}: {reason(error)}") from error
    except Exception as error:
        raise RuntimeError(f"{item}: {reason(error)}") from error
    finally:
        out.abandon()
    spilled = {name: writer.path.stat().st_size for name, writer in out.spilled.items()}
    said = {"value": value, "parts": parts, "spilled": spilled}
    (scratch / "done.json").write_text(json.dumps(said))
    if _read(folder):  # by another try that was still at it when this one began
        shutil.rmtree(scratch)
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(scratch, folder)


def _why(error: BaseException, item: Any) -> str:
    if isinstance(error, BrokenExecutor):
        return (
            f"{item}: a process that worked on it, or on one beside it, was killed, as where "
            f"memory runs out; run again with fewer workers, or where there is more: it goes on, "
            f"nothing is lost"
        )
    return reason(error)


def reason(error: BaseException) -> str:
    """The first line of what it says, else its name."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


class Clock:
    """Wall and processor seconds since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self.wall, time.process_time() - self.cpu
