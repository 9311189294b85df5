"""Compare overlaps with sets of items with a plain Python implementation."""

import random
import re
import string
from itertools import chain

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.measures.overlap import build_overlap_index, find_overlaps
from tests.tasks.corpus.test_sketches import plain


def split_words(text):
    return re.sub(r"[^\w]|_", " ", plain(text)).split()


def list_ngrams(words, n):
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def list_item_ngrams(texts, n):
    """The n-grams within one text, and those from the question to the texts after it."""
    question, *others = [split_words(text) for text in texts]
    ngrams = set().union(*(list_ngrams(words, n) for words in (question, *others)))
    short_texts = [words for words in others if len(words) < n]
    labelled_texts = [
        [*chain(*([label, *words] for label, words in zip(labels, others, strict=False)))]
        for labels in (string.ascii_lowercase[:10], map(str, range(1, 11)))
    ]
    for continuation in [*short_texts, [*chain(*others)], *labelled_texts]:
        ngrams |= {
            tuple((question[-k:] + continuation)[:n])
            for k in range(1, min(n, len(question) + 1))
            if k + len(continuation) >= n
        }
    return ngrams


def find_overlaps_in_plain_python(texts, items, n):
    return [
        (number, item)
        for number, text in enumerate(texts)
        for item, content in enumerate(items)
        if list_ngrams(split_words(text), n) & list_item_ngrams(content, n)
    ]


def list_overlaps(texts, items, n=13):
    pairs = find_overlaps(pa.array(texts, pa.large_string()), build_overlap_index(items, n))
    return list(zip(*(side.tolist() for side in pairs), strict=True))


word = st.sampled_from(["a", "B", "c,", "d.", "é", "(f)"])
text = st.lists(word, max_size=14).map(" ".join)


item = st.lists(text, min_size=1, max_size=4)


@settings(deadline=None, max_examples=200)
@given(st.lists(text, max_size=6), st.lists(item, max_size=5), st.integers(1, 6))
def test_overlaps_equal_those_of_plain_python(texts, items, n):
    assert list_overlaps(texts, items, n) == find_overlaps_in_plain_python(texts, items, n)
    index = build_overlap_index(items, n)
    word_counts = [[len(split_words(text)) for text in texts] for texts in items]
    assert index.item_count == len(items)
    assert index.skipped_item_count == sum(not list_item_ngrams(texts, n) for texts in items)
    assert index.short_text_count == sum(0 < k < n for counts in word_counts for k in counts)


def test_thirteen_consecutive_words_overlap_and_twelve_do_not():
    chance = random.Random(1)
    words = [f"w{chance.randrange(10**9)}" for _ in range(30)]
    long = "before. " + " ".join(words[5:18]).upper() + ", after"
    short = "before. " + " ".join(words[5:17]) + ", after"
    assert list_overlaps([long, short], [[" ".join(words)]]) == [(0, 0)]


@pytest.mark.parametrize(
    "text",
    ["None of the above", "It is not the case", "以上都不是", "今天天气很好", "12 + 30 = 42", "?"],
)
def test_a_short_item_is_not_searched_for(text):
    assert list_overlaps([f"He wrote: {text}. Then he left.", text], [[text], ["", text]]) == []
    assert build_overlap_index([[text], ["", text]]).skipped_item_count == 2


def test_a_short_answer_is_found_only_after_its_question():
    question = "Which river of the county is the longest one?"  # 9 words
    items = [[question, "The Elm, the old one", "The Ash river near the town"]]
    found = [
        f"{question} The Ash river near the town",
        f"Quiz: {question} the elm the old one; the Ash.",
        f"{question}\n(A) The Elm, the old one\n(B) The Ash river near the town",
        f"{question}\n1. The Elm, the old one\n2. The Ash river near the town",
        "longest one? The Elm, the old one; the Ash river near the town!",
    ]
    missed = [
        question,
        "The Ash river near the town is longer than the Elm, the old one, I think.",
        "The Elm, the old one, the Ash river near the town, is the longest one of all.",
        f"{question} It is the Ash river near the town.",
    ]
    assert list_overlaps([*found, *missed], items) == [(n, 0) for n in range(5)]
    index = build_overlap_index(items)
    assert (index.item_count, index.skipped_item_count, index.short_text_count) == (1, 0, 3)


def test_short_texts_without_a_question_are_not_searched_for_together():
    choices = ["All of the above are true", "None of the above are true", "It is not the case"]
    assert list_overlaps([" ".join(choices)], [["", *choices]]) == []
    assert list_overlaps([" ".join(choices)], [["Choose.", *choices]]) == []
    assert list_overlaps(["Choose. " + " ".join(choices)], [["Choose.", *choices]]) == [(0, 0)]


def test_a_long_answer_is_found_without_its_question():
    answer = " ".join(f"word{n}" for n in range(13))
    assert list_overlaps([f"x {answer} y"], [["Why?", "No.", answer], ["", answer]]) == [
        (0, 0),
        (0, 1),
    ]


def test_an_ngram_of_several_items_overlaps_with_each():
    items = [["a b"], ["c d"], ["a b"], ["x y"], ["a b c d"]]
    assert list_overlaps(["a b, c d", "c d"], items, 2) == [
        *((0, item) for item in (0, 1, 2, 4)),
        *((1, item) for item in (1, 4)),
    ]


def test_short_texts_are_counted_without_empty_ones():
    index = build_overlap_index([["a b", "", "c"], ["a b c"], ["?", "a b"], ["a b c d"]], 3)
    assert (index.item_count, index.skipped_item_count, index.short_text_count) == (4, 1, 3)


def test_an_ngram_does_not_cross_texts_or_items():
    assert list_overlaps(["a b", "c d"], [["b c"]], 2) == []
    assert list_overlaps(["x b c", "c d"], [["b c"], ["c d"]], 2) == [(0, 0), (1, 1)]
    assert list_overlaps(["b c"], [["a b"], ["c d"]], 2) == []


@pytest.mark.parametrize("texts", [[], ["", "  "], ["!?"]])
def test_empty_texts_and_items_do_not_overlap(texts):
    assert list_overlaps(texts, []) == list_overlaps(texts, [[""], ["one"]], 1) == []
    assert list_overlaps([], [["a b c d"]], 2) == []
