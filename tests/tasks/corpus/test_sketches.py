"""Sketches of texts against plain Python: normalisation, shingles, minima, and who meets whom."""

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


def plain(text):
    """Normalised, in Python."""
    while (folded := unicodedata.normalize("NFKC", text).lower()) != text:
        text = folded
    return " ".join(text.split())


def shingle_set(text, length=5):
    cut = plain(text).split() or [""]
    return {tuple(cut[i : i + length]) for i in range(max(1, len(cut) - length + 1))}


def similarity(left, right):
    return len(left & right) / len(left | right)


#: Where Arrow and Python agree: of five letters here Arrow's lower case is the simple one or of
#: a newer Unicode. Scripts without spaces, further up, have a test of their own.
letters = st.characters(max_codepoint=0xDFF, exclude_characters="\u0130\u03a3\u0558\u058b\u058c")


SIMPLE_ONES = [
    c
    for c in map(chr, [*range(0x250), *range(0x2000, 0x2070)])
    if pc.match_substring_regex(pa.array([c]), normalised_words.SIMPLE_TEXT_PATTERN)[0].as_py()
]


@given(st.text(st.sampled_from(SIMPLE_ONES), max_size=40))
def test_simple_texts_need_no_normal_form(text):
    """What the short way makes of them is what the long way would, and Python."""
    column = pa.array([text], pa.large_string())
    [short] = normalise_texts(column).to_pylist()
    [long] = normalised_words._collapse_whitespace(
        normalised_words._normalise_unicode(column)
    ).to_pylist()
    assert short == long == " ".join(unicodedata.normalize("NFKC", text).lower().split())


def test_more_than_ascii_is_simple():
    assert {*map(chr, range(128)), *"éßÆ×÷“”–•Ã\x80"} <= {*SIMPLE_ONES}
    assert not {*"\xa0ªµ½…ﬁ\u0301가\u212b"} & {*SIMPLE_ONES}


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


def whole(text):
    """NFKC and lower case of a text at once, by Arrow, until neither changes it."""
    column = pa.array([text], pa.large_string())
    while not (folded := pc.utf8_lower(pc.utf8_normalize(column, "NFKC"))).equals(column):
        column = folded
    return column[0].as_py()


@settings(deadline=None)
@given(st.text("aAÅ é\u0301\u0308¨\u0345ﬁ가\u1100\u1161\u11a8 \u0130Hh\u0331…", max_size=20))
def test_words_are_folded_as_their_text_is(text):
    column = pa.array([text, "x"], pa.large_string())
    assert normalised_words._normalise_unicode(column).to_pylist() == [whole(text), "x"]


@pytest.mark.parametrize("mark", ["\u0301", "\u0897", "\uff9e"])
def test_marks_beyond_thirty_in_a_row_are_left_out_and_take_little_time(mark):
    """Also where their Unicode is newer than the regular expressions', or makes a mark of a
    letter."""
    start = time.process_time()
    column = pa.array(["a" + f"\u0323{mark}" * n for n in (15, 16, 20_000)], pa.large_string())
    assert normalise_texts(column).to_pylist() == [whole(column[0].as_py())] * 3
    assert time.process_time() - start < 1


def test_long_words_without_such_marks_are_soon_normalised():
    """As of writing without spaces, where every sentence is one; and they stay as they are."""
    text = "これは日本語の文章であり、単語の間に空白がない普通の文である" * 3
    column = pa.array([text, "e" + "\u0301\u0323 e" * 40], pa.large_string())
    assert normalise_texts(column).to_pylist() == [whole(each) for each in column.to_pylist()]
    start = time.process_time()
    for _ in range(50):
        normalise_texts(column)
    assert time.process_time() - start < 1


@settings(deadline=None)
@given(st.lists(st.text(letters, max_size=30), min_size=1, max_size=5), st.integers(1, 7))
def test_normalisation_and_shingles(texts, length):
    """Number of distinct shingles and similarities, against tuples of words."""
    got = normalise_texts(pa.array(texts, pa.large_string()))
    assert got.to_pylist() == [plain(text) for text in texts]
    hashes, offsets = compute_shingle_hashes(got, length)
    sets = [shingle_set(text, length) for text in texts]
    found = [set(hashes[i:j].tolist()) for i, j in pairwise(offsets)]
    assert [len(s) for s in found] == [len(s) for s in sets]
    for here, other in zip(found, sets, strict=True):
        assert similarity(found[0], here) == similarity(sets[0], other)


@settings(deadline=None)
@given(st.lists(st.text("aA\u0130Hh\u0331\u1e96\u03a3\ufb01 漢\u3000", max_size=8), max_size=6))
@example(["H\u0331", "x"])  # composes only after lower-casing
@example(["a" + "\u0301\u0323" * 40, "\u0344" * 40])  # more marks than count, each of which is two
def test_normalising_again_changes_nothing_and_looks_at_no_neighbour(texts):
    column = pa.array(texts, pa.large_string())
    once = normalise_texts(column)
    assert normalise_texts(once).equals(once)
    assert once.to_pylist() == [
        normalise_texts(column[i : i + 1])[0].as_py() for i in range(len(texts))
    ]
    for of in ("words", "characters"):
        hashes, offsets = compute_shingle_hashes(once, 3, of)
        for i in range(len(texts)):
            alone, _ = compute_shingle_hashes(once[i : i + 1], 3, of)
            assert alone.tolist() == hashes[offsets[i] : offsets[i + 1]].tolist()


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
def test_a_text_has_its_bands_whatever_stands_beside_it(sizes, seed):
    """Texts are worked on by their lengths; each gets what it would get alone."""
    chance = np.random.default_rng(seed)
    sizes = [*sizes, 40_000] if seed == 0 else sizes  # longer than a block
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    hashes = chance.integers(0, 1 << 63, offsets[-1], dtype=np.uint64)
    found = compute_band_hashes(hashes, offsets, 3, 2, seed=1)
    for i, (start, stop) in enumerate(pairwise(offsets)):
        alone = compute_band_hashes(hashes[start:stop], np.array([0, stop - start]), 3, 2, seed=1)
        assert alone.tolist() == found[i : i + 1].tolist()
        again = np.concatenate([hashes[start:stop], hashes[start:stop][::-1]])
        twice = compute_band_hashes(again, np.array([0, len(again)]), 3, 2, seed=1)
        assert twice.tolist() == alone.tolist()  # of a set: neither order nor copies count
    assert not np.array_equal(found, compute_band_hashes(hashes, offsets, 3, 2, seed=2))


def test_a_band_agrees_as_often_as_the_formula_says():
    """3,000 pairs at a known similarity; the share that meets, within 4 standard errors."""
    chance = np.random.default_rng(5)
    pairs, size = 3000, 200
    for bands, rows, common in ((14, 8, 165), (20, 5, 140), (32, 4, 100), (32, 4, 60)):
        s = common / (2 * size - common)
        sets = []
        for _ in range(pairs):
            pool = chance.integers(0, 1 << 63, 2 * size - common, dtype=np.uint64)
            sets += [np.sort(pool[:size]), np.sort(pool[-size:])]
        ends = np.arange(2 * pairs + 1) * size
        found = compute_band_hashes(np.concatenate(sets), ends, bands, rows, seed=1)
        share = (found[::2] == found[1::2]).any(axis=1).mean()
        expected = 1 - (1 - s**rows) ** bands
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / pairs) + 0.01
        assert similarity(set(sets[0].tolist()), set(sets[1].tolist())) == s
