"""Readers: files and data sets to records, one reader a container format.

A reader yields a ``Record`` for everything it meets: a text with its place, or an error with
its place and raw bytes. It never gives up the rest of a file at the first bad byte, holds no
more than one record in memory, and counts by itself, in a ``Meter``, what it consumed.

Text is taken as it stands: line ends, NUL characters and odd spaces stay. Lines end at \\n
only. A byte order mark is skipped. What has no UTF-8 form (undecodable bytes, lone surrogates
such as "\\ud800" in JSON) is an error, not something to guess at.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from tasks.corpus.reading.labels import LONGEST_URL, iso_date
from tasks.corpus.reading.sources import Fields, FileSource
from tasks.corpus.reading.streams import Line, Meter, lines

NOT_UTF8 = "not valid UTF-8"
TOO_LONG = "longer than max_document_bytes"


@dataclass(slots=True)
class Record:
    """One document, or one error: ``error`` is empty for a document.

    ``raw_bytes`` is what it took of its container (lines with their end; values of a column;
    compressed bytes of which nothing came). ``records`` is how many records of the container
    it stands for: more than one only for rows of columns that could not be read.
    Errors name a kind, so that they can be counted; what is special to one is in ``place``.
    """

    place: str
    raw_bytes: int
    text: str = ""
    key: str | None = None
    error: str = ""
    raw: bytes = b""
    file: str = ""  # where one input covers many files
    records: int = 1
    url: str | None = None
    date: str | None = None  # as ``iso_date`` gives it
    unread: int = 0  # URLs and dates that could not be read


def unusable(line: Line, limit: int) -> str:
    """Why a line cannot be parsed at all, if so."""
    return line.error or (TOO_LONG if line.size > limit else "")


def remedy(error: str) -> str:
    """What is to be done about an error of a record."""
    if error == TOO_LONG:
        return 'raise ingest.max_document_bytes, or split it (in text: split = "blank_lines")'
    return "correct it, or the kind and fields of its source"


def empty_file(meter: Meter) -> Iterator[Record]:
    """A container without a byte in it: something is missing, so it is told."""
    if meter.bytes == 0 and meter.rows == 0:
        meter.rows += 1
        yield Record("whole file", 0, error="the file is empty")


class JsonlSource(FileSource, Fields):
    """One JSON object a line, plain, .gz or .zst."""

    kind: Literal["jsonl"]


class TextSource(FileSource):
    """Plain text, .gz or .zst."""

    kind: Literal["text"]
    split: Literal["file", "blank_lines"] = Field(
        "file", description="a document a file, or a document wherever a blank line stands"
    )


def read_jsonl(path: Path, source: JsonlSource, limit: int, meter: Meter) -> Iterator[Record]:
    for line in lines(path, limit, meter):
        if not line.error and not line.data.strip():
            meter.skip(line.size)
            continue
        meter.rows += 1
        yield _json_record(line, source, limit)
    yield from empty_file(meter)


def _json_record(line: Line, source: JsonlSource, limit: int) -> Record:
    record = Record(f"line {line.number}", line.size, error=unusable(line, limit), raw=line.data)
    if record.error:
        return record
    try:
        value = json.loads(line.data.decode("utf-8"))
    except UnicodeDecodeError as error:
        record.error, record.place = NOT_UTF8, f"{record.place}, byte {error.start + 1}"
        return record
    except json.JSONDecodeError as error:
        record.error, record.place = "broken JSON", f"{record.place}, character {error.pos + 1}"
        return record
    except ValueError:
        record.error = f"a number of more than {sys.get_int_max_str_digits():,} digits"
        return record
    except RecursionError:  # nesting without end
        record.error = "broken JSON"
        return record
    if not isinstance(value, dict):
        record.error = "not a JSON object"
        return record
    return take(record, value, source)


def take(record: Record, value: dict[str, Any], source: Fields) -> Record:
    """Fill in text and key from the fields of a record, or the error."""
    for name in (source.text_field, source.key_field):
        if name is not None and name not in value:
            record.error = f"field {short(name)} is missing"
        elif name is not None and value[name] is None:
            record.error = f"field {short(name)} is null"
        if record.error:
            return record
    text = value[source.text_field]
    key = None if source.key_field is None else value[source.key_field]
    if not isinstance(text, str):
        record.error = f"field {short(source.text_field)} is not text"
    elif key is not None and (isinstance(key, bool) or not isinstance(key, str | int)):
        record.error = f"field {short(source.key_field)} is neither text nor a whole number"
    elif not (encodable(text) and encodable(str(key))):
        record.error = "a lone surrogate has no UTF-8 form"
    else:
        record.text, record.raw = text, b""
        record.key = None if key is None else str(key)
        # A field may be named "", as the first column of what pandas writes.
        url, date = source.url_field, source.date_field
        label(
            record,
            None if url is None else value.get(url),
            None if date is None else value.get(date),
        )
    return record


def label(record: Record, url: Any, date: Any) -> None:
    """Fill in URL and date; one that cannot be read is none, and counted."""
    if url is not None and url != "":
        if isinstance(url, str) and len(url) <= LONGEST_URL and encodable(url):
            record.url = url
        else:
            record.unread += 1
    if date is not None and date != "":
        record.date = iso_date(date)
        record.unread += record.date is None


def missing(source: Fields, columns: list[str]) -> str:
    for name in source.columns():
        if columns.count(name) != 1:
            return f"column {short(name)} is missing" if name not in columns else (
                f"column {short(name)} is there more than once"
            )  # fmt: skip
    return ""


def encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def short(name: str | None) -> str:
    text = repr(name)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_text(path: Path, source: TextSource, limit: int, meter: Meter) -> Iterator[Record]:
    """A document a file or a stretch between blank lines; an empty file is an empty document."""
    passage = _Passage(1)
    for line in lines(path, limit, meter):
        if source.split == "blank_lines" and not line.error and not line.data.strip():
            meter.skip(line.size)
            if passage.size or passage.error:
                yield passage.record(source, limit, meter)
            passage = _Passage(line.number + 1)
        else:
            passage.add(line, limit)
            if source.split == "blank_lines" and line.error and not line.cut:
                yield passage.record(source, limit, meter)
                passage = _Passage(line.number + 1)
    if source.split == "file" or passage.size or passage.error:
        yield passage.record(source, limit, meter)
    else:
        yield from empty_file(meter)


class _Passage:
    """Consecutive lines; of those behind the limit only the size is kept."""

    def __init__(self, number: int) -> None:
        self.number, self.data, self.size, self.error = number, bytearray(), 0, ""

    def add(self, line: Line, limit: int) -> None:
        if self.size <= limit:
            self.data += line.data + b"\n" * (0 < line.size - len(line.data) == 1)
        self.size += line.size
        self.error = self.error or line.error

    def record(self, source: TextSource, limit: int, meter: Meter) -> Record:
        meter.rows += 1
        place = "whole file" if source.split == "file" else f"line {self.number}"
        error = self.error or (TOO_LONG if self.size > limit else "")
        record = Record(place, self.size, error=error, raw=bytes(self.data))
        if not error:
            decode(record)
            if source.split == "blank_lines":
                record.text = record.text.removesuffix("\n")
        return record


def decode(record: Record) -> None:
    """The raw bytes become the text, or the error says where they are not UTF-8."""
    try:
        record.text, record.raw = record.raw.decode("utf-8"), b""
    except UnicodeDecodeError as error:
        record.error, record.place = NOT_UTF8, f"{record.place}, byte {error.start + 1}"
