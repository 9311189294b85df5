"""Decompress files member by member, and find the next member after damaged data.

A gzip file is a sequence of members, a zstd file a sequence of frames, and a bzip2 or xz file a
sequence of streams; all are called members here. Each can be decompressed by itself, so damage in
one member need not cost the later ones. The next member is searched for by its magic bytes,
beginning one byte after the start of the damaged member, because the decoder may have read past the
true end before it noticed the damage.

A candidate is accepted as a member after damage if its header parses and its first two output
blocks decompress without error, or if its data end before that. One block is too little: a header
with a long name may leave only a few bytes for a block. Random bytes do not pass this test, and no
output of a rejected candidate is passed on. A later error in an accepted member is damage like any
other.

Known limits:

- gzip's checksum is at the end of a member. The output of a long member between the damage and the
  place where it was noticed is passed on and may be nonsense. In stored (uncompressed) members it
  may be text of the next member, which then appears twice.
- A zstd frame without a checksum may hide damage.
- Data that were compressed twice may be found inside the rest of a damaged member.

Memory is a few blocks. Time is linear: a candidate costs one block. Once more bytes have been
decompressed a second time than the file has, candidates within data already read are skipped.
"""

from __future__ import annotations

import bz2
import lzma
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import BinaryIO

import zstandard

DAMAGED_DATA = "the compressed data are damaged"
TRUNCATED_DATA = "the compressed data are incomplete: the end is missing"
COMPRESSED_BLOCK_BYTES = 1 << 12  # small: 4 KiB of a hostile zstd file can expand to 128 MiB
MAX_REPEATED_BYTES = 1 << 20  # bytes of any file that may be decompressed again
MAX_MAGIC_BYTES = 10  # the longest sequence of bytes that marks the start of a member
MAX_WINDOW_BYTES = 1 << 31  # memory that a decompressor may take because a file says so


@dataclass(frozen=True)
class Damage:
    """Mark a place in a stream where bytes are missing."""

    error: str
    lost_bytes: int  # compressed bytes that could not be decompressed
    may_continue_line: bool  # members were cut within lines: the next data may continue a line
    # all data of the member before it were read; at most its end is damaged
    is_only_at_end: bool = False


class GzipCodec:
    """Describe gzip members, which all end with a checksum."""

    magic_patterns = ((re.compile(rb"\x1f\x8b\x08"), 0),)
    proof_bytes = 1 << 12  # enough for names and the first code table

    def make_decompressor(self) -> zlib._Decompress:
        return zlib.decompressobj(wbits=31)

    def parse_skippable_frame_size(self, first_bytes: bytes) -> int:
        return 0

    def can_follow_member(self, first_bytes: bytes) -> bool:
        return True


class ZstdCodec:
    """Describe zstd frames; without a checksum, the next bytes show whether a frame ended."""

    magic_patterns = ((re.compile(rb"\x28\xb5\x2f\xfd"), 0), (re.compile(rb"\x2a\x4d\x18"), 1))
    proof_bytes = 1 << 18  # a block takes up to 128 KiB

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)

    def make_decompressor(self) -> zstandard.ZstdDecompressionObj:
        return self.decompressor.decompressobj()

    def parse_skippable_frame_size(self, first_bytes: bytes) -> int:
        """Return the size in bytes of the skippable frame that begins here, or 0."""
        if (
            len(first_bytes) < 8
            or first_bytes[0] & 0xF0 != 0x50
            or first_bytes[1:4] != b"\x2a\x4d\x18"
        ):
            return 0
        return 8 + int.from_bytes(first_bytes[4:8], "little")

    def can_follow_member(self, first_bytes: bytes) -> bool:
        """Return whether a frame may be followed by these bytes: padding or a frame start."""
        first_bytes = first_bytes.lstrip(b"\0")
        if first_bytes and first_bytes[0] & 0xF0 == 0x50:
            return b"\x2a\x4d\x18".startswith(first_bytes[1:4])
        return b"\x28\xb5\x2f\xfd".startswith(first_bytes[:4])


class Bzip2Codec:
    """Describe bzip2 streams, which all end with a checksum."""

    #: A stream begins with a block, or ends at once because it is empty.
    magic_patterns = ((re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), 0),)
    proof_bytes = 1 << 20  # a block takes up to 900 KB

    def make_decompressor(self) -> bz2.BZ2Decompressor:
        return bz2.BZ2Decompressor()

    def parse_skippable_frame_size(self, first_bytes: bytes) -> int:
        return 0

    def can_follow_member(self, first_bytes: bytes) -> bool:
        return True


class XzCodec:
    """Describe xz streams, which all end with a footer."""

    magic_patterns = ((re.compile(rb"\xfd7zXZ\x00"), 0),)
    proof_bytes = 1 << 18  # a chunk takes up to 64 KiB

    def make_decompressor(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_WINDOW_BYTES)

    def parse_skippable_frame_size(self, first_bytes: bytes) -> int:
        return 0

    def can_follow_member(self, first_bytes: bytes) -> bool:
        return True


Codec = GzipCodec | ZstdCodec | Bzip2Codec | XzCodec

#: The codecs by the ending of a file's name, in lower case.
CODEC_BY_SUFFIX: dict[str, type[Codec]] = {
    ".gz": GzipCodec,
    ".zst": ZstdCodec,
    ".zstd": ZstdCodec,
    ".bz2": Bzip2Codec,
    ".xz": XzCodec,
}


def detect_codec(file: BinaryIO) -> type[Codec] | None:
    """Return the codec whose magic bytes begin a file; a text cannot begin with them."""
    first_bytes = file.read(MAX_MAGIC_BYTES)
    file.seek(0)
    return find_codec(first_bytes)


def find_codec(first_bytes: bytes) -> type[Codec] | None:
    """Return the codec whose magic bytes begin the data."""
    for codec in (GzipCodec, ZstdCodec, Bzip2Codec, XzCodec):
        pattern, _ = codec.magic_patterns[0]
        if pattern.match(first_bytes):
            return codec
    return None


#: Raised by a decompressor for data that are not of its format; bz2 raises OSError.
_DECOMPRESSION_ERRORS = (zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError)


@dataclass
class _Member:
    """Track one member while its output is read."""

    start: int
    output_end: int = 0  # end of the compressed bytes that gave output
    end: int = 0  # set after the whole member was read
    error: str = ""
    output_blocks: Iterator[bytes] = field(default_factory=lambda: iter(()))


class CompressedMembers:
    """Iterate over the decompressed bytes of an open file.

    Yields an empty block before each member, and a ``Damage`` wherever bytes are missing. After the
    iteration, ``read_bytes``, ``lost_bytes`` and ``padding_bytes`` add up to the file's size.
    """

    def __init__(self, file: BinaryIO, codec: Codec) -> None:
        self.file, self.codec = file, codec
        self.file_size = os.fstat(file.fileno()).st_size
        self.read_bytes = self.lost_bytes = self.padding_bytes = 0
        self.furthest_position = self.repeated_bytes = 0

    def __iter__(self) -> Iterator[bytes | Damage]:
        member, may_continue_line = self._open_member_after_padding(0), False
        while member is not None:
            ends_in_newline = True
            yield b""
            for block in member.output_blocks:
                ends_in_newline = block.endswith(b"\n")
                yield block
            if not member.error and self._can_member_end_at(member.end):
                self.read_bytes += member.end - member.start
                next_member = self._open_member_after_padding(member.end)
                may_continue_line = may_continue_line or (
                    next_member is not None and not ends_in_newline
                )
            else:
                next_member = self._find_next_member(member.start + 1)
                yield self._describe_damage(member, next_member, may_continue_line)
            member = next_member

    def _describe_damage(
        self, member: _Member, next_member: _Member | None, may_continue_line: bool
    ) -> Damage:
        end = next_member.start if next_member else self.file.seek(0, os.SEEK_END)
        lost_bytes = max(0, end - member.output_end)
        self.read_bytes += end - member.start - lost_bytes
        self.lost_bytes += lost_bytes
        error = member.error if member.error and not next_member else DAMAGED_DATA
        return Damage(error, lost_bytes, may_continue_line, not member.error)

    def _read_at(self, position: int, size: int) -> bytes:
        self.file.seek(position)
        return self.file.read(size)

    def _can_member_end_at(self, position: int) -> bool:
        return self.codec.can_follow_member(self._read_at(position, COMPRESSED_BLOCK_BYTES))

    def _open_member_after_padding(self, position: int) -> _Member | None:
        """Open the member that begins here, after zero padding; None at the end of the file."""
        while data := self._read_at(position, COMPRESSED_BLOCK_BYTES):
            padding = len(data) - len(data.lstrip(b"\0"))
            self.padding_bytes += padding
            position += padding
            if padding < len(data):
                return self._open_member(position, 0)
        return None

    def _open_member(self, start: int, proof_bytes: int) -> _Member:
        member = _Member(start, output_end=start)
        member.output_blocks = self._decompress_member(member, proof_bytes)
        return member

    def _decompress_member(self, member: _Member, proof_bytes: int) -> Iterator[bytes]:
        """Yield the output of a member.

        Args:
            proof_bytes: For a candidate, the compressed bytes within which output must appear; else
                0.
        """
        if skippable_size := self.codec.parse_skippable_frame_size(self._read_at(member.start, 8)):
            member.end = member.output_end = member.start + skippable_size
            if member.end > self.file_size or not self._can_member_end_at(member.end):
                member.error = TRUNCATED_DATA if member.end > self.file_size else DAMAGED_DATA
                member.output_end = member.start
            return
        stream, position = self.codec.make_decompressor(), member.start
        while data := self._read_at(position, COMPRESSED_BLOCK_BYTES):
            if (
                proof_bytes
                and position - member.start >= proof_bytes
                and member.output_end == member.start
            ):
                member.error = DAMAGED_DATA
                return
            self._add_repeated_bytes(member, position, len(data))
            try:
                block = stream.decompress(data)
            except _DECOMPRESSION_ERRORS:
                member.error = DAMAGED_DATA
                return
            position += len(data)
            if stream.eof:
                member.end = member.output_end = position - len(stream.unused_data)
            elif block:
                member.output_end = position
            if block:
                yield block
            if stream.eof:
                return
        member.error = TRUNCATED_DATA

    def _add_repeated_bytes(self, member: _Member, position: int, size: int) -> None:
        """Count bytes read again; first blocks are free, because every candidate costs one."""
        if position > member.start:
            self.repeated_bytes += size * (position < self.furthest_position)
            self.furthest_position = max(self.furthest_position, position + size)

    def _find_next_member(self, position: int) -> _Member | None:
        """Find the first member at or after this position that decompresses."""
        for start in self._find_magic_positions(position):
            if start < self.furthest_position and self.repeated_bytes > max(
                self.file_size, MAX_REPEATED_BYTES
            ):
                continue
            if member := self.open_candidate(start):
                return member
        return None

    def open_candidate(self, start: int) -> _Member | None:
        """Open the member that may begin here; None if its first data do not decompress."""
        member = self._open_member(start, self.codec.proof_bytes)
        first_blocks = list(islice(member.output_blocks, 2))
        if member.error and not (first_blocks and member.error == TRUNCATED_DATA):
            return None
        member.output_blocks = chain(first_blocks, member.output_blocks)
        return member

    def _find_magic_positions(self, position: int) -> Iterator[int]:
        """Yield each position of magic bytes once and in order."""
        while data := self._read_at(position, COMPRESSED_BLOCK_BYTES + MAX_MAGIC_BYTES - 1):
            positions = (
                match.start() - magic_offset
                for magic, magic_offset in self.codec.magic_patterns
                for match in magic.finditer(data)
            )
            for start in sorted(positions):
                if 0 <= start < COMPRESSED_BLOCK_BYTES:
                    yield position + start
            position += COMPRESSED_BLOCK_BYTES


def can_decompress(file: BinaryIO, codec: Codec) -> bool:
    """Return whether an open file begins with data that a codec decompresses."""
    has_member = CompressedMembers(file, codec).open_candidate(0) is not None
    file.seek(0)
    return has_member
