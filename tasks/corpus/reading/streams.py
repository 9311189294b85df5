"""Byte streams: files read block by block, decompressed, cut into lines of any length."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tasks.contract import FileChangedError, open_external
from tasks.corpus.reading.members import CODECS, Damage, Members

BOM = b"\xef\xbb\xbf"
BLOCK = 1 << 20  # bytes read at a time
#: What stands around the records of a file.
AROUND = "byte order mark, header or blank lines"


@dataclass
class Meter:
    """What a reader consumed, counted where it is read and not where it is interpreted.

    ``bytes`` are those of the content, decompressed, and with them those that were lost.
    """

    rows: int = 0  # records, those that one error stands for among them
    bytes: int = 0
    lost: int = 0  # compressed bytes that gave nothing, as they stand in the file
    #: Records that are no documents, and bytes that are no records, by what they are.
    skips: dict[str, list[int]] = field(default_factory=dict)

    #: The source that names the file, for errors; empty where it is a copy of Hallmark's own.
    named_by: str = ""

    def open(self, path: Path) -> BinaryIO:
        """Open a file to be read, inside the declared roots if a source names it."""
        if self.named_by:
            return open_external(path, self.named_by, buffering=1 << 16)
        return path.open("rb", buffering=1 << 16)

    def skip(self, size: int, what: str = AROUND, records: int = 0) -> None:
        counts = self.skips.setdefault(what, [0, 0])
        counts[0] += records
        counts[1] += size

    @property
    def skipped(self) -> int:
        """Bytes that belong to no document and to no error."""
        return sum(size for _, size in self.skips.values())


def blocks(path: Path, meter: Meter, marks: bool = False) -> Iterator[bytes | Damage]:
    """The bytes of a file, decompressed if its name ends in .gz or .zst.

    With ``marks`` an empty block stands before each member of a compressed file.

    Raises FileChangedError if other bytes were accounted for than the file had when it was opened.
    """
    with meter.open(path) as file:
        size = os.fstat(file.fileno()).st_size
        if codec := CODECS.get(path.suffix):
            members = Members(file, codec())
            for block in members:
                if isinstance(block, Damage):
                    meter.lost += block.lost
                meter.bytes += block.lost if isinstance(block, Damage) else len(block)
                if block or marks:
                    yield block
            unchanged(path, size, members.read + members.lost + members.padding)
        else:
            read = 0
            while data := file.read(BLOCK):
                read += len(data)
                meter.bytes += len(data)
                yield data
            unchanged(path, size, read)


def unchanged(path: Path, size: int, found: int) -> None:
    """Raise FileChangedError if a file had another size than was found in it."""
    if found != size:
        raise FileChangedError(
            f"{path} changed while it was read ({size} bytes when it was opened, "
            f"{found} bytes read); run again when nothing writes to it"
        )


@dataclass(slots=True)
class Line:
    number: int  # from 1
    data: bytes  # without its \n; a line that is too long is cut at limit + 1 bytes
    size: int  # bytes of the whole line with its \n
    error: str = ""  # bytes of the stream are missing inside this line, or behind its data
    cut: bool = False  # so are perhaps the beginnings of what stands on the lines behind it


def lines(path: Path, limit: int, meter: Meter) -> Iterator[Line]:
    """Lines of a file, however long: no more than ``limit`` bytes of one are held.

    Damage ends the line it stands in, which is an error and counts the compressed bytes that
    gave nothing. What follows is taken for the beginning of a line, unless members before were
    cut within lines: then the rest of that line belongs to the error. Lines are numbered as
    they are met; how many of them stood in lost bytes nobody knows.
    """
    line = _Begun(limit)
    for block in blocks(path, meter):
        if isinstance(block, Damage):
            line.error = block.error
            line.size += block.lost
            line.cut = block.cut
            if not block.cut:
                yield _without_bom(line.end(), meter)
            continue
        # In pieces: a block of 128 MiB of line ends would become as many objects at once.
        for start in range(0, len(block), BLOCK):
            *ends, rest = block[start : start + BLOCK].split(b"\n")
            for end in ends:
                if line.begun or line.number == 1 or len(end) > limit:
                    line.add(end)
                    line.size += 1
                    yield _without_bom(line.end(), meter)
                else:  # nearly every line, and all of a bomb of blank ones
                    yield Line(line.number, end, len(end) + 1)
                    line.number += 1
            line.add(rest)
    if line.begun:
        yield _without_bom(line.end(), meter)


class _Begun:
    """A line that is not yet at its end."""

    def __init__(self, limit: int) -> None:
        self.limit, self.number = limit, 1
        self.data, self.size, self.error, self.cut = bytearray(), 0, "", False

    @property
    def begun(self) -> bool:
        return bool(self.size or self.error)

    def add(self, data: bytes) -> None:
        self.data += data[: max(0, self.limit + 1 - len(self.data))]
        self.size += len(data)

    def end(self) -> Line:
        """The line as far as it goes; the next one begins."""
        line = Line(self.number, bytes(self.data), self.size, self.error, self.cut)
        self.number += 1
        self.data, self.size, self.error, self.cut = bytearray(), 0, "", False
        return line


def _without_bom(line: Line, meter: Meter) -> Line:
    if line.number == 1 and line.data.startswith(BOM):
        line.data, line.size = line.data[3:], line.size - 3
        meter.skip(3)
    return line
