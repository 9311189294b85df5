"""Stream data sets of the Hugging Face ``datasets`` library in shards.

A shard is a share of the data set's files. A broken stream is restarted where it broke. If it keeps
failing the stage fails, because half of a data set must not pass for all of it. The rows read so
far are kept in the work area with the state of the stream, and the next run continues from there.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
    WHOLE_INPUT,
    CustomSource,
    DigestFunction,
    Input,
    Record,
    RecordFields,
    Shard,
    find_paths_by_file_name,
)

if TYPE_CHECKING:
    from datasets import IterableDataset

MAX_SHARDS = 64  # each shard sends requests to the hub
RETRY_WAITS_SECONDS = (1.0, 5.0, 30.0)  # before a stream is restarted
BATCH_ROWS = 512
MAX_PENDING_BYTES = 16 << 20  # bytes of rows in memory before they are written to disk


class DatasetsSource(CustomSource, RecordFields):
    """Configure a data set of the ``datasets`` library: a local folder or a hub id."""

    kind: Literal["datasets"]
    path: Annotated[str, ExternalMarker(allows_hub_id=True)] = Field(
        min_length=1,
        description="path of a local folder, or id of a data set on the Hugging Face Hub, "
        "such as user/name",
    )
    config: str | None = Field(
        None,
        description="name of the configuration of the data set; required if the data set has "
        "several configurations",
    )
    split: str = Field("train", description="name of the data set split to read")
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
            shard_count: int = max(1, min(MAX_SHARDS, _open_dataset(self).num_shards))
            return shard_count
        except Exception as error:
            raise _build_read_error(self, error, 0, False) from error


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
    row, stream_cache = 0, _StreamCache(resume_folder)
    shard_index, shard_count = shard
    shard_location = f"shard {shard_index + 1} of {shard_count}, " if shard_count > 1 else ""
    try:
        for table in stream_cache.iter_cached_and_new_tables(
            _stream_tables(source, shard, stream_cache)
        ):
            for record in table_to_records(table, source, row, max_bytes, counts):
                record.location = shard_location + record.location
                yield record
            row += len(table)
    except HallmarkError:
        raise
    except Exception as error:
        raise _build_read_error(source, error, row, resume_folder is not None) from error


def _open_dataset(source: DatasetsSource) -> IterableDataset:
    from datasets import load_dataset

    check_external_path(source.path, f"source {source.name!r}", ExternalMarker(allows_hub_id=True))
    location = str(expand_home(source.path)) if source.is_local else source.path
    revision = None if source.is_local else resolve_hub_commit(source)
    if read_declared_roots() is not None:
        _check_data_files_within_roots(source, location, revision)
    dataset = load_dataset(
        location, source.config, split=source.split, revision=revision, streaming=True
    )
    return dataset.with_format("arrow")


def _check_data_files_within_roots(
    source: DatasetsSource, location: str, revision: str | None
) -> None:
    """Refuse a data set that names files outside the declared roots."""
    from datasets import load_dataset_builder

    builder = load_dataset_builder(location, source.config, revision=revision)
    for files in (builder.config.data_files or {}).values():
        for file in map(str, files):
            if source.is_local or not file.startswith(f"hf://datasets/{source.path}@"):
                check_external_path(file, f"source {source.name!r}")


def _stream_tables(
    source: DatasetsSource, shard: Shard, stream_cache: _StreamCache
) -> Iterator[pa.Table]:
    """Yield tables of the needed columns, beginning where the cache ends.

    Sets ``stream_cache.stream_state`` to the state after each table. Restarts a broken stream,
    unless its first attempt failed with an error that a retry cannot fix.
    """
    attempts = 0
    while True:
        try:
            dataset = _open_dataset(source)
            if shard.shard_count > 1:
                dataset = dataset.shard(num_shards=shard.shard_count, index=shard.shard_index)
            if stream_cache.stream_state:
                dataset.load_state_dict(stream_cache.stream_state)
            for table in dataset.iter(batch_size=BATCH_ROWS):
                error = find_missing_column_error(
                    source, table.column_names
                ) or find_text_column_error(source, table.schema)
                if error:
                    columns = explain_missing_field(source, table.column_names)
                    raise UsageError(f"source {source.name!r}: {error}{columns}")
                stream_cache.stream_state, attempts = dataset.state_dict(), 0
                yield table.select(source.list_columns())
            return
        except HallmarkError:
            raise
        except Exception as error:
            is_permanent = stream_cache.stream_state is None and isinstance(
                error, ValueError | FileNotFoundError
            )
            if is_permanent or attempts == len(RETRY_WAITS_SECONDS):
                raise
            time.sleep(RETRY_WAITS_SECONDS[attempts])
            attempts += 1


class _StreamCache:
    """Keep the tables of a stream in files, each with the state of the stream after it."""

    def __init__(self, cache_folder: Path | None) -> None:
        self.cache_folder, self.stream_state = cache_folder, None
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
    source: DatasetsSource, error: Exception, row: int, is_progress_kept: bool
) -> HallmarkError:
    advice = (
        "the rows read so far are kept: run again to continue with the next row"
        if is_progress_kept and row
        else "run again"
    )
    return HallmarkError(
        f"source {source.name!r}: the datasets library could not read {shorten_repr(source.path)}, "
        f"split {shorten_repr(source.split)}, after row {row} ({get_short_error_line(error)}); "
        f"{advice}, or read the files of the data set through a source of kind 'jsonl', 'parquet', "
        "'csv' or 'text', which quarantines unreadable records"
    )
