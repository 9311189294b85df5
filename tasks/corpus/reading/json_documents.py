"""Split JSON files that are not JSON Lines into their values: lists, and objects on several lines.

One value and a block are in memory. After a value that is broken or too long, the place where the
next one begins is unknown, so that the rest of the file is one error.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from hallmark.tasks.corpus.reading.byte_streams import (
    BLOCK_BYTES,
    Line,
    ReadCounts,
    is_blank,
    read_blocks,
)
from hallmark.tasks.corpus.reading.compressed_members import CODEC_BY_SUFFIX, Damage
from hallmark.tasks.corpus.reading.dialects import read_head

BROKEN_JSON = "broken JSON"
LIST_IN_JSON_LINES = "a JSON list instead of one object per line"
OBJECTS_OVER_LINES = "JSON objects that span several lines instead of one object per line"
#: So many lines show whether a file is JSON Lines.
MAX_EXAMINED_LINES = 100

#: What stands between values, outside a list and inside one.
_OUTSIDE_LIST = re.compile(r"[\s\ufeff]*+\[?")
_INSIDE_LIST = re.compile(r"[\s\ufeff,]*+\]?")


def is_json_document(path: Path, source_label: str = "") -> bool:
    """Return whether a file has the ending .json, and is not JSON Lines.

    It is JSON Lines if its first line is an object, or if its first line is broken and at least
    half of the lines at its beginning are objects.

    Args:
        source_label: The source of the file, as in ``ReadCounts``.
    """
    name = path.name.lower().removesuffix(
        path.suffix.lower() if path.suffix.lower() in CODEC_BY_SUFFIX else ""
    )
    if not name.endswith(".json"):
        return False
    lines = _read_first_lines(path, source_label)
    if not lines or _is_object(lines[0]):
        return False
    return _is_list(lines[0]) or not _are_most_lines_objects(lines)


def find_layout_error(path: Path, source_label: str = "") -> str:
    """Return why a file whose first line is broken is not JSON Lines; "" if it may be.

    Args:
        source_label: The source of the file, as in ``ReadCounts``.
    """
    lines = _read_first_lines(path, source_label)
    if not lines or _are_most_lines_objects(lines):
        return ""
    if lines[0].startswith("["):
        return LIST_IN_JSON_LINES
    try:
        value, end = json.JSONDecoder().raw_decode("\n".join(lines))
    except (ValueError, RecursionError):
        return ""
    return OBJECTS_OVER_LINES if isinstance(value, dict) and end > len(lines[0]) else ""


def _read_first_lines(path: Path, source_label: str) -> list[str]:
    """Read the first lines of a file that are not blank, and of these only complete ones."""
    head = read_head(path, source_label)
    lines = re.split("[\r\n]", head.text)
    if not head.is_whole_file and len(lines) > 1:
        lines.pop()
    stripped_lines = (line.strip("\ufeff \t") for line in lines)
    is_text = (line for line in stripped_lines if not is_blank(line.encode(errors="surrogatepass")))
    return list(islice(is_text, MAX_EXAMINED_LINES))


def _are_most_lines_objects(lines: list[str]) -> bool:
    return len(lines) > 1 and 2 * sum(map(_is_object, lines)) >= len(lines)


def _is_object(line: str) -> bool:
    return isinstance(_parse_line(line), dict)


def _is_list(line: str) -> bool:
    return isinstance(_parse_line(line), list)


def _parse_line(line: str) -> Any:
    """Parse a line; return None if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def read_json_values(path: Path, max_bytes: int, counts: ReadCounts) -> Iterator[Line]:
    """Yield each value of a file, and each value of its lists, as if it were a line.

    Brackets, commas and white space between values are counted as skipped.
    """
    decoder, buffer = json.JSONDecoder(), _TextBuffer(path, counts)
    is_in_list = False
    while True:
        separator = (_INSIDE_LIST if is_in_list else _OUTSIDE_LIST).match(
            buffer.text, buffer.position
        )
        assert separator is not None
        counts.count_skipped(len(separator[0].encode()))
        buffer.advance(separator.end())
        if separator[0].endswith(("[", "]")):
            is_in_list = not is_in_list
            continue
        if buffer.position == len(buffer.text):
            if buffer.read_more():
                continue
            break
        try:
            value, end = decoder.raw_decode(buffer.text, buffer.position)
            # A number may continue in the next block.
            is_complete = end < len(buffer.text) or isinstance(value, dict | list | str)
        except (ValueError, RecursionError):
            end, is_complete = -1, False
        if is_complete:
            data = buffer.text[buffer.position : end].encode("utf-8", "surrogateescape")
            yield Line(buffer.line_number, data[: max_bytes + 1], len(data), end=b"")
            buffer.advance(end)
        elif len(buffer.text) - buffer.position > max_bytes + BLOCK_BYTES:
            yield buffer.finish("", max_bytes)  # readers recognise the size
            return
        elif not buffer.read_more():
            yield buffer.finish(buffer.damage_error or BROKEN_JSON, max_bytes)
            return
    if is_in_list or buffer.damage_error:
        yield buffer.finish(buffer.damage_error or BROKEN_JSON, max_bytes)


class _TextBuffer:
    """Hold the text of a file that is not interpreted yet."""

    def __init__(self, path: Path, counts: ReadCounts) -> None:
        self.blocks = read_blocks(path, counts)
        self.decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.text, self.position, self.line_number = "", 0, 1
        self.is_at_end, self.damage_error, self.lost_bytes = False, "", 0

    def advance(self, position: int) -> None:
        """Move to a position, and count the lines before it."""
        self.line_number += self.text.count("\n", self.position, position)
        self.position = position

    def read_more(self) -> bool:
        """Read at least as much text as there is left; return whether there was any."""
        pieces = [self.text[self.position :]]
        missing = max(1, len(pieces[0]))
        while missing > 0 and not self.is_at_end:
            block = next(self.blocks, None)
            if block is None or isinstance(block, Damage):
                pieces.append(self.decoder.decode(b"", final=True))
                self.is_at_end = True
                if block is not None:
                    self.damage_error, self.lost_bytes = block.error, block.lost_bytes
            else:
                pieces.append(self.decoder.decode(block))
            missing -= len(pieces[-1])
        is_longer = any(pieces[1:])
        self.text, self.position = "".join(pieces), 0
        return is_longer

    def finish(self, error: str, max_bytes: int) -> Line:
        """Return the rest of the file as one error."""
        data = self.text[self.position :].encode("utf-8", "surrogateescape")
        pending_bytes = self.decoder.getstate()[0]
        size = len(data) + len(pending_bytes) + self.lost_bytes
        for block in self.blocks:
            size += block.lost_bytes if isinstance(block, Damage) else len(block)
        return Line(self.line_number, data[: max_bytes + 1], size, error, end=b"")
