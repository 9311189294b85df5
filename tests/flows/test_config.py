"""Every config that comes with Hallmark, and what overrides do."""

import pytest

from flows.config import ROOT_KEYS, Config, load, names
from tasks.contract import UsageError


@pytest.mark.parametrize("name", ["demo", "smoke", "hub"])
def test_every_config_is_valid_and_bears_its_name(name):
    assert name in names()
    assert load(name).name == name


def test_a_recorded_config_loads_to_the_same_tree():
    config = load("demo")
    assert load(config.model_dump(mode="json")) == config


def test_a_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        load("smoke").workers = 3


def test_overrides_reach_any_depth_with_toml_values():
    config = load("smoke", ["pretrain.train.steps=7", "workers=1", "store=some/where"])
    assert (config.pretrain.train.steps, config.workers, config.store) == (7, 1, "some/where")


def test_every_section_is_a_stage_and_every_stage_with_settings_has_a_section():
    from flows import pipeline  # noqa: F401
    from tasks.contract import STAGES

    sections = set(Config.model_fields) - set(ROOT_KEYS)
    ours = {name for name, stage in STAGES.items() if not stage.body.__module__.startswith("tests")}
    ours -= {"evaluate_detectors"}  # has the settings of find_personal_data
    assert sections - {"cut_repeats", "deduplicate_masked", "select_scored"} == ours


def test_several_mistakes_are_told_together():
    with pytest.raises(UsageError) as error:
        load("smoke", ["workers=-1", "scrub.x=2", "split.validation=2.0"])
    for place in ("workers", "scrub.x", "split"):
        assert place in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["pretrain.train.objective=mlm"], "set both to the same"),
        (
            ["pretrain.train.objective=mlm", "train_tokenizer.objective=mlm"],
            "trains the architecture encoder, and pretrain.model.architecture is decoder",
        ),
        (["pretrain.model.architecture=encoder"], "causal trains the architecture decoder"),
    ],
)
def test_an_objective_wants_its_tokens_and_its_architecture(overrides, words):
    with pytest.raises(UsageError, match=words):
        load("smoke", overrides)
