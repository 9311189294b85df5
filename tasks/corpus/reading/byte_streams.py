"""Byte streams: files read block by block, decompressed, cut into lines of any length."""

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
#: What stands around the records of a file.
SURROUNDING_BYTES_LABEL = "byte order mark, header or blank lines"


@dataclass
class ReadCounts:
    """What a reader consumed, counted where it is read and not where it is interpreted.

    ``bytes`` are those of the content, decompressed, and with them those that were lost.
    """

    record_count: int = 0  # records, those that one error stands for among them
    byte_count: int = 0
    lost_bytes: int = 0  # compressed bytes that gave nothing, as they stand in the file
    #: Records that are no documents, and bytes that are no records, by what they are.
    skipped_by_kind: dict[str, list[int]] = field(default_factory=dict)

    #: The source that names the file, for errors; empty where it is a copy of Hallmark's own.
    source_label: str = ""

    def open_file(self, path: Path) -> BinaryIO:
        """Open a file to be read, inside the declared roots if a source names it."""
        if self.source_label:
            return open_external_file(path, self.source_label, buffering=1 << 16)
        return path.open("rb", buffering=1 << 16)

    def count_skipped(
        self, byte_count: int, kind: str = SURROUNDING_BYTES_LABEL, record_count: int = 0
    ) -> None:
        counts = self.skipped_by_kind.setdefault(kind, [0, 0])
        counts[0] += record_count
        counts[1] += byte_count

    @property
    def skipped_bytes(self) -> int:
        """Bytes that belong to no document and to no error."""
        return sum(size for _, size in self.skipped_by_kind.values())


def read_blocks(
    path: Path, counts: ReadCounts, mark_members: bool = False
) -> Iterator[bytes | Damage]:
    """The bytes of a file, decompressed if its name ends in .gz or .zst.

    With ``marks`` an empty block stands before each member of a compressed file.

    Raises FileChangedError if other bytes were accounted for than the file had when it was opened.
    """
    with counts.open_file(path) as file:
        size_at_open = os.fstat(file.fileno()).st_size
        if codec := CODEC_BY_SUFFIX.get(path.suffix):
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
    """Raise FileChangedError if a file had another size than was found in it."""
    if read_bytes != expected_bytes:
        raise FileChangedError(
            f"{path} changed while it was read ({expected_bytes} bytes when it was opened, "
            f"{read_bytes} bytes read); run again when nothing writes to it"
        )


@dataclass(slots=True)
class Line:
    number: int  # from 1
    data: bytes  # without its \n; a line that is too long is cut at limit + 1 bytes
    size: int  # bytes of the whole line with its \n
    error: str = ""  # bytes of the stream are missing inside this line, or behind its data
    next_may_be_cut: bool = (
        False  # so are perhaps the beginnings of what stands on the lines behind it
    )


def read_lines(path: Path, max_bytes: int, counts: ReadCounts) -> Iterator[Line]:
    """Lines of a file, however long: no more than ``limit`` bytes of one are held.

    Damage ends the line it stands in, which is an error and counts the compressed bytes that
    gave nothing. What follows is taken for the beginning of a line, unless members before were
    cut within lines: then the rest of that line belongs to the error. Lines are numbered as
    they are met; how many of them stood in lost bytes nobody knows.
    """
    line_builder = _LineBuilder(max_bytes)
    for block in read_blocks(path, counts):
        if isinstance(block, Damage):
            line_builder.error = block.error
            line_builder.size += block.lost_bytes
            line_builder.next_may_be_cut = block.may_continue_line
            if not block.may_continue_line:
                yield _strip_byte_order_mark(line_builder.finish_line(), counts)
            continue
        # In pieces: a block of 128 MiB of line ends would become as many objects at once.
        for start in range(0, len(block), BLOCK_BYTES):
            *complete_lines, remainder = block[start : start + BLOCK_BYTES].split(b"\n")
            for line_data in complete_lines:
                if (
                    line_builder.has_content
                    or line_builder.number == 1
                    or len(line_data) > max_bytes
                ):
                    line_builder.append_data(line_data)
                    line_builder.size += 1
                    yield _strip_byte_order_mark(line_builder.finish_line(), counts)
                else:  # nearly every line, and all of a bomb of blank ones
                    yield Line(line_builder.number, line_data, len(line_data) + 1)
                    line_builder.number += 1
            line_builder.append_data(remainder)
    if line_builder.has_content:
        yield _strip_byte_order_mark(line_builder.finish_line(), counts)


class _LineBuilder:
    """A line that is not yet at its end."""

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
        """The line as far as it goes; the next one begins."""
        line = Line(self.number, bytes(self.data), self.size, self.error, self.next_may_be_cut)
        self.number += 1
        self.data, self.size, self.error, self.next_may_be_cut = bytearray(), 0, "", False
        return line


def _strip_byte_order_mark(line: Line, counts: ReadCounts) -> Line:
    if line.number == 1 and line.data.startswith(BOM):
        line.data, line.size = line.data[3:], line.size - 3
        counts.count_skipped(3)
    return line
