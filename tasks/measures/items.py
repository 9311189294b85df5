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

from tasks.contract import UsageError, file_digest, open_external

#: Items that one file may hold: an audit keeps them all in memory.
MOST = 1_000_000


def read_items(path: Path, what: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of each line of a JSON Lines file, or of each row of a csv or tsv file with a
    header, plain or packed by gzip. Empty lines are passed over. Raises UsageError with the place
    of a line that cannot be read, and for a file without any item."""
    check_file(path, what)
    count = 0
    with open_text(path, what, newline="") as file:
        try:
            for place, item in _rows(path, file):
                count += 1
                if count > MOST:
                    raise UsageError(f"{path} holds more than {MOST:,} {what}; give fewer")
                yield place, item
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is not UTF-8 text behind item {count}: {error}") from error
        except (csv.Error, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"{path}, behind item {count}: {error}") from error
    if not count:
        raise UsageError(f"{path} holds no {what}: it is empty, or a header stands alone")


def read_lines(path: Path, what: str) -> Iterator[tuple[str, str]]:
    """(place, text) of each line of a text file, plain or packed by gzip, without those that are
    empty. Raises UsageError as ``read_items``."""
    check_file(path, what)
    count = 0
    with open_text(path, what) as file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    count += 1
                    yield f"{path}, line {number}", line.strip()
        except (UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"{path} is not UTF-8 text behind line {count}: {error}") from error
    if not count:
        raise UsageError(f"{path} holds no {what}: it is empty")


@contextmanager
def open_text(
    path: Path, what: str, *, encoding: str = "utf-8-sig", newline: str | None = None
) -> Iterator[TextIO]:
    """Open a text file of a user's, plain or packed by gzip."""
    with ExitStack() as stack:
        data: Any = stack.enter_context(open_external(path, what))
        if path.suffix == ".gz":
            data = stack.enter_context(gzip.open(data))
        yield stack.enter_context(io.TextIOWrapper(data, encoding=encoding, newline=newline))


def _rows(path: Path, file: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind in (".csv", ".tsv"):
        reader = csv.DictReader(file, delimiter="," if kind == ".csv" else "\t", strict=True)
        for row in reader:
            yield f"{path}, line {reader.line_num}", row
        return
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            item = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{place} is not valid JSON: {str(error)[:200]}") from error
        if not isinstance(item, dict):
            raise UsageError(f"{place} is not a JSON object")
        yield place, item


def text_field(place: str, item: dict[str, Any], name: str) -> str:
    """A field that must be text with something in it; "a.b" is the field b of the object a."""
    value: Any = item
    for part in [name] if name in item else name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if not isinstance(value, str) or not value.strip():
        has = ", ".join(repr(name)[:60] for name in list(item)[:20]) or "none"
        more = f"; its fields are {has}" if value is None else ""
        raise UsageError(f"{place} has no text in {name!r}, but {repr(value)[:60]}{more}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair
        raise UsageError(f"{place} has no valid Unicode text in {name!r}: {error}") from error
    return value


def check_file(path: Path, what: str) -> None:
    if path == Path():
        raise UsageError(f"the path of the file with the {what} is empty; name one")
    if not path.is_file():
        raise UsageError(f"there is no file {path} with the {what}; correct the path")


def digest_of(path: Path | None, what: str) -> dict[str, str]:
    """For a stage's ``external``: the hash of a user's file; nothing where there is none."""
    if path is None:
        return {}
    check_file(path, what)
    return {what: file_digest(path)}


def digests_of(paths: Sequence[Path], what: str) -> dict[str, str]:
    """As ``digest_of``, of several files, in their order."""
    return {f"{what} {n}": digest for n, path in enumerate(paths, 1)
            for digest in digest_of(path, what).values()}  # fmt: skip
