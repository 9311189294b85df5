"""Checkpoints whose manifests somebody else wrote: one sentence each, and no loop."""

import json

import pytest

from hallmark.flows.auditing import _reconstruct_earlier_trainings, find_or_reconstruct_training
from hallmark.flows.checkpoint_resolution import (
    find_training_run,
    resolve_checkpoint,
    trace_training_history,
)
from hallmark.flows.run_recording import _iter_packed_corpora
from hallmark.tasks.contract import HallmarkError, Store, compute_content_digest
from tests.time_limits import limit_time

FIRST, SECOND = "a" * 64, "b" * 64
PARENT = "c" * 64
COMPONENTS = ("code", "config", "inputs", "libraries", "external")


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "store")
    components = {key: {} for key in COMPONENTS}
    for stage, lineage in {
        "plant_canaries": {},
        "pack": {"documents": f"plant_canaries/{PARENT[:16]}#documents"},
        "pretrain": {},
    }.items():
        put_manifest(store, stage, PARENT, lineage, components)
    return store


def put_manifest(store, stage, fingerprint, lineage, parts):
    """Write a manifest without tables and files, and return its artifact if it is valid."""
    manifest = {
        "stage": stage,
        "fingerprint": fingerprint,
        "content": compute_content_digest({}, {}),
        "determinism": "exact",
        "tables": {},
        "files": {},
        "telemetry": {},
        "parts": parts,
        "lineage": lineage,
        "created": "2026-11-29T00:00:00+00:00",
        "layout": 2,
    }
    folder = store.format_artifact_folder(stage, fingerprint)
    store.put(f"{folder}/manifest.json", json.dumps(manifest).encode())


def put_checkpoint(store, fingerprint=FIRST, lineage=None, **parts):
    pack = f"pack/{PARENT[:16]}"
    put_manifest(
        store,
        "checkpoint",
        fingerprint,
        {"packed_corpus": pack, "start_checkpoint": None} if lineage is None else lineage,
        {"stage": "checkpoint", "parent": PARENT, "config": {}, "key": {"step": 7}} | parts,
    )
    return f"checkpoint/{fingerprint[:16]}"


def resolve(store, name):
    """Resolve a checkpoint, and trace all that an audit needs to know of its training."""
    with limit_time():
        resolved = resolve_checkpoint(store, name)
        trace_training_history(resolved.checkpoint, resolved.training_run)
        list(_iter_packed_corpora(store, resolved.checkpoint))
    return resolved


def test_the_unchanged_checkpoint_is_resolved(store):
    resolved = resolve(store, put_checkpoint(store))
    assert resolved.training_run.name == f"pretrain/{PARENT[:16]}"


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("input_name", ["start_checkpoint", "checkpoint"])
def test_a_circle_of_checkpoints_is_one_sentence(store, input_name, is_long):
    pack = f"pack/{PARENT[:16]}"
    next_fingerprint = {FIRST: SECOND, SECOND: FIRST} if is_long else {FIRST: FIRST}
    for fingerprint, target in next_fingerprint.items():
        lineage = {"packed_corpus": pack, "start_checkpoint": None}
        lineage |= {input_name: f"checkpoint/{target[:16]}"}
        put_checkpoint(store, fingerprint, lineage)
    sentence = r"^artifact checkpoint/\w+ is damaged: its (lineage leads back to itself|manifest)"
    with pytest.raises(HallmarkError, match=sentence):
        resolve(store, f"checkpoint/{FIRST[:16]}")


def test_every_loop_over_start_checkpoints_ends(store):
    pack = f"pack/{PARENT[:16]}"
    for fingerprint, target in ((FIRST, SECOND), (SECOND, FIRST)):
        lineage = {"packed_corpus": pack, "start_checkpoint": f"checkpoint/{target[:16]}"}
        put_checkpoint(store, fingerprint, lineage)
    checkpoint = store.find_artifact("checkpoint", FIRST)
    training_run = store.find_artifact("pretrain", PARENT)
    for follow in (
        lambda: trace_training_history(checkpoint, training_run),
        lambda: list(_iter_packed_corpora(store, checkpoint)),
        lambda: _reconstruct_earlier_trainings(checkpoint),
    ):
        with limit_time(), pytest.raises(HallmarkError, match="lineage leads back to itself"):
            follow()


@pytest.mark.parametrize(
    ("lineage", "field"),
    [
        ({}, "lineage.packed_corpus"),
        ({"packed_corpus": None}, "lineage.packed_corpus"),
        ({"packed_corpus": ["pack/01"]}, "lineage.packed_corpus"),
        ({"packed_corpus": f"pack/{PARENT[:16]}", "start_checkpoint": []}, "lineage.start_check"),
        ({"checkpoint": {"a": "checkpoint/0"}}, "lineage.checkpoint"),
    ],
)
def test_a_lineage_without_what_a_training_reads_is_one_sentence(store, lineage, field):
    name = put_checkpoint(store, lineage=lineage)
    with pytest.raises(HallmarkError, match=rf"{name} is damaged: its manifest.json .*\({field}"):
        resolve(store, name)


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"parent": 5}, "parts.parent"),
        ({"parent": "../x"}, "parts.parent"),
        ({"key": []}, "parts.key"),
        ({"config": None}, "parts.config"),
    ],
)
def test_components_of_other_types_are_one_sentence(store, parts, field):
    name = put_checkpoint(store, **parts)
    with pytest.raises(HallmarkError, match=rf"{name} is damaged: its manifest.json .*\({field}"):
        resolve(store, name)


def test_a_checkpoint_without_a_parent_is_one_sentence(store):
    components = {key: {} for key in COMPONENTS}
    put_manifest(store, "checkpoint", FIRST, {"packed_corpus": f"pack/{PARENT[:16]}"}, components)
    with pytest.raises(HallmarkError, match=r"\(parts\.parent must be the fingerprint"):
        resolve(store, f"checkpoint/{FIRST[:16]}")


@pytest.mark.parametrize("key", [{}, {"step": "7"}])
@pytest.mark.parametrize("config", [{"train": {"seed": 1, "batch_size": 2}}])
def test_a_training_without_a_step_is_not_reconstructed(store, config, key):
    lineage = {"packed_corpus": f"pack/{PARENT[:16]}", "documents": f"pack/{PARENT[:16]}#x"}
    put_checkpoint(store, lineage=lineage, config=config, key=key)
    checkpoint = store.find_artifact("checkpoint", FIRST)
    with pytest.raises(HallmarkError, match=r"\(parts\.key\.step must be a whole number\)"):
        find_or_reconstruct_training(checkpoint, None, "reconstruct_reads")


@pytest.mark.parametrize("train", [{}, 5, {"seed": "x", "batch_size": 1}, {"seed": 1}])
def test_a_training_without_its_settings_is_not_reconstructed(store, train):
    lineage = {"packed_corpus": f"pack/{PARENT[:16]}", "documents": f"pack/{PARENT[:16]}#x"}
    put_checkpoint(store, lineage=lineage, config={"train": train})
    checkpoint = store.find_artifact("checkpoint", FIRST)
    with pytest.raises(HallmarkError, match=r"\(parts\.config\.train"):
        find_or_reconstruct_training(checkpoint, None, "reconstruct_reads")


@pytest.mark.parametrize(
    "manifest", [b"{", b"[]", b"{}", b'{"stage": "reconstruct_reads", "lineage": {}}']
)
def test_a_broken_reconstruction_of_another_checkpoint_is_skipped(store, caplog, manifest):
    name = put_checkpoint(store, parent="d" * 64)
    components = {key: {} for key in COMPONENTS}
    put_manifest(store, "reconstruct_reads", FIRST, {"checkpoint": name}, components)
    put_manifest(store, "reconstruct_reads", "e" * 64, {}, components)
    store.put("artifacts/reconstruct_reads/0123456789abcdef/manifest.json", manifest)
    checkpoint = store.find_artifact("checkpoint", FIRST)
    training_run = find_training_run(store, checkpoint)
    assert training_run.name == f"reconstruct_reads/{FIRST[:16]}"
    assert "skipped: artifact reconstruct_reads/0123456789abcdef is damaged" in caplog.text
