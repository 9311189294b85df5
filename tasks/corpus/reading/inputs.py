"""List and read the inputs of a config: files, packages, data sets and blocks of a town."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from hallmark.tasks.contract import (
    FileChangedError,
    FileStamp,
    HallmarkError,
    StageConfig,
    format_file_changed_message,
    format_file_missing_message,
    sha256_hex,
    to_canonical_json,
)
from hallmark.tasks.corpus.reading.block_list import BlockListConfig, load_block_list
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.columnar import ParquetSource, read_parquet
from hallmark.tasks.corpus.reading.delimited import CsvSource, TsvSource, read_csv, read_tsv
from hallmark.tasks.corpus.reading.documentation import (
    DocumentationSource,
    compute_package_digest,
    find_prose_files,
    read_package_documentation,
)
from hallmark.tasks.corpus.reading.file_digests import (
    DigestCache,
    get_digest_stamp,
    read_file_stamp,
)
from hallmark.tasks.corpus.reading.hub_datasets import (
    DatasetsSource,
    count_shards,
    read_dataset,
    resolve_hub_commit,
)
from hallmark.tasks.corpus.reading.object_storage import (
    download_temporarily,
    is_remote_uri,
    list_remote_files,
)
from hallmark.tasks.corpus.reading.readers import (
    JsonlSource,
    Record,
    TextSource,
    read_jsonl,
    read_text_file,
)
from hallmark.tasks.corpus.reading.sources import SUFFIXES_BY_KIND, FileSource, Source, find_files
from hallmark.tasks.corpus.reading.town_source import (
    TownSource,
    compute_town_digest,
    label_town_blocks,
    read_town_documents,
)
from hallmark.tasks.corpus.reading.warc import WarcSource, read_warc

AnySource = Annotated[
    JsonlSource
    | ParquetSource
    | CsvSource
    | TsvSource
    | TextSource
    | WarcSource
    | DatasetsSource
    | DocumentationSource
    | TownSource,
    Field(discriminator="kind"),
]


class IngestConfig(StageConfig):
    """Configure where the corpus comes from."""

    sources: list[AnySource] = Field(min_length=1)
    min_document_bytes: int = Field(
        1, ge=1, description="documents with fewer UTF-8 bytes of text are removed"
    )
    partition_bytes: int = Field(
        8_000_000,
        ge=1_000,
        description="approximate bytes of text per partition of a document table; there are 2^n "
        "partitions, and processes work on them in parallel",
    )
    max_document_bytes: int = Field(
        16 << 20,
        ge=1,
        le=1 << 30,
        description="records with more bytes are quarantined and never loaded whole",
    )

    block: BlockListConfig = BlockListConfig()

    @model_validator(mode="after")
    def _check_unique_names(self) -> Self:
        name_counts = Counter(name for source in self.sources for name in source.list_names())
        repeated = [name for name, count in name_counts.items() if count > 1]
        if repeated:
            raise ValueError(
                f"two sources are named {repeated[0]!r}; every source needs its own name"
            )
        return self


def list_town_sources(config: IngestConfig) -> tuple[TownSource, ...]:
    """Return the invented towns among the sources."""
    return tuple(source for source in config.sources if isinstance(source, TownSource))


#: The most bytes and files of a batch of small files that are read together.
MAX_BATCH_BYTES, MAX_BATCH_FILES = 8 << 20, 1000


@dataclass(frozen=True)
class Input:
    """Identify one file, package, shard of a data set or block of a town."""

    source: str  # name of the source in the tables
    source_index: int  # position of the source in the config
    locator: str  # path, URI, package, hub id or block number
    file_name: str  # name of the file in the tables
    size_bytes: int = 0  # of a file
    version_tag: str = ""  # changes with the content: a file's stamp or an object store's tag
    shard: tuple[int, int] = (0, 1)  # of a data set: index and number of shards

    def __str__(self) -> str:
        shard_index, shard_count = self.shard
        shard_text = f", shard {shard_index + 1} of {shard_count}" if shard_count > 1 else ""
        return f"source {self.source}, {self.file_name}{shard_text}"


def list_inputs(config: IngestConfig) -> list[Input]:
    """List all inputs in reading order.

    Raises:
        UsageError: if an input does not exist.
    """
    all_inputs: list[Input] = []
    for index, source in enumerate(config.sources):
        if isinstance(source, DocumentationSource):
            for package in source.packages:
                find_prose_files(package)
                all_inputs.append(Input(f"{source.name}/{package}", index, package, package))
        elif isinstance(source, TownSource):
            all_inputs += [
                Input(source.name, index, block, name)
                for block, name in label_town_blocks(source).items()
            ]
        elif isinstance(source, DatasetsSource):
            all_inputs.append(Input(source.name, index, source.path, source.split))
        elif is_remote_uri(source.path):
            remote_by_name = list_remote_files(
                source.name, source.path, SUFFIXES_BY_KIND[source.kind]
            )
            all_inputs += [
                Input(source.name, index, f.uri, n, f.size_bytes, f.version_tag)
                for n, f in remote_by_name.items()
            ]
        else:
            path_by_name = find_files(source.name, source.path, SUFFIXES_BY_KIND[source.kind])
            for name, path in path_by_name.items():
                file_stamp = _read_stamp_or_fail(path)
                size = file_stamp[2]
                all_inputs.append(
                    Input(
                        source.name, index, str(path), name, size, _stamp_to_version_tag(file_stamp)
                    )
                )
    return all_inputs


def _read_stamp_or_fail(path: Path) -> FileStamp:
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


def list_input_batches(config: IngestConfig) -> list[InputBatch]:
    """List the inputs in order; combine small files of a source."""
    input_groups: list[list[Input]] = []
    group_bytes = 0
    for source_input in _list_inputs_by_shard(config):
        is_file = isinstance(config.sources[source_input.source_index], FileSource)
        added_bytes = source_input.size_bytes if is_file else MAX_BATCH_BYTES
        is_local = is_file and not is_remote_uri(source_input.locator)
        digest_stamp = get_digest_stamp(Path(source_input.locator)) if is_local else None
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


def _list_inputs_by_shard(config: IngestConfig) -> Iterator[Input]:
    for source_input in list_inputs(config):
        source = config.sources[source_input.source_index]
        shard_count = count_shards(source) if isinstance(source, DatasetsSource) else 1
        yield from (
            replace(source_input, shard=(shard_index, shard_count))
            for shard_index in range(shard_count)
        )


def compute_source_digests(config: IngestConfig, secret_id: str) -> dict[str, str]:
    """Compute digests of the contents of the sources for the fingerprint, without paths."""
    digests_by_source: dict[str, dict[str, str]] = defaultdict(dict)
    digest_cache = DigestCache()
    for source_input in list_inputs(config):
        source = config.sources[source_input.source_index]
        if isinstance(source, DocumentationSource):
            digest = compute_package_digest(source_input.locator)
        elif isinstance(source, TownSource):
            digest = compute_town_digest(source)
        elif isinstance(source, FileSource):
            is_remote_file = is_remote_uri(source_input.locator)
            path = Path(source_input.locator)
            digest = (
                f"{source_input.size_bytes} {source_input.version_tag}"
                if is_remote_file
                else digest_cache.get_or_compute_digest(source.name, path)
            )
        elif source.is_local:
            path_by_name = find_files(source.name, source.path, ("",))
            file_digests = {
                name: digest_cache.get_or_compute_digest(source.name, p)
                for name, p in path_by_name.items()
            }
            digest = sha256_hex(to_canonical_json(file_digests))
        else:
            digest = f"commit {resolve_hub_commit(source)}"
        digests_by_source[source_input.source][source_input.file_name] = digest
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
    """Return the records of one input from the reader for its kind.

    Args:
        copy_folder: Where temporary copies of objects in an object store are kept.
        resume_folder: Where rows of a broken stream are kept.

    Raises:
        HallmarkError: if a file is missing, cannot be read, or has changed since it was listed.
    """
    source, max_bytes = config.sources[source_input.source_index], config.max_document_bytes
    if isinstance(source, DatasetsSource):
        return read_dataset(source, max_bytes, counts, source_input.shard, resume_folder)
    if not isinstance(source, FileSource):
        return _read_with_matching_reader(source, source_input, max_bytes, counts)
    if is_remote_uri(source_input.locator):
        return _read_remote_input(source, source_input, max_bytes, counts, copy_folder)
    return _read_local_input(source, source_input, max_bytes, counts)


def _read_remote_input(
    source: FileSource,
    source_input: Input,
    max_bytes: int,
    counts: ReadCounts,
    copy_folder: Path | None,
) -> Iterator[Record]:
    with download_temporarily(source_input.locator, source_input.version_tag, copy_folder) as path:
        yield from _read_with_matching_reader(
            source, replace(source_input, locator=str(path)), max_bytes, counts
        )


def _read_local_input(
    source: FileSource, source_input: Input, max_bytes: int, counts: ReadCounts
) -> Iterator[Record]:
    path = Path(source_input.locator)
    counts.source_label = f"source {source.name!r}"
    try:
        is_unchanged = _stamp_to_version_tag(read_file_stamp(path)) == source_input.version_tag
        if is_unchanged:
            yield from _read_with_matching_reader(source, source_input, max_bytes, counts)
            is_unchanged = _stamp_to_version_tag(read_file_stamp(path)) == source_input.version_tag
    except OSError as error:
        raise _build_read_error(path, error) from error
    if not is_unchanged:
        raise FileChangedError(format_file_changed_message(source_input.locator))


def _build_read_error(path: Path, error: OSError) -> HallmarkError:
    if isinstance(error, FileNotFoundError):
        return FileChangedError(format_file_missing_message(path))
    return HallmarkError(
        f"{path} cannot be read ({error.strerror or error}); make it readable or exclude it"
    )


def _read_with_matching_reader(
    source: Source, source_input: Input, max_bytes: int, counts: ReadCounts
) -> Iterator[Record]:
    path = Path(source_input.locator)
    match source:
        case JsonlSource():
            return read_jsonl(path, source, max_bytes, counts)
        case ParquetSource():
            return read_parquet(path, source, max_bytes, counts)
        case CsvSource():
            return read_csv(path, source, max_bytes, counts)
        case TsvSource():
            return read_tsv(path, source, max_bytes, counts)
        case TextSource():
            return read_text_file(path, source, max_bytes, counts)
        case WarcSource():
            return read_warc(path, source, max_bytes, counts)
        case DocumentationSource():
            return read_package_documentation(source_input.locator, max_bytes, counts)
        case TownSource():
            return read_town_documents(source, source_input.locator, max_bytes, counts)
    raise TypeError(f"no reader for sources of type {type(source).__name__}")
