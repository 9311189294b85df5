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

from tasks.contract import (
    External,
    HallmarkError,
    PlainName,
    StageConfig,
    UsageError,
    check_external,
    current_session,
    expanded,
    file_digest,
    is_corpus_file,
    is_store_folder,
)


class Source(StageConfig):
    """Where documents come from."""

    name: PlainName = Field(
        description="names the source in every table and figure; enters the doc_ids"
    )

    licence: str | None = Field(None, description="under which terms its texts may be used")
    origin: str | None = Field(None, description="who published it, and where it was taken from")
    collected_from: date | None = Field(None, description="first day of its collection")
    collected_to: date | None = Field(None, description="last day of its collection")

    weight: float = Field(
        1.0, gt=0, le=1, description="the share of its documents that is taken, by a hash of their "
        "ids; of a source with parts in the tables, of each"
    )  # fmt: skip
    cap: int | None = Field(
        None, ge=1, description="how many of its documents are taken at most, by the same hash"
    )

    def names(self) -> list[str]:
        """What it, and parts of it, are called in the tables."""
        return [self.name]

    @field_validator("name")
    @classmethod
    def _not_planted(cls, name: str) -> str:
        if name.split("/")[0] == "planted":
            raise ValueError("the name 'planted' is kept for what Hallmark plants itself")
        return name

    @model_validator(mode="after")
    def _collected_in_order(self) -> Self:
        if self.collected_from and self.collected_to and self.collected_from > self.collected_to:
            raise ValueError("collected_from is later than collected_to")
        return self


#: What a folder is searched for, by the kind of source.
PATTERNS = {
    "jsonl": (".jsonl", ".ndjson"),
    "parquet": (".parquet",),
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "warc": (".warc", ".wet"),
    "text": (".txt", ".text", ".md"),
}


def with_packed(endings: Iterable[str]) -> tuple[str, ...]:
    """These endings, plain and of packed files."""
    return tuple(ending + packed for ending in endings for packed in ("", ".gz", ".zst"))


#: What any source reads of a folder.
ENDINGS = with_packed(chain.from_iterable(PATTERNS.values()))


class FileSource(Source):
    path: Annotated[str, External(endings=ENDINGS)] = Field(
        min_length=1,
        description="a file, a folder or a pattern, or these in an object store, such as "
        "s3://bucket/folder/*.jsonl.gz",
    )


class Fields(StageConfig):
    """Which fields (columns) of a record to take."""

    text_field: str = Field("text", description="the field that holds the document")
    key_field: str | None = Field(
        None, description="a field that names the document for good; else its bytes name it"
    )
    url_field: str | None = Field(None, description="a field that holds the document's URL")
    date_field: str | None = Field(
        None, description="a field that holds its date: an ISO 8601 day, or a time with its zone"
    )

    def columns(self) -> list[str]:
        """The fields to read, each once."""
        names = (self.text_field, self.key_field, self.url_field, self.date_field)
        return list(dict.fromkeys(name for name in names if name is not None))


def files(source: str, path: str, endings: tuple[str, ...]) -> dict[str, Path]:
    """Files of a path, folder or glob pattern by their name below it, in order of name."""
    base = expanded(path)
    try:
        if base.is_dir():
            paths = list(_below(base, with_packed(endings)))
        elif base.is_file():
            base, paths = base.parent, [base]
        else:
            while set("*?[") & set(str(base)):  # up to the folder before the first wildcard
                base = base.parent
            pattern = expanded(path).relative_to(base).as_posix()
            paths = list(base.glob(pattern)) if pattern != "." else []
        found = {_name(p, base): p for p in paths if p.is_file()}
        found = _without_stores(found, base)
    except (OSError, ValueError) as error:
        raise UsageError(f"source {source!r}: {path!r} cannot be read ({error})") from error
    if not found:
        kind = f"no file that ends in {', '.join(endings)} is" if base.is_dir() else "nothing is"
        raise UsageError(f"source {source!r}: {kind} at {path!r}; correct the source's path")
    for there in found.values():
        check_external(there, f"source {source!r}")
    return dict(sorted(found.items()))


def _without_stores(found: dict[str, Path], base: Path) -> dict[str, Path]:
    """Leave out the files of a store that lies in the folder: a store is no corpus.

    Not only that of this session: what a corpus holds must not depend on which store is open. A
    folder inside a store that the user names is read.
    """
    own = None
    with suppress(HallmarkError):  # outside of a session there is none
        own = current_session().store.root

    @cache
    def is_store(folder: Path) -> bool:
        is_own = own is not None and os.path.realpath(folder) == str(own)  # it may still be empty
        return is_own or is_store_folder(folder)

    return {
        name: path
        for name, path in found.items()
        if not any(is_store(base / above) for above in Path(name).parents if above.name)
    }


def _below(folder: Path, endings: tuple[str, ...]) -> Iterator[Path]:
    """Files of a folder and its folders; one that may not be listed raises OSError."""

    def give_up(error: OSError) -> None:
        raise error

    for inner, _, names in os.walk(folder, onerror=give_up):
        yield from (Path(inner, name) for name in names if is_corpus_file(name, endings))


def _name(path: Path, base: Path) -> str:
    """The path below the base; bytes of a file name that are not UTF-8 are written as escapes, and
    so are backslashes: no two files have one name."""
    name = path.relative_to(base).as_posix().replace("\\", r"\\")
    return name.encode("utf-8", "backslashreplace").decode()


def digest_of(source: str, path: Path) -> str:
    """SHA-256 of a file; UsageError if it cannot be read."""
    try:
        return file_digest(path)
    except OSError as error:
        raise UsageError(
            f"source {source!r}: {str(path)!r} cannot be read ({error.strerror}); make it readable "
            f"or leave it out"
        ) from error
