"""Settings of the corpus stages: values at their limits are accepted, values beyond rejected."""

import pytest
from pydantic import ValidationError

from hallmark.tasks.corpus.contamination import ContaminationConfig, EvaluationSet
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig
from hallmark.tasks.corpus.evaluate_curation import CurationEvaluationConfig
from hallmark.tasks.corpus.find_repeats import RepeatsConfig
from hallmark.tasks.corpus.identities import IdentitiesConfig
from hallmark.tasks.corpus.language import LanguageConfig
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig
from hallmark.tasks.corpus.profile import ProfileConfig
from hallmark.tasks.corpus.quality import QualityConfig
from hallmark.tasks.corpus.removal_effects import RemovalEffectsConfig
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig
from hallmark.tasks.corpus.select import SelectConfig, SelectionRule
from hallmark.tasks.corpus.split import SplitConfig
from hallmark.tasks.corpus.toxicity.cascade import CascadeConfig

CONFIGS = [
    CascadeConfig,
    ContaminationConfig,
    DeduplicateNearConfig,
    RemovalEffectsConfig,
    IdentitiesConfig,
    LanguageConfig,
    PlantCanariesConfig,
    ProfileConfig,
    QualityConfig,
    CurationEvaluationConfig,
    RepeatsConfig,
    ScoreToxicityConfig,
    SelectConfig,
    SplitConfig,
]

#: Config class, other settings, name of the setting, values at its limits, and values beyond.
LIMITS = [
    (CascadeConfig, {}, "clears_below", [1e-9, 1], [0, 1.01]),
    (CascadeConfig, {}, "toxicity_threshold", [1e-9, 1], [0, 1.01]),
    (CascadeConfig, {}, "min_recall", [1e-9, 0.999], [0, 1]),
    (CascadeConfig, {}, "confidence_level", [0.5, 0.999], [0.49, 1]),
    (CascadeConfig, {}, "sample_size", [1], [0]),
    (ContaminationConfig, {}, "ngram_size", [1, 100], [0, 101]),
    (EvaluationSet, {"name": "set", "path": "set.csv"}, "text_fields", [("a",), ("a", "b")], [()]),
    (
        DeduplicateNearConfig,
        {"cluster_threshold": 1e-9},
        "similarity_threshold",
        [1e-9, 1],
        [0, 1.01],
    ),
    (DeduplicateNearConfig, {"similarity_threshold": 1}, "cluster_threshold", [1e-9, 1], [0, 1.01]),
    (DeduplicateNearConfig, {}, "shingle_length", [1], [0]),
    (DeduplicateNearConfig, {}, "bands", [1], [0]),
    (DeduplicateNearConfig, {}, "rows_per_band", [1], [0]),
    (DeduplicateNearConfig, {}, "max_candidates", [1], [0]),
    (RemovalEffectsConfig, {}, "min_group_documents", [2], [1]),
    (RemovalEffectsConfig, {}, "threshold_shares", [(), (1e-9, 0.999)], [(0.5, 0), (1,)]),
    (RemovalEffectsConfig, {}, "examples_per_rule", [0], [-1]),
    (RemovalEffectsConfig, {}, "documents_per_group", [0], [-1]),
    (RemovalEffectsConfig, {}, "max_sentences_per_group", [0], [-1]),
    (IdentitiesConfig, {}, "length_bounds_bytes", [(), (1,), (1, 2)], [(0,), (2, 2), (2, 1)]),
    (LanguageConfig, {}, "min_probability", [0, 1], [-0.01, 1.01]),
    (LanguageConfig, {}, "max_characters", [1], [0]),
    (PlantCanariesConfig, {}, "secrets_per_count", [0], [-1]),
    (PlantCanariesConfig, {}, "passages_per_count", [0], [-1]),
    (PlantCanariesConfig, {}, "records_per_count", [0], [-1]),
    (PlantCanariesConfig, {}, "secret_digits", [6], [5]),
    (ProfileConfig, {}, "length_bounds_bytes", [(), (1,), (1, 2)], [(0,), (2, 2), (2, 1)]),
    (ProfileConfig, {}, "max_composition_values", [1], [0]),
    (ProfileConfig, {}, "occupation_window_words", [1], [0]),
    (ProfileConfig, {}, "max_sentiment_sentences_per_group", [0], [-1]),
    (QualityConfig, {}, "short_line_characters", [0], [-1]),
    (CurationEvaluationConfig, {}, "similarity_threshold", [1e-9, 1], [0, 1.01]),
    (
        SelectionRule,
        {"name": "toxicity", "lt": 1, "action": "cap"},
        "kept_share",
        [1e-9, 0.999],
        [-0.1, 0, 1],
    ),
    (SplitConfig, {"holdout_share": 0}, "validation_share", [1e-9, 0.999], [0, 1]),
    (SplitConfig, {"validation_share": 0.001}, "holdout_share", [0, 0.998], [-0.1, 0.999]),
]


@pytest.mark.parametrize(
    ("config", "other_settings", "name", "valid", "invalid"),
    LIMITS,
    ids=[f"{c.__name__}-{n}" for c, _, n, *_ in LIMITS],
)
def test_settings_are_accepted_up_to_their_limits_only(
    config, other_settings, name, valid, invalid
):
    for value in valid:
        assert getattr(config(**other_settings, **{name: value}), name) == value
    for value in invalid:
        with pytest.raises(ValidationError):
            config(**other_settings, **{name: value})


@pytest.mark.parametrize("config", CONFIGS)
def test_the_defaults_are_valid_settings(config):
    assert config.model_validate(config().model_dump()) == config()
