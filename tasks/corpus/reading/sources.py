"""Define records, and the settings and registry that all sources share; find their files."""

from __future__ import annotations

import os
import stat
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args

from pydantic import Field, field_validator, model_validator

from hallmark.tasks.contract import (
    ExternalMarker,
    HallmarkError,
    PathSafeName,
    StageConfig,
    UsageError,
    check_external_path,
    expand_home,
    explain_relative_path,
    format_count,
    get_current_session,
    hash_file,
    is_corpus_file,
    is_store_folder,
    open_external_file,
)
from hallmark.tasks.corpus.reading.byte_streams import (
    LFS_POINTER,
    MAX_LFS_POINTER_BYTES,
    REMEDY_BY_FILE_ERROR,
    ReadCounts,
    find_file_error,
)
from hallmark.tasks.corpus.reading.compressed_members import CODEC_BY_SUFFIX
from hallmark.tasks.corpus.reading.metadata import MAX_METADATA_FIELDS, METADATA_NAME_PATTERN


@dataclass(slots=True)
class Record:
    """Hold one document, or one error.

    Attributes:
        location: Where the record is in its container, such as "line 3", with details of an error.
        raw_bytes: Bytes of the container that the record takes: lines with their ends, values of a
            column, or compressed bytes that were lost.
        error: The kind of error, the same text for all errors of its kind; "" for a document.
        raw: The bytes of an error, cut if too long; empty for a document.
        file_name: Set if one input covers many files.
        record_count: Records of the container that this one covers; more than 1 only for unreadable
            rows of columnar data.
        date: In the form of ``normalise_date``.
        metadata: Further fields, as ``normalise_metadata`` returns them; None if there are none.
        unreadable_labels: Number of URLs, dates and values of metadata that could not be read.
        is_truncated: Whether the archive stored the document without its end.
        lost_characters: Number of characters that are missing because their bytes are not valid.
        is_whole_page: Whether the document is all text of a page because no main content was found.
    """

    location: str
    raw_bytes: int
    text: str = ""
    key: str | None = None
    error: str = ""
    raw: bytes = b""
    file_name: str = ""
    record_count: int = 1
    url: str | None = None
    date: str | None = None
    metadata: dict[str, str] | None = None
    unreadable_labels: int = 0
    is_truncated: bool = False
    lost_characters: int = 0
    is_whole_page: bool = False


class Shard(NamedTuple):
    """Name one of the parts in which a data set is read."""

    shard_index: int  # from 0
    shard_count: int


WHOLE_INPUT = Shard(0, 1)


@dataclass(frozen=True)
class Input:
    """Identify one file, package, shard of a data set or block of a town."""

    source: str  # name of the source in the tables
    source_index: int  # position of the source in the config
    locator: str  # path, URI, package, hub id or block number
    file_name: str  # name of the file in the tables
    size_bytes: int = 0  # of a file
    version_tag: str = ""  # changes with the content: a file's stamp or an object store's tag
    shard: Shard = WHOLE_INPUT

    def __str__(self) -> str:
        shard_index, shard_count = self.shard
        shard_text = f", shard {shard_index + 1} of {shard_count}" if shard_count > 1 else ""
        return f"source {self.source}, {self.file_name}{shard_text}"


#: Returns the digest of a file, see ``DigestCache.get_or_compute_digest``.
DigestFunction = Callable[[Path], str]

#: The classes of sources by their kind. A class registers itself when its module is imported.
SOURCE_CLASSES: dict[str, type[Source]] = {}


class Source(StageConfig):
    """Configure where documents come from."""

    name: PathSafeName = Field(
        description="source name, as shown in all tables and figures; the document ids (doc_id) "
        "depend on the name"
    )

    licence: str | None = Field(
        None, description="licence or terms of use for documents from the source"
    )
    origin: str | None = Field(
        None, description="publisher of the source, and where the source was obtained"
    )
    collected_from: date | None = Field(None, description="first day of the collection period")
    collected_to: date | None = Field(None, description="last day of the collection period")

    document_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of documents to use, selected by a hash of their ids; if the source "
        "has several parts, the share applies to each part",
    )
    max_documents: int | None = Field(
        None,
        ge=1,
        description="maximum number of documents to use, selected by a hash of their ids",
    )

    #: Data files of the project that its reader needs, for the fingerprint of ingest.
    data_files: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Register a class that declares its kind, as in ``kind: Literal["jsonl"]``.

        Raises:
            HallmarkError: Another class has the same kind.
        """
        super().__pydantic_init_subclass__(**kwargs)
        kind_field = cls.model_fields.get("kind")
        for kind in get_args(kind_field.annotation) if kind_field else ():
            other = SOURCE_CLASSES.setdefault(kind, cls)
            if (other.__module__, other.__name__) != (cls.__module__, cls.__name__):
                raise HallmarkError(
                    f"two source classes declare the kind {kind!r}: "
                    f"{other.__module__}.{other.__name__} and {cls.__module__}.{cls.__name__}; "
                    "rename one of the kinds"
                )

    def list_source_and_part_names(self) -> list[str]:
        """Return the names of the source and its parts in the tables."""
        return [self.name]

    @field_validator("name")
    @classmethod
    def _reject_reserved_name(cls, name: str) -> str:
        if name.split("/")[0] == "planted":
            raise ValueError(
                "the name 'planted' is reserved for the canaries that Hallmark plants; choose "
                "another name"
            )
        return name

    @model_validator(mode="after")
    def _check_collection_dates(self) -> Self:
        if self.collected_from and self.collected_to and self.collected_from > self.collected_to:
            raise ValueError("'collected_from' is later than 'collected_to'; correct the two dates")
        return self


def add_compressed_suffixes(suffixes: Iterable[str]) -> tuple[str, ...]:
    """Return these suffixes, each alone and with those of compressed files."""
    return tuple(
        suffix + compression for suffix in suffixes for compression in ("", *CODEC_BY_SUFFIX)
    )


def list_corpus_suffixes() -> tuple[str, ...]:
    """Return the suffixes of all files that any kind of source reads from a folder."""
    file_sources = (each for each in SOURCE_CLASSES.values() if issubclass(each, FileSource))
    return add_compressed_suffixes(
        sorted({suffix for source_class in file_sources for suffix in source_class.suffixes})
    )


class FileSource(Source):
    """Configure a source that reads files.

    A reader is a class derived from this one, with a ``kind``, ``suffixes`` and ``read_file``.
    """

    #: Suffixes of the files to search for in a folder, without those of compressed files.
    suffixes: ClassVar[tuple[str, ...]]

    path: Annotated[str, ExternalMarker(list_endings=list_corpus_suffixes)] = Field(
        min_length=1,
        description="path to a file or folder, or a path pattern, on this machine or in an "
        "object store, such as s3://bucket/folder/*.jsonl.gz",
    )

    @abstractmethod
    def read_file(self, path: Path, max_bytes: int, counts: ReadCounts) -> Iterator[Record]:
        """Yield the records of a file, and count what was read.

        Args:
            max_bytes: A record with more bytes is an error.
        """


class CustomSource(Source):
    """Configure a source that is not a set of files: it lists and reads inputs of its own."""

    @abstractmethod
    def list_inputs(self, source_index: int) -> Iterator[Input]:
        """Yield its inputs in reading order; ``source_index`` is its position in the config."""

    @abstractmethod
    def compute_input_digest(self, source_input: Input, digest_file: DigestFunction) -> str:
        """Compute a digest of the content of an input, without paths.

        Args:
            digest_file: Returns the digest of a file, from a cache if it has not changed.
        """

    @abstractmethod
    def read_input(
        self, source_input: Input, max_bytes: int, counts: ReadCounts, resume_folder: Path | None
    ) -> Iterator[Record]:
        """Yield the records of an input, and count what was read.

        Args:
            max_bytes: A record with more bytes is an error.
            resume_folder: Where rows of a broken stream are kept.
        """

    def choose_shard_count(self) -> int:
        """Return the number of shards in which each input is read."""
        return 1

    def list_unread_files(self) -> list[UnreadFile]:
        """Return the files at its path that it does not read."""
        return []


MetadataName = Annotated[str, Field(pattern=METADATA_NAME_PATTERN)]


class RecordFields(StageConfig):
    """Configure which fields (columns) of a record to read."""

    text_field: str = Field("text", description="name of the field that contains the document text")
    key_field: str | None = Field(
        None,
        description="name of the field that contains a permanent document key; without a key, "
        "the doc_id is computed from the text",
    )
    url_field: str | None = Field(
        None, description="name of the field that contains the document's URL"
    )
    date_field: str | None = Field(
        None,
        description="name of the field that contains the document's date: an ISO 8601 date, or a "
        "time with a time zone",
    )
    metadata_fields: dict[MetadataName, str] = Field(
        default={},
        max_length=MAX_METADATA_FIELDS,
        description="additional fields to store as document metadata: a table that maps names "
        "in the corpus to names in the source, such as "
        '{ licence = "license", author = "by" }. The name `licence` is '
        "reserved for the document licence",
    )

    def list_columns(self) -> list[str]:
        """Return the fields to read without repetitions."""
        names = (
            self.text_field,
            self.key_field,
            self.url_field,
            self.date_field,
            *self.metadata_fields.values(),
        )
        return list(dict.fromkeys(name for name in names if name is not None))


class UnreadFile(NamedTuple):
    """Describe a file that a source does not read, or several in a folder that is not searched."""

    file_name: str
    """Path of the file or folder, relative to the path of the source."""
    reason: str
    file_count: int
    byte_count: int
    """Size of the files; 0 for links and for what is not a regular file."""


class SourceFiles(NamedTuple):
    """List the files at the path of a source."""

    path_by_name: dict[str, Path]
    """Paths of the files to read, by their name below the folder, sorted by name."""
    unread_files: list[UnreadFile]
    """The other files, sorted by name."""


def find_paths_by_file_name(
    source_name: str, path: str, suffixes: tuple[str, ...]
) -> dict[str, Path]:
    """Find the files to read at a path, see ``find_source_files``."""
    return find_source_files(source_name, path, suffixes).path_by_name


def find_source_files(source_name: str, path: str, suffixes: tuple[str, ...]) -> SourceFiles:
    """Find the files of a path, folder or glob pattern.

    Args:
        suffixes: Suffixes of the files to read in a folder, without those of compressed files. A
            file that the path names, or that matches the pattern, may have any suffix.

    Raises:
        UsageError: if the path cannot be read, no file to read is found, or a file is outside the
            declared roots.
    """
    base_folder = expand_home(path)
    try:
        if base_folder.is_dir():
            paths = list(_walk_files(base_folder))
            source_files = _sort_out_files(paths, base_folder, suffixes)
        elif base_folder.is_file():
            if reason := find_archive_reason(base_folder.name) or find_pointer_reason(base_folder):
                raise UsageError(f"source {source_name!r}: {path!r}: {reason}")
            source_files = _sort_out_files([base_folder], base_folder.parent, None)
        else:
            while set("*?[") & set(str(base_folder)):  # up to the folder before the first wildcard
                base_folder = base_folder.parent
            pattern = expand_home(path).relative_to(base_folder).as_posix()
            paths = list(base_folder.glob(pattern)) if pattern != "." else []
            source_files = _sort_out_files(paths, base_folder, None)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"source {source_name!r}: {path!r} cannot be read ({error}); correct the source path, "
            "or make the path readable"
        ) from error
    if not source_files.path_by_name:
        problem = "no file exists"
        if any(unread.reason == LFS_POINTER_REASON for unread in source_files.unread_files):
            problem = "no file can be read"
        elif base_folder.is_dir():
            problem = f"there is no file ending in {' or '.join(suffixes)}"
        unread = describe_unread_files(source_files.unread_files)
        raise UsageError(
            f"source {source_name!r}: {problem} at "
            f"{path!r}{explain_relative_path(path)}{f' ({unread})' if unread else ''}; correct "
            "the source path"
        )
    for file_path in source_files.path_by_name.values():
        check_external_path(file_path, f"source {source_name!r}")
    return source_files


#: Number of files that a message about files that are not read names.
MAX_NAMED_FILES = 3


def describe_unread_files(unread_files: list[UnreadFile]) -> str:
    """Describe the files that are not read, beginning with their number; "" if there are none."""
    if not unread_files:
        return ""
    count = sum(unread.file_count for unread in unread_files)
    named = [f"{unread.file_name!r}: {unread.reason}" for unread in unread_files[:MAX_NAMED_FILES]]
    others = count - sum(unread.file_count for unread in unread_files[:MAX_NAMED_FILES])
    more = f"; and {others:,} more" if others else ""
    verb = "is" if count == 1 else "are"
    return f"{format_count(count, 'file')} {verb} not read: {'; '.join(named)}{more}"


#: Endings of archives, and of compressed files that Hallmark does not decompress.
ARCHIVE_ENDINGS = (".7z", ".rar", ".tar", ".tbz2", ".tgz", ".txz", ".zip")
UNKNOWN_COMPRESSIONS = (".br", ".bz", ".lz", ".lz4", ".lzma", ".lzo", ".snappy", ".z")

LFS_POINTER_REASON = f"{LFS_POINTER} ({REMEDY_BY_FILE_ERROR[LFS_POINTER]})"


def find_archive_reason(file_name: str) -> str:
    """Return why the name is that of a file that Hallmark cannot decompress, or ""."""
    ending = PurePath(file_name.lower()).suffix
    if PurePath(file_name.lower()).stem.endswith(".tar") and ending in CODEC_BY_SUFFIX:
        ending = f".tar{ending}"
    if ending.startswith(".tar.") or ending in ARCHIVE_ENDINGS:
        return f"archives such as {ending} are not read (unpack the archive)"
    if ending in UNKNOWN_COMPRESSIONS:
        return (
            f"files compressed as {ending} are not read (decompress the file, or compress it as "
            f"{' or '.join(CODEC_BY_SUFFIX)})"
        )
    return ""


def find_pointer_reason(path: Path) -> str:
    """Return why a file is not read that Git LFS put in place of the real one, or ""."""
    # Other checks report files that cannot be read or are outside the declared roots.
    with suppress(OSError, UsageError):
        if path.stat().st_size < MAX_LFS_POINTER_BYTES:
            with open_external_file(path, "ingest.sources") as file:
                if find_file_error(file.read(MAX_LFS_POINTER_BYTES)) == LFS_POINTER:
                    return LFS_POINTER_REASON
    return ""


def explain_unread_name(file_name: str) -> str:
    """Return why a source does not read the file with this name in its folder."""
    if file_name.startswith("."):
        return "hidden file"
    if reason := find_archive_reason(file_name):
        return reason
    for kind, source_class in sorted(SOURCE_CLASSES.items()):
        if issubclass(source_class, FileSource) and is_corpus_file(
            file_name, add_compressed_suffixes(source_class.suffixes)
        ):
            return f"only sources of kind {kind!r} read files with this extension"
    ending = PurePath(file_name).suffix
    return f"unknown extension {ending[:20]}" if ending else "no extension"


def _sort_out_files(
    paths: list[Path], base_folder: Path, suffixes: tuple[str, ...] | None
) -> SourceFiles:
    """Separate the files to read from the others, and leave out those in stores.

    All stores are excluded, not only the one of this session, so that a corpus does not depend on
    which store is open. A folder inside a store is read if the user names it.
    """
    session_store = None
    with suppress(HallmarkError):  # there is none outside a session
        session_store = get_current_session().store.root_folder

    @cache
    def is_in_store(folder: Path) -> bool:
        """Return whether a folder below the base folder is a store or lies in one."""
        if folder == base_folder:
            return False
        # The session's store may still be empty, so it is not recognised by its content.
        is_session_store = session_store is not None and (
            os.path.realpath(folder) == str(session_store)
        )
        return is_session_store or is_store_folder(folder) or is_in_store(folder.parent)

    @cache
    def find_hidden_folder(folder: Path) -> Path | None:
        """Return the outermost hidden folder that contains a folder below the base folder."""
        if folder == base_folder:
            return None
        is_hidden = folder.name.startswith(".")
        return find_hidden_folder(folder.parent) or (folder if is_hidden else None)

    endings = None if suffixes is None else add_compressed_suffixes(suffixes)
    path_by_name: dict[str, Path] = {}
    unread_counts: dict[tuple[Path, str], list[int]] = {}
    for path in paths:
        if is_in_store(path.parent):
            continue
        group, reason = path, _explain_unread_path(path, endings)
        if reason and (hidden_folder := find_hidden_folder(path.parent)):
            group, reason = (
                hidden_folder,
                "files in a hidden folder, with extensions that the source does not read",
            )
        if reason:
            counts = unread_counts.setdefault((group, reason), [0, 0])
            counts[0] += 1
            counts[1] += _measure_unread_bytes(path)
        else:
            path_by_name[_format_relative_name(path, base_folder)] = path
    unread_files = [
        UnreadFile(_format_relative_name(path, base_folder), reason, *counts)
        for (path, reason), counts in unread_counts.items()
    ]
    return SourceFiles(dict(sorted(path_by_name.items())), sorted(unread_files))


def _explain_unread_path(path: Path, endings: tuple[str, ...] | None) -> str:
    """Return why a source does not read a path that was found, or "".

    Args:
        endings: Endings of the names to read; None if the source names its files itself.
    """
    if path.is_file():
        if endings is None:
            return find_archive_reason(path.name) or find_pointer_reason(path)
        if not is_corpus_file(path.name, endings):
            return explain_unread_name(path.name)
        return find_pointer_reason(path)
    if path.is_dir():
        return "link to a folder" if path.is_symlink() else "folder that matches the pattern"
    return "broken link" if path.is_symlink() else "not a regular file"


def _measure_unread_bytes(path: Path) -> int:
    """Return the size of a regular file, and 0 for anything else."""
    stat_result = path.lstat()
    return stat_result.st_size if stat.S_ISREG(stat_result.st_mode) else 0


def _walk_files(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder except folders; raise OSError if one cannot be listed.

    Links to folders are yielded and not followed.
    """

    def raise_error(error: OSError) -> None:
        raise error

    for subfolder, folder_names, file_names in os.walk(folder, onerror=raise_error):
        yield from (Path(subfolder, file_name) for file_name in file_names)
        folder_paths = (Path(subfolder, folder_name) for folder_name in folder_names)
        yield from (path for path in folder_paths if path.is_symlink())


def _format_relative_name(path: Path, base_folder: Path) -> str:
    """Return the path below the base folder as text.

    Backslashes and bytes that are not UTF-8 are escaped, so that no two files get the same name.
    """
    name = path.relative_to(base_folder).as_posix().replace("\\", r"\\")
    return name.encode("utf-8", "backslashreplace").decode()


def compute_file_digest(source_name: str, path: Path) -> str:
    """Compute the SHA-256 of a file.

    Raises:
        UsageError: if the file cannot be read.
    """
    try:
        return hash_file(path)
    except OSError as error:
        raise UsageError(
            f"source {source_name!r}: {str(path)!r} cannot be read ({error.strerror}); make the "
            "file readable, or exclude it from the source"
        ) from error
