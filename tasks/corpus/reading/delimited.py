"""Read rows of delimited text: CSV, and TSV, whose quotes may be text."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from hallmark.tasks.corpus.reading.byte_streams import (
    Line,
    ReadCounts,
    is_blank,
    read_blocks,
    read_lines_marking_damage,
)
from hallmark.tasks.corpus.reading.dialects import (
    DRAWN_TABLE,
    Dialect,
    Escape,
    detect_dialect,
    detect_tab_dialect,
    is_drawn_table,
    read_head,
)
from hallmark.tasks.corpus.reading.readers import (
    NOT_UTF8,
    TOO_LONG,
    fill_record_from_fields,
    find_line_read_error,
    find_missing_column_error,
    is_utf8_encodable,
    yield_error_if_file_empty,
)
from hallmark.tasks.corpus.reading.sources import FileSource, Record, RecordFields

UNCLOSED_QUOTE = "a quote is not closed"
BROKEN_CSV = "broken CSV"
AMBIGUOUS_FORMAT = (
    "the delimiter or the quotes cannot be detected: set 'delimiter' and 'quote' in the source"
)
WRONG_FIELD_COUNT = "the row and the header have different numbers of fields"
# bytes of any file that may be read again, and bytes in which to search for the end of a row that
# is too long
MAX_REREAD_BYTES = 64 << 20
# lines that any row may have; a row that is too long may have ten times as many more
BASE_ROW_LINES = 1000
# lines that a row with line ends in fields without quotes may have
MAX_UNQUOTED_LINES = 100
#: Characters for line ends that are text. No decoded text contains them.
_TEXT_LINE_ENDS = str.maketrans("\r\n", "\udc0d\udc0a")
_LINE_ENDS_FROM_MARKS = str.maketrans("\udc0d\udc0a", "\r\n")
# least average bytes per line of a row: each line in memory costs 180 bytes
MIN_LINE_BYTES = 16


class DelimitedFields(RecordFields):
    """Configure the columns of delimited text."""

    column_names: list[str] | None = Field(
        None,
        min_length=1,
        description="column names, in order, for files without a header (the first row is then a "
        "document); if not set, the first row is read as the header",
    )

    @model_validator(mode="after")
    def _check_column_names(self) -> Self:
        if self.column_names is not None:
            for name in self.list_columns():
                if self.column_names.count(name) != 1:
                    raise ValueError(
                        f"'column_names' must contain the field {name!r} exactly once; correct "
                        "'column_names' or the setting that specifies the field"
                    )
        return self


class CsvSource(FileSource, DelimitedFields):
    """Configure delimited text, such as CSV; plain or compressed.

    What is not set is detected in each file.
    """

    kind: Literal["csv"]
    suffixes = (".csv",)
    delimiter: str | None = Field(
        None,
        min_length=1,
        max_length=1,
        description="character that separates the columns; detected if not set",
    )
    quote: Literal['"', "'", ""] | None = Field(
        None,
        description="quote character around fields that may contain delimiters and line breaks; "
        "an empty string if quotes are ordinary text; detected if not set",
    )
    escape: Escape | None = Field(
        None,
        description="how a quote within a quoted field is written: doubled, or preceded by a "
        "backslash; detected if not set",
    )

    def read_file(self, path: Path, max_bytes: int, counts: ReadCounts) -> Iterator[Record]:
        return read_csv(path, self, max_bytes, counts)


class TsvSource(FileSource, DelimitedFields):
    """Configure tab-separated fields; plain or compressed."""

    kind: Literal["tsv"]
    suffixes = (".tsv", ".tab")
    quote: Literal['"', ""] | None = Field(
        None,
        description="quote character around fields that may contain tabs and line breaks; an "
        "empty string if quotes are ordinary text; detected if not set",
    )

    @property
    def delimiter(self) -> str:
        return "\t"

    @property
    def escape(self) -> Escape:
        return "doubled"

    def read_file(self, path: Path, max_bytes: int, counts: ReadCounts) -> Iterator[Record]:
        return read_tsv(path, self, max_bytes, counts)


def read_csv(path: Path, source: CsvSource, max_bytes: int, counts: ReadCounts) -> Iterator[Record]:
    """Yield the rows of delimited text; quoted fields may span many lines.

    A stray quote opens a field that contains everything up to the next quote. If the result is not
    a row, and the lines in between are rows by themselves, only the line with the stray quote is an
    error, and reading continues at the next line. If the result is a row (the next quote ends a
    field and the number of fields is right), the stray quote cannot be detected; if that row is
    longer than the limit, it is one error up to the limit. In a file of one column every line would
    be a row: there, if earlier rows began with quotes, everything read for a row without an end is
    one error.
    """
    head = read_head(path, counts.source_label)
    dialect = detect_dialect(head, source)
    is_drawn = source.delimiter is None and is_drawn_table(head)
    if dialect is None or is_drawn:
        for block in read_blocks(path, counts):
            del block
        counts.record_count += 1
        error = DRAWN_TABLE if is_drawn else AMBIGUOUS_FORMAT
        yield Record("whole file", counts.byte_count, error=error)
        return
    yield from _read_quoted_rows(path, source, dialect, max_bytes, counts)


def _read_quoted_rows(
    path: Path,
    source: CsvSource | TsvSource,
    dialect: Dialect,
    max_bytes: int,
    counts: ReadCounts,
) -> Iterator[Record]:
    csv.field_size_limit(max(csv.field_size_limit(), max_bytes + 1))
    lines = read_lines_marking_damage(path, max_bytes, counts, dialect.line_separator)
    if dialect.has_delimiter_line:
        counts.count_skipped(next(lines).size)
    row_reader = _CsvRowReader(lines, max_bytes, dialect)
    header = source.column_names
    counts.file_format = f"{dialect.describe()}, {describe_header(header)}"
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
            if record.error:  # without a header no row can be interpreted
                while line := row_reader.read_next_line():
                    record.raw_bytes += line.size
                counts.record_count += 1
                yield record
                return
            counts.count_skipped(row_reader.row_bytes)
            continue
        if is_repeated_header(fields, header):
            counts.count_skipped(row_reader.row_bytes)
            continue
        counts.record_count += 1
        if not record.error:
            fill_record_from_fields(record, dict(zip(header, fields, strict=True)), source)
        yield record
    yield from yield_error_if_file_empty(counts)


def is_repeated_header(fields: list[str], header: list[str]) -> bool:
    """Return whether a row repeats the header, as in files that were concatenated.

    In a file of one column it may be a document.
    """
    return len(fields) > 1 and fields[1:] == header[1:] and fields[0].lstrip("\ufeff") == header[0]


def describe_header(column_names: list[str] | None) -> str:
    """Describe whether a file begins with the names of its columns."""
    return "with header" if column_names is None else "without header"


def read_tsv(path: Path, source: TsvSource, max_bytes: int, counts: ReadCounts) -> Iterator[Record]:
    """Yield the rows of tab-separated text; unless fields are in quotes, each line is a row."""
    dialect = detect_tab_dialect(read_head(path, counts.source_label), source)
    if dialect.quote:
        yield from _read_quoted_rows(path, source, dialect, max_bytes, counts)
        return
    header = source.column_names
    source_lines = read_lines_marking_damage(path, max_bytes, counts)
    for line in source_lines:
        if not line.error and b"\t" not in line.data and is_blank(line.data):
            counts.count_skipped(line.size)
            continue
        record = Record(f"line {line.number}", line.size, raw=line.data)
        record.error = find_line_read_error(line, max_bytes)
        fields: list[str] = []
        if not counts.file_format:
            counts.file_format = f"{dialect.describe()}, {describe_header(header)}"
        if not record.error:
            try:
                fields = line.data.rstrip(b"\r").decode().split("\t")
            except UnicodeDecodeError as error:
                record.error = NOT_UTF8
                record.location = f"{record.location}, byte {error.start + 1}"
        if header is None:
            header = fields
            record.error = record.error or find_missing_column_error(source, header)
            if not record.error:
                counts.count_skipped(line.size)
                continue
            # Without a header no row can be interpreted.
            record.raw_bytes += sum(line.size for line in source_lines)
        elif not record.error and len(fields) != len(header):
            record.error = WRONG_FIELD_COUNT
        elif is_repeated_header(fields, header):
            counts.count_skipped(line.size)
            continue
        counts.record_count += 1
        if not record.error:
            fill_record_from_fields(record, dict(zip(header, fields, strict=True)), source)
        yield record
    yield from yield_error_if_file_empty(counts)


class _DamagedRow(Exception):
    """Signal that bytes of a row are missing; the message is the error to record."""


class _RowTooLong(Exception):
    """Signal that a row exceeded a limit while it was read."""


class CsvRow(NamedTuple):
    """Hold a row as it was read."""

    status: str
    """Status of the row: "ok", "end" after the last row, or the error of the row."""
    fields: list[str]
    """Fields of the row; empty unless the status is "ok"."""


class _CsvRowReader:
    """Pass lines to a csv reader and remember which of them formed the last row.

    Lines are pushed back and read again until more than twice the file's bytes were read again;
    from then on a row is not searched for beyond the end of its line. So time is linear.
    """

    def __init__(self, source_lines: Iterator[Line], max_bytes: int, dialect: Dialect) -> None:
        self.source_lines, self.max_bytes, self.dialect = source_lines, max_bytes, dialect
        self.line_end = dialect.line_separator.decode()
        self.has_two_line_ends = dialect.line_end in ("\r\n", "\r\r\n")
        self.pushed_back: deque[Line] = deque()  # from a row without an end
        self.row_lines: list[Line] = []
        self.read_bytes = self.reread_bytes = 0
        self.max_lines = max_bytes // MIN_LINE_BYTES + BASE_ROW_LINES  # of a row
        # set if a row began with a quote: its writer would have closed other quotes too
        self.has_quoted_rows = False

    @property
    def first_line_number(self) -> int:
        return self.row_lines[0].number

    @property
    def row_bytes(self) -> int:
        return sum(line.size for line in self.row_lines)

    def join_row_lines(self) -> bytes:
        """Join the lines of the row, cut at max_bytes + 1 bytes."""
        separator = self.dialect.line_separator
        return separator.join(line.data for line in self.row_lines)[: self.max_bytes + 1]

    def read_next_line(self) -> Line | None:
        if self.pushed_back:
            return self.pushed_back.popleft()
        line = next(self.source_lines, None)
        self.read_bytes += line.size if line else 0
        return line

    def read_row(self, field_count: int | None) -> CsvRow:
        """Read the next row. Undecodable bytes become lone surrogates.

        Args:
            field_count: The number of fields that the row must have, or None if unknown.
        """
        self.row_lines = []
        reader = self.dialect.make_reader(
            line + self.line_end for line in self._decode_lines(self.max_bytes, self.max_lines)
        )
        try:
            fields = next(reader, None)
        except csv.Error as error:
            # The csv module's only error at the end of the data.
            if "end of data" in str(error):
                return (
                    self._reject_first_line(UNCLOSED_QUOTE)
                    if self._has_stray_quote(field_count)
                    else CsvRow(UNCLOSED_QUOTE, [])
                )
            if row := self._read_row_with_text_line_ends(field_count):
                return row
            return (
                self._reject_first_line(UNCLOSED_QUOTE)
                if self._are_most_inner_lines_rows(field_count)
                else CsvRow(BROKEN_CSV, [])
            )
        except _RowTooLong:
            if len(self.row_lines) == 1 or self._is_overlong_row(field_count):
                return CsvRow(TOO_LONG, [])
            return (
                self._reject_first_line(UNCLOSED_QUOTE)
                if field_count != 1 or self._has_stray_quote(field_count)
                else CsvRow(UNCLOSED_QUOTE, [])
            )
        except _DamagedRow as error:
            return (
                self._reject_first_line(UNCLOSED_QUOTE)
                if self._are_most_inner_lines_rows(field_count, 1)
                else CsvRow(str(error), [])
            )
        if fields and len(fields) == len(self.row_lines) == 1 and is_blank(self.row_lines[0].data):
            return CsvRow("ok", [])
        has_wrong_count = bool(fields and field_count is not None and len(fields) != field_count)
        is_cut = (
            self.has_two_line_ends
            and self._ends_in_other_line_end()
            and (has_wrong_count or not self._is_next_line_a_row(field_count))
        )
        if is_cut and (row := self._read_row_with_text_line_ends(field_count)):
            return row
        if has_wrong_count:
            return (
                self._reject_first_line(UNCLOSED_QUOTE)
                if self._are_most_inner_lines_rows(field_count, 1)
                else CsvRow(WRONG_FIELD_COUNT, [])
            )
        self.has_quoted_rows |= (
            bool(self.row_lines)
            and self.dialect.quote != ""
            and self.row_lines[0].data.startswith(self.dialect.quote.encode())
        )
        return CsvRow("end", []) if fields is None else CsvRow("ok", fields)

    def _decode_lines(self, max_bytes: int, max_lines: int) -> Iterator[str]:
        """Yield lines up to these limits; raise _RowTooLong or _DamagedRow."""
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

    def _ends_in_other_line_end(self) -> bool:
        """Return whether the row of a file of CRLF ends in LF."""
        if not self.row_lines:
            return False
        return self.row_lines[-1].end == b"\n" and not self.row_lines[-1].data.endswith(b"\r")

    def _is_next_line_a_row(self, field_count: int | None) -> bool:
        """Return whether the next line that is not blank may be a row, or begin one."""
        lines: list[Line] = []
        while len(lines) < MAX_UNQUOTED_LINES and (line := self.read_next_line()):
            lines.append(line)
            if not is_blank(line.data):
                break
        self.pushed_back.extendleft(reversed(lines))
        if not lines or is_blank(lines[-1].data):
            return True
        text = lines[-1].data[: self.max_bytes].decode("utf-8", "surrogateescape")
        try:
            return len(next(self.dialect.make_reader([text + self.line_end]))) == field_count
        except csv.Error:
            return True

    def _read_row_with_text_line_ends(self, field_count: int | None) -> CsvRow | None:
        """Read the lines again as a row in which fields without quotes contain line ends.

        In a file of CRLF, LF and CR are text; in another file, the other one of CR and LF.

        Returns:
            None if this does not give a row; then the lines of the row stay as they were.
        """
        # Half of the bytes that may be read again, so that the others remain for rows in quotes.
        reread_too_much = self.reread_bytes > self.read_bytes + MAX_REREAD_BYTES // 2
        if field_count is None or field_count == 1 or reread_too_much:
            return None
        line_count, byte_count = len(self.row_lines), self.row_bytes
        while (
            self.has_two_line_ends
            and self._ends_in_other_line_end()
            and (line := self.read_next_line())
        ):
            self.row_lines.append(line)
            byte_count += line.size
            if (
                line.error
                or byte_count > self.max_bytes
                or len(self.row_lines) > MAX_UNQUOTED_LINES
            ):
                self._push_back_lines_after(line_count)
                return None
        text = self.join_row_lines().decode("utf-8", "surrogateescape")
        content = text.rstrip("\r")
        row_end = text[len(content) :] + self.line_end
        marked_text = content.translate(_TEXT_LINE_ENDS)
        try:
            fields = next(self.dialect.make_reader([marked_text + row_end]))
        except csv.Error:
            fields = []
        if len(fields) != field_count:
            self._push_back_lines_after(line_count)
            return None
        return CsvRow("ok", [field.translate(_LINE_ENDS_FROM_MARKS) for field in fields])

    def _is_overlong_row(self, field_count: int | None) -> bool:
        """Return whether the lines begin a row that is too long, and read it to its end.

        Only quotes, delimiters and line ends are kept of its texts.
        """
        self._push_back_lines_after(0)
        special = re.escape(f"{self.dialect.quote}{self.dialect.delimiter}\\\r")
        plain_text = re.compile(f"[^{special}]+")
        lines = self._decode_lines(MAX_REREAD_BYTES, self.max_lines + 10 * BASE_ROW_LINES)
        try:
            fields = next(
                self.dialect.make_reader(
                    plain_text.sub("x", line) + self.line_end for line in lines
                )
            )
        except (csv.Error, _RowTooLong, _DamagedRow):
            return False
        return field_count in (None, len(fields))

    def _has_stray_quote(self, field_count: int | None) -> bool:
        """Return whether the quote that opens the endless field is probably stray."""
        return (
            not self.has_quoted_rows
            if field_count == 1
            else self._are_most_inner_lines_rows(field_count)
        )

    def _are_most_inner_lines_rows(self, field_count: int | None, min_lines: int = 0) -> bool:
        """Return whether most lines between the first and the last are rows by themselves."""
        inner_lines = self.row_lines[1:-1]
        if len(self.row_lines) < 2 or len(inner_lines) < min_lines or field_count is None:
            return False
        row_count = 0
        for line in inner_lines:
            text = line.data.decode("utf-8", "surrogateescape")
            try:
                row_count += len(next(self.dialect.make_reader([text]))) in (0, field_count)
            except (csv.Error, StopIteration):
                continue
        return 2 * row_count >= len(inner_lines)

    def _reject_first_line(self, error: str) -> CsvRow:
        """Return the error for the first line, and push back the others."""
        self._push_back_lines_after(1)
        return CsvRow(error, [])

    def _push_back_lines_after(self, kept_line_count: int) -> None:
        """Keep this many lines, and read the others again."""
        self.pushed_back.extendleft(reversed(self.row_lines[kept_line_count:]))
        self.reread_bytes += sum(line.size for line in self.row_lines[kept_line_count:])
        self.row_lines = self.row_lines[:kept_line_count]
