"""Define the settings that all sources share, and find their files."""

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
    """Configure where documents come from."""

    name: PathSafeName = Field(
        description="name of the source in every table and figure; part of the doc_ids"
    )

    licence: str | None = Field(None, description="terms under which its texts may be used")
    origin: str | None = Field(None, description="who published it, and where it was obtained")
    collected_from: date | None = Field(None, description="first day of the collection period")
    collected_to: date | None = Field(None, description="last day of the collection period")

    document_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the documents to take, chosen by a hash of their ids; applies to "
        "each part of a source that has parts",
    )
    max_documents: int | None = Field(
        None, ge=1, description="most documents to take, chosen by the same hash"
    )

    def list_names(self) -> list[str]:
        """Return the names of the source and its parts in the tables."""
        return [self.name]

    @field_validator("name")
    @classmethod
    def _reject_reserved_name(cls, name: str) -> str:
        if name.split("/")[0] == "planted":
            raise ValueError(
                "the name 'planted' is reserved for canaries that Hallmark plants; choose another"
            )
        return name

    @model_validator(mode="after")
    def _check_collection_dates(self) -> Self:
        if self.collected_from and self.collected_to and self.collected_from > self.collected_to:
            raise ValueError("collected_from is later than collected_to; exchange or correct them")
        return self


#: Suffixes of the files to search for in a folder, by the kind of source.
SUFFIXES_BY_KIND = {
    "jsonl": (".jsonl", ".ndjson"),
    "parquet": (".parquet",),
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "warc": (".warc", ".wet"),
    "text": (".txt", ".text", ".md"),
}


def add_compressed_suffixes(suffixes: Iterable[str]) -> tuple[str, ...]:
    """Return these suffixes, each alone and with .gz and .zst."""
    return tuple(suffix + compression for suffix in suffixes for compression in ("", ".gz", ".zst"))


#: Suffixes of all files that any kind of source reads from a folder.
CORPUS_FILE_SUFFIXES = add_compressed_suffixes(chain.from_iterable(SUFFIXES_BY_KIND.values()))


class FileSource(Source):
    """Configure a source that reads files."""

    path: Annotated[str, ExternalMarker(endings=CORPUS_FILE_SUFFIXES)] = Field(
        min_length=1,
        description="a file, folder or pattern, local or in an object store, such as "
        "s3://bucket/folder/*.jsonl.gz",
    )


class RecordFields(StageConfig):
    """Configure which fields (columns) of a record to read."""

    text_field: str = Field("text", description="field with the text of the document")
    key_field: str | None = Field(
        None,
        description="field with a permanent key of the document; without one, the doc_id depends "
        "on the text",
    )
    url_field: str | None = Field(None, description="field with the URL of the document")
    date_field: str | None = Field(
        None, description="field with its date: an ISO 8601 day, or a time with a time zone"
    )

    def list_columns(self) -> list[str]:
        """Return the fields to read without repetitions."""
        names = (self.text_field, self.key_field, self.url_field, self.date_field)
        return list(dict.fromkeys(name for name in names if name is not None))


def find_files(source_name: str, path: str, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Find the files of a path, folder or glob pattern.

    Returns:
        Paths by their name below the folder, sorted by name.

    Raises:
        UsageError: if the path cannot be read, no file is found, or a file is outside the declared
            roots.
    """
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
        raise UsageError(
            f"source {source_name!r}: {path!r} cannot be read ({error}); correct the source's path "
            f"or make it readable"
        ) from error
    if not files_by_name:
        problem = (
            f"no file ends in {', '.join(suffixes)}" if base_folder.is_dir() else "no file exists"
        )
        raise UsageError(
            f"source {source_name!r}: {problem} at {path!r}; correct the source's path"
        )
    for file_path in files_by_name.values():
        check_external_path(file_path, f"source {source_name!r}")
    return dict(sorted(files_by_name.items()))


def _exclude_store_files(files_by_name: dict[str, Path], base_folder: Path) -> dict[str, Path]:
    """Exclude the files of any store that lies inside the folder.

    All stores are excluded, not only the one of this session, so that a corpus does not depend on
    which store is open. A folder inside a store is read if the user names it.
    """
    session_store = None
    with suppress(HallmarkError):  # there is none outside a session
        session_store = get_current_session().store.root_folder

    @cache
    def is_store(folder: Path) -> bool:
        # The session's store may still be empty, so it is not recognised by its content.
        is_session_store = session_store is not None and (
            os.path.realpath(folder) == str(session_store)
        )
        return is_session_store or is_store_folder(folder)

    return {
        name: path
        for name, path in files_by_name.items()
        if not any(is_store(base_folder / parent) for parent in Path(name).parents if parent.name)
    }


def _walk_files(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Yield the corpus files below a folder; raise OSError if a folder cannot be listed."""

    def raise_error(error: OSError) -> None:
        raise error

    for subfolder, _, file_names in os.walk(folder, onerror=raise_error):
        yield from (
            Path(subfolder, file_name)
            for file_name in file_names
            if is_corpus_file(file_name, suffixes)
        )


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
            f"source {source_name!r}: {str(path)!r} cannot be read ({error.strerror}); "
            f"make it readable or exclude it"
        ) from error
