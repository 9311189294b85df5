"""Relative paths in a config file start at its folder, those in --set at the working directory."""

import os
from contextlib import chdir

import pytest

from hallmark.flows.commands.status import _load_current_config
from hallmark.flows.config import load_config, read_tree_with_rebased_paths
from hallmark.flows.runs import open_run, resolve_store_uri
from hallmark.tasks.contract import UsageError, explain_relative_path, iter_config_paths
from tests.flows.conftest import Hallmark
from tests.run_requests import resolve

CONFIG = """
name = "mine"
store = "stores/a"
report_to = ["tensorboard", "openlineage"]

[[ingest.sources]]
kind = "text"
name = "notes"
path = "notes/*.txt"

[[ingest.sources]]
kind = "jsonl"
name = "remote"
path = "s3://bucket/texts"

[[ingest.sources]]
kind = "datasets"
name = "hub"
path = "user/name"

[[ingest.sources]]
kind = "datasets"
name = "local"
path = "dataset"

[reporters]
tensorboard.folder = "events"
openlineage.uri = "https://host/events"
mlflow.uri = "mlruns"

[ingest.block]
sources = ["notes/a"]
domains = "lists/domains.txt"

[identities]
lexicons = ["town", "groups.json"]

[contamination]
evaluation_sets = [{name = "set", path = "set.csv"}]

[audit_bias]
pairs = "pairs.csv"

[audit_bbq]
items = ["bbq/a.jsonl", "/data/b.jsonl", "~/c.jsonl"]

[score_toxicity.scorer]
kind = "detoxify"
checkpoint = "weights.ckpt"

[finetune]
task = {kind = "pairs"}
data = {path = "pairs.jsonl"}
"""

#: The paths above that name a file of the folder, as they are written.
RELATIVE_PATHS = {
    "store": "stores/a",
    "reporters.tensorboard.folder": "events",
    "reporters.mlflow.uri": "mlruns",
    "ingest.sources.0.path": "notes/*.txt",
    "ingest.sources.3.path": "dataset",
    "ingest.block.domains": "lists/domains.txt",
    "identities.lexicons.1": "groups.json",
    "contamination.evaluation_sets.0.path": "set.csv",
    "score_toxicity.scorer.checkpoint": "weights.ckpt",
    "finetune.data.path": "pairs.jsonl",
    "audit_bias.pairs": "pairs.csv",
    "audit_bbq.items.0": "bbq/a.jsonl",
}
OTHER_PATHS = {
    "reporters.openlineage.uri": "https://host/events",
    "ingest.sources.1.path": "s3://bucket/texts",
    "ingest.sources.2.path": "user/name",
    "identities.lexicons.0": "town",
    "audit_bbq.items.1": "/data/b.jsonl",
    "audit_bbq.items.2": "~/c.jsonl",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a config; the working directory is another one."""
    folder = tmp_path / "configs"
    (folder / "dataset").mkdir(parents=True)
    (folder / "my.toml").write_text(CONFIG)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


def read_paths(config):
    return {config_path.setting: config_path.path for config_path in iter_config_paths(config)}


def test_every_path_of_a_file_starts_at_its_folder(folder):
    expected = {key: f"../configs/{path}" for key, path in RELATIVE_PATHS.items()} | OTHER_PATHS
    for name in ("../configs/my.toml", str(folder / "my.toml")):
        assert read_paths(load_config(name)) == expected
        assert resolve_store_uri(name) == "../configs/stores/a"
    os.symlink(folder / "my.toml", "link.toml")
    assert read_paths(load_config("link.toml")) == RELATIVE_PATHS | OTHER_PATHS


def test_the_paths_are_as_written_where_the_config_is(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert read_paths(load_config("my.toml")) == RELATIVE_PATHS | OTHER_PATHS


def test_paths_on_the_command_line_start_at_the_working_directory(folder):
    overrides = ["audit_bias.pairs=pairs.csv", "audit_bbq.items=['a.jsonl']", "store=mine"]
    paths = read_paths(load_config("../configs/my.toml", overrides))
    assert paths["audit_bias.pairs"] == "pairs.csv" and paths["store"] == "mine"
    assert paths["audit_bbq.items.0"] == "a.jsonl"
    assert paths["ingest.sources.0.path"] == "../configs/notes/*.txt"


def test_a_config_that_is_completed_by_that_of_a_run_keeps_its_folder(folder):
    """As for the commands audit and finetune."""
    finetune = '[finetune]\ntask = {kind = "pairs"}\ndata = {path = "p.csv"}\n'
    (folder / "task.toml").write_text(f'store = "b"\n{finetune}')
    recorded = load_config("smoke").model_dump(mode="json")
    assert read_tree_with_rebased_paths("../configs/task.toml", (), recorded) == {
        "store": "../configs/b",
        "finetune": {"task": {"kind": "pairs"}, "data": {"path": "../configs/p.csv"}},
    }


def test_a_bundled_config_leaves_results_in_the_working_directory(folder, monkeypatch):
    monkeypatch.delenv("HALLMARK_STORE", raising=False)
    arguments = resolve("demo", [])
    assert arguments.store.root_folder == folder.parent / "here" / "runs"
    assert not [*folder.glob("runs")]


def test_a_missing_file_is_reported_with_its_full_path(folder):
    path = "../configs/pairs.csv"
    note = explain_relative_path(path)
    assert note.startswith(
        f" (resolved to {folder}/pairs.csv: paths in a config file are resolved relative to "
    )
    assert explain_relative_path(folder / "x") == "" == explain_relative_path("~/x")


def test_a_run_reads_the_files_next_to_its_config(folder, server):
    """Started elsewhere; a missing file is reported in full, and status finds nothing to repeat."""
    hallmark = Hallmark(folder.parent / "store", server)
    source = '[[ingest.sources]]\nkind = "text"\nname = "notes"\npath = "notes"\n'
    answers = '[answers]\nfile = "answers.toml"\n'
    (folder / "small.toml").write_text(f'name = "small"\n{answers}{source}')
    (folder / "answers.toml").write_text('motivation_purpose = "To test."\n')
    command = ("run", "../configs/small.toml", "--until", "ingest")
    (line,) = hallmark(*command, code=2).stderr.splitlines()
    assert f"no file exists at '../configs/notes' (resolved to {folder}/notes: paths" in line
    (folder / "notes").mkdir()
    (folder / "notes" / "a.txt").write_text("Words of a corpus.")
    assert hallmark.json(*command)["status"] == "completed"
    run = open_run("latest", str(hallmark.store))
    assert run["ingest"]["documents"].row_count == 1
    os.chdir("..")
    (stage,) = hallmark.json("status")["stages"]
    assert stage["stale_reasons"] == []
    with chdir(run.working_folder):
        current_config = _load_current_config(run).config
    assert current_config.datasheet.answers == {"motivation_purpose": "To test."}
    assert current_config.datasheet.model_dump() == run.record["config"]["datasheet"]
    with pytest.raises(UsageError, match="no/such"):
        load_config("no/such.toml")
