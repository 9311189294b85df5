"""A store records the version of its format; another version is refused."""

import json
import os

import pytest

from hallmark.tasks.contract import HallmarkError, Store, check_store_format, record_store_format
from hallmark.tasks.contract.object_store import ObjectStore, is_store_folder
from hallmark.tasks.contract.store_format import STORE_FORMAT, STORE_FORMAT_KEY


@pytest.fixture(params=["folder", "bucket"])
def store(request, tmp_path):
    if request.param == "folder":
        return Store(tmp_path / "store")
    request.getfixturevalue("bucket")
    return Store(f"s3://hallmark/{tmp_path.name}", tmp_path / "work")


def test_the_first_run_records_the_format_once(store):
    assert not check_store_format(store)
    record_store_format(store)
    content = store.get(STORE_FORMAT_KEY)
    assert json.loads(content) == {"format": STORE_FORMAT}
    assert check_store_format(store)
    record_store_format(store)
    assert store.get(STORE_FORMAT_KEY) == content
    assert store.list_keys("") == [STORE_FORMAT_KEY]


@pytest.mark.parametrize("version", [STORE_FORMAT + 1, 10**30])
def test_a_newer_format_is_refused_with_both_versions_and_the_remedy(store, version):
    content = json.dumps({"format": version, "shards": 4}).encode()
    store.put(STORE_FORMAT_KEY, content)
    for request in (check_store_format, record_store_format):
        with pytest.raises(HallmarkError) as raised:
            request(store)
        assert raised.value.exit_code == 1
        assert str(raised.value) == (
            f"the store {store.uri} has format {version}, but this version of Hallmark reads "
            f"format {STORE_FORMAT}; use the version of Hallmark that wrote the store, or specify "
            "another store with --store or in HALLMARK_STORE"
        )
    assert store.get(STORE_FORMAT_KEY) == content


def test_a_newer_format_that_another_host_writes_meanwhile_is_refused(store, monkeypatch):
    create = ObjectStore.create_if_absent

    def create_after_another_host(store, key, data):
        store.put(key, b'{"format": 2}')
        return create(store, key, data)

    monkeypatch.setattr(ObjectStore, "create_if_absent", create_after_another_host)
    with pytest.raises(HallmarkError, match=r"has format 2, but .* reads format 1; use the"):
        record_store_format(store)
    assert store.get(STORE_FORMAT_KEY) == b'{"format": 2}'


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "invalid JSON"),
        (b"\xff", "invalid JSON"),
        (b"[" * 100_000, "invalid JSON"),
        (b"1", "should be an object"),
        (b"{}", "format: field required"),
        (b'{"format": "1"}', "format: input should be a valid integer"),
        (b'{"format": true}', "format: input should be a valid integer"),
        (b'{"format": 1.0}', "format: input should be a valid integer"),
        (b'{"format": null}', "format: input should be a valid integer"),
        (b'{"format": 0}', "format: input should be greater than or equal to 1"),
        (b'{"format": NaN}', "format: input should be a valid integer"),
        (b'{"format": 1' + b"0" * 5000 + b"}", ""),
    ],
)
def test_a_damaged_format_is_refused_with_its_place_and_the_remedy(tmp_path, content, problem):
    store = Store(tmp_path / "store")
    store.put(STORE_FORMAT_KEY, content)
    with pytest.raises(HallmarkError) as raised:
        record_store_format(store)
    sentence = str(raised.value)
    assert sentence.startswith(f"{store.root_folder}/store-format.json is damaged (")
    assert problem in sentence
    assert sentence.endswith("if no newer version of Hallmark has written to the store")
    assert len(sentence) < 700 and "\n" not in sentence


def test_a_link_a_pipe_or_a_folder_in_place_of_the_format_is_refused(tmp_path):
    store = Store(tmp_path / "store")
    (tmp_path / "elsewhere").write_text('{"format": 1}')
    path = store.root_folder / STORE_FORMAT_KEY
    for create in (
        lambda: path.symlink_to(tmp_path / "elsewhere"),
        lambda: os.mkfifo(path),
    ):
        create()
        with pytest.raises(HallmarkError, match=r"store-format\.json .*remove"):
            check_store_format(store)
        path.unlink()
    path.mkdir()
    with pytest.raises(HallmarkError, match="is a folder instead of a file; remove"):
        record_store_format(store)


def test_a_folder_with_a_format_is_a_store_also_if_its_other_files_are_unknown(tmp_path):
    (tmp_path / "shard-0001").write_text("of a later version")
    assert not is_store_folder(tmp_path)
    (tmp_path / STORE_FORMAT_KEY).write_text('{"format": 9}')
    assert is_store_folder(tmp_path)
    store = Store(tmp_path, create_missing=False)
    with pytest.raises(HallmarkError, match="has format 9"):
        check_store_format(store)


def test_a_process_reads_the_format_of_a_remote_store_once_a_minute(bucket, tmp_path, monkeypatch):
    store = Store(f"s3://hallmark/{tmp_path.name}", tmp_path / "work")
    record_store_format(store)
    reads, read = [], ObjectStore.get
    monkeypatch.setattr(ObjectStore, "get", lambda self, key: reads.append(key) or read(self, key))
    monkeypatch.setattr("hallmark.tasks.contract.store_format._check_times", {})
    for _ in range(3):
        assert check_store_format(Store(store.uri, tmp_path / "work"))
    record_store_format(store)
    assert reads == [STORE_FORMAT_KEY]
    monkeypatch.setattr("hallmark.tasks.contract.store_format.FORMAT_VALIDITY_SECONDS", 0.0)
    check_store_format(store)
    assert len(reads) == 2
