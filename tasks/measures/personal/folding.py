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
_INVISIBLE_MARKS = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_SLASHES = "\u2044\u2215"


@cache
def build_folding_table() -> dict[int, str]:
    """Of each character that is not left as it is, what stands for it."""
    replacements = {}
    for code in range(0x80, 0x20000):  # no digit lies above
        character = chr(code)
        category = unicodedata.category(character)
        if category == "Nd":
            replacements[code] = str(unicodedata.decimal(character))
        elif category == "Zs" or character in _INVISIBLE_MARKS:
            replacements[code] = " "
        elif category == "Pd" or character == "\u2212":
            replacements[code] = "-"
        elif character in _SLASHES:
            replacements[code] = "/"
    return replacements | {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}


def fold_digits_and_separators(text: str) -> str:
    """The text with digits, separators and full-width forms in ASCII; as many characters."""
    if text.isascii():
        return text
    replacements = build_folding_table()
    return _compile_foldable_pattern().sub(lambda match: replacements[ord(match[0])], text)


@cache
def _compile_foldable_pattern() -> re.Pattern[str]:
    return re.compile(_character_class(build_folding_table()))


@cache
def _folding_needed_pattern() -> str:
    """What a text must have for folding to matter: digits of another script, full-width forms, or
    digits with a separator between them that is none of ASCII."""
    digits = [code for code in build_folding_table() if unicodedata.category(chr(code)) == "Nd"]
    full_width = range(0xFF01, 0xFF5F)
    separators = _character_class(
        code for code in build_folding_table() if code not in {*digits, *full_width}
    )
    return (
        f"{_character_class([*digits, *full_width])}|[0-9A-Z+)]{separators}|{separators}[0-9A-Z(]"
    )


def _character_class(code_points: Iterable[int]) -> str:
    """A character class of these, in ranges."""
    runs = groupby(enumerate(sorted(set(code_points))), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(pairs) for _, pairs in runs)]
    return "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in ends) + "]"


def fold_text_column(texts: pa.Array) -> pa.Array:
    """``fold`` of those texts of a column whose characters matter."""
    needs_folding = pc.match_substring_regex(texts, _folding_needed_pattern())
    if not pc.any(needs_folding).as_py():
        return texts
    affected_texts = texts.filter(needs_folding)
    return pc.replace_with_mask(
        texts,
        needs_folding,
        pa.array(map(fold_digits_and_separators, affected_texts.to_pylist()), texts.type),
    )
