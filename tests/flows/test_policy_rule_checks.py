"""Policy rules about metrics or slices that do not exist are refused before the audits."""

import json
import tomllib

import pytest

from hallmark.flows.config import load_config
from hallmark.flows.policy_rule_checks import check_policy_rules, check_rule_slices
from hallmark.tasks.audits.catalogue import METRICS_BY_AUDIT, REQUEST_STAGES
from hallmark.tasks.audits.probes.bold import BoldConfig
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.audits.slice_tags import format_slice_as_toml
from hallmark.tasks.contract import UsageError, folder_to_artifact
from tests.flows.conftest import Hallmark
from tests.tasks.audits.conftest import gpt2_folder, own_folder  # noqa: F401

RULE = {"lt": 0.9}


def config_of(**rule):
    settings = ", ".join(
        f"{name} = {format_slice_as_toml(value) if name == 'slice' else repr(value)}"
        for name, value in (RULE | rule).items()
    )
    return load_config("smoke", [f"policy.rules.r={{{settings}}}"])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            {"audit": "bias", "metric": "stereotype_preference", "slice": {"part": "race"}},
            r'r\.slice: stereotype_preference has no slice {part = "race"}; it has {} and slices '
            r"by category, equal_token_counts",
        ),
        (
            {"audit": "bias", "metric": "stereotype_preference", "slice": {"categry": "race"}},
            'no slice {categry = "r',
        ),
        (
            {"audit": "bias", "metric": "tie_share", "slice": {"category": "race"}},
            "no slice.*; it has {}$",
        ),
        (
            {
                "audit": "toxicity",
                "metric": "toxicity_probability",
                "slice": {"prompt_subset": "prompted", "draw_count": "26"},
            },
            r'did you mean {prompt_subset = "prompted", draw_count = "\d+',
        ),
        ({"audit": "toxicity", "metric": "scorer_kappa"}, "a second toxicity scorer"),
        (
            {"audit": "toxicity", "metric": "toxic_share"},
            r"labelled texts \(audit_toxicity.labelled_texts\)",
        ),
        (
            {"audit": "toxicity", "metric": "repeated_prompts", "slice": {"draw_count": "1"}},
            "it has {}$",
        ),
        (
            {"audit": "membership", "metric": "auc", "slice": {"score": "los"}},
            'no slice {score = "los"}',
        ),
        (
            {"audit": "capability", "metric": "bits_per_byte", "slice": {"part": "models"}},
            r'{part = "models"} \(did you mean {part = "model"}\?\); it has {part = "model"}, {',
        ),
        (
            {"audit": "capability", "metric": "cloze_accuracy", "slice": {"part": "model"}},
            "it has {}$",
        ),
        (
            {"audit": "bold", "metric": "mean_toxicity", "slice": {"grup": "women"}},
            'no slice {grup = "women"}; it has {} and slices by domain, group_name$',
        ),
        (
            {"audit": "bold", "metric": "toxicity_difference", "slice": {"group_name": "women"}},
            'no slice {group_name = "women"}; it has slices by domain, group_name$',
        ),
        (
            {
                "audit": "counterfactual",
                "metric": "toxicity_difference",
                "slice": {"part": "women"},
            },
            'no slice {part = "women"}',
        ),
        (
            {
                "audit": "bias",
                "metric": "stereotype_preference",
                "slice": {"category": "race", "equal_token_counts": "True"},
            },
            'no slice {category = "race", equal_token_counts = "True"}',
        ),
        (
            {"audit": "misuse", "metric": "nonempty_share", "slice": {"categry": "a"}},
            'no slice {categry = "a"}; it has {} and slices by category$',
        ),
        (
            {
                "audit": "extraction",
                "metric": "extractable_slope_by_prefix",
                "slice": {"kind": "record"},
            },
            r'no slice {kind = "record"} \(did you mean .*; it has {kind = "passage"}$',
        ),
        (
            {
                "audit": "extraction_attack",
                "metric": "verbatim_share",
                "slice": {"sampler": "topk"},
            },
            r'no slice {sampler = "topk"} \(did you mean {sampler = "top',
        ),
        (
            {
                "audit": "extraction",
                "metric": "extractable",
                "slice": {"in_training_text": "False"},
            },
            '{in_training_text = "False"}',
        ),
    ],
)
def test_rules_that_the_settings_exclude_are_refused_early(rule, expected):
    with pytest.raises(UsageError, match=expected):
        check_policy_rules(config_of(**rule))


PREFERENCE = {"audit": "bias", "metric": "stereotype_preference"}
BBQ_SCORE = {"audit": "bbq", "metric": "bias_score_ambiguous"}
STEREOSET = {"audit": "stereoset", "metric": "stereotype_score_intrasentence"}
NATS = {"audit": "bias", "metric": "log_likelihood_difference"}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            PREFERENCE | {"lt": 50},
            r"r\.lt: stereotype_preference ranges from 0 to 1, so every model passes the rule with "
            r"the bound 50; choose another bound \(0\.1 is 10 %\)$",
        ),
        (PREFERENCE | {"le": 1.0}, "every model passes the rule with the bound 1; choose an"),
        (PREFERENCE | {"ge": 0}, "every model passes"),
        (PREFERENCE | {"gt": -0.1}, "every model passes"),
        (PREFERENCE | {"lt": 0}, "no model can pass"),
        (PREFERENCE | {"le": -1}, "no model can pass"),
        (PREFERENCE | {"gt": 1}, "no model can pass"),
        (PREFERENCE | {"ge": 50}, r"no model can pass the rule.*\(0\.1 is 10 %\)$"),
        (PREFERENCE | {"not_worse_than_previous_by": 5}, r"r\.not_worse_than_previous_by: .*every"),
        (BBQ_SCORE | {"ge": -1}, "bias_score_ambiguous ranges from -1 to 1, so every model passes"),
        (
            STEREOSET | {"lt": 101},
            "from 0 to 100, so every model .* 101; choose another bound$",
        ),
    ],
)
def test_bounds_that_no_model_or_every_model_meets_are_refused(rule, expected):
    settings = ", ".join(f"{name} = {value!r}" for name, value in rule.items())
    with pytest.raises(UsageError, match=expected):
        check_policy_rules(load_config("smoke", [f"policy.rules.r={{{settings}}}"]))


@pytest.mark.parametrize(
    "rule",
    [
        PREFERENCE | {"lt": 1},
        PREFERENCE | {"gt": 0},
        PREFERENCE | {"le": 0},
        PREFERENCE | {"ge": 1},
        PREFERENCE | {"not_worse_than_previous_by": 1},
        BBQ_SCORE | {"lt": 0},
        STEREOSET | {"lt": 60},
        NATS | {"lt": -99},
    ],
)
def test_bounds_within_the_range_of_a_metric_are_accepted(rule):
    settings = ", ".join(f"{name} = {value!r}" for name, value in rule.items())
    check_policy_rules(load_config("smoke", [f"policy.rules.r={{{settings}}}"]))


@pytest.mark.parametrize(
    "rule",
    [
        {"audit": "bias", "metric": "stereotype_preference"},
        {"audit": "bias", "metric": "stereotype_preference", "slice": {"category": "race"}},
        {
            "audit": "bias",
            "metric": "stereotype_preference",
            "slice": {"in_training_text": "False"},
        },
        {"audit": "toxicity", "metric": "repeated_prompts", "slice": {}},
        {
            "audit": "capability",
            "metric": "bits_per_byte",
            "slice": {"part": "model", "source": "s"},
        },
        {
            "audit": "capability",
            "metric": "agreement_accuracy",
            "slice": {"part": "model", "distance": "3"},
        },
        {
            "audit": "extraction",
            "metric": "extractable",
            "slice": {"kind": "passage", "copies": "4", "prefix_tokens": "8"},
        },
        {
            "audit": "counterfactual",
            "metric": "toxicity_difference",
            "slice": {"domain": "gender", "group_name": "women"},
        },
        {
            "audit": "bold",
            "metric": "mean_toxicity",
            "slice": {"domain": "gender", "group_name": "women", "part": "planted text included"},
        },
        {"audit": "extraction", "metric": "exposure_difference", "slice": {"copies": "64-0"}},
        {"audit": "misuse", "metric": "label_share", "slice": {"category": "c", "label": "rude"}},
        {"audit": "bold", "metric": "empty_prompts", "slice": {}},
    ],
)
def test_possible_rules_are_accepted(rule):
    check_policy_rules(config_of(**rule))


@pytest.mark.parametrize(
    ("audit", "metric", "other"),
    [
        ("stereoset", "icat_score_intrasentence", "language_modelling_score_intrasentence"),
        ("associations", "smallest_detected_trait_share", "association_strength"),
        ("counterfactual", "regard_distance", "regard_difference"),
        ("bold", "empty_continuations", "toxic_share"),
        ("toxicity", "threshold_ties", "toxicity_probability"),
        ("extraction_attack", "longest_training_run", "verbatim_share"),
        ("misuse", "unmatched_ratings", "human_rating"),
    ],
)
def test_a_metric_that_never_has_an_interval_is_refused(audit, metric, other):
    with pytest.raises(UsageError) as refused:
        check_policy_rules(config_of(audit=audit, metric=metric))
    sentence, _, named = str(refused.value).partition(" that has an interval: ")
    assert sentence == (
        f"policy.rules.r.metric: {metric} never has a confidence interval, so no rule about it can "
        f"pass; choose a metric of the {audit} audit"
    )
    assert other in named.split(", ") and metric not in named.split(", ")
    for name in named.split(", "):
        assert name in METRICS_BY_AUDIT[audit]


@pytest.mark.parametrize("name", ["part", "\npart", "", 'a"b', "a b", "größe", "a-b_1"])
def test_a_slice_is_formatted_as_toml_in_one_line(name):
    line = format_slice_as_toml({name: 'x"\n', "copies": "4"})
    assert tomllib.loads(f"slice = {line}") == {"slice": {name: 'x"\n', "copies": "4"}}
    assert "\n" not in line and ("part = " in line or name != "part")


def test_a_slice_without_items_is_refused_once_requests_are_built(own_folder, session):  # noqa: F811
    config = config_of(audit="bias", metric="stereotype_preference", slice={"category": "gende"})
    checkpoint = folder_to_artifact(own_folder, "checkpoint")
    asked = REQUEST_STAGES["bias"](checkpoint, None, None, None, config.audit_bias)
    with pytest.raises(UsageError, match=r'gende"} \(did you mean {category = "gender"'):
        check_rule_slices(config, PROBES, {"bias": asked})
    for tags in ({"category": "religion"}, {"equal_token_counts": "True"}, {}):
        fitting = config_of(audit="bias", metric="stereotype_preference", slice=tags)
        check_rule_slices(fitting, PROBES, {"bias": asked})
    check_rule_slices(config, PROBES, {})  # the audit does not run


def test_groups_are_those_of_the_prompts_once_requests_are_built(own_folder, session, tmp_path):  # noqa: F811
    written = {"women": {"She": ["She was a"]}, "men": {"He": ["He was a"]}}
    (tmp_path / "gender_prompt.json").write_text(json.dumps(written))
    (tmp_path / "trade_prompt.json").write_text(json.dumps({"bakers": {"A": ["A was"]}}))
    settings = BoldConfig(prompts=sorted(tmp_path.glob("*.json")), max_new_tokens=4)
    asked = REQUEST_STAGES["bold"](
        folder_to_artifact(own_folder, "checkpoint"), None, None, None, settings
    )
    bakers = {"domain": "trade", "group_name": "bakers"}
    for tags in (
        {"domain": "gender", "group_name": "men"},
        {"part": "planted text included", **bakers},  # in any order
    ):
        config = config_of(audit="bold", metric="toxicity_difference", slice=tags)
        check_rule_slices(config, PROBES, {"bold": asked})
    for name in ("mn", "bakers"):
        tags = {"domain": "gender", "group_name": name}
        config = config_of(audit="bold", metric="toxicity_difference", slice=tags)
        expected = f"no slice {format_slice_as_toml(tags)}.*{format_slice_as_toml(bakers)}"
        with pytest.raises(UsageError, match=expected):
            check_rule_slices(config, PROBES, {"bold": asked})


def test_an_audit_is_refused_before_the_model_is_asked(gpt2_folder, tmp_path):  # noqa: F811
    hallmark = Hallmark(tmp_path / "store")
    rule = "policy.rules.r={audit='bias', metric='stereotype_preference', "
    rule += "slice={category='rac'}, lt=0.9}"
    output = hallmark("audit", str(gpt2_folder), "--only", "bias", "--set", rule, code=2).stderr
    assert 'policy.rules.r.slice: stereotype_preference has no slice {category = "rac"}' in output
    made = {folder.name for folder in (tmp_path / "store" / "artifacts").iterdir()}
    assert "build_requests_bias" in made and "respond" not in made
