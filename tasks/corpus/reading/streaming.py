"""Data sets of the Hugging Face ``datasets`` library, streamed in pieces.

A piece is a share of the data set's files. A stream that breaks is begun again where it was; one
that stays broken fails the stage, for half of a data set must not stand under the name of all of
it. What came of it before is kept in the work area with its place in the stream, and the next run
goes on from there.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import Field

from tasks.contract import (
    External,
    HallmarkError,
    UsageError,
    check_external,
    declared_roots,
    expanded,
)
from tasks.corpus.reading.columns import column_records, no_text
from tasks.corpus.reading.readers import Record, missing, short
from tasks.corpus.reading.sources import Fields, Source
from tasks.corpus.reading.streams import Meter

PIECES = 64  # at most: each asks the hub what there is
WAITS = (1.0, 5.0, 30.0)  # seconds before a stream is begun again
BATCH = 512  # rows
KEPT = 16 << 20  # bytes of rows that are held before they are written down


class DatasetsSource(Source, Fields):
    """A data set of the Hugging Face ``datasets`` library: a local folder or a hub id, streamed."""

    kind: Literal["datasets"]
    path: Annotated[str, External(hub=True)] = Field(
        min_length=1, description="a folder, or a hub id such as user/name"
    )
    config: str | None = Field(None, description="the data set's configuration, if it has several")
    split: str = Field("train", description="of the data set, as it calls it")
    revision: str | None = Field(
        None, description="branch, tag or commit on the hub; recorded as the commit it stands for"
    )

    @property
    def local(self) -> bool:
        return expanded(self.path).exists()


def commit_of(source: DatasetsSource) -> str:
    """The commit on the hub that is read; asks the hub unless the config pins one."""
    if source.revision and re.fullmatch("[0-9a-f]{40}", source.revision):
        return source.revision
    from huggingface_hub import HfApi

    try:
        sha = HfApi().dataset_info(source.path, revision=source.revision).sha
    except Exception as error:  # whatever the network does
        raise UsageError(
            f"source {source.name!r}: {short(source.path)} is no folder here and the hub gave no "
            f"answer ({_first_line(error)}); correct the path, try again "
            f"with a network, or name a folder that holds the data"
        ) from error
    assert sha is not None
    return sha


def pieces_of(source: DatasetsSource) -> int:
    """In how many pieces a data set is read."""
    try:
        return max(1, min(PIECES, _opened(source).num_shards))
    except Exception as error:
        raise _unread(source, error, 0, False) from error


def read_dataset(
    source: DatasetsSource,
    limit: int,
    meter: Meter,
    piece: tuple[int, int] = (0, 1),
    kept: Path | None = None,
) -> Iterator[Record]:
    """Rows of a piece of a data set; raw bytes are those of the text values.

    ``kept``: a folder in which what came of the stream survives its break, or the process.
    Raises HallmarkError where the library gives up, and says what stays.
    """
    row, memory = 0, _Memory(kept)
    place = f"piece {piece[0] + 1} of {piece[1]}, " if piece[1] > 1 else ""
    try:
        for table in memory.tables(_stream(source, piece, memory)):
            for record in column_records(table, source, row, limit, meter):
                record.place = place + record.place
                yield record
            row += len(table)
    except HallmarkError:
        raise
    except Exception as error:
        raise _unread(source, error, row, kept is not None) from error


def _opened(source: DatasetsSource) -> Any:
    from datasets import load_dataset

    check_external(source.path, f"source {source.name!r}", External(hub=True))
    where = str(expanded(source.path)) if source.local else source.path
    revision = None if source.local else commit_of(source)
    if declared_roots() is not None:
        _check_data_files(source, where, revision)
    data = load_dataset(where, source.config, split=source.split, revision=revision, streaming=True)
    return data.with_format("arrow")


def _check_data_files(source: DatasetsSource, where: str, revision: str | None) -> None:
    """Refuse a data set whose own description names files outside the declared roots."""
    from datasets import load_dataset_builder

    builder = load_dataset_builder(where, source.config, revision=revision)
    for files in (builder.config.data_files or {}).values():
        for file in map(str, files):
            if source.local or not file.startswith(f"hf://datasets/{source.path}@"):
                check_external(file, f"source {source.name!r}")


def _stream(source: DatasetsSource, piece: tuple[int, int], memory: _Memory) -> Iterator[pa.Table]:
    """Tables of the columns to read, from where the memory ends; it is told of the place behind
    each."""
    tries = 0
    while True:
        try:
            data = _opened(source)
            data = data.shard(num_shards=piece[1], index=piece[0]) if piece[1] > 1 else data
            if memory.state:
                data.load_state_dict(memory.state)
            for table in data.iter(batch_size=BATCH):
                error = missing(source, table.column_names) or no_text(source, table.schema)
                if error:
                    columns = ", ".join(table.column_names[:20])
                    raise UsageError(f"source {source.name!r}: {error}; the columns are {columns}")
                memory.state, tries = data.state_dict(), 0
                yield table.select(source.columns())
            return
        except HallmarkError:
            raise
        except Exception as error:
            never = memory.state is None and isinstance(error, ValueError | FileNotFoundError)
            if never or tries == len(WAITS):
                raise
            time.sleep(WAITS[tries])
            tries += 1


class _Memory:
    """What came of a stream, in files of a folder, each with the place in the stream behind it."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.state = folder, None
        self.held: list[pa.Table] = []
        self.size = self.count = 0

    def tables(self, stream: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """What was kept, then what comes, which is kept in its turn, if the stream breaks too."""
        for path in sorted(self.folder.glob("*.arrow")) if self.folder else []:
            with pa.memory_map(str(path)) as file:
                table = pa.ipc.open_file(file).read_all()
            self.state = json.loads(table.schema.metadata[b"state"])
            self.count += 1
            yield table
        try:
            for table in stream:
                self._add(table)
                yield table
        finally:
            self._write()

    def _add(self, table: pa.Table) -> None:
        self.held.append(table.replace_schema_metadata())
        self.size += table.nbytes
        if self.size >= KEPT:
            self._write()

    def _write(self) -> None:
        if self.folder and self.held:
            self.folder.mkdir(parents=True, exist_ok=True)
            table = pa.concat_tables(self.held, promote_options="permissive")
            table = table.replace_schema_metadata({"state": json.dumps(self.state)})
            path = self.folder / f"{self.count:06d}.arrow"
            with pa.ipc.new_file(str(path.with_suffix(".part")), table.schema) as writer:
                writer.write_table(table)
            os.replace(path.with_suffix(".part"), path)
            self.count += 1
        self.held, self.size = [], 0


def _unread(source: DatasetsSource, error: Exception, row: int, stays: bool) -> HallmarkError:
    what = "what was read stays: run again and it goes on there" if stays and row else "run again"
    return HallmarkError(
        f"source {source.name!r}: the datasets library could not read {short(source.path)}, "
        f"split {short(source.split)}, behind row {row} ({_first_line(error)}); {what}, or "
        f"read its files with kind jsonl, parquet, csv or text, which set bad records aside"
    )


def _first_line(error: Exception) -> str:
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= 200 else f"{line[:197]}..."
