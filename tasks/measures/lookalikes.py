"""Replace letters that only look like Latin letters by the Latin letters, before text is judged.

Scorers and language identification read bytes or words: "ｆｏｏｌ" in full-width letters, "𝐟𝐨𝐨𝐥" in
mathematical ones, and "fооl" with a Cyrillic "о" are unknown words to them. The look-alikes are
those of Unicode (UTS 39, `confusable-homoglyphs`). Only copies of texts are changed, so spans still
refer to the text of the document.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache

#: Letters below this code point are used to write languages; they are never replaced.
FIRST_REPLACED_CHARACTER = 0x250

#: Code points that are searched for variants of letters; no higher plane has any.
SEARCHED_CHARACTERS = range(FIRST_REPLACED_CHARACTER, 0x20000)

#: Share of Latin letters in a text of which words in other scripts are judged to be look-alikes.
MIN_LATIN_SHARE = 0.9

#: Code points that only separate or strike through the letters of a word: soft hyphen, overlays,
#: zero-width space, marks of direction, word joiner and invisible operators, byte-order mark.
REMOVED_CHARACTERS = (
    *(0xAD, 0x180E, 0x200B, 0x200E, 0x200F),
    *range(0x334, 0x339),
    *range(0x202A, 0x202F),
    *range(0x2060, 0x206A),
    0xFEFF,
)

_LATIN_CAPITAL_NAME = re.compile(
    r"(?:NEGATIVE (?:CIRCLED|SQUARED) LATIN CAPITAL LETTER|LATIN LETTER SMALL CAPITAL) ([A-Z])"
)
_WORD = re.compile(r"[^\W\d_]+")
_LATIN_LETTER = re.compile("[A-Za-z\xc0-\xd6\xd8-\xf6\xf8-\u024f\u1e00-\u1eff]")
_JOINER_IN_WORD = re.compile("(?<=[A-Za-z])[\u200c\u200d]+(?=[A-Za-z])")


def fold_lookalikes(text: str) -> str:
    """Return the text with Latin letters in place of their variants and look-alikes.

    Variants, such as full-width and mathematical letters, are always replaced, and characters that
    only separate letters or strike them through are removed. Letters of other scripts that look
    like Latin ones are replaced in a word that has Latin letters and no others then. In a word
    without Latin letters they are replaced if the rest of the text is Latin, at least
    MIN_LATIN_SHARE of its letters.
    """
    if text.isascii():
        return text
    if _compile_class(_load_letter_variants).search(text):
        text = text.translate(_load_variant_table())
    if "\u200c" in text or "\u200d" in text:
        text = _JOINER_IN_WORD.sub("", text)
    if not _compile_class(_load_lookalikes).search(text) or not _LATIN_LETTER.search(text):
        return text
    text = _WORD.sub(lambda match: _fold_mixed_word(match[0]), text)
    words = {word for word in _WORD.findall(text) if not word.isascii()}
    folded_words = {word: _replace_all(word, _load_close_lookalikes()) for word in words}
    ambiguous_words = {word for word in words if folded_words[word].isascii()}
    other_letters = "".join(word for word in _WORD.findall(text) if word not in ambiguous_words)
    latin_letter_count = len(_LATIN_LETTER.findall(other_letters))
    if not ambiguous_words or not latin_letter_count:
        return text
    if latin_letter_count < MIN_LATIN_SHARE * len(other_letters):
        return text
    return _WORD.sub(
        lambda match: folded_words[match[0]] if match[0] in ambiguous_words else match[0], text
    )


def _fold_mixed_word(word: str) -> str:
    """Replace the look-alikes in a word that has Latin letters and no others then."""
    if word.isascii() or not _LATIN_LETTER.search(word):
        return word
    folded_word = _replace_all(word, _load_lookalikes())
    return folded_word if len(_LATIN_LETTER.findall(folded_word)) == len(folded_word) else word


def _replace_all(word: str, replacements: Mapping[str, str]) -> str:
    return "".join(replacements.get(letter, letter) for letter in word)


@cache
def _compile_class(load_replacements: Callable[[], Mapping[str, str]]) -> re.Pattern[str]:
    """Compile a pattern for any of the characters; a class of few ranges matches fast."""
    code_points = sorted(map(ord, load_replacements()))
    starts = [point for point in code_points if point - 1 not in code_points]
    ends = [point for point in code_points if point + 1 not in code_points]
    ranges = (f"{chr(start)}-{chr(end)}" for start, end in zip(starts, ends, strict=True))
    return re.compile(f"[{''.join(ranges)}]")


@cache
def _load_variant_table() -> dict[int, str]:
    return str.maketrans(_load_letter_variants())


@cache
def _load_letter_variants() -> dict[str, str]:
    """Map variants of ASCII letters to these, and REMOVED_CHARACTERS to the empty text.

    Variants are compatibility characters, such as full-width, mathematical, circled and superscript
    letters, and small capitals.
    """
    variants = dict.fromkeys(map(chr, REMOVED_CHARACTERS), "")
    for code_point in SEARCHED_CHARACTERS:
        character = chr(code_point)
        normalised = unicodedata.normalize("NFKC", character)
        if normalised != character and normalised.isascii():
            letters = "".join(filter(str.isalpha, normalised))  # "⒜" is "(a)" under NFKC
            if letters:
                variants[character] = letters
        elif match := _LATIN_CAPITAL_NAME.fullmatch(unicodedata.name(character, "")):
            is_small = "SMALL" in match[0]
            variants[character] = match[1].lower() if is_small else match[1]
    return variants


@cache
def _load_lookalikes() -> dict[str, str]:
    """Map letters of other scripts that look like an ASCII letter or a small capital to the letter.

    Small capitals are the look-alikes of Cyrillic letters such as "к" and "т".
    """
    return _find_lookalikes(_load_letter_variants())


@cache
def _load_close_lookalikes() -> dict[str, str]:
    """Map letters of other scripts that look like an ASCII letter to the letter."""
    return _find_lookalikes({})


def _find_lookalikes(letter_variants: Mapping[str, str]) -> dict[str, str]:
    """Map letters that are confusable with an ASCII letter, or one of its variants, to the letter.

    Letters that are variants themselves are left out.
    """
    # Imported late, because the library reads its file when it is imported.
    from confusable_homoglyphs.confusables import confusables_data

    lookalikes = {}
    for character, confusables in confusables_data.items():
        if len(character) > 1 or ord(character) < FIRST_REPLACED_CHARACTER:
            continue
        if not character.isalpha() or character in _load_letter_variants():
            continue
        for confusable in confusables:
            letter = letter_variants.get(confusable["c"], confusable["c"])
            if len(letter) == 1 and letter.isascii() and letter.isalpha():
                # Unicode has the small L for all capital letters that look like I.
                is_capital_i = letter == "l" and character.isupper()
                lookalikes[character] = "I" if is_capital_i else letter
    return lookalikes
