"""Byte streams: files read block by block, decompressed, cut into lines of any length."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

BOM = b"\xef\xbb\xbf"
BLOCK = 1 << 20  # bytes read at a time
COMPRESSED_BLOCK = 1 << 12  # small: 4 KiB of a hostile zstd file can swell to 128 MiB


@dataclass
class Meter:
    """What a reader consumed, counted where it is read and not where it is interpreted."""

    rows: int = 0
    bytes: int = 0
    skipped: int = 0  # bytes that belong to no record: byte order mark, header, blank lines


class Unreadable(Exception):
    """A stream that cannot be read on; the message is the error to record."""


def blocks(path: Path, meter: Meter) -> Iterator[bytes]:
    """The bytes of a file, decompressed if its name ends in .gz or .zst.

    Raises Unreadable behind the last good byte of a damaged or truncated stream.
    """
    with path.open("rb") as file:
        for block in _decompressed(file, path.suffix):
            meter.bytes += len(block)
            yield block


def _decompressed(file: BinaryIO, suffix: str) -> Iterator[bytes]:
    if suffix not in (".gz", ".zst"):
        while block := file.read(BLOCK):
            yield block
        return
    stream: Any = None
    while data := file.read(COMPRESSED_BLOCK):
        while data:
            if stream is None:
                data = data.lstrip(b"\0")  # padding between members
                if not data:
                    break
                stream = (
                    zlib.decompressobj(wbits=31)
                    if suffix == ".gz"
                    else zstandard.ZstdDecompressor().decompressobj()
                )
            try:
                block = stream.decompress(data)
            except (zlib.error, zstandard.ZstdError) as error:
                raise Unreadable("the compressed data are damaged") from error
            if block:
                yield block
            data = b""
            if stream.eof:
                data, stream = stream.unused_data, None
    if stream is not None:
        raise Unreadable("the compressed data end too early")


@dataclass(slots=True)
class Line:
    number: int  # from 1
    data: bytes  # without its \n; a line that is too long is cut at limit + 1 bytes
    size: int  # bytes of the whole line with its \n
    error: str = ""  # the stream broke inside this line


def lines(path: Path, limit: int, meter: Meter) -> Iterator[Line]:
    """Lines of a file, however long: no more than ``limit`` bytes of one are held."""
    begun, size, number = bytearray(), 0, 1
    try:
        for block in blocks(path, meter):
            *ends, rest = block.split(b"\n")
            for end in ends:
                if size:
                    begun += end[: max(0, limit + 1 - len(begun))]
                    end, length = bytes(begun), size + len(end) + 1
                    begun, size = bytearray(), 0
                else:
                    length = len(end) + 1
                yield _without_bom(Line(number, end, length), meter)
                number += 1
            begun += rest[: max(0, limit + 1 - len(begun))]
            size += len(rest)
    except Unreadable as error:
        yield _without_bom(Line(number, bytes(begun), size, str(error)), meter)
        return
    if size:
        yield _without_bom(Line(number, bytes(begun), size), meter)


def _without_bom(line: Line, meter: Meter) -> Line:
    if line.number == 1 and line.data.startswith(BOM):
        line.data, line.size = line.data[3:], line.size - 3
        meter.skipped += 3
    return line
