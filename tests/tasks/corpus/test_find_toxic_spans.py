"""Toxic windows become spans, which ``redact_spans`` cuts out of their documents."""

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
ENABLED = FindToxicSpansConfig(enabled=True)


class GivenWindowsConfig(StageConfig):
    #: (row of the document, start and end in characters, toxicity) of each window, by document
    rows: tuple[tuple[int, int, int, float | None], ...]


@stage(name="scores", tables={"windows": WINDOW_SCORES})
def given_windows(documents: Table, config: GivenWindowsConfig, context: StageContext) -> None:
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


def find_spans_in(texts, rows):
    documents = given(texts)
    result = find_toxic_spans(
        documents, given_windows(documents, GivenWindowsConfig(rows=rows)), ENABLED
    )
    row_by_id = {i: n for n, i in enumerate(documents["documents"].read()["doc_id"].to_pylist())}
    spans = [
        (row_by_id[s["doc_id"]], s["byte_start"], s["byte_end"], s["type"], s["score"])
        for s in result["spans"].read().to_pylist()
    ]
    return documents, result, spans


def rows_by_id(documents):
    return {r["doc_id"]: r for r in documents["documents"].read().to_pylist()}


@pytest.mark.parametrize("parts", [1, 4])
def test_exactly_the_toxic_windows_are_cut_from_their_documents(session, parts):
    """The kept text is that of the windows below the threshold; the ledger has the others."""
    texts = [f"{n}. {LONG if n % 3 == 0 else MILD * 12}" for n in range(20)] + [RUDE]
    documents = given(texts, parts=parts)
    scored = score_toxicity(documents, None, ScoreToxicityConfig(window_characters=100))
    selected = select_documents(documents, {"toxicity": scored}, SelectConfig())
    toxic_spans = find_toxic_spans(selected, scored, ENABLED)
    result = cut_toxic(selected, {"toxic": toxic_spans}, CutToxicConfig())

    before, after = rows_by_id(documents), rows_by_id(result)
    expected = dict.fromkeys(before, "")
    for window in scored["windows"].read().to_pylist():
        is_toxic, doc_id = window["toxicity"] >= 0.5, window["doc_id"]
        kept_text = (
            "" if is_toxic else before[doc_id]["text"][window["char_start"] : window["char_end"]]
        )
        expected[doc_id] += kept_text
    assert {i: r["text"] for i, r in after.items()} == {i: t for i, t in expected.items() if t}
    assert sum(text == before[i]["text"] for i, text in expected.items()) == 13

    ledger = result["ledger"].read().to_pylist()
    removed = [row for row in ledger if row["action"] == "removed"]
    assert [(r["reason"], before[r["doc_id"]]["text"]) for r in removed] == [
        ("empty after cut", RUDE)
    ]
    spans = [row for row in ledger if row["action"] == "removed_span"]
    assert len(spans) == toxic_spans["spans"].row_count - 1 and {r["reason"] for r in spans} == {
        "TOXIC"
    }
    for row in spans:
        text = before[row["doc_id"]]["text"][row["char_start"] : row["char_end"]]
        assert row["bytes_before"] == len(text.encode()) and "idiot" in text
        assert row["score"] >= 0.5
    account_by_unit = {row["unit"]: row for row in result["accounts"].read().to_pylist()}
    assert account_by_unit["bytes"]["removed_spans"] == sum(r["bytes_before"] for r in spans)
    assert (
        account_by_unit["rows"]["kept"] == len(after) == 20
        and account_by_unit["rows"]["removed_rows"] == 1
    )


def test_windows_that_overlap_or_touch_are_merged_with_the_highest_score(session):
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
    documents, result, spans = find_spans_in([text, text, "", text], rows)
    assert spans == [
        (0, 0, 20, "TOXIC", 0.75),
        (1, 0, 4, "TOXIC", 0.875),
        (1, 6, 8, "TOXIC", 0.5),
        (3, 4, 40, "TOXIC", 1.0),
    ]
    cut_result = cut_toxic(documents, {"toxic": result}, CutToxicConfig())
    expected = ["äbc" * 5, "ä" + "äbc" * 8, "", "äbc"]
    assert [r["text"] for r in rows_by_id(cut_result).values()] == [
        expected[0],
        text[3] + text[6:],
        "",
        expected[3],
    ]
    assert cut_result["ledger"].row_count == len(spans)


def test_nothing_is_cut_if_no_window_reaches_the_threshold(session):
    documents, result, spans = find_spans_in([MILD, RUDE], ((0, 0, 9, 0.4999), (1, 0, 9, None)))
    assert spans == []
    cut_result = cut_toxic(documents, {"toxic": result}, CutToxicConfig())
    assert rows_by_id(cut_result) == rows_by_id(documents) and not cut_result["ledger"].row_count


def test_the_configured_action_applies_to_toxic_windows(session):
    documents, result, _ = find_spans_in([LONG], ((0, 0, 150, 0.1), (0, 150, 400, 0.9)))
    masked = cut_toxic(
        documents, {"toxic": result}, CutToxicConfig(actions_by_type={"TOXIC": "mask"})
    )
    [row] = rows_by_id(masked).values()
    assert row["text"] == LONG[:150] + "<TOXIC>" + LONG[400:]
    kept_result = cut_toxic(documents, {"toxic": result}, RedactSpansConfig(action="keep"))
    assert rows_by_id(kept_result) == rows_by_id(documents)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (((0, 0, 6, 0.5),), "1 of 2 documents"),
        (((0, 0, 6, 0.5), (1, 0, 7, 0.5)), "character 7 .* has only 6"),
    ],
)
def test_windows_of_other_texts_are_rejected(session, rows, message):
    with pytest.raises(HallmarkError, match=message):
        find_spans_in(["ä漢cdef", "ghijkl"], rows)


def test_toxic_spans_are_searched_for_only_if_enabled():
    assert (
        not load_config("smoke").find_toxic_spans.enabled
        and not load_config("demo").find_toxic_spans.enabled
    )
    config = load_config("smoke", ["find_toxic_spans.enabled=true"])
    assert config.cut_toxic.get_actions(pa.array(["TOXIC", "EMAIL"])).tolist() == ["cut", "keep"]


@pytest.mark.parametrize(
    ("override", "message"),
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
            "no window would ever be cut",
        ),
    ],
)
def test_a_setting_without_effect_is_rejected(override, message):
    with pytest.raises(UsageError, match=message):
        load_config("demo", [override])  # its toxicity rule removes documents


def test_windows_in_documents_that_the_rules_keep_can_be_cut():
    windows = "find_toxic_spans={enabled = true, toxicity_threshold = 0.8}"
    for rule in ('{lt = 0.8, action = "tag"}', '{lt = 0.9, action = "remove"}'):
        load_config("smoke", [windows, f"select_scored.rules={{toxicity = {rule}}}"])
    load_config("smoke", [windows])  # with the embedded scorer the default action is tag


def test_with_a_cascade_the_threshold_must_be_that_of_the_cascade():
    cascade = "score_toxicity.cascade={toxicity_threshold = 0.7}"
    detoxify = ["score_toxicity.scorer.kind=detoxify", "select_scored.rules={toxicity={lt=0.7}}"]
    with pytest.raises(UsageError, match=r"find_toxic_spans\.toxicity_threshold .* 0\.7"):
        load_config("smoke", [cascade, *detoxify, "find_toxic_spans.enabled=true"])
