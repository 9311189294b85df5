r"""Convert digits and separators of any script to ASCII, keeping the positions of characters.

RE2's `\d` is ASCII and Python's is not; after folding both mean the same. Decimal digits become 0
to 9; spaces of any width and invisible marks become a space; hyphens become "-"; full-width forms
become the corresponding ASCII characters. A dash becomes "-" only between two parts of a number:
elsewhere it separates words, and a detector must not take it for the hyphen of an address.
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
#: Dashes and the minus sign. They separate words, but people also write 555\u20130123 with them.
DASHES = "\u2012\u2013\u2014\u2015\u2212\u2e3a\u2e3b\u301c\u3030\u30a0\ufe31\ufe32\ufe58"


@cache
def build_replacement_by_code_point() -> dict[int, str]:
    """Build the table of the characters that folding changes, without the dashes."""
    replacements = {}
    for code in range(0x80, 0x20000):  # There are no digits above.
        character = chr(code)
        category = unicodedata.category(character)
        if category == "Nd":
            replacements[code] = str(unicodedata.decimal(character))
        elif category == "Zs" or character in _INVISIBLE_MARKS:
            replacements[code] = " "
        elif category == "Pd" and character not in DASHES:
            replacements[code] = "-"
        elif character in _SLASHES:
            replacements[code] = "/"
    return replacements | {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}


#: A dash between two parts of a number; after "555\u2013", a word continues the sentence.
_DASH_IN_NUMBER = re.compile(rf"(?<=[0-9A-Z)])[{DASHES}](?=[0-9(]|[A-Z]{{1,2}}(?![A-Za-z]))")


def fold_digits_and_separators(text: str) -> str:
    """Convert digits, separators and full-width forms to ASCII; the length stays the same."""
    if text.isascii():
        return text
    replacements = build_replacement_by_code_point()
    folded = _compile_foldable_pattern().sub(lambda match: replacements[ord(match[0])], text)
    return _DASH_IN_NUMBER.sub("-", folded)


@cache
def _compile_foldable_pattern() -> re.Pattern[str]:
    return re.compile(_character_class(build_replacement_by_code_point()))


@cache
def _foldable_character_pattern() -> str:
    """Return a pattern of all texts that folding changes, and of some that it does not change."""
    return f"{_character_class(build_replacement_by_code_point())}|[0-9A-Z)][{DASHES}][0-9A-Z(]"


def _character_class(code_points: Iterable[int]) -> str:
    """Return a regular-expression character class of code points, written as ranges."""
    runs = groupby(enumerate(sorted(set(code_points))), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(pairs) for _, pairs in runs)]
    return "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in ends) + "]"


def fold_text_column(texts: pa.Array) -> pa.Array:
    """Apply `fold_digits_and_separators` to each text of a column."""
    needs_folding = pc.match_substring_regex(texts, _foldable_character_pattern())
    if not pc.any(needs_folding).as_py():
        return texts
    affected_texts = texts.filter(needs_folding)
    return pc.replace_with_mask(
        texts,
        needs_folding,
        pa.array(map(fold_digits_and_separators, affected_texts.to_pylist()), texts.type),
    )
