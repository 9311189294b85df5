"""`hallmark settings` lists every setting with its default, range and meaning."""

import json
import re

import pytest

from hallmark.flows.commands.settings import list_settings, render_settings, settings
from hallmark.flows.config import load_config
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.tasks.contract import UsageError
from hallmark.tasks.training.pretrain import DERIVED_MODEL_SETTINGS


def flat(values, listed, section=""):
    for key, value in values.items():
        name = f"{section}.{key}" if section else key
        if isinstance(value, dict) and name not in listed:  # a setting may be a table by names
            yield from flat(value, listed, name)
        else:
            yield name, value


def test_every_setting_of_a_config_is_listed_with_its_default():
    listed = {f"{row['section']}.{row['key']}".lstrip("."): row for row in list_settings()}
    lists = {
        "attention_maps.texts",
        "contamination.evaluation_sets",
        "score.additional_scorers",
        "select.rules",
        "select_scored.rules",
    }
    left_out = {"score_toxicity.cascade", "finetune"}  # sections that are not there by default
    written = {"name", "ingest.sources"} | lists | left_out
    source = {"kind": "text", "name": "letters", "path": "letters"}
    plain = load_config({"name": "x", "ingest": {"sources": [source]}}).model_dump(mode="json")
    given = {
        f"pretrain.model.{name}" for name in DERIVED_MODEL_SETTINGS
    }  # by the tokenizer, by pack, by a task
    given |= {"datasheet.title", "model_card.title"}  # by the name of the config
    for name, value in flat(plain, listed):
        if name not in written | given:
            assert listed[name]["default"] == value, name
    assert listed["name"]["required"] and listed["ingest.sources.path"]["required"]
    assert {
        row["allowed_values"] for row in list_settings("ingest.sources") if row["key"] == "kind"
    } >= {
        '"jsonl"',
        '"documentation"',
    }


def test_a_section_is_shown_as_in_a_config_file():
    text = render_settings(list_settings("pretrain.train"))
    assert text.startswith("[pretrain.train]\n# Settings of a training run.\n")
    assert 'schedule = "cosine"' in text and '"cosine", "linear", "wsd"' in text
    assert "[[ingest.sources]]" in render_settings(list_settings("ingest"))
    assert "word (not set)" in render_settings(list_settings("attention_maps"))
    assert {row["section"] for row in list_settings("pretrain")} == {
        "pretrain.model",
        "pretrain.train",
    }


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        (
            "pretrain.train.steps",
            ["default: 1000", "allowed: integer from 1 to 99999999", "meaning: number of "],
        ),
        ("earlier_run", ["default: not set", "allowed: string", "meaning: id of the run whose "]),
        ("name", ["default: none; must be set", "allowed: string", "meaning: name of the config"]),
        ("ingest.sources.path", ["default: none; must be set", "allowed: string", "meaning: "]),
        (
            "study.synthetic_corpus.documents",
            ["default: 500", "allowed: integer from", "meaning: "],
        ),
    ],
)
def test_one_key_is_shown_alone(key, lines, capsys):
    settings(key)
    first, *others = capsys.readouterr().out.splitlines()
    assert first == key.removeprefix("study.")
    shown = [line.strip() for line in others if line.startswith("    ") and line[4] != " "]
    assert [line[: len(start)] for line, start in zip(shown, lines, strict=False)] == lines
    assert "Settings of a training run" not in "".join(others)
    settings("pretrain.train")
    assert capsys.readouterr().out == f"{render_settings(list_settings('pretrain.train'))}\n"


def test_a_list_of_sections_shows_its_default_items():
    text = render_settings(list_settings("select_scored"))
    default = '{"action": "tag", "lt": 0.8, "name": "toxicity", "signal": "toxicity"}'
    assert f"# By default: {default}\n" in text
    (action,) = (row for row in list_settings("select_scored") if row["key"] == "action")
    assert "`tag` with the embedded scorer (linear)" in action["meaning"]
    assert "table [….rules.NAME] per rule" in text


@pytest.mark.parametrize("section", ["select", "select_scored"])
def test_the_meaning_of_on_missing_mentions_tags(section):
    (unknown,) = (row for row in list_settings(section) if row["key"] == "on_missing")
    assert "remove: the rule treats them like documents that violate it" in unknown["meaning"]
    assert "with `tag`, they are only tagged" in unknown["meaning"]


def test_an_unknown_section_is_refused():
    with pytest.raises(
        UsageError,
        match=r"no section or key 'pretrain\.trian' .*; choose a section \(ingest, ",
    ):
        list_settings("pretrain.trian")


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (
            "earlier_run",
            "earlier_run (not set)              # string; id of the run whose corpus",
        ),
        (
            "store",
            "store (not set)                    # string; folder or object-store URI of the store",
        ),
        (
            "workers",
            "workers = 2                        # integer from 1 to 256; number of processes",
        ),
        (
            "pretrain.train.warmup_steps",
            "warmup_steps = 50                  # integer from 0 to 10",
        ),
    ],
)
def test_a_key_is_shown_alone(key, line):
    (row,) = list_settings(key)
    assert row["key"] == key.rpartition(".")[2]
    assert line in render_settings([row])


def test_an_unknown_key_is_refused_with_the_root_keys():
    with pytest.raises(
        UsageError,
        match=r"no section or key 'erlier' .*; .* top-level keys are name, store, workers",
    ):
        list_settings("erlier")


@pytest.mark.parametrize("config", [ModelConfig, TrainConfig])
def test_the_range_of_every_number_of_a_model_and_its_training_is_shown(config):
    section = {ModelConfig: "pretrain.model", TrainConfig: "pretrain.train"}[config]
    rows = {row["key"]: row["allowed_values"] for row in list_settings(section)}
    bare = {key for key, allowed in rows.items() if allowed in ("integer", "number")}
    assert bare <= {"spike_factor"}  # 0, or a range: its meaning says so
    for key, allowed in rows.items():
        for start, change in (("from ", -1), ("to ", 1), ("above ", 0), ("below ", 0)):
            for bound in re.findall(rf"{start}(-?[\d.]+)", allowed):
                number = int if allowed.startswith("integer") else float
                with pytest.raises(ValueError, match=rf"{key} must be .*"):
                    config(**{key: number(bound) + change})


def test_the_settings_of_a_study_are_listed_under_study():
    rows = {f"{row['section']}.{row['key']}".strip("."): row for row in list_settings("study")}
    assert (
        rows["trials_with_effects"]["default"] == 40
        and rows["synthetic_corpus.sentences_per_group"]["default"] == 48
    )
    assert rows["pretrain.train.steps"]["default"] == 400  # not that of a run
    (row,) = list_settings("study.synthetic_corpus.sentences_per_group")
    assert row == rows["synthetic_corpus.sentences_per_group"]
    for name, meant in (
        ("pretrain.train.stps", "pretrain.train.steps"),
        ("pakc", "pack"),
        ("stepz", "pretrain.train.steps"),
    ):
        with pytest.raises(
            UsageError, match=rf"'{name}' \(did you mean {meant}\?\); choose a section"
        ):
            list_settings(name)
    with pytest.raises(UsageError, match=r"there is no section or key 'nothing'; choose"):
        list_settings("study.nothing")


def test_a_table_of_tables_is_listed_as_name():
    rows = {row["key"]: row for row in list_settings("policy")}
    policy_keys = ("previous", "file", "stop_training")
    assert {rows.pop(key)["section"] for key in policy_keys} == {"policy"}
    bounds = {"lt", "le", "gt", "ge", "not_worse_than_previous_by"}
    assert rows.keys() == {"audit", "metric", "slice"} | bounds
    assert {row["section"] for row in rows.values()} == {"policy.rules.NAME"}
    assert "[policy.rules.NAME]\n# Bound" in render_settings([*rows.values()])
    assert {row["key"] for row in list_settings("redact_spans")} >= {
        "actions_by_type"
    }  # of texts, no tables


def test_every_key_has_a_meaning():
    """For dataclasses of the package model, the meanings come from their docstrings."""
    rows = [*list_settings(), *list_settings("study")]
    assert [row for row in rows if not row["meaning"] and row["key"] != "kind"] == []
    assert "``" not in json.dumps(rows, ensure_ascii=False)
    by_key = {row["key"]: row["meaning"] for row in list_settings("pretrain.train")}
    assert by_key["max_grad_norm"].startswith("maximum norm of the gradient; a larger gradient")
    assert "steps" in by_key["validate_every"] and "``" not in by_key["validate_every"]
