"""Spans: compare replacement, merging and positions with plain Python, text by text."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from hallmark.tasks.corpus.spans import Utf8Texts, merge_overlapping_byte_spans, replace_byte_spans

LETTERS = st.text(st.sampled_from("abc é漢😀\n"), max_size=12)


@st.composite
def texts_with_spans(draw, disjoint):
    """Draw texts, and spans in characters: (row, start, end, type rank), by row and start."""
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


def make_arrays(texts, spans):
    """Make an array of the texts, as a slice of a larger one, and the spans in bytes."""
    array = pa.array(["before", *texts, "after"], pa.large_string()).slice(1, len(texts))
    text_rows = np.array([row for row, *_ in spans], np.int64)
    start, end = (
        np.array([len(texts[s[0]][: s[place]].encode()) for s in spans], np.int64)
        for place in (1, 2)
    )
    return array, text_rows, start, end


@given(texts_with_spans(disjoint=True), st.data())
def test_spans_are_replaced_by_strings(given_texts, data):
    texts, spans = given_texts
    replacements = [data.draw(st.sampled_from(["", "<IP>", "é"])) for _ in spans]
    expected = list(texts)
    for (row, start, end, _), replacement in reversed(list(zip(spans, replacements, strict=True))):
        expected[row] = expected[row][:start] + replacement + expected[row][end:]
    result = replace_byte_spans(*make_arrays(texts, spans), pa.array(replacements, pa.string()))
    result.validate(full=True)
    assert result.to_pylist() == expected


@given(texts_with_spans(disjoint=False))
def test_positions_convert_between_characters_and_bytes(given_texts):
    texts, spans = given_texts
    array, text_rows, start, end = make_arrays(texts, spans)
    utf8 = Utf8Texts.from_array(array)
    assert utf8.bytes_to_characters(text_rows, start).tolist() == [s[1] for s in spans]
    for place, size in ((1, start), (2, end)):
        positions = np.array([s[place] for s in spans], np.int64)
        assert utf8.characters_to_bytes(text_rows, positions).tolist() == size.tolist()
    assert utf8.bytes_to_characters(text_rows, end).tolist() == [s[2] for s in spans]
    assert utf8.are_valid_spans(text_rows, start, end).all()


@given(st.lists(LETTERS, min_size=1, max_size=3), st.integers(-1, 40), st.integers(-1, 40))
def test_valid_spans_are_inside_their_text_and_split_no_character(texts, start, end):
    array = pa.array(texts, pa.large_string())
    bounds = {len(texts[0][:n].encode()) for n in range(len(texts[0]) + 1)}
    is_valid = Utf8Texts.from_array(array).are_valid_spans(
        np.zeros(1, np.int64), np.array([start]), np.array([end])
    )
    assert is_valid[0] == (start in bounds and end in bounds and start < end)


@given(texts_with_spans(disjoint=False))
def test_overlapping_spans_are_merged(given_texts):
    """Compare with a literal implementation of the rule."""
    texts, spans = given_texts
    groups: list[list[int]] = []
    for number, (row, start, *_) in enumerate(spans):
        last = groups[-1] if groups else []
        if any(spans[n][0] == row and start < spans[n][2] for n in last):
            last.append(number)
        else:
            groups.append([number])
    array, text_rows, start, end = make_arrays(texts, spans)
    size = end - start
    expected = []
    for group in groups:
        sort_keys = {n: (-size[n], spans[n][3], start[n]) for n in group}
        best = min(sort_keys.values())
        expected.append((best, min(start[n] for n in group), max(end[n] for n in group)))
    ranks = np.array([s[3] for s in spans], np.int64)
    span_numbers, merged_starts, merged_ends = merge_overlapping_byte_spans(
        Utf8Texts.from_array(array), text_rows, start, end, ranks
    )
    keys = [(-size[n], ranks[n], start[n]) for n in span_numbers]
    assert list(zip(keys, merged_starts.tolist(), merged_ends.tolist(), strict=True)) == expected


def test_many_touching_cuts_keep_the_text_around_them():
    n = 1000
    start = np.arange(n, dtype=np.int64) + 1
    texts = pa.array(["a" + "x" * n + "b", "c"], pa.large_string())
    result = replace_byte_spans(texts, np.zeros(n, np.int64), start, start + 1, pa.array([""] * n))
    assert result.to_pylist() == ["ab", "c"]
