"""Test sketches against plain Python: normalisation, shingles, minima and shared bands."""

import hashlib
import time
import unicodedata
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hallmark.tasks.corpus.copies.sketches import compute_band_hashes, compute_shingle_hashes
from hallmark.tasks.measures import normalised_words
from hallmark.tasks.measures.normalised_words import normalise_texts

INVISIBLE_CHARACTERS = {
    chr(p)
    for first, last in (
        (0xAD, 0xAD),
        (0x61C, 0x61C),
        (0x200B, 0x200F),
        (0x202A, 0x202E),
        (0x2060, 0x2064),
        (0x2066, 0x206F),
        (0xFEFF, 0xFEFF),
    )
    for p in range(first, last + 1)
}


def plain(text):
    """Normalise a text with Python."""
    text = "".join(c for c in text if c not in INVISIBLE_CHARACTERS)
    while (folded := fold_case(unicodedata.normalize("NFKC", text))) != text:
        text = folded
    return " ".join(text.split())


def fold_case(text):
    """Return lower case, in which a letter has one form only."""
    return text.lower().replace("ς", "σ").replace("ß", "ss")


def shingle_set(text, length=5):
    words = plain(text).split() or [""]
    return {tuple(words[i : i + length]) for i in range(max(1, len(words) - length + 1))}


def similarity(left, right):
    return len(left & right) / len(left | right)


#: Letters for which Arrow and Python agree; Arrow gives the four excluded ones another lower case.
#: Scripts without spaces have higher code points and their own test.
letters = st.characters(max_codepoint=0xDFF, exclude_characters="\u0130\u0558\u058b\u058c")


SIMPLE_CHARACTERS = [
    c
    for c in map(chr, [*range(0x250), *range(0x2000, 0x2070)])
    if pc.match_substring_regex(pa.array([c]), normalised_words.SIMPLE_TEXT_PATTERN)[0].as_py()
]


@given(st.text(st.sampled_from(SIMPLE_CHARACTERS), max_size=40))
def test_simple_texts_give_the_same_result_on_both_paths(text):
    """The fast path, the full path and Python agree."""
    [fast_result] = normalise_texts(pa.array([text], pa.large_string())).to_pylist()
    column = pa.array([text.replace("ß", "ss")], pa.large_string())
    [full_result] = normalised_words._collapse_whitespace(
        normalised_words._apply_nfkc_and_lower_case(column)
    ).to_pylist()
    assert (
        fast_result
        == full_result
        == " ".join(fold_case(unicodedata.normalize("NFKC", text)).split())
    )


@pytest.mark.parametrize(
    "copies",
    [
        ("Ο Σίσυφος ανεβάζει τους βράχους", "Ο ΣΊΣΥΦΟΣ ΑΝΕΒΆΖΕΙ ΤΟΥΣ ΒΡΆΧΟΥΣ"),
        ("Die große Straße", "DIE GROSSE STRASSE", "DIE GROẞE STRAẞE", "Die grosse Strasse"),
        ("Groß–und “Maß” 5\u00a0µm ς", "GROSS–UND “MASS” 5 ΜM Σ"),
    ],
)
def test_capitals_and_small_letters_are_equal(copies):
    for width in (1, 100):
        column = pa.array([" ".join([copy] * width) for copy in copies], pa.large_string())
        assert len(set(normalise_texts(column).to_pylist())) == 1


def test_more_than_ascii_is_simple():
    assert {*map(chr, range(128)), *"éßÆ×÷“”–•Ã\x80"} <= {*SIMPLE_CHARACTERS}
    assert not {*"\xa0\xad\u200bªµ½…ﬁ\u0301가\u212b"} & {*SIMPLE_CHARACTERS}


def test_a_word_is_hashed_by_blake2():
    texts = pa.array(["one two two", "zwei 三四"], pa.large_string())
    expected = [
        hashlib.blake2b(word.encode(), digest_size=8).digest()
        for text in ("one two two", "zwei 三 四")
        for word in text.split()
    ]
    hashes, ends = normalised_words.hash_words(texts)
    assert hashes.astype("<u8").tobytes() == b"".join(expected)
    assert ends.tolist() == [0, 3, 6]


def fold_completely(text):
    """Apply NFKC and lower case with Arrow until neither changes the text."""
    column = pa.array([text], pa.large_string())
    while not (folded := pc.utf8_lower(pc.utf8_normalize(column, "NFKC"))).equals(column):
        column = folded
    return column[0].as_py()


@settings(deadline=None)
@given(st.text("aAÅ é\u0301\u0308¨\u0345ﬁ가\u1100\u1161\u11a8 \u0130Hh\u0331…", max_size=20))
def test_words_are_folded_like_their_text(text):
    column = pa.array([text, "x"], pa.large_string())
    assert normalised_words._apply_nfkc_and_lower_case(column).to_pylist() == [
        fold_completely(text),
        "x",
    ]


@pytest.mark.parametrize("mark", ["\u0301", "\u0897", "\uff9e"])
def test_marks_beyond_thirty_in_a_row_are_dropped_quickly(mark):
    """Some marks are newer than the regular expressions' Unicode, or made from a letter."""
    start = time.process_time()
    column = pa.array(["a" + f"\u0323{mark}" * n for n in (15, 16, 20_000)], pa.large_string())
    assert normalise_texts(column).to_pylist() == [fold_completely(column[0].as_py())] * 3
    assert time.process_time() - start < 1


def test_long_words_without_marks_are_normalised_quickly():
    """In writing without spaces, every sentence is a long word; such words are not shortened."""
    text = "これは日本語の文章であり、単語の間に空白がない普通の文である" * 3
    column = pa.array([text, "e" + "\u0301\u0323 e" * 40], pa.large_string())
    assert normalise_texts(column).to_pylist() == [
        fold_completely(each) for each in column.to_pylist()
    ]
    start = time.process_time()
    for _ in range(50):
        normalise_texts(column)
    assert time.process_time() - start < 1


@settings(deadline=None)
@given(st.lists(st.text(letters, max_size=30), min_size=1, max_size=5), st.integers(1, 7))
def test_normalisation_and_shingles_equal_plain_python(texts, length):
    """Compare numbers of distinct shingles and similarities with those of tuples of words."""
    normalised = normalise_texts(pa.array(texts, pa.large_string()))
    assert normalised.to_pylist() == [plain(text) for text in texts]
    hashes, offsets = compute_shingle_hashes(normalised, length)
    sets = [shingle_set(text, length) for text in texts]
    hash_sets = [set(hashes[i:j].tolist()) for i, j in pairwise(offsets)]
    assert [len(s) for s in hash_sets] == [len(s) for s in sets]
    for hash_set, expected_set in zip(hash_sets, sets, strict=True):
        assert similarity(hash_sets[0], hash_set) == similarity(sets[0], expected_set)


@settings(deadline=None)
@given(st.lists(st.text("aA\u0130Hh\u0331\u1e96Σςß\u0307\ufb01 漢\u3000", max_size=8), max_size=6))
@example(["H\u0331", "x"])  # composes only after lower-casing
@example(["aß\u0307 A\u1e9e\u0307"])  # the dot composes with an s
# More marks than are kept; each decomposes into two.
@example(["a" + "\u0301\u0323" * 40, "\u0344" * 40])
def test_normalisation_is_idempotent_and_independent_of_other_texts(texts):
    column = pa.array(texts, pa.large_string())
    normalised = normalise_texts(column)
    assert normalise_texts(normalised).equals(normalised)
    assert normalised.to_pylist() == [
        normalise_texts(column[i : i + 1])[0].as_py() for i in range(len(texts))
    ]
    for unit in ("words", "characters"):
        hashes, offsets = compute_shingle_hashes(normalised, 3, unit)
        for i in range(len(texts)):
            single_hashes, _ = compute_shingle_hashes(normalised[i : i + 1], 3, unit)
            assert single_hashes.tolist() == hashes[offsets[i] : offsets[i + 1]].tolist()


@settings(deadline=None)
@given(st.lists(st.text("ab é漢", max_size=12), max_size=5), st.integers(1, 4))
def test_shingles_of_characters_are_the_windows_of_the_text(texts, length):
    hashes, offsets = compute_shingle_hashes(
        pa.array(texts, pa.large_string()), length, "characters"
    )
    windows = [
        text[i : i + length] for text in texts for i in range(max(1, len(text) - length + 1))
    ]
    assert len(hashes) == len(windows) == offsets[-1]
    pairs = set(zip(windows, hashes.tolist(), strict=True))
    assert len(pairs) == len(set(windows)) == len(set(hashes.tolist()))


@settings(deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=60), st.integers(0, 9))
def test_the_bands_of_a_text_do_not_depend_on_other_texts(sizes, seed):
    """Texts are processed in groups of similar length."""
    rng = np.random.default_rng(seed)
    sizes = [*sizes, 40_000] if seed == 0 else sizes  # longer than a block
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    hashes = rng.integers(0, 1 << 63, offsets[-1], dtype=np.uint64)
    bands = compute_band_hashes(hashes, offsets, 3, 2, seed=1)
    for i, (start, stop) in enumerate(pairwise(offsets)):
        single_bands = compute_band_hashes(
            hashes[start:stop], np.array([0, stop - start]), 3, 2, seed=1
        )
        assert single_bands.tolist() == bands[i : i + 1].tolist()
        repeated_hashes = np.concatenate([hashes[start:stop], hashes[start:stop][::-1]])
        repeated_bands = compute_band_hashes(
            repeated_hashes, np.array([0, len(repeated_hashes)]), 3, 2, seed=1
        )
        # Neither order nor repetition matters.
        assert repeated_bands.tolist() == single_bands.tolist()
    assert not np.array_equal(bands, compute_band_hashes(hashes, offsets, 3, 2, seed=2))


def test_texts_share_a_band_as_often_as_the_formula_says():
    """3,000 pairs with a known similarity; the share is within 4 standard errors."""
    rng = np.random.default_rng(5)
    pairs, size = 3000, 200
    for bands, rows, common in ((14, 8, 165), (20, 5, 140), (32, 4, 100), (32, 4, 60)):
        true_similarity = common / (2 * size - common)
        sets = []
        for _ in range(pairs):
            values = rng.integers(0, 1 << 63, 2 * size - common, dtype=np.uint64)
            sets += [np.sort(values[:size]), np.sort(values[-size:])]
        ends = np.arange(2 * pairs + 1) * size
        band_hashes = compute_band_hashes(np.concatenate(sets), ends, bands, rows, seed=1)
        share = (band_hashes[::2] == band_hashes[1::2]).any(axis=1).mean()
        expected = 1 - (1 - true_similarity**rows) ** bands
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / pairs) + 0.01
        assert similarity(set(sets[0].tolist()), set(sets[1].tolist())) == true_similarity
