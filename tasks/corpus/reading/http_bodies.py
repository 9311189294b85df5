"""Undo the transfer and content encodings of HTTP bodies in web archives.

Crawlers often store a decoded body together with the headers of the encoded one, and cut bodies at
a limit. So the headers are only a hint: a body counts as encoded if its bytes confirm it, and a
body that ends too early is decoded as far as it goes.

Sources: RFC 9112, section 7.1 (chunks); RFC 9110, section 8.4.1 (gzip and deflate); RFC 7932
(Brotli); RFC 8878 and 9659 (Zstandard).
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Sequence
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
        is_html: Whether the headers declare HTML, which never begins with a number.
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
    if is_html and not is_declared:
        encodings.append("chunked")
    for encoding in reversed(encodings):
        if encoding == "chunked":
            body = _join_chunks(
                data, is_declared=is_declared, is_html=is_html, is_truncated=is_truncated
            )
        else:
            body = _decompress_declared(data, encoding, max_bytes, is_cut or is_truncated)
        data, is_cut = body.data, is_cut or body.is_cut
    for _ in range(MAX_STACKED_ENCODINGS):
        if (decompress := _find_decompressor_by_magic(data)) is None:
            break
        body = decompress(data, max_bytes)
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

_CHUNK_SIZE = rb"[ \t]*+([0-9A-Fa-f]{1,16})[ \t]*+(?:;[^\r\n]*+)?+"
_CHUNK_HEADER = re.compile(_CHUNK_SIZE + rb"(?:\r?\n|\r)")
_FIRST_CHUNK_HEADER = re.compile(rb"[\r\n]*+" + _CHUNK_HEADER.pattern)
_CUT_CHUNK_HEADER = re.compile(_CHUNK_SIZE + rb"\r?")
_LINE_END = re.compile(rb"\r?\n|\r")
_TRAILERS = re.compile(rb"(?:[^\r\n:]++:[^\r\n]*+\r?\n)*+[\r\n]*+")
_LAST_CHUNK_AT_END = re.compile(rb"[\r\n]0+[\r\n]{1,4}\Z")


def _join_chunks(data: bytes, *, is_declared: bool, is_html: bool, is_truncated: bool) -> HttpBody:
    """Join the chunks of a body; return other data unchanged.

    Plain text may begin with a line that looks like the size of a chunk. Such a line is text if the
    first chunk does not end where the line says. If there are too few data for the chunk, it is
    text if it ends in a bare line feed and the archive does not say that the body is truncated.

    Args:
        is_declared: Whether the headers declare chunks.
        is_html: Whether the headers declare HTML.
        is_truncated: Whether the archive says that the end of the body is missing.

    Raises:
        BodyError: if the size of a chunk is false.
    """
    header = _FIRST_CHUNK_HEADER.match(data)
    if header is None:
        is_cut_size = is_declared and _CUT_CHUNK_HEADER.fullmatch(data)
        return HttpBody(b"", True) if is_cut_size else HttpBody(data, False)
    if not is_declared and not data[header.end() :].lstrip().startswith(b"<"):
        return HttpBody(data, False)
    chunks: list[bytes] = []
    while header is not None:
        chunk_end = header.end() + int(header[1], 16)
        chunks.append(data[header.end() : chunk_end])
        if chunk_end == header.end():
            end_of_empty_chunk = _LINE_END.match(data, chunk_end)
            next_start = end_of_empty_chunk.end() if end_of_empty_chunk else chunk_end
            header = _CHUNK_HEADER.match(data, next_start)
            if header is None:
                return _end_chunks(b"".join(chunks), data[next_start:])
            continue
        if chunk_end >= len(data):
            may_be_text = len(chunks) == 1 and not (is_html or is_truncated)
            if may_be_text and header[0].endswith(b"\n") and not header[0].endswith(b"\r\n"):
                return HttpBody(data, False)
            return HttpBody(b"".join(chunks), True)
        line_end = _LINE_END.match(data, chunk_end)
        header = line_end and _CHUNK_HEADER.match(data, line_end.end())
        is_cut_header = line_end and _CUT_CHUNK_HEADER.fullmatch(data, line_end.end())
        if is_cut_header or (line_end and line_end.end() == len(data)):
            return HttpBody(b"".join(chunks), True)
    is_text = len(chunks) == 1 and not is_html and not _LAST_CHUNK_AT_END.search(data)
    if is_text or not is_declared:
        return HttpBody(data, False)
    raise BodyError


def _end_chunks(content: bytes, rest: bytes) -> HttpBody:
    """Return the content of a body with an empty chunk that other data may follow.

    After chunks with content, trailers may follow; anything else counts as missing. If there were
    no such chunks, the other data are the content.
    """
    if not content:
        return HttpBody(rest, False)
    return HttpBody(content, _TRAILERS.fullmatch(rest) is None)


# Compression -------------------------------------------------------------------------------------

#: Takes data and the maximum length of the content.
Decompressor = Callable[[bytes, int], HttpBody]


def _decompress_declared(data: bytes, encoding: str, max_bytes: int, is_cut: bool) -> HttpBody:
    """Undo a declared compression; return the data unchanged if they are not compressed."""
    magic = {"gzip": GZIP_MAGIC, "x-gzip": GZIP_MAGIC, "zstd": ZSTD_MAGIC}.get(encoding)
    if magic is not None:
        if data and magic.startswith(data):
            return HttpBody(b"", True)
        decompress = _find_decompressor_by_magic(data)
        return HttpBody(data, False) if decompress is None else decompress(data, max_bytes)
    decompressors = {"deflate": (_inflate_zlib, _inflate_raw), "br": (_decompress_brotli,)}
    if encoding not in decompressors or is_text(data, is_cut=is_cut):
        return HttpBody(data, False)
    for decompress in decompressors[encoding]:
        try:
            return decompress(data, max_bytes)
        except BodyError:
            continue
    raise BodyError


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
