"""Repeated stretches against brute force over all windows."""

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hallmark.tasks.corpus.copies import repeats
from hallmark.tasks.corpus.copies.repeats import (
    TEXT_SEPARATOR,
    join_repeated_spans,
    mark_repeated_windows,
)


def joined(texts):
    whole = b"".join(text.encode() + bytes([TEXT_SEPARATOR]) for text in texts)
    return np.frombuffer(whole, np.uint8).copy()


def expected(text, least):
    """Where windows begin that occurred before, apart, none across an END; ascending."""
    seen, found = {}, []
    data = text.tobytes()
    for begin in range(len(data) - least + 1):
        window = data[begin : begin + least]
        if TEXT_SEPARATOR in window:
            continue
        first = seen.setdefault(window, begin)
        if begin >= first + least:
            found.append(begin)
    return found


def covered(text, least):
    marks = np.zeros(len(text), bool)
    for begin in expected(text, least):
        marks[begin : begin + least] = True
    return marks


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text("ab é漢😀", max_size=40), max_size=6), st.integers(8, 20))
@example(["éabcdefgh", "ũabcdefgh", "abcdefghé", "abcdefghè"], 8)  # share bytes of characters
@example(["\U0001f600abcdefgh", "\U0005f600abcdefgh"], 8)
@example(["abcdefghabc"], 8)  # the end sorts beside the beginning, and is no whole window
def test_any_texts(texts, least):
    text = joined(texts)
    before = text.copy()
    begins = mark_repeated_windows(text, least)
    assert np.flatnonzero(begins).tolist() == expected(text, least)
    assert (text == before).all()
    marks = np.zeros(len(text), bool)
    for start, stop in zip(*join_repeated_spans(text, begins, least), strict=True):
        assert stop > start
        text[start:stop].tobytes().decode()  # whole characters
        marks[start:stop] = True
    brute = covered(text, least)
    assert not (marks & ~brute).any()
    left = np.flatnonzero(brute & ~marks)  # parts of characters at the edges, and nothing else
    assert all(text[at] >= 0x80 for at in left)


@pytest.mark.parametrize("chunk", [3, 1 << 20])
def test_a_megabyte_with_planted_stretches(monkeypatch, chunk):
    monkeypatch.setattr(repeats, "SUFFIXES_PER_CHUNK", chunk if chunk > 3 else 1000)
    chance = random.Random(3)
    words = [f"{chance.randrange(10**5):x}" for _ in range(3000)]
    size = 1_000_000 if chunk > 3 else 60_000
    texts = []
    while sum(map(len, texts)) < size:
        texts.append(" ".join(chance.choices(words, k=chance.randrange(5, 200))))
    planted = []
    for donor in chance.sample([t for t in texts[:80] if len(t) > 150], 30):
        start = chance.randrange(len(donor) - 100)
        planted.append(donor[start : start + 100])
        texts.insert(chance.randrange(80, len(texts)), f"new {planted[-1]} end")
    text = joined(texts)
    begins = mark_repeated_windows(text, 50)
    assert np.flatnonzero(begins).tolist() == expected(text, 50)
    struck = text.copy()
    for start, stop in zip(*join_repeated_spans(text, begins, 50), strict=True):
        struck[start:stop] = ord("\n")
    left = struck.tobytes()
    assert all(left.count(stretch.encode()) == 1 for stretch in planted)


def test_nothing_and_less_than_a_window():
    for texts in ([], [""], ["short"], ["a" * 20]):
        text = joined(texts)
        begins = mark_repeated_windows(text, 30)
        assert not begins.any()
        assert not len(join_repeated_spans(text, begins, 30)[0])


@pytest.mark.parametrize("place", range(30))
def test_windows_that_differ_in_one_byte_are_not_the_same(place):
    window = bytes(range(97, 97 + 26)).decode() + "0123"
    other = window[:place] + "-" + window[place + 1 :]
    assert not mark_repeated_windows(joined([window, other]), 30).any()
    assert np.flatnonzero(mark_repeated_windows(joined([window, other, window]), 30)).tolist() == [
        62
    ]


def test_stretches_that_touch_are_one():
    chance = random.Random(8)
    one, two = ("".join(chance.choices("abcdefgh", k=30)) for _ in range(2))
    text = joined([one, two, one + two])
    begins = mark_repeated_windows(text, 30)
    assert np.flatnonzero(begins).tolist() == [62, 92]
    assert [side.tolist() for side in join_repeated_spans(text, begins, 30)] == [[62], [122]]


def test_a_run_is_cut_to_its_first_window():
    text = joined(["x" + "-" * 100 + "y"])
    starts, stops = join_repeated_spans(text, mark_repeated_windows(text, 30), 30)
    assert (starts.tolist(), stops.tolist()) == ([31], [101])


@pytest.mark.parametrize("texts", [["-" * 5000], ["ab" * 700, "ba" * 700, "-" * 300, "ab" * 9]])
def test_a_group_larger_than_what_is_worked_on_at_a_time(monkeypatch, texts):
    monkeypatch.setattr(repeats, "SUFFIXES_PER_CHUNK", 100)
    text = joined(texts)
    assert np.flatnonzero(mark_repeated_windows(text, 20)).tolist() == expected(text, 20)


@pytest.mark.parametrize("chunk", range(1, 40))
def test_wherever_what_is_worked_on_at_a_time_ends(monkeypatch, chunk):
    monkeypatch.setattr(repeats, "SUFFIXES_PER_CHUNK", chunk)
    text = joined(["a stretch of it, twice", "of it, twice", "-" * 12, "a stretch"])
    assert np.flatnonzero(mark_repeated_windows(text, 8)).tolist() == expected(text, 8)


@pytest.mark.parametrize("kind", ["all twice", "one run", "nothing"])
def test_memory_is_what_is_stated_however_much_repeats(monkeypatch, kind):
    monkeypatch.setattr(repeats, "SUFFIXES_PER_CHUNK", 1 << 12)
    chance = np.random.default_rng(4)
    half = chance.integers(97, 123, 1_000_000, dtype=np.uint8)
    text = {
        "all twice": np.concatenate([half, half]),
        "one run": np.full(2_000_000, 45, np.uint8),
        "nothing": chance.integers(97, 123, 2_000_000, dtype=np.uint8),
    }[kind]
    text[-1] = TEXT_SEPARATOR
    tracemalloc.start()
    join_repeated_spans(text, mark_repeated_windows(text, 50), 50)
    peak = tracemalloc.get_traced_memory()[1]  # beside the text itself
    tracemalloc.stop()
    assert 5 < peak / len(text) < 6.6
