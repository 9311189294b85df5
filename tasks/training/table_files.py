"""Read rows of a user's table (parquet, csv, tsv or jsonl) with named columns.

A row that cannot be read is reported with its number, and reading continues with the next one.
Memory is limited to a batch of rows, or a line.
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

from hallmark.tasks.contract import (
    HallmarkError,
    UsageError,
    explain_relative_path,
    format_existing_fields_suffix,
    open_external_file,
)

SUPPORTED_SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl")

#: Maximum length of a jsonl line in bytes, and of a csv or tsv field in characters.
MAX_LINE_BYTES = MAX_FIELD_CHARACTERS = 1 << 24


#: Maximum number of lines of a csv or tsv row, and the error of a longer one.
MAX_ROW_LINES, UNCLOSED_QUOTE_ERROR = 1000, "a quote is not closed"


class RawRow(NamedTuple):
    """A row as it was read.

    Attributes:
        row_number: Number of the row in the file, from 1; in jsonl, of the line.
        values: Values of the requested columns; empty if the row could not be read.
        error: Why the row could not be read; empty if it could.
    """

    row_number: int
    values: list[Any]
    error: str = ""


def check_table_path(path: Path) -> None:
    """Raise UsageError if the file does not exist or its format is not supported."""
    if path.suffix not in SUPPORTED_SUFFIXES:
        raise UsageError(
            f"the format of {path} is not supported; use a file whose name ends with one of "
            f"{', '.join(SUPPORTED_SUFFIXES)}"
        )
    if not path.is_file():
        raise UsageError(f"{path}{explain_relative_path(path)} does not exist; correct the path")


def read_table_rows(path: Path, columns: Sequence[str]) -> Iterator[RawRow]:
    """Yield the rows of the table at `path`.

    Raises:
        HallmarkError: The file as a whole cannot be read.
        UsageError: The file is missing, has an unsupported format, or lacks a column.
    """
    check_table_path(path)
    if path.suffix == ".parquet":
        yield from _read_parquet_rows(path, columns)
    elif path.suffix == ".jsonl":
        yield from _read_jsonl_rows(path, columns)
    else:
        yield from _read_delimited_rows(path, columns, "\t" if path.suffix == ".tsv" else ",")


def _check_columns_exist(
    path: Path, columns: Sequence[str], available_columns: Sequence[str]
) -> None:
    for name in columns:
        if name not in available_columns:
            raise UsageError(
                f"{path} has no column {name!r}"
                f"{format_existing_fields_suffix(name, available_columns, 'columns')}; "
                "correct the column names in finetune.task"
            )


def _read_parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[RawRow]:
    row_number = 0
    try:
        with open_external_file(path, "finetune.data") as binary_file:
            parquet_file = pq.ParquetFile(binary_file)
            _check_columns_exist(path, columns, parquet_file.schema_arrow.names)
            for batch in parquet_file.iter_batches(1024, columns=list(dict.fromkeys(columns))):
                for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                    row_number += 1
                    yield RawRow(row_number, list(row))
    except (pa.ArrowException, OSError, ValueError) as error:
        location = f"after row {row_number}" if row_number else "at its beginning"
        raise HallmarkError(
            f"{path} is damaged {location} ({_get_first_error_line(error)}); replace it with a "
            "complete file"
        ) from error


def _read_jsonl_rows(path: Path, columns: Sequence[str]) -> Iterator[RawRow]:
    record_keys: set[str] = set()
    with open_external_file(path, "finetune.data") as file:
        line_number = 0
        while line := file.readline(MAX_LINE_BYTES):
            line_number += 1
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                while (remainder := file.readline(MAX_LINE_BYTES)) and not remainder.endswith(
                    b"\n"
                ):
                    pass
                yield RawRow(line_number, [], f"the line is longer than {MAX_LINE_BYTES >> 20} MB")
                continue
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict):
                record_keys |= record.keys()
                yield RawRow(line_number, [record.get(name) for name in columns])
            else:
                yield RawRow(line_number, [], "not a JSON object")
    if record_keys:
        _check_columns_exist(path, columns, sorted(record_keys))


class _RestorableLines:
    """Lines of a file for `csv.reader`, which can be put back after a failed row."""

    def __init__(self, file: Iterator[str]) -> None:
        self.file, self.row_lines = file, list[str]()
        self.restored_lines: deque[str] = deque()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if len(self.row_lines) == MAX_ROW_LINES:
            raise csv.Error(UNCLOSED_QUOTE_ERROR)
        self.row_lines.append(
            self.restored_lines.popleft() if self.restored_lines else next(self.file)
        )
        return self.row_lines[-1]

    def restore_extra_lines(self) -> None:
        """Put back all lines of the current row except the first."""
        self.restored_lines.extendleft(reversed(self.row_lines[1:]))


def _read_delimited_rows(path: Path, columns: Sequence[str], delimiter: str) -> Iterator[RawRow]:
    """Yield the rows of a csv or tsv file.

    A stray quote opens a field that extends to the next quote. If the result is not a valid row,
    only the line with the quote is an error and reading continues with the next line; if it happens
    to be a valid row, the error cannot be detected.
    """
    # The limit is global to the process; another reader may have raised it further.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD_CHARACTERS + 1))
    # Bytes that are not UTF-8 become lone surrogates, which are rejected later.
    with io.TextIOWrapper(
        open_external_file(path, "finetune.data"),
        newline="",
        encoding="utf-8-sig",
        errors="surrogateescape",
    ) as file:
        lines = _RestorableLines(file)
        csv_rows = csv.reader(lines, delimiter=delimiter, strict=True)
        header = _read_header(csv_rows, path)
        _check_columns_exist(path, columns, header)
        column_indices = [header.index(name) for name in columns]
        row_number = 0
        while True:
            lines.row_lines.clear()
            fields, error = list[str](), ""
            try:
                fields = next(csv_rows)
            except StopIteration:
                return
            except csv.Error as csv_error:
                error = f"not a valid row: {_get_first_error_line(csv_error)}"
            if not fields and not error:
                continue
            row_number += 1
            if not error and len(fields) != len(header):
                error = f"the row has {len(fields)} fields, but the header has {len(header)} fields"
            if error and len(lines.row_lines) > 1:
                lines.restore_extra_lines()
                csv_rows = csv.reader(lines, delimiter=delimiter, strict=True)
                error = UNCLOSED_QUOTE_ERROR
            if not error and max(map(len, fields)) > MAX_FIELD_CHARACTERS:
                error = f"the row has a field with more than {MAX_FIELD_CHARACTERS:,} characters"
            yield RawRow(
                row_number, [] if error else [fields[index] for index in column_indices], error
            )


def _read_header(csv_rows: Iterator[list[str]], path: Path) -> list[str]:
    """Return the header; raise HallmarkError if there is none."""
    try:
        return next(csv_rows)
    except StopIteration:
        raise HallmarkError(f"{path} is empty; use a file with a header and rows") from None
    except csv.Error as error:
        raise HallmarkError(
            f"the header of {path} cannot be read ({_get_first_error_line(error)}); correct the "
            "first line of the file"
        ) from error


def _get_first_error_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
