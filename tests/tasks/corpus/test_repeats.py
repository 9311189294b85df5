"""Test repeated passages against brute force over all windows."""

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
    mark_repeated_window_starts,
)


def concatenate(texts):
    data = b"".join(text.encode() + bytes([TEXT_SEPARATOR]) for text in texts)
    return np.frombuffer(data, np.uint8).copy()


def find_repeats_by_brute_force(text, min_bytes):
    """Find windows that occurred before without overlap, within one text; ascending."""
    first_positions, starts = {}, []
    data = text.tobytes()
    for start in range(len(data) - min_bytes + 1):
        window = data[start : start + min_bytes]
        if TEXT_SEPARATOR in window:
            continue
        first = first_positions.setdefault(window, start)
        if start >= first + min_bytes:
            starts.append(start)
    return starts


def mark_repeats_by_brute_force(text, min_bytes):
    marks = np.zeros(len(text), bool)
    for start in find_repeats_by_brute_force(text, min_bytes):
        marks[start : start + min_bytes] = True
    return marks


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text("ab é漢😀", max_size=40), max_size=6), st.integers(8, 20))
@example(["éabcdefgh", "ũabcdefgh", "abcdefghé", "abcdefghè"], 8)  # characters share bytes
@example(["\U0001f600abcdefgh", "\U0005f600abcdefgh"], 8)
@example(["abcdefghabc"], 8)  # the end sorts next to the beginning but is shorter than a window
def test_repeats_equal_brute_force_for_any_texts(texts, min_bytes):
    text = concatenate(texts)
    original_text = text.copy()
    is_start = mark_repeated_window_starts(text, min_bytes)
    assert np.flatnonzero(is_start).tolist() == find_repeats_by_brute_force(text, min_bytes)
    assert (text == original_text).all()
    marks = np.zeros(len(text), bool)
    for start, stop in zip(*join_repeated_spans(text, is_start, min_bytes), strict=True):
        assert stop > start
        text[start:stop].tobytes().decode()  # whole characters
        marks[start:stop] = True
    expected_marks = mark_repeats_by_brute_force(text, min_bytes)
    assert not (marks & ~expected_marks).any()
    unmarked = np.flatnonzero(expected_marks & ~marks)  # only parts of characters at the edges
    assert all(text[position] >= 0x80 for position in unmarked)


@pytest.mark.parametrize("chunk", [3, 1 << 20])
def test_planted_passages_are_found_in_a_megabyte(monkeypatch, chunk):
    monkeypatch.setattr(repeats, "SUFFIXES_PER_CHUNK", chunk if chunk > 3 else 1000)
    rng = random.Random(3)
    words = [f"{rng.randrange(10**5):x}" for _ in range(3000)]
    size = 1_000_000 if chunk > 3 else 60_000
    texts = []
    while sum(map(len, texts)) < size:
        texts.append(" ".join(rng.choices(words, k=rng.randrange(5, 200))))
    planted = []
    for donor in rng.sample([t for t in texts[:80] if len(t) > 150], 30):
        start = rng.randrange(len(donor) - 100)
        planted.append(donor[start : start + 100])
        texts.insert(rng.randrange(80, len(texts)), f"new {planted[-1]} end")
    text = concatenate(texts)
    is_start = mark_repeated_window_starts(text, 50)
    assert np.flatnonzero(is_start).tolist() == find_repeats_by_brute_force(text, 50)
    cut_text = text.copy()
    for start, stop in zip(*join_repeated_spans(text, is_start, 50), strict=True):
        cut_text[start:stop] = ord("\n")
    remaining = cut_text.tobytes()
    assert all(remaining.count(passage.encode()) == 1 for passage in planted)


def test_short_texts_have_no_repeats():
    for texts in ([], [""], ["short"], ["a" * 20]):
        text = concatenate(texts)
        is_start = mark_repeated_window_starts(text, 30)
        assert not is_start.any()
        assert not len(join_repeated_spans(text, is_start, 30)[0])


@pytest.mark.parametrize("position", range(30))
def test_windows_that_differ_in_one_byte_are_not_the_same(position):
    window = bytes(range(97, 97 + 26)).decode() + "0123"
    changed_window = window[:position] + "-" + window[position + 1 :]
    assert not mark_repeated_window_starts(concatenate([window, changed_window]), 30).any()
    assert np.flatnonzero(
        mark_repeated_window_starts(concatenate([window, changed_window, window]), 30)
    ).tolist() == [62]


def test_spans_that_touch_are_joined():
    rng = random.Random(8)
    first, second = ("".join(rng.choices("abcdefgh", k=30)) for _ in range(2))
    text = concatenate([first, second, first + second])
    is_start = mark_repeated_window_starts(text, 30)
    assert np.flatnonzero(is_start).tolist() == [62, 92]
    assert [side.tolist() for side in join_repeated_spans(text, is_start, 30)] == [[62], [122]]


def test_a_run_keeps_only_its_first_window():
    text = concatenate(["x" + "-" * 100 + "y"])
    starts, stops = join_repeated_spans(text, mark_repeated_window_starts(text, 30), 30)
    assert (starts.tolist(), stops.tolist()) == ([31], [101])


@pytest.mark.parametrize("texts", [["-" * 5000], ["ab" * 700, "ba" * 700, "-" * 300, "ab" * 9]])
def test_a_group_may_be_larger_than_a_chunk(monkeypatch, texts):
    monkeypatch.setattr(repeats, "SUFFIXES_PER_CHUNK", 100)
    text = concatenate(texts)
    assert np.flatnonzero(
        mark_repeated_window_starts(text, 20)
    ).tolist() == find_repeats_by_brute_force(text, 20)


@pytest.mark.parametrize("chunk", range(1, 40))
def test_chunks_may_end_anywhere(monkeypatch, chunk):
    monkeypatch.setattr(repeats, "SUFFIXES_PER_CHUNK", chunk)
    text = concatenate(["a stretch of it, twice", "of it, twice", "-" * 12, "a stretch"])
    assert np.flatnonzero(
        mark_repeated_window_starts(text, 8)
    ).tolist() == find_repeats_by_brute_force(text, 8)


@pytest.mark.parametrize("kind", ["all twice", "one run", "nothing"])
def test_memory_does_not_depend_on_how_much_repeats(monkeypatch, kind):
    monkeypatch.setattr(repeats, "SUFFIXES_PER_CHUNK", 1 << 12)
    rng = np.random.default_rng(4)
    half = rng.integers(97, 123, 1_000_000, dtype=np.uint8)
    text = {
        "all twice": np.concatenate([half, half]),
        "one run": np.full(2_000_000, 45, np.uint8),
        "nothing": rng.integers(97, 123, 2_000_000, dtype=np.uint8),
    }[kind]
    text[-1] = TEXT_SEPARATOR
    tracemalloc.start()
    join_repeated_spans(text, mark_repeated_window_starts(text, 50), 50)
    peak = tracemalloc.get_traced_memory()[1]  # in addition to the text
    tracemalloc.stop()
    assert 5 < peak / len(text) < 6.6
