"""`hallmark verify` reports the damage that a run would find."""

import errno
import json
import shutil

import pytest

from hallmark.flows.commands.verify import render_verification, verify_run, verify_store
from hallmark.flows.runs import open_run
from hallmark.tasks.contract import Store, artifact


@pytest.fixture
def store(smoke, tmp_path):
    """A copy of the store with the smoke run."""
    copy = tmp_path / "store"
    shutil.copytree(smoke.store, copy, symlinks=True)
    for run in (copy / "runs").iterdir():
        if run.name != smoke.first:
            shutil.rmtree(run)
    return Store(copy)


def files_of(artifact):
    return [artifact.location.fetch_file(entry) for entry in artifact.iter_file_entries()]


def flip_last_byte(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_an_undamaged_store_is_read_completely(smoke, store):
    found = verify_store(store)
    on_disk = [p for p in (store.root_folder / "artifacts").rglob("*") if p.is_file()]
    read = [p for p in on_disk if p.name not in ("manifest.json", "tombstones.json")]
    assert not found.damage_messages and not found.missing_inputs
    assert (found.file_count, found.byte_count) == (len(read), sum(p.stat().st_size for p in read))
    assert found.artifact_count == len(on_disk) - len(read)
    of_run = verify_run(store, smoke.first)
    assert not of_run.damage_messages and 0 < of_run.artifact_count <= found.artifact_count
    assert "no damage found" in smoke("verify", "--store", str(store.root_folder)).stdout


def test_every_damaged_file_is_named(smoke, store):
    run = open_run(smoke.first, store)
    checkpoint = run.find_checkpoints()[0]  # which no audit reads
    targets = [*files_of(run["redact_spans"])[:1], *files_of(checkpoint)[-1:]]
    for path in targets:
        flip_last_byte(path)
    gone = files_of(run["pack"])[0]
    gone.unlink()
    manifest = store.root_folder / run["language"].folder / "manifest.json"
    manifest.write_text("{")
    for found in (verify_store(store), verify_run(store, smoke.first)):
        assert len(found.damage_messages) == 4
        for path in (*targets, gone):
            assert sum(str(path) in problem for problem in found.damage_messages) == 1
        assert sum(run["pack"].name in problem for problem in found.damage_messages) == 1
        assert sum("manifest.json" in problem for problem in found.damage_messages) == 1
    done = smoke("verify", smoke.first, "--store", str(store.root_folder), code=1)
    assert done.stdout.rstrip().endswith("4 damaged") and done.stderr == ""
    report = smoke.json("verify", "--store", str(store.root_folder), code=1)
    assert len(report["damage_messages"]) == 4 and report["run"] is None


def test_a_lost_manifest_is_damage_too(store, smoke):
    """Without the records of runs, it would look like an attempt that was not committed."""
    lost = open_run(smoke.first, store)["language"]
    (store.root_folder / lost.folder / "manifest.json").unlink()
    for found in (verify_store(store), verify_run(store, smoke.first)):
        assert len(found.damage_messages) == 1 and lost.name in found.damage_messages[0]


def test_an_unreadable_file_is_named_and_the_others_are_read(store, smoke, monkeypatch):
    """As on a failing disk."""
    run = open_run(smoke.first, store)
    bad = files_of(run["redact_spans"])[0]
    files_of(run["pack"])[0].unlink()
    within = artifact.hash_file

    def read(path):
        if path == bad:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return within(path)

    monkeypatch.setattr(artifact, "hash_file", read)
    found = verify_store(store)
    assert len(found.damage_messages) == 2
    assert f"{bad} cannot be read (Input/output error)" in found.damage_messages


def test_records_and_the_secret_are_read_too(store, smoke):
    (store.root_folder / "runs" / smoke.first / "run.json").write_text("[]")
    (store.root_folder / "secret").write_text("short")
    damaged = verify_store(store).damage_messages
    assert len(damaged) == 2
    assert "run.json" in damaged[0] and "the secret in" in damaged[1]


def test_a_long_list_is_truncated_on_a_terminal():
    report = {
        "store": "s",
        "run": None,
        "artifact_count": 1,
        "file_count": 2,
        "byte_count": 3,
        "missing_inputs": [],
    }
    assert render_verification(report | {"damage_messages": []}).endswith("\nno damage found")
    lines = render_verification(
        report | {"damage_messages": [f"file {n}" for n in range(23)]}
    ).splitlines()
    assert lines[-2:] == ["and 3 more; --json lists all", "23 damaged"] and len(lines) == 23


@pytest.mark.parametrize("stage", ["redact_spans", "pretrain", "model_card"])
def test_missing_files_of_a_run_are_reported(smoke, store, stage):
    run = open_run(smoke.first, store)
    path = files_of(run[stage])[0]
    path.unlink()
    done = smoke("run", "smoke", "--store", str(store.root_folder), code=1)
    assert f"hallmark: stage {stage}: artifact {run[stage].name} is damaged" in done.stderr
    assert str(path) in done.stderr and "run again to rebuild it" in done.stderr
    shutil.rmtree(store.root_folder / run[stage].folder)
    smoke("run", "smoke", "--store", str(store.root_folder), "--until", "redact_spans")


def test_a_missing_checkpoint_of_a_run_is_reported(smoke, store):
    """Even if no audit reads it."""
    path = files_of(open_run(smoke.first, store).find_checkpoints()[0])[0]
    path.unlink()
    done = smoke("run", "smoke", "--store", str(store.root_folder), code=1)
    assert f"is damaged: {path} is missing" in done.stderr


def rewrite_manifest(store, artifact, change):
    path = store.root_folder / artifact.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_a_name_in_a_lineage_does_not_leave_the_store(smoke, store):
    run = open_run(smoke.first, store)
    card, values = (
        run["model_card"],
        ["/etc/passwd", "audit_toxicity/..", "", "x#y", "a/b/0", "a/0\n"],
    )
    flip_last_byte(files_of(run["pack"])[0])
    for value in ({"toxicity": "../../../../etc/passwd"}, {"toxicity": [None, "a/z"]}, 7, *values):
        rewrite_manifest(
            store, card, lambda found, value=value: found["lineage"].update(audits=value)
        )
        for found in (verify_store(store), verify_run(store, smoke.first)):
            assert len(found.damage_messages) == 2  # the others are read
            (message,) = [text for text in found.damage_messages if card.name in text]
            assert message.startswith(f"artifact {card.name} is damaged: ")
            assert "passwd" not in message and not found.missing_inputs


def test_an_entry_of_a_run_names_an_artifact_of_its_stage(smoke, store):
    """Else the page of one card would show another."""
    path = store.root_folder / "runs" / smoke.first / "run.json"
    record = json.loads(path.read_text())
    entries = {entry["label"]: entry for entry in record["stages"]}
    datasheet = entries["datasheet"]
    for change in (
        {"artifact": datasheet["artifact"]},
        {"artifact": datasheet["artifact"], "stage": "datasheet"},
        {"label": "card", "stage": "model_card"},
    ):
        stages = [
            entry | change if entry["label"] == "model_card" else entry
            for entry in record["stages"]
        ]
        path.write_text(json.dumps(record | {"stages": stages}))
        (message,) = verify_store(store).damage_messages
        assert f"run {smoke.first} is damaged" in message and "contradictory" in message
        assert (
            "is damaged"
            in smoke("export-cards", "--output", "x", "--store", store.uri, code=1).stderr
        )
