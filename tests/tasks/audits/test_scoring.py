"""Scorers in audits: a text without a score is missing, a scorer that gives none is an error."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from safetensors.torch import load_file, save_file

from hallmark.tasks.audits.audit_tables import RESPONSES
from hallmark.tasks.audits.scoring import ScoreConfig, score_texts
from hallmark.tasks.contract import HallmarkError, StageConfig, StageContext, stage
from hallmark.tasks.measures.scorers import ClassifierConfig
from tests.tasks.measures.classifier_folder import make_classifier


class TextsConfig(StageConfig):
    texts: tuple[str, ...]


@stage(name="write_texts", tables={"responses": RESPONSES})
def write_texts(config: TextsConfig, context: StageContext) -> None:
    rows = [{"request": bytes(16), "draw": i, "text": text} for i, text in enumerate(config.texts)]
    filled = [dict.fromkeys(RESPONSES.names) | row for row in rows]
    context.get_table_writer("responses").write(pa.Table.from_pylist(filled, schema=RESPONSES))


def damage(folder, row):
    """Finite weights whose products are not: texts with these tokens get NaN."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["bert.embeddings.word_embeddings.weight"][row] *= 1e38
    save_file(weights, path, metadata={"format": "pt"})
    return folder


def test_a_scorer_that_gives_no_text_a_score_fails_the_audit(session, tmp_path):
    folder = damage(make_classifier(tmp_path / "a"), slice(None))
    answered = write_texts(TextsConfig(texts=("a b", "c", "d e f", " ")))
    also = ClassifierConfig(kind="classifier", folder=folder)
    with pytest.raises(
        HallmarkError,
        match=r"^stage score: the scorer sentiment classifier a fai"
        r"led at all 3 texts .*gives no number\); use another",
    ):
        score_texts(None, answered, ScoreConfig(additional_scorers=(also,)))
    assert session.store.list_artifacts("score") == []


def test_a_text_that_gets_no_score_is_missing_and_not_zero(session, tmp_path):
    folder = make_classifier(tmp_path / "a")
    token = (folder / "vocab.txt").read_text().split().index("c")
    also = ClassifierConfig(kind="classifier", folder=damage(folder, token))
    answered = write_texts(TextsConfig(texts=("a b", "c", "d e f", " ")))
    found = score_texts(None, answered, ScoreConfig(additional_scorers=(also,)))["scores"].read()
    mine = found.filter(pc.equal(found["head"], "sentiment"))
    assert len(mine) == 3 and mine["score"].null_count == 1
