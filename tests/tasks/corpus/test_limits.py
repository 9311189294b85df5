"""Settings of the corpus stages at their limits: shares are shares, counts are not negative, and
what is least makes sense."""

import pytest
from pydantic import ValidationError

from tasks.corpus.contamination import ContaminationConfig, EvaluationSet
from tasks.corpus.deduplicate_near import DeduplicateNearConfig
from tasks.corpus.evaluate_curation import CurationEvaluationConfig
from tasks.corpus.find_repeats import RepeatsConfig
from tasks.corpus.identities import IdentitiesConfig
from tasks.corpus.language import LanguageConfig
from tasks.corpus.plant_canaries import PlantCanariesConfig
from tasks.corpus.profile import ProfileConfig
from tasks.corpus.quality import QualityConfig
from tasks.corpus.removal_effects import RemovalEffectsConfig
from tasks.corpus.score_toxicity import ScoreToxicityConfig
from tasks.corpus.select import SelectConfig, SelectionRule
from tasks.corpus.split import SplitConfig
from tasks.corpus.toxicity.cascade import CascadeConfig

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

#: A config, what it is given beside, a setting, values at its limits, and values beyond.
LIMITS = [
    (CascadeConfig, {}, "clears_below", [1e-9, 1], [0, 1.01]),
    (CascadeConfig, {}, "threshold", [1e-9, 1], [0, 1.01]),
    (CascadeConfig, {}, "recall", [1e-9, 0.999], [0, 1]),
    (CascadeConfig, {}, "level", [0.5, 0.999], [0.49, 1]),
    (CascadeConfig, {}, "sample", [1], [0]),
    (ContaminationConfig, {"least": 1}, "words", [1], [0]),
    (ContaminationConfig, {"words": 4}, "least", [1, 4], [0, 5]),
    (EvaluationSet, {"name": "set", "path": "set.csv"}, "fields", [("a",), ("a", "b")], [()]),
    (DeduplicateNearConfig, {"cluster_threshold": 1e-9}, "threshold", [1e-9, 1], [0, 1.01]),
    (DeduplicateNearConfig, {"threshold": 1}, "cluster_threshold", [1e-9, 1], [0, 1.01]),
    (DeduplicateNearConfig, {}, "shingle_length", [1], [0]),
    (DeduplicateNearConfig, {}, "bands", [1], [0]),
    (DeduplicateNearConfig, {}, "rows", [1], [0]),
    (DeduplicateNearConfig, {}, "candidate_limit", [1], [0]),
    (RemovalEffectsConfig, {}, "least", [2], [1]),
    (RemovalEffectsConfig, {}, "shares", [(), (1e-9, 0.999)], [(0.5, 0), (1,)]),
    (RemovalEffectsConfig, {}, "examples", [0], [-1]),
    (RemovalEffectsConfig, {}, "documents", [0], [-1]),
    (RemovalEffectsConfig, {}, "sentences", [0], [-1]),
    (IdentitiesConfig, {}, "lengths", [(), (1,), (1, 2)], [(0,), (2, 2), (2, 1)]),
    (LanguageConfig, {}, "confidence", [0, 1], [-0.01, 1.01]),
    (LanguageConfig, {}, "characters", [1], [0]),
    (PlantCanariesConfig, {}, "canaries", [0], [-1]),
    (PlantCanariesConfig, {}, "passages", [0], [-1]),
    (PlantCanariesConfig, {}, "records", [0], [-1]),
    (PlantCanariesConfig, {}, "digits", [6], [5]),
    (ProfileConfig, {}, "length_classes", [(), (1,), (1, 2)], [(0,), (2, 2), (2, 1)]),
    (ProfileConfig, {}, "values", [1], [0]),
    (ProfileConfig, {}, "window", [1], [0]),
    (QualityConfig, {}, "short_line", [0], [-1]),
    (CurationEvaluationConfig, {}, "near", [1e-9, 1], [0, 1.01]),
    (
        SelectionRule,
        {"name": "toxicity", "lt": 1, "action": "cap"},
        "share",
        [1e-9, 0.999],
        [-0.1, 0, 1],
    ),
    (ScoreToxicityConfig, {}, "too_short", [0], [-1]),
    (SplitConfig, {"holdout": 0}, "validation", [1e-9, 0.999], [0, 1]),
    (SplitConfig, {"validation": 0.001}, "holdout", [0, 0.998], [-0.1, 0.999]),
]


@pytest.mark.parametrize(
    ("config", "beside", "name", "good", "bad"),
    LIMITS,
    ids=[f"{c.__name__}-{n}" for c, _, n, *_ in LIMITS],
)
def test_a_setting_goes_as_far_as_its_limits_and_no_further(config, beside, name, good, bad):
    for value in good:
        assert getattr(config(**beside, **{name: value}), name) == value
    for value in bad:
        with pytest.raises(ValidationError):
            config(**beside, **{name: value})


@pytest.mark.parametrize("config", CONFIGS)
def test_the_defaults_are_settings_that_could_be_given(config):
    assert config.model_validate(config().model_dump()) == config()
