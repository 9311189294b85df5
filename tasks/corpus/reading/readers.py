r"""Read JSON lines and plain text, and fill in records; other modules read other formats.

A reader yields a ``Record`` for everything it finds: a text with its location, or an error with its
location and raw bytes. It continues after bad bytes, keeps at most one record in memory, and counts
what it consumed in a ``ReadCounts``.

Text is taken unchanged: line ends, NUL characters and unusual spaces stay. ``byte_streams`` defines
which line ends and blank lines the readers recognise. A byte order mark is skipped. Data without a
UTF-8 form (undecodable bytes, lone surrogates such as "\ud800" in JSON) are an error; their meaning
is not guessed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from hallmark.tasks.contract import format_existing_fields_suffix
from hallmark.tasks.corpus.reading.byte_streams import (
    REMEDY_BY_FILE_ERROR,
    Line,
    ReadCounts,
    is_blank,
    read_lines_marking_damage,
    split_at_line_breaks,
)
from hallmark.tasks.corpus.reading.dialects import DRAWN_TABLE
from hallmark.tasks.corpus.reading.json_documents import (
    BROKEN_JSON,
    LIST_IN_JSON_LINES,
    OBJECTS_OVER_LINES,
    find_layout_error,
    is_json_document,
    read_json_values,
)
from hallmark.tasks.corpus.reading.metadata import (
    MAX_URL_LENGTH,
    normalise_date,
    normalise_metadata,
)
from hallmark.tasks.corpus.reading.sources import FileSource, Record, RecordFields

NOT_UTF8 = "not valid UTF-8"
NOT_OBJECT = "not a JSON object"
TOO_LONG = "longer than max_document_bytes"
MISSING_COLUMN_ENDING = " is missing"  # of the error about a column


def find_line_read_error(line: Line, max_bytes: int) -> str:
    """Return why a line cannot be parsed at all, or ""."""
    return line.error or (TOO_LONG if line.size > max_bytes else "")


def suggest_remedy(error: str) -> str:
    """Return what a user can do about an error of a record."""
    if error == TOO_LONG:
        return (
            "raise ingest.max_document_bytes, or split the document (for text files, set "
            'document_boundary = "blank_lines")'
        )
    if error == NOT_UTF8:
        return "convert the file to UTF-8, or correct the record"
    if error in REMEDY_BY_FILE_ERROR:
        return f"{REMEDY_BY_FILE_ERROR[error]}, and run again"
    if error in (LIST_IN_JSON_LINES, OBJECTS_OVER_LINES):
        return "rename the file so that its name ends in .json, or write one object per line"
    if error == DRAWN_TABLE:
        return "export the table again as CSV, for example with psql --csv"
    remedy = "correct the record, or correct 'kind' and the field names of its source"
    if error.startswith("column") and error.endswith(MISSING_COLUMN_ENDING):
        remedy += "; if a CSV or TSV file has no header, set 'column_names'"
    return remedy


def yield_error_if_file_empty(counts: ReadCounts) -> Iterator[Record]:
    """Yield an error for an empty container, because data are probably missing."""
    if counts.byte_count == 0 and counts.record_count == 0:
        counts.record_count += 1
        yield Record("whole file", 0, error="the file is empty")


class JsonlSource(FileSource, RecordFields):
    """Configure files with one JSON object per line; plain or compressed."""

    kind: Literal["jsonl"]
    suffixes = (".jsonl", ".ndjson", ".json")

    def read_file(self, path: Path, max_bytes: int, counts: ReadCounts) -> Iterator[Record]:
        return read_jsonl(path, self, max_bytes, counts)


class TextSource(FileSource):
    """Configure plain text files; plain or compressed."""

    kind: Literal["text"]
    suffixes = (".txt", ".text", ".md")
    document_boundary: Literal["file", "blank_lines"] = Field(
        "file",
        description="how documents are separated: each file is one document, or blank lines "
        "separate the documents in a file",
    )

    def read_file(self, path: Path, max_bytes: int, counts: ReadCounts) -> Iterator[Record]:
        return read_text_file(path, self, max_bytes, counts)


def read_jsonl(
    path: Path, source: JsonlSource, max_bytes: int, counts: ReadCounts
) -> Iterator[Record]:
    """Yield the documents and errors of a file with one JSON object per line.

    A line with several objects is accepted if a line break of Unicode separates them. The objects
    of a file with the ending .json may take several lines or be in a list.
    """
    is_document = is_json_document(path, counts.source_label)
    lines = (
        read_json_values(path, max_bytes, counts)
        if is_document
        else read_lines_marking_damage(path, max_bytes, counts)
    )
    for line in lines:
        # Nearly all lines begin with a brace.
        if line.data[:1] != b"{" and not line.error and is_blank(line.data):
            counts.count_skipped(line.size)
            continue
        record = _parse_json_line(line, source, max_bytes)
        is_first = counts.record_count == 0 and record.error in (NOT_OBJECT, BROKEN_JSON)
        can_be_document = is_first and not is_document
        if can_be_document and (error := find_layout_error(path, counts.source_label)):
            counts.record_count += 1
            size = line.size + sum(other.size for other in lines)
            yield Record("whole file", size, error=error, raw=line.data)
            return
        if record.error == BROKEN_JSON and len(parts := _split_at_objects(line)) > 0:
            counts.record_count += len(parts)
            yield from (_parse_json_line(part, source, max_bytes) for part in parts)
        else:
            counts.record_count += 1
            yield record
    yield from yield_error_if_file_empty(counts)


def _parse_json_line(line: Line, source: JsonlSource, max_bytes: int) -> Record:
    record = Record(
        f"line {line.number}", line.size, error=find_line_read_error(line, max_bytes), raw=line.data
    )
    if record.error:
        return record
    try:
        value = json.loads(line.data.decode("utf-8"))
    except UnicodeDecodeError as error:
        record.error, record.location = NOT_UTF8, f"{record.location}, byte {error.start + 1}"
        return record
    except json.JSONDecodeError as error:
        record.error = BROKEN_JSON
        record.location = f"{record.location}, character {error.pos + 1}"
        return record
    except ValueError:
        record.error = f"a number has more than {sys.get_int_max_str_digits():,} digits"
        return record
    except RecursionError:  # nested too deeply
        record.error = BROKEN_JSON
        return record
    if not isinstance(value, dict):
        record.error = NOT_OBJECT
        return record
    return fill_record_from_fields(record, value, source)


#: What may stand around an object: white space that JSON does not know, and marks without width.
_SEPARATORS = re.compile(r"[\s\u200b\u2060\ufeff]*+")
_LINE_BREAKS = re.compile("[\n\r\x0b\x0c\x85\u2028\u2029]")


def _split_at_objects(line: Line) -> list[Line]:
    """Split a line in which line breaks of Unicode separate JSON objects.

    Returns:
        A line for each object, without the white space around it, which counts in its size; none if
        anything else is in the line, or if it is not valid UTF-8.
    """
    try:
        text = line.data.decode("utf-8")
    except UnicodeDecodeError:
        return []
    decoder, start = json.JSONDecoder(), 0
    parts: list[Line] = []
    while (begin := _SEPARATORS.match(text, start).end()) < len(text):  # type: ignore[union-attr]
        try:
            value, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            return []
        is_separated = not parts or _LINE_BREAKS.search(text, start, begin)
        if not isinstance(value, dict) or not is_separated:
            return []
        size = len(text[start:end].encode())
        parts.append(Line(line.number, text[begin:end].encode(), size))
        start = end
    if parts:
        parts[-1].size += line.size - sum(part.size for part in parts)
    return parts


def fill_record_from_fields(record: Record, fields: dict[str, Any], source: RecordFields) -> Record:
    """Fill in text, key, URL, date and metadata of a record from its fields, or set its error."""
    for name in (source.text_field, source.key_field):
        if name is not None and name not in fields:
            record.error = f"field {shorten_repr(name)} is missing"
        elif name is not None and fields[name] is None:
            record.error = f"field {shorten_repr(name)} is null"
        if record.error:
            return record
    text = fields[source.text_field]
    key = None if source.key_field is None else fields[source.key_field]
    if not isinstance(text, str):
        record.error = f"field {shorten_repr(source.text_field)} is not text"
    elif key is not None and (isinstance(key, bool) or not isinstance(key, str | int)):
        record.error = f"field {shorten_repr(source.key_field)} is neither text nor a whole number"
    elif not (is_utf8_encodable(text) and is_utf8_encodable(str(key))):
        record.error = (
            "the text or the key contains a lone surrogate, which cannot be encoded as UTF-8"
        )
    else:
        record.text, record.raw = text, b""
        record.key = None if key is None else str(key)
        # A field may be named "", like the first column of a file written by pandas.
        url_field, date_field = source.url_field, source.date_field
        fill_url_and_date(
            record,
            None if url_field is None else fields.get(url_field),
            None if date_field is None else fields.get(date_field),
        )
        if source.metadata_fields:
            fill_metadata(
                record, {name: fields.get(f) for name, f in source.metadata_fields.items()}
            )
    return record


def fill_url_and_date(record: Record, url: Any, date: Any) -> None:
    """Fill in URL and date; count those that cannot be read and leave them None."""
    if url is not None and url != "":
        if isinstance(url, str) and len(url) <= MAX_URL_LENGTH and is_utf8_encodable(url):
            record.url = url
        else:
            record.unreadable_labels += 1
    if date is not None and date != "":
        record.date = normalise_date(date)
        record.unreadable_labels += record.date is None


def fill_metadata(record: Record, fields: Mapping[str, Any]) -> None:
    """Fill in further fields; count the values that a document cannot carry."""
    metadata = normalise_metadata(fields)
    record.metadata = metadata.text_by_field or None
    record.unreadable_labels += metadata.rejected_count


def find_missing_column_error(source: RecordFields, columns: list[str]) -> str:
    """Return which needed column is missing or repeated, or ""."""
    for name in source.list_columns():
        if columns.count(name) != 1:
            return (
                f"column {shorten_repr(name)}{MISSING_COLUMN_ENDING}"
                if name not in columns
                else (f"column {shorten_repr(name)} occurs more than once")
            )
    return ""


def explain_missing_field(source: RecordFields, fields: list[str]) -> str:
    """Describe which fields exist, for an error about the first needed one that is missing."""
    missing = next((name for name in source.list_columns() if name not in fields), "")
    return format_existing_fields_suffix(missing, fields, "columns")


def is_utf8_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shorten_repr(name: str | None) -> str:
    """Quote a name in at most 60 characters."""
    quoted = repr(name)
    return quoted if len(quoted) <= 60 else f"{quoted[:57]}..."


def read_text_file(
    path: Path, source: TextSource, max_bytes: int, counts: ReadCounts
) -> Iterator[Record]:
    """Yield one document per file or per passage between blank lines.

    If blank lines separate documents, every line break of Unicode ends a line, such as a form feed
    or U+2028. In "file" mode an empty file is an empty document.
    """
    has_boundaries = source.document_boundary == "blank_lines"
    passage = _PassageBuilder(source, max_bytes)
    for whole_line in read_lines_marking_damage(path, max_bytes, counts):
        for line in split_at_line_breaks(whole_line) if has_boundaries else (whole_line,):
            if has_boundaries and not line.error and is_blank(line.data):
                counts.count_skipped(line.size)
                if passage.size_bytes or passage.error:
                    counts.record_count += 1
                    yield passage.build_record()
                passage = _PassageBuilder(source, max_bytes)
            else:
                passage.add_line(line)
                if has_boundaries and line.error and not line.next_may_be_cut:
                    counts.record_count += 1
                    yield passage.build_record()
                    passage = _PassageBuilder(source, max_bytes)
    if not has_boundaries or passage.size_bytes or passage.error:
        counts.record_count += 1
        yield passage.build_record()
    else:
        yield from yield_error_if_file_empty(counts)


def remove_last_line_break(text: str) -> str:
    """Remove the line break at the end of a text, if there is one."""
    if text.endswith("\r\n"):
        return text[:-3] if text.endswith("\r\r\n") else text[:-2]
    return text[:-1] if _LINE_BREAKS.match(text[-1:]) else text


class _PassageBuilder:
    """Collect consecutive lines; beyond max_bytes only the size is counted."""

    def __init__(self, source: TextSource, max_bytes: int) -> None:
        self.source, self.max_bytes, self.first_line = source, max_bytes, 0
        self.data, self.size_bytes, self.error = bytearray(), 0, ""

    def add_line(self, line: Line) -> None:
        if not self.first_line:
            self.first_line = line.number
        if self.size_bytes <= self.max_bytes:
            self.data += line.data
            if line.size == len(line.data) + len(line.end):
                self.data += line.end
        self.size_bytes += line.size
        self.error = self.error or line.error

    def build_record(self) -> Record:
        """Build the record of all lines; it has an error if they are too long or damaged."""
        location = (
            "whole file" if self.source.document_boundary == "file" else f"line {self.first_line}"
        )
        error = self.error or (TOO_LONG if self.size_bytes > self.max_bytes else "")
        record = Record(location, self.size_bytes, error=error, raw=bytes(self.data))
        if not error:
            decode_record_text(record)
            if self.source.document_boundary == "blank_lines":
                record.text = remove_last_line_break(record.text)
        return record


def decode_record_text(record: Record) -> None:
    """Decode the raw bytes to the text, or set an error with the first byte that is not UTF-8."""
    try:
        record.text, record.raw = record.raw.decode("utf-8"), b""
    except UnicodeDecodeError as error:
        record.error, record.location = NOT_UTF8, f"{record.location}, byte {error.start + 1}"
