"""What there is to read: the sources of a config as files, packages and data sets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from tasks.contract import (
    FileChangedError,
    FileStamp,
    HallmarkError,
    StageConfig,
    canonical,
    changed_sentence,
    missing_sentence,
    sha256,
)
from tasks.corpus.reading.blocking import BlockConfig, blocked
from tasks.corpus.reading.columns import ParquetSource, read_parquet
from tasks.corpus.reading.delimited import CsvSource, TsvSource, read_csv, read_tsv
from tasks.corpus.reading.digests import Digests, seen, stamp
from tasks.corpus.reading.documentation import (
    DocumentationSource,
    package_digest,
    package_files,
    read_package,
)
from tasks.corpus.reading.readers import (
    JsonlSource,
    Record,
    TextSource,
    read_jsonl,
    read_text,
)
from tasks.corpus.reading.remote import fetched, is_remote, remote_files
from tasks.corpus.reading.sources import PATTERNS, FileSource, Source, files
from tasks.corpus.reading.streaming import (
    DatasetsSource,
    commit_of,
    pieces_of,
    read_dataset,
)
from tasks.corpus.reading.streams import Meter
from tasks.corpus.reading.town import TownSource, read_town, town_blocks, town_digest
from tasks.corpus.reading.warc import WarcSource, read_warc

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
    """Where the corpus comes from."""

    sources: list[AnySource] = Field(min_length=1)
    min_document_bytes: int = Field(
        1, ge=1, description="documents with fewer UTF-8 bytes of text are removed"
    )
    part_bytes: int = Field(
        8_000_000,
        ge=1_000,
        description="tables of documents are cut into 2^n parts, the fewest that hold this much "
        "text each; parts are worked on side by side",
    )
    max_document_bytes: int = Field(
        16 << 20, ge=1, le=1 << 30, description="longer records are quarantined, never held whole"
    )

    block: BlockConfig = BlockConfig()

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = Counter(name for source in self.sources for name in source.names())
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ValueError(f"two sources are named {twice[0]!r}; every source needs its own name")
        return self


def towns_of(config: IngestConfig) -> tuple[TownSource, ...]:
    """The invented towns among the sources."""
    return tuple(source for source in config.sources if isinstance(source, TownSource))


#: Small files are read together, up to so many bytes and files.
BATCH_BYTES, BATCH_FILES = 8 << 20, 1000


@dataclass(frozen=True)
class Input:
    """One file, package, data set or block of a town."""

    source: str  # as the tables name it
    index: int  # of its source in the config
    item: str  # path, URI, package or number
    file: str  # as the tables name it
    size: int = 0  # bytes of a file
    tag: str = ""  # what tells whether it is still the same: when it was changed, or a store's tag
    piece: tuple[int, int] = (0, 1)  # of a data set: which, and of how many

    def __str__(self) -> str:
        number, of = self.piece
        which = f", piece {number + 1} of {of}" if of > 1 else ""
        return f"source {self.source}, {self.file}{which}"


def inputs(config: IngestConfig) -> list[Input]:
    """Everything that will be read, in order. Raises UsageError for what is not there."""
    found: list[Input] = []
    for index, source in enumerate(config.sources):
        if isinstance(source, DocumentationSource):
            for package in source.packages:
                package_files(package)
                found.append(Input(f"{source.name}/{package}", index, package, package))
        elif isinstance(source, TownSource):
            found += [Input(source.name, index, i, name) for i, name in town_blocks(source).items()]
        elif isinstance(source, DatasetsSource):
            found.append(Input(source.name, index, source.path, source.split))
        elif is_remote(source.path):
            there = remote_files(source.name, source.path, PATTERNS[source.kind])
            found += [Input(source.name, index, f.uri, n, f.size, f.tag) for n, f in there.items()]
        else:
            paths = files(source.name, source.path, PATTERNS[source.kind])
            for name, path in paths.items():
                stamp = _stamp(path)
                size = stamp[2]
                found.append(Input(source.name, index, str(path), name, size, _tag(stamp)))
    return found


def _stamp(path: Path) -> FileStamp:
    try:
        return stamp(path)
    except OSError as error:
        raise _gone(path, error) from error


def _tag(stamp: FileStamp) -> str:
    return " ".join(map(str, stamp[:3]))  # some network file systems number a file anew


@dataclass(frozen=True)
class Batch:
    """Inputs of one source that are read together: the unit of work."""

    inputs: tuple[Input, ...]

    def __str__(self) -> str:
        more = f" and {len(self.inputs) - 1} more" if len(self.inputs) > 1 else ""
        return f"{self.inputs[0]}{more}"


def batches(config: IngestConfig) -> list[Batch]:
    """The inputs in order, small files of a source together."""
    made: list[list[Input]] = []
    size = 0
    for part in _pieces(config):
        is_file = isinstance(config.sources[part.index], FileSource)
        more = part.size if is_file else BATCH_BYTES
        local = is_file and not is_remote(part.item)
        before = seen(Path(part.item)) if local else None
        if before is not None and _tag(before) != part.tag:
            raise FileChangedError(changed_sentence(part.item))
        last = made[-1] if made else []
        fits = last and last[0].source == part.source and size + more <= BATCH_BYTES
        if fits and len(last) < BATCH_FILES:
            last.append(part)
            size += more
        else:
            made.append([part])
            size = more
    return [Batch(tuple(members)) for members in made]


def _pieces(config: IngestConfig) -> Iterator[Input]:
    """The inputs, data sets in pieces that are read, and tried again, each by itself."""
    for part in inputs(config):
        source = config.sources[part.index]
        of = pieces_of(source) if isinstance(source, DatasetsSource) else 1
        yield from (replace(part, piece=(number, of)) for number in range(of))


def content(config: IngestConfig, secret_id: str) -> dict[str, str]:
    """Digests of what the sources hold, for the fingerprint; paths do not enter them."""
    found_digests: dict[str, dict[str, str]] = defaultdict(dict)
    digests = Digests()
    for part in inputs(config):
        source = config.sources[part.index]
        if isinstance(source, DocumentationSource):
            digest = package_digest(part.item)
        elif isinstance(source, TownSource):
            digest = town_digest(source)
        elif isinstance(source, FileSource):
            there = is_remote(part.item)
            path = Path(part.item)
            digest = f"{part.size} {part.tag}" if there else digests.of(source.name, path)
        elif source.local:
            paths = files(source.name, source.path, ("",))
            found = {name: digests.of(source.name, p) for name, p in paths.items()}
            digest = sha256(canonical(found))
        else:
            digest = f"commit {commit_of(source)}"
        found_digests[part.source][part.file] = digest
    digests.keep()
    blocked(config.block)  # a wrong entry is refused before anything starts
    return {
        **{name: sha256(canonical(found)) for name, found in sorted(found_digests.items())},
        **config.block.digests(),
    }


def records_of(
    part: Input,
    config: IngestConfig,
    meter: Meter,
    folder: Path | None = None,
    kept: Path | None = None,
) -> Iterator[Record]:
    """The records of one input through the reader of its kind. ``folder``: where copies of what
    lies in an object store are kept while it is read; ``kept``: where what came of a stream is
    kept, should it break.

    Raises HallmarkError if a file is gone, cannot be read, or is another one than was found.
    """
    source, limit = config.sources[part.index], config.max_document_bytes
    if isinstance(source, DatasetsSource):
        return read_dataset(source, limit, meter, part.piece, kept)
    if not isinstance(source, FileSource):
        return _records(source, part, limit, meter)
    if is_remote(part.item):
        return _remote_records(source, part, limit, meter, folder)
    return _local_records(source, part, limit, meter)


def _remote_records(
    source: FileSource, part: Input, limit: int, meter: Meter, folder: Path | None
) -> Iterator[Record]:
    with fetched(part.item, part.tag, folder) as path:
        yield from _records(source, replace(part, item=str(path)), limit, meter)


def _local_records(source: FileSource, part: Input, limit: int, meter: Meter) -> Iterator[Record]:
    path = Path(part.item)
    meter.named_by = f"source {source.name!r}"
    try:
        same = _tag(stamp(path)) == part.tag
        if same:
            yield from _records(source, part, limit, meter)
            same = _tag(stamp(path)) == part.tag
    except OSError as error:
        raise _gone(path, error) from error
    if not same:
        raise FileChangedError(changed_sentence(part.item))


def _gone(path: Path, error: OSError) -> HallmarkError:
    if isinstance(error, FileNotFoundError):
        return FileChangedError(missing_sentence(path))
    return HallmarkError(
        f"{path} cannot be read ({error.strerror or error}); make it readable or leave it out"
    )


def _records(source: Source, part: Input, limit: int, meter: Meter) -> Iterator[Record]:
    path = Path(part.item)
    match source:
        case JsonlSource():
            return read_jsonl(path, source, limit, meter)
        case ParquetSource():
            return read_parquet(path, source, limit, meter)
        case CsvSource():
            return read_csv(path, source, limit, meter)
        case TsvSource():
            return read_tsv(path, source, limit, meter)
        case TextSource():
            return read_text(path, source, limit, meter)
        case WarcSource():
            return read_warc(path, source, limit, meter)
        case DocumentationSource():
            return read_package(part.item, limit, meter)
        case TownSource():
            return read_town(source, part.item, limit, meter)
    raise TypeError(f"no reader of {type(source).__name__}")
