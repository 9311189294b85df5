"""Spans: substitution, overlaps and positions, against the same done text by text in Python."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from hallmark.tasks.corpus.spans import Utf8Texts, merge_overlapping_spans, replace_spans

LETTERS = st.text(st.sampled_from("abc é漢😀\n"), max_size=12)


@st.composite
def texts_with_spans(draw, disjoint):
    """Texts and spans in characters: (row, start, end, rank), by row and start."""
    texts = draw(st.lists(LETTERS, min_size=1, max_size=5))
    spans = []
    for row, text in enumerate(texts):
        if len(text) < 2:
            continue
        if disjoint:
            cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)))
            spans += [(row, a, b, 0) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
            continue
        for _ in range(draw(st.integers(0, 4))):
            start = draw(st.integers(0, len(text) - 1))
            end = draw(st.integers(start + 1, len(text)))
            spans.append((row, start, end, draw(st.integers(0, 3))))
    return texts, sorted(spans)


def columns(texts, spans):
    """The texts as a slice of a larger array, and the spans in bytes."""
    array = pa.array(["in front", *texts, "behind"], pa.large_string()).slice(1, len(texts))
    owner = np.array([row for row, *_ in spans], np.int64)
    start, end = (
        np.array([len(texts[s[0]][: s[place]].encode()) for s in spans], np.int64)
        for place in (1, 2)
    )
    return array, owner, start, end


@given(texts_with_spans(disjoint=True), st.data())
def test_words_stand_where_spans_stood(given_texts, data):
    texts, spans = given_texts
    words = [data.draw(st.sampled_from(["", "<IP>", "é"])) for _ in spans]
    expected = list(texts)
    for (row, start, end, _), word in reversed(list(zip(spans, words, strict=True))):
        expected[row] = expected[row][:start] + word + expected[row][end:]
    made = replace_spans(*columns(texts, spans), pa.array(words, pa.string()))
    made.validate(full=True)
    assert made.to_pylist() == expected


@given(texts_with_spans(disjoint=False))
def test_positions_in_characters_and_in_bytes_are_the_same_places(given_texts):
    texts, spans = given_texts
    array, owner, start, end = columns(texts, spans)
    utf8 = Utf8Texts.from_array(array)
    assert utf8.bytes_to_characters(owner, start).tolist() == [s[1] for s in spans]
    for place, size in ((1, start), (2, end)):
        positions = np.array([s[place] for s in spans], np.int64)
        assert utf8.characters_to_bytes(owner, positions).tolist() == size.tolist()
    assert utf8.bytes_to_characters(owner, end).tolist() == [s[2] for s in spans]
    assert utf8.are_valid_spans(owner, start, end).all()


@given(st.lists(LETTERS, min_size=1, max_size=3), st.integers(-1, 40), st.integers(-1, 40))
def test_a_span_must_lie_in_its_text_and_between_characters(texts, start, end):
    array = pa.array(texts, pa.large_string())
    bounds = {len(texts[0][:n].encode()) for n in range(len(texts[0]) + 1)}
    inside = Utf8Texts.from_array(array).are_valid_spans(
        np.zeros(1, np.int64), np.array([start]), np.array([end])
    )
    assert inside[0] == (start in bounds and end in bounds and start < end)


@given(texts_with_spans(disjoint=False))
def test_spans_that_share_a_character_become_one(given_texts):
    """Against the rule read aloud, over sets of characters."""
    texts, spans = given_texts
    groups: list[list[int]] = []
    for number, (row, start, *_) in enumerate(spans):
        last = groups[-1] if groups else []
        if any(spans[n][0] == row and start < spans[n][2] for n in last):
            last.append(number)
        else:
            groups.append([number])
    array, owner, start, end = columns(texts, spans)
    size = end - start
    expected = []
    for group in groups:
        rank = {n: (-size[n], spans[n][3], start[n]) for n in group}
        best = min(rank.values())
        expected.append((best, min(start[n] for n in group), max(end[n] for n in group)))
    ranks = np.array([s[3] for s in spans], np.int64)
    which, low, high = merge_overlapping_spans(
        Utf8Texts.from_array(array), owner, start, end, ranks
    )
    made = [(-size[n], ranks[n], start[n]) for n in which]
    assert list(zip(made, low.tolist(), high.tolist(), strict=True)) == expected


def test_many_cuts_that_touch_leave_what_is_around_them():
    n = 1000
    start = np.arange(n, dtype=np.int64) + 1
    texts = pa.array(["a" + "x" * n + "b", "c"], pa.large_string())
    made = replace_spans(texts, np.zeros(n, np.int64), start, start + 1, pa.array([""] * n))
    assert made.to_pylist() == ["ab", "c"]
