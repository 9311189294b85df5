"""Read WARC and WET archives record by record, and convert their pages to text.

Documents are ``response`` records of status 200 that hold HTML or plain text, and ``conversion``
records (WET). All other records are counted as skipped, by kind.

A record ends where its Content-Length says, if two line ends follow, the next record, or the end of
the file. If they do not, or the record is damaged or too long, the next record is searched for. If
every record so far began a member of a compressed file, the next one is at the start of a member.
Otherwise it may also follow an empty line, or one line end if a record before it did. So a false
length costs its record, and the records up to the next such place. Empty lines before a record are
skipped.

Known limits: after a damaged or too long record of an uncompressed file, a record that was archived
inside it is taken for a record of the file. Members that were compressed with a dictionary (some
.warc.zst files) count as damage.

Source: ISO 28500:2017, the WARC file format.
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from hallmark.tasks.corpus.reading.byte_streams import BLOCK_BYTES, BOM, ReadCounts, read_blocks
from hallmark.tasks.corpus.reading.compressed_members import Damage
from hallmark.tasks.corpus.reading.http_bodies import (
    BodyError,
    BodyTooLongError,
    decode_http_body,
)
from hallmark.tasks.corpus.reading.readers import (
    TOO_LONG,
    fill_url_and_date,
    yield_error_if_file_empty,
)
from hallmark.tasks.corpus.reading.sources import FileSource, Record
from hallmark.tasks.corpus.reading.web_pages import (
    NotTextError,
    PageError,
    decode_page,
    decode_utf8,
    extract_page_text,
)

if TYPE_CHECKING:
    from fastwarc.warc import WarcRecord

NO_HEADER = "a WARC header is missing at the beginning of a record"
NO_LENGTH = "the WARC header does not have exactly one valid Content-Length"
FALSE_LENGTH = "the record's length differs from its Content-Length"
NOT_WARC = "the WARC header has an unknown version or is longer than 32 KiB"  # from fastwarc
NOT_TEXT = "response that is not text"
NOT_HTTP = "the HTTP response cannot be parsed or decompressed"
# bytes that a record's header may take, and that are kept of a bad record
MAX_HEADER_BYTES = 1 << 16

_HEADER_END = re.compile(rb"\r?\n\r?\n")
_CONTENT_LENGTH = re.compile(rb"(?im)^content-length[ \t]*+:([^\n]*+)")
#: Fields that fastwarc knows only in this spelling; the format allows any case.
_STANDARD_FIELD_NAMES = {
    name.lower(): name for name in (b"Content-Length", b"Content-Type", b"WARC-Type")
}
_FIELD_NAME = re.compile(rb"(?im)^(content-length|content-type|warc-type)[ \t]*+:")
_RECORD_START = re.compile(rb"\r?\n\r?\n(?=WARC/\d\.\d\d?\r?\n)")
_RECORD_START_IN_LINES = re.compile(rb"\n(?=WARC/\d\.\d\d?\r?\n)")
_RECORD_END = re.compile(rb"(\r\n\r\n|\n\n)[\r\n]{0,60}")
_SHORT_RECORD_END = re.compile(rb"(?:\r?\n)?(?=WARC/\d\.\d\d?\r?\n)")
_BLANK_LINES = re.compile(rb"[\r\n]*+")
_HTTP_START = re.compile(rb"HTTP/\d")


class WarcSource(FileSource):
    """Configure web archives (WARC) or their text (WET); plain, .gz or .zst."""

    kind: Literal["warc"]
    suffixes = (".warc", ".wet")
    key_field: str | None = Field(
        None,
        description="name of the WARC header that contains a permanent document key, such as "
        "WARC-Record-ID",
    )
    main_content: bool = Field(
        True,
        description="whether to remove navigation, footers, captions and similar parts of HTML "
        "pages, as recognised by a heuristic; a page without other text is kept whole",
    )

    def read_file(self, path: Path, max_bytes: int, counts: ReadCounts) -> Iterator[Record]:
        return read_warc(path, self, max_bytes, counts)


def read_warc(
    path: Path, source: WarcSource, max_bytes: int, counts: ReadCounts
) -> Iterator[Record]:
    """Yield the pages of an archive.

    ``raw_bytes`` counts whole records, including headers and line ends.
    """
    for framed_record in _RecordFramer(path, max_bytes, counts):
        record = Record(
            f"record {framed_record.number}",
            framed_record.size,
            error=framed_record.error,
            raw=framed_record.data,
        )
        if framed_record.error in ("", TOO_LONG):
            skip_kind = _fill_record_and_get_skip_kind(record, source, max_bytes)
            if skip_kind:
                counts.count_skipped(framed_record.size, skip_kind, 1)
                continue
        counts.record_count += 1
        yield record
    yield from yield_error_if_file_empty(counts)


# Pages -------------------------------------------------------------------------------------------


def _fill_record_and_get_skip_kind(record: Record, source: WarcSource, max_bytes: int) -> str:
    """Fill in the text of a record, or its error.

    Returns:
        The kind of the record if it is not a document, otherwise "".
    """
    from fastwarc.warc import WarcRecordType

    try:
        warc_record = _parse_warc_record(record.raw)
        warc_record.is_http = warc_record.is_http or _begins_with_http(record.raw)
        if warc_record.record_type == WarcRecordType.response:
            skip_kind = _parse_http_and_get_skip_kind(warc_record)
        else:
            is_conversion = warc_record.record_type == WarcRecordType.conversion
            skip_kind = "" if is_conversion else f"{warc_record.record_type} record"
        if skip_kind or record.error:
            return skip_kind
        headers = {name.lower(): value for name, value in warc_record.headers.items()}
        record.is_truncated = bool(headers.get("warc-truncated"))
        _fill_text(record, warc_record, source, max_bytes)
        _fill_key_url_and_date(record, headers, source)
    except NotTextError:
        return NOT_TEXT
    except PageError as error:
        record.error = str(error)
    except BodyTooLongError:
        record.error = TOO_LONG
    except (BodyError, OSError):
        record.error = NOT_HTTP
    if record.error:
        record.text, record.is_truncated, record.lost_characters = "", False, 0
        record.is_whole_page = False
    else:
        record.raw = b""
    return ""


def _parse_warc_record(raw_record: bytes) -> WarcRecord:
    """Parse a record without its HTTP headers.

    Raises:
        PageError: if it cannot be parsed.
    """
    from fastwarc.warc import ArchiveIterator

    records = ArchiveIterator(
        io.BytesIO(_standardise_field_names(raw_record)), parse_http=False, quirks_mode=True
    )
    try:
        return next(iter(records))
    except (OSError, StopIteration) as error:
        raise PageError(NOT_WARC) from error


def _begins_with_http(raw_record: bytes) -> bool:
    """Return whether the content of a record begins like an HTTP response.

    Some tools write no Content-Type of the record, or a wrong one.
    """
    header_end = _HEADER_END.search(raw_record, 0, MAX_HEADER_BYTES)
    return header_end is not None and bool(_HTTP_START.match(raw_record, header_end.end()))


def _standardise_field_names(raw_record: bytes) -> bytes:
    """Return the record with the standard spelling of its header's field names."""
    header_end = _HEADER_END.search(raw_record, 0, MAX_HEADER_BYTES)
    header = raw_record[: header_end.start() if header_end else MAX_HEADER_BYTES]
    standard_header = _FIELD_NAME.sub(
        lambda match: _STANDARD_FIELD_NAMES[match[1].lower()] + b":", header
    )
    return raw_record if standard_header == header else standard_header + raw_record[len(header) :]


def _parse_http_and_get_skip_kind(warc_record: WarcRecord) -> str:
    """Parse the HTTP headers of a response; return its kind if it is not a page, else ""."""
    if not warc_record.is_http:
        return "response that is not HTTP"
    warc_record.parse_http(auto_decode="none", quirks_mode=True)
    headers = warc_record.http_headers  # falsy if it has no fields
    status = None if headers is None else headers.status_code
    if status != 200:
        return f"HTTP response with status {status if status in range(100, 600) else 'unknown'}"
    content_type = (warc_record.http_content_type or "").lower()
    return "" if content_type in (*_HTML_TYPES, "text/plain", "") else NOT_TEXT


_XHTML_TYPE = "application/xhtml+xml"
_HTML_TYPES = ("text/html", _XHTML_TYPE)


def _fill_text(record: Record, warc_record: WarcRecord, source: WarcSource, max_bytes: int) -> None:
    """Fill in the text of a page or conversion record, and what it lacks.

    Raises:
        PageError: why the record has no text.
        NotTextError: if the page is a file of another kind.
        BodyTooLongError: if the body is longer than ``max_bytes``.
        BodyError: if the body is damaged.
    """
    content: bytes = warc_record.reader.read()
    if not warc_record.is_http or warc_record.http_headers is None:
        decoded = decode_utf8(content)
        record.text, record.lost_characters = decoded.text, decoded.lost_characters
        return
    content_type = (warc_record.http_content_type or "").lower()
    http_headers = list(warc_record.http_headers.items())
    body = decode_http_body(
        content,
        http_headers,
        max_bytes,
        is_html=content_type in _HTML_TYPES,
        is_truncated=record.is_truncated,
    )
    record.is_truncated |= body.is_cut
    is_html = content_type in _HTML_TYPES or (not content_type and b"<" in body.data[:1024])
    decoded = decode_page(
        body.data,
        (warc_record.http_charset or "").strip("\"' "),
        is_html=is_html,
        is_truncated=record.is_truncated,
    )
    record.lost_characters = decoded.lost_characters
    record.text = decoded.text
    if is_html:
        extract_text = partial(
            extract_page_text,
            decoded.text,
            is_truncated=record.is_truncated,
            is_xhtml=content_type == _XHTML_TYPE,
        )
        record.text = extract_text(source.main_content)
        if source.main_content and not record.text.strip():
            record.text = extract_text(main_content=False)
            record.is_whole_page = bool(record.text.strip())
    if len(record.text.encode()) > max_bytes:
        raise PageError(TOO_LONG)


def _fill_key_url_and_date(record: Record, headers: dict[str, str], source: WarcSource) -> None:
    url = headers.get("warc-target-uri") or ""
    fill_url_and_date(record, url.removeprefix("<").removesuffix(">"), headers.get("warc-date"))
    if source.key_field is not None:
        record.key = headers.get(source.key_field.lower())
        if not record.key:
            record.error = f"header {source.key_field} is missing"


# Records -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _FramedRecord:
    """Hold the bytes of one record of the stream."""

    number: int  # from 1
    data: bytes  # header and content; only the beginning of a bad record
    size: int  # bytes of the stream, including line ends and lost bytes
    error: str = ""


class _RecordFramer:
    """Split a file into records; keep at most one in memory, and of a long one the beginning."""

    def __init__(self, path: Path, max_bytes: int, counts: ReadCounts) -> None:
        self.block_stream, self.max_bytes = read_blocks(path, counts, mark_members=True), max_bytes
        self.buffer = bytearray()
        self.buffer_start = 0  # position of the buffer in the stream
        self.member_starts: deque[int] = deque()  # positions in the stream, from buffer_start on
        self.damage: Damage | None = None  # follows the buffer
        self.is_at_end = False
        self.header_count = 0
        self.is_member_aligned = True  # every record so far began a member
        self.has_short_ends = False  # a record ended with fewer than two line ends
        self.counts = counts

    def __iter__(self) -> Iterator[_FramedRecord]:
        number = 0
        while self._skip_blank_lines() or self.damage:
            number += 1
            yield self._read_record_marking_errors(number)

    def _skip_blank_lines(self) -> bool:
        """Skip line ends, and a byte order mark in front of them; return whether data follow."""
        if self.buffer_start == 0 and self._fill_buffer(3) and self.buffer.startswith(BOM):
            self._skip_bytes(len(BOM))
        while self._fill_buffer(1):
            blank_lines = _BLANK_LINES.match(self.buffer)
            assert blank_lines is not None
            if not blank_lines.end():
                return True
            self._skip_bytes(blank_lines.end())
        return False

    def _skip_bytes(self, byte_count: int) -> None:
        self.counts.count_skipped(byte_count)
        self._drop_bytes(byte_count)

    def _fill_buffer(self, min_bytes: int) -> bool:
        """Fill the buffer to this size; return False if the stream ends or is damaged before."""
        while len(self.buffer) < min_bytes and not self.is_at_end and self.damage is None:
            block = next(self.block_stream, None)
            if block is None:
                self.is_at_end = True
            elif isinstance(block, Damage):
                self.damage = block
            elif block:
                self.buffer += block
            else:
                self.member_starts.append(self.buffer_start + len(self.buffer))
        return len(self.buffer) >= min_bytes

    def _drop_bytes(self, byte_count: int) -> None:
        del self.buffer[:byte_count]
        self.buffer_start += byte_count
        while self.member_starts and self.member_starts[0] < self.buffer_start:
            self.member_starts.popleft()

    def _read_record_marking_errors(self, number: int) -> _FramedRecord:
        header_size = self._find_header_size()
        if not header_size:
            return self._skip_bad_record(number, NO_HEADER, 1)
        self.header_count += 1
        self.is_member_aligned &= (
            bool(self.member_starts) and self.member_starts[0] == self.buffer_start
        )
        length_fields = _CONTENT_LENGTH.findall(self.buffer, 0, header_size)
        lengths = {line.removesuffix(b"\r").strip(b" \t") for line in length_fields}
        length = lengths.pop() if len(lengths) == 1 else b""
        if not re.fullmatch(rb"\d{1,18}", length):
            return self._skip_bad_record(number, NO_LENGTH, header_size)
        record_size = header_size + int(length)
        if record_size - header_size > self.max_bytes:
            return self._skip_bad_record(number, TOO_LONG, header_size)
        record_end = self._find_intact_record_end(record_size)
        if record_end is None or self._find_member_start(header_size, record_size) is not None:
            return self._skip_bad_record(number, FALSE_LENGTH, header_size)
        framed_record = _FramedRecord(number, bytes(self.buffer[:record_size]), record_end)
        self._drop_bytes(record_end)
        return framed_record

    def _find_header_size(self) -> int:
        """Return the size of the header here, including its empty line; 0 without a header."""
        search_size = 1 << 10
        while self._fill_buffer(5) and self.buffer.startswith(b"WARC/"):
            is_filled = self._fill_buffer(search_size)
            next_member = self._find_member_start(1, MAX_HEADER_BYTES)  # where a header must end
            if match := _HEADER_END.search(self.buffer, 0, next_member or MAX_HEADER_BYTES):
                return match.end()
            if not is_filled or next_member or search_size >= MAX_HEADER_BYTES:
                return 0
            search_size *= 4
        return 0

    def _find_intact_record_end(self, record_size: int) -> int | None:
        """Return where a record ends, including its line ends.

        Returns None if it does not end after ``record_size`` bytes, or if no record begins after
        it and either it contains the beginning of another record, or its member is damaged there.
        """
        self._fill_buffer(record_size + 128)
        match = _RECORD_END.match(self.buffer, record_size)
        if match is None:
            if match := _SHORT_RECORD_END.match(self.buffer, record_size):
                self.has_short_ends = True
            else:
                is_whole = self.is_at_end and len(self.buffer) >= record_size
                is_last = is_whole and _BLANK_LINES.fullmatch(self.buffer, record_size)
                return len(self.buffer) if is_last else None
        record_end = match.end()
        if self.buffer.startswith(b"WARC/", record_end):
            return record_end
        is_at_end = self.is_at_end and record_end == len(self.buffer)
        if not is_at_end and _RECORD_START.search(self.buffer, 0, record_size):
            return None  # a false length that ends after the header of a later record
        is_near_damage = self.damage is not None and not self._is_damage_elsewhere(record_end)
        return None if is_near_damage else record_end

    def _is_damage_elsewhere(self, record_end: int) -> bool:
        """Return whether the damage belongs to another member than the one that ends here."""
        is_only_at_end = self.damage is not None and self.damage.is_only_at_end
        return is_only_at_end or self.buffer_start + record_end in self.member_starts

    def _skip_bad_record(self, number: int, error: str, search_start: int) -> _FramedRecord:
        """Return an error that covers everything up to the next record."""
        self._fill_buffer(MAX_HEADER_BYTES)
        data, skipped_bytes = bytes(self.buffer[:MAX_HEADER_BYTES]), 0
        while (next_start := self._find_next_record(search_start)) is None:
            kept_bytes = 0
            if self.is_at_end:
                skipped_bytes += len(self.buffer)
            elif self.damage:
                skipped_bytes += len(self.buffer) + self.damage.lost_bytes
                error, self.damage = self.damage.error, None
            else:  # the start of a record may be split between two blocks
                kept_bytes = min(len(self.buffer), 32)
                skipped_bytes += len(self.buffer) - kept_bytes
            self._drop_bytes(len(self.buffer) - kept_bytes)
            search_start = 0
            if (
                not self._fill_buffer(kept_bytes + BLOCK_BYTES)
                and not self.buffer
                and self.is_at_end
            ):
                next_start = 0
                break
        self._drop_bytes(next_start)
        skipped_bytes += next_start
        # Cut the data, so that they hold nothing of the next record.
        return _FramedRecord(number, data[:skipped_bytes], skipped_bytes, error)

    def _find_next_record(self, search_start: int) -> int | None:
        """Return the buffer position of the next record from ``search_start`` on, or None."""
        member_start = self._find_member_start(search_start, len(self.buffer))
        if self.is_member_aligned and self.header_count > 1:
            return member_start
        record_start = _RECORD_START_IN_LINES if self.has_short_ends else _RECORD_START
        match = record_start.search(
            self.buffer, max(0, search_start - 4), member_start or len(self.buffer)
        )
        positions = (member_start, match and match.end())
        return min((p for p in positions if p is not None and p >= search_start), default=None)

    def _find_member_start(self, search_start: int, search_end: int) -> int | None:
        """Return the buffer position in this range where a member begins with a record, or None."""
        for member_start in self.member_starts:
            position = member_start - self.buffer_start
            if search_start <= position < search_end and self.buffer.startswith(b"WARC/", position):
                return position
        return None
