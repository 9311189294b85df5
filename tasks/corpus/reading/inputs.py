"""List and read the inputs of a config: files, and the inputs of sources without files."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from importlib import import_module
from operator import or_
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

import pyarrow.parquet as pq
from pydantic import Field, model_validator

from hallmark.tasks.contract import (
    FileChangedError,
    FileStamp,
    HallmarkError,
    StageConfig,
    format_file_changed_message,
    format_file_missing_message,
    open_external_file,
    sha256_hex,
    to_canonical_json,
)
from hallmark.tasks.corpus.reading.block_list import BlockListConfig, load_block_list
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts, read_lines_marking_damage
from hallmark.tasks.corpus.reading.columnar import ParquetSource
from hallmark.tasks.corpus.reading.delimited import CsvSource, TsvSource
from hallmark.tasks.corpus.reading.dialects import (
    Dialect,
    detect_dialect,
    detect_tab_dialect,
    read_head,
    read_header,
)
from hallmark.tasks.corpus.reading.file_digests import (
    DigestCache,
    get_stamp_at_digest,
    read_file_stamp,
)
from hallmark.tasks.corpus.reading.object_storage import (
    download_temporarily,
    find_remote_files,
    is_remote_uri,
)
from hallmark.tasks.corpus.reading.readers import explain_missing_field
from hallmark.tasks.corpus.reading.sources import (
    SOURCE_CLASSES,
    CustomSource,
    FileSource,
    Input,
    Record,
    RecordFields,
    Shard,
    Source,
    UnreadFile,
    find_source_files,
)

# Every module of this package may define sources, which register themselves.
for _module_info in iter_modules([str(Path(__file__).parent)], f"{__package__}."):
    if _module_info.name != __name__:
        import_module(_module_info.name)

if TYPE_CHECKING:
    AnySource = Source
else:
    AnySource = Annotated[
        reduce(or_, [source_class for _, source_class in sorted(SOURCE_CLASSES.items())]),
        Field(discriminator="kind"),
    ]


def list_reader_modules_and_data() -> list[str]:
    """List the modules and data files of all readers, for the fingerprint of ingest."""
    source_classes = [
        each for each in SOURCE_CLASSES.values() if each.__module__.startswith(f"{__package__}.")
    ]
    data_files = (name for each in source_classes for name in each.data_files)
    return sorted({each.__module__ for each in source_classes}.union(data_files))


class IngestConfig(StageConfig):
    """Configure where the corpus comes from."""

    sources: list[AnySource] = Field(min_length=1)
    min_document_bytes: int = Field(
        1,
        ge=1,
        description="minimum length of a document, in UTF-8 bytes of text; shorter documents are "
        "removed",
    )
    partition_bytes: int = Field(
        8_000_000,
        ge=1_000,
        description="approximate amount of text in each partition of a document table, in bytes; "
        "the number of partitions is a power of 2, and partitions are processed in parallel",
    )
    max_document_bytes: int = Field(
        16 << 20,
        ge=1,
        le=1 << 30,
        description="maximum size of a record, in bytes; larger records are quarantined without "
        "being fully loaded into memory",
    )

    block: BlockListConfig = BlockListConfig()

    @model_validator(mode="after")
    def _check_unique_names(self) -> Self:
        name_counts = Counter(
            name for source in self.sources for name in source.list_source_and_part_names()
        )
        repeated = [name for name, count in name_counts.items() if count > 1]
        if repeated:
            raise ValueError(
                f"two sources have the name {repeated[0]!r}; give each source a unique name"
            )
        return self


#: The most bytes and files of a batch of small files that are read together.
MAX_BATCH_BYTES, MAX_BATCH_FILES = 8 << 20, 1000


class InputListing(NamedTuple):
    """List what the sources of a config consist of."""

    inputs: list[Input]
    """All inputs in reading order."""
    unread_files: dict[str, list[UnreadFile]]
    """The files at the path of each file source that it does not read, by the source's name."""


def list_inputs(config: IngestConfig) -> list[Input]:
    """List all inputs in reading order, see ``list_inputs_and_unread_files``."""
    return list_inputs_and_unread_files(config).inputs


def list_inputs_and_unread_files(config: IngestConfig) -> InputListing:
    """List all inputs in reading order, and the files that are not read.

    Raises:
        UsageError: if an input does not exist.
    """
    listing = InputListing([], {})
    for index, source in enumerate(config.sources):
        if isinstance(source, CustomSource):
            listing.inputs.extend(source.list_inputs(index))
            continue
        assert isinstance(source, FileSource)
        if is_remote_uri(source.path):
            remote_files = find_remote_files(source.name, source.path, source.suffixes)
            listing.unread_files[source.name] = remote_files.unread_files
            listing.inputs.extend(
                Input(source.name, index, f.uri, n, f.size_bytes, f.version_tag)
                for n, f in remote_files.file_by_name.items()
            )
        else:
            source_files = find_source_files(source.name, source.path, source.suffixes)
            listing.unread_files[source.name] = source_files.unread_files
            for name, path in source_files.path_by_name.items():
                file_stamp = _read_input_stamp(path)
                size = file_stamp[2]
                listing.inputs.append(
                    Input(
                        source.name, index, str(path), name, size, _stamp_to_version_tag(file_stamp)
                    )
                )
    return listing


def _read_input_stamp(path: Path) -> FileStamp:
    try:
        return read_file_stamp(path)
    except OSError as error:
        raise _build_read_error(path, error) from error


def _stamp_to_version_tag(file_stamp: FileStamp) -> str:
    return " ".join(map(str, file_stamp[:3]))  # without inode: some network file systems change it


@dataclass(frozen=True)
class InputBatch:
    """Group inputs of one source that are read together; the unit of work."""

    inputs: tuple[Input, ...]

    def __str__(self) -> str:
        suffix = f" and {len(self.inputs) - 1} more" if len(self.inputs) > 1 else ""
        return f"{self.inputs[0]}{suffix}"


def list_input_batches(config: IngestConfig, inputs: list[Input]) -> list[InputBatch]:
    """Group the inputs in order; combine small files of a source."""
    input_groups: list[list[Input]] = []
    group_bytes = 0
    for source_input in _iter_input_shards(config, inputs):
        is_file = isinstance(config.sources[source_input.source_index], FileSource)
        added_bytes = source_input.size_bytes if is_file else MAX_BATCH_BYTES
        is_local = is_file and not is_remote_uri(source_input.locator)
        digest_stamp = get_stamp_at_digest(Path(source_input.locator)) if is_local else None
        if (
            digest_stamp is not None
            and _stamp_to_version_tag(digest_stamp) != source_input.version_tag
        ):
            raise FileChangedError(format_file_changed_message(source_input.locator))
        last_group = input_groups[-1] if input_groups else []
        has_room = (
            last_group
            and last_group[0].source == source_input.source
            and group_bytes + added_bytes <= MAX_BATCH_BYTES
        )
        if has_room and len(last_group) < MAX_BATCH_FILES:
            last_group.append(source_input)
            group_bytes += added_bytes
        else:
            input_groups.append([source_input])
            group_bytes = added_bytes
    return [InputBatch(tuple(group)) for group in input_groups]


def _iter_input_shards(config: IngestConfig, inputs: list[Input]) -> Iterator[Input]:
    for source_input in inputs:
        source = config.sources[source_input.source_index]
        shard_count = source.choose_shard_count() if isinstance(source, CustomSource) else 1
        yield from (
            replace(source_input, shard=Shard(shard_index, shard_count))
            for shard_index in range(shard_count)
        )


def digest_sources_and_block_lists(config: IngestConfig, _secret_id: str) -> dict[str, str]:
    """Digest the contents of the sources and block lists for the fingerprint, without paths.

    Of files that are not read, the names and reasons count, because a table lists them. Their sizes
    do not: a log in the folder of a corpus would make the stage stale at every run.
    """
    digests_by_source: dict[str, dict[str, str]] = defaultdict(dict)
    digest_cache = DigestCache()
    listing = list_inputs_and_unread_files(config)
    for source_input in listing.inputs:
        source = config.sources[source_input.source_index]
        digest_file = partial(digest_cache.get_or_compute_digest, source.name)
        if isinstance(source, CustomSource):
            digest = source.compute_input_digest(source_input, digest_file)
        elif is_remote_uri(source_input.locator):
            digest = f"{source_input.size_bytes} {source_input.version_tag}"
        else:
            digest = digest_file(Path(source_input.locator))
        digests_by_source[source_input.source][source_input.file_name] = digest
    for source_name, unread_files in listing.unread_files.items():
        for file_name, reason, *_ in unread_files:
            digests_by_source[source_name][f"{file_name} (not read)"] = reason
    digest_cache.save()
    load_block_list(config.block)  # refuse a wrong entry before the stage starts
    return {
        **{
            name: sha256_hex(to_canonical_json(file_digests))
            for name, file_digests in sorted(digests_by_source.items())
        },
        **config.block.digest_list_files(),
    }


def read_input_records(
    source_input: Input,
    config: IngestConfig,
    counts: ReadCounts,
    copy_folder: Path | None = None,
    resume_folder: Path | None = None,
) -> Iterator[Record]:
    """Return the records of one input.

    Args:
        copy_folder: Where temporary copies of objects in an object store are kept.
        resume_folder: Where rows of a broken stream are kept.

    Raises:
        HallmarkError: if a file is missing, cannot be read, or has changed since it was listed.
    """
    source, max_bytes = config.sources[source_input.source_index], config.max_document_bytes
    if isinstance(source, CustomSource):
        return source.read_input(source_input, max_bytes, counts, resume_folder)
    assert isinstance(source, FileSource)
    if is_remote_uri(source_input.locator):
        return _read_remote_input(source, source_input, max_bytes, counts, copy_folder)
    return _read_local_input(source, source_input, max_bytes, counts)


#: Errors of a file whose fields cannot be listed; those of pyarrow are a ValueError.
UNREADABLE_ERRORS = (OSError, ValueError, TypeError, RecursionError, StopIteration, csv.Error)


def explain_missing_file_field(config: IngestConfig, source_name: str, file_name: str) -> str:
    """Describe which fields a local file has, for an error about a field that it lacks.

    Returns:
        The continuation of a sentence; "" if the file has all fields or cannot be read.
    """
    for source_input in list_inputs(config):
        source = config.sources[source_input.source_index]
        is_searched = (source_input.source, source_input.file_name) == (source_name, file_name)
        is_local = isinstance(source, FileSource) and not is_remote_uri(source_input.locator)
        if is_searched and is_local and isinstance(source, RecordFields):
            with suppress(*UNREADABLE_ERRORS):
                path = Path(source_input.locator)
                fields = _read_field_names(source, path)
                if not {*source.list_columns()} <= {*fields}:
                    return (
                        f"{explain_missing_field(source, fields)}{_suggest_dialect(source, path)}"
                    )
    return ""


def _read_field_names(source: RecordFields, path: Path) -> list[str]:
    """Read the names of the fields of a table, or of the first record of a jsonl file."""
    if isinstance(source, ParquetSource):
        with open_external_file(path, "ingest.sources") as file:
            return list(pq.read_schema(file).names)
    if isinstance(source, CsvSource):
        head = read_head(path, "ingest.sources")
        return read_header(head, detect_dialect(head, source) or Dialect())
    if isinstance(source, TsvSource):
        head = read_head(path, "ingest.sources")
        return read_header(head, detect_tab_dialect(head, source))
    counts = ReadCounts(source_label="ingest.sources")
    first_line = next(
        line for line in read_lines_marking_damage(path, 1 << 20, counts) if line.data.strip()
    )
    return list(dict(json.loads(first_line.data)))


def _suggest_dialect(source: RecordFields, path: Path) -> str:
    """Describe the dialect in which a CSV file has all columns, if the config excludes it."""
    if not isinstance(source, CsvSource):
        return ""
    free_source = source.model_copy(update={"delimiter": None, "quote": None, "escape": None})
    head = read_head(path, "ingest.sources")
    dialect = detect_dialect(head, free_source)
    if dialect is None or not {*source.list_columns()} <= {*read_header(head, dialect)}:
        return ""
    return f" (with {dialect.describe()}, the file has the column)"


def _read_remote_input(
    source: FileSource,
    source_input: Input,
    max_bytes: int,
    counts: ReadCounts,
    copy_folder: Path | None,
) -> Iterator[Record]:
    with download_temporarily(source_input.locator, source_input.version_tag, copy_folder) as path:
        yield from source.read_file(path, max_bytes, counts)


def _read_local_input(
    source: FileSource, source_input: Input, max_bytes: int, counts: ReadCounts
) -> Iterator[Record]:
    path = Path(source_input.locator)
    counts.source_label = f"source {source.name!r}"
    try:
        is_unchanged = _stamp_to_version_tag(read_file_stamp(path)) == source_input.version_tag
        if is_unchanged:
            yield from source.read_file(path, max_bytes, counts)
            is_unchanged = _stamp_to_version_tag(read_file_stamp(path)) == source_input.version_tag
    except OSError as error:
        raise _build_read_error(path, error) from error
    if not is_unchanged:
        raise FileChangedError(format_file_changed_message(source_input.locator))


def _build_read_error(path: Path, error: OSError) -> HallmarkError:
    if isinstance(error, FileNotFoundError):
        return FileChangedError(format_file_missing_message(path))
    return HallmarkError(
        f"{path} cannot be read ({error.strerror or error}); make the file readable, or exclude "
        "it from the source"
    )
