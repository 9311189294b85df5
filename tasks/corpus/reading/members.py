"""Compressed files: members one behind the other, and the next one found behind damage.

A gzip file is a row of members and a zstd file a row of frames, here both called members. Each
can be decompressed by itself, so damage in one need not cost those behind it: the next is
searched for by its first bytes, from the first byte behind the beginning of the damaged one
(its decoder may have run over the true end before it noticed).

What counts as a member behind damage: its header parses and its first two blocks of output come
without error, or it ends before. (One is too little: a header with a long name may leave a few
bytes of a block.) Random bytes do not come that far, and nothing of a false candidate is handed
on before. A later error in it is damage like any other.

What this cannot rule out: gzip's checksum stands at a member's end, so what a long member gave
between the damage and the place where it was noticed is handed on and may be nonsense, or, in
members that are stored and not compressed, text of the next member, which then comes twice. A
zstd frame without checksum may hide damage. What was compressed twice may be found within the
rest of a damaged member.

Memory is a few blocks. Time is linear: a candidate costs one block, and once more bytes were
decompressed a second time than the file has, candidates within what was read are passed over.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, BinaryIO

import zstandard

DAMAGED = "the compressed data are damaged"
TOO_EARLY = "the compressed data end too early"
COMPRESSED_BLOCK = 1 << 12  # small: 4 KiB of a hostile zstd file can swell to 128 MiB
PATIENCE = 1 << 20  # bytes that may be decompressed again in any file, however small


@dataclass(frozen=True)
class Damage:
    """Stands in a stream where bytes of it are missing."""

    error: str
    lost: int  # compressed bytes that gave nothing
    cut: bool  # members were cut within lines: what follows may be the rest of a line
    behind: bool = False  # the member before it was read whole, and is damaged at most in its end


class Gzip:
    """Every member ends with a checksum."""

    magics = ((re.compile(rb"\x1f\x8b\x08"), 0),)
    proof = 1 << 12  # names and the first table of codes take no more

    def stream(self) -> Any:
        return zlib.decompressobj(wbits=31)

    def skippable(self, head: bytes) -> int:
        return 0

    def may_follow(self, head: bytes) -> bool:
        return True


class Zstd:
    """A frame may have no checksum: then what follows it tells whether its end is the true one."""

    magics = ((re.compile(rb"\x28\xb5\x2f\xfd"), 0), (re.compile(rb"\x2a\x4d\x18"), 1))
    proof = 1 << 18  # a block takes up to 128 KiB

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)

    def stream(self) -> Any:
        return self.decompressor.decompressobj()

    def skippable(self, head: bytes) -> int:
        """Bytes of the skippable frame that begins here, or 0."""
        if len(head) < 8 or head[0] & 0xF0 != 0x50 or head[1:4] != b"\x2a\x4d\x18":
            return 0
        return 8 + int.from_bytes(head[4:8], "little")

    def may_follow(self, head: bytes) -> bool:
        """Whether bytes can stand behind a frame: padding, a frame or the start of one, nothing."""
        head = head.lstrip(b"\0")
        if head and head[0] & 0xF0 == 0x50:
            return b"\x2a\x4d\x18".startswith(head[1:4])
        return b"\x28\xb5\x2f\xfd".startswith(head[:4])


CODECS: dict[str, type[Gzip] | type[Zstd]] = {".gz": Gzip, ".zst": Zstd}


@dataclass
class _Member:
    """What is known of a member while its output is taken."""

    start: int
    gave: int = 0  # end of the bytes that gave output
    end: int = 0  # once it was read whole
    error: str = ""
    output: Iterator[bytes] = field(default_factory=lambda: iter(()))


class Members:
    """The decompressed bytes of an open file, with a ``Damage`` wherever some are missing, and an
    empty block before each member.

    Once taken to the end, ``read``, ``lost`` and ``padding`` tell what became of every byte.
    """

    def __init__(self, file: BinaryIO, codec: Gzip | Zstd) -> None:
        self.file, self.codec = file, codec
        self.size = os.fstat(file.fileno()).st_size
        self.read = self.lost = self.padding = 0
        self.furthest = self.again = 0

    def __iter__(self) -> Iterator[bytes | Damage]:
        member, cut = self._behind(0), False
        while member is not None:
            whole = True
            yield b""
            for block in member.output:
                whole = block.endswith(b"\n")
                yield block
            if not member.error and self._may_end(member.end):
                self.read += member.end - member.start
                following = self._behind(member.end)
                cut = cut or (following is not None and not whole)
            else:
                following = self._search(member.start + 1)
                yield self._damage(member, following, cut)
            member = following

    def _damage(self, member: _Member, following: _Member | None, cut: bool) -> Damage:
        end = following.start if following else self.file.seek(0, os.SEEK_END)
        lost = max(0, end - member.gave)
        self.read += end - member.start - lost
        self.lost += lost
        error = member.error if member.error and not following else DAMAGED
        return Damage(error, lost, cut, not member.error)

    def _at(self, position: int, size: int) -> bytes:
        self.file.seek(position)
        return self.file.read(size)

    def _may_end(self, position: int) -> bool:
        return self.codec.may_follow(self._at(position, COMPRESSED_BLOCK))

    def _behind(self, position: int) -> _Member | None:
        """What begins here, behind padding."""
        while data := self._at(position, COMPRESSED_BLOCK):
            padding = len(data) - len(data.lstrip(b"\0"))
            self.padding += padding
            position += padding
            if padding < len(data):
                return self._member(position, 0)
        return None

    def _member(self, start: int, proof: int) -> _Member:
        member = _Member(start, gave=start)
        member.output = self._output(member, proof)
        return member

    def _output(self, member: _Member, proof: int) -> Iterator[bytes]:
        """Decompress; a candidate must give something within ``proof`` bytes."""
        if jump := self.codec.skippable(self._at(member.start, 8)):
            member.end = member.gave = member.start + jump
            if member.end > self.size or not self._may_end(member.end):
                member.error = TOO_EARLY if member.end > self.size else DAMAGED
                member.gave = member.start
            return
        stream, position = self.codec.stream(), member.start
        while data := self._at(position, COMPRESSED_BLOCK):
            if proof and position - member.start >= proof and member.gave == member.start:
                member.error = DAMAGED
                return
            self._count(member, position, len(data))
            try:
                block = stream.decompress(data)
            except (zlib.error, zstandard.ZstdError):
                member.error = DAMAGED
                return
            position += len(data)
            if stream.eof:
                member.end = member.gave = position - len(stream.unused_data)
            elif block:
                member.gave = position
            if block:
                yield block
            if stream.eof:
                return
        member.error = TOO_EARLY

    def _count(self, member: _Member, position: int, size: int) -> None:
        """First blocks are free: they are what every candidate costs."""
        if position > member.start:
            self.again += size * (position < self.furthest)
            self.furthest = max(self.furthest, position + size)

    def _search(self, position: int) -> _Member | None:
        """The first member from here on that proves itself."""
        for start in self._candidates(position):
            if start < self.furthest and self.again > max(self.size, PATIENCE):
                continue
            member = self._member(start, self.codec.proof)
            begun = list(islice(member.output, 2))
            if not member.error or (begun and member.error == TOO_EARLY):
                member.output = chain(begun, member.output)
                return member
        return None

    def _candidates(self, position: int) -> Iterator[int]:
        """Where the first bytes of a member stand, each place once and in order."""
        while data := self._at(position, COMPRESSED_BLOCK + 3):
            found = (
                match.start() - before
                for magic, before in self.codec.magics
                for match in magic.finditer(data)
            )
            for start in sorted(found):
                if 0 <= start < COMPRESSED_BLOCK:
                    yield position + start
            position += COMPRESSED_BLOCK
