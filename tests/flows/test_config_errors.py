"""Errors about a config use the keys of its file, for any value."""

import re
from functools import reduce
from operator import getitem

import pytest

from hallmark.flows.config import load_config
from hallmark.tasks.contract import UsageError

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
            "ingest.sources.0: needs a key 'kind' that gives the type of this entry",
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
