"""Where responses stand in the packed rows of a training, against brute force."""

from operator import itemgetter
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits import tracing as tracing
from hallmark.tasks.audits.audit_tables import LOOKUPS, RESPONSES
from hallmark.tasks.audits.tracing import CanarySpans, TraceConfig, trace_training_text
from hallmark.tasks.contract import ID_TYPE, hash_texts, hash_to_ids

WIDTH = 12
#: Documents, each behind a 0; the second is planted, and stands twice.
TEXTS = [[5, 6, 7, 8, 9], [1, 2, 3, 4, 1, 2, 3], [1, 2, 3, 4, 1, 2, 3], [9, 8, 7, 6], [5, 6, 7]]
KEYS = hash_to_ids(f"document {n}" for n in range(len(TEXTS)))


class Known:
    """A table in memory, as stages read it."""

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

    flat, spans, chars = [], [], []
    for key, text in zip(KEYS, TEXTS, strict=True):
        for place, token in enumerate([0, *text]):
            row, start = divmod(len(flat), WIDTH)
            if not place or not start:
                spans.append(
                    {"split": "train", "sequence": row, "row_start": start, "doc_id": key.as_py()}
                )
            spans[-1]["row_end"] = start + 1
            flat.append(token)
            chars.append(10 * place)
    many = -len(flat) % WIDTH
    rows = np.array(flat + [-1] * many, np.int32)
    begin = np.array(chars + [-1] * many, np.int32)
    listed = {
        name: pa.FixedSizeListArray.from_arrays(pa.array(values), WIDTH)
        for name, values in (("token_ids", rows), ("char_start", begin), ("char_end", begin + 10))
    }
    made = {"train": Known(pa.table(listed)), "spans": Known(pa.Table.from_pylist(spans))}
    return SimpleNamespace(rows=rows.reshape(-1, WIDTH), spans=spans, made=made)


def traced_of(packed, responses, monkeypatch, read=None, sought=(), trainings=1, **settings):
    """The tables of the stage, of responses (text, ids, or a target that was read), and of texts
    that are ``sought``, (item, ids); what was held stays in ``packed``."""
    monkeypatch.setattr(
        tracing,
        "count_row_reads",
        lambda checkpoint, pretrained, rows: (
            np.array(read if read is not None else [2] * rows),
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
    wanted = [
        {"item": hash_to_ids([item])[0].as_py(), "token_ids": tokens} for item, tokens in sought
    ]
    asked = {"lookups": Known(pa.Table.from_pylist(wanted, schema=LOOKUPS))}
    answered = {"responses": Known(pa.Table.from_pylist(rows, schema=RESPONSES))}
    about = {"doc_id": KEYS, "source": ["a", "planted/x", "planted/x", "b", "c"], "cluster": KEYS}
    plants = Known(pa.table({"doc_ids": [[k.as_py() for k in KEYS[1:3]], []]}))
    made = {}
    work = SimpleNamespace(
        get_table_writer=lambda name: SimpleNamespace(write=lambda rows: made.update({name: rows})),
        report_progress=lambda *said: None,
    )
    config = TraceConfig(**({"min_span_tokens": 3, "min_verbatim_tokens": 4} | settings))
    names = [str(number) for number in range(trainings)]
    trace_training_text.body(
        asked,
        answered,
        *(dict.fromkeys(names, each) for each in ({}, {}, packed.made)),
        Known(pa.table(about)),
        plants,
        config,
        work,
    )
    packed.held = made["occurrence_counts"].to_pylist()
    return made["training_overlap"].to_pylist(), made["matched_spans"].to_pylist()


def test_what_was_written_leads_to_its_documents(packed, monkeypatch):
    responses = [
        ("hit", [8, 1, 2, 3, 4, 1]),  # a run of 5 in both planted documents
        ("short", [5, 6, 7, 1]),
        ("none", [4, 4, 4, 4]),
        (None, [8, 1, 2, 3]),  # read
        ("hit", [8, 1, 2, 3, 4, 1]),  # the same again
    ]
    told, spans = traced_of(packed, responses, monkeypatch)
    assert [row["longest_run_tokens"] for row in told] == [5, 3, 0, None, 5]
    assert [row["verbatim_tokens"] for row in told] == [5, 0, 0, None, 5]
    assert [row["planted_run_tokens"] for row in told] == [5, 0, 0, None, 5]
    by = {}
    for row in spans:
        by.setdefault(row["text_hash"], []).append(row)
    hashes = dict(
        zip(
            ["hit", "short"],
            hash_texts(pa.array(["hit", "short"], pa.large_string())).to_pylist(),
            strict=True,
        )
    )
    assert set(by) == set(hashes.values())  # what was read has no text, and no rows
    hit = by[hashes["hit"]]
    assert {r["doc_id"] for r in hit if r["run_tokens"] == 5} == {k.as_py() for k in KEYS[1:3]}
    assert {r["source"] for r in hit if r["run_tokens"] == 5} == {"planted/x"}
    for row in spans:
        tokens = dict(responses[:3])["hit" if row["text_hash"] == hashes["hit"] else "short"]
        there = packed.rows[row["sequence"]][
            row["row_start"] : row["row_start"] + row["run_tokens"]
        ]
        assert tokens[row["text_start"] : row["text_start"] + row["run_tokens"]] == there.tolist()
        inside = [
            s
            for s in packed.spans
            if s["sequence"] == row["sequence"]
            and s["row_start"] <= row["row_start"] < s["row_end"]
        ]
        assert [s["doc_id"] for s in inside] == [row["doc_id"]]
        assert row["cluster"] == row["doc_id"] and row["times_read"] == 2
        assert row["first_step"] == row["sequence"] + 7
        assert row["char_end"] - row["char_start"] == 10 * row["run_tokens"]


def test_what_was_not_read_is_no_source(packed, monkeypatch):
    told, spans = traced_of(packed, [("hit", [1, 2, 3, 4])], monkeypatch, read=[0, 1, 1])
    rows = packed.rows.tolist()
    windows = [tuple(row[i : i + 4]) for row in rows[1:] for i in range(WIDTH - 3)]
    assert (1, 2, 3, 4) in windows and told[0]["longest_run_tokens"] == 4
    assert spans and {row["sequence"] for row in spans} <= {1, 2}
    told, spans = traced_of(packed, [("hit", [1, 2, 3, 4])], monkeypatch, read=[0, 0, 0])
    assert (told[0]["longest_run_tokens"], told[0]["planted_run_tokens"], spans) == (0, 0, [])


def test_what_was_sought_was_read_as_often_as_it_stands_whole_in_rows_that_were(
    packed, monkeypatch
):
    """By brute force, of all windows of the training text and of some that are none."""
    rows, read = packed.rows.tolist(), [3, 0, 2]
    windows = [
        row[at : at + size] for row in rows for size in (3, 4, 6) for at in range(WIDTH - size + 1)
    ]
    sought = [(str(n), text) for n, text in enumerate([*windows, [1, 2, 9, 9], [9, 8, 7, 6, 5]])]
    sought += [
        ("two", windows[0]),
        ("two", [4, 4, 4]),
        ("short", [1, 2]),
        ("long", [1, 2, 3]),
        ("long", [1, 2]),
    ]

    def times(text):
        return sum(
            many * (row[at : at + len(text)] == text)
            for row, many in zip(rows, read, strict=True)
            for at in range(WIDTH - len(text) + 1)
        )

    traced_of(packed, [("x", [1, 2])], monkeypatch, read=read, sought=sought)
    found = {row["item"]: row["occurrences"] for row in packed.held}
    of = {name: found[hash_to_ids([name])[0].as_py()] for name, _ in sought}
    for name, text in sought[:-5]:
        assert of[name] == times(text), text
    assert of["two"] == times(windows[0]) and of["long"] == times([1, 2, 3])
    assert of["short"] is None  # runs of two tokens are not told
    assert {0, 2, 3} <= {*of.values()} and len(packed.held) == len(sought) - 2


def test_what_the_training_before_had_read_counts_too(packed, monkeypatch):
    """The same rows twice: a training, and the one whose checkpoint it went on from."""
    given = packed, [("hit", [8, 1, 2, 3, 4, 1])], monkeypatch
    once = traced_of(*given, sought=[("x", [1, 2, 3])], max_spans_per_text=99)
    (times,) = (row["occurrences"] for row in packed.held)
    twice = traced_of(*given, sought=[("x", [1, 2, 3])], trainings=2, max_spans_per_text=99)
    assert [row["occurrences"] for row in packed.held] == [2 * times] and times > 0
    assert twice[0] == once[0]  # the same runs
    whole = [row | {"training_index": n} for n in (0, 1) for row in once[1]]
    key = itemgetter("training_index", "sequence", "row_start", "text_start")
    assert sorted(twice[1], key=key) == sorted(whole, key=key)
    assert len(traced_of(*given, trainings=2, max_spans_per_text=1)[1]) == 1


def test_the_longest_places_are_kept(packed, monkeypatch):
    _, spans = traced_of(packed, [("hit", [2, 3, 4, 1, 2])], monkeypatch, max_spans_per_text=1)
    assert len(spans) == 1 and spans[0]["run_tokens"] == 5
    _, spans = traced_of(packed, [("hit", [1, 2, 3])], monkeypatch, max_spans_per_text=3)
    assert [row["run_tokens"] for row in spans] == [3, 3, 3]


def test_nothing_asked_is_nothing_traced(packed, monkeypatch):
    assert traced_of(packed, [], monkeypatch) == ([], [])
    assert [r["longest_run_tokens"] for r in traced_of(packed, [("", [])], monkeypatch)[0]] == [0]


def test_verbatim_is_not_shorter_than_what_is_told():
    with pytest.raises(ValueError, match="min_verbatim_tokens must not be smaller"):
        TraceConfig(min_span_tokens=60)


def test_tokens_within_planted_documents_are_those_of_brute_force():
    """Documents side by side, with gaps, and given in another order than they stand in."""
    rng = np.random.default_rng(2)
    width, rows = 10, 6
    stretches = [(0, 0, 4), (0, 4, 6), (1, 3, 9), (3, 0, 10), (5, 7, 10)]
    order = rng.permutation(len(stretches))
    keys = hash_to_ids(f"plant {n}" for n in range(len(stretches)))
    spans = pa.table(
        {
            "split": ["train"] * 5 + ["validation"],
            "sequence": [stretches[n][0] for n in order] + [2],
            "row_start": [stretches[n][1] for n in order] + [0],
            "row_end": [stretches[n][2] for n in order] + [10],
            "doc_id": pa.array([*(keys[int(n)].as_py() for n in order), keys[0].as_py()], ID_TYPE),
        }
    )
    plants = Known(pa.table({"doc_ids": [[k.as_py() for k in keys], []]}))
    planted = CanarySpans.from_canaries(Known(spans), plants, width)
    begin = rng.integers(0, rows * width, 200)
    size = rng.integers(1, 9, 200)
    size = np.minimum(size, width - begin % width)  # a run stands in one row
    found = planted.measure_longest_overlap(begin, size)
    for start, many, inside in zip(begin, size, found, strict=True):
        shares = [
            max(0, min(row * width + last, start + many) - max(row * width + first, start))
            for row, first, last in stretches
        ]
        assert inside == max(shares)
    none = CanarySpans.from_canaries(Known(spans), None, width)
    assert none.measure_longest_overlap(begin, size).tolist() == [0] * 200


def test_many_stretches_find_what_one_does(packed, monkeypatch):
    responses = [("hit", [8, 1, 2, 3, 4, 1]), ("one", [5]), ("other", [1, 2, 3, 4])]
    whole = traced_of(packed, responses, monkeypatch)
    monkeypatch.setattr(tracing, "TOKENS_PER_BATCH", WIDTH)
    assert traced_of(packed, responses, monkeypatch) == whole
    monkeypatch.setattr(tracing, "TOKENS_PER_BATCH", 1)
    assert traced_of(packed, responses, monkeypatch) == whole
    assert [row["verbatim_tokens"] for row in whole[0]] == [5, 0, 4]
    assert (
        TraceConfig(min_span_tokens=8, min_verbatim_tokens=8).min_verbatim_tokens == 8
        and TraceConfig().enabled
    )
