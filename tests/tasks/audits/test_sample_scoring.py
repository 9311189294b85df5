"""Test that training samples get the scores of their own texts."""

import numpy as np
import pytest

from hallmark.tasks.audits import sample_scoring as module
from hallmark.tasks.audits.sample_scoring import ScoreSamplesConfig, score_samples
from hallmark.tasks.measures.scorers import ScorerConfig, open_scorer
from tests.reports.artifacts import OFFENSIVE, TrainedConfig, trained

TEXTS = (f"you {OFFENSIVE}", "the sea was calm", "")


def test_scores_are_added_to_the_samples(session):
    samples = trained(None, TrainedConfig(texts=TEXTS, prompts=True))["samples"].read().to_pylist()
    scored = (
        score_samples(
            trained(None, TrainedConfig(texts=TEXTS, prompts=True)), ScoreSamplesConfig()
        )["samples"]
        .read()
        .to_pylist()
    )
    scorer = open_scorer(ScorerConfig())
    assert len(scored) == 9
    for row, sample in zip(scored, samples, strict=True):
        assert {name: row[name] for name in sample} == sample
        assert row["prompt_toxicity"] == pytest.approx(scorer.score_toxicity([row["prompt"]])[0])
        if row["text"]:
            assert row["toxicity"] == pytest.approx(scorer.score_toxicity([row["text"]])[0])
        else:
            assert row["toxicity"] is None
    assert scored[0]["toxicity"] > 0.5 > scored[1]["toxicity"]


def test_a_failing_scorer_gives_no_score(session, monkeypatch):
    class Failing:
        def score_toxicity(self, texts):
            return np.full(len(texts), np.nan, np.float32)

    monkeypatch.setattr(module, "open_scorer", lambda config: Failing())
    result = score_samples(trained(None, TrainedConfig(texts=TEXTS)), ScoreSamplesConfig())
    assert result["samples"].read()["toxicity"].null_count == 9
