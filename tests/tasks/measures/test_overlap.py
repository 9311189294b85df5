"""Overlap with sets of items, against plain Python."""

import random
import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.measures.overlap import build_overlap_index, find_overlaps
from tests.tasks.corpus.test_sketches import plain


def words_of(text):
    return re.sub(r"[^\w]|_", " ", plain(text)).split()


def expected(texts, items, words, least):
    pairs = []
    for number, text in enumerate(texts):
        there = words_of(text)
        for item, content in enumerate(items):
            known = words_of(content)
            length = min(len(known), words)
            if length < least:
                continue
            stretches = {tuple(known[i : i + length]) for i in range(len(known) - length + 1)}
            if any(tuple(there[i : i + length]) in stretches for i in range(len(there))):
                pairs.append((number, item))
    return pairs


def found(texts, items, words, least):
    pairs = find_overlaps(
        pa.array(texts, pa.large_string()), build_overlap_index(items, words, least)
    )
    return list(zip(*(side.tolist() for side in pairs), strict=True))


word = st.sampled_from(["a", "B", "c,", "d.", "é", "(f)"])
text = st.lists(word, max_size=14).map(" ".join)


@settings(deadline=None, max_examples=200)
@given(st.lists(text, max_size=6), st.lists(text, max_size=6), st.integers(1, 5), st.integers(1, 4))
def test_overlaps_are_those_of_plain_python(texts, items, words, least):
    assert found(texts, items, words, least) == expected(texts, items, words, least)


def test_thirteen_words_in_a_row_and_not_twelve():
    chance = random.Random(1)
    item = [f"w{chance.randrange(10**9)}" for _ in range(30)]
    long = "before. " + " ".join(item[5:18]).upper() + ", after"
    short = "before. " + " ".join(item[5:17]) + ", after"
    assert found([long, short], [" ".join(item)], 13, 4) == [(0, 0)]


def test_a_shorter_item_counts_whole_and_a_tiny_one_not_at_all():
    items = ["The quick brown fox!", "yes, no", ""]
    texts = ['He wrote: "the QUICK, brown fox" and left.', "the quick brown dog", "yes no yes no"]
    assert found(texts, items, 13, 4) == [(0, 0)]
    known = build_overlap_index(items, 13, 4)
    assert (known.item_count, known.short_item_count) == (3, 2)


def test_a_stretch_does_not_run_from_one_text_into_the_next():
    assert found(["a b", "c d"], ["b c"], 2, 1) == []
    assert found(["x b c", "c d"], ["b c", "c d"], 2, 1) == [(0, 0), (1, 1)]


@pytest.mark.parametrize("texts", [[], ["", "  "], ["!?"]])
def test_nothing_overlaps_with_nothing(texts):
    assert found(texts, [], 13, 4) == found(texts, ["", "one"], 13, 4) == []
    assert found([], ["a b c d"], 13, 4) == []
