"""Rules of a policy about what does not exist are refused before a model is asked."""

import pytest

from flows.config import load
from flows.rules import check_policy, check_slices
from tasks.audits.catalogue import ASK, PROBES
from tasks.contract import UsageError, external
from tests.flows.conftest import Hallmark
from tests.tasks.audits.conftest import gpt2_folder, own_folder  # noqa: F401

RULE = {"lt": 0.9}


def config_of(**rule):
    bound = "".join(f", {name}={value!r}" for name, value in (RULE | rule).items())
    return load("smoke", [f"policy.rules.r={{{bound[2:]}}}"])


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"audit": "bias", "metric": "preference", "slice": "race"},
         r"r\.slice: preference has no slice 'race'; it has '' and slices by alike, category"),
        ({"audit": "bias", "metric": "preference", "slice": "categry=race"}, "no slice 'categry=r"),
        ({"audit": "bias", "metric": "ties", "slice": "category=race"}, "no slice.*; it has ''$"),
        ({"audit": "toxicity", "metric": "toxicity_probability", "slice": "prompted, k=26"},
         r"did you mean prompted, k=\d+"),
        ({"audit": "toxicity", "metric": "scorer_kappa"}, "a further scorer of toxicity"),
        ({"audit": "toxicity", "metric": "toxic_share"}, "labelled texts, audit_toxicity.labelled"),
        ({"audit": "toxicity", "metric": "repeated_prompts", "slice": "k=1"}, "it has ''$"),
        ({"audit": "membership", "metric": "auc", "slice": "score=los"}, "no slice 'score=los'"),
        ({"audit": "capability", "metric": "bits_per_byte", "slice": "models"},
         r"no slice 'models' \(did you mean model\?\); it has 'model', 'bigram'"),
        ({"audit": "capability", "metric": "cloze_accuracy", "slice": "model"}, "it has ''$"),
    ],
)  # fmt: skip
def test_what_the_settings_rule_out_is_refused_before_anything_runs(rule, said):
    with pytest.raises(UsageError, match=said):
        check_policy(config_of(**rule))


@pytest.mark.parametrize(
    "rule",
    [
        {"audit": "bias", "metric": "preference"},
        {"audit": "bias", "metric": "preference", "slice": "category=race"},
        {"audit": "bias", "metric": "preference", "slice": "seen=False"},
        {"audit": "toxicity", "metric": "repeated_prompts", "slice": ""},
        {"audit": "capability", "metric": "bits_per_byte", "slice": "model, source=s"},
        {"audit": "capability", "metric": "agreement_accuracy", "slice": "model, distance=3"},
        {"audit": "extraction", "metric": "extractable", "slice": "passage, copies=4, k=8"},
        {"audit": "counterfactual", "metric": "toxicity_difference", "slice": "gender, women"},
    ],
)
def test_what_may_exist_is_not_refused(rule):
    check_policy(config_of(**rule))


def test_a_slice_without_items_is_refused_once_requests_are_built(own_folder, session):  # noqa: F811
    config = config_of(audit="bias", metric="preference", slice="category=gende")
    checkpoint = external(own_folder, "checkpoint")
    asked = ASK["bias"](checkpoint, None, None, None, config.audit_bias)
    with pytest.raises(UsageError, match=r"'category=gende' \(did you mean category=gender"):
        check_slices(config, PROBES, {"bias": asked})
    for name in ("category=religion", "alike=True", ""):
        fitting = config_of(audit="bias", metric="preference", slice=name)
        check_slices(fitting, PROBES, {"bias": asked})
    check_slices(config, PROBES, {})  # the audit does not run


def test_an_audit_is_refused_before_the_model_is_asked(gpt2_folder, tmp_path):  # noqa: F811
    hallmark = Hallmark(tmp_path / "store")
    rule = "policy.rules.r={audit='bias', metric='preference', slice='category=rac', lt=0.9}"
    said = hallmark("audit", str(gpt2_folder), "--only", "bias", "--set", rule, code=2).stderr
    assert "policy.rules.r.slice: preference has no slice 'category=rac'" in said
    made = {folder.name for folder in (tmp_path / "store" / "artifacts").iterdir()}
    assert "ask_bias" in made and "respond" not in made
