"""Readers of WARC and WET: records cut out of the stream one by one, pages to text.

Documents are ``response`` records of status 200 that hold HTML or plain text, and ``conversion``
records (WET). All others are no documents: they are counted as skipped, by what they are.

A record ends where its Content-Length says, if two line ends stand there. Where none do, or a
record is damaged or too long to be held, the next one is searched for: a member of
the compressed file that begins with a record; in files whose records do not begin members, or that
are not compressed, an empty line with a record's first line behind it. So a false length costs its
record and those that stand in no member of their own before the next such line.

What this cannot rule out: behind a damaged or too long record of an uncompressed file, a record
that was archived within it is taken for one of the file. Members that were compressed with a
dictionary (some .warc.zst) are damage.

Source: ISO 28500:2017, the WARC file format.
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from hallmark.tasks.corpus.reading.byte_streams import BLOCK_BYTES, ReadCounts, read_blocks
from hallmark.tasks.corpus.reading.compressed_members import Damage
from hallmark.tasks.corpus.reading.readers import (
    NOT_UTF8,
    TOO_LONG,
    Record,
    fill_url_and_date,
    yield_empty_file_error,
)
from hallmark.tasks.corpus.reading.sources import FileSource
from hallmark.tasks.corpus.reading.web_pages import PageError, decode_page, extract_page_text

NO_HEADER = "no WARC header where a record should begin"
NO_LENGTH = "a WARC header without one Content-Length"
FALSE_LENGTH = "the record does not end where its Content-Length says"
NOT_WARC = "its WARC header is of an unknown version, or longer than 32 KiB"  # to fastwarc
NOT_HTTP = "its HTTP response cannot be parsed or decompressed"
MAX_HEADER_BYTES = (
    1 << 16
)  # bytes that a record's header may take, and that are kept of a long record

_HEADER_END = re.compile(rb"\r?\n\r?\n")
_CONTENT_LENGTH = re.compile(rb"(?im)^content-length[ \t]*+:([^\n]*+)")
#: Fields that fastwarc knows in this spelling alone; in the format they are of any.
_STANDARD_FIELD_NAMES = {
    name.lower(): name for name in (b"Content-Length", b"Content-Type", b"WARC-Type")
}
_FIELD_NAME = re.compile(rb"(?im)^(content-length|content-type|warc-type)[ \t]*+:")
_RECORD_START = re.compile(rb"\r?\n\r?\n(?=WARC/\d\.\d\d?\r?\n)")
_RECORD_END = re.compile(rb"(\r\n\r\n|\n\n)[\r\n]{0,60}")


class WarcSource(FileSource):
    """Pages of a web archive (WARC) or their text (WET), plain, .gz or .zst."""

    kind: Literal["warc"]
    key_field: str | None = Field(
        None, description="a WARC header that names the document for good, such as WARC-Record-ID"
    )
    main_content: bool = Field(
        True, description="leave out navigation, footers and the like of HTML, by a heuristic"
    )


def read_warc(
    path: Path, source: WarcSource, max_bytes: int, counts: ReadCounts
) -> Iterator[Record]:
    """Pages of an archive; raw bytes are those of whole records, headers and line ends too."""
    for framed_record in _RecordFramer(path, max_bytes, counts):
        record = Record(
            f"record {framed_record.number}",
            framed_record.size,
            error=framed_record.error,
            raw=framed_record.data,
        )
        if framed_record.error in ("", TOO_LONG):
            skip_kind = _fill_record_from_page(record, source, max_bytes)
            if skip_kind:
                counts.count_skipped(framed_record.size, skip_kind, 1)
                continue
        counts.record_count += 1
        yield record
    yield from yield_empty_file_error(counts)


# Pages -------------------------------------------------------------------------------------------


def _fill_record_from_page(record: Record, source: WarcSource, max_bytes: int) -> str:
    """Fill in what a record holds, or its error; what it is if it is no document."""
    from fastwarc.warc import WarcRecordType

    try:
        warc_record = _parse_warc_record(record.raw)
        if warc_record.record_type == WarcRecordType.response:
            skip_kind = _classify_response(warc_record)
        else:
            is_conversion = warc_record.record_type == WarcRecordType.conversion
            skip_kind = "" if is_conversion else f"{warc_record.record_type} record"
        if skip_kind or record.error:
            return skip_kind
        record.text = _extract_record_text(warc_record, record.raw, source, max_bytes)
        headers = {name.lower(): value for name, value in warc_record.headers.items()}
        _fill_key_url_and_date(record, headers, source)
    except PageError as error:
        record.error = str(error)
    except OSError:
        record.error = NOT_HTTP
    if record.error:
        record.text = ""
    else:
        record.raw = b""
    return ""


def _parse_warc_record(raw_record: bytes) -> Any:
    """The record of these bytes; its HTTP headers stay unread. Raises PageError."""
    from fastwarc.warc import ArchiveIterator

    records = ArchiveIterator(
        io.BytesIO(_standardise_field_names(raw_record)), parse_http=False, quirks_mode=True
    )
    try:
        return next(iter(records))
    except (OSError, StopIteration) as error:
        raise PageError(NOT_WARC) from error


def _standardise_field_names(raw_record: bytes) -> bytes:
    """The record with the names of its header's fields as the standard spells them."""
    header_end = _HEADER_END.search(raw_record, 0, MAX_HEADER_BYTES)
    header = raw_record[: header_end.start() if header_end else MAX_HEADER_BYTES]
    standard_header = _FIELD_NAME.sub(
        lambda match: _STANDARD_FIELD_NAMES[match[1].lower()] + b":", header
    )
    return raw_record if standard_header == header else standard_header + raw_record[len(header) :]


def _classify_response(warc_record: Any) -> str:
    """Parse the HTTP headers of a response; what it is if it is no page."""
    if not warc_record.is_http:
        return "response that is not HTTP"
    warc_record.parse_http(auto_decode="none", quirks_mode=True)
    headers = warc_record.http_headers  # false without a field, but there
    status = None if headers is None else headers.status_code
    if status != 200:
        return f"response of status {status if status in range(100, 600) else 'unknown'}"
    content_type = (warc_record.http_content_type or "").lower()
    return "" if content_type in (*_HTML_TYPES, "text/plain", "") else "response that is no text"


_HTML_TYPES = ("text/html", "application/xhtml+xml")


def _extract_record_text(
    warc_record: Any, raw_record: bytes, source: WarcSource, max_bytes: int
) -> str:
    """The text of a page or of a conversion. Raises PageError with why there is none."""
    if not warc_record.is_http:
        try:
            return warc_record.reader.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise PageError(NOT_UTF8) from error
    payload = _decode_response_body(raw_record, max_bytes)
    content_type = (warc_record.http_content_type or "").lower()
    is_html = content_type in _HTML_TYPES or (not content_type and b"<" in payload[:1024])
    text = decode_page(payload, (warc_record.http_charset or "").strip("\"' "), is_html)
    if is_html:
        text = extract_page_text(text, source.main_content)
    if len(text.encode()) > max_bytes:
        raise PageError(TOO_LONG)
    return text


def _decode_response_body(raw_record: bytes, max_bytes: int) -> bytes:
    """The body of a response, its transfer and content encodings undone where they are there:
    crawlers often undo them and leave the headers as they came."""
    from resiliparse.parse.encoding import detect_mime

    def read_payload(decode_mode: str) -> bytes:
        warc_record = _parse_warc_record(raw_record)
        warc_record.parse_http(auto_decode=decode_mode, quirks_mode=True)
        return warc_record.reader.read(max_bytes + 1)

    try:
        payload = read_payload("all")
    except OSError:
        payload = read_payload("none")
        if not detect_mime(payload[:1024]).startswith("text/"):
            raise
    if len(payload) > max_bytes:
        raise PageError(TOO_LONG)
    return payload


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
    number: int  # from 1
    data: bytes  # header and content; of an error the beginning
    size: int  # bytes of the stream, line ends and lost ones among them
    error: str = ""


class _RecordFramer:
    """The records of a file. No more than one is held, and of long ones the beginning."""

    def __init__(self, path: Path, max_bytes: int, counts: ReadCounts) -> None:
        self.block_stream, self.max_bytes = read_blocks(path, counts, mark_members=True), max_bytes
        self.buffer, self.buffer_start = (
            bytearray(),
            0,
        )  # bytes, and the place of the first in the stream
        self.member_starts: deque[int] = deque()  # where members begin, from ``at`` on
        self.damage: Damage | None = None  # comes behind what is held
        self.is_at_end = False
        self.header_count, self.is_member_aligned = (
            0,
            True,
        )  # whether every one so far began a member

    def __iter__(self) -> Iterator[_FramedRecord]:
        number = 0
        while self._fill_buffer(1) or self.damage:
            number += 1
            yield self._read_record(number)

    def _fill_buffer(self, min_bytes: int) -> bool:
        """Hold so many bytes, unless the stream ends or is damaged before."""
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

    def _read_record(self, number: int) -> _FramedRecord:
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
        record_end = self._find_record_end(record_size)
        if not record_end or self._find_member_start(header_size, record_size) is not None:
            return self._skip_bad_record(number, FALSE_LENGTH, header_size)
        framed_record = _FramedRecord(number, bytes(self.buffer[:record_size]), record_end)
        self._drop_bytes(record_end)
        return framed_record

    def _find_header_size(self) -> int:
        """Bytes of the header that begins here, with its empty line; 0 if there is none."""
        search_size = 1 << 10
        while self._fill_buffer(5) and self.buffer.startswith(b"WARC/"):
            is_filled = self._fill_buffer(search_size)
            next_member = self._find_member_start(1, MAX_HEADER_BYTES)  # no header goes on beyond
            if match := _HEADER_END.search(self.buffer, 0, next_member or MAX_HEADER_BYTES):
                return match.end()
            if not is_filled or next_member or search_size >= MAX_HEADER_BYTES:
                return 0
            search_size *= 4
        return 0

    def _find_record_end(self, record_size: int) -> int:
        """Where a record of so many bytes ends with its line ends; 0 if it does not end here, or
        if its member is damaged behind it, in its checksum or where it goes on with no record."""
        self._fill_buffer(record_size + 128)
        match = _RECORD_END.match(self.buffer, record_size)
        if match is None:
            return record_size if self.is_at_end and len(self.buffer) == record_size else 0
        record_end = match.end()
        is_near_damage = self.damage is not None and not self.buffer.startswith(
            b"WARC/", record_end
        )
        return 0 if is_near_damage and not self._is_damage_elsewhere(record_end) else record_end

    def _is_damage_elsewhere(self, record_end: int) -> bool:
        """Whether the damage is that of another member than the one that ends here."""
        is_only_at_end = self.damage is not None and self.damage.is_only_at_end
        return is_only_at_end or self.buffer_start + record_end in self.member_starts

    def _skip_bad_record(self, number: int, error: str, search_start: int) -> _FramedRecord:
        """An error up to the next record, which begins at ``start`` or behind."""
        self._fill_buffer(MAX_HEADER_BYTES)
        data, skipped_bytes = bytes(self.buffer[:MAX_HEADER_BYTES]), 0
        while (next_start := self._find_next_record(search_start)) is None:
            kept_bytes = 0
            if self.is_at_end:
                skipped_bytes += len(self.buffer)
            elif self.damage:
                skipped_bytes += len(self.buffer) + self.damage.lost_bytes
                error, self.damage = self.damage.error, None
            else:  # a beginning may be cut between two blocks
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
        return _FramedRecord(
            number, data[:skipped_bytes], skipped_bytes, error
        )  # and not of the records behind it

    def _find_next_record(self, search_start: int) -> int | None:
        """Where in what is held the next record begins, from ``start`` on."""
        member_start = self._find_member_start(search_start, len(self.buffer))
        if self.is_member_aligned and self.header_count > 1:
            return member_start
        match = _RECORD_START.search(
            self.buffer, max(0, search_start - 4), member_start or len(self.buffer)
        )
        candidates = [
            candidate
            for candidate in (member_start, match and match.end())
            if candidate is not None
        ]
        return min(
            (candidate for candidate in candidates if candidate >= search_start), default=None
        )

    def _find_member_start(self, search_start: int, search_end: int) -> int | None:
        """Where a member begins with a record, from ``start`` to before ``end``."""
        for member_start in self.member_starts:
            position = member_start - self.buffer_start
            if search_start <= position < search_end and self.buffer.startswith(b"WARC/", position):
                return position
        return None
