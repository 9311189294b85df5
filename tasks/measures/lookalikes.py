"""Undo disguises of words, before text is judged.

Scorers and language identification read bytes or words: "ｆｏｏｌ" in full-width letters, "𝐟𝐨𝐨𝐥" in
mathematical ones, "fооl" with a Cyrillic "о", "f͓o͓o͓l͓" and "f o o l" are unknown words to them. The
look-alikes are those of Unicode (UTS 39, `confusable-homoglyphs`), and a few letters that only
resemble Latin ones. Accents have a meaning in most languages, so `fold_accents` is only for scorers
of English. Only copies of texts are changed, so spans still refer to the text of the document.
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

#: Letters with accents, and combining marks, start here.
FIRST_ACCENTED_LETTER = 0xC0
FIRST_MARK = 0x300

#: Share of Latin letters in a text of which words in other scripts are judged to be look-alikes.
MIN_LATIN_SHARE = 0.9

#: Share of Latin letters with a combining mark that Unicode does not compose with them. From this
#: share on, all marks and accents are judged to be a disguise. A Yoruba text has half as many.
MIN_MARKED_SHARE = 0.2

#: Letters that resemble a Latin letter in a word of Latin letters, but are not confusable with it.
RESEMBLING_LETTERS = {
    **{"б": "b", "ж": "x", "и": "u", "к": "k", "м": "m", "п": "n", "ф": "o", "ц": "u", "ч": "y"},
    **{"ш": "w", "щ": "w", "ъ": "b", "ь": "b", "э": "e", "я": "r"},
    **{"Д": "A", "И": "N", "Ц": "U", "Ш": "W", "Щ": "W", "Э": "E", "Я": "R"},
    **{"β": "b", "δ": "d", "ε": "e", "η": "n", "θ": "o", "κ": "k", "π": "n", "ς": "s", "ω": "w"},
    **{"Δ": "A", "Θ": "O", "Λ": "A", "Π": "N", "Σ": "E", "Ω": "O"},
}

#: Code points that only separate or strike through the letters of a word: soft hyphen, overlays,
#: zero-width space, marks of direction, word joiner and invisible operators, byte-order mark, and
#: the fillers of Hangul.
REMOVED_CHARACTERS = (
    *(0xAD, 0x180E, 0x200B, 0x200E, 0x200F),
    *range(0x334, 0x339),
    *range(0x202A, 0x202F),
    *range(0x2060, 0x2070),
    *(0xFEFF, 0x115F, 0x1160, 0x3164, 0xFFA0),
)

_LATIN_CAPITAL_NAME = re.compile(
    r"(?:NEGATIVE (?:CIRCLED|SQUARED) LATIN CAPITAL LETTER|LATIN LETTER SMALL CAPITAL) ([A-Z])"
)
_WORD = re.compile(r"[^\W\d_]+")
_LATIN_LETTER = re.compile("[A-Za-z\xc0-\xd6\xd8-\xf6\xf8-\u024f\u1e00-\u1eff]")
#: Characters other than letters of Latin languages and common punctuation, which need no folding.
_RARE_CHARACTER = re.compile("[^\0-\xac\xae-\u024f\u1e00-\u1e99\u1ea0-\u1ef9\u2010-\u2027\u20ac]")
_ACCENTED_LETTER_NAME = re.compile("LATIN (SMALL|CAPITAL) LETTER ([A-Z]) WITH .*")
_OTHER_ACCENTED_LETTERS = {
    "ı": "i",
    "ß": "ss",
    "ẞ": "SS",
    "æ": "ae",
    "Æ": "AE",
    "œ": "oe",
    "Œ": "OE",
    "ſ": "s",
    "ª": "a",
    "º": "o",
}
#: At least three single letters with the same between them: blanks, a mark, or both.
_SPACED_LETTERS = re.compile(
    r"(?<!\w)([^\W\d_])([^\S\n]{1,3}|[^\S\n]?[.,*_|/~+=·•-][^\S\n]?)"
    r"((?:[^\W\d_]\2)+)([^\W\d_])(?!\w)"
)
_ARTICLE_OR_PRONOUN = frozenset("aAI")
_JOINER_IN_WORD = re.compile("(?<=[A-Za-z])[\u200c\u200d]+(?=[A-Za-z])")


def fold_lookalikes(text: str) -> str:
    """Return the text with Latin letters in place of their variants and look-alikes.

    Variants, such as full-width and mathematical letters, are always replaced, and characters that
    only separate letters or strike them through are removed. So are combining marks that Unicode
    does not compose with the Latin letter before them, and accents among many such marks.

    Letters of other scripts that look like Latin ones are replaced in a word that has Latin letters
    and no others then. In a word without Latin letters they are replaced if the rest of the text is
    Latin, at least MIN_LATIN_SHARE of its letters.
    """
    if text.isascii() or not _RARE_CHARACTER.search(text):
        return text
    if _compile_class(_load_letter_variants).search(text):
        text = text.translate(_load_variant_table())
    if "\u200c" in text or "\u200d" in text:
        text = _JOINER_IN_WORD.sub("", text)
    text = _remove_marks(text)
    folded_text = _fold_other_scripts(text)
    # A mark on a look-alike is then one on a Latin letter.
    return folded_text if folded_text == text else fold_lookalikes(folded_text)


def fold_accents(text: str) -> str:
    """Return the text with Latin letters in place of those with accents, strokes and hooks.

    This harms words of most languages, such as "für", so it is only for scorers of English.
    """
    return text if text.isascii() else text.translate(_load_accent_table())


def join_spaced_letters(text: str) -> str:
    """Join single letters that the same blank or mark separates: "f o o l" to "fool".

    The first letter may be a word, as in "a f o o l". Then both readings are in the result.
    """
    return _SPACED_LETTERS.sub(_join_letters, text)


def _join_letters(match: re.Match[str]) -> str:
    first_letter, separator, middle, last_letter = match.groups()
    other_letters = middle.replace(separator, "") + last_letter
    letters = first_letter + other_letters
    if separator.isspace() and first_letter in _ARTICLE_OR_PRONOUN:
        return f"{first_letter} {other_letters} {letters}"
    return letters


def _remove_marks(text: str) -> str:
    """Remove combining marks from Latin letters, except accents that Unicode composes with them.

    If many letters have other marks, accents are removed, too.
    """
    if not _compile_class(_list_combining_marks).search(text):
        return text
    text = unicodedata.normalize("NFC", text)
    marked_letter_count = len(_compile_marked_letter().findall(text))
    if marked_letter_count >= MIN_MARKED_SHARE * len(_LATIN_LETTER.findall(text)):
        text = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFC", _compile_marked_letter().sub(r"\1", text))


def _fold_other_scripts(text: str) -> str:
    """Replace letters of other scripts that look like Latin letters."""
    if not _compile_class(_load_similar_letters).search(text) or not _LATIN_LETTER.search(text):
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
    """Replace the look-alikes in a word that has Latin letters and no others then.

    Letters that only resemble Latin ones are replaced if at least half of all letters are Latin.
    """
    latin_letter_count = len(_LATIN_LETTER.findall(word))
    if word.isascii() or not latin_letter_count:
        return word
    is_mostly_latin = 2 * latin_letter_count >= len(word)
    similar_letters = _load_similar_letters() if is_mostly_latin else _load_lookalikes()
    folded_word = _replace_all(word, similar_letters)
    return folded_word if len(_LATIN_LETTER.findall(folded_word)) == len(folded_word) else word


def _replace_all(word: str, replacements: Mapping[str, str]) -> str:
    return "".join(replacements.get(letter, letter) for letter in word)


@cache
def _compile_class(load_replacements: Callable[[], Mapping[str, str]]) -> re.Pattern[str]:
    """Compile a pattern for any of the characters; a class of few ranges matches fast."""
    code_points = set(map(ord, load_replacements()))
    starts = [point for point in sorted(code_points) if point - 1 not in code_points]
    ends = [point for point in sorted(code_points) if point + 1 not in code_points]
    ranges = (f"{chr(start)}-{chr(end)}" for start, end in zip(starts, ends, strict=True))
    return re.compile(f"[{''.join(ranges)}]")


@cache
def _compile_marked_letter() -> re.Pattern[str]:
    """Compile a pattern for a Latin letter with combining marks; its group is the letter."""
    marks = _compile_class(_list_combining_marks).pattern
    return re.compile(f"({_LATIN_LETTER.pattern}){marks}+")


@cache
def _list_combining_marks() -> dict[str, str]:
    characters = map(chr, range(FIRST_MARK, SEARCHED_CHARACTERS.stop))
    return {c: "" for c in characters if unicodedata.category(c) in ("Mn", "Me")}


@cache
def _load_accent_table() -> dict[int, str]:
    """Map letters with accents to those without; the letters are known by their names."""
    accented_letters = dict(_OTHER_ACCENTED_LETTERS)
    for character in map(chr, range(FIRST_ACCENTED_LETTER, 0x1F00)):
        if match := _ACCENTED_LETTER_NAME.fullmatch(unicodedata.name(character, "")):
            is_small = match[1] == "SMALL"
            accented_letters[character] = match[2].lower() if is_small else match[2]
    return str.maketrans(accented_letters)


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

    Small capitals are the look-alikes of Cyrillic letters such as "в" and "т".
    """
    return _find_lookalikes(_load_letter_variants())


@cache
def _load_similar_letters() -> dict[str, str]:
    return RESEMBLING_LETTERS | _load_lookalikes()


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
