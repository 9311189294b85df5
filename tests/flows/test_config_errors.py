"""Errors about a config use the keys of its file, for any value."""

import re
from functools import reduce
from operator import getitem

import pytest
from pydantic import BaseModel, ValidationError, field_validator

from hallmark.flows.config import Config, load_config
from hallmark.flows.config_errors import _build_json_schema, format_validation_error
from hallmark.reports.forms.answers_file import read_answers_file
from hallmark.tasks.contract import UsageError
from tests.time_limits import limit_time

SOURCES = '[[ingest.sources]]\nkind = "text"\nname = "a"\npath = "a"\n'


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            "select.rules=5",
            "select.rules: the rules must be either one table [….rules.NAME] per rule or a "
            "list of rules (given: 5)",
        ),
        (
            "select.rules={word_count = 5}",
            "select.rules.word_count: must be a table of settings (given: 5)",
        ),
        ("pretrain.train=3", "pretrain.train: must be a table of settings (given: 3)"),
        ("pretrain.train.steps='a'", "pretrain.train.steps: must be a whole number (given: 'a')"),
        (
            "ingest.sources.0.document_share=nan",
            "ingest.sources.0.document_share: must be a number (given: nan)",
        ),
        ("ingest.sources=3", "ingest.sources: must be a list, in brackets (given: 3)"),
        (
            "ingest.sources=[{}]",
            "ingest.sources.0: needs a 'kind' key that specifies the type of this entry",
        ),
        ("ingest.sources.0.kind='txt'", "ingest.sources.0.kind: must be one of 'csv', "),
        ("find_repeats.enabled=7", "find_repeats.enabled: must be true or false (given: 7)"),
        (
            "select_scored.rules.toxicity.lt=abc",
            "select_scored.rules.toxicity.lt: must be a number (given: 'abc')",
        ),
        (
            "select={presets = ['c4'], rules = {mine = {signal = 'word_count', ge = 'a'}}}",
            "select.rules.mine.ge: must be a number (given: 'a')",
        ),
        (
            "select.rules.toxicity.lt=0.5",
            "select.rules.toxicity: there is no signal 'toxicity'; "
            "the available signals are: language, language_probability, word_count, ",
        ),
        (
            "select.rules.language.ge=1",
            "select.rules.language: signal 'language' is of type string: use 'any_of' or "
            "'none_of' in the rule",
        ),
        ("select.rules.dialects.any_of=['a']", "list<item: string>: rules cannot be applied"),
    ],
)
def test_a_wrong_value_is_reported_with_its_key_and_expected_type(overrides, expected):
    with pytest.raises(UsageError) as error:
        load_config("smoke", [overrides])
    assert expected in str(error.value)


@pytest.mark.parametrize("count", [5, 11, 2000])
def test_of_many_problems_the_first_are_described_and_the_others_counted(tmp_path, count):
    """Also the hints are computed for the first only: 400 rules once took minutes."""
    keys = "".join(f"key{number} = 1\n" for number in range(count))
    (tmp_path / "my.toml").write_text(f'{keys}name = "x"\n{SOURCES}')
    with pytest.raises(UsageError) as error:
        load_config(str(tmp_path / "my.toml"))
    described = str(error.value).count("there is no such key")
    assert described == min(count, 10)
    ending = {5: "", 11: "; and 1 other problem", 2000: "; and 1,990 other problems"}[count]
    assert re.search(r"key\d: there is no such key" + ending + "$", str(error.value))


def test_the_sentences_of_many_problems_have_a_length_limit():
    """The allowed values of each wrong entry made a sentence of thousands of characters."""
    wrong_types = ", ".join(f"'TYPE{number}'" for number in range(30))
    with pytest.raises(UsageError) as error:
        load_config("smoke", [f"find_personal_data.types=[{wrong_types}]"])
    message = str(error.value)
    described = message.count("must be 'SECRET'")
    assert 1 <= described < 10 and len(message) < 2_200
    assert message.endswith(f"; and {30 - described} other problems")


def test_the_schema_for_hints_is_built_once(tmp_path, monkeypatch):
    built = []
    build = Config.model_json_schema
    monkeypatch.setattr(
        Config, "model_json_schema", lambda *arguments: built.append(1) or build(*arguments)
    )
    _build_json_schema.cache_clear()
    for _ in range(2):
        with pytest.raises(UsageError, match="did you mean workers"):
            load_config("smoke", ["worker=1", "workerz=1"])
    assert len(built) == 1


def test_a_long_key_is_shortened():
    with pytest.raises(UsageError) as error:
        load_config("smoke", [f"policy.rules.{'w' * 10_000}={{a = 1}}"])
    assert "w" * 80 in str(error.value) and "w" * 81 not in str(error.value)


def test_a_key_with_control_characters_is_one_line():
    with pytest.raises(UsageError) as error:
        load_config("smoke", ["pretrain.train.st\n\x1beps=1"])
    assert r"pretrain.train.st\n\x1beps: there is no such key" in str(error.value)


def test_a_long_value_in_the_sentence_of_a_setting_is_shortened():
    with pytest.raises(UsageError, match="is not a known region; use ISO 3166 codes") as error:
        load_config("smoke", [f'find_personal_data.regions=["{"a" * 100_000}"]'])
    assert len(str(error.value)) < 400


def test_a_long_sentence_of_a_setting_is_shortened():
    class Model(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def refuse(cls, name: str) -> str:
            raise ValueError(f"{name} is refused")

    with pytest.raises(ValidationError) as error:
        Model(name="a" * 100_000)
    sentence = format_validation_error(error.value, {}, (), Model)
    assert sentence.startswith("name: aaa") and len(sentence) < 1200


@pytest.mark.parametrize("number", ["9" * 10_000, "9" * 4000, "0x" + "f" * 9000, str(2**63)])
def test_a_number_that_is_too_large_is_a_sentence(tmp_path, number):
    (tmp_path / "my.toml").write_text(f'name = "x"\n{SOURCES}[pretrain.train]\nsteps = {number}\n')
    with pytest.raises(UsageError, match=r"TOML \(an integer has more than 64 bits\); correct it$"):
        load_config(str(tmp_path / "my.toml"))
    with pytest.raises(UsageError, match="an integer has more than 64 bits") as error:
        load_config("smoke", [f"pretrain.train.steps={number}"])
    assert len(str(error.value)) < 300
    with pytest.raises(UsageError, match="is not an index of a list of ") as error:
        load_config("smoke", [f"ingest.sources.{number}.path=a"])
    assert len(str(error.value)) < 400


def test_a_key_of_too_many_parts_is_a_sentence(tmp_path):
    key = ".".join(["a"] * 50_000)
    (tmp_path / "my.toml").write_text(f"{key} = 1\n")
    for load, sentence in (
        (lambda: load_config(str(tmp_path / "my.toml")), "content is nested too deeply"),
        (lambda: load_config("smoke", [f"{key}=1"]), "the key is nested too deeply"),
        (lambda: load_config("smoke", [f"policy={{{key} = 1}}"]), "the value is nested too deeply"),
        (lambda: read_answers_file(tmp_path / "my.toml"), "my.toml is nested too deeply"),
    ):
        with limit_time(), pytest.raises(UsageError, match=f"{sentence}$") as error:
            load()
        assert len(str(error.value)) < 400


@pytest.mark.parametrize("bound", ["lt", "le", "gt", "ge", "not_worse_than_previous_by"])
@pytest.mark.parametrize(("value", "given"), [("'1'", "'1'"), ("true", "true")])
def test_the_bound_of_a_policy_rule_is_a_number(bound, value, given):
    rule = f"{{audit = 'toxicity', metric = 'toxicity_probability', {bound} = VALUE}}"
    assert load_config("smoke", [f"policy.rules.a={rule.replace('VALUE', '1')}"]).policy.rules
    with pytest.raises(UsageError) as error:
        load_config("smoke", [f"policy.rules.a={rule.replace('VALUE', value)}"])
    assert str(error.value).endswith(f"policy.rules.a.{bound}: must be a number (given: {given})")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'name = "x"\n{SOURCES}workers = 3\n', "ingest.sources.0.workers: there is no such key "),
        (f'name = "x"\n{SOURCES}[pack]\nstore = "mine"\n', "pack.store: there is no such key "),
        (f'[pack]\nname = "x"\n{SOURCES}', "name: is missing; "),
    ],
)
def test_a_root_key_inside_a_table_is_reported_with_its_place(tmp_path, text, expected):
    (tmp_path / "my.toml").write_text(text)
    with pytest.raises(UsageError, match=r"above the first \[table\]") as error:
        load_config(str(tmp_path / "my.toml"))
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("pretrain.train.step=5", "train.step: there is no such key (did you mean steps?)"),
        ("pretrian={}", "pretrian: there is no such key (did you mean pretrain?)"),
        ("ingest.sources.0.nmae=a", "sources.0.nmae: there is no such key (did you mean name?)"),
        (
            "policy.rules.r={audit='bias',metric='m',lt=1,slcie={}}",
            "policy.rules.r.slcie: there is no such key (did you mean slice?)",
        ),
        ("redact_spans.xyzzy=1", "redact_spans.xyzzy: there is no such key"),
    ],
)
def test_a_mistyped_key_is_reported_with_a_suggestion(override, expected):
    with pytest.raises(UsageError) as error:
        load_config("smoke", [override])
    assert str(error.value).endswith(expected)


def test_a_slice_is_given_by_names_and_values():
    with pytest.raises(
        UsageError, match=r"r\.slice: must be an object that maps names to values, such as"
    ):
        load_config("smoke", ["policy.rules.r={audit='bias',metric='m',lt=1,slice='age'}"])
    config = load_config("smoke", ["policy.rules.r={audit='bias',metric='m',lt=1,slice={k=4}}"])
    assert config.policy.rules["r"].slice == {"k": "4"}


def keys(tree, path=()):
    if path:
        yield path
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in pairs:
        if isinstance(value, dict | list):
            yield from keys(value, (*path, key))
        else:
            yield (*path, key)


OURS = re.compile("Input|instance|tuple|dictionary|Field|<class")


def test_no_wrong_value_shows_an_internal_error():
    base = load_config("smoke").model_dump(mode="json")
    refused = 0
    for *way, key in [*keys(base)]:
        node = reduce(getitem, way, base)
        right = node[key]
        for wrong in (3, float("nan"), "x", [], [3], {"a": 3}, [{"name": ["x"]}]):
            node[key] = wrong
            try:
                load_config(base)  # the config stays the same
            except UsageError as error:
                refused += 1
                assert not OURS.search(str(error)), (way, key, str(error))
        node[key] = right
    assert base == load_config("smoke").model_dump(mode="json")
    assert refused > 1000
