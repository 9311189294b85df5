"""Rows of a table that a person brings: parquet, csv, tsv or jsonl, with named columns.

A row that cannot be read is told with its place, and reading goes on at the next. Memory is a batch
of rows, or a line.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.contract import HallmarkError, UsageError

ENDINGS = (".parquet", ".csv", ".tsv", ".jsonl")

#: Longest line of a jsonl file, in bytes, and longest field of another text, in characters.
LONGEST_LINE = LONGEST_FIELD = 1 << 24


class Raw(NamedTuple):
    """A row as it was read: its number in the file, from 1, and the values of the columns that were
    asked for, or why there are none."""

    number: int
    values: list[Any]
    error: str = ""


def check_path(path: Path) -> None:
    """UsageError where there is no such file, or of no kind that can be read."""
    if path.suffix not in ENDINGS:
        raise UsageError(f"{path}: its name ends with none of {', '.join(ENDINGS)}")
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[Raw]:
    """The rows of the table at ``path``. HallmarkError where the file as a whole cannot be read, or
    lacks a column."""
    check_path(path)
    if path.suffix == ".parquet":
        yield from _parquet(path, columns)
    elif path.suffix == ".jsonl":
        yield from _jsonl(path, columns)
    else:
        yield from _delimited(path, columns, "\t" if path.suffix == ".tsv" else ",")


def _check_columns(path: Path, columns: Sequence[str], there: Sequence[str]) -> None:
    for name in columns:
        if name not in there:
            has = ", ".join(map(repr, there[:20]))
            raise HallmarkError(
                f"{path} has no column {name!r}, it has {has}: name the columns in finetune.task"
            )


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[Raw]:
    number = 0
    try:
        file = pq.ParquetFile(path)
        _check_columns(path, columns, file.schema_arrow.names)
        for batch in file.iter_batches(1024, columns=list(dict.fromkeys(columns))):
            for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                number += 1
                yield Raw(number, list(row))
    except (pa.ArrowException, OSError, ValueError) as error:
        where = f"behind row {number}" if number else "at its beginning"
        raise HallmarkError(f"{path} is damaged {where} ({_first_line(error)})") from error


def _jsonl(path: Path, columns: Sequence[str]) -> Iterator[Raw]:
    seen: set[str] = set()
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                    pass
                yield Raw(number, [], f"a line of more than {LONGEST_LINE >> 20} MB")
                continue
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if isinstance(found, dict):
                seen |= found.keys()
                yield Raw(number, [found.get(name) for name in columns])
            else:
                yield Raw(number, [], "no JSON object")
    if seen:
        _check_columns(path, columns, sorted(seen))


def _delimited(path: Path, columns: Sequence[str], delimiter: str) -> Iterator[Raw]:
    # One limit for all of the process; another reader may have raised it further.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD + 1))
    # Bytes that are no UTF-8 become halves of characters, which no text may hold.
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        lines = csv.reader(file, delimiter=delimiter)
        header = next(lines, [])
        _check_columns(path, columns, header)
        places = [header.index(name) for name in columns]
        number = 0
        while True:
            try:
                row = next(lines)
            except StopIteration:
                return
            except csv.Error as error:
                number += 1
                yield Raw(number, [], f"no row of a table: {_first_line(error)}")
                continue
            if not row:
                continue
            number += 1
            if max(map(len, row)) > LONGEST_FIELD:
                yield Raw(number, [], f"a field of more than {LONGEST_FIELD:,} characters")
                continue
            if len(row) != len(header):
                yield Raw(number, [], f"{len(row)} fields, where the header has {len(header)}")
                continue
            yield Raw(number, [row[place] for place in places])


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
