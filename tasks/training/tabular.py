"""Rows of a table that a person brings: parquet, csv, tsv or jsonl, with named columns.

A row that cannot be read is told with its place, and reading goes on at the next. Memory is a batch
of rows, or a line.
"""

from __future__ import annotations

import csv
import io
import json
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.contract import HallmarkError, UsageError, open_external

ENDINGS = (".parquet", ".csv", ".tsv", ".jsonl")

#: Longest line of a jsonl file, in bytes, and longest field of another text, in characters.
LONGEST_LINE = LONGEST_FIELD = 1 << 24


#: Lines that a row may have, and what is wrong with a longer one.
MOST_LINES, UNCLOSED = 1000, "a quote is not closed"


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
    """The rows of the table at ``path``. HallmarkError where the file as a whole cannot be read, a
    UsageError where it lacks a column."""
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
            raise UsageError(
                f"{path} has no column {name!r}, it has {has}: name the columns in finetune.task"
            )


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[Raw]:
    number = 0
    try:
        with open_external(path, "finetune.data") as opened:
            file = pq.ParquetFile(opened)
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
    with open_external(path, "finetune.data") as file:
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


class _Lines:
    """The lines of a file for ``csv.reader``, of which those of a row can be given back."""

    def __init__(self, file: Iterator[str]) -> None:
        self.file, self.taken = file, list[str]()
        self.back: deque[str] = deque()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if len(self.taken) == MOST_LINES:
            raise csv.Error(UNCLOSED)
        self.taken.append(self.back.popleft() if self.back else next(self.file))
        return self.taken[-1]

    def give_back(self) -> None:
        """All but the first of the lines that were taken."""
        self.back.extendleft(reversed(self.taken[1:]))


def _delimited(path: Path, columns: Sequence[str], delimiter: str) -> Iterator[Raw]:
    """A stray quote opens a field that swallows what is behind it, up to the next quote. Where that
    gives no row only the line with the quote is an error, and reading goes on at the next; where it
    gives one nobody can know."""
    # One limit for all of the process; another reader may have raised it further.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD + 1))
    # Bytes that are no UTF-8 become halves of characters, which no text may hold.
    with io.TextIOWrapper(
        open_external(path, "finetune.data"),
        newline="",
        encoding="utf-8-sig",
        errors="surrogateescape",
    ) as file:
        lines = _Lines(file)
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        header = _row(rows, path)
        _check_columns(path, columns, header)
        places = [header.index(name) for name in columns]
        number = 0
        while True:
            lines.taken.clear()
            row, error = list[str](), ""
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as problem:
                error = f"no row of a table: {_first_line(problem)}"
            if not row and not error:
                continue
            number += 1
            if not error and len(row) != len(header):
                error = f"{len(row)} fields, where the header has {len(header)}"
            if error and len(lines.taken) > 1:
                lines.give_back()
                rows, error = csv.reader(lines, delimiter=delimiter, strict=True), UNCLOSED
            if not error and max(map(len, row)) > LONGEST_FIELD:
                error = f"a field of more than {LONGEST_FIELD:,} characters"
            yield Raw(number, [] if error else [row[place] for place in places], error)


def _row(rows: Iterator[list[str]], path: Path) -> list[str]:
    """The header; HallmarkError where there is none."""
    try:
        return next(rows)
    except StopIteration:
        raise HallmarkError(f"{path} is empty: give a file with a header and rows") from None
    except csv.Error as error:
        raise HallmarkError(f"{path}: its header cannot be read ({_first_line(error)})") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
