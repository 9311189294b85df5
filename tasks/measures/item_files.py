"""Reading sets of items, such as prompts and pairs, from files of the project or of the user."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from hallmark.tasks.contract import UsageError, hash_file, open_external_file

#: Items that one file may hold: an audit keeps them all in memory.
MAX_ITEMS = 1_000_000


def read_items(path: Path, content_name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of each line of a JSON Lines file, or of each row of a csv or tsv file with a
    header, plain or packed by gzip. Empty lines are passed over. Raises UsageError with the place
    of a line that cannot be read, and for a file without any item."""
    check_file_exists(path, content_name)
    count = 0
    with open_text_file(path, content_name, newline="") as file:
        try:
            for location, item in _read_records(path, file):
                count += 1
                if count > MAX_ITEMS:
                    raise UsageError(
                        f"{path} holds more than {MAX_ITEMS:,} {content_name}; give fewer"
                    )
                yield location, item
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is not UTF-8 text behind item {count}: {error}") from error
        except (csv.Error, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"{path}, behind item {count}: {error}") from error
    if not count:
        raise UsageError(f"{path} holds no {content_name}: it is empty, or a header stands alone")


def read_nonempty_lines(path: Path, content_name: str) -> Iterator[tuple[str, str]]:
    """(place, text) of each line of a text file, plain or packed by gzip, without those that are
    empty. Raises UsageError as ``read_items``."""
    check_file_exists(path, content_name)
    count = 0
    with open_text_file(path, content_name) as file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    count += 1
                    yield f"{path}, line {number}", line.strip()
        except (UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"{path} is not UTF-8 text behind line {count}: {error}") from error
    if not count:
        raise UsageError(f"{path} holds no {content_name}: it is empty")


@contextmanager
def open_text_file(
    path: Path, content_name: str, *, encoding: str = "utf-8-sig", newline: str | None = None
) -> Iterator[TextIO]:
    """Open a text file of a user's, plain or packed by gzip."""
    with ExitStack() as stack:
        data: Any = stack.enter_context(open_external_file(path, content_name))
        if path.suffix == ".gz":
            data = stack.enter_context(gzip.open(data))
        yield stack.enter_context(io.TextIOWrapper(data, encoding=encoding, newline=newline))


def _read_records(path: Path, file: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix in (".csv", ".tsv"):
        reader = csv.DictReader(file, delimiter="," if suffix == ".csv" else "\t", strict=True)
        for row in reader:
            yield f"{path}, line {reader.line_num}", row
        return
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        location = f"{path}, line {number}"
        try:
            item = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{location} is not valid JSON: {str(error)[:200]}") from error
        if not isinstance(item, dict):
            raise UsageError(f"{location} is not a JSON object")
        yield location, item


def get_text_field(location: str, item: dict[str, Any], field_name: str) -> str:
    """A field that must be text with something in it; "a.b" is the field b of the object a."""
    value: Any = item
    for key in [field_name] if field_name in item else field_name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, str) or not value.strip():
        field_names = ", ".join(repr(name)[:60] for name in list(item)[:20]) or "none"
        field_hint = f"; its fields are {field_names}" if value is None else ""
        raise UsageError(
            f"{location} has no text in {field_name!r}, but {repr(value)[:60]}{field_hint}"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair
        raise UsageError(
            f"{location} has no valid Unicode text in {field_name!r}: {error}"
        ) from error
    return value


def check_file_exists(path: Path, content_name: str) -> None:
    if path == Path():
        raise UsageError(f"the path of the file with the {content_name} is empty; name one")
    if not path.is_file():
        raise UsageError(f"there is no file {path} with the {content_name}; correct the path")


def user_file_digest(path: Path | None, content_name: str) -> dict[str, str]:
    """For a stage's ``external``: the hash of a user's file; nothing where there is none."""
    if path is None:
        return {}
    check_file_exists(path, content_name)
    return {content_name: hash_file(path)}


def user_file_digests(paths: Sequence[Path], content_name: str) -> dict[str, str]:
    """As ``digest_of``, of several files, in their order."""
    return {
        f"{content_name} {n}": digest
        for n, path in enumerate(paths, 1)
        for digest in user_file_digest(path, content_name).values()
    }
