"""Undo the transfer and content encodings of HTTP bodies in web archives.

Crawlers often store a decoded body together with the headers of the encoded one, and cut bodies at
a limit. Servers name another compression than they used, or leave out that a body is in chunks. So
the headers are only a hint: a body counts as encoded if its bytes confirm it, and a body that ends
too early is decoded as far as it goes.

Sources: RFC 9112, section 7.1 (chunks); RFC 9110, section 8.4.1 (gzip and deflate); RFC 7932
(Brotli); RFC 8878 and 9659 (Zstandard).
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import brotli
import zstandard

from hallmark.tasks.corpus.reading.byte_streams import BINARY_BYTES, is_text

#: Names and values of the HTTP headers of a response.
HttpHeaders = Sequence[tuple[str, str]]

GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"
MAX_ZSTD_WINDOW_BYTES = 8 << 20
MAX_STACKED_ENCODINGS = 4


class BodyError(ValueError):
    """Signal that a body is encoded and cannot be decoded."""


class BodyTooLongError(ValueError):
    """Signal that the content of a body is longer than allowed."""


@dataclass(frozen=True)
class HttpBody:
    """Hold the content of a body."""

    data: bytes
    is_cut: bool
    """Whether data are missing at the end."""


def decode_http_body(
    data: bytes, headers: HttpHeaders, max_bytes: int, *, is_html: bool, is_truncated: bool = False
) -> HttpBody:
    """Undo the encodings of a body, those that the headers declare and others.

    Args:
        data: The body as it is stored in the archive.
        is_html: Whether the headers declare HTML.
        is_truncated: Whether the archive says that the end of the body is missing.

    Raises:
        BodyTooLongError: if the content is longer than ``max_bytes``.
        BodyError: if the body is damaged.
    """
    # The order in which the server applied them.
    encodings = [
        *_list_encodings(headers, "content-encoding"),
        *_list_encodings(headers, "transfer-encoding"),
    ]
    is_cut = not encodings and _is_shorter_than_declared(data, headers)
    is_declared = "chunked" in encodings
    if not is_declared:
        body = _join_undeclared_chunks(data, is_html=is_html)
        data, is_cut = body.data, is_cut or body.is_cut
    for encoding in reversed(encodings):
        if encoding == "chunked":
            body = _join_chunks(data, is_html=is_html, is_truncated=is_truncated)
        else:
            body = _decompress_declared(data, encoding, max_bytes, is_cut or is_truncated)
        data, is_cut = body.data, is_cut or body.is_cut
    for _ in range(MAX_STACKED_ENCODINGS):
        if (decompress := _find_decompressor_by_magic(data)) is None:
            break
        body = decompress(data, max_bytes)
        data, is_cut = body.data, is_cut or body.is_cut
    body = _join_undeclared_chunks(data, is_html=False)
    data, is_cut = body.data, is_cut or body.is_cut
    if len(data) > max_bytes:
        raise BodyTooLongError
    return HttpBody(data, is_cut)


def has_binary_bytes(data: bytes) -> bool:
    """Return whether more than 3, and more than 5 %, of the first 4 KiB are binary bytes."""
    beginning = data[:4096]
    binary_count = len(beginning) - len(beginning.translate(None, BINARY_BYTES))
    return binary_count > max(3, len(beginning) // 20)


def _list_encodings(headers: HttpHeaders, header_name: str) -> list[str]:
    values = [value for name, value in headers if name.lower() == header_name]
    encodings = [encoding.strip().lower() for value in values for encoding in value.split(",")]
    return [encoding for encoding in encodings if encoding][:MAX_STACKED_ENCODINGS]


def _is_shorter_than_declared(data: bytes, headers: HttpHeaders) -> bool:
    lengths = {value.strip() for name, value in headers if name.lower() == "content-length"}
    length = lengths.pop() if len(lengths) == 1 else ""
    return bool(re.fullmatch("[0-9]{1,18}", length)) and len(data) < int(length)


# Chunks ------------------------------------------------------------------------------------------

_CHUNK_SIZE = rb"[ \t]*+(?:0[xX])?([0-9A-Fa-f]{1,16})[ \t]*+(?:;[^\r\n]*+)?+"
_CHUNK_HEADER = re.compile(_CHUNK_SIZE + rb"(?:\r?\n|\r)")
_FIRST_CHUNK_HEADER = re.compile(rb"(?:\xef\xbb\xbf)?+[\r\n]*+" + _CHUNK_HEADER.pattern)
_CUT_CHUNK_HEADER = re.compile(_CHUNK_SIZE + rb"\r?")
_LINE_END = re.compile(rb"\r?\n|\r")
_TRAILERS = re.compile(rb"(?:[^\r\n:]++:[^\r\n]*+\r?\n)*+[\r\n]*+")
_LAST_CHUNK_AT_END = re.compile(rb"[\r\n]0+[\r\n]{1,4}\Z")
_START_OF_MARKUP = re.compile(rb"(?:\xef\xbb\xbf)?+\s*+<")
_NOT_NUMERIC = re.compile(rb"[^\d\s.,;:+-]")
#: So many chunks, each of which ends where its size says, are no text by chance.
MIN_CERTAIN_CHUNKS = 2


@dataclass(frozen=True)
class _Chunks:
    """Hold the chunks of a body."""

    content: bytes
    count: int
    """Number of chunks with content."""
    is_complete: bool
    """Whether a last, empty chunk follows the others, and nothing but trailers follows it."""
    is_false: bool = False
    """Whether a chunk does not end where its size says."""


def _join_chunks(data: bytes, *, is_html: bool, is_truncated: bool) -> HttpBody:
    """Join the chunks of a body that declares them; return other data unchanged.

    Plain text may begin with a line that looks like the size of a chunk. Such a line is text if the
    first chunk does not end where the line says. If there are too few data for the chunk, it is
    text if it ends in a bare line feed and the archive does not say that the body is truncated.

    Args:
        is_html: Whether the headers declare HTML.
        is_truncated: Whether the archive says that the end of the body is missing.

    Raises:
        BodyError: if the size of a chunk is false.
    """
    header = _FIRST_CHUNK_HEADER.match(data)
    if header is None:
        is_cut_size = _CUT_CHUNK_HEADER.fullmatch(data)
        return HttpBody(b"", True) if is_cut_size else HttpBody(data, False)
    chunks = _split_chunks(data, header)
    if chunks.is_false:
        if chunks.count == 1 and not is_html and not _LAST_CHUNK_AT_END.search(data):
            return HttpBody(data, False)
        raise BodyError
    ends_in_line_feed = header[0].endswith(b"\n") and not header[0].endswith(b"\r\n")
    is_first_cut = header.end() + int(header[1], 16) >= len(data) and chunks.count == 1
    if is_first_cut and ends_in_line_feed and not (is_html or is_truncated):
        return HttpBody(data, False)
    return HttpBody(chunks.content, not chunks.is_complete)


def _join_undeclared_chunks(data: bytes, *, is_html: bool) -> HttpBody:
    """Join the chunks of a body that does not declare them; return other data unchanged.

    All chunks must end where their sizes say. Unless the first one begins like HTML that the
    headers declare, or like compressed data, there must be several or a last, empty one, with CRLF
    after the size, and with other content than numbers: a list of numbers may look like chunks.
    """
    header = _FIRST_CHUNK_HEADER.match(data)
    if header is None:
        return HttpBody(data, False)
    is_likely = (is_html and _START_OF_MARKUP.match(data, header.end()) is not None) or (
        data.startswith((GZIP_MAGIC, ZSTD_MAGIC), header.end())
    )
    chunks = _split_chunks(data, header)
    is_certain = (
        (chunks.count >= MIN_CERTAIN_CHUNKS or (chunks.is_complete and chunks.count > 0))
        and header[0].endswith(b"\r\n")
        and _NOT_NUMERIC.search(chunks.content) is not None
    )
    if chunks.is_false or not (is_likely or is_certain):
        return HttpBody(data, False)
    return HttpBody(chunks.content, not chunks.is_complete)


def _split_chunks(data: bytes, header: re.Match[bytes]) -> _Chunks:
    """Split a body into chunks, the first of which has this header.

    After chunks with content and an empty one, trailers may follow; anything else counts as
    missing. If there were no chunks with content, the other data are the content.
    """
    chunks: list[bytes] = []
    next_header: re.Match[bytes] | None = header
    while next_header is not None:
        header = next_header
        chunk_end = header.end() + int(header[1], 16)
        if chunk_end == header.end():
            end_of_empty_chunk = _LINE_END.match(data, chunk_end)
            next_start = end_of_empty_chunk.end() if end_of_empty_chunk else chunk_end
            next_header = _CHUNK_HEADER.match(data, next_start)
            if next_header is None:
                rest = data[next_start:]
                if not chunks:
                    return _Chunks(rest, 0, is_complete=True)
                is_complete = _TRAILERS.fullmatch(rest) is not None
                return _Chunks(b"".join(chunks), len(chunks), is_complete)
            continue
        chunks.append(data[header.end() : chunk_end])
        line_end = _LINE_END.match(data, chunk_end)
        next_header = line_end and _CHUNK_HEADER.match(data, line_end.end())
        is_at_end = chunk_end >= len(data) or (
            line_end is not None
            and (
                line_end.end() == len(data)
                or _CUT_CHUNK_HEADER.fullmatch(data, line_end.end()) is not None
            )
        )
        if is_at_end:
            return _Chunks(b"".join(chunks), len(chunks), is_complete=False)
    return _Chunks(b"".join(chunks), len(chunks), is_complete=False, is_false=True)


# Compression -------------------------------------------------------------------------------------

#: Takes data and the maximum length of the content.
Decompressor = Callable[[bytes, int], HttpBody]


def _decompress_declared(data: bytes, encoding: str, max_bytes: int, is_cut: bool) -> HttpBody:
    """Undo a declared compression, or another one; return data that are not compressed unchanged.

    Raises:
        BodyError: if the data are damaged.
    """
    magic = {"gzip": GZIP_MAGIC, "x-gzip": GZIP_MAGIC, "zstd": ZSTD_MAGIC}.get(encoding)
    declared: tuple[Decompressor, ...] = {
        "deflate": (_inflate_zlib, _inflate_raw),
        "br": (_decompress_brotli,),
    }.get(encoding, ())
    if magic is not None and data and magic.startswith(data):
        return HttpBody(b"", True)
    if not (magic or declared) or is_text(data, is_cut=is_cut):
        return HttpBody(data, False)
    if (decompress := _find_decompressor_by_magic(data)) is not None:
        return decompress(data, max_bytes)
    for decompress in declared:
        with suppress(BodyError):
            return decompress(data, max_bytes)
    # These formats have no magic bytes, so that any data might seem to be such a format.
    for decompress in (_inflate_zlib, _decompress_brotli):
        with suppress(BodyError):
            body = decompress(data, max_bytes)
            if body.data and (is_cut or not body.is_cut) and is_text(body.data):
                return body
    if declared:
        raise BodyError
    return HttpBody(data, False)


def _find_decompressor_by_magic(data: bytes) -> Decompressor | None:
    if data.startswith(GZIP_MAGIC):
        return _decompress_gzip
    return _decompress_zstd if data.startswith(ZSTD_MAGIC) else None


def _inflate(data: bytes, max_bytes: int, window_bits: int) -> HttpBody:
    """Decompress the members that gzip, zlib or raw deflate wrote."""
    content = bytearray()
    while True:
        decompressor = zlib.decompressobj(window_bits)
        try:
            content += decompressor.decompress(data, max_bytes + 1 - len(content))
        except zlib.error as error:
            raise BodyError from error
        if len(content) > max_bytes:
            raise BodyTooLongError
        data = decompressor.unused_data
        if not (window_bits == zlib.MAX_WBITS + 16 and data.startswith(GZIP_MAGIC)):
            return HttpBody(bytes(content), not decompressor.eof)


def _decompress_gzip(data: bytes, max_bytes: int) -> HttpBody:
    return _inflate(data, max_bytes, zlib.MAX_WBITS + 16)


def _inflate_zlib(data: bytes, max_bytes: int) -> HttpBody:
    return _inflate(data, max_bytes, zlib.MAX_WBITS)


def _inflate_raw(data: bytes, max_bytes: int) -> HttpBody:
    return _inflate(data, max_bytes, -zlib.MAX_WBITS)


def _decompress_brotli(data: bytes, max_bytes: int) -> HttpBody:
    decompressor = brotli.Decompressor()
    try:
        content = decompressor.process(data, output_buffer_limit=max_bytes + 1)
    except brotli.error as error:
        raise BodyError from error
    if len(content) > max_bytes:
        raise BodyTooLongError
    return HttpBody(content, not decompressor.is_finished())


def _decompress_zstd(data: bytes, max_bytes: int) -> HttpBody:
    """Decompress all frames; a frame that does not end is read a second time to notice that."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
    try:
        with decompressor.stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
            content = reader.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise BodyTooLongError
        frame = decompressor.decompressobj()
        frame.decompress(data)
    except zstandard.ZstdError as error:
        raise BodyError from error
    return HttpBody(content, not frame.eof)
