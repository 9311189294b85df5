"""Test that the capability audit refuses baselines that do not fit."""

from pathlib import Path
from typing import Any

import pytest

from hallmark.tasks.audits.ability.capability import CapabilityConfig, audit_capability
from hallmark.tasks.audits.ability.capability_baselines import capability_baselines
from hallmark.tasks.contract import HallmarkError, Session, folder_to_artifact
from tests.tasks.small_corpus import split_corpus

CONFIG = CapabilityConfig(min_passage_words=3, recurrent_tokens=2_000)


def test_the_baselines_learn_from_a_sample_of_the_training_text(
    gpt2_folder: Path, session: Session
) -> None:
    corpus, checkpoint = split_corpus(200), folder_to_artifact(gpt2_folder, "checkpoint")
    texts = [
        row["text"].encode()
        for row in corpus["documents"].read().to_pylist()
        if row["split"] == "train"
    ]
    config = CONFIG.model_copy(update={"training_bytes": 6_000, "recurrent_tokens": 0})
    baselines = capability_baselines(checkpoint, corpus, config.baselines_config)
    bigram, fivegram = baselines["training_sizes"].read().to_pylist()
    assert bigram == fivegram | {"baseline": "bigram"}
    assert bigram["split_bytes"] == sum(map(len, texts)) > 10_000
    assert bigram["bytes"] == pytest.approx(6_000, rel=0.3)
    assert 0 < bigram["documents"] < len(texts)


@pytest.mark.parametrize(
    ("documents", "settings"),
    [(70, {}), (60, {"recurrent_tokens": 0}), (60, {"training_bytes": 1_000}), (60, {"seed": 1})],
)
def test_baselines_of_another_corpus_or_other_settings_are_refused(
    gpt2_folder: Path, session: Session, documents: int, settings: dict[str, Any]
) -> None:
    """Otherwise the method of the findings would be wrong."""
    checkpoint = folder_to_artifact(gpt2_folder, "checkpoint")
    config = CONFIG.model_copy(update=settings)
    baselines = capability_baselines(checkpoint, split_corpus(documents), config.baselines_config)
    with pytest.raises(
        HallmarkError, match=f"{baselines.name} was computed from a different corpus or"
    ):
        audit_capability(checkpoint, split_corpus(60), baselines, CONFIG)
