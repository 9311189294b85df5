"""Toxic windows become spans, and what treats spans cuts them out of their documents."""

import pyarrow as pa
import pytest

from hallmark.flows.config import load_config
from hallmark.tasks.contract import (
    HallmarkError,
    StageConfig,
    StageContext,
    Table,
    UsageError,
    stage,
)
from hallmark.tasks.corpus.find_toxic_spans import FindToxicSpansConfig, find_toxic_spans
from hallmark.tasks.corpus.redact_spans import CutToxicConfig, RedactSpansConfig, redact_spans
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig, score_toxicity
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from hallmark.tasks.corpus.toxicity.windows import WINDOW_SCORES
from hallmark.tasks.measures.scorers import TOXICITY_HEADS
from tests.tasks.corpora import given

RUDE = "You are a damned stupid idiot. "
MILD = "Der Häfen lag still, 漢 and quiet in the mörning. "
LONG = MILD * 3 + RUDE * 8 + MILD * 3

cut_toxic = redact_spans.with_label("cut_toxic")
FOUND = FindToxicSpansConfig(enabled=True)


class ScoresConfig(StageConfig):
    #: (document, start, end in characters, toxicity), by document; what names none is one window
    rows: tuple[tuple[int, int, int, float | None], ...]


@stage(name="scores", tables={"windows": WINDOW_SCORES})
def scores(documents: Table, config: ScoresConfig, context: StageContext) -> None:
    rows = documents.read(["doc_id"])["doc_id"].take([row for row, *_ in config.rows])
    _, start, end, toxicity = zip(*config.rows, strict=True)
    columns = {
        "doc_id": rows.combine_chunks(),
        "window_index": pa.array(range(len(rows)), pa.int32()),
    }
    columns |= {"char_start": pa.array(start), "char_end": pa.array(end)}
    columns |= {head: pa.nulls(len(rows), pa.float32()) for head in TOXICITY_HEADS}
    context.get_table_writer("windows").write(
        columns | {"toxicity": pa.array(toxicity, pa.float32())}
    )


def spans_in(texts, rows):
    documents = given(texts)
    found = find_toxic_spans(documents, scores(documents, ScoresConfig(rows=rows)), FOUND)
    number = {i: n for n, i in enumerate(documents["documents"].read()["doc_id"].to_pylist())}
    spans = [
        (number[s["doc_id"]], s["byte_start"], s["byte_end"], s["type"], s["score"])
        for s in found["spans"].read().to_pylist()
    ]
    return documents, found, spans


def rows_of(documents):
    return {r["doc_id"]: r for r in documents["documents"].read().to_pylist()}


@pytest.mark.parametrize("parts", [1, 4])
def test_windows_that_are_toxic_leave_their_documents_to_the_character(session, parts):
    """What stays is what stands in no window at or above the bound; the rest has its rows."""
    texts = [f"{n}. {LONG if n % 3 == 0 else MILD * 12}" for n in range(20)] + [RUDE]
    documents = given(texts, parts=parts)
    scored = score_toxicity(documents, None, ScoreToxicityConfig(window_characters=100))
    kept = select_documents(documents, {"toxicity": scored}, SelectConfig())
    found = find_toxic_spans(kept, scored, FOUND)
    made = cut_toxic(kept, {"toxic": found}, CutToxicConfig())

    before, after = rows_of(documents), rows_of(made)
    expected = dict.fromkeys(before, "")
    for window in scored["windows"].read().to_pylist():
        toxic, doc_id = window["toxicity"] >= 0.5, window["doc_id"]
        stays = "" if toxic else before[doc_id]["text"][window["char_start"] : window["char_end"]]
        expected[doc_id] += stays
    assert {i: r["text"] for i, r in after.items()} == {i: t for i, t in expected.items() if t}
    assert sum(text == before[i]["text"] for i, text in expected.items()) == 13

    ledger = made["ledger"].read().to_pylist()
    gone = [row for row in ledger if row["action"] == "removed"]
    assert [(r["reason"], before[r["doc_id"]]["text"]) for r in gone] == [("empty after cut", RUDE)]
    spans = [row for row in ledger if row["action"] == "removed_span"]
    assert len(spans) == found["spans"].row_count - 1 and {r["reason"] for r in spans} == {"TOXIC"}
    for row in spans:
        text = before[row["doc_id"]]["text"][row["char_start"] : row["char_end"]]
        assert row["bytes_before"] == len(text.encode()) and "idiot" in text
        assert row["score"] >= 0.5
    book = {row["unit"]: row for row in made["accounts"].read().to_pylist()}
    assert book["bytes"]["removed_spans"] == sum(r["bytes_before"] for r in spans)
    assert book["rows"]["kept"] == len(after) == 20 and book["rows"]["removed_rows"] == 1


def test_windows_that_overlap_or_touch_are_one_span_with_the_highest_score(session):
    text = "äbc" * 10  # 30 characters, 40 bytes
    rows = (
        (0, 0, 6, 0.5),
        (0, 6, 12, 0.75),
        (0, 9, 15, 0.625),
        (0, 20, 30, 0.25),
        (1, 0, 3, 0.875),
        (1, 4, 6, 0.5),
        (1, 6, 30, None),
        (2, 0, 0, None),
        (3, 3, 30, 1.0),
        (3, 12, 15, 0.5),
    )
    documents, found, spans = spans_in([text, text, "", text], rows)
    assert spans == [
        (0, 0, 20, "TOXIC", 0.75),
        (1, 0, 4, "TOXIC", 0.875),
        (1, 6, 8, "TOXIC", 0.5),
        (3, 4, 40, "TOXIC", 1.0),
    ]
    made = cut_toxic(documents, {"toxic": found}, CutToxicConfig())
    left = ["äbc" * 5, "ä" + "äbc" * 8, "", "äbc"]
    assert [r["text"] for r in rows_of(made).values()] == [left[0], text[3] + text[6:], "", left[3]]
    assert made["ledger"].row_count == len(spans)


def test_nothing_is_cut_where_no_window_reaches_the_bound(session):
    documents, found, spans = spans_in([MILD, RUDE], ((0, 0, 9, 0.4999), (1, 0, 9, None)))
    assert spans == []
    made = cut_toxic(documents, {"toxic": found}, CutToxicConfig())
    assert rows_of(made) == rows_of(documents) and not made["ledger"].row_count


def test_the_policy_decides_what_becomes_of_a_window(session):
    documents, found, _ = spans_in([LONG], ((0, 0, 150, 0.1), (0, 150, 400, 0.9)))
    masked = cut_toxic(
        documents, {"toxic": found}, CutToxicConfig(actions_by_type={"TOXIC": "mask"})
    )
    [row] = rows_of(masked).values()
    assert row["text"] == LONG[:150] + "<TOXIC>" + LONG[400:]
    kept = cut_toxic(documents, {"toxic": found}, RedactSpansConfig(action="keep"))
    assert rows_of(kept) == rows_of(documents)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (((0, 0, 6, 0.5),), "1 of 2 documents"),
        (((0, 0, 6, 0.5), (1, 0, 7, 0.5)), "character 7 .* of 6"),
    ],
)
def test_windows_of_other_texts_are_refused(session, rows, words):
    with pytest.raises(HallmarkError, match=words):
        spans_in(["ä漢cdef", "ghijkl"], rows)


def test_windows_are_looked_for_where_asked_for_alone():
    assert (
        not load_config("smoke").find_toxic_spans.enabled
        and not load_config("demo").find_toxic_spans.enabled
    )
    asked = load_config("smoke", ["find_toxic_spans.enabled=true"])
    assert asked.cut_toxic.get_actions(pa.array(["TOXIC", "EMAIL"])).tolist() == ["cut", "keep"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            'redact_spans.actions_by_type={TOXIC = "cut"}',
            r"redact_spans\.actions_by_type\.TOXIC: .* cut_toxic",
        ),
        (
            'redact_spans.actions_by_type={REPEAT = "cut"}',
            r"redact_spans\.actions_by_type\.REPEAT: .* " r"cut_repeats",
        ),
        (
            'cut_repeats.actions_by_type={EMAIL = "drop"}',
            r"cut_repeats\.actions_by_type\.EMAIL: .* redact_spans",
        ),
        (
            'cut_toxic.actions_by_type={REPEAT = "cut"}',
            r"cut_toxic\.actions_by_type\.REPEAT: " r".* cut_repeats",
        ),
        (
            "find_toxic_spans={enabled = true, toxicity_threshold = 0.8}",
            "nothing would be left to cut",
        ),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(override, words):
    with pytest.raises(UsageError, match=words):
        load_config("demo", [override])  # whose rule over toxicity removes


def test_what_the_rules_leave_can_be_cut():
    windows = "find_toxic_spans={enabled = true, toxicity_threshold = 0.8}"
    for rule in ('{lt = 0.8, action = "tag"}', '{lt = 0.9, action = "remove"}'):
        load_config("smoke", [windows, f"select_scored.rules={{toxicity = {rule}}}"])
    load_config("smoke", [windows])  # the default with the embedded scorer tags


def test_with_a_cascade_windows_count_from_its_threshold_alone():
    cascade = "score_toxicity.cascade={toxicity_threshold = 0.7}"
    detoxify = ["score_toxicity.scorer.kind=detoxify", "select_scored.rules={toxicity={lt=0.7}}"]
    with pytest.raises(UsageError, match=r"find_toxic_spans\.toxicity_threshold .* 0\.7"):
        load_config("smoke", [cascade, *detoxify, "find_toxic_spans.enabled=true"])
