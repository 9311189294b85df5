"""Readers of rows of delimited text: CSV with quotes, TSV without."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.corpus.reading.readers import (
    NOT_UTF8,
    TOO_LONG,
    Record,
    empty_file,
    encodable,
    missing,
    take,
    unusable,
)
from tasks.corpus.reading.sources import Fields, FileSource
from tasks.corpus.reading.streams import Line, Meter, lines

UNCLOSED = "a quote is not closed"
BROKEN = "broken CSV"
WIDTH = "the row has another number of fields than the header"
PATIENCE = 64 << 20  # bytes that may be taken back in any file, however small; so far is looked for
# the end of a row that is too long
PAGE = 1000  # lines that any row may have, and a tenth of those that one that is too long may
SHORTEST = 16  # bytes a line of the longest row, at the least: each line is held with 180 bytes


class CsvSource(FileSource, Fields):
    """Delimited text with a header and quotes as in RFC 4180, plain, .gz or .zst."""

    kind: Literal["csv"]
    delimiter: str = Field(",", min_length=1, max_length=1, description="between two columns")


class TsvSource(FileSource, Fields):
    """Fields between tabs under a header, plain, .gz or .zst; quotes are characters like others."""

    kind: Literal["tsv"]


def read_csv(path: Path, source: CsvSource, limit: int, meter: Meter) -> Iterator[Record]:
    """Rows of delimited text; quoted fields may go over many lines.

    A stray quote opens a field that swallows what is behind it, up to the next quote. Where that
    gives no row, and the lines in between are rows by themselves, only the line with the stray
    quote is an error, and reading goes on at the next line. Where it gives one (the next quote
    ends a field, and the number of fields is right) nobody can know; if it is longer than the
    limit, it is one error up to there. In a file of one column every line would be a row: where
    rows before began with quotes, all that was read for one without an end is one error.
    """
    csv.field_size_limit(max(csv.field_size_limit(), limit + 1))
    feed = _Feed(lines(path, limit, meter), limit, source.delimiter)
    header: list[str] | None = None
    while True:
        status, fields = feed.row(None if header is None else len(header))
        if status == "end":
            break
        if status == "ok" and not fields:
            meter.skip(feed.size)
            continue
        record = Record(f"line {feed.number}", feed.size, error=status, raw=feed.raw())
        if status == "ok":
            record.error = NOT_UTF8 if not all(map(encodable, fields)) else ""
        if header is None:
            header = fields
            record.error = record.error or missing(source, header)
            if record.error:  # without a header nothing in the file can be understood
                while line := feed.next():
                    record.raw_bytes += line.size
                meter.rows += 1
                yield record
                return
            meter.skip(feed.size)
            continue
        meter.rows += 1
        if not record.error:
            take(record, dict(zip(header, fields, strict=True)), source)
        yield record
    yield from empty_file(meter)


def read_tsv(path: Path, source: TsvSource, limit: int, meter: Meter) -> Iterator[Record]:
    """Rows of text between tabs; the end of a line ends its row."""
    header: list[str] | None = None
    found = lines(path, limit, meter)
    for line in found:
        if not line.error and not line.data.removesuffix(b"\r"):
            meter.skip(line.size)
            continue
        record = Record(f"line {line.number}", line.size, raw=line.data)
        record.error = unusable(line, limit)
        fields: list[str] = []
        if not record.error:
            try:
                fields = line.data.removesuffix(b"\r").decode().split("\t")
            except UnicodeDecodeError as error:
                record.error, record.place = NOT_UTF8, f"{record.place}, byte {error.start + 1}"
        if header is None:
            header = fields
            record.error = record.error or missing(source, header)
            if not record.error:
                meter.skip(line.size)
                continue
            record.raw_bytes += sum(line.size for line in found)  # without a header nothing is
        elif not record.error and len(fields) != len(header):
            record.error = WIDTH
        meter.rows += 1
        if not record.error:
            take(record, dict(zip(header, fields, strict=True)), source)
        yield record
    yield from empty_file(meter)


class _Unreadable(Exception):
    """Bytes of a row are missing; the message is the error to record."""


class _TooLong(Exception):
    """A row went over a limit while it was read."""


class _Feed:
    """Hands lines to a csv reader and remembers which of them made up the last row.

    Lines are taken back and read again until that were more bytes than twice the file's; then a
    row is no longer looked for behind the end of its line. So the time is linear.
    """

    def __init__(self, source: Iterator[Line], limit: int, delimiter: str) -> None:
        self.source, self.limit, self.delimiter = source, limit, delimiter
        self.again: deque[Line] = deque()  # taken back from a row that did not end
        self.taken: list[Line] = []
        self.read = self.back = 0
        self.most = limit // SHORTEST + PAGE  # lines of a row
        self.quoted = False  # a row began with a quote: who wrote it would have closed others

    @property
    def number(self) -> int:
        return self.taken[0].number

    @property
    def size(self) -> int:
        return sum(line.size for line in self.taken)

    def raw(self) -> bytes:
        """Of a row that is too long as much as of a line."""
        return b"\n".join(line.data for line in self.taken)[: self.limit + 1]

    def next(self) -> Line | None:
        if self.again:
            return self.again.popleft()
        line = next(self.source, None)
        self.read += line.size if line else 0
        return line

    def row(self, width: int | None) -> tuple[str, list[str]]:
        """The next row with "ok", or its error; ("end", []) behind the last one. ``width``: the
        number of fields that it must have, if that is known.

        Undecodable bytes come as lone surrogates.
        """
        self.taken = []
        reader = self._reader(line + "\n" for line in self._decoded(self.limit, self.most))
        try:
            fields = next(reader, None)
        except csv.Error as error:
            # The only error at the end of the data that the csv module knows.
            if "end of data" in str(error):
                return self._first(UNCLOSED) if self._stray(width) else (UNCLOSED, [])
            return self._first(UNCLOSED) if self._are_rows(width) else (BROKEN, [])
        except _TooLong:
            if len(self.taken) == 1 or self._ends(width):
                return TOO_LONG, []
            return self._first(UNCLOSED) if width != 1 or self._stray(width) else (UNCLOSED, [])
        except _Unreadable as error:
            return self._first(UNCLOSED) if self._are_rows(width, 1) else (str(error), [])
        if fields and width is not None and len(fields) != width:
            return self._first(UNCLOSED) if self._are_rows(width, 1) else (WIDTH, [])
        self.quoted |= bool(self.taken) and self.taken[0].data.startswith(b'"')
        return ("end", []) if fields is None else ("ok", fields)

    def _reader(self, rows: Iterable[str]) -> Iterator[list[str]]:
        return csv.reader(rows, delimiter=self.delimiter, strict=True)

    def _decoded(self, size: int, count: int) -> Iterator[str]:
        """Lines, up to so many bytes and so many."""
        while line := self.next():
            self.taken.append(line)
            size -= line.size
            if line.error:
                raise _Unreadable(line.error)
            tired = len(self.taken) > 1 and self.back > 2 * self.read + PATIENCE
            if size < 0 or tired or len(self.taken) > count or len(line.data) > self.limit:
                raise _TooLong
            yield line.data.decode("utf-8", "surrogateescape")

    def _ends(self, width: int | None) -> bool:
        """Whether what was taken is the beginning of a row, though one that is too long: its end is
        taken, too. Only what parts its fields is kept of its texts."""
        self._give_back(0)
        plain = re.compile(f'[^"\r{re.escape(self.delimiter)}]+')
        lines = self._decoded(PATIENCE, self.most + 10 * PAGE)
        try:
            fields = next(self._reader(plain.sub("x", line) + "\n" for line in lines))
        except (csv.Error, _TooLong, _Unreadable):
            return False
        return width in (None, len(fields))

    def _stray(self, width: int | None) -> bool:
        """Whether the quote that opens the field without an end is none that its writer meant."""
        return not self.quoted if width == 1 else self._are_rows(width)

    def _are_rows(self, width: int | None, least: int = 0) -> bool:
        """Whether most of the lines between the first and the last are rows by themselves."""
        inner = self.taken[1:-1]
        if len(self.taken) < 2 or len(inner) < least or width is None:
            return False
        found = 0
        for line in inner:
            text = line.data.decode("utf-8", "surrogateescape")
            try:
                found += len(next(self._reader([text]))) in (0, width)
            except (csv.Error, StopIteration):
                continue
        return 2 * found >= len(inner)

    def _first(self, error: str) -> tuple[str, list[str]]:
        """The error is that of the first line; those behind it are read again."""
        self._give_back(1)
        return error, []

    def _give_back(self, keep: int) -> None:
        """All lines but so many are read again."""
        self.again.extendleft(reversed(self.taken[keep:]))
        self.back += sum(line.size for line in self.taken[keep:])
        self.taken = self.taken[:keep]
