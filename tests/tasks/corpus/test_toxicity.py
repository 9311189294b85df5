"""Scoring toxicity: windows, missing scores, and thresholds that need no new scores."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given as given_values
from hypothesis import strategies as st

from hallmark.tasks.contract import (
    HallmarkError,
    ProcessMapper,
    Session,
    Store,
    hash_to_ids,
    open_session,
)
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig, score_toxicity
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from hallmark.tasks.corpus.toxicity import windows as toxicity_windows
from hallmark.tasks.corpus.toxicity.windows import (
    build_window_score_columns,
    compute_highest_score_columns,
    iter_window_spans,
)
from hallmark.tasks.measures.scorers import TOXICITY_HEADS, Scorer, ScorerConfig
from tests.tasks.corpora import given
from tests.tasks.measures.detoxify_checkpoint import make_checkpoint

RUDE = "You are a damned stupid idiot."
MILD = "The harbour was quiet in the morning and the boats lay still. "


@given_values(st.text(alphabet="ab \n漢", max_size=400), st.integers(5, 60))
def test_windows_cover_the_text_and_are_never_too_long(text, length):
    windows = list(iter_window_spans(text, length))
    assert "".join(text[start:end] for start, end in windows) == text
    assert all(end - start <= length for start, end in windows)
    assert all(start < end for start, end in windows) or windows == [(0, 0)]
    assert (len(windows) == 1) == (len(text) <= length)
    # A window ends after a space if its last fifth contains one.
    for start, end in windows[:-1]:
        tail = text[start + length - length // 5 : start + length]
        assert text[end - 1].isspace() or not any(c.isspace() for c in tail)


def test_the_most_toxic_window_of_a_long_document_counts(session):
    texts = [MILD * 60, MILD * 30 + RUDE + " " + MILD * 30, RUDE, ""]
    scores = score_toxicity(given(texts), None, ScoreToxicityConfig())["windows"].read().to_pylist()
    doc_ids = given(texts)["documents"].read()["doc_id"].to_pylist()
    windows_by_document = [[r for r in scores if r["doc_id"] == doc_id] for doc_id in doc_ids]
    assert [[r["window_index"] for r in rows] for rows in windows_by_document] == [
        [*range(4)]
    ] * 2 + [[0]] * 2
    most_toxic = max(windows_by_document[1], key=lambda r: r["toxicity"])
    assert RUDE in texts[1][most_toxic["char_start"] : most_toxic["char_end"]]
    assert max(r["toxicity"] for r in windows_by_document[0]) < 0.2
    assert windows_by_document[2][0]["toxicity"] > 0.8
    assert windows_by_document[3][0]["toxicity"] is None  # an empty text has no score, not zero


def test_scores_do_not_depend_on_workers(tmp_path):
    texts = [f"{i} {RUDE if i % 7 == 0 else MILD}" for i in range(9_000)]
    digests = []
    for name, mapper in (("one", None), ("two", ProcessMapper(2))):
        session = Session(Store(tmp_path / name))
        session.mapper = mapper or session.mapper
        with open_session(session):
            digests.append(
                score_toxicity(given(texts, parts=4), None, ScoreToxicityConfig()).content_digest
            )
    assert digests[0] == digests[1]


def test_detoxify_scores_documents_through_the_stage(session, tmp_path):
    checkpoint, base = make_checkpoint(tmp_path)
    scorer = ScorerConfig(kind="detoxify", checkpoint=checkpoint, base_model_folder=base)
    result = score_toxicity(given([MILD, ""]), None, ScoreToxicityConfig(scorer=scorer))
    first, second = result["windows"].read()["toxicity"].to_pylist()
    assert 0 < first < 1
    assert second is None
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert result.manifest["parts"]["external"]["digest"] == digest
    assert result["signals"].read()["toxicity"].to_pylist() == [first, None]
    measurements = result.read_telemetry().to_pylist()
    assert [r["value"] for r in measurements if r["metric"] == "unscored_windows"] == [1.0]


def test_another_threshold_needs_no_new_scores(session):
    events = []
    session.listener = lambda event: events.append((event.kind, event.label))
    documents = given([RUDE, MILD])
    for threshold in (0.5, 0.75):
        scores = score_toxicity(documents, None, ScoreToxicityConfig())
        rules = SelectConfig(rules={"toxicity": {"lt": threshold}})
        selected = select_documents(documents, {"toxicity": scores}, rules)
        assert selected["documents"].read()["text"].to_pylist() == [MILD]
        assert selected["ledger"].read()["threshold"].to_pylist() == [threshold]
    runs = [label for kind, label in events if kind == "done"]
    assert runs == ["given_documents", "score_toxicity", "select", "select"]


def test_the_signal_is_the_highest_score_of_all_windows():
    """A window that failed has a null or NaN score, which counts as missing, never as zero."""
    scores_by_document = {0: [0.1, 0.75, 0.2], 1: [0.4375, None], 2: [None], 3: [float("nan"), 0.0]}
    rows = [
        (i, n, all_scores)
        for i, scores in scores_by_document.items()
        for n, all_scores in enumerate(scores)
    ]
    documents, window_indices, all_scores = zip(*rows, strict=True)
    signals = compute_highest_score_columns(
        {
            "doc_id": hash_to_ids(map(str, documents)),
            "window_index": pa.array(window_indices, pa.int32()),
            **{head: pa.array(all_scores, pa.float32()) for head in TOXICITY_HEADS},
        }
    )
    assert signals["doc_id"].to_pylist() == hash_to_ids(map(str, scores_by_document)).to_pylist()
    for head in TOXICITY_HEADS:
        assert signals[head].to_pylist() == [0.75, 0.4375, None, 0.0]


def test_a_document_that_is_not_scored_has_one_window_without_a_score():
    texts = pa.array([MILD * 4, RUDE * 9], pa.large_string())
    batch = pa.record_batch({"doc_id": hash_to_ids(["a", "b"]), "text": texts})
    windows = build_window_score_columns(batch, np.array([True, False]), 100, ScorerConfig())
    assert windows["doc_id"].to_pylist() == hash_to_ids(["a", "a", "a", "b"]).to_pylist()
    assert windows["window_index"].to_pylist() == [0, 1, 2, 0]
    assert (windows["char_start"][3].as_py(), windows["char_end"][3].as_py()) == (0, len(RUDE) * 9)
    assert windows["toxicity"].is_null().to_pylist() == [False] * 3 + [True]


class RecordingScorer(Scorer):
    """Keeps the texts that it is given."""

    name, digest, heads = "recorder", "0" * 64, ("toxicity",)

    def _score_distinct_texts(self, texts):
        self.texts = texts
        return np.zeros((len(texts), len(self.columns)), np.float32)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ScorerConfig(), ["You fool and fucking fool", "Fur die Zuge"]),
        (ScorerConfig(kind="detoxify"), ["You fool and fucking fool", "Fur die Zuge"]),
        (
            ScorerConfig(kind="detoxify", model="multilingual"),
            ["You fool and fücking fool", "Für die Züge"],
        ),
    ],
    ids=["linear", "English", "multilingual"],
)
def test_disguised_words_are_folded_and_accents_only_for_scorers_of_english(
    monkeypatch, config, expected
):
    scorer = RecordingScorer()
    monkeypatch.setattr(toxicity_windows, "open_scorer", lambda config: scorer)
    texts = ["You f\u0353ооl and fücking f o o l", "Für die Züge"]
    batch = pa.record_batch({"doc_id": hash_to_ids(["a", "b"]), "text": texts})
    windows = build_window_score_columns(batch, np.ones(2, bool), 100, config)
    assert scorer.texts == expected
    assert windows["char_end"].to_pylist() == [len(text) for text in texts]


class LogitScorer(Scorer):
    """Returns the length of a text less 3, which is sometimes between 0 and 1."""

    name, digest, heads = "logits", "0" * 64, ("toxicity",)

    def _score_distinct_texts(self, texts):
        scores = np.full((len(texts), len(self.columns)), np.nan, np.float32)
        scores[:, self.columns.index("toxicity")] = [len(text) - 3 for text in texts]
        return scores


def test_a_scorer_that_returns_logits_scores_no_corpus(monkeypatch):
    """Those of its values that lie between 0 and 1 are no probabilities either."""
    scorer = LogitScorer()
    monkeypatch.setattr(toxicity_windows, "open_scorer", lambda config: scorer)
    batch = pa.record_batch(
        {"doc_id": pa.array([b"a" * 16, b"b" * 16], pa.binary(16)), "text": ["abc", "abcdefgh"]}
    )
    with pytest.raises(
        HallmarkError,
        match="the scorer logits returned scores outside the range from 0 to 1, such as 5, which "
        "may be logits; none of its scores can be used; choose another scorer",
    ):
        build_window_score_columns(batch, np.ones(2, bool), 100, ScorerConfig())


def test_an_empty_corpus_gives_empty_tables(session):
    documents = given([])
    scores = score_toxicity(documents, None, ScoreToxicityConfig())
    assert scores["signals"].row_count == 0
    assert (
        select_documents(documents, {"toxicity": scores}, SelectConfig())["documents"].row_count
        == 0
    )
