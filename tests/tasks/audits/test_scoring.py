"""Test scorers in audits: a text without a score is missing, a scorer without scores fails."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from safetensors.torch import load_file, save_file

from hallmark.tasks.audits import scoring
from hallmark.tasks.audits.audit_tables import RESPONSES
from hallmark.tasks.audits.scoring import ScoreConfig, score_texts
from hallmark.tasks.contract import HallmarkError, StageConfig, StageContext, stage
from hallmark.tasks.measures.scorers import Scorer
from hallmark.tasks.measures.scorers.sentiment import ClassifierConfig
from tests.tasks.measures.classifier_folder import make_classifier


class TextsConfig(StageConfig):
    texts: tuple[str, ...]


@stage(name="write_texts", tables={"responses": RESPONSES})
def write_texts(config: TextsConfig, context: StageContext) -> None:
    rows = [{"request": bytes(16), "draw": i, "text": text} for i, text in enumerate(config.texts)]
    complete_rows = [dict.fromkeys(RESPONSES.names) | row for row in rows]
    context.get_table_writer("responses").write(
        pa.Table.from_pylist(complete_rows, schema=RESPONSES)
    )


def damage(folder, row):
    """Make the weights finite but their products not, so that texts with these tokens get NaN."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["bert.embeddings.word_embeddings.weight"][row] *= 1e38
    save_file(weights, path, metadata={"format": "pt"})
    return folder


def test_a_scorer_without_any_score_fails_the_audit(session, tmp_path):
    folder = damage(make_classifier(tmp_path / "a"), slice(None))
    responses = write_texts(TextsConfig(texts=("a b", "c", "d e f", " ")))
    classifier = ClassifierConfig(kind="classifier", folder=folder)
    with pytest.raises(
        HallmarkError,
        match=r"^stage score: the scorer sentiment classifier a failed on all 3 texts "
        r".*NaN or "
        r"infinity\); use another",
    ):
        score_texts(None, responses, ScoreConfig(additional_scorers=(classifier,)))
    assert session.store.list_artifacts("score") == []


def test_a_text_without_a_score_is_missing(session, tmp_path):
    folder = make_classifier(tmp_path / "a")
    token = (folder / "vocab.txt").read_text().split().index("c")
    classifier = ClassifierConfig(kind="classifier", folder=damage(folder, token))
    responses = write_texts(TextsConfig(texts=("a b", "c", "d e f", " ")))
    scores = score_texts(None, responses, ScoreConfig(additional_scorers=(classifier,)))[
        "scores"
    ].read()
    sentiment_scores = scores.filter(pc.equal(scores["head"], "sentiment"))
    assert len(sentiment_scores) == 3 and sentiment_scores["score"].null_count == 1


class LogitScorer(Scorer):
    """Returns logits in place of probabilities."""

    name, digest, heads = "logits", "0" * 64, ("toxicity",)

    def _score_distinct_texts(self, texts):
        scores = np.full((len(texts), len(self.columns)), np.nan, np.float32)
        scores[:, self.columns.index("toxicity")] = [len(text) / 10 - 3 for text in texts]
        return scores


def test_a_scorer_that_returns_logits_is_tested_and_not_used(session, monkeypatch):
    """Some of its values lie between 0 and 1, but are no probabilities."""
    responses = write_texts(TextsConfig(texts=("a" * 35, "b" * 80)))
    scorer = LogitScorer()
    monkeypatch.setattr(scoring, "open_scorer", lambda config: scorer)
    score_set = score_texts(None, responses, ScoreConfig(additional_scorers=()))
    assert len(score_set["scores"].read()) == 0
    assert score_set["scorers"].read()["scorer"].to_pylist() == ["logits (000000000000)"]
    control_scores = score_set["control_scores"].read()
    assert len(control_scores) > 1000
    assert control_scores["score"].null_count == len(control_scores)
    (reason,) = pc.unique(control_scores["failure_reason"]).to_pylist()
    assert reason.startswith("it returned scores outside the range from 0 to 1, such as")
    assert reason.endswith(", which may be logits")


def test_each_scorer_is_tested(session):
    responses = write_texts(TextsConfig(texts=("You idiot.",)))
    score_set = score_texts(None, responses, ScoreConfig())
    control_scores = score_set["control_scores"].read()
    tested = control_scores.group_by(["scorer", "head"], use_threads=False).aggregate([])
    assert tested["scorer"].to_pylist() == score_set["scorers"].read()["scorer"].to_pylist()
    assert tested["head"].to_pylist() == ["toxicity", "sentiment"]
    assert control_scores["score"].null_count == 0
