"""Test the store on an object store with conditional writes."""

import stat
import subprocess
import sys

import psutil
import pytest

from hallmark.tasks.contract import (
    PROJECT_ROOT,
    HallmarkError,
    ProcessMapper,
    Session,
    Store,
    TemporaryError,
    UsageError,
    folder_to_artifact,
    open_session,
)
from tests.tasks.contract.stages import DropConfig, MakeConfig, drop, keep_number, make


def test_object_store_has_the_same_artifacts_as_a_folder(bucket, tmp_path):
    contents = {}
    for name, store in (
        ("local", Store(tmp_path / "local")),
        ("s3", Store("s3://hallmark/runs", tmp_path / "work")),
    ):
        store.put("secret", b"00" * 32)
        with open_session(Session(store, ProcessMapper(2))):
            contents[name] = drop(make(MakeConfig()), DropConfig()).content_digest
    assert contents["local"] == contents["s3"]
    # Another machine: nothing fetched yet, and the same artifact without running anything.
    other = Store("s3://hallmark/runs", tmp_path / "other")
    seen = []
    with open_session(Session(other, listener=lambda event: seen.append(event.kind))):
        artifact = drop(make(MakeConfig()), DropConfig())
    assert seen == ["cached", "cached"]
    artifact.verify_files()
    assert artifact["documents"].row_count + artifact["ledger"].row_count == 10_000


def test_one_of_two_attempts_on_an_object_store_commits(bucket, tmp_path):
    one, two = (Store("s3://hallmark/race", tmp_path / name) for name in ("a", "b"))
    with open_session(Session(one)) as session:
        first = make(MakeConfig(documents=7))
    scratch = tmp_path / "attempt"
    scratch.mkdir()
    (scratch / "documents").mkdir()
    data = first["documents"].parts[0].path.read_bytes()
    (scratch / "documents/00000.parquet").write_bytes(data)
    manifest = {**first.manifest, "telemetry": {}, "created": "later"}
    second = two.commit(scratch, manifest)
    assert second.manifest == first.manifest
    keys = [
        o["Key"]
        for o in bucket.list_objects_v2(Bucket="hallmark", Prefix="race/artifacts")["Contents"]
    ]
    assert len([key for key in keys if key.endswith("documents/00000.parquet")]) == 1
    assert session.store.find_artifact("make", first.fingerprint) == first


def test_changed_object_is_refused(bucket, tmp_path):
    store = Store("s3://hallmark/changed", tmp_path / "a")
    with open_session(Session(store)):
        artifact = make(MakeConfig(documents=7))
    entry = artifact["documents"].parts[0].entry
    bucket.put_object(
        Bucket="hallmark", Key=f"changed/{artifact.folder}/{entry['path']}", Body=b"x"
    )
    with pytest.raises(HallmarkError, match="does not match the SHA-256 in its manifest"):
        artifact["documents"].read()


def test_store_that_cannot_be_opened_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be opened: .* specify a folder"):
        Store(tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be opened"):
        Store("nonsense://x")


def test_store_without_reply_is_reported(monkeypatch):
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION"):
        monkeypatch.setenv(f"AWS_{name}", "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    store = Store("s3://hallmark/x")
    for ask in (
        lambda: store.get("a"),
        lambda: store.put("a", b""),
        lambda: store.list_folder_names("a"),
    ):
        with pytest.raises(TemporaryError, match=r"s3://hallmark/x cannot be used: .* run again"):
            ask()


def test_links_in_the_path_of_a_store_are_resolved_once(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    store = Store(tmp_path / "link" / ".." / "store")
    store.put("k/v", b"x")
    assert (tmp_path / "a" / "store" / "k" / "v").read_bytes() == store.get("k/v") == b"x"
    (tmp_path / "now").symlink_to(tmp_path / "a" / "store")
    store = Store(tmp_path / "now")
    (tmp_path / "now").unlink()
    (tmp_path / "now").symlink_to(tmp_path / "a" / "b")
    store.put("k/w", b"y")
    assert (store.get("k/v"), store.get("k/w"), store.list_keys("k")) == (
        b"x",
        b"y",
        ["k/v", "k/w"],
    )


def test_unreadable_object_is_distinguished_from_missing_object(tmp_path):
    store = Store(tmp_path)
    store.put("a/b", b"x")
    assert (store.get("a/b"), store.get("a"), store.get("c/d")) == (b"x", None, None)
    for key, sentence in (
        ("a/b/c", r"/a/b is a file, but must be a folder; restore it from a backup"),
        ("x" * 300, r"cannot be used: .* run again"),
    ):
        with pytest.raises(HallmarkError, match=sentence) as error:
            store.get(key)
        assert not isinstance(error.value, TemporaryError)


def test_secret_is_created_once_and_is_private(tmp_path):
    store = Store(tmp_path)
    assert store.secret == Store(tmp_path).secret
    assert len(store.secret) == 32
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert store.secret.hex() not in store.compute_secret_id()


@pytest.mark.parametrize("data", [b"", b"ab", b"abc", b"\xff\xfezz", b"zz" * 32])
def test_incomplete_secret_is_refused(tmp_path, data):
    store = Store(tmp_path / "store")
    (tmp_path / "store").mkdir(exist_ok=True)
    (tmp_path / "store" / "secret").write_bytes(data)
    with pytest.raises(HallmarkError, match=r"the secret in .*/secret is damaged"):
        store.compute_secret_id()


def test_file_changed_at_equal_size_is_refused(tmp_path):
    with open_session(Session(Store(tmp_path))):
        artifact = keep_number()
        path = artifact.fetch_file("number.txt")
        path.write_text("8")
        for ask in (
            lambda: artifact.fetch_file("number.txt"),
            artifact.fetch_directory,
            artifact.verify_files,
        ):
            with pytest.raises(HallmarkError, match=r"is damaged: .* SHA-256"):
                ask()


def test_content_of_external_folder_does_not_depend_on_its_path(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "w.bin").write_bytes(b"1")
    (tmp_path / "b" / ".cache").write_text("ignored")
    contents = [folder_to_artifact(tmp_path / n, "checkpoint").content_digest for n in ("a", "b")]
    assert contents[0] == contents[1]


def test_workers_end_when_their_parent_is_killed(tmp_path):
    program = (
        "import os, time\n"
        "from hallmark.tasks.contract.mappers import ProcessMapper\n"
        "from hallmark.tasks.contract.resources import DEFAULT_RESOURCES\n"
        "if __name__ == '__main__':\n"
        "    with ProcessMapper(2) as m:\n"
        "        list(m(os.getpid, [()] * 2, DEFAULT_RESOURCES))\n"
        "        print(*[p for p in m._pool._processes], flush=True); time.sleep(600)\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(program)
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(PROJECT_ROOT)},
    )
    workers = {int(pid) for pid in parent.stdout.readline().split()}
    family = psutil.Process(parent.pid).children(recursive=True)  # what they are forks of, too
    assert len(workers) == 2 and workers < {process.pid for process in family}
    parent.kill()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
