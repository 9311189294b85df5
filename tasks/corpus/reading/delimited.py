"""Readers of rows of delimited text: CSV with quotes, TSV without."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from hallmark.tasks.corpus.reading.byte_streams import Line, ReadCounts, read_lines
from hallmark.tasks.corpus.reading.readers import (
    NOT_UTF8,
    TOO_LONG,
    Record,
    fill_record_from_fields,
    find_line_error,
    find_missing_column_error,
    is_utf8_encodable,
    yield_empty_file_error,
)
from hallmark.tasks.corpus.reading.sources import FileSource, RecordFields

UNCLOSED_QUOTE = "a quote is not closed"
BROKEN_CSV = "broken CSV"
WRONG_FIELD_COUNT = "the row has another number of fields than the header"
MAX_REREAD_BYTES = (
    64 << 20
)  # bytes that may be taken back in any file, however small; so far is looked for
# the end of a row that is too long
BASE_ROW_LINES = (
    1000  # lines that any row may have, and a tenth of those that one that is too long may
)
MIN_LINE_BYTES = (
    16  # bytes a line of the longest row, at the least: each line is held with 180 bytes
)


class CsvSource(FileSource, RecordFields):
    """Delimited text with a header and quotes as in RFC 4180, plain, .gz or .zst."""

    kind: Literal["csv"]
    delimiter: str = Field(",", min_length=1, max_length=1, description="between two columns")


class TsvSource(FileSource, RecordFields):
    """Fields between tabs under a header, plain, .gz or .zst; quotes are characters like others."""

    kind: Literal["tsv"]


def read_csv(path: Path, source: CsvSource, max_bytes: int, counts: ReadCounts) -> Iterator[Record]:
    """Rows of delimited text; quoted fields may go over many lines.

    A stray quote opens a field that swallows what is behind it, up to the next quote. Where that
    gives no row, and the lines in between are rows by themselves, only the line with the stray
    quote is an error, and reading goes on at the next line. Where it gives one (the next quote
    ends a field, and the number of fields is right) nobody can know; if it is longer than the
    limit, it is one error up to there. In a file of one column every line would be a row: where
    rows before began with quotes, all that was read for one without an end is one error.
    """
    csv.field_size_limit(max(csv.field_size_limit(), max_bytes + 1))
    row_reader = _CsvRowReader(read_lines(path, max_bytes, counts), max_bytes, source.delimiter)
    header: list[str] | None = None
    while True:
        status, fields = row_reader.read_row(None if header is None else len(header))
        if status == "end":
            break
        if status == "ok" and not fields:
            counts.count_skipped(row_reader.row_bytes)
            continue
        record = Record(
            f"line {row_reader.first_line_number}",
            row_reader.row_bytes,
            error=status,
            raw=row_reader.join_row_lines(),
        )
        if status == "ok":
            record.error = NOT_UTF8 if not all(map(is_utf8_encodable, fields)) else ""
        if header is None:
            header = fields
            record.error = record.error or find_missing_column_error(source, header)
            if record.error:  # without a header nothing in the file can be understood
                while line := row_reader.read_next_line():
                    record.raw_bytes += line.size
                counts.record_count += 1
                yield record
                return
            counts.count_skipped(row_reader.row_bytes)
            continue
        counts.record_count += 1
        if not record.error:
            fill_record_from_fields(record, dict(zip(header, fields, strict=True)), source)
        yield record
    yield from yield_empty_file_error(counts)


def read_tsv(path: Path, source: TsvSource, max_bytes: int, counts: ReadCounts) -> Iterator[Record]:
    """Rows of text between tabs; the end of a line ends its row."""
    header: list[str] | None = None
    source_lines = read_lines(path, max_bytes, counts)
    for line in source_lines:
        if not line.error and not line.data.removesuffix(b"\r"):
            counts.count_skipped(line.size)
            continue
        record = Record(f"line {line.number}", line.size, raw=line.data)
        record.error = find_line_error(line, max_bytes)
        fields: list[str] = []
        if not record.error:
            try:
                fields = line.data.removesuffix(b"\r").decode().split("\t")
            except UnicodeDecodeError as error:
                record.error, record.location = (
                    NOT_UTF8,
                    f"{record.location}, byte {error.start + 1}",
                )
        if header is None:
            header = fields
            record.error = record.error or find_missing_column_error(source, header)
            if not record.error:
                counts.count_skipped(line.size)
                continue
            record.raw_bytes += sum(
                line.size for line in source_lines
            )  # without a header nothing is
        elif not record.error and len(fields) != len(header):
            record.error = WRONG_FIELD_COUNT
        counts.record_count += 1
        if not record.error:
            fill_record_from_fields(record, dict(zip(header, fields, strict=True)), source)
        yield record
    yield from yield_empty_file_error(counts)


class _DamagedRow(Exception):
    """Bytes of a row are missing; the message is the error to record."""


class _RowTooLong(Exception):
    """A row went over a limit while it was read."""


class _CsvRowReader:
    """Hands lines to a csv reader and remembers which of them made up the last row.

    Lines are taken back and read again until that were more bytes than twice the file's; then a
    row is no longer looked for behind the end of its line. So the time is linear.
    """

    def __init__(self, source_lines: Iterator[Line], max_bytes: int, delimiter: str) -> None:
        self.source_lines, self.max_bytes, self.delimiter = source_lines, max_bytes, delimiter
        self.pushed_back: deque[Line] = deque()  # taken back from a row that did not end
        self.row_lines: list[Line] = []
        self.read_bytes = self.reread_bytes = 0
        self.max_lines = max_bytes // MIN_LINE_BYTES + BASE_ROW_LINES  # lines of a row
        self.has_quoted_rows = (
            False  # a row began with a quote: who wrote it would have closed others
        )

    @property
    def first_line_number(self) -> int:
        return self.row_lines[0].number

    @property
    def row_bytes(self) -> int:
        return sum(line.size for line in self.row_lines)

    def join_row_lines(self) -> bytes:
        """Of a row that is too long as much as of a line."""
        return b"\n".join(line.data for line in self.row_lines)[: self.max_bytes + 1]

    def read_next_line(self) -> Line | None:
        if self.pushed_back:
            return self.pushed_back.popleft()
        line = next(self.source_lines, None)
        self.read_bytes += line.size if line else 0
        return line

    def read_row(self, field_count: int | None) -> tuple[str, list[str]]:
        """The next row with "ok", or its error; ("end", []) behind the last one. ``width``: the
        number of fields that it must have, if that is known.

        Undecodable bytes come as lone surrogates.
        """
        self.row_lines = []
        reader = self._make_csv_reader(
            line + "\n" for line in self._decode_lines(self.max_bytes, self.max_lines)
        )
        try:
            fields = next(reader, None)
        except csv.Error as error:
            # The only error at the end of the data that the csv module knows.
            if "end of data" in str(error):
                return (
                    self._reject_first_line(UNCLOSED_QUOTE)
                    if self._has_stray_quote(field_count)
                    else (UNCLOSED_QUOTE, [])
                )
            return (
                self._reject_first_line(UNCLOSED_QUOTE)
                if self._are_inner_lines_rows(field_count)
                else (BROKEN_CSV, [])
            )
        except _RowTooLong:
            if len(self.row_lines) == 1 or self._is_overlong_row(field_count):
                return TOO_LONG, []
            return (
                self._reject_first_line(UNCLOSED_QUOTE)
                if field_count != 1 or self._has_stray_quote(field_count)
                else (UNCLOSED_QUOTE, [])
            )
        except _DamagedRow as error:
            return (
                self._reject_first_line(UNCLOSED_QUOTE)
                if self._are_inner_lines_rows(field_count, 1)
                else (str(error), [])
            )
        if fields and field_count is not None and len(fields) != field_count:
            return (
                self._reject_first_line(UNCLOSED_QUOTE)
                if self._are_inner_lines_rows(field_count, 1)
                else (WRONG_FIELD_COUNT, [])
            )
        self.has_quoted_rows |= bool(self.row_lines) and self.row_lines[0].data.startswith(b'"')
        return ("end", []) if fields is None else ("ok", fields)

    def _make_csv_reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        return csv.reader(lines, delimiter=self.delimiter, strict=True)

    def _decode_lines(self, max_bytes: int, max_lines: int) -> Iterator[str]:
        """Lines, up to so many bytes and so many."""
        while line := self.read_next_line():
            self.row_lines.append(line)
            max_bytes -= line.size
            if line.error:
                raise _DamagedRow(line.error)
            reread_too_much = (
                len(self.row_lines) > 1
                and self.reread_bytes > 2 * self.read_bytes + MAX_REREAD_BYTES
            )
            if (
                max_bytes < 0
                or reread_too_much
                or len(self.row_lines) > max_lines
                or len(line.data) > self.max_bytes
            ):
                raise _RowTooLong
            yield line.data.decode("utf-8", "surrogateescape")

    def _is_overlong_row(self, field_count: int | None) -> bool:
        """Whether what was taken is the beginning of a row, though one that is too long: its end is
        taken, too. Only what parts its fields is kept of its texts."""
        self._push_back(0)
        plain_text = re.compile(f'[^"\r{re.escape(self.delimiter)}]+')
        lines = self._decode_lines(MAX_REREAD_BYTES, self.max_lines + 10 * BASE_ROW_LINES)
        try:
            fields = next(self._make_csv_reader(plain_text.sub("x", line) + "\n" for line in lines))
        except (csv.Error, _RowTooLong, _DamagedRow):
            return False
        return field_count in (None, len(fields))

    def _has_stray_quote(self, field_count: int | None) -> bool:
        """Whether the quote that opens the field without an end is none that its writer meant."""
        return (
            not self.has_quoted_rows
            if field_count == 1
            else self._are_inner_lines_rows(field_count)
        )

    def _are_inner_lines_rows(self, field_count: int | None, min_lines: int = 0) -> bool:
        """Whether most of the lines between the first and the last are rows by themselves."""
        inner_lines = self.row_lines[1:-1]
        if len(self.row_lines) < 2 or len(inner_lines) < min_lines or field_count is None:
            return False
        row_count = 0
        for line in inner_lines:
            text = line.data.decode("utf-8", "surrogateescape")
            try:
                row_count += len(next(self._make_csv_reader([text]))) in (0, field_count)
            except (csv.Error, StopIteration):
                continue
        return 2 * row_count >= len(inner_lines)

    def _reject_first_line(self, error: str) -> tuple[str, list[str]]:
        """The error is that of the first line; those behind it are read again."""
        self._push_back(1)
        return error, []

    def _push_back(self, keep_count: int) -> None:
        """All lines but so many are read again."""
        self.pushed_back.extendleft(reversed(self.row_lines[keep_count:]))
        self.reread_bytes += sum(line.size for line in self.row_lines[keep_count:])
        self.row_lines = self.row_lines[:keep_count]
