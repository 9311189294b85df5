"""Test the search of packed training rows for responses and lookups, against brute force."""

from operator import itemgetter
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits import tracing
from hallmark.tasks.audits.audit_tables import LOOKUPS, RESPONSES
from hallmark.tasks.audits.tracing import CanarySpans, TraceConfig, trace_training_text
from hallmark.tasks.contract import ID_TYPE, hash_texts, hash_to_ids

WIDTH = 12
#: Documents, each preceded by a 0 in the rows; the second is planted twice.
TEXTS = [[5, 6, 7, 8, 9], [1, 2, 3, 4, 1, 2, 3], [1, 2, 3, 4, 1, 2, 3], [9, 8, 7, 6], [5, 6, 7]]
DOC_IDS = hash_to_ids(f"document {n}" for n in range(len(TEXTS)))


class InMemoryTable:
    """An in-memory table with the interface that stages use."""

    def __init__(self, rows):
        self.rows_, self.row_count = rows, len(rows)

    def read(self, columns=None):
        return self.rows_ if columns is None else self.rows_.select(columns)

    def iter_batches(self, columns):
        yield from self.rows_.select(columns).to_batches(max_chunksize=1)

    def to_dataset(self):
        return pa.dataset.dataset(self.rows_)

    def find_document_rows(self, wanted, columns):
        rows = [r for r in self.rows_.to_pylist() if r["doc_id"] in wanted]
        return pa.Table.from_pylist(rows, schema=self.rows_.schema).select(columns)


@pytest.fixture
def packed():
    import pyarrow.dataset  # noqa: F401

    flat, spans, char_positions = [], [], []
    for doc_id, text in zip(DOC_IDS, TEXTS, strict=True):
        for position, token in enumerate([0, *text]):
            row, start = divmod(len(flat), WIDTH)
            if not position or not start:
                spans.append(
                    {
                        "split": "train",
                        "sequence": row,
                        "row_start": start,
                        "doc_id": doc_id.as_py(),
                    }
                )
            spans[-1]["row_end"] = start + 1
            flat.append(token)
            char_positions.append(10 * position)
    padding = -len(flat) % WIDTH
    rows = np.array(flat + [-1] * padding, np.int32)
    char_starts = np.array(char_positions + [-1] * padding, np.int32)
    row_columns = {
        name: pa.FixedSizeListArray.from_arrays(pa.array(values), WIDTH)
        for name, values in (
            ("token_ids", rows),
            ("char_start", char_starts),
            ("char_end", char_starts + 10),
        )
    }
    tables = {
        "train": InMemoryTable(pa.table(row_columns)),
        "spans": InMemoryTable(pa.Table.from_pylist(spans)),
    }
    return SimpleNamespace(rows=rows.reshape(-1, WIDTH), spans=spans, tables=tables)


def run_trace(packed, responses, monkeypatch, times_read=None, lookups=(), trainings=1, **settings):
    """Run the stage and return overlap and matched spans.

    Responses are (text, token ids), with text None for a target. Lookups are (item, token ids);
    their counts are stored in ``packed.occurrence_rows``.
    """
    monkeypatch.setattr(
        tracing,
        "count_row_reads",
        lambda checkpoint, pretrained, rows: tracing.RowReads(
            np.array(times_read if times_read is not None else [2] * rows),
            np.arange(rows) + 7,
        ),
    )
    request = hash_to_ids(["written", "read"])
    rows = [
        {
            "request": request[text is None].as_py(),
            "draw": draw,
            "text": text,
            "token_ids": None if text is None else tokens,
        }
        for draw, (text, tokens) in enumerate(responses)
    ]
    lookup_rows = [
        {"item": hash_to_ids([item])[0].as_py(), "token_ids": tokens} for item, tokens in lookups
    ]
    request_set = {"lookups": InMemoryTable(pa.Table.from_pylist(lookup_rows, schema=LOOKUPS))}
    response_set = {"responses": InMemoryTable(pa.Table.from_pylist(rows, schema=RESPONSES))}
    document_columns = {
        "doc_id": DOC_IDS,
        "source": ["a", "planted/x", "planted/x", "b", "c"],
        "cluster": DOC_IDS,
    }
    canaries = InMemoryTable(pa.table({"doc_ids": [[k.as_py() for k in DOC_IDS[1:3]], []]}))
    written_tables = {}
    context = SimpleNamespace(
        get_table_writer=lambda name: SimpleNamespace(
            write=lambda rows: written_tables.update({name: rows})
        ),
        report_progress=lambda *arguments: None,
    )
    config = TraceConfig(**({"min_span_tokens": 3, "min_verbatim_tokens": 4} | settings))
    names = [str(number) for number in range(trainings)]
    trace_training_text.body(
        request_set,
        response_set,
        *(dict.fromkeys(names, inputs) for inputs in ({}, {}, packed.tables)),
        InMemoryTable(pa.table(document_columns)),
        canaries,
        config,
        context,
    )
    packed.occurrence_rows = written_tables["occurrence_counts"].to_pylist()
    return written_tables["training_overlap"].to_pylist(), written_tables[
        "matched_spans"
    ].to_pylist()


def test_matched_spans_name_the_documents_of_responses(packed, monkeypatch):
    responses = [
        ("hit", [8, 1, 2, 3, 4, 1]),  # a run of 5 in both planted documents
        ("short", [5, 6, 7, 1]),
        ("none", [4, 4, 4, 4]),
        (None, [8, 1, 2, 3]),  # a target
        ("hit", [8, 1, 2, 3, 4, 1]),  # the first response again
    ]
    overlap_rows, spans = run_trace(packed, responses, monkeypatch)
    assert [row["longest_run_tokens"] for row in overlap_rows] == [5, 3, 0, None, 5]
    assert [row["verbatim_tokens"] for row in overlap_rows] == [5, 0, 0, None, 5]
    assert [row["planted_run_tokens"] for row in overlap_rows] == [5, 0, 0, None, 5]
    spans_by_text = {}
    for row in spans:
        spans_by_text.setdefault(row["text_hash"], []).append(row)
    hashes = dict(
        zip(
            ["hit", "short"],
            hash_texts(pa.array(["hit", "short"], pa.large_string())).to_pylist(),
            strict=True,
        )
    )
    assert set(spans_by_text) == set(hashes.values())  # a target has no text and no spans
    hit_spans = spans_by_text[hashes["hit"]]
    assert {r["doc_id"] for r in hit_spans if r["run_tokens"] == 5} == {
        k.as_py() for k in DOC_IDS[1:3]
    }
    assert {r["source"] for r in hit_spans if r["run_tokens"] == 5} == {"planted/x"}
    for row in spans:
        tokens = dict(responses[:3])["hit" if row["text_hash"] == hashes["hit"] else "short"]
        matched_tokens = packed.rows[row["sequence"]][
            row["row_start"] : row["row_start"] + row["run_tokens"]
        ]
        assert (
            tokens[row["text_start"] : row["text_start"] + row["run_tokens"]]
            == matched_tokens.tolist()
        )
        containing_spans = [
            s
            for s in packed.spans
            if s["sequence"] == row["sequence"]
            and s["row_start"] <= row["row_start"] < s["row_end"]
        ]
        assert [s["doc_id"] for s in containing_spans] == [row["doc_id"]]
        assert row["cluster"] == row["doc_id"] and row["times_read"] == 2
        assert row["first_step"] == row["sequence"] + 7
        assert row["char_end"] - row["char_start"] == 10 * row["run_tokens"]


def test_unread_rows_are_not_searched(packed, monkeypatch):
    overlap_rows, spans = run_trace(
        packed, [("hit", [1, 2, 3, 4])], monkeypatch, times_read=[0, 1, 1]
    )
    rows = packed.rows.tolist()
    windows = [tuple(row[i : i + 4]) for row in rows[1:] for i in range(WIDTH - 3)]
    assert (1, 2, 3, 4) in windows and overlap_rows[0]["longest_run_tokens"] == 4
    assert spans and {row["sequence"] for row in spans} <= {1, 2}
    overlap_rows, spans = run_trace(
        packed, [("hit", [1, 2, 3, 4])], monkeypatch, times_read=[0, 0, 0]
    )
    assert (
        overlap_rows[0]["longest_run_tokens"],
        overlap_rows[0]["planted_run_tokens"],
        spans,
    ) == (0, 0, [])


def test_occurrences_count_reads_of_complete_matches(packed, monkeypatch):
    """Looks up all windows of the training text, and texts that do not occur."""
    rows, times_read = packed.rows.tolist(), [3, 0, 2]
    windows = [
        row[start : start + size]
        for row in rows
        for size in (3, 4, 6)
        for start in range(WIDTH - size + 1)
    ]
    lookups = [(str(n), text) for n, text in enumerate([*windows, [1, 2, 9, 9], [9, 8, 7, 6, 5]])]
    lookups += [
        ("two", windows[0]),
        ("two", [4, 4, 4]),
        ("short", [1, 2]),
        ("long", [1, 2, 3]),
        ("long", [1, 2]),
    ]

    def count_reads(text):
        return sum(
            reads * (row[start : start + len(text)] == text)
            for row, reads in zip(rows, times_read, strict=True)
            for start in range(WIDTH - len(text) + 1)
        )

    run_trace(packed, [("x", [1, 2])], monkeypatch, times_read=times_read, lookups=lookups)
    counts_by_item = {row["item"]: row["occurrences"] for row in packed.occurrence_rows}
    counts = {name: counts_by_item[hash_to_ids([name])[0].as_py()] for name, _ in lookups}
    for name, text in lookups[:-5]:
        assert counts[name] == count_reads(text), text
    assert counts["two"] == count_reads(windows[0]) and counts["long"] == count_reads([1, 2, 3])
    assert counts["short"] is None  # two tokens are shorter than a recorded run
    assert {0, 2, 3} <= {*counts.values()} and len(packed.occurrence_rows) == len(lookups) - 2


def test_rows_of_earlier_trainings_are_searched(packed, monkeypatch):
    """A second training with the same rows continued the first."""
    arguments = packed, [("hit", [8, 1, 2, 3, 4, 1])], monkeypatch
    once = run_trace(*arguments, lookups=[("x", [1, 2, 3])], max_spans_per_text=99)
    (occurrences,) = (row["occurrences"] for row in packed.occurrence_rows)
    twice = run_trace(*arguments, lookups=[("x", [1, 2, 3])], trainings=2, max_spans_per_text=99)
    assert [row["occurrences"] for row in packed.occurrence_rows] == [
        2 * occurrences
    ] and occurrences > 0
    assert twice[0] == once[0]  # the same runs
    all_spans = [row | {"training_index": n} for n in (0, 1) for row in once[1]]
    key = itemgetter("training_index", "sequence", "row_start", "text_start")
    assert sorted(twice[1], key=key) == sorted(all_spans, key=key)
    assert len(run_trace(*arguments, trainings=2, max_spans_per_text=1)[1]) == 1


def test_the_longest_spans_are_kept(packed, monkeypatch):
    _, spans = run_trace(packed, [("hit", [2, 3, 4, 1, 2])], monkeypatch, max_spans_per_text=1)
    assert len(spans) == 1 and spans[0]["run_tokens"] == 5
    _, spans = run_trace(packed, [("hit", [1, 2, 3])], monkeypatch, max_spans_per_text=3)
    assert [row["run_tokens"] for row in spans] == [3, 3, 3]


def test_no_responses_give_no_spans(packed, monkeypatch):
    assert run_trace(packed, [], monkeypatch) == ([], [])
    assert [r["longest_run_tokens"] for r in run_trace(packed, [("", [])], monkeypatch)[0]] == [0]


def test_min_verbatim_tokens_is_at_least_min_span_tokens():
    with pytest.raises(ValueError, match="is 50; it must be at least min_span_tokens, 60"):
        TraceConfig(min_span_tokens=60)


def test_overlap_with_canaries_equals_brute_force():
    """Documents are adjacent or with gaps, and given in random order."""
    rng = np.random.default_rng(2)
    width, rows = 10, 6
    canary_spans = [(0, 0, 4), (0, 4, 6), (1, 3, 9), (3, 0, 10), (5, 7, 10)]
    order = rng.permutation(len(canary_spans))
    doc_ids = hash_to_ids(f"plant {n}" for n in range(len(canary_spans)))
    spans = pa.table(
        {
            "split": ["train"] * 5 + ["validation"],
            "sequence": [canary_spans[n][0] for n in order] + [2],
            "row_start": [canary_spans[n][1] for n in order] + [0],
            "row_end": [canary_spans[n][2] for n in order] + [10],
            "doc_id": pa.array(
                [*(doc_ids[int(n)].as_py() for n in order), doc_ids[0].as_py()], ID_TYPE
            ),
        }
    )
    canaries = InMemoryTable(pa.table({"doc_ids": [[k.as_py() for k in doc_ids], []]}))
    merged_spans = CanarySpans.from_canaries(InMemoryTable(spans), canaries, width)
    run_starts = rng.integers(0, rows * width, 200)
    run_lengths = rng.integers(1, 9, 200)
    run_lengths = np.minimum(run_lengths, width - run_starts % width)  # a run is within one row
    overlaps = merged_spans.measure_longest_overlap(run_starts, run_lengths)
    for start, length, overlap in zip(run_starts, run_lengths, overlaps, strict=True):
        expected_overlaps = [
            max(0, min(row * width + last, start + length) - max(row * width + first, start))
            for row, first, last in canary_spans
        ]
        assert overlap == max(expected_overlaps)
    empty_spans = CanarySpans.from_canaries(InMemoryTable(spans), None, width)
    assert empty_spans.measure_longest_overlap(run_starts, run_lengths).tolist() == [0] * 200


def test_batches_do_not_change_results(packed, monkeypatch):
    responses = [("hit", [8, 1, 2, 3, 4, 1]), ("one", [5]), ("other", [1, 2, 3, 4])]
    expected = run_trace(packed, responses, monkeypatch)
    monkeypatch.setattr(tracing, "TOKENS_PER_BATCH", WIDTH)
    assert run_trace(packed, responses, monkeypatch) == expected
    monkeypatch.setattr(tracing, "TOKENS_PER_BATCH", 1)
    assert run_trace(packed, responses, monkeypatch) == expected
    assert [row["verbatim_tokens"] for row in expected[0]] == [5, 0, 4]
    assert (
        TraceConfig(min_span_tokens=8, min_verbatim_tokens=8).min_verbatim_tokens == 8
        and TraceConfig().enabled
    )
