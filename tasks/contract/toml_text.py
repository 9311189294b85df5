"""Parse TOML text that people write; refuse deep nesting, and integers that TOML does not have.

Python's parser accepts integers of any size. Those with thousands of digits raise errors later,
when a message repeats them. Its time grows with the square of the number of parts of a dotted key,
and whatever copies or validates a deep tree afterwards is recursive.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

#: The integers of TOML have 64 bits.
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1

#: Largest number of parts of a key, and depth of a tree; configs need about ten levels.
MAX_TOML_DEPTH = 100

#: A string or a comment; unless it is closed, it lasts to the end of the line or of the text.
_STRING_OR_COMMENT = re.compile(
    r'''"""(?:[^"\\]|\\.|"{1,2}(?!"))*+(?:"{3,5})?+'''
    r"""|'''(?:[^']|'{1,2}(?!'))*+(?:'{3,5})?+"""
    r"""|"(?:[^"\\\n]|\\.)*+"?+|'[^'\n]*+'?+|#[^\n]*+""",
    re.DOTALL,
)

#: The beginning of a key of too many parts.
_DEEP_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MAX_TOML_DEPTH}}}")


class OversizedIntegerError(ValueError):
    """A TOML text contains an integer of more than 64 bits."""

    def __init__(self) -> None:
        super().__init__("an integer has more than 64 bits")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text.

    Raises:
        tomllib.TOMLDecodeError: The text is not valid TOML.
        OversizedIntegerError: An integer has more than 64 bits.
        RecursionError: The text is nested too deeply.
    """
    if _DEEP_KEY.search(_STRING_OR_COMMENT.sub("x", text)):
        raise RecursionError
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # Python converts no decimal integers of thousands of digits.
        raise OversizedIntegerError from error
    level: list[Any] = [tree]
    for _ in range(MAX_TOML_DEPTH):
        level = [
            value
            for node in level
            if isinstance(node, dict | list)
            for value in (node.values() if isinstance(node, dict) else node)
        ]
        if any(isinstance(v, int) and not MIN_INTEGER <= v <= MAX_INTEGER for v in level):
            raise OversizedIntegerError
        if not level:
            return tree
    raise RecursionError
