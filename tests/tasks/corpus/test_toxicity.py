"""Scoring and filtering toxicity: windows, missing scores, and thresholds that score nothing."""

import hashlib

import pytest
from hypothesis import given as given_values
from hypothesis import strategies as st

from tasks.contract import (
    HallmarkError,
    Processes,
    Session,
    StageConfig,
    Store,
    Table,
    Work,
    open_session,
    stage,
)
from tasks.corpus.filter_toxicity import FilterToxicityConfig, filter_toxicity
from tasks.corpus.score_toxicity import SCORES, ScoreToxicityConfig, score_toxicity, windows
from tasks.measures.scorers import ScorerConfig
from tests.tasks.corpora import given
from tests.tasks.measures.detoxify_checkpoint import make_checkpoint

RUDE = "You are a damned stupid idiot."
MILD = "The harbour was quiet in the morning and the boats lay still. "


class GivenScoresConfig(StageConfig):
    scores: tuple[tuple[float | None, ...], ...]


@stage(tables={"scores": SCORES})
def given_scores(documents: Table, config: GivenScoresConfig, work: Work) -> None:
    """Scores by document and window."""
    for doc_id, scores in zip(documents.read()["doc_id"], config.scores, strict=False):
        count = len(scores)
        columns = {"doc_id": [doc_id] * count, "window": range(count), "score": scores}
        work.table("scores").write(columns | {"start": [0] * count, "end": [0] * count})


@given_values(st.text(alphabet="ab \n漢", max_size=400), st.integers(5, 60))
def test_windows_cover_the_text_and_are_never_too_long(text, length):
    found = list(windows(text, length))
    assert "".join(text[start:end] for start, end in found) == text
    assert all(end - start <= length for start, end in found)
    assert len(found) >= 1
    # A cut stands behind a space wherever the last fifth of the window has one.
    for start, end in found[:-1]:
        tail = text[start + length - length // 5 : start + length]
        assert text[end - 1].isspace() or not any(c.isspace() for c in tail)


def test_the_worst_window_of_a_long_document_counts(session):
    texts = [MILD * 60, MILD * 30 + RUDE + " " + MILD * 30, RUDE, ""]
    scores = score_toxicity(given(texts), ScoreToxicityConfig())["scores"].read().to_pylist()
    documents = given(texts)["documents"].read()["doc_id"].to_pylist()
    by_document = [[r for r in scores if r["doc_id"] == d] for d in documents]
    assert [len(rows) for rows in by_document] == [4, 4, 1, 1]
    worst = max(by_document[1], key=lambda r: r["score"])
    assert RUDE in texts[1][worst["start"] : worst["end"]]
    assert max(r["score"] for r in by_document[0]) < 0.2
    assert by_document[2][0]["score"] > 0.8
    assert by_document[3][0]["score"] is None  # an empty text has no score, not zero


def test_scores_do_not_depend_on_workers(tmp_path):
    texts = [f"{i} {RUDE if i % 7 == 0 else MILD}" for i in range(9_000)]
    contents = []
    for name, mapper in (("one", None), ("two", Processes(2))):
        session = Session(Store(tmp_path / name))
        session.mapper = mapper or session.mapper
        with open_session(session):
            contents.append(score_toxicity(given(texts, parts=4), ScoreToxicityConfig()).content)
    assert contents[0] == contents[1]


def test_detoxify_scores_documents_through_the_stage(session, tmp_path):
    checkpoint, base = make_checkpoint(tmp_path)
    scorer = ScorerConfig(kind="detoxify", checkpoint=checkpoint, base=base)
    made = score_toxicity(given([MILD, ""]), ScoreToxicityConfig(scorer=scorer))
    first, second = made["scores"].read()["score"].to_pylist()
    assert 0 < first < 1
    assert second is None
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert made.manifest["parts"]["external"]["digest"] == digest
    unscored = made.telemetry().to_pylist()
    assert [r["value"] for r in unscored if r["metric"] == "unscored"] == [1.0]


def test_another_threshold_scores_nothing_again(session):
    seen = []
    session.listener = lambda event: seen.append((event.kind, event.label))
    documents = given([RUDE, MILD])
    for threshold in (0.5, 0.75):
        scores = score_toxicity(documents, ScoreToxicityConfig())
        made = filter_toxicity(documents, scores, FilterToxicityConfig(threshold=threshold))
        assert made["documents"].read()["text"].to_pylist() == [MILD]
        assert made["ledger"].read()["threshold"].to_pylist() == [threshold]
    runs = [label for kind, label in seen if kind == "done"]
    assert runs == ["given_documents", "score_toxicity", "filter_toxicity", "filter_toxicity"]


def filtered(texts, scores, **config):
    documents = given(texts)
    table = given_scores(documents, GivenScoresConfig(scores=tuple(scores)))
    return filter_toxicity(documents, table, FilterToxicityConfig(**config))


def test_the_highest_window_decides_and_the_threshold_itself_is_removed(session):
    scores = [(0.1, 0.75, 0.2), (0.5, 0.25), (0.4375, None), (0.0,)]
    made = filtered(["a", "bb", "ccc", "dddd"], scores, threshold=0.5)
    assert made["documents"].read()["text"].to_pylist() == ["ccc", "dddd"]
    assert made["documents"].read()["toxicity"].to_pylist() == [0.4375, 0.0]
    rows = made["ledger"].read().to_pylist()
    found = [
        (r["action"], r["reason"], r["score"], r["threshold"], r["bytes_before"]) for r in rows
    ]
    assert found == [
        ("removed", "toxicity", 0.75, 0.5, 1),
        ("removed", "toxicity", 0.5, 0.5, 2),
    ]


@pytest.mark.parametrize("keep", [True, False])
def test_what_could_not_be_scored_is_missing_and_never_zero(session, keep):
    made = filtered(["a", "b"], [(None, None), (0.25,)], keep_unscored=keep)
    documents = made["documents"].read().to_pylist()
    ledger = made["ledger"].read().to_pylist()
    if keep:
        assert [row["toxicity"] for row in documents] == [None, 0.25]
        assert ledger == []
    else:
        assert [row["toxicity"] for row in documents] == [0.25]
        assert [(row["reason"], row["score"]) for row in ledger] == [("toxicity unknown", None)]
    measured = {row["metric"]: row["value"] for row in made.telemetry().to_pylist()}
    assert measured["unscored"] == 1


def test_scores_of_other_documents_are_refused(session):
    with pytest.raises(HallmarkError, match=r"documents of .* and scores of .* same documents"):
        filtered(["a", "b"], [(0.5,)])
    others = given_scores(given(["x", "a"]), GivenScoresConfig(scores=((0.5,), (0.5,))))
    cut_otherwise = given(["x", "a"], parts=2)
    with pytest.raises(HallmarkError, match="not cut alike"):
        filter_toxicity(cut_otherwise, others, FilterToxicityConfig())


def test_no_documents_are_no_error(session):
    documents = given([])
    scores = score_toxicity(documents, ScoreToxicityConfig())
    assert filter_toxicity(documents, scores, FilterToxicityConfig())["documents"].rows == 0
