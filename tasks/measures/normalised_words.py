"""Texts normalised and cut into words, and words hashed: what copies and overlaps are found by."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: Texts of these characters alone: NFKC changes none of them, lower case some to others of them;
#: none composes with its neighbour.
SIMPLE_TEXT_PATTERN = (
    r"\A[\x00-\x{9F}\x{A1}-\x{A7}\x{A9}\x{AB}-\x{AE}\x{B0}\x{B1}\x{B6}\x{B7}\x{BB}\x{BF}-\x{FF}"
    r"\x{2012}-\x{2016}\x{2018}-\x{2022}]*\z"
)
#: What NFKC may have to order: what is in none of these categories is a mark, be it of a newer
#: Unicode than these expressions know; the two letters become marks.
_COMBINING_MARK = r"(?:[^\pL\pN\pP\pS\pZ\pC]|[\x{FF9E}\x{FF9F}])"
UNSPACED_SCRIPT_PATTERN = r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}])"


def normalise_texts(texts: pa.Array) -> pa.Array:
    """NFKC, lower case, one space for any white space, none at the ends; a fixed point of itself.

    Of more than 30 marks in a row those behind are left out: no writing has so many (UAX 15, the
    stream-safe format), and to order them takes time by the square of their number. Each text by
    itself: what stands beside it in a batch changes nothing.
    """
    normalised = pc.utf8_lower(texts)
    is_complex = pc.invert(pc.match_substring_regex(texts, SIMPLE_TEXT_PATTERN))
    if pc.any(is_complex).as_py():
        normalised = pc.replace_with_mask(
            normalised, is_complex, _normalise_unicode(texts.filter(is_complex))
        )
    return _collapse_whitespace(normalised)


def _normalise_unicode(texts: pa.Array) -> pa.Array:
    """NFKC and lower case, until neither changes a word: what is lower case may compose anew. Word
    by word, as nothing composes with a space, and few words need it."""
    words = pc.split_pattern(texts, " ")
    normalised_words = pc.utf8_lower(words.values)
    is_complex = pc.invert(pc.match_substring_regex(words.values, SIMPLE_TEXT_PATTERN))
    complex_words = words.values.filter(is_complex)
    while not (
        normalised_complex := pc.utf8_lower(
            pc.utf8_normalize(_limit_combining_marks(complex_words), "NFKC")
        )
    ).equals(complex_words):
        complex_words = normalised_complex
    normalised_words = pc.replace_with_mask(normalised_words, is_complex, complex_words)
    word_lists = pa.ListArray.from_arrays(words.offsets, normalised_words)
    return pc.binary_join(word_lists, pa.scalar(" ", pa.large_string()))


def _limit_combining_marks(words: pa.Array) -> pa.Array:
    """Without the marks behind thirty: of words that have so many, of two bytes at least each. To
    compile the expression takes as long as to normalise megabytes, to count marks hardly any."""
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


def hash_words(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """A hash for each word, (words,) uint64, and where each text's begin and end, (n + 1,)."""
    is_not_ascii = pc.invert(pc.string_is_ascii(texts))
    if pc.any(is_not_ascii).as_py():
        texts = pc.replace_with_mask(
            texts, is_not_ascii, _separate_unspaced_characters(texts.filter(is_not_ascii))
        )
    words = pc.split_pattern(texts, " ")
    text_offsets = words.offsets.to_numpy().astype(np.int64)
    return _hash_distinct_words(words.values)[
        text_offsets[0] : text_offsets[-1]
    ], text_offsets - text_offsets[0]


def _separate_unspaced_characters(texts: pa.Array) -> pa.Array:
    is_unspaced = pc.match_substring_regex(texts, UNSPACED_SCRIPT_PATTERN)
    if not pc.any(is_unspaced).as_py():
        return texts
    spaced = pc.replace_substring_regex(texts.filter(is_unspaced), UNSPACED_SCRIPT_PATTERN, r" \1 ")
    return pc.replace_with_mask(texts, is_unspaced, _collapse_whitespace(spaced))


def _hash_distinct_words(words: pa.Array) -> np.ndarray:
    """One uint64 a word; equal words are hashed once."""
    encoded = words.dictionary_encode()
    digests = [
        hashlib.blake2b(word.encode(), digest_size=8).digest()
        for word in encoded.dictionary.to_pylist()
    ]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)[encoded.indices.to_numpy()]


def mix_hashes(accumulated: np.ndarray, added: np.ndarray | np.uint64) -> np.ndarray:
    """Fold one array of uint64 into another; the order of folding counts."""
    mixed = (accumulated ^ added) * np.uint64(0x9E3779B97F4A7C15)  # wraps
    return mixed ^ (mixed >> np.uint64(32))
