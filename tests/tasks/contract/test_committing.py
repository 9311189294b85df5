"""Test what a store finds under a name, and a second commit of the same fingerprint."""

import errno
import hashlib
import hmac
import json
import os
from pathlib import Path

import pytest

from hallmark.tasks.contract import HallmarkError, Store
from hallmark.tasks.contract.fingerprint import sha256_hex
from tests.tasks.contract.stages import CountConfig, MakeConfig, keep_number, make


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def attempt(folder, name, data):
    """Write a file into a folder like a stage does, and return the folder."""
    scratch = folder / "scratch"
    (scratch / name).parent.mkdir(parents=True)
    (scratch / name).write_bytes(data)
    return scratch


def test_first_of_two_attempts_is_kept_and_second_is_removed(session, tmp_path):
    first = keep_number(CountConfig())
    home = session.store.root_folder / first.folder
    before = files(home)
    assert len(before) == 3 and "manifest.json" in before  # number.txt and the telemetry
    scratch = attempt(tmp_path, "number.txt", b"8")
    late = {**first.manifest, "telemetry": {}, "created": "later"}
    second = Store(session.store.root_folder).commit(scratch, late)
    assert second.manifest == first.manifest and second.fetch_file("number.txt").read_text() == "7"
    assert files(home) == before and not scratch.exists()
    assert [path.name for path in home.iterdir() if path.is_dir()] == [
        first.manifest["files"]["number.txt"]["path"].split("/")[0]
    ]
    assert late["files"] == first.manifest["files"]  # what was given is not changed


def test_work_area_on_another_disk_is_copied(session, monkeypatch):
    """Check a link as "work", from which nothing can be renamed into the store."""
    work = session.store.work_folder
    for name in ("rename", "replace"):
        within = getattr(os, name)

        def across(old, new, within=within):
            if Path(old).is_relative_to(work) and not Path(new).is_relative_to(work):
                raise OSError(errno.EXDEV, "Invalid cross-device link", old, None, new)
            within(old, new)

        monkeypatch.setattr(os, name, across)
    made = make(MakeConfig(documents=30, parts=2))
    made.verify_files()
    assert len(made["documents"].parts) == 2 and not any(work.glob("make-*"))


def test_artifact_is_found_by_fingerprint_or_its_first_16_digits(session):
    made = make(MakeConfig(documents=3))
    store, digest = session.store, made.fingerprint
    assert made.folder == f"artifacts/make/{digest[:16]}"
    for name in (digest, digest[:16]):
        assert store.find_artifact("make", name).manifest == made.manifest
    assert store.find_artifact("make", "0" * 64) is store.find_artifact("other", digest) is None
    with pytest.raises(
        HallmarkError, match="two artifacts with different fingerprints share the folder"
    ):
        store.find_artifact("make", digest[:16] + "0" * 48)
    other = make(MakeConfig(documents=4))
    assert {a.fingerprint for a in store.list_artifacts("make")} == {digest, other.fingerprint}
    assert store.list_artifacts("none") == []


def test_folder_without_manifest_is_not_an_artifact(session):
    made = make(MakeConfig(documents=3))
    (session.store.root_folder / made.folder / "manifest.json").unlink()
    assert session.store.list_artifacts("make") == []
    assert make(MakeConfig(documents=3)).manifest["content"] == made.manifest["content"]


def test_secret_is_identified_by_keyed_hash_and_never_replaced(tmp_path):
    store = Store(tmp_path)
    store.set_secret_if_absent(b"k" * 32)
    store.set_secret_if_absent(b"l" * 32)
    assert store.secret == b"k" * 32
    named = hmac.new(b"k" * 32, b"hallmark secret id", hashlib.sha256).hexdigest()
    assert store.compute_secret_id() == named[:16]
    assert files(tmp_path) == ["secret"]
    (tmp_path / "secret").write_text("0f" * 16 + "\n")  # by hand, and no shorter
    assert store.secret == bytes([15] * 16)


def test_description_of_a_stored_file_has_its_digest(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    store = Store(tmp_path / "store")
    assert store.put_file("a/b", tmp_path / "file") == {"size": 7, "sha256": sha256_hex(b"content")}
    assert store.get("a/b") == b"content" and (tmp_path / "file").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["files"]["number.txt"].update(size="1"),
        lambda m: m["files"]["number.txt"].pop("size"),
        lambda m: m["files"].update(other=[]),
        lambda m: m.update(stage=7),
        lambda m: m.update(lineage=[]),
        lambda m: m.pop("parts"),
        lambda m: m["telemetry"]["telemetry"].pop("columns"),
        lambda m: m["telemetry"]["telemetry"].update(parts=[], rows=0),
        lambda m: m["telemetry"]["telemetry"].update(sha256="0"),
        lambda m: m["telemetry"]["telemetry"]["columns"][0].pop("kind"),
        lambda m: m["telemetry"]["telemetry"]["columns"][0].update(unit=7),
    ],
)
def test_manifest_with_invalid_content_is_refused(session, change):
    made = keep_number(CountConfig())
    path = session.store.root_folder / made.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(
        HallmarkError, match=r"is damaged: its manifest.json in .* is incomplete or invalid"
    ):
        session.store.find_artifact("keep_number", made.fingerprint)
