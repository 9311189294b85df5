"""Samples of training get the scores of their own texts, and none where there is none."""

import numpy as np
import pytest

from hallmark.tasks.audits import sample_scoring as module
from hallmark.tasks.audits.sample_scoring import ScoreSamplesConfig, score_samples
from hallmark.tasks.measures.scorers import ScorerConfig, open_scorer
from tests.reports.artifacts import OFFENSIVE, TrainedConfig, trained

TEXTS = (f"you {OFFENSIVE}", "the sea was calm", "")


def test_each_text_gets_its_own_score_and_nothing_else_changes(session):
    written = trained(None, TrainedConfig(texts=TEXTS, prompts=True))["samples"].read().to_pylist()
    made = (
        score_samples(
            trained(None, TrainedConfig(texts=TEXTS, prompts=True)), ScoreSamplesConfig()
        )["samples"]
        .read()
        .to_pylist()
    )
    scorer = open_scorer(ScorerConfig())
    assert len(made) == 9
    for row, before in zip(made, written, strict=True):
        assert {name: row[name] for name in before} == before
        assert row["prompt_toxicity"] == pytest.approx(scorer.score_toxicity([row["prompt"]])[0])
        if row["text"]:
            assert row["toxicity"] == pytest.approx(scorer.score_toxicity([row["text"]])[0])
        else:
            assert row["toxicity"] is None
    assert made[0]["toxicity"] > 0.5 > made[1]["toxicity"]


def test_a_scorer_that_fails_leaves_no_score(session, monkeypatch):
    class Failing:
        def score_toxicity(self, texts):
            return np.full(len(texts), np.nan, np.float32)

    monkeypatch.setattr(module, "open_scorer", lambda config: Failing())
    made = score_samples(trained(None, TrainedConfig(texts=TEXTS)), ScoreSamplesConfig())
    assert made["samples"].read()["toxicity"].null_count == 9
