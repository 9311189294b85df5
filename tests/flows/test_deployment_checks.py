"""A served deployment refuses requests before the first stage."""

import json
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from hallmark.flows import deployments
from hallmark.flows.config import Config, load_config
from hallmark.tasks.contract import AllowedRoots, ExternalMarker, UsageError
from hallmark.tasks.contract.allowed_roots import ROOTS_ENVIRONMENT_VARIABLE
from hallmark.tasks.corpus.ingest import ingest
from tests.run_requests import resolve

#: Settings of text that name no file: columns, words, titles, labels.
NO_PATHS = {
    "name",
    "experiment",
    "project",
    "namespace",
    "schedule",
    "earlier_run",
    "previous",
    "text_field",
    "key_field",
    "url_field",
    "date_field",
    "metadata_fields",
    "licence",
    "origin",
    "delimiter",
    "quote",
    "escape",
    "column_names",
    "config",
    "split",
    "revision",
    "packages",
    "negative_opinions_by_group",
    "women_by_occupation",
    "preferred_sources",
    "stop_words",
    "signal",
    "any_of",
    "none_of",
    "actions_by_type",
    "regions",
    "sha256",
    "device",
    "rendezvous",
    "scored_languages",
    "text_fields",
    "title",
    "motivation",
    "creators",
    "funding",
    "collection",
    "consent",
    "intended_uses",
    "uses_to_avoid",
    "distribution",
    "redistribution_reason",
    "maintenance",
    "contact",
    "source_column",
    "target_column",
    "text",
    "text_column",
    "second_text_column",
    "label_column",
    "words_column",
    "labels_column",
    "group_column",
    "intended_use",
    "out_of_scope",
    "data_provenance",
    "positive_label",
    "negative_label",
    "rules",
    "audit",
    "metric",
    "slice",
    "word",
    "developers",
    "version",
    "date",
    "citation",
    "intended_users",
    "ethics",
    "caveats",
    "env",
    "secret_block",
}

CONFIG = """
name = "mine"
store = "store"
[[ingest.sources]]
kind = "text"
name = "notes"
path = "notes"
"""


def text_settings(kind: Any, way: tuple[str, ...] = (), marked: bool = False):
    """Yield (key, whether it names a file) of each text setting of a config, by its type."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            own = any(isinstance(each, ExternalMarker) for each in field.metadata)
            yield from text_settings(field.annotation, (*way, name), own)
    elif kind is str:
        yield ".".join(way), marked
    elif get_args(kind):
        own = marked or any(isinstance(each, ExternalMarker) for each in get_args(kind))
        for inner in get_args(kind):
            if get_origin(kind) is dict and inner is get_args(kind)[0]:
                continue  # names of entries
            yield from text_settings(inner, way, own)


def test_every_text_setting_is_classified_as_path_or_not():
    """A new path setting must be ``Path``, ``ExternalPath`` or ``External``."""
    unmarked = {key for key, marked in text_settings(Config) if not marked}
    assert {key.split(".")[-1] for key in unmarked} - NO_PATHS - {
        "sources",
        "domains",
        "doc_ids",
    } == set()
    marked = {key for key, marked in text_settings(Config) if marked}
    assert marked == {
        "store",
        "ingest.sources.path",
        "ingest.block.sources",
        "ingest.block.domains",
        "ingest.block.doc_ids",
        "finetune.data.path",
        "finetune.data.validation_path",
        "finetune.data.test_path",
        "policy.file",
        "reporters.tensorboard.folder",
        "reporters.mlflow.uri",
        "reporters.wandb.folder",
        "reporters.prometheus.folder",
        "reporters.openlineage.uri",
    }


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A served folder with a config, and files outside of it."""
    home, outside = tmp_path / "home", tmp_path / "outside"
    for folder in (home / "notes", home / "model", outside / "model"):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text("Some words of text.")
        (folder / "config.json").write_text("{}")
    for folder in (home, outside):
        (folder / "my.toml").write_text(CONFIG)
    monkeypatch.chdir(home)
    monkeypatch.setenv("HALLMARK_STORE", str(home / "store"))
    roots = AllowedRoots.from_names([str(home)])
    declared = {"folders": roots.folders, "uris": roots.uris}
    monkeypatch.setenv(ROOTS_ENVIRONMENT_VARIABLE, json.dumps(declared))
    return tmp_path


def sources(kind: str, path: str) -> str:
    return f"ingest.sources=[{{kind='{kind}', name='x', path='{path}'}}]"


#: Overrides that name OUT, each of another setting.
SETTINGS = {
    "ingest.sources.0.path": [
        sources(kind, "OUT/a.txt")
        for kind in ("text", "jsonl", "csv", "tsv", "parquet", "warc", "datasets")
    ],
    "ingest.block.sources": ["ingest.block.sources=OUT/a.txt"],
    "ingest.block.domains": ["ingest.block.domains=OUT/a.txt"],
    "ingest.block.doc_ids": ["ingest.block.doc_ids=OUT/a.txt"],
    "identities.lexicons.0": ["identities.lexicons=['OUT/a.txt']"],
    "score_toxicity.scorer.checkpoint": [
        "score_toxicity.scorer={kind='detoxify', checkpoint='OUT/a.txt'}"
    ],
    "score_toxicity.scorer.base_model_folder": [
        "score_toxicity.scorer={kind='detoxify', base_model_folder='OUT'}"
    ],
    "removal_effects.scorer.checkpoint": [
        "removal_effects.scorer={kind='detoxify', checkpoint='OUT/a.txt'}"
    ],
    "score.scorer.checkpoint": ["score.scorer={kind='detoxify', checkpoint='OUT/a.txt'}"],
    "score_samples.scorer.base_model_folder": [
        "score_samples.scorer={kind='detoxify', base_model_folder='OUT'}"
    ],
    "score.additional_scorers.0.path": [
        "score.additional_scorers=[{kind='words', path='OUT/a.txt'}]"
    ],
    "score.additional_scorers.0.folder": [
        "score.additional_scorers=[{kind='classifier', folder='OUT/model'}]"
    ],
    "leave_out.doc_ids_file": ["leave_out.doc_ids_file=OUT/a.txt"],
    "audit_toxicity.prompts": ["audit_toxicity.prompts=OUT/a.txt"],
    "audit_toxicity.labelled_texts": ["audit_toxicity.labelled_texts=OUT/a.txt"],
    "audit_toxicity.reference_model_folder": ["audit_toxicity.reference_model_folder=OUT/model"],
    "audit_bold.prompts.0": ["audit_bold.prompts=['OUT/a.txt']"],
    "audit_bias.pairs": ["audit_bias.pairs=OUT/a.txt"],
    "audit_stereoset.items": ["audit_stereoset.items=OUT/a.txt"],
    "audit_winogender.sentences": ["audit_winogender.sentences=OUT/a.txt"],
    "audit_bbq.items.0": ["audit_bbq.items=['OUT/a.txt']"],
    "audit_honest.lexicon": ["audit_honest.lexicon=OUT/a.txt"],
    "audit_honest.templates.0": ["audit_honest.templates=['OUT/a.txt']"],
    "audit_weat.word_lists": ["audit_weat.word_lists=OUT/a.txt"],
    "audit_extraction_attack.reference_model_folder": [
        "audit_extraction_attack.reference_model_folder=OUT/model"
    ],
    "audit_membership.reference_model_folder": [
        "audit_membership.reference_model_folder=OUT/model"
    ],
    "audit_misuse.prompts.0": ["audit_misuse.prompts=['OUT/a.txt']"],
    "reporters.tensorboard.folder": ["reporters.tensorboard.folder=OUT/events"],
    "reporters.mlflow.uri": ["reporters.mlflow.uri=OUT/mlruns"],
    "reporters.wandb.folder": ["reporters.wandb.folder=OUT/wandb"],
    "reporters.prometheus.folder": ["reporters.prometheus.folder=OUT/metrics"],
    "reporters.openlineage.uri": [
        "reporters.openlineage.uri=OUT/events.jsonl",
        "reporters.openlineage.uri=file://OUT/events.jsonl",
        "reporters.openlineage.uri=https://OUT/events",
    ],
    "finetune.data.path": ["finetune={task={kind='pairs'}, data={path='OUT/a.csv'}}"],
    "store": ["store=OUT/store", "store=file://OUT/store", "store=s3://bucket/x"],
    "config": ["store=OUT/my.toml"],
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_override_that_leads_outside_is_refused(place, setting):
    outside, link = place / "outside", place / "home" / "link"
    link.symlink_to(outside)
    for override in SETTINGS[setting]:
        for folder in (outside, link, "../outside"):
            given = override.replace("OUT", str(folder))
            with pytest.raises(UsageError) as error:
                resolve("my.toml", [given])
            output = str(error.value)
            assert (
                output.startswith(f"{setting}: ")
                and "--allowed-root PATH" in output
                and "\n" not in output
            )
            assert str(place / "home") in output
    assert not (outside / "store").exists() and not (place / "home" / "store").exists()


@pytest.mark.parametrize(
    ("setting", "request_"),
    [
        ("config", {"config": "OUT/my.toml"}),
        ("config", {"config": "OUT/none.toml"}),
        ("store", {"config": "my.toml", "store": "OUT/store"}),
        ("store", {"config": "my.toml", "store": "s3://bucket"}),
        ("config", {"config": "my.toml", "store": "OUT/my.toml"}),
        ("start", {"config": "my.toml", "start": "OUT/model"}),
        ("start", {"config": "my.toml", "start": "OUT/none"}),
        ("checkpoint", {"config": None, "checkpoint": "OUT/model"}),
        ("checkpoint", {"config": "my.toml", "checkpoint": "OUT/model"}),
        ("store", {"config": {"name": "x", "store": "OUT/store"}}),
    ],
)
def test_a_parameter_that_leads_outside_is_refused(place, setting, request_):
    for folder in (str(place / "outside"), "../outside"):
        given = json.loads(json.dumps(request_).replace("OUT", folder))
        with pytest.raises(UsageError, match=f"^{setting}: .* leads outside the allowed roots"):
            resolve(**({"overrides": []} | given))
    assert not (place / "outside" / "store").exists()


def test_an_inline_config_is_bounded_as_a_file_is(place):
    tree = load_config("my.toml").model_dump(mode="json")
    tree["ingest"]["sources"][0]["path"] = "/etc/passwd"
    with pytest.raises(UsageError, match=r"^ingest\.sources\.0\.path: '/etc/passwd' leads"):
        resolve(tree, [])


def test_paths_inside_the_roots_and_bundled_configs_are_allowed(place):
    assert resolve("my.toml", []).store.root_folder == place / "home" / "store"
    assert resolve("my.toml", ["ingest.sources.0.path=notes/*.txt"]).config.name == "mine"
    for name in ("smoke", "demo"):
        assert resolve(name, []).config.name == name
    assert resolve(None, [], checkpoint="model").config.name == "audit"
    with pytest.raises(UsageError, match="there is no checkpoint 'nothing@3'"):
        resolve(None, [], checkpoint="nothing@3")


def test_the_roots_of_serve_are_config_folder_store_and_named_roots(place):
    home, outside = str(place / "home"), str(place / "outside")
    found = deployments.collect_allowed_roots(
        "my.toml", f"{outside}/store", ["s3://bucket", f"{home}/notes"]
    )
    assert found.folders == (home, f"{outside}/store", f"{home}/notes")
    assert found.uris == ("s3://bucket",)
    assert deployments.collect_allowed_roots("demo", "store", []).folders == (f"{home}/store",)
    with pytest.raises(UsageError, match="--allowed-root nowhere: there is no such folder"):
        deployments.collect_allowed_roots("demo", "store", ["nowhere"])


def test_a_store_that_cannot_be_a_root_is_reported_as_the_store(place, monkeypatch):
    """It was not named with --allowed-root, but by --store, a config or the environment."""
    azure = "abfss://container@account.dfs.core.windows.net/my store"
    assert deployments.collect_allowed_roots("my.toml", azure, []).uris == (azure,)
    wrong = "s3://user:word@bucket/store"
    shown = "s3://…@bucket/store"
    with pytest.raises(UsageError, match=f"^store: '{shown}' is not a URI such as s3://"):
        deployments.collect_allowed_roots("my.toml", wrong, ["s3://bucket"])
    with pytest.raises(UsageError, match=f"^--allowed-root '{shown}' is not a URI such as s3://"):
        deployments.collect_allowed_roots("my.toml", "store", [wrong])
    monkeypatch.setenv("HALLMARK_STORE", "s3://bucket/a store?x")
    with pytest.raises(UsageError, match=r"^store: .* cannot be compared with the allowed roots"):
        resolve("demo", [])


def test_a_project_with_a_virtual_environment_can_be_a_corpus(place, session):
    """Its links lead outside, but no source reads them; a link that a source reads is refused."""
    notes = place / "home" / "notes"
    (notes / ".venv" / "bin").mkdir(parents=True)
    (notes / ".venv" / "bin" / "python").symlink_to("/usr/bin/env")
    (notes / ".venv" / "share").symlink_to("/usr/share")
    config = resolve("my.toml", []).config
    assert ingest(config.ingest)["documents"].row_count == 1
    (notes / ".venv" / "b.txt").symlink_to(place / "outside" / "a.txt")
    sentence = r"^ingest\.sources\.0\.path: 'notes/\.venv/b\.txt' leads outside the allowed roots"
    with pytest.raises(UsageError, match=sentence):
        resolve("my.toml", [])
    with pytest.raises(UsageError, match=r"b\.txt' leads outside the allowed roots"):
        ingest(config.ingest)
