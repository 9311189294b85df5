"""Normalise texts, split them into words and hash these, to find duplicates and overlaps."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: Texts of only these characters need no Unicode normalisation: NFKC changes none of them, lower
#: case maps them to each other, none composes with its neighbour, and none is invisible.
SIMPLE_TEXT_PATTERN = (
    r"\A[\x00-\x{9F}\x{A1}-\x{A7}\x{A9}\x{AB}\x{AC}\x{AE}\x{B0}\x{B1}\x{B6}\x{B7}\x{BB}"
    r"\x{BF}-\x{FF}\x{2012}-\x{2016}\x{2018}-\x{2022}]*\z"
)
#: Characters that NFKC may have to reorder. Anything outside these categories is a mark, even if
#: its Unicode version is newer than RE2's; NFKC turns the two listed letters into marks.
_COMBINING_MARK = r"(?:[^\pL\pN\pP\pS\pZ\pC]|[\x{FF9E}\x{FF9F}])"
#: Soft hyphens, zero-width spaces and joiners, marks of direction and the byte order mark. One copy
#: of a text has them between the words of Khmer, for example, and another one does not.
_INVISIBLE_CHARACTER = (
    r"[\x{AD}\x{61C}\x{200B}-\x{200F}\x{202A}-\x{202E}\x{2060}-\x{2064}\x{2066}-\x{206F}\x{FEFF}]"
)
#: Scripts without spaces between words whose characters are syllables or ideographs (line breaking
#: class ID), as RE2 names them in a class.
IDEOGRAPHIC_SCRIPTS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}\p{Tangut}\p{Nushu}"
#: Scripts without spaces between words whose characters are letters and vowel signs: those with the
#: line breaking class SA (complex context), Tibetan, Javanese and Balinese.
UNSPACED_ALPHABETIC_SCRIPTS = (
    r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tai_Le}\p{New_Tai_Lue}\p{Tai_Tham}\p{Tai_Viet}"
    r"\p{Ahom}\p{Tibetan}\p{Javanese}\p{Balinese}"
)
_UNSPACED_CHARACTER = f"[{IDEOGRAPHIC_SCRIPTS}{UNSPACED_ALPHABETIC_SCRIPTS}]"


def normalise_texts(texts: pa.Array) -> pa.Array:
    """Apply NFKC and lower case, and collapse white space; the result is a fixed point.

    Small letters with the same capital become one: ς becomes σ, and ß becomes ss. Invisible
    characters are dropped. Only the first 30 of consecutive combining marks are kept: no script
    uses so many (UAX 15, the stream-safe format), and ordering them takes quadratic time. Each text
    is normalised independently of the others in the column.
    """
    texts = _replace_letter(_replace_letter(texts, "ß", "ss"), "ẞ", "ss")
    normalised = pc.utf8_lower(texts)
    is_complex = pc.invert(pc.match_substring_regex(texts, SIMPLE_TEXT_PATTERN))
    if pc.any(is_complex).as_py():
        normalised = pc.replace_with_mask(
            normalised, is_complex, _apply_nfkc_and_lower_case(texts.filter(is_complex))
        )
    return _collapse_whitespace(_replace_letter(normalised, "ς", "σ"))


def _replace_letter(texts: pa.Array, letter: str, replacement: str) -> pa.Array:
    if pc.all(pc.string_is_ascii(texts)).as_py():
        return texts
    has_letter = pc.match_substring(texts, letter)
    return pc.replace_substring(texts, letter, replacement) if pc.any(has_letter).as_py() else texts


def _apply_nfkc_and_lower_case(texts: pa.Array) -> pa.Array:
    """Apply NFKC and lower case until neither changes a word: lower case may compose again.

    Works word by word, because nothing composes with a space and few words need it.
    """
    words = pc.split_pattern(texts, " ")
    normalised_words = pc.utf8_lower(words.values)
    is_complex = pc.invert(pc.match_substring_regex(words.values, SIMPLE_TEXT_PATTERN))
    complex_words = pc.replace_substring_regex(
        words.values.filter(is_complex), _INVISIBLE_CHARACTER, ""
    )
    while not (
        normalised_complex := pc.utf8_lower(
            pc.utf8_normalize(limit_combining_marks(complex_words), "NFKC")
        )
    ).equals(complex_words):
        complex_words = normalised_complex
    normalised_words = pc.replace_with_mask(normalised_words, is_complex, complex_words)
    word_lists = pa.ListArray.from_arrays(words.offsets, normalised_words)
    return pc.binary_join(word_lists, pa.scalar(" ", pa.large_string()))


def limit_combining_marks(words: pa.Array) -> pa.Array:
    """Keep at most 30 consecutive combining marks, of at least two bytes each.

    Compiling the expression takes as long as normalising megabytes, so it is only used if a cheap
    count finds enough marks.
    """
    is_long = pc.greater(pc.binary_length(words), 2 * 30)
    if not pc.any(is_long).as_py():
        return words
    has_excess_marks = pc.greater(
        pc.count_substring_regex(words.filter(is_long), _COMBINING_MARK), 30
    )
    if not pc.any(has_excess_marks).as_py():
        return words
    has_excess_marks = pc.replace_with_mask(is_long, is_long, has_excess_marks)
    shortened = pc.replace_substring_regex(
        words.filter(has_excess_marks), f"({_COMBINING_MARK}{{30}}){_COMBINING_MARK}+", r"\1"
    )
    return pc.replace_with_mask(words, has_excess_marks, shortened)


def _collapse_whitespace(texts: pa.Array) -> pa.Array:
    words = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(texts))
    return pc.binary_join(words, pa.scalar(" ", pa.large_string()))


class WordHashes(NamedTuple):
    """The hashes of the words of n texts, one text after the other."""

    hashes: np.ndarray
    """(words,) uint64."""
    text_offsets: np.ndarray
    """(n + 1,) int64: text i has the words from `text_offsets[i]` to `text_offsets[i + 1]`."""


def hash_words(normalised_texts: pa.Array) -> WordHashes:
    """Hash each word of normalised texts; in scripts without spaces, each character is a word."""
    words = split_words(normalised_texts)
    text_offsets = words.offsets.to_numpy().astype(np.int64)
    encoded_words = words.values.dictionary_encode()
    hashes = hash_encoded_words(encoded_words)[text_offsets[0] : text_offsets[-1]]
    return WordHashes(hashes, text_offsets - text_offsets[0])


def split_words(normalised_texts: pa.Array, signs: str = "") -> pa.ListArray:
    """Split normalised texts, whose words are separated by single spaces, into words.

    In scripts without spaces, each character is a word.

    Args:
        signs: Characters that belong to the word of the character before them, as the content of
            a class of RE2, such as ``\\pM``.
    """
    texts = normalised_texts
    is_not_ascii = pc.invert(pc.string_is_ascii(texts))
    if pc.any(is_not_ascii).as_py():
        pattern = f"({_UNSPACED_CHARACTER}{f'[{signs}]*' if signs else ''})"
        texts = pc.replace_with_mask(
            texts, is_not_ascii, _separate_matches(texts.filter(is_not_ascii), pattern)
        )
    return pc.split_pattern(texts, " ")


def _separate_matches(texts: pa.Array, pattern: str) -> pa.Array:
    """Put spaces around what the group of a pattern matches."""
    has_match = pc.match_substring_regex(texts, pattern)
    if not pc.any(has_match).as_py():
        return texts
    spaced = pc.replace_substring_regex(texts.filter(has_match), pattern, r" \1 ")
    return pc.replace_with_mask(texts, has_match, _collapse_whitespace(spaced))


def hash_encoded_words(words: pa.DictionaryArray) -> np.ndarray:
    """Hash words to uint64, each distinct word only once."""
    digests = [
        hashlib.blake2b(word.encode(), digest_size=8).digest()
        for word in words.dictionary.to_pylist()
    ]
    hashes: np.ndarray = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)[
        words.indices.to_numpy()
    ]
    return hashes


def mix_hashes(accumulated: np.ndarray, added: np.ndarray | np.uint64) -> np.ndarray:
    """Fold one uint64 array into another; the order of folding matters."""
    mixed = (accumulated ^ added) * np.uint64(
        0x9E3779B97F4A7C15
    )  # The product overflows on purpose.
    return mixed ^ (mixed >> np.uint64(32))
