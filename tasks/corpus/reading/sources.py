"""What all sources have in common: a name, fields, and files that are found or refused."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import date
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from hallmark.tasks.contract import (
    ExternalMarker,
    HallmarkError,
    PathSafeName,
    StageConfig,
    UsageError,
    check_external_path,
    expand_home,
    get_current_session,
    hash_file,
    is_corpus_file,
    is_store_folder,
)


class Source(StageConfig):
    """Where documents come from."""

    name: PathSafeName = Field(
        description="names the source in every table and figure; enters the doc_ids"
    )

    licence: str | None = Field(None, description="under which terms its texts may be used")
    origin: str | None = Field(None, description="who published it, and where it was taken from")
    collected_from: date | None = Field(None, description="first day of its collection")
    collected_to: date | None = Field(None, description="last day of its collection")

    document_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="the share of its documents that is taken, by a hash of their "
        "ids; of a source with parts in the tables, of each",
    )
    max_documents: int | None = Field(
        None, ge=1, description="how many of its documents are taken at most, by the same hash"
    )

    def list_names(self) -> list[str]:
        """What it, and parts of it, are called in the tables."""
        return [self.name]

    @field_validator("name")
    @classmethod
    def _reject_reserved_name(cls, name: str) -> str:
        if name.split("/")[0] == "planted":
            raise ValueError("the name 'planted' is kept for what Hallmark plants itself")
        return name

    @model_validator(mode="after")
    def _check_collection_dates(self) -> Self:
        if self.collected_from and self.collected_to and self.collected_from > self.collected_to:
            raise ValueError("collected_from is later than collected_to")
        return self


#: What a folder is searched for, by the kind of source.
SUFFIXES_BY_KIND = {
    "jsonl": (".jsonl", ".ndjson"),
    "parquet": (".parquet",),
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "warc": (".warc", ".wet"),
    "text": (".txt", ".text", ".md"),
}


def add_compressed_suffixes(suffixes: Iterable[str]) -> tuple[str, ...]:
    """These endings, plain and of packed files."""
    return tuple(suffix + compression for suffix in suffixes for compression in ("", ".gz", ".zst"))


#: What any source reads of a folder.
CORPUS_FILE_SUFFIXES = add_compressed_suffixes(chain.from_iterable(SUFFIXES_BY_KIND.values()))


class FileSource(Source):
    path: Annotated[str, ExternalMarker(endings=CORPUS_FILE_SUFFIXES)] = Field(
        min_length=1,
        description="a file, a folder or a pattern, or these in an object store, such as "
        "s3://bucket/folder/*.jsonl.gz",
    )


class RecordFields(StageConfig):
    """Which fields (columns) of a record to take."""

    text_field: str = Field("text", description="the field that holds the document")
    key_field: str | None = Field(
        None, description="a field that names the document for good; else its bytes name it"
    )
    url_field: str | None = Field(None, description="a field that holds the document's URL")
    date_field: str | None = Field(
        None, description="a field that holds its date: an ISO 8601 day, or a time with its zone"
    )

    def list_columns(self) -> list[str]:
        """The fields to read, each once."""
        names = (self.text_field, self.key_field, self.url_field, self.date_field)
        return list(dict.fromkeys(name for name in names if name is not None))


def find_files(source_name: str, path: str, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Files of a path, folder or glob pattern by their name below it, in order of name."""
    base_folder = expand_home(path)
    try:
        if base_folder.is_dir():
            paths = list(_walk_files(base_folder, add_compressed_suffixes(suffixes)))
        elif base_folder.is_file():
            base_folder, paths = base_folder.parent, [base_folder]
        else:
            while set("*?[") & set(str(base_folder)):  # up to the folder before the first wildcard
                base_folder = base_folder.parent
            pattern = expand_home(path).relative_to(base_folder).as_posix()
            paths = list(base_folder.glob(pattern)) if pattern != "." else []
        files_by_name = {
            _format_relative_name(file, base_folder): file for file in paths if file.is_file()
        }
        files_by_name = _exclude_store_files(files_by_name, base_folder)
    except (OSError, ValueError) as error:
        raise UsageError(f"source {source_name!r}: {path!r} cannot be read ({error})") from error
    if not files_by_name:
        problem = (
            f"no file that ends in {', '.join(suffixes)} is"
            if base_folder.is_dir()
            else "nothing is"
        )
        raise UsageError(
            f"source {source_name!r}: {problem} at {path!r}; correct the source's path"
        )
    for file_path in files_by_name.values():
        check_external_path(file_path, f"source {source_name!r}")
    return dict(sorted(files_by_name.items()))


def _exclude_store_files(files_by_name: dict[str, Path], base_folder: Path) -> dict[str, Path]:
    """Leave out the files of a store that lies in the folder: a store is no corpus.

    Not only that of this session: what a corpus holds must not depend on which store is open. A
    folder inside a store that the user names is read.
    """
    session_store = None
    with suppress(HallmarkError):  # outside of a session there is none
        session_store = get_current_session().store.root_folder

    @cache
    def is_store(folder: Path) -> bool:
        is_session_store = session_store is not None and os.path.realpath(folder) == str(
            session_store
        )  # it may still be empty
        return is_session_store or is_store_folder(folder)

    return {
        name: path
        for name, path in files_by_name.items()
        if not any(is_store(base_folder / parent) for parent in Path(name).parents if parent.name)
    }


def _walk_files(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Files of a folder and its folders; one that may not be listed raises OSError."""

    def raise_error(error: OSError) -> None:
        raise error

    for subfolder, _, file_names in os.walk(folder, onerror=raise_error):
        yield from (
            Path(subfolder, file_name)
            for file_name in file_names
            if is_corpus_file(file_name, suffixes)
        )


def _format_relative_name(path: Path, base_folder: Path) -> str:
    """The path below the base; bytes of a file name that are not UTF-8 are written as escapes, and
    so are backslashes: no two files have one name."""
    name = path.relative_to(base_folder).as_posix().replace("\\", r"\\")
    return name.encode("utf-8", "backslashreplace").decode()


def compute_file_digest(source_name: str, path: Path) -> str:
    """SHA-256 of a file; UsageError if it cannot be read."""
    try:
        return hash_file(path)
    except OSError as error:
        raise UsageError(
            f"source {source_name!r}: {str(path)!r} cannot be read ({error.strerror}); make "
            f"it readable "
            f"or leave it out"
        ) from error
