r"""Convert digits and separators of any script to ASCII, keeping the positions of characters.

RE2's `\d` is ASCII and Python's is not; after folding both mean the same. Decimal digits become 0
to 9; spaces of any width and invisible marks become a space; hyphens become "-"; full-width forms
become the corresponding ASCII characters. A dash becomes "-" only between two parts of a number:
elsewhere it separates words, and a detector must not take it for the hyphen of an address.

Before the detectors search, escapes of JSON, URLs and HTML next to a number or an e-mail address
are decoded, too, and invisible marks inside an address are removed: `FoldedText` converts positions
in the result to positions in the text.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: Invisible marks: soft hyphen, zero-width spaces and joiners, directional marks.
_INVISIBLE_MARKS = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_SLASHES = "\u2044\u2215"
#: Dashes, the minus sign and the Japanese sign of a long vowel. They separate words, but people
#: also write 555\u20130123 with them.
DASHES = "\u2012\u2013\u2014\u2015\u2212\u2e3a\u2e3b\u301c\u3030\u30a0\u30fc\ufe31\ufe32\ufe58"


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


#: A dash between two parts of a number; after "555\u2013" and before "\u2013555", a word belongs to
#: the sentence. A search for an expression that begins with one of a few characters is fast, so the
#: conditions on what is before the dash follow it.
_DASH_IN_NUMBER = re.compile(
    rf"[{DASHES}](?:(?<=[0-9)].)|(?<=(?<![A-Za-z])[A-Z].)|(?<=(?<![A-Za-z])[A-Z][A-Z].))"
    r"(?=[0-9(]|[A-Z]{1,2}(?![A-Za-z]))"
)


def fold_digits_and_separators(text: str) -> str:
    """Convert digits, separators and full-width forms to ASCII; the length stays the same."""
    if text.isascii():
        return text
    replacements = _build_replacement_by_character()
    for character in replacements.keys() & set(text):  # Few, even in a long text.
        text = text.replace(character, replacements[character])
    return _DASH_IN_NUMBER.sub("-", text)


@cache
def _build_replacement_by_character() -> dict[str, str]:
    return {chr(code): by for code, by in build_replacement_by_code_point().items()}


def build_character_class(code_points: Iterable[int]) -> str:
    """Build a regular-expression character class of code points, written as ranges."""
    runs = groupby(enumerate(sorted(set(code_points))), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(pairs) for _, pairs in runs)]
    ranges = (f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ends)
    return f"[{''.join(ranges)}]"


class FoldedText(NamedTuple):
    """A folded text, and how far its characters have moved.

    Attributes:
        text: The text as the detectors search it.
        positions: Positions in it, ascending, from which on the distance to the original differs.
        distances: For each of these positions, how much larger the original position is.
    """

    text: str
    positions: list[int]
    distances: list[int]

    def find_original_position(self, position: int) -> int:
        index = bisect_right(self.positions, position) - 1
        return position + self.distances[index] if index >= 0 else position


#: Escapes of white space and punctuation in JSON, URLs and HTML, whose letters and digits would
#: otherwise be adjacent to a number. "%40" is absent: e-mail addresses contain it.
_ESCAPE = (
    r"(?:\\{1,4}(?:[nrtfv]|u(?:00[2aA][0-9A-Fa-f]|003[A-Fa-f]|20[0-6][0-9A-Fa-f]|3000))"
    r"|%(?:25)?(?:C2%A0|c2%a0|0[9ADad]|2[0-9A-Fa-f]|3[A-Fa-f]|[57][BDbd])|&nbsp;|&#160;)"
)
#: What numbers, accounts and addresses begin with. Python, but not RE2, also finds digits and
#: spaces of other scripts; all texts with such characters are folded.
_START_OF_VALUE = (
    rf"(?:[+(]{{0,2}}\d(?:[\d\s.:()/-]|{_ESCAPE}){{5}}|[23][0-9A-Fa-f]{{3}}:|[A-Za-z]{{1,6}}\d{{2}}"
    r"|[^\s@\"<>(),:;\\]{1,64}(?:@|%40))"
)
#: What all texts match in which `_DECODABLE` finds an escape, for RE2.
_DECODABLE_PATTERN = rf"{_ESCAPE}{_START_OF_VALUE}|[\d)]{_ESCAPE}{{1,5}}[\d(+]"
_ADDRESS_CHARACTER = "[0-9A-Za-z\u00c0-\u04ff._%+'@-]"
_DECODABLE = re.compile(
    rf"{_ESCAPE}(?={_ESCAPE}{{0,4}}{_START_OF_VALUE})|(?<=[\d)]){_ESCAPE}(?={_ESCAPE}{{0,4}}[\d(+])"
    rf"|(?<={_ADDRESS_CHARACTER})[{_INVISIBLE_MARKS}]{{1,8}}(?={_ADDRESS_CHARACTER})"
)
#: What every match of `_DECODABLE` begins with. A search for it is fast.
_START_OF_DECODABLE = re.compile(rf"[\\%&{_INVISIBLE_MARKS}]")
_HEXADECIMAL_CODE = re.compile(r"(?:u|%(?:25)?)([0-9A-Fa-f]+)\Z")
_ADDRESS_CHARACTERS_AND_MARKS = rf"(?:[{_INVISIBLE_MARKS}]|{_ADDRESS_CHARACTER}){{0,80}}"
_ADDRESS_BEFORE = re.compile(rf"(?:@|%40){_ADDRESS_CHARACTERS_AND_MARKS}\Z")
_ADDRESS_AFTER = re.compile(rf"{_ADDRESS_CHARACTERS_AND_MARKS}(?:@|%40)")


def fold_text(text: str) -> FoldedText:
    """Decode escapes next to values, remove marks inside addresses, and fold the characters."""
    pieces, positions, distances = [], [], []
    end = folded_length = distance = 0
    for match in _iterate_decodable(text):
        if match[0][0] in _INVISIBLE_MARKS and not (
            _ADDRESS_AFTER.match(text, match.end(), match.end() + 90)
            or _ADDRESS_BEFORE.search(text, max(0, match.start() - 90), match.start())
        ):
            continue
        decoded = _decode(match[0])
        pieces += [text[end : match.start()], decoded]
        folded_length += match.start() - end + len(decoded)
        distance += len(match[0]) - len(decoded)
        positions.append(folded_length)
        distances.append(distance)
        end = match.end()
    decoded_text = "".join([*pieces, text[end:]]) if pieces else text
    return FoldedText(fold_digits_and_separators(decoded_text), positions, distances)


def _iterate_decodable(text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of `_DECODABLE`, like `finditer`."""
    end = 0
    for start in _START_OF_DECODABLE.finditer(text):
        if start.start() >= end and (match := _DECODABLE.match(text, start.start())):
            end = match.end()
            yield match


def _decode(escape: str) -> str:
    """Return the character of an escape; nothing for invisible marks."""
    if escape[0] in _INVISIBLE_MARKS:
        return ""
    code = _HEXADECIMAL_CODE.search(escape)
    if code:
        return chr(int(code[1], 16))
    return "\n" if escape[-1] in "nr" else " "


@cache
def _foldable_pattern() -> str:
    """Return a pattern of all texts that folding changes, and of some that it does not change."""
    characters = build_character_class(build_replacement_by_code_point())
    return rf"{characters}|[0-9A-Z)][{DASHES}][0-9A-Z(]|{_DECODABLE_PATTERN}"


def fold_text_column(texts: pa.Array) -> tuple[pa.Array, dict[int, FoldedText]]:
    """Apply `fold_text` to each text of a column.

    Returns:
        The folded texts, and by row number those whose characters have moved.
    """
    # Most texts are ASCII without escapes, and a search for a single character is fast.
    may_need_folding = pc.invert(pc.string_is_ascii(texts))
    for pattern in (r"\\", "%", "&"):
        may_need_folding = pc.or_(may_need_folding, pc.match_substring_regex(texts, pattern))
    rows = pc.indices_nonzero(may_need_folding)
    rows = rows.filter(pc.match_substring_regex(texts.take(rows), _foldable_pattern()))
    if not len(rows):
        return texts, {}
    folded = [fold_text(text) for text in texts.take(rows).to_pylist()]
    columns = pc.replace_with_mask(
        texts,
        pa.array(np.isin(np.arange(len(texts)), rows)),
        pa.array([text.text for text in folded], texts.type),
    )
    positions = zip(rows.to_pylist(), folded, strict=True)
    return columns, {row: text for row, text in positions if text.positions}
