r"""Convert digits and separators of any script to ASCII, keeping the positions of characters.

RE2's `\d` is ASCII and Python's is not; after folding both mean the same. Decimal digits become 0
to 9; spaces of any width and invisible marks become a space; hyphens and dashes become "-";
full-width forms become the corresponding ASCII characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

#: Invisible marks: soft hyphen, zero-width spaces and joiners, directional marks.
_INVISIBLE_MARKS = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_SLASHES = "\u2044\u2215"


@cache
def build_replacement_by_code_point() -> dict[int, str]:
    """Build the table of the characters that folding changes, for `str.translate`."""
    replacements = {}
    for code in range(0x80, 0x20000):  # There are no digits above.
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
    """Convert digits, separators and full-width forms to ASCII; the length stays the same."""
    if text.isascii():
        return text
    replacements = build_replacement_by_code_point()
    return _compile_foldable_pattern().sub(lambda match: replacements[ord(match[0])], text)


@cache
def _compile_foldable_pattern() -> re.Pattern[str]:
    return re.compile(_character_class(build_replacement_by_code_point()))


@cache
def _folding_needed_pattern() -> str:
    """Return a pattern of texts that need folding.

    They contain digits of another script, full-width forms, or a non-ASCII separator next to a
    digit or capital.
    """
    digits = [
        code
        for code in build_replacement_by_code_point()
        if unicodedata.category(chr(code)) == "Nd"
    ]
    full_width = range(0xFF01, 0xFF5F)
    separators = _character_class(
        code for code in build_replacement_by_code_point() if code not in {*digits, *full_width}
    )
    return (
        f"{_character_class([*digits, *full_width])}|[0-9A-Z+)]{separators}|{separators}[0-9A-Z(]"
    )


def _character_class(code_points: Iterable[int]) -> str:
    """Return a regular-expression character class of code points, written as ranges."""
    runs = groupby(enumerate(sorted(set(code_points))), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(pairs) for _, pairs in runs)]
    return "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in ends) + "]"


def fold_text_column(texts: pa.Array) -> pa.Array:
    """Apply `fold_digits_and_separators` to those texts of a column that need it."""
    needs_folding = pc.match_substring_regex(texts, _folding_needed_pattern())
    if not pc.any(needs_folding).as_py():
        return texts
    affected_texts = texts.filter(needs_folding)
    return pc.replace_with_mask(
        texts,
        needs_folding,
        pa.array(map(fold_digits_and_separators, affected_texts.to_pylist()), texts.type),
    )
