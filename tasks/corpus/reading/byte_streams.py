"""Read files block by block, decompress them, and split them into lines of any length.

All readers of lines have the same rules. The lines of a file end with LF or CRLF, or with CR if its
first block has no LF. CR CR LF, which Windows makes of CRLF in a file that is open as text, is one
line end. Other line breaks of Unicode end a line only where a format says so, because JSON strings
and CSV fields may contain them. A line is blank if it has only white space of any kind.

A byte order mark decides about UTF-16 and UTF-32, which become UTF-8 here: ``byte_count`` and the
sizes of lines are those of the UTF-8 text. The content of a file decides about its compression, and
not its name.
"""

from __future__ import annotations

import codecs
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from hallmark.tasks.contract import FileChangedError, open_external_file
from hallmark.tasks.corpus.reading.compressed_members import (
    CODEC_BY_SUFFIX,
    DAMAGED_DATA,
    Codec,
    CompressedMembers,
    Damage,
    can_decompress,
    detect_codec,
    find_codec,
)

BOM = b"\xef\xbb\xbf"
BLOCK_BYTES = 1 << 20  # bytes read at a time
#: The line breaks that Unicode requires to be honoured (UAX #14, classes BK, CR, LF and NL).
LINE_BREAK = re.compile(rb"\r\r?\n|[\n\r\x0b\x0c]|\xc2\x85|\xe2\x80[\xa8\xa9]")
#: White space, including spaces that do not break and marks without width.
_BLANKS = re.compile(
    rb"(?:[\s\x1c-\x1f]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8b\xa8\xa9\xaf]"
    rb"|\xe2\x81[\x9f\xa0]|\xe3\x80\x80|\xef\xbb\xbf)*+"
)
#: Control characters that no text contains, except in UTF-16 and UTF-32.
BINARY_BYTES = bytes(sorted({*range(32)} - {*b"\t\n\f\r\x1b"}))
#: So many compressed bytes contain a binary byte with a probability of more than 0.999999.
MIN_BYTES_OF_CERTAIN_TEXT = 128

#: Byte order marks of encodings other than UTF-8; a longer mark comes before its beginning.
_WIDE_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le", "UTF-32"),
    (codecs.BOM_UTF32_BE, "utf-32-be", "UTF-32"),
    (codecs.BOM_UTF16_LE, "utf-16-le", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16-be", "UTF-16"),
)
_UTF16_WITHOUT_MARK = re.compile(rb"(?:[\t\n\r -~]\0){2}|(?:\0[\t\n\r -~]){2}")
#: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md, and the name before version 1.
_LFS_POINTER = re.compile(rb"version https://(?:git-lfs|hawser)\.github\.com/spec/v1\r?\n")
MAX_LFS_POINTER_BYTES = 1024
TAR_MAGIC, TAR_MAGIC_START = b"ustar", 257
ZIP_MAGIC = b"PK\x03\x04"

UTF16_WITHOUT_MARK = "UTF-16 without a byte order mark"
TAR_ARCHIVE = "a tar archive"
ZIP_ARCHIVE = "a zip archive or an office document"
COMPRESSED_TWICE = "compressed twice"
LFS_POINTER = "a Git LFS pointer instead of the file"
#: What to do about files that cannot be read.
REMEDY_BY_FILE_ERROR = {
    UTF16_WITHOUT_MARK: "convert the file to UTF-8",
    TAR_ARCHIVE: "unpack the archive",
    ZIP_ARCHIVE: "unpack the archive, or export the file as text",
    COMPRESSED_TWICE: "decompress the file once",
    LFS_POINTER: "run git lfs pull",
}

#: Bytes of a file that belong to no record.
SURROUNDING_BYTES_LABEL = "byte order mark, header or blank lines"


@dataclass
class ReadCounts:
    """Count what a reader consumes, where the bytes are read and before they are interpreted."""

    record_count: int = 0  # includes all the records that one error covers
    byte_count: int = 0  # decompressed bytes plus lost_bytes
    lost_bytes: int = 0  # bytes that could not be decompressed or decoded
    #: [records, bytes] that belong to no document and no error, by kind.
    skipped_by_kind: dict[str, list[int]] = field(default_factory=dict)

    #: How the file is written, if its reader detects that.
    file_format: str = ""
    #: What is unusual about its encoding or compression.
    storage_format: str = ""

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
    """Yield the bytes of a file, decompressed if its first bytes or its name show a compression.

    Args:
        mark_members: Yield an empty block before each member of a compressed file.

    Yields:
        Blocks of bytes, and a ``Damage`` wherever bytes are missing. A file that is no text is one
        ``Damage``.

    Raises:
        FileChangedError: if the file had another size when it was opened than was read.
    """
    for block in _decode_blocks(_read_decompressed_blocks(path, counts), counts):
        if isinstance(block, Damage):
            counts.lost_bytes += block.lost_bytes
        counts.byte_count += block.lost_bytes if isinstance(block, Damage) else len(block)
        if block or mark_members:
            yield block


def _read_decompressed_blocks(path: Path, counts: ReadCounts) -> Iterator[bytes | Damage]:
    """Yield the decompressed bytes of a file, with an empty block before each member."""
    with counts.open_file(path) as file:
        size_at_open = os.fstat(file.fileno()).st_size
        codec = _choose_codec(file, path.suffix.lower(), counts)
        if codec is not None:
            members = CompressedMembers(file, codec())
            yield from members
            read_bytes = members.read_bytes + members.lost_bytes + members.padding_bytes
        else:
            read_bytes = 0
            while data := file.read(BLOCK_BYTES):
                read_bytes += len(data)
                yield data
        check_unchanged(path, size_at_open, read_bytes)


def _choose_codec(file: BinaryIO, suffix: str, counts: ReadCounts) -> type[Codec] | None:
    """Return how a file is compressed: as its beginning shows, otherwise as its name says.

    Damaged data may have any beginning, but not that of a text.
    """
    named_codec, detected_codec = CODEC_BY_SUFFIX.get(suffix), detect_codec(file)
    if detected_codec is named_codec:
        return named_codec
    # The first line of a text may be damaged and begin like compressed data.
    if detected_codec is not None and not can_decompress(file, detected_codec()):
        detected_codec = None
    if named_codec is None:
        return detected_codec
    beginning = file.read(1024)
    file.seek(0)
    if detected_codec is None and (not beginning or not is_text(beginning)):
        return named_codec
    endings = [ending for ending, codec in CODEC_BY_SUFFIX.items() if codec is detected_codec]
    compression = f"compression {endings[0]}" if endings else "no compression"
    counts.storage_format = f"{compression} despite the extension {suffix}"
    return detected_codec


def is_text(data: bytes, *, is_cut: bool = False) -> bool:
    """Return whether data are certainly text in some encoding.

    The first bytes of compressed data may be text by chance.

    Args:
        is_cut: Whether more data may follow.
    """
    if data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    beginning = data[:1024]
    if len(beginning.translate(None, BINARY_BYTES)) < len(beginning):
        return False
    if len(beginning) >= MIN_BYTES_OF_CERTAIN_TEXT or beginning.lstrip().startswith(b"<"):
        return True
    if is_cut:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return False
    return True


def _decode_blocks(
    blocks: Iterator[bytes | Damage], counts: ReadCounts
) -> Iterator[bytes | Damage]:
    """Yield blocks in UTF-8 if they begin with the mark of a wide encoding, otherwise unchanged.

    What cannot be decoded becomes bytes that are not valid in UTF-8.
    """
    first_blocks: deque[bytes | Damage] = deque()
    beginning = b""
    for block in blocks:
        first_blocks.append(block)
        beginning += b"" if isinstance(block, Damage) else block[:MAX_LFS_POINTER_BYTES]
        if isinstance(block, Damage) or len(beginning) >= MAX_LFS_POINTER_BYTES:
            break
    # An empty block precedes each member of a compressed file.
    first_blocks_are_decompressed = bool(first_blocks) and first_blocks[0] == b""
    # The first blocks are not kept in memory.
    all_blocks = chain((first_blocks.popleft() for _ in range(len(first_blocks))), blocks)
    block = b""
    error = find_file_error(beginning)
    if not error and first_blocks_are_decompressed and find_codec(beginning) is not None:
        error = COMPRESSED_TWICE
    if error:
        sizes = (each.lost_bytes if isinstance(each, Damage) else len(each) for each in all_blocks)
        yield Damage(error, sum(sizes), may_continue_line=False)
        return
    for mark, encoding, encoding_name in _WIDE_BYTE_ORDER_MARKS:
        if beginning.startswith(mark):
            counts.storage_format = ", ".join(filter(None, [encoding_name, counts.storage_format]))
            yield from _decode_wide_blocks(all_blocks, encoding)
            return
    yield from all_blocks


def find_file_error(beginning: bytes) -> str:
    """Return why a file cannot be read that begins with these bytes; "" if it can.

    Args:
        beginning: At least ``MAX_LFS_POINTER_BYTES`` bytes, or the whole file; decompressed.
    """
    if len(beginning) < MAX_LFS_POINTER_BYTES and _LFS_POINTER.match(beginning):
        return LFS_POINTER
    if beginning.startswith(TAR_MAGIC, TAR_MAGIC_START) and b"\0" in beginning[:TAR_MAGIC_START]:
        return TAR_ARCHIVE
    if beginning.startswith(ZIP_MAGIC):
        return ZIP_ARCHIVE
    return UTF16_WITHOUT_MARK if _UTF16_WITHOUT_MARK.match(beginning) else ""


def _decode_wide_blocks(
    blocks: Iterator[bytes | Damage], encoding: str
) -> Iterator[bytes | Damage]:
    """Yield blocks in UTF-8; after damage, it is unknown where a character begins."""
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    is_damaged = False
    for block in blocks:
        if isinstance(block, Damage):
            is_damaged = True
            yield block
        elif is_damaged and block:
            yield Damage(DAMAGED_DATA, len(block), may_continue_line=False)
        elif not is_damaged:
            try:
                yield decoder.decode(block).encode("utf-8", "surrogatepass")
            except UnicodeDecodeError:  # a number in UTF-32 that is no character
                is_damaged = True
                pending_bytes = decoder.getstate()[0]
                lost_bytes = len(pending_bytes) + len(block)
                yield Damage(DAMAGED_DATA, lost_bytes, may_continue_line=False)
                decoder.reset()
    yield b"\xff" * len(decoder.getstate()[0])


def check_unchanged(path: Path, expected_bytes: int, read_bytes: int) -> None:
    """Raise FileChangedError if a file did not have the expected size."""
    if read_bytes != expected_bytes:
        raise FileChangedError(
            f"{path} changed while it was being read ({expected_bytes} bytes when it was opened, "
            f"{read_bytes} bytes read); run again when no other process is writing to the file"
        )


@dataclass(slots=True)
class Line:
    """Hold one line of a file."""

    number: int  # from 1
    data: bytes  # without its end (of CRLF, without LF), cut some bytes after max_bytes
    size: int  # bytes of the whole line, including its end
    error: str = ""  # set if bytes are missing inside this line or after it
    next_may_be_cut: bool = False  # the beginning of the next line may be missing, too
    end: bytes = b"\n"  # what ends the line; empty if the file or its undamaged part ends here


def is_blank(data: bytes) -> bool:
    """Return whether data consist of nothing but white space of any kind."""
    # Nearly all lines begin with a letter.
    return not data[:1].isalnum() and _BLANKS.fullmatch(data) is not None


def _has_line_break(line: Line) -> bool:
    """Return whether a line break precedes the end of a line; much faster than a search."""
    data = line.data
    if len(data.translate(None, b"\r\x0b\x0c")) != len(data):
        # The CR of CRLF is in the data.
        end = len(data) - (line.end == b"\n" and data.endswith(b"\r"))
        return LINE_BREAK.search(data, 0, end) is not None
    return not data.isascii() and (
        b"\xe2\x80\xa8" in data or b"\xe2\x80\xa9" in data or b"\xc2\x85" in data
    )


def split_at_line_breaks(line: Line) -> list[Line]:
    """Split a line at the line breaks of Unicode that it contains; the parts have its number."""
    if line.error or line.size != len(line.data) + len(line.end) or not _has_line_break(line):
        return [line]
    data = line.data + line.end
    parts, start = [], 0
    for match in LINE_BREAK.finditer(data):
        part = data[start : match.start()]
        parts.append(Line(line.number, part, match.end() - start, end=match[0]))
        start = match.end()
    if start < len(data):
        parts.append(Line(line.number, data[start:], len(data) - start, end=b""))
    return parts


def read_lines_marking_damage(
    path: Path, max_kept_bytes: int, counts: ReadCounts, separator: bytes = b""
) -> Iterator[Line]:
    """Yield the lines of a file of any length.

    Damage ends the line that contains it. That line is an error, and its size includes the
    compressed bytes that were lost. The data after the damage begin a new line, unless earlier
    members were cut within lines: then the rest of the line belongs to the error. Line numbers
    count the lines that were found; lines inside lost bytes cannot be counted.

    Args:
        max_kept_bytes: The most bytes of a line to keep in memory.
        separator: The byte that ends lines, LF or CR; detected if it is not given.
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
        if not separator:
            ends_in_cr = line_builder.data.endswith(b"\r")
            separator = detect_line_separator(b"\r" * ends_in_cr + block)
            if separator == b"\r" and ends_in_cr:
                line_builder.data.pop()
                yield _strip_byte_order_mark(line_builder.finish_line(separator), counts)
        # Split in pieces: a block of 128 MiB of line ends would become as many objects at once.
        for start in range(0, len(block), BLOCK_BYTES):
            piece = block[start : start + BLOCK_BYTES]
            *complete_lines, remainder = piece.split(separator) if separator else [piece]
            for line_data in complete_lines:
                if (
                    line_builder.has_content
                    or line_builder.number == 1
                    or len(line_data) > max_kept_bytes
                ):
                    line_builder.append_data(line_data)
                    line_builder.size += 1
                    yield _strip_byte_order_mark(line_builder.finish_line(separator), counts)
                else:  # the fast path for nearly all lines, and for a file of blank lines only
                    yield Line(
                        line_builder.number, line_data, len(line_data) + 1, "", False, separator
                    )
                    line_builder.number += 1
            line_builder.append_data(remainder)
    if line_builder.has_content:
        yield _strip_byte_order_mark(line_builder.finish_line(), counts)


def detect_line_separator(data: bytes) -> bytes:
    """Return the byte that ends the lines of data: LF, or CR if there is no LF.

    Returns:
        Nothing if no line ends in the data; a CR at their end may be the beginning of CRLF.
    """
    if b"\n" in data:
        return b"\n"
    return b"\r" if b"\r" in data[:-1] else b""


class _LineBuilder:
    """Collect the pieces of a line that is not complete yet."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.number = max_bytes, 1
        self.data, self.size, self.error, self.next_may_be_cut = bytearray(), 0, "", False

    @property
    def has_content(self) -> bool:
        return bool(self.size or self.error)

    def append_data(self, data: bytes) -> None:
        # The first line may begin with a byte order mark, which does not count.
        kept_bytes = self.max_bytes + 1 + len(BOM) * (self.number == 1)
        self.data += data[: max(0, kept_bytes - len(self.data))]
        self.size += len(data)

    def finish_line(self, end: bytes = b"") -> Line:
        """Return the line and begin the next one."""
        line = Line(self.number, bytes(self.data), self.size, self.error, self.next_may_be_cut, end)
        self.number += 1
        self.data, self.size, self.error, self.next_may_be_cut = bytearray(), 0, "", False
        return line


def _strip_byte_order_mark(line: Line, counts: ReadCounts) -> Line:
    if line.number == 1 and line.data.startswith(BOM):
        line.data, line.size = line.data[3:], line.size - 3
        counts.count_skipped(3)
    return line
