"""What a stage body works with: writers for its tables, its work area, shards, progress."""

from __future__ import annotations

import errno
import hmac
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tasks.contract.errors import HallmarkError
from tasks.contract.fingerprint import canonical, sha256
from tasks.contract.mappers import InProcess, Mapper
from tasks.contract.store import Shard
from tasks.contract.tables import TableWriter

if TYPE_CHECKING:
    from tasks.contract.store import Artifact

log = logging.getLogger("hallmark")

#: Called with (done, total, what); total is 0 where it is not known.
Progress = Callable[[int, int, str], None]


class Tables:
    """Writers for the tables of one folder, opened when first asked for."""

    def __init__(self, folder: Path, schemas: Mapping[str, pa.Schema]) -> None:
        self.folder, self.schemas = folder, dict(schemas)
        self._writers: dict[str, TableWriter] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def table(self, name: str, schema: pa.Schema | None = None) -> TableWriter:
        """The writer of a table; a shard may name a table (and schema) of its own."""
        if name not in self._writers:
            schema = schema or self.schemas.get(name)
            if schema is None:
                raise HallmarkError(f"the stage declares no table {name!r}")
            self._writers[name] = TableWriter(self.folder / f"{name}.parquet", schema)
        return self._writers[name]

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def abandon(self) -> None:
        for writer in self._writers.values():
            writer.abandon()

    @property
    def written(self) -> dict[str, TableWriter]:
        return self._writers


@dataclass(frozen=True)
class Part:
    """What one shard left: tables in a folder of the work area, and a small JSON value."""

    folder: Path
    value: Any = None

    def batches(self, name: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches of a table of this part; none if the shard never wrote it."""
        path = self.folder / f"{name}.parquet"
        if path.exists():
            import pyarrow.parquet as pq

            with pq.ParquetFile(path) as file:
                count = file.num_row_groups
            yield from Shard(str(path), tuple(range(count)), 0, 0).batches(columns)


@dataclass
class Work(Tables):
    """Handed to every stage body; made from a folder alone, it serves a test as well.

    ``area`` survives a kill and is removed at commit: what a resumable stage keeps there it
    finds again. ``folder`` receives the tables and files of this attempt.
    """

    area: Path
    tables: Mapping[str, pa.Schema]
    mapper: Mapper = field(default_factory=InProcess)
    secret: bytes = b"secret of a work area without a store"
    on_progress: Progress = lambda done, total, what: None
    #: Commits a folder as an artifact of its own: (stage, key, folder, parts) -> Artifact.
    commit_child: Callable[[str, Mapping[str, Any], Path], Artifact] | None = None
    retries: int = 1

    def __post_init__(self) -> None:
        super().__init__(self.area / "out", self.tables)
        self.measurements: list[dict[str, Any]] = []

    def file(self, name: str) -> Path:
        """Where to write a file of the artifact; its folder exists."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def progress(self, done: int, total: int, what: str = "") -> None:
        self.on_progress(done, total, what)

    def measure(self, metric: str, value: float, unit: str) -> None:
        """Note a measurement of this machine (telemetry: no part of the content digest)."""
        self.measurements.append({"metric": metric, "value": float(value), "unit": unit})

    def keyed_hashes(self, values: Sequence[str]) -> list[bytes]:
        """16-byte hashes keyed by the store's secret: plain ones of short values can be guessed."""
        return [
            hmac.digest(self.secret, value.encode("utf-8", "surrogatepass"), "sha256")[:16]
            for value in values
        ]

    # Shards --------------------------------------------------------------------------------

    def map(
        self,
        function: Callable[..., Any],
        shards: Sequence[Any],
        *arguments: Any,
        schemas: Mapping[str, pa.Schema] | None = None,
    ) -> list[Part]:
        """Run ``function(shard, *arguments, out)`` for every shard; parts in shard order.

        ``out`` is a ``Tables`` for the tables of the stage and those in ``schemas``. What
        the function returns must be a JSON value. A shard that is done survives a kill; one
        that fails is tried again before it fails the stage.
        """
        name = function.__name__
        known = {**self.tables, **(schemas or {})}
        keys = [sha256(canonical([name, repr(s), repr(arguments)]))[:16] for s in shards]
        base = self.area / "parts" / name
        parts: dict[int, Part] = {}
        tries = 0
        while True:
            todo = []
            for index, key in enumerate(keys):
                done = base / f"{index:05d}-{key}" / "done.json"
                if done.exists():
                    parts[index] = Part(done.parent, json.loads(done.read_text()))
                else:
                    todo.append(index)
            self.progress(len(parts), len(shards), name)
            calls = [
                (function, shards[i], arguments, base / f"{i:05d}-{keys[i]}", known) for i in todo
            ]
            try:
                for count, _ in enumerate(self.mapper(_run_shard, calls), start=len(parts) + 1):
                    self.progress(count, len(shards), name)
            except (HallmarkError, MemoryError):
                raise
            except (Exception, BrokenExecutor) as error:
                if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                    raise
                tries = self._again(name, error, tries)
                continue
            if not todo:
                return [parts[index] for index in range(len(shards))]

    def _again(self, name: str, error: BaseException, tries: int) -> int:
        """Count a failure; raise HallmarkError when there were too many."""
        if tries >= self.retries:
            raise HallmarkError(_reason(error)) from error
        log.warning("a shard of %s failed (%s); trying again", name, _reason(error))
        return tries + 1

    def merge(self, parts: Sequence[Part], *names: str) -> None:
        """Append the parts' tables to the stage's own, in shard order."""
        for name in names:
            writer = self.table(name)
            for part in parts:
                for batch in part.batches(name):
                    writer.write(batch)


def _run_shard(
    function: Callable[..., Any],
    shard: Any,
    arguments: tuple[Any, ...],
    folder: Path,
    schemas: Mapping[str, pa.Schema],
) -> None:
    """In the worker: run one shard into a scratch folder and rename it when it is whole."""
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    out = Tables(scratch, schemas)
    try:
        value = function(shard, *arguments, out)
        out.close()
    except (HallmarkError, OSError):
        raise
    except Exception as error:
        raise RuntimeError(f"{shard}: {_reason(error)}") from error
    finally:
        out.abandon()
    (scratch / "done.json").write_text(json.dumps(value))
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(scratch, folder)


def _reason(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


class Clock:
    """Wall and processor seconds since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self.wall, time.process_time() - self.cpu
