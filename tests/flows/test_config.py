"""Bundled configs, overrides and the consistency checks of configs."""

import re
from dataclasses import replace

import pytest

from hallmark.flows.config import ROOT_KEYS, Config, fill_missing_sections, load_config
from hallmark.flows.config_files import list_bundled_configs
from hallmark.model.interchange.transformers_checkpoint import find_matching_family
from hallmark.tasks.contract import UsageError
from tests.run_requests import resolve


@pytest.mark.parametrize("name", ["demo", "smoke", "hub"])
def test_every_bundled_config_is_valid_and_has_its_file_name(name):
    assert name in list_bundled_configs()
    assert load_config(name).name == name


def test_canaries_are_planted_only_on_request_as_in_the_demo():
    """The model of a user must not learn 2,720 invented texts by default."""
    own = {"name": "mine", "ingest": {"sources": [{"kind": "text", "name": "a", "path": "a"}]}}
    assert (
        not load_config(own).plant_canaries.enabled
        and not load_config("hub").plant_canaries.enabled
    )
    assert (
        load_config("demo").plant_canaries.enabled and load_config("smoke").plant_canaries.enabled
    )


def test_the_demo_model_has_the_architecture_of_llama():
    """So transformers can load the exported model."""
    shape = load_config("demo").pretrain.model
    assert (
        find_matching_family(replace(shape, vocab_size=512, context=64)).model_class
        == "LlamaForCausalLM"
    )


def test_the_cards_of_the_demo_state_no_size_that_curation_may_change():
    config = load_config("demo")
    for card in (config.model_card, config.datasheet):
        stated = [text for text in card.model_dump().values() if isinstance(text, str)]
        assert stated and not any(re.search(r"\d+ [kMG]i?B\b", text) for text in stated)


def test_a_recorded_config_loads_to_the_same_tree():
    config = load_config("demo")
    assert load_config(config.model_dump(mode="json")) == config


def test_cards_without_a_title_are_called_like_the_config():
    config = load_config("smoke", ["name=letters"])
    assert (config.datasheet.title, config.model_card.title) == ("letters", "letters")
    config = load_config("smoke", ["name=letters", "model_card.title=Letter writer"])
    assert (config.datasheet.title, config.model_card.title) == ("letters", "Letter writer")
    config = load_config("smoke", ["name=letters", "datasheet.licence=MIT"])
    assert (config.datasheet.title, config.datasheet.licence) == ("letters", "MIT")


def test_a_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        load_config("smoke").workers = 3


def test_overrides_reach_any_depth_with_toml_values():
    config = load_config("smoke", ["pretrain.train.steps=7", "workers=1", "store=some/where"])
    assert (config.pretrain.train.steps, config.workers, config.store) == (7, 1, "some/where")


def test_every_section_is_a_stage_and_every_stage_with_settings_has_a_section():
    from hallmark.flows.flow_registry import register_all_stages
    from hallmark.flows.study_config import StudyConfig
    from hallmark.tasks.audits.catalogue import REQUEST_STAGES
    from hallmark.tasks.contract import STAGES

    register_all_stages()
    sections = set(Config.model_fields) - set(ROOT_KEYS)
    ours = {name for name, stage in STAGES.items() if stage.body.__module__.startswith("hallmark.")}
    # These stages have the settings of find_personal_data and of deduplicate_near.
    ours -= {"evaluate_detectors", "evaluate_near_duplicates"}
    ours -= {"capability_baselines"}  # has some of those of audit_capability
    ours -= {"record_lexicons"}  # has some of those of identities
    ours -= {"reconstruct_reads"}  # has those of the training of a checkpoint
    ours -= {f"build_requests_{name}" for name in REQUEST_STAGES}  # have those of their audits
    ours -= {
        "respond_untrained",
        "respond_untrained_models",
        "score_with_reference",
        "missing_audits",
        "compare_with_previous",
    }  # have those of respond; a run fills its own
    ours -= {
        "pad_removed_documents",
        "find_source_documents",
        "compare_arms",
        "removal_experiment_card",
    }  # prove sets theirs
    of_study = {
        "synthetic_corpus",
        "seal_answer_key",
        "attribute_texts",
        "judge_candidates",
        "error_rates",
        "study_card",
    }
    assert {"synthetic_corpus", "attribute_texts", "study_card"} <= {*StudyConfig.model_fields}
    ours -= of_study
    assert sections - {"cut_repeats", "cut_toxic", "deduplicate_redacted", "select_scored"} == ours


def test_a_config_without_a_corpus_is_completed_from_a_recorded_one():
    recorded = load_config("smoke").model_dump(mode="json")
    title = {"model_card": {"title": "mine"}}
    completed = fill_missing_sections(title, recorded)
    assert load_config(completed, source_file="my.toml") == load_config(recorded | title)
    own = {"audit_bias": {"resamples": 200}}
    with pytest.raises(UsageError, match=r"^config my\.toml: audit_bias\.resamples: there is no"):
        load_config(fill_missing_sections(own, recorded), source_file="my.toml")
    with pytest.raises(UsageError, match=r"^config of the run: audit_bias\.resamples: there is no"):
        load_config(recorded, ["audit_bias.resamples=200"])


def test_several_mistakes_are_reported_together():
    with pytest.raises(UsageError) as error:
        load_config("smoke", ["workers=-1", "redact_spans.x=2", "split.validation_share=2.0"])
    for place in ("workers", "redact_spans.x", "split"):
        assert place in str(error.value)


def test_a_too_long_warmup_is_refused_with_a_suggestion():
    """The default warm-up is longer than the training."""
    own = {"name": "mine", "ingest": {"sources": [{"kind": "text", "name": "a", "path": "a"}]}}
    with pytest.raises(UsageError) as error:
        load_config(own, ["pretrain.train.steps=30"])
    assert str(error.value).endswith(
        "pretrain.train: warmup_steps is 50, but steps is only 30: set warmup_steps "
        "to 30 or less, or increase steps."
    )
    load_config(own, ["pretrain.train.steps=30", "pretrain.train.warmup_steps=30"])


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["pretrain.train.objective=mlm"], "set both to the same value"),
        (
            ["pretrain.train.objective=mlm", "train_tokenizer.objective=mlm"],
            "requires the encoder architecture, but pretrain.model.architecture is decoder",
        ),
        (["pretrain.model.architecture=encoder"], "causal requires the decoder architecture"),
    ],
)
def test_an_objective_needs_its_tokens_and_its_architecture(overrides, expected):
    with pytest.raises(UsageError, match=expected):
        load_config("smoke", overrides)


def test_matches_shorter_than_the_trace_are_refused():
    with pytest.raises(UsageError, match="set min_verbatim_tokens to 8 or more"):
        load_config("demo", ["audit_extraction_attack.min_verbatim_tokens=7"])
    load_config("demo", ["audit_extraction_attack.min_verbatim_tokens=8"])


def test_there_must_be_enough_sentinels_for_the_context():
    spans = [f"{name}.objective=span_corruption" for name in ("pretrain.train", "train_tokenizer")]
    spans += ["pretrain.model.architecture=encoder_decoder"]
    load_config("smoke", [*spans, "pack.context=649"])
    long = [*spans, "pack.context=1024"]
    with pytest.raises(
        UsageError,
        match=r"hides 51 spans in a sequence of pack\.context = 1024 tokens, .*; set .* to 51",
    ):
        load_config("smoke", long)
    load_config("smoke", [*long, "train_tokenizer.sentinels=51"])
    load_config("smoke", ["pack.context=1024"])


def test_evaluation_sets_without_a_rule_are_refused(tmp_path):
    sets = f'contamination.evaluation_sets=[{{name = "x", path = "{tmp_path}/x.csv"}}]'
    assert load_config("smoke", [sets]).contamination.evaluation_sets
    other = "select_scored.rules={toxicity = {lt = 0.5}}"
    with pytest.raises(UsageError, match=r"add \[select_scored\.rules\.contamination\]"):
        load_config("smoke", [sets, other])
    load_config("smoke", [sets, 'select_scored.rules={contamination = {lt = 1, action = "tag"}}'])


def test_a_preferred_source_must_exist(tmp_path):
    """A misspelled name is refused in a file, but not in a recorded config."""
    there = {"store": str(tmp_path)}
    kept = ["town", "documentation", "documentation/prefect"]
    for section in ("deduplicate", "deduplicate_near", "find_repeats", "deduplicate_redacted"):
        made = resolve("demo", [f"{section}.preferred_sources={kept}"], **there).config
        assert getattr(made, section).preferred_sources == tuple(kept)
        wrong = f'{section}.preferred_sources=["town", "documentation/pref"]'
        with pytest.raises(UsageError) as refused:
            resolve("demo", [wrong], **there)
        message = str(refused.value)
        assert f"{section}.preferred_sources: there is no source 'documentation/pref'" in message
        assert "choose from: documentation, documentation/networkx" in message
        recorded = load_config("demo", [wrong]).model_dump(mode="json")
        assert resolve(recorded, [], **there).config == load_config(recorded)


def test_an_action_for_repeats_belongs_to_cut_repeats():
    assert (
        load_config("smoke", ['cut_repeats.actions_by_type={REPEAT = "drop"}']).cut_repeats.action
        == "keep"
    )
    assert (
        load_config("smoke", ['cut_repeats.action="keep"']).cut_repeats
        == load_config("smoke").cut_repeats
    )


@pytest.mark.parametrize(
    ("until", "overrides", "expected"),
    [
        ("cut_repeats", ["find_repeats.enabled=false"], r"set find_repeats\.enabled=true"),
        ("cut_toxic", [], r"set find_toxic_spans\.enabled=true"),
        (
            "evaluate_curation",
            ['ingest.sources=[{kind="text", name="a", path="a"}]'],
            "has no source of the 'town' kind",
        ),
        ("no_stage", [], "choose one of: ingest"),
        ("audit_bbq", [], "the audit needs files that you must provide; set audit_bbq.items"),
        ("trace", [], "every audit has a stage of this kind"),
    ],
)
def test_a_run_cannot_stop_after_a_skipped_stage(tmp_path, until, overrides, expected):
    with pytest.raises(UsageError, match=expected):
        resolve("smoke", overrides, until, store=str(tmp_path))


OWN = {"name": "mine", "ingest": {"sources": [{"kind": "text", "name": "a", "path": "a"}]}}


def actions(config, section="select_scored"):
    return {rule.name: rule.action for rule in getattr(config, section).rules}


def test_the_default_action_over_toxicity_depends_on_the_scorer():
    """The embedded scorer reacts to words: it scores harmless mentions of gay people as toxic."""
    assert actions(load_config(OWN)) == {"toxicity": "tag", "contamination": "remove"}
    neural = ["score_toxicity.scorer.kind=detoxify"]
    assert actions(load_config(OWN, neural)) == {"toxicity": "remove", "contamination": "remove"}
    assert actions(load_config("hub"))["toxicity"] == "remove"
    cascade = [*neural, "score_toxicity.cascade={toxicity_threshold = 0.8}"]
    assert actions(load_config(OWN, cascade))["toxicity"] == "remove"  # Detoxify decides


def test_a_toxicity_rule_without_an_action_gets_the_default_of_the_scorer():
    rules = "select_scored.rules={toxicity = {lt = 0.5}, rude = {signal = 'insult', lt = 0.9}}"
    assert actions(load_config(OWN, [rules])) == {"toxicity": "tag", "rude": "tag"}
    neural = load_config(OWN, [rules, "score_toxicity.scorer.kind=detoxify"])
    assert actions(neural) == {"toxicity": "remove", "rude": "remove"}
    other = "select.rules={word_count = {ge = 5}}"
    assert actions(load_config(OWN, [other]), "select") == {"word_count": "remove"}


@pytest.mark.parametrize("kind", ["linear", "detoxify"])
@pytest.mark.parametrize("action", ["remove", "tag"])
def test_a_configured_action_is_kept(action, kind):
    rules = f"select_scored.rules={{toxicity = {{lt = 0.8, action = '{action}'}}}}"
    config = load_config(OWN, [rules, f"score_toxicity.scorer.kind={kind}"])
    assert actions(config) == {"toxicity": action}
    assert actions(load_config(config.model_dump(mode="json"))) == {"toxicity": action}


def test_the_demo_removes_and_smoke_uses_the_default_action():
    assert load_config("demo").score_toxicity.scorer.kind == "linear"
    assert actions(load_config("demo")) == {"toxicity": "remove", "contamination": "remove"}
    assert actions(load_config("smoke")) == {"toxicity": "tag", "contamination": "remove"}
