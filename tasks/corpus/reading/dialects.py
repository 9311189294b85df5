"""Detect how delimited text is written: delimiter, quotes, escapes and line ends.

The names of the columns that a source needs decide: a dialect is possible only if the first row has
each of them once. Among possible dialects the one with the fewest bad rows at the beginning of the
file is taken. Quotes and escapes that differ from RFC 4180 must read every row and must be needed
for it, so that a stray quote in a file of the usual kind stays an error. A backslash is text unless
a quote or a delimiter is escaped with one. Some writers escape quotes and no backslashes: where a
backslash precedes something else, only those before quotes are escapes.

Quotes in TSV are text unless the beginning of the file shows that fields are within them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from hallmark.tasks.corpus.reading.byte_streams import BOM, ReadCounts, is_blank, read_blocks
from hallmark.tasks.corpus.reading.compressed_members import Damage

#: Bytes at the beginning of a file from which its dialect is detected.
HEAD_BYTES = 1 << 18

#: Delimiters in the order of preference.
DELIMITERS = (",", ";", "\t", "|", ":", "^", "~", "#", "/", "\x1f", "\x01", " ")
QUOTES = ('"', "'")

Escape = Literal["doubled", "backslash"]
ESCAPES: tuple[Escape, ...] = ("doubled", "backslash")

#: A first line such as "sep=;", which spreadsheets write and read.
_DELIMITER_LINE = re.compile(r'"?sep=([^\r\n])"?(?=[\r\n]|\Z)', re.IGNORECASE)
#: A program that writes CRLF for LF makes CR CR LF of CRLF.
_LINE_END = re.compile(r"\r\r?\n|\n|\r")
LINE_END_NAMES = {"\n": "LF", "\r\n": "CRLF", "\r\r\n": "CR CR LF", "\r": "CR"}


_QUOTED_FIELD = re.compile(r'"(?:[^"]|"")*"\r*')
#: The line between the names of the columns and the rows of a table that is drawn for readers.
_RULE_OF_COLUMN = "(?::?-{2,}:?|:-:?|-:)"
_RULE_OF_TABLE = re.compile(
    rf"[ \t]*[|+]?[ \t]*{_RULE_OF_COLUMN}(?:[ \t]*[|+ ][ \t]*{_RULE_OF_COLUMN})+[ \t]*[|+]?[ \t]*"
    rf"|[ \t]*[|+][ \t]*{_RULE_OF_COLUMN}[ \t]*[|+][ \t]*"
    # The beginning of a row whose columns are below each other.
    r"|-\[ RECORD \d+ \][-+]*|\*{5,} \d+\. row \*{5,}"
)
#: Within so many characters the line must be that shows that a table is drawn.
MAX_RULE_LENGTH = 4096
DRAWN_TABLE = "a table drawn for human readers, such as psql or mysql output or a Markdown table"


@dataclass(frozen=True)
class Dialect:
    """Describe how the rows of a file are written."""

    delimiter: str = ","
    quote: str = '"'
    """The character around a field; none if quotes are text."""
    escape: Escape = "doubled"
    """How a quote within a quoted field is written: doubled, or after a backslash."""
    escapes_only_quotes: bool = False
    """Whether two backslashes are two, because the writer escaped quotes and nothing else."""
    skips_initial_space: bool = False
    """Whether a space after the delimiter is no text."""
    line_end: str = "\n"
    has_delimiter_line: bool = False
    """Whether the first line names the delimiter, such as "sep=;"."""

    @property
    def line_separator(self) -> bytes:
        """Return the byte at which a file is split into lines."""
        return self.line_end[-1].encode()

    def make_reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        """Return a strict reader of rows."""
        return csv.reader(
            map(self._double_text_backslashes, lines) if self.escape == "backslash" else lines,
            delimiter=self.delimiter,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            # A doubled quote is accepted next to escapes: otherwise the csv module would accept
            # text after a closing quote.
            doublequote=True,
            escapechar="\\" if self.escape == "backslash" else None,
            skipinitialspace=self.skips_initial_space,
            strict=True,
        )

    def _double_text_backslashes(self, line: str) -> str:
        """Double the backslashes that escape nothing, because the csv module would drop them."""
        return self._text_backslash.sub(lambda match: match[1] or r"\\", line)

    @cached_property
    def _text_backslash(self) -> re.Pattern[str]:
        """Match an escape, which is its group 1, or a backslash that is text."""
        quote, delimiter = re.escape(self.quote), re.escape(self.delimiter)
        if self.escapes_only_quotes:
            return re.compile(rf"(\\{quote})|\\")
        return re.compile(rf"(\\(?:[\"'\\\r\n]|{delimiter}))|\\")

    def has_text_backslashes(self, text: str) -> bool:
        """Return whether a backslash of a text escapes nothing."""
        return any(not match[1] for match in self._text_backslash.finditer(text))

    def describe(self) -> str:
        """Describe the dialect in words."""
        escape = "doubled" if self.escape == "doubled" else "escaped with a backslash"
        escape += ", other backslashes are text" * self.escapes_only_quotes
        return ", ".join(
            [
                f"delimiter {format_character(self.delimiter)}",
                f"quotes {format_character(self.quote)} {escape}" if self.quote else "no quotes",
                *["spaces after delimiters skipped"] * self.skips_initial_space,
                f"line endings {LINE_END_NAMES[self.line_end]}",
                *["first line specifies the delimiter"] * self.has_delimiter_line,
            ]
        )


def format_character(character: str) -> str:
    """Return a character so that a reader can tell which one it is."""
    names = {"\t": "tab", " ": "space", '"': "'\"'"}
    return names.get(character) or repr(character)


class DelimitedSettings(Protocol):
    """The settings of a source that decide how its rows are read."""

    @property
    def delimiter(self) -> str | None:
        """Return the character between two columns; None if it is to be detected."""

    @property
    def quote(self) -> str | None:
        """Return the character around a field; None if it is to be detected."""

    @property
    def escape(self) -> Escape | None:
        """Return how quotes within quotes are written; None if it is to be detected."""

    @property
    def column_names(self) -> Sequence[str] | None:
        """Return the names of the columns; None if the first row has them."""

    def list_columns(self) -> list[str]:
        """Return the columns to read."""


class FileHead(NamedTuple):
    """Hold the beginning of a file."""

    text: str
    """Text without byte order mark; undecodable bytes are lone surrogates."""
    is_whole_file: bool


def read_head(path: Path, source_label: str = "") -> FileHead:
    """Read the beginning of a file, up to its first damage.

    Args:
        source_label: The source of the file, as in ``ReadCounts``.
    """
    data, is_whole_file = b"", True
    for block in read_blocks(path, ReadCounts(source_label=source_label)):
        if isinstance(block, Damage) or len(data) >= HEAD_BYTES:
            is_whole_file = False
            break
        data += block
    is_whole_file = is_whole_file and len(data) <= HEAD_BYTES
    text = data[:HEAD_BYTES].removeprefix(BOM).decode("utf-8", "surrogateescape")
    return FileHead(text, is_whole_file)


def detect_dialect(head: FileHead, settings: DelimitedSettings) -> Dialect | None:
    """Detect the dialect of a file; settings that are given are not detected.

    Returns:
        None if two delimiters or quotes are equally possible and give different rows. If no dialect
        has the needed columns, the first one in which all rows have the same number of fields.
    """
    delimiter_line = _DELIMITER_LINE.match(head.text)
    first_end = _LINE_END.search(head.text)
    line_end = first_end[0] if first_end else "\n"
    lines = _split_into_lines(head, line_end, skips_first=bool(delimiter_line))
    delimiters: Iterable[str] = DELIMITERS
    if settings.delimiter is not None:
        delimiters = [settings.delimiter]
    elif delimiter_line:
        delimiters = [delimiter_line[1]]
    quotes = QUOTES if settings.quote is None else (settings.quote,)
    escapes: tuple[Escape, ...] = ESCAPES if quotes[0] else ("doubled",)
    escapes = escapes if settings.escape is None else (settings.escape,)
    if settings.escape is None and "\\" not in head.text:
        escapes = ("doubled",)
    base = Dialect(
        quote=quotes[0],
        escape=escapes[0],
        line_end=line_end,
        has_delimiter_line=bool(delimiter_line),
    )
    plain_trials, possible = [], []
    for delimiter in delimiters:
        plain = _try_dialect(replace(base, delimiter=delimiter), lines, head, settings)
        plain_trials.append(plain)
        best = plain if plain.has_needed_columns else None
        for quote, escape, skips in list(product(quotes, escapes, (False, True)))[1:]:
            dialect = replace(plain.dialect, quote=quote, escape=escape, skips_initial_space=skips)
            other = _try_dialect(dialect, lines, head, settings)
            if other.extends(best or plain, plain):
                if other.is_needed(best or plain):
                    best = other
                elif best is plain and other.is_rival(plain):
                    return None
        if best is not None:
            possible.append(best)
            # With a header, delimiters that read all rows give the same ones.
            if not best.bad_row_count and settings.column_names is None:
                return best.dialect
    if not possible:
        regular = (trial for trial in plain_trials if trial.is_regular)
        return next(regular, plain_trials[0]).dialect
    possible.sort(key=lambda trial: trial.faults)
    rivals = (trial for trial in possible if trial.faults == possible[0].faults)
    is_ambiguous = any(trial.rows != possible[0].rows for trial in rivals)
    return None if is_ambiguous and settings.column_names else possible[0].dialect


def _try_dialect(
    dialect: Dialect, lines: list[str], head: FileHead, settings: DelimitedSettings
) -> _Trial:
    """Read the beginning of a file in a dialect; find out which backslashes are escapes."""
    trial = _Trial(dialect, lines, head.is_whole_file, settings)
    if (
        dialect.escape == "backslash"
        and dialect.quote
        and dialect.has_text_backslashes("".join(lines))
    ):
        other_dialect = replace(dialect, escapes_only_quotes=True)
        other_trial = _Trial(other_dialect, lines, head.is_whole_file, settings)
        if other_trial.bad_row_count <= trial.bad_row_count:
            return other_trial
    return trial


def detect_tab_dialect(head: FileHead, settings: DelimitedSettings) -> Dialect:
    """Detect the dialect of tab-separated text: whether its quotes are text.

    They are not if more rows can be read with quotes around fields than without, or if fields that
    begin with a quote also end with one and some contain doubled quotes.
    """
    first_end = _LINE_END.search(head.text)
    line_end = first_end[0] if first_end else "\n"
    lines = _split_into_lines(head, line_end, skips_first=False)
    plain_dialect = Dialect("\t", quote="", line_end=line_end)
    quoted_dialect = replace(plain_dialect, quote='"')
    if settings.quote is not None:
        return replace(plain_dialect, quote=settings.quote)
    if not re.search(r'(?:\A|[\t\r\n])"', head.text):
        return plain_dialect
    plain = _Trial(plain_dialect, lines, head.is_whole_file, settings)
    quoted = _Trial(quoted_dialect, lines, head.is_whole_file, settings)
    if not quoted.has_needed_columns:
        return plain_dialect
    reads_more = not plain.has_needed_columns or quoted.bad_row_count < plain.bad_row_count
    quoted_fields = [field for row in plain.rows for field in row or [] if field.startswith('"')]
    shows_quotes = (
        not quoted.bad_row_count
        and all(_QUOTED_FIELD.fullmatch(field) for field in quoted_fields)
        and any('""' in field[1:-1] for field in quoted_fields)
    )
    return quoted_dialect if reads_more or shows_quotes else plain_dialect


def is_drawn_table(head: FileHead) -> bool:
    """Return whether a text begins with a table for readers, which psql or Markdown draws."""
    lines = [line for line in head.text[:MAX_RULE_LENGTH].splitlines() if line.strip()]
    return any(_RULE_OF_TABLE.fullmatch(line) for line in lines[:2])


def read_header(head: FileHead, dialect: Dialect) -> list[str]:
    """Read the first row of a file; it is empty if the row cannot be read."""
    lines = _split_into_lines(head, dialect.line_end, skips_first=dialect.has_delimiter_line)
    return next((row for row in _iter_rows(dialect, lines, head.is_whole_file)), None) or []


def _split_into_lines(head: FileHead, line_end: str, *, skips_first: bool) -> list[str]:
    """Split text into lines with their separators; the last one only if it is complete."""
    separator = line_end[-1]
    *lines, last = head.text.split(separator)
    lines += [last] * (head.is_whole_file and last != "")
    return [line + separator for line in lines[skips_first:]]


def _iter_rows(
    dialect: Dialect, lines: list[str], is_whole_file: bool
) -> Iterator[list[str] | None]:
    """Yield the rows that are not blank; None for a row that cannot be read."""
    csv.field_size_limit(max(csv.field_size_limit(), HEAD_BYTES + 1))
    reader = dialect.make_reader(lines)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # The last row may continue after the beginning.
            if "end of data" not in str(error) or is_whole_file:
                yield None
            continue
        if row and (len(row) > 1 or not is_blank(row[0].encode("utf-8", "surrogateescape"))):
            yield row


class _Trial:
    """Read the beginning of a file in a dialect."""

    def __init__(
        self,
        dialect: Dialect,
        lines: list[str],
        is_whole_file: bool,
        settings: DelimitedSettings,
    ) -> None:
        self.dialect, self.lines, self.is_whole_file = dialect, lines, is_whole_file
        self.settings = settings

    @cached_property
    def has_needed_columns(self) -> bool:
        """Return whether the first row has each needed column once, or as many as are named."""
        first_row = next(_iter_rows(self.dialect, self.lines, self.is_whole_file), None) or []
        if self.settings.column_names is not None:
            return len(first_row) == len(self.settings.column_names)
        return all(first_row.count(name) == 1 for name in self.settings.list_columns())

    @cached_property
    def rows(self) -> list[list[str] | None]:
        """The rows of the beginning that are not blank; None for a row that cannot be read."""
        return list(_iter_rows(self.dialect, self.lines, self.is_whole_file))

    @cached_property
    def bad_row_count(self) -> int:
        """Return how many rows cannot be read or differ from the first one in their length."""
        names = self.settings.column_names
        field_count = len(names if names is not None else self.rows[0] or []) if self.rows else 0
        return sum(row is None or len(row) != field_count for row in self.rows)

    @cached_property
    def faults(self) -> tuple[int, bool, int]:
        """Return what speaks against the dialect: a smaller tuple is better.

        Bad rows, a delimiter that is hardly used, and quotes in the values, which a delimiter
        within quotes leaves there.
        """
        quote_count = sum(
            value.count(self.dialect.quote)
            for row in self.rows
            for value in row or []
            if self.dialect.quote
        )
        return (self.bad_row_count, self.dialect.delimiter not in DELIMITERS[:4], quote_count)

    @property
    def is_regular(self) -> bool:
        """Return whether all rows have the same number of fields, and more than one."""
        field_counts = {len(row or []) for row in self.rows}
        return len(field_counts) == 1 and field_counts.pop() > 1

    def extends(self, other: _Trial, plain: _Trial) -> bool:
        """Return whether this dialect differs from the plain one in all that another does."""
        return all(
            getattr(self.dialect, name) == getattr(other.dialect, name)
            or getattr(other.dialect, name) == getattr(plain.dialect, name)
            for name in ("quote", "escape", "skips_initial_space")
        )

    def is_needed(self, plain: _Trial) -> bool:
        """Return whether this dialect must be taken instead of the plain one.

        It must have all columns and read all rows. Where the plain dialect does so too, a value
        must show that its rows are wrong.
        """
        signs = [
            *[self._shows_escapes] * (self.dialect.escape != plain.dialect.escape),
            *[self._shows_quotes] * (self.dialect.quote != plain.dialect.quote),
            *[self._shows_spaces]
            * (self.dialect.skips_initial_space and not plain.dialect.skips_initial_space),
        ]
        is_plain_good = plain.has_needed_columns and not plain.bad_row_count
        return (
            all(shows("".join(self.lines), is_plain_good, plain) for shows in signs)
            and self.has_needed_columns
            and not self.bad_row_count
        )

    def is_rival(self, plain: _Trial) -> bool:
        """Return whether other quotes read all rows too, and give rows that need these quotes."""
        if self.dialect.quote == plain.dialect.quote or plain.bad_row_count:
            return False
        if not self._shows_quotes("".join(self.lines), is_plain_good=False, plain=plain):
            return False
        if not self.has_needed_columns or self.bad_row_count:
            return False
        special = (self.dialect.delimiter, self.dialect.quote, "\n", "\r")
        return len(self.rows) != len(plain.rows) or any(
            value != plain_value and any(character in value for character in special)
            for row, plain_row in zip(self.rows, plain.rows, strict=True)
            for value, plain_value in zip(row or [], plain_row or [], strict=False)
        )

    def _shows_escapes(self, text: str, is_plain_good: bool, plain: _Trial) -> bool:
        """Return whether quotes are escaped, or delimiters and nothing that needs no escape."""
        delimiter = re.escape(self.dialect.delimiter)
        escapes = re.findall(rf"\\(?:([\"'])|({delimiter})|[\\\r\n]|(.|\Z))", text)
        escapes_quotes, escapes_delimiters, escapes_others = (
            any(escape[group] for escape in escapes) for group in range(3)
        )
        if not escapes_quotes and (escapes_others or not escapes_delimiters):
            return False
        if not is_plain_good:
            return True
        if escapes_others:
            return False
        # A field without quotes that contains a quote; otherwise the quote would be doubled.
        field_start, field_end = rf"(?:\A|[\r\n]|{delimiter})", rf"(?=\Z|[\r\n]|{delimiter})"
        escaped_quote = f"\\{self.dialect.quote}"
        values = {value for row in plain.rows for value in row or [] if escaped_quote in value}
        return any(
            re.search(f"{field_start}{re.escape(value)}{field_end}", text) for value in values
        )

    def _shows_quotes(self, text: str, is_plain_good: bool, plain: _Trial) -> bool:
        """Return whether fields are within quotes of this kind, and the plain dialect fails."""
        delimiter = re.escape(self.dialect.delimiter)
        if not re.search(rf"(?:\A|[\r\n]|{delimiter}) *{self.dialect.quote}", text):
            return False
        return not is_plain_good

    def _shows_spaces(self, text: str, is_plain_good: bool, plain: _Trial) -> bool:
        """Return whether spaces are between delimiters and quotes, or before column names."""
        delimiter, quote = map(re.escape, (self.dialect.delimiter, self.dialect.quote))
        if not plain.has_needed_columns:
            return f"{self.dialect.delimiter} " in text
        return bool(quote and re.search(f"{delimiter} +{quote}", text)) and (
            not is_plain_good
            or any(
                re.fullmatch(f" +{quote}(?:[^{quote}]|{quote}{quote})*{quote}", value)
                for row in plain.rows
                for value in row or []
            )
        )
