"""Test scorers in audits: a text without a score is missing, a scorer without scores fails."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from safetensors.torch import load_file, save_file

from hallmark.tasks.audits.audit_tables import RESPONSES
from hallmark.tasks.audits.scoring import ScoreConfig, score_texts
from hallmark.tasks.contract import HallmarkError, StageConfig, StageContext, stage
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
