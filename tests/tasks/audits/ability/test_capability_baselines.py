"""Test that the capability audit refuses baselines that do not fit."""

from pathlib import Path
from typing import Any

import pytest

from hallmark.tasks.audits.ability.capability import CapabilityConfig, audit_capability
from hallmark.tasks.audits.ability.capability_baselines import capability_baselines
from hallmark.tasks.contract import HallmarkError, Session, folder_to_artifact
from tests.tasks.small_corpus import split_corpus

CONFIG = CapabilityConfig(min_passage_words=3, recurrent_tokens=2_000)


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
        HallmarkError, match=f"{baselines.name} was computed from another corpus or"
    ):
        audit_capability(checkpoint, split_corpus(60), baselines, CONFIG)
