"""Digits and separators of any script as ASCII, one character for one, so that positions stay.

RE2's ``\\d`` is ASCII and Python's is not; behind this step both mean the same. Decimal digits
become 0 to 9; spaces of any width, and marks without one, a space; hyphens and dashes "-"; full-
width forms the characters that they are forms of.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

#: Marks that nobody sees: soft hyphen, zero-width spaces and joiners, marks of direction.
_UNSEEN = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_SLASHES = "\u2044\u2215"


@cache
def table() -> dict[int, str]:
    """Of each character that is not left as it is, what stands for it."""
    found = {}
    for code in range(0x80, 0x20000):  # no digit lies above
        character = chr(code)
        kind = unicodedata.category(character)
        if kind == "Nd":
            found[code] = str(unicodedata.decimal(character))
        elif kind == "Zs" or character in _UNSEEN:
            found[code] = " "
        elif kind == "Pd" or character == "\u2212":
            found[code] = "-"
        elif character in _SLASHES:
            found[code] = "/"
    return found | {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}


def fold(text: str) -> str:
    """The text with digits, separators and full-width forms in ASCII; as many characters."""
    if text.isascii():
        return text
    names = table()
    return _foldable().sub(lambda match: names[ord(match[0])], text)


@cache
def _foldable() -> re.Pattern[str]:
    return re.compile(_class(table()))


@cache
def _worth() -> str:
    """What a text must have for folding to matter: digits of another script, full-width forms, or
    digits with a separator between them that is none of ASCII."""
    digits = [code for code in table() if unicodedata.category(chr(code)) == "Nd"]
    wide = range(0xFF01, 0xFF5F)
    rest = _class(code for code in table() if code not in {*digits, *wide})
    return f"{_class([*digits, *wide])}|[0-9A-Z+)]{rest}|{rest}[0-9A-Z(]"


def _class(codes: Iterable[int]) -> str:
    """A character class of these, in ranges."""
    runs = groupby(enumerate(sorted(set(codes))), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(pairs) for _, pairs in runs)]
    return "[" + "".join(f"{chr(a)}-{chr(b)}" for a, b in ends) + "]"


def fold_all(texts: pa.Array) -> pa.Array:
    """``fold`` of those texts of a column whose characters matter."""
    matter = pc.match_substring_regex(texts, _worth())
    if not pc.any(matter).as_py():
        return texts
    rows = texts.filter(matter)
    return pc.replace_with_mask(texts, matter, pa.array(map(fold, rows.to_pylist()), texts.type))
