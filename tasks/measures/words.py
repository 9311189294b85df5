"""Texts normalised and cut into words, and words hashed: what copies and overlaps are found by."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: Texts of these characters alone: NFKC changes none of them, lower case some to others of them;
#: none composes with its neighbour.
SIMPLE = (
    r"\A[\x00-\x{9F}\x{A1}-\x{A7}\x{A9}\x{AB}-\x{AE}\x{B0}\x{B1}\x{B6}\x{B7}\x{BB}\x{BF}-\x{FF}"
    r"\x{2012}-\x{2016}\x{2018}-\x{2022}]*\z"
)
#: What NFKC may have to order: what is in none of these categories is a mark, be it of a newer
#: Unicode than these expressions know; the two letters become marks.
_MARK = r"(?:[^\pL\pN\pP\pS\pZ\pC]|[\x{FF9E}\x{FF9F}])"
NO_SPACES = r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}])"


def normalise(texts: pa.Array) -> pa.Array:
    """NFKC, lower case, one space for any white space, none at the ends; a fixed point of itself.

    Of more than 30 marks in a row those behind are left out: no writing has so many (UAX 15, the
    stream-safe format), and to order them takes time by the square of their number. Each text by
    itself: what stands beside it in a batch changes nothing.
    """
    plain = pc.utf8_lower(texts)
    other = pc.invert(pc.match_substring_regex(texts, SIMPLE))
    if pc.any(other).as_py():
        plain = pc.replace_with_mask(plain, other, _folded(texts.filter(other)))
    return _spaced_once(plain)


def _folded(texts: pa.Array) -> pa.Array:
    """NFKC and lower case, until neither changes a word: what is lower case may compose anew. Word
    by word, as nothing composes with a space, and few words need it."""
    words = pc.split_pattern(texts, " ")
    values = pc.utf8_lower(words.values)
    other = pc.invert(pc.match_substring_regex(words.values, SIMPLE))
    odd = words.values.filter(other)
    while not (folded := pc.utf8_lower(pc.utf8_normalize(_cut(odd), "NFKC"))).equals(odd):
        odd = folded
    values = pc.replace_with_mask(values, other, odd)
    lists = pa.ListArray.from_arrays(words.offsets, values)
    return pc.binary_join(lists, pa.scalar(" ", pa.large_string()))


def _cut(words: pa.Array) -> pa.Array:
    """Without the marks behind thirty: of words that have so many, of two bytes at least each. To
    compile the expression takes as long as to normalise megabytes, to count marks hardly any."""
    long = pc.greater(pc.binary_length(words), 2 * 30)
    if not pc.any(long).as_py():
        return words
    many = pc.greater(pc.count_substring_regex(words.filter(long), _MARK), 30)
    if not pc.any(many).as_py():
        return words
    many = pc.replace_with_mask(long, long, many)
    cut = pc.replace_substring_regex(words.filter(many), f"({_MARK}{{30}}){_MARK}+", r"\1")
    return pc.replace_with_mask(words, many, cut)


def _spaced_once(texts: pa.Array) -> pa.Array:
    words = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(texts))
    return pc.binary_join(words, pa.scalar(" ", pa.large_string()))


def word_hashes(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """A hash for each word, (words,) uint64, and where each text's begin and end, (n + 1,)."""
    other = pc.invert(pc.string_is_ascii(texts))
    if pc.any(other).as_py():
        texts = pc.replace_with_mask(texts, other, _characters_apart(texts.filter(other)))
    words = pc.split_pattern(texts, " ")
    ends = words.offsets.to_numpy().astype(np.int64)
    return _hashed(words.values)[ends[0] : ends[-1]], ends - ends[0]


def _characters_apart(texts: pa.Array) -> pa.Array:
    spaceless = pc.match_substring_regex(texts, NO_SPACES)
    if not pc.any(spaceless).as_py():
        return texts
    spaced = pc.replace_substring_regex(texts.filter(spaceless), NO_SPACES, r" \1 ")
    return pc.replace_with_mask(texts, spaceless, _spaced_once(spaced))


def _hashed(words: pa.Array) -> np.ndarray:
    """One uint64 a word; equal words are hashed once."""
    known = words.dictionary_encode()
    digests = [
        hashlib.blake2b(w.encode(), digest_size=8).digest() for w in known.dictionary.to_pylist()
    ]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)[known.indices.to_numpy()]


def mix(left: np.ndarray, right: np.ndarray | np.uint64) -> np.ndarray:
    """Fold one array of uint64 into another; the order of folding counts."""
    mixed = (left ^ right) * np.uint64(0x9E3779B97F4A7C15)  # wraps
    return mixed ^ (mixed >> np.uint64(32))
