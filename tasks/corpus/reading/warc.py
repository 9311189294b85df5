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

from tasks.corpus.reading.members import Damage
from tasks.corpus.reading.pages import PageError, decoded, page_text
from tasks.corpus.reading.readers import NOT_UTF8, TOO_LONG, Record, empty_file, label
from tasks.corpus.reading.sources import FileSource
from tasks.corpus.reading.streams import BLOCK, Meter, blocks

NO_HEADER = "no WARC header where a record should begin"
NO_LENGTH = "a WARC header without one Content-Length"
FALSE_LENGTH = "the record does not end where its Content-Length says"
NOT_WARC = "its WARC header is of an unknown version, or longer than 32 KiB"  # to fastwarc
NOT_HTTP = "its HTTP response cannot be parsed or decompressed"
HEADER = 1 << 16  # bytes that a record's header may take, and that are kept of a long record

_HEADER_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"(?im)^content-length[ \t]*+:([^\n]*+)")
#: Fields that fastwarc knows in this spelling alone; in the format they are of any.
_NAMES = {name.lower(): name for name in (b"Content-Length", b"Content-Type", b"WARC-Type")}
_FIELD = re.compile(rb"(?im)^(content-length|content-type|warc-type)[ \t]*+:")
_BEGINNING = re.compile(rb"\r?\n\r?\n(?=WARC/\d\.\d\d?\r?\n)")
_ENDS = re.compile(rb"(\r\n\r\n|\n\n)[\r\n]{0,60}")


class WarcSource(FileSource):
    """Pages of a web archive (WARC) or their text (WET), plain, .gz or .zst."""

    kind: Literal["warc"]
    key_field: str | None = Field(
        None, description="a WARC header that names the document for good, such as WARC-Record-ID"
    )
    main_content: bool = Field(
        True, description="leave out navigation, footers and the like of HTML, by a heuristic"
    )


def read_warc(path: Path, source: WarcSource, limit: int, meter: Meter) -> Iterator[Record]:
    """Pages of an archive; raw bytes are those of whole records, headers and line ends too."""
    for framed in _Frames(path, limit, meter):
        record = Record(f"record {framed.number}", framed.size, error=framed.error, raw=framed.data)
        if framed.error in ("", TOO_LONG):
            other = _page(record, source, limit)
            if other:
                meter.skip(framed.size, other, 1)
                continue
        meter.rows += 1
        yield record
    yield from empty_file(meter)


# Pages -------------------------------------------------------------------------------------------


def _page(record: Record, source: WarcSource, limit: int) -> str:
    """Fill in what a record holds, or its error; what it is if it is no document."""
    from fastwarc.warc import WarcRecordType

    try:
        found = _parsed(record.raw)
        if found.record_type == WarcRecordType.response:
            other = _response(found)
        else:
            is_text = found.record_type == WarcRecordType.conversion
            other = "" if is_text else f"{found.record_type} record"
        if other or record.error:
            return other
        record.text = _text(found, record.raw, source, limit)
        headers = {name.lower(): value for name, value in found.headers.items()}
        _label(record, headers, source)
    except PageError as error:
        record.error = str(error)
    except OSError:
        record.error = NOT_HTTP
    if record.error:
        record.text = ""
    else:
        record.raw = b""
    return ""


def _parsed(raw: bytes) -> Any:
    """The record of these bytes; its HTTP headers stay unread. Raises PageError."""
    from fastwarc.warc import ArchiveIterator

    records = ArchiveIterator(io.BytesIO(_spelled(raw)), parse_http=False, quirks_mode=True)
    try:
        return next(iter(records))
    except (OSError, StopIteration) as error:
        raise PageError(NOT_WARC) from error


def _spelled(raw: bytes) -> bytes:
    """The record with the names of its header's fields as the standard spells them."""
    end = _HEADER_END.search(raw, 0, HEADER)
    header = raw[: end.start() if end else HEADER]
    named = _FIELD.sub(lambda found: _NAMES[found[1].lower()] + b":", header)
    return raw if named == header else named + raw[len(header) :]


def _response(found: Any) -> str:
    """Parse the HTTP headers of a response; what it is if it is no page."""
    if not found.is_http:
        return "response that is not HTTP"
    found.parse_http(auto_decode="none", quirks_mode=True)
    headers = found.http_headers  # false without a field, but there
    status = None if headers is None else headers.status_code
    if status != 200:
        return f"response of status {status if status in range(100, 600) else 'unknown'}"
    kind = (found.http_content_type or "").lower()
    return "" if kind in (*_HTML, "text/plain", "") else "response that is no text"


_HTML = ("text/html", "application/xhtml+xml")


def _text(found: Any, raw: bytes, source: WarcSource, limit: int) -> str:
    """The text of a page or of a conversion. Raises PageError with why there is none."""
    if not found.is_http:
        try:
            return found.reader.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise PageError(NOT_UTF8) from error
    payload = _payload(raw, limit)
    kind = (found.http_content_type or "").lower()
    html = kind in _HTML or (not kind and b"<" in payload[:1024])
    text = decoded(payload, (found.http_charset or "").strip("\"' "), html)
    if html:
        text = page_text(text, source.main_content)
    if len(text.encode()) > limit:
        raise PageError(TOO_LONG)
    return text


def _payload(raw: bytes, limit: int) -> bytes:
    """The body of a response, its transfer and content encodings undone where they are there:
    crawlers often undo them and leave the headers as they came."""
    from resiliparse.parse.encoding import detect_mime

    def read(decode: str) -> bytes:
        found = _parsed(raw)
        found.parse_http(auto_decode=decode, quirks_mode=True)
        return found.reader.read(limit + 1)

    try:
        payload = read("all")
    except OSError:
        payload = read("none")
        if not detect_mime(payload[:1024]).startswith("text/"):
            raise
    if len(payload) > limit:
        raise PageError(TOO_LONG)
    return payload


def _label(record: Record, headers: dict[str, str], source: WarcSource) -> None:
    url = headers.get("warc-target-uri") or ""
    label(record, url.removeprefix("<").removesuffix(">"), headers.get("warc-date"))
    if source.key_field is not None:
        record.key = headers.get(source.key_field.lower())
        if not record.key:
            record.error = f"header {source.key_field} is missing"


# Records -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Framed:
    number: int  # from 1
    data: bytes  # header and content; of an error the beginning
    size: int  # bytes of the stream, line ends and lost ones among them
    error: str = ""


class _Frames:
    """The records of a file. No more than one is held, and of long ones the beginning."""

    def __init__(self, path: Path, limit: int, meter: Meter) -> None:
        self.stream, self.limit = blocks(path, meter, marks=True), limit
        self.held, self.at = bytearray(), 0  # bytes, and the place of the first in the stream
        self.members: deque[int] = deque()  # where members begin, from ``at`` on
        self.damage: Damage | None = None  # comes behind what is held
        self.over = False
        self.headers, self.aligned = 0, True  # whether every one so far began a member

    def __iter__(self) -> Iterator[_Framed]:
        number = 0
        while self._fill(1) or self.damage:
            number += 1
            yield self._record(number)

    def _fill(self, size: int) -> bool:
        """Hold so many bytes, unless the stream ends or is damaged before."""
        while len(self.held) < size and not self.over and self.damage is None:
            block = next(self.stream, None)
            if block is None:
                self.over = True
            elif isinstance(block, Damage):
                self.damage = block
            elif block:
                self.held += block
            else:
                self.members.append(self.at + len(self.held))
        return len(self.held) >= size

    def _drop(self, size: int) -> None:
        del self.held[:size]
        self.at += size
        while self.members and self.members[0] < self.at:
            self.members.popleft()

    def _record(self, number: int) -> _Framed:
        head = self._header()
        if not head:
            return self._bad(number, NO_HEADER, 1)
        self.headers += 1
        self.aligned &= bool(self.members) and self.members[0] == self.at
        found = _LENGTH.findall(self.held, 0, head)
        lengths = {line.removesuffix(b"\r").strip(b" \t") for line in found}
        length = lengths.pop() if len(lengths) == 1 else b""
        if not re.fullmatch(rb"\d{1,18}", length):
            return self._bad(number, NO_LENGTH, head)
        whole = head + int(length)
        if whole - head > self.limit:
            return self._bad(number, TOO_LONG, head)
        end = self._end(whole)
        if not end or self._member(head, whole) is not None:
            return self._bad(number, FALSE_LENGTH, head)
        framed = _Framed(number, bytes(self.held[:whole]), end)
        self._drop(end)
        return framed

    def _header(self) -> int:
        """Bytes of the header that begins here, with its empty line; 0 if there is none."""
        size = 1 << 10
        while self._fill(5) and self.held.startswith(b"WARC/"):
            more = self._fill(size)
            following = self._member(1, HEADER)  # no header goes on beyond
            if found := _HEADER_END.search(self.held, 0, following or HEADER):
                return found.end()
            if not more or following or size >= HEADER:
                return 0
            size *= 4
        return 0

    def _end(self, whole: int) -> int:
        """Where a record of so many bytes ends with its line ends; 0 if it does not end here, or
        if its member is damaged behind it, in its checksum or where it goes on with no record."""
        self._fill(whole + 128)
        ends = _ENDS.match(self.held, whole)
        if ends is None:
            return whole if self.over and len(self.held) == whole else 0
        end = ends.end()
        near = self.damage is not None and not self.held.startswith(b"WARC/", end)
        return 0 if near and not self._behind(end) else end

    def _behind(self, end: int) -> bool:
        """Whether the damage is that of another member than the one that ends here."""
        whole = self.damage is not None and self.damage.behind
        return whole or self.at + end in self.members

    def _bad(self, number: int, error: str, start: int) -> _Framed:
        """An error up to the next record, which begins at ``start`` or behind."""
        self._fill(HEADER)
        data, size = bytes(self.held[:HEADER]), 0
        while (found := self._next(start)) is None:
            kept = 0
            if self.over:
                size += len(self.held)
            elif self.damage:
                size += len(self.held) + self.damage.lost
                error, self.damage = self.damage.error, None
            else:  # a beginning may be cut between two blocks
                kept = min(len(self.held), 32)
                size += len(self.held) - kept
            self._drop(len(self.held) - kept)
            start = 0
            if not self._fill(kept + BLOCK) and not self.held and self.over:
                found = 0
                break
        self._drop(found)
        size += found
        return _Framed(number, data[:size], size, error)  # and not of the records behind it

    def _next(self, start: int) -> int | None:
        """Where in what is held the next record begins, from ``start`` on."""
        member = self._member(start, len(self.held))
        if self.aligned and self.headers > 1:
            return member
        found = _BEGINNING.search(self.held, max(0, start - 4), member or len(self.held))
        places = [place for place in (member, found and found.end()) if place is not None]
        return min((place for place in places if place >= start), default=None)

    def _member(self, start: int, end: int) -> int | None:
        """Where a member begins with a record, from ``start`` to before ``end``."""
        for place in self.members:
            here = place - self.at
            if start <= here < end and self.held.startswith(b"WARC/", here):
                return here
        return None
