"""Stream data sets of the Hugging Face ``datasets`` library in shards.

A shard is a share of the data set's files. Each file is a stream of its own, so that an error can
name it, and so that columns that the source does not need may differ between files. A stream that
a network broke is restarted where it broke. If it keeps failing, or at once after any other error,
the stage fails, because half of a data set must not pass for all of it. The rows read so far are
kept in the work area with the state of the stream, and the next run continues from there.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from hallmark.tasks.contract import (
    ExternalMarker,
    HallmarkError,
    UsageError,
    check_external_path,
    expand_home,
    get_short_error_line,
    read_declared_roots,
    sha256_hex,
    to_canonical_json,
)
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.columnar import find_text_column_error, table_to_records
from hallmark.tasks.corpus.reading.readers import (
    explain_missing_field,
    find_missing_column_error,
    shorten_repr,
)
from hallmark.tasks.corpus.reading.sources import (
    LFS_POINTER_REASON,
    WHOLE_INPUT,
    CustomSource,
    DigestFunction,
    Input,
    Record,
    RecordFields,
    Shard,
    UnreadFile,
    find_paths_by_file_name,
    find_pointer_reason,
    find_source_files,
)

if TYPE_CHECKING:
    from datasets import DatasetBuilder, IterableDataset

MAX_SHARDS = 64  # each shard sends requests to the hub
RETRY_WAITS_SECONDS = (1.0, 5.0, 30.0)  # before a stream is restarted
BATCH_ROWS = 512
MAX_PENDING_BYTES = 16 << 20  # bytes of rows in memory before they are written to disk


class DatasetsSource(CustomSource, RecordFields):
    """Configure a data set of the ``datasets`` library: a local folder or a hub id."""

    kind: Literal["datasets"]
    path: Annotated[str, ExternalMarker(allows_hub_id=True)] = Field(
        min_length=1,
        description="path to a local folder, or id of a data set on the Hugging Face Hub, such "
        "as user/name",
    )
    config: str | None = Field(
        None,
        description="name of the data set configuration; required if the data set has more than "
        "one",
    )
    split: str = Field("train", description="data set split to read")
    revision: str | None = Field(
        None,
        description="branch, tag or commit of the data set on the Hugging Face Hub; the run "
        "records which commit was read",
    )

    @property
    def is_local(self) -> bool:
        return expand_home(self.path).exists()

    def list_inputs(self, source_index: int) -> Iterator[Input]:
        yield Input(self.name, source_index, self.path, self.split)

    def compute_input_digest(self, source_input: Input, digest_file: DigestFunction) -> str:
        if not self.is_local:
            return f"commit {resolve_hub_commit(self)}"
        path_by_name = find_paths_by_file_name(self.name, self.path, ("",))
        file_digests = {name: digest_file(path) for name, path in path_by_name.items()}
        return sha256_hex(to_canonical_json(file_digests))

    def read_input(
        self, source_input: Input, max_bytes: int, counts: ReadCounts, resume_folder: Path | None
    ) -> Iterator[Record]:
        return read_dataset(self, max_bytes, counts, source_input.shard, resume_folder)

    def choose_shard_count(self) -> int:
        try:
            data_files = _list_data_files(self, _load_builder(self))
            _check_no_pointers(self, data_files)
            return max(1, min(MAX_SHARDS, len(data_files)))
        except HallmarkError:
            raise
        except Exception as error:
            raise _build_read_error(self, error, StreamPosition(), False) from error

    def list_unread_files(self) -> list[UnreadFile]:
        """Return the files of a local data set that the library does not read for the split."""
        folder = expand_home(self.path)
        if not folder.is_dir():
            return []
        try:
            builder = _load_builder(self)
            split_by_file = {
                _shorten_file_name(self, file): str(split)
                for split, files in (builder.config.data_files or {}).items()
                for file in map(str, files)
            }
            read_files = {
                _shorten_file_name(self, file) for file in _list_data_files(self, builder) if file
            }
        except Exception:  # reading the data set reports it
            return []
        source_files = find_source_files(self.name, self.path, ("",))
        pointers = [
            unread for unread in source_files.unread_files if unread.reason == LFS_POINTER_REASON
        ]
        return pointers + [
            UnreadFile(
                name,
                f"file of the split {split_by_file[name]!r}"
                if name in split_by_file
                else "the datasets library does not read this file",
                1,
                path.stat().st_size,
            )
            for name, path in source_files.path_by_name.items()
            if read_files and name not in read_files
        ]


def resolve_hub_commit(source: DatasetsSource) -> str:
    """Return the commit to read; ask the hub unless the config pins a commit.

    Raises:
        UsageError: if the hub gives no answer.
    """
    if source.revision and re.fullmatch("[0-9a-f]{40}", source.revision):
        return source.revision
    from huggingface_hub import HfApi

    try:
        sha: str | None = HfApi().dataset_info(source.path, revision=source.revision).sha
    except Exception as error:  # network errors have many types
        raise UsageError(
            f"source {source.name!r}: {shorten_repr(source.path)} is not a local folder, and the "
            f"Hugging Face Hub could not be queried ({get_short_error_line(error)}); correct the "
            "path, check the network and run again, or specify a local folder that contains the "
            "data set"
        ) from error
    assert sha is not None
    return sha


@dataclass
class StreamPosition:
    """Tell how far a shard was read, for errors."""

    row: int = 0
    file_name: str = ""


def read_dataset(
    source: DatasetsSource,
    max_bytes: int,
    counts: ReadCounts,
    shard: Shard = WHOLE_INPUT,
    resume_folder: Path | None = None,
) -> Iterator[Record]:
    """Yield the rows of a shard; ``raw_bytes`` counts the bytes of the text values.

    Args:
        resume_folder: A folder that keeps the rows read so far if the stream or the process breaks.

    Raises:
        HallmarkError: if the library gives up; the message says whether progress was kept.
    """
    position, stream_cache = StreamPosition(), _StreamCache(resume_folder)
    shard_index, shard_count = shard
    shard_location = f"shard {shard_index + 1} of {shard_count}, " if shard_count > 1 else ""
    try:
        for table in stream_cache.iter_cached_and_new_tables(
            _stream_tables(source, shard, stream_cache, position)
        ):
            for record in table_to_records(table, source, position.row, max_bytes, counts):
                record.location = shard_location + record.location
                yield record
            position.row += len(table)
    except HallmarkError:
        raise
    except Exception as error:
        raise _build_read_error(source, error, position, resume_folder is not None) from error


def _load_builder(source: DatasetsSource) -> DatasetBuilder:
    """Find the files of a data set, and refuse one with files outside the declared roots."""
    from datasets import load_dataset_builder

    check_external_path(source.path, f"source {source.name!r}", ExternalMarker(allows_hub_id=True))
    location = str(expand_home(source.path)) if source.is_local else source.path
    revision = None if source.is_local else resolve_hub_commit(source)
    builder = load_dataset_builder(location, source.config, revision=revision)
    if read_declared_roots() is not None:
        for files in (builder.config.data_files or {}).values():
            for file in map(str, files):
                if source.is_local or not file.startswith(f"hf://datasets/{source.path}@"):
                    check_external_path(file, f"source {source.name!r}")
    return builder


def _list_data_files(source: DatasetsSource, builder: DatasetBuilder) -> list[str | None]:
    """Return the files of the split; [None] if the library must read them together.

    Raises:
        ValueError: The data set has no such split.
    """
    from datasets import ArrowBasedBuilder

    data_files = builder.config.data_files
    if data_files is None or not isinstance(builder, ArrowBasedBuilder):
        return [None]
    files_by_split = {str(split): list(map(str, files)) for split, files in data_files.items()}
    split_names = source.split.split("+")
    if not {*split_names} <= {*files_by_split}:
        raise ValueError(f"the data set has only the splits {', '.join(map(repr, files_by_split))}")
    return [file for name in split_names for file in files_by_split[name]]


def _check_no_pointers(source: DatasetsSource, data_files: list[str | None]) -> None:
    """Raise UsageError if Git LFS put a pointer in place of a file of a local data set."""
    for file in data_files if source.is_local else []:
        if file is not None and (reason := find_pointer_reason(Path(file))):
            raise UsageError(
                f"source {source.name!r}: file {_shorten_file_name(source, file)!r}: {reason}"
            )


def _shorten_file_name(source: DatasetsSource, file: str) -> str:
    """Return the name of a file relative to the data set."""
    if source.is_local:
        return os.path.relpath(file, expand_home(source.path))
    return re.sub(r"hf://datasets/[^@]+@[^/]+/", "", file)


def _open_data_file(
    source: DatasetsSource, builder: DatasetBuilder, file: str | None
) -> IterableDataset:
    """Open one file of a data set as a stream, without a common schema for all files."""
    from datasets.data_files import DataFilesDict, DataFilesList

    file_builder = copy(builder)
    file_builder.config, file_builder.info = copy(builder.config), builder.info.copy()
    split = source.split
    if file is not None:
        split = "train"
        for files in builder.config.data_files.values():
            if file in files:
                metadata = files.origin_metadata[files.index(file)]
        file_builder.config.data_files = DataFilesDict({split: DataFilesList([file], [metadata])})
        file_builder.info.features = None
    dataset = file_builder.as_streaming_dataset(split)
    if file is not None:
        # Otherwise the types at the beginning of the file would be required of all columns.
        file_builder.info.features = None
    return dataset.with_format("arrow")


def _select_columns(
    table: pa.Table, source: DatasetsSource, builder: DatasetBuilder, file_name: str
) -> pa.Table:
    """Return the columns to read, with the types that the data set declares for them.

    Raises:
        UsageError: A column is missing, or its values do not have its type.
    """
    place = f"source {source.name!r}: " + (f"file {file_name!r}: " if file_name else "")
    declared_schema = builder.info.features.arrow_schema if builder.info.features else pa.schema([])
    for name in source.list_columns():
        if name in declared_schema.names and name not in table.column_names:
            nulls = pa.nulls(len(table), declared_schema.field(name).type)
            table = table.append_column(name, nulls)
        elif name in declared_schema.names:
            declared_type = declared_schema.field(name).type
            try:
                column = table[name].cast(declared_type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise UsageError(
                    f"{place}column {shorten_repr(name)} has the type "
                    f"{table.schema.field(name).type}, but the data set declares {declared_type}; "
                    "correct the file, or the features in the data set's README"
                ) from error
            table = table.set_column(table.column_names.index(name), name, column)
    error_text = find_missing_column_error(source, table.column_names) or find_text_column_error(
        source, table.schema
    )
    if error_text:
        text_type = (
            f" but {table.schema.field(source.text_field).type}"
            if source.text_field in table.column_names and error_text.endswith("is not text")
            else ""
        )
        raise UsageError(
            f"{place}{error_text}{text_type}{explain_missing_field(source, table.column_names)}"
        )
    return table.select(source.list_columns())


def _stream_tables(
    source: DatasetsSource, shard: Shard, stream_cache: _StreamCache, position: StreamPosition
) -> Iterator[pa.Table]:
    """Yield tables of the needed columns, beginning where the cache ends.

    Sets ``stream_cache.stream_state`` to the state after each table, and the name of the file that
    is read. Restarts a stream that a network broke.
    """
    attempts = 0
    while True:
        try:
            builder = _load_builder(source)
            data_files = _list_data_files(source, builder)
            shard_files = np.array_split(np.array(data_files, object), shard.shard_count)
            files = shard_files[shard.shard_index].tolist()
            state = stream_cache.stream_state or {"file": 0, "stream": None}
            for file_index in range(state["file"], len(files)):
                file = files[file_index]
                position.file_name = _shorten_file_name(source, file) if file else ""
                dataset = _open_data_file(source, builder, file)
                if file_index == state["file"] and state["stream"]:
                    dataset.load_state_dict(state["stream"])
                for table in dataset.iter(batch_size=BATCH_ROWS):
                    selected = _select_columns(table, source, builder, position.file_name)
                    stream_cache.stream_state = {
                        "file": file_index,
                        "stream": dataset.state_dict(),
                    }
                    attempts = 0
                    yield selected
            return
        except HallmarkError:
            raise
        except Exception as error:
            if attempts == len(RETRY_WAITS_SECONDS) or not _may_be_temporary(source, error):
                raise
            time.sleep(RETRY_WAITS_SECONDS[attempts])
            attempts += 1


#: Packages whose errors are those of a network.
NETWORK_PACKAGES = {"aiohttp", "fsspec", "httpcore", "httpx", "requests", "urllib3"}


def _may_be_temporary(source: DatasetsSource, error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, may be that of a network."""
    if error is None:
        return False
    is_network_error = (
        isinstance(error, ConnectionError | TimeoutError)
        or type(error).__module__.partition(".")[0] in NETWORK_PACKAGES
        or (isinstance(error, OSError) and not source.is_local)
    )
    return (is_network_error and not isinstance(error, FileNotFoundError)) or _may_be_temporary(
        source, error.__cause__ or error.__context__
    )


class _StreamCache:
    """Keep the tables of a stream in files, each with the state of the stream after it."""

    def __init__(self, cache_folder: Path | None) -> None:
        self.cache_folder = cache_folder
        self.stream_state: dict[str, Any] | None = None
        self.pending_tables: list[pa.Table] = []
        self.pending_bytes = self.file_count = 0

    def iter_cached_and_new_tables(self, stream: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yield the cached tables, then those of the stream, which are cached too."""
        for path in sorted(self.cache_folder.glob("*.arrow")) if self.cache_folder else []:
            with pa.memory_map(str(path)) as file:
                table = pa.ipc.open_file(file).read_all()
            self.stream_state = json.loads(table.schema.metadata[b"state"])
            self.file_count += 1
            yield table
        try:
            for table in stream:
                self._add_table(table)
                yield table
        finally:
            self._write_pending()

    def _add_table(self, table: pa.Table) -> None:
        self.pending_tables.append(table.replace_schema_metadata())
        self.pending_bytes += table.nbytes
        if self.pending_bytes >= MAX_PENDING_BYTES:
            self._write_pending()

    def _write_pending(self) -> None:
        if self.cache_folder and self.pending_tables:
            self.cache_folder.mkdir(parents=True, exist_ok=True)
            table = pa.concat_tables(self.pending_tables, promote_options="permissive")
            table = table.replace_schema_metadata({"state": json.dumps(self.stream_state)})
            path = self.cache_folder / f"{self.file_count:06d}.arrow"
            with pa.ipc.new_file(str(path.with_suffix(".part")), table.schema) as writer:
                writer.write_table(table)
            os.replace(path.with_suffix(".part"), path)
            self.file_count += 1
        self.pending_tables, self.pending_bytes = [], 0


def _build_read_error(
    source: DatasetsSource, error: Exception, position: StreamPosition, is_progress_kept: bool
) -> HallmarkError:
    file = f"file {shorten_repr(position.file_name)}, " if position.file_name else ""
    advice = (
        "run again to continue with the next row (the rows read so far are kept)"
        if is_progress_kept and position.row
        else ("run again" if _may_be_temporary(source, error) else "correct the data set")
    )
    return HallmarkError(
        f"source {source.name!r}: the datasets library could not read {shorten_repr(source.path)}, "
        f"{file}split {shorten_repr(source.split)}, after row {position.row} "
        f"({get_short_error_line(error)}); {advice}, or read the files of the data set through a "
        "source of kind 'jsonl', 'parquet', 'csv' or 'text', which quarantines unreadable records"
    )
