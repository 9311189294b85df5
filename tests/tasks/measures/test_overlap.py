"""Compare overlaps with sets of items with a plain Python implementation."""

import random
import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.measures.overlap import build_overlap_index, find_overlaps
from tests.tasks.corpus.test_sketches import plain


def split_words(text):
    return re.sub(r"[^\w]|_", " ", plain(text)).split()


def find_overlaps_in_plain_python(texts, items, words, least):
    pairs = []
    for number, text in enumerate(texts):
        text_words = split_words(text)
        for item, content in enumerate(items):
            item_words = split_words(content)
            length = min(len(item_words), words)
            if length < least:
                continue
            stretches = {
                tuple(item_words[i : i + length]) for i in range(len(item_words) - length + 1)
            }
            if any(tuple(text_words[i : i + length]) in stretches for i in range(len(text_words))):
                pairs.append((number, item))
    return pairs


def list_overlaps(texts, items, words, least):
    pairs = find_overlaps(
        pa.array(texts, pa.large_string()), build_overlap_index(items, words, least)
    )
    return list(zip(*(side.tolist() for side in pairs), strict=True))


word = st.sampled_from(["a", "B", "c,", "d.", "é", "(f)"])
text = st.lists(word, max_size=14).map(" ".join)


@settings(deadline=None, max_examples=200)
@given(st.lists(text, max_size=6), st.lists(text, max_size=6), st.integers(1, 5), st.integers(1, 4))
def test_overlaps_equal_those_of_plain_python(texts, items, words, least):
    assert list_overlaps(texts, items, words, least) == find_overlaps_in_plain_python(
        texts, items, words, least
    )


def test_thirteen_consecutive_words_overlap_and_twelve_do_not():
    chance = random.Random(1)
    item = [f"w{chance.randrange(10**9)}" for _ in range(30)]
    long = "before. " + " ".join(item[5:18]).upper() + ", after"
    short = "before. " + " ".join(item[5:17]) + ", after"
    assert list_overlaps([long, short], [" ".join(item)], 13, 4) == [(0, 0)]


def test_a_short_item_must_match_as_a_whole_and_a_tiny_one_is_skipped():
    items = ["The quick brown fox!", "yes, no", ""]
    texts = ['He wrote: "the QUICK, brown fox" and left.', "the quick brown dog", "yes no yes no"]
    assert list_overlaps(texts, items, 13, 4) == [(0, 0)]
    item_words = build_overlap_index(items, 13, 4)
    assert (item_words.item_count, item_words.short_item_count) == (3, 2)


def test_an_ngram_does_not_cross_texts():
    assert list_overlaps(["a b", "c d"], ["b c"], 2, 1) == []
    assert list_overlaps(["x b c", "c d"], ["b c", "c d"], 2, 1) == [(0, 0), (1, 1)]


@pytest.mark.parametrize("texts", [[], ["", "  "], ["!?"]])
def test_empty_texts_and_items_do_not_overlap(texts):
    assert list_overlaps(texts, [], 13, 4) == list_overlaps(texts, ["", "one"], 13, 4) == []
    assert list_overlaps([], ["a b c d"], 13, 4) == []
