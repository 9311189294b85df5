"""Read files block by block, decompress them, and split them into lines of any length."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from hallmark.tasks.contract import FileChangedError, open_external_file
from hallmark.tasks.corpus.reading.compressed_members import (
    CODEC_BY_SUFFIX,
    CompressedMembers,
    Damage,
)

BOM = b"\xef\xbb\xbf"
BLOCK_BYTES = 1 << 20  # bytes read at a time
#: Bytes of a file that belong to no record.
SURROUNDING_BYTES_LABEL = "byte order mark, header or blank lines"


@dataclass
class ReadCounts:
    """Count what a reader consumes, where the bytes are read and before they are interpreted."""

    record_count: int = 0  # includes all the records that one error covers
    byte_count: int = 0  # decompressed bytes plus lost_bytes
    lost_bytes: int = 0  # compressed bytes that could not be decompressed
    #: [records, bytes] that belong to no document and no error, by kind.
    skipped_by_kind: dict[str, list[int]] = field(default_factory=dict)

    #: The source of the file, for errors; "" if the file is a temporary copy made by Hallmark.
    source_label: str = ""

    def open_file(self, path: Path) -> BinaryIO:
        """Open a file for reading; a source's file must lie inside the declared roots."""
        if self.source_label:
            return open_external_file(path, self.source_label, buffering=1 << 16)
        return path.open("rb", buffering=1 << 16)

    def count_skipped(
        self, byte_count: int, kind: str = SURROUNDING_BYTES_LABEL, record_count: int = 0
    ) -> None:
        """Count bytes, and perhaps records, that belong to no document and no error."""
        counts = self.skipped_by_kind.setdefault(kind, [0, 0])
        counts[0] += record_count
        counts[1] += byte_count

    @property
    def skipped_bytes(self) -> int:
        """Return the number of bytes that belong to no document and no error."""
        return sum(size for _, size in self.skipped_by_kind.values())


def read_blocks(
    path: Path, counts: ReadCounts, mark_members: bool = False
) -> Iterator[bytes | Damage]:
    """Yield the bytes of a file, decompressed if its name has the ending of a compressed file.

    Args:
        mark_members: Yield an empty block before each member of a compressed file.

    Yields:
        Blocks of bytes, and a ``Damage`` wherever bytes are missing.

    Raises:
        FileChangedError: if the file had another size when it was opened than was read.
    """
    with counts.open_file(path) as file:
        size_at_open = os.fstat(file.fileno()).st_size
        if codec := CODEC_BY_SUFFIX.get(path.suffix.lower()):
            members = CompressedMembers(file, codec())
            for block in members:
                if isinstance(block, Damage):
                    counts.lost_bytes += block.lost_bytes
                counts.byte_count += block.lost_bytes if isinstance(block, Damage) else len(block)
                if block or mark_members:
                    yield block
            check_unchanged(
                path, size_at_open, members.read_bytes + members.lost_bytes + members.padding_bytes
            )
        else:
            read_bytes = 0
            while data := file.read(BLOCK_BYTES):
                read_bytes += len(data)
                counts.byte_count += len(data)
                yield data
            check_unchanged(path, size_at_open, read_bytes)


def check_unchanged(path: Path, expected_bytes: int, read_bytes: int) -> None:
    """Raise FileChangedError if a file did not have the expected size."""
    if read_bytes != expected_bytes:
        raise FileChangedError(
            f"{path} changed while it was read ({expected_bytes} bytes when it was opened, "
            f"{read_bytes} bytes read); run again when no other process writes to it"
        )


@dataclass(slots=True)
class Line:
    """Hold one line of a file."""

    number: int  # from 1
    data: bytes  # without its \n, and at most max_bytes + 1 bytes
    size: int  # bytes of the whole line, including its \n
    error: str = ""  # set if bytes are missing inside this line or after it
    next_may_be_cut: bool = False  # the beginning of the next line may be missing, too


def read_lines_marking_damage(
    path: Path, max_kept_bytes: int, counts: ReadCounts
) -> Iterator[Line]:
    """Yield the lines of a file of any length.

    Damage ends the line that contains it. That line is an error, and its size includes the
    compressed bytes that were lost. The data after the damage begin a new line, unless earlier
    members were cut within lines: then the rest of the line belongs to the error. Line numbers
    count the lines that were found; lines inside lost bytes cannot be counted.

    Args:
        max_kept_bytes: The most bytes of a line to keep in memory.
    """
    line_builder = _LineBuilder(max_kept_bytes)
    for block in read_blocks(path, counts):
        if isinstance(block, Damage):
            line_builder.error = block.error
            line_builder.size += block.lost_bytes
            line_builder.next_may_be_cut = block.may_continue_line
            if not block.may_continue_line:
                yield _strip_byte_order_mark(line_builder.finish_line(), counts)
            continue
        # Split in pieces: a block of 128 MiB of line ends would become as many objects at once.
        for start in range(0, len(block), BLOCK_BYTES):
            *complete_lines, remainder = block[start : start + BLOCK_BYTES].split(b"\n")
            for line_data in complete_lines:
                if (
                    line_builder.has_content
                    or line_builder.number == 1
                    or len(line_data) > max_kept_bytes
                ):
                    line_builder.append_data(line_data)
                    line_builder.size += 1
                    yield _strip_byte_order_mark(line_builder.finish_line(), counts)
                else:  # the fast path for nearly all lines, and for a file of blank lines only
                    yield Line(line_builder.number, line_data, len(line_data) + 1)
                    line_builder.number += 1
            line_builder.append_data(remainder)
    if line_builder.has_content:
        yield _strip_byte_order_mark(line_builder.finish_line(), counts)


class _LineBuilder:
    """Collect the pieces of a line that is not complete yet."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.number = max_bytes, 1
        self.data, self.size, self.error, self.next_may_be_cut = bytearray(), 0, "", False

    @property
    def has_content(self) -> bool:
        return bool(self.size or self.error)

    def append_data(self, data: bytes) -> None:
        self.data += data[: max(0, self.max_bytes + 1 - len(self.data))]
        self.size += len(data)

    def finish_line(self) -> Line:
        """Return the line and begin the next one."""
        line = Line(self.number, bytes(self.data), self.size, self.error, self.next_may_be_cut)
        self.number += 1
        self.data, self.size, self.error, self.next_may_be_cut = bytearray(), 0, "", False
        return line


def _strip_byte_order_mark(line: Line, counts: ReadCounts) -> Line:
    if line.number == 1 and line.data.startswith(BOM):
        line.data, line.size = line.data[3:], line.size - 3
        counts.count_skipped(3)
    return line
