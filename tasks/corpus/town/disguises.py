"""Disguise rude speech of the town, so that the recall of a filter is known for it as well.

Documents of the web evade filters with letters that look like others. A menu or a list of addresses
at the beginning may hide in which language a document is.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import NamedTuple

from hallmark.tasks.corpus.town.grammar import AnnotatedText

_LOWER, _UPPER = string.ascii_lowercase, string.ascii_uppercase


class Disguise(NamedTuple):
    """Say how the rude speech of a document is disguised."""

    letters: Mapping[int, str | int]
    """What replaces the characters of rude sentences, as `str.translate` takes it."""
    beginning: str
    """First line of the document; "" for none."""


def _shift_letters(lower_start: int, upper_start: int) -> dict[int, str]:
    """Map ASCII letters to the alphabets that begin at these code points."""
    letters = {ord(letter): chr(lower_start + n) for n, letter in enumerate(_LOWER)}
    return letters | {ord(letter): chr(upper_start + n) for n, letter in enumerate(_UPPER)}


#: Cyrillic letters that look like Latin ones.
_CYRILLIC_LETTERS = str.maketrans("aceopxyisABCEHKMOPTX", "асеорхуіѕАВСЕНКМОРТХ")

_MENU = (
    "Deutsch Français Español Italiano Português Nederlands Polski Čeština Magyar Română Türkçe "
    "Русский Українська 日本語 中文 한국어 العربية עברית हिन्दी ไทย"
)
_ADDRESSES = " ".join(f"https://town.example/archive/{year}/a1b2c3" for year in range(1, 8))
_DIGITS = " ".join(f"{n * 37 % 100:02}" for n in range(1, 100))

#: The disguises, by the name that the tables give them.
DISGUISE_BY_NAME = {
    "in full-width letters": Disguise(_shift_letters(0xFF41, 0xFF21), ""),
    "in mathematical letters": Disguise(_shift_letters(0x1D41A, 0x1D400), ""),
    "in look-alike letters": Disguise(_CYRILLIC_LETTERS, ""),
    "after a menu": Disguise({}, _MENU),
    "after addresses": Disguise({}, _ADDRESSES),
    "after digits": Disguise({}, _DIGITS),
}


def disguise_letters(text: AnnotatedText, disguise_name: str) -> AnnotatedText:
    """Replace the letters of a text; spans stay as they are, because no length changes.

    Args:
        disguise_name: A key of DISGUISE_BY_NAME, or "" for no disguise.
    """
    if not disguise_name:
        return text
    return text._replace(text=text.text.translate(DISGUISE_BY_NAME[disguise_name].letters))
