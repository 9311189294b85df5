"""A config can name a file of policy rules."""

import pytest

from hallmark.flows.config import load_config
from hallmark.flows.config_files import POLICY_FOLDER
from hallmark.flows.policy_rule_checks import check_policy_rules
from hallmark.tasks.audits.audit_descriptions import RISKS
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import UsageError

RULE = "audit = 'bias'\nmetric = 'stereotype_preference'\n"
RULES = f"[policy.rules.a]\n{RULE}lt = 0.6\n[policy.rules.b]\n{RULE}lt = 0.7\n"
SMOKE_RULE = "policy.rules.a={audit='bias',metric='stereotype_preference',lt=0.8}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_rules_of_the_config_replace_those_of_the_file(folder):
    (folder / "rules.toml").write_text(RULES)
    policy = load_config("smoke", ["policy.file=rules.toml", SMOKE_RULE]).policy
    assert {name: rule.lt for name, rule in policy.rules.items()} == {"a": 0.8, "b": 0.7}
    assert policy.file is None


def test_a_path_in_a_config_starts_at_its_folder(folder, monkeypatch):
    (folder / "rules.toml").write_text(RULES)
    config = '[policy]\nfile = "rules.toml"\n[[ingest.sources]]\nkind = "town"\ndocuments = 9\n'
    (folder / "my.toml").write_text('name = "my"\n' + config)
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    assert {*load_config("../my.toml").policy.rules} == {"a", "b"}


def test_the_recorded_rules_do_not_depend_on_the_file(folder):
    (folder / "rules.toml").write_text(RULES)
    config = load_config("smoke", ["policy.file=rules.toml"])
    (folder / "rules.toml").unlink()
    assert load_config(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "",
            r"policy\.file: rules\.toml must contain only \[policy\.rules\.NAME\] sections",
        ),
        ("policy = 3", r"must contain only \[policy"),
        ("[policy]\nprevious = 'latest'", r"must contain only \[policy"),
        ("[policy.rules]", r"must contain only \[policy"),
        ("[policy]\nrules = 3", r"must contain only \[policy"),
        (f"name = 'x'\n{RULES}", r"must contain only \[policy"),
        (f"[policy]\nprevious = 'x'\n{RULES}", r"must contain only \[policy"),
        ("[policy", r"policy rules\.toml: the file is not valid TOML"),
        (f"[policy.rules.a]\n{RULE}", r"config smoke: policy\.rules\.a: needs exactly one of"),
    ],
)
def test_a_file_without_valid_rules_is_refused(folder, text, problem):
    (folder / "rules.toml").write_text(text)
    with pytest.raises(UsageError, match=problem):
        load_config("smoke", ["policy.file=rules.toml"])


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "policy.file=exmaple",
            r"no policy 'exmaple' \(did you mean example\?\); specify the path",
        ),
        ("policy.file=no.toml", r"policy no\.toml: the file cannot be read"),
        ("policy.file=3", r"policy\.file"),
        ("policy=3", "policy"),
        ("policy={file='example',rules=3}", r"policy\.rules"),
    ],
)
def test_a_wrong_name_is_reported(folder, override, problem):
    with pytest.raises(UsageError, match=problem):
        load_config("smoke", [override])


@pytest.mark.parametrize("config", ["smoke", "demo", "hub"])
def test_the_example_has_rules_for_each_risk_and_fits_every_config(config):
    assert [path.name for path in POLICY_FOLDER.iterdir()] == ["example.toml"]
    settings = load_config(config, ["policy.file=example"])
    check_policy_rules(settings)
    rules = settings.policy.rules
    risks = {AUDIT_DESCRIPTIONS[rule.audit].risk for rule in rules.values()}
    assert risks | {"personal_data"} == {*RISKS}  # planted records show it, in another audit
