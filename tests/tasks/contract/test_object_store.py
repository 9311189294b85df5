"""Objects by key in a folder: what every store is asked for."""

import pickle
from datetime import timedelta
from pathlib import Path

import pytest

from hallmark.tasks.contract import HallmarkError, Store, UsageError
from hallmark.tasks.contract.fingerprint import sha256_hex


def test_objects_are_put_made_once_listed_and_deleted(tmp_path):
    store = Store(tmp_path / "store")
    assert store.get("a/b") is None
    assert store.create_if_absent("a/b", b"first") is True
    assert store.create_if_absent("a/b", b"second") is False
    assert store.get("a/b") == b"first"
    store.put("a/b", b"third")
    (tmp_path / "file").write_bytes(b"of a file")
    store.put("a/c/d", tmp_path / "file")
    store.put("b", b"")
    assert [store.get(key) for key in ("a/b", "a/c/d", "b")] == [b"third", b"of a file", b""]
    store.put("a/a/x", b"")
    assert store.list_folder_names("a") == ["a", "c"] and store.list_folder_names("nowhere") == []
    assert store.list_keys("a") == ["a/a/x", "a/b", "a/c/d"]
    assert store.fetch_object("a/b", "") == tmp_path / "store" / "a" / "b"
    store.delete(["a/b", "a/a/x"])
    assert store.list_keys("a") == ["a/c/d"]


def test_a_store_is_the_same_by_path_by_uri_and_in_another_process(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.put("x", b"7")
    assert store.root_folder == tmp_path and store.work_folder == tmp_path / "work"
    uri = Store(f"file://{tmp_path}")
    assert uri.root_folder == tmp_path and uri.get("x") == b"7"
    there = pickle.loads(pickle.dumps(Store(tmp_path, tmp_path / "elsewhere")))
    assert (there.root_folder, there.work_folder, there.get("x")) == (
        tmp_path,
        tmp_path / "elsewhere",
        b"7",
    )
    monkeypatch.chdir(tmp_path.parent)
    relative = Store(tmp_path.name)
    monkeypatch.chdir("/")
    assert relative.get("x") == b"7" and pickle.loads(pickle.dumps(relative)).get("x") == b"7"


def test_reading_leaves_no_store_behind(tmp_path):
    with pytest.raises(UsageError, match=r"there is no store at .*gone, which does not exist"):
        Store(tmp_path / "gone", create_missing=False)
    assert not (tmp_path / "gone").exists()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="which is not a folder"):
        Store(tmp_path / "file", create_missing=False)
    Store(tmp_path / "deep" / "store")
    assert Store(tmp_path / "deep" / "store", create_missing=False).list_keys("") == []


@pytest.mark.parametrize(
    ("entries", "is_store"),
    [
        ([], True),
        (["work/", "secret", "runs/", ".hidden"], True),
        (["runs/x/run.json", "notes.txt"], True),
        (["artifacts/pack/0/manifest.json", "lost+found/"], True),
        (["passwd"], False),
        (["runs/", "README.md"], False),
        (["work/", "usr/"], False),
    ],
)
def test_a_folder_of_something_else_is_not_read_as_a_store(tmp_path, entries, is_store):
    for entry in entries:
        path = tmp_path / "folder" / entry
        (path if entry.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not entry.endswith("/"):
            path.touch()
    (tmp_path / "folder").mkdir(exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    if is_store:
        Store(tmp_path / "folder", create_missing=False)
    else:
        with pytest.raises(UsageError, match="is not a store: it contains files"):
            Store(tmp_path / "folder", create_missing=False)
        Store(tmp_path / "folder")  # a run may create a store in it
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("address", ["http://x.invalid/", "https://x.invalid/a", "memory:///a"])
@pytest.mark.parametrize("create", [False, True])
def test_an_address_that_cannot_be_a_store_is_refused(address, create):
    with pytest.raises(UsageError, match="is not a store address; specify a folder or the URI"):
        Store(address, create_missing=create)


def test_objects_of_other_machines_are_worked_on_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, two = (Store(f"s3://bucket/{name}") for name in "xy")
    assert one.root_folder is None
    assert (
        one.work_folder
        == tmp_path / "hallmark" / sha256_hex(b"s3://bucket/x")[:16]
        != two.work_folder
    )
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert Store("s3://bucket/x").work_folder.parent == Path.home() / ".cache" / "hallmark"
    there = pickle.loads(pickle.dumps(one))
    assert (there.uri, there.work_folder) == (one.uri, one.work_folder)


def test_an_object_is_fetched_once_and_only_as_the_manifest_has_it(bucket, tmp_path):
    bucket.put_object(Bucket="hallmark", Key="far/a/b", Body=b"content")
    store = Store("s3://hallmark/far", tmp_path)
    whole, wrong = sha256_hex(b"content"), sha256_hex(b"other")
    with pytest.raises(HallmarkError, match=r"far/a/b does not match the SHA-256 in its manifest"):
        store.fetch_object("a/b", wrong)
    assert [path for path in (tmp_path / "fetched").rglob("*") if path.is_file()] == []
    assert store.fetch_object("a/b", whole).read_bytes() == b"content"
    bucket.delete_object(Bucket="hallmark", Key="far/a/b")
    assert store.fetch_object("a/b", whole).read_bytes() == b"content"
    assert not store.fetch_object("a/none", whole).exists()
    assert len([path for path in (tmp_path / "fetched").rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_the_time_of_a_store_is_comparable_with_that_of_its_objects(request, tmp_path, kind):
    if kind == "bucket":
        request.getfixturevalue("bucket")
    uri = tmp_path / "store" if kind == "folder" else "s3://hallmark/clock"
    store = Store(uri, tmp_path / "work")
    assert store.read_modification_time("a") is None
    before = store.read_current_time()
    store.put("a", b"")
    later = Store(uri, tmp_path / "work").read_current_time()
    second = timedelta(seconds=1)  # the resolution of S3
    assert before - second <= store.read_modification_time("a") <= later + second
    assert before < store.read_current_time()  # the time goes on without another request
    assert [*(tmp_path / "work").glob("*")] == []
