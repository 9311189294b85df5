"""Read sets of items, such as prompts and pairs, from files of the project or of the user."""

from __future__ import annotations

import csv
import gzip
import io
import json
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from hallmark.tasks.contract import (
    UsageError,
    explain_relative_path,
    format_count,
    format_existing_fields_suffix,
    hash_file,
    open_external_file,
)

#: Maximum number of items per file: an audit keeps them all in memory.
MAX_ITEMS = 1_000_000


class LocatedItem(NamedTuple):
    """An item of a file, and where it is."""

    location: str
    """File and line, for error messages."""
    fields: dict[str, Any]
    """Values, keyed by the name of the field or column."""


class LocatedLine(NamedTuple):
    """A line of a file, and where it is."""

    location: str
    """File and line, for error messages."""
    text: str


def read_items(path: Path, content_name: str) -> Iterator[LocatedItem]:
    """Yield the object of each line of JSON Lines, or each row of a csv or tsv file.

    Files may be compressed with gzip; csv and tsv files have a header. Empty lines are skipped.

    Args:
        path: The file; its extension determines the format.
        content_name: Name of the items, for error messages.

    Raises:
        UsageError: A line cannot be read, the file has no items, or more than MAX_ITEMS.
    """
    check_file_exists(path, content_name)
    count = 0
    with open_text_file(path, content_name, newline="") as file:
        try:
            for item in _read_records(path, file):
                count += 1
                if count > MAX_ITEMS:
                    raise UsageError(
                        f"{path} has more than {MAX_ITEMS:,} {content_name}; reduce their number"
                    )
                yield item
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is not UTF-8 text after item {count}: {error}") from error
        except (csv.Error, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"{path} cannot be read after item {count}: {error}") from error
    if not count:
        raise UsageError(f"{path} has no {content_name}: the file is empty or has only a header")


def read_nonempty_lines(path: Path, content_name: str) -> Iterator[LocatedLine]:
    """Yield each non-empty line of a text file, plain or gzip, without surrounding white space.

    Raises:
        UsageError: A line cannot be read, or all are empty.
    """
    check_file_exists(path, content_name)
    count = 0
    with open_text_file(path, content_name) as file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    count += 1
                    yield LocatedLine(f"{path}, line {number}", line.strip())
        except (UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(
                f"{path} is not UTF-8 text after non-empty line {count}: {error}"
            ) from error
    if not count:
        raise UsageError(f"{path} has no {content_name}: the file is empty")


@contextmanager
def open_text_file(
    path: Path, content_name: str, *, encoding: str = "utf-8-sig", newline: str | None = None
) -> Iterator[TextIO]:
    """Open a user's text file, plain or compressed with gzip."""
    with ExitStack() as stack:
        data: Any = stack.enter_context(open_external_file(path, content_name))
        if path.suffix == ".gz":
            data = stack.enter_context(gzip.open(data))
        yield stack.enter_context(io.TextIOWrapper(data, encoding=encoding, newline=newline))


def _read_records(path: Path, file: TextIO) -> Iterator[LocatedItem]:
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix in (".csv", ".tsv"):
        reader = csv.DictReader(file, delimiter="," if suffix == ".csv" else "\t", strict=True)
        for row in _iterate_csv_rows(path, reader):
            location = f"{path}, line {reader.line_num}"
            if any(row.pop(None, ())):
                raise UsageError(
                    f"{location} has more fields than the header; enclose text that contains the "
                    "delimiter in quotation marks"
                )
            field_count = sum(value is not None for value in row.values())
            if field_count < len(row):
                raise UsageError(
                    f"{location} has {format_count(field_count, 'field')}, but the header has "
                    f"{len(row)}; the file may be damaged or truncated"
                )
            yield LocatedItem(location, row)
        return
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        location = f"{path}, line {number}"
        try:
            item = json.loads(line)
        except (ValueError, RecursionError) as error:
            hint = "" if line.endswith("\n") else "; the file may be truncated"
            raise UsageError(f"{location} is not valid JSON: {str(error)[:200]}{hint}") from error
        if not isinstance(item, dict):
            raise UsageError(f"{location} is not a JSON object")
        yield LocatedItem(location, item)


def _iterate_csv_rows(path: Path, reader: csv.DictReader[str]) -> Iterator[dict[Any, Any]]:
    try:
        yield from reader
    except csv.Error as error:
        raise UsageError(
            f"{path} cannot be read after line {reader.line_num}: {error}; a quotation mark may "
            "be missing"
        ) from error


def get_text_field(location: str, item: dict[str, Any], field_name: str) -> str:
    """Return a field that must be non-empty text; "a.b" is the field b of the object a.

    Raises:
        UsageError: The field is missing, empty or not valid Unicode text.
    """
    value: Any = item
    for key in [field_name] if field_name in item else field_name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, str) or not value.strip():
        field_hint = (
            format_existing_fields_suffix(field_name, item, "fields") if value is None else ""
        )
        raise UsageError(
            f"{location} must have text in {field_name!r}, not {repr(value)[:60]}{field_hint}"
        )
    if "\0" in value:
        raise UsageError(
            f"{location} has a NUL character in {field_name!r}; the file may be damaged"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can contain half of a surrogate pair.
        raise UsageError(
            f"{location} has invalid Unicode text in {field_name!r}: {error}"
        ) from error
    return value


def get_text_list_field(location: str, item: dict[str, Any], field_name: str) -> list[str]:
    """Return the texts in a field, which may be a text or a list of texts; empty ones are skipped.

    "a.b" is the field b of the object a, or of each object in the list a. A number counts as text.

    Raises:
        UsageError: The field has another type or is not valid Unicode text.
    """
    values: list[Any] = [item]
    for key in [field_name] if field_name in item else field_name.split("."):
        objects = [value for value in _flatten_lists(values) if isinstance(value, dict)]
        values = [value.get(key) for value in objects]
    texts = []
    for value in _flatten_lists(values):
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if value is not None and (not isinstance(value, str) or value.strip()):
            texts.append(get_text_field(location, {field_name: value}, field_name))
    return texts


def _flatten_lists(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values and those of nested lists; lists may be nested to any depth."""
    remaining = [*values][::-1]
    while remaining:
        value = remaining.pop()
        if isinstance(value, list):
            remaining += value[::-1]
        else:
            yield value


def get_name_field(
    location: str, item: dict[str, Any], field_name: str, known_names: Iterable[str] = ()
) -> str:
    """Return a field that names a group, so that one group has one name.

    Invisible characters and surplus white space are removed. A name that differs from a known one
    only in capitals becomes the known one.

    Raises:
        UsageError: The field is missing, has no visible character, or is not valid Unicode text.
    """
    text = unicodedata.normalize("NFC", get_text_field(location, item, field_name))
    visible_text = "".join(
        character
        for character in text
        if character.isspace() or unicodedata.category(character) not in ("Cc", "Cf")
    )
    name = " ".join(visible_text.split())
    if not name:
        raise UsageError(f"{location} has no visible characters in {field_name!r}")
    return next((known for known in known_names if known.casefold() == name.casefold()), name)


def check_file_exists(path: Path, content_name: str) -> None:
    """Raise UsageError if the path is empty or is not a file."""
    if path == Path():
        raise UsageError(
            f"the path of the file that contains the {content_name} is empty; specify a path"
        )
    if path.is_dir():
        raise UsageError(
            f"{path} is a folder; specify the path of the file that contains the {content_name}"
        )
    if not path.is_file():
        raise UsageError(
            f"there is no file {path} with the {content_name}{explain_relative_path(path)}; "
            "correct the path"
        )


#: SHA-256 by name of the content.
DigestByContentName = dict[str, str]


def user_file_digest(path: Path | None, content_name: str) -> DigestByContentName:
    """Return the hash of a user's file for a stage's `external`; empty if there is no file."""
    if path is None:
        return {}
    check_file_exists(path, content_name)
    return {content_name: hash_file(path)}


def user_file_digests(paths: Sequence[Path], content_name: str) -> DigestByContentName:
    """Return the hashes of several files like `user_file_digest`, numbered in their order."""
    return {
        f"{content_name} {n}": digest
        for n, path in enumerate(paths, 1)
        for digest in user_file_digest(path, content_name).values()
    }
