"""An object store whose replies are lost, cut off, late or doubled keeps every artifact."""

import os
from collections import Counter

import pytest

from benchmarks.lossy_proxy import LossyProxy
from hallmark.tasks.contract import HallmarkError, Session, Store, open_session
from hallmark.tasks.contract.fingerprint import sha256_hex
from tests.tasks.contract.stages import MakeConfig, make

pytestmark = pytest.mark.slow

FAULTS = ["lost", "reset", "delay", "duplicate", "truncate"]


@pytest.fixture
def lossy(bucket, monkeypatch):
    """A proxy in front of the S3 server; the store's client talks to it."""
    monkeypatch.setattr("benchmarks.lossy_proxy.DELAY", 0.1)
    upstream = os.environ["AWS_ENDPOINT_URL"]
    with LossyProxy(upstream, lambda request: None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


def fail_first_replies(proxy, fault):
    proxy.choose_fault = lambda request: None if request.attempt else fault


@pytest.mark.parametrize("fault", FAULTS)
def test_a_commit_survives_the_loss_of_every_first_reply(lossy, tmp_path, fault):
    fail_first_replies(lossy, fault)
    store = Store(f"s3://hallmark/commit-{fault}", tmp_path / "work")
    with open_session(Session(store)):
        made = make(MakeConfig(documents=30, parts=2))
    lossy.choose_fault = lambda request: None
    elsewhere = Store(store.uri, tmp_path / "other host")
    found = elsewhere.find_artifact("make", made.fingerprint)
    found.verify_files()
    assert found.manifest == made.manifest and found["documents"].row_count == 30
    held = {f"{found.folder}/{entry['path']}" for entry in found.iter_file_entries()}
    assert {*elsewhere.list_keys(found.folder)} == held | {f"{found.folder}/manifest.json"}
    kinds = {kind for kind, _ in lossy.faults}
    assert {("create", "manifest"), ("put", "data"), ("get", "manifest")} <= kinds


@pytest.mark.parametrize("fault", FAULTS)
def test_a_conditional_write_recognises_its_own_object(lossy, tmp_path, fault):
    fail_first_replies(lossy, fault)
    store = Store(f"s3://hallmark/create-{fault}", tmp_path)
    assert store.create_if_absent("key", b"mine") is True
    assert store.create_if_absent("key", b"of another") is False
    assert store.get("key") == b"mine"


@pytest.mark.parametrize("fault", FAULTS)
def test_the_loser_of_a_race_deletes_its_own_data_alone(lossy, tmp_path, fault):
    store = Store(f"s3://hallmark/race-{fault}", tmp_path / "work")
    with open_session(Session(store)):
        first = make(MakeConfig(documents=3))
    scratch = tmp_path / "late"
    for entry in first.iter_file_entries():
        (scratch / entry["name"]).parent.mkdir(parents=True, exist_ok=True)
        (scratch / entry["name"]).write_bytes(first.location.fetch_file(entry).read_bytes())
    before = store.list_keys(first.folder)
    fail_first_replies(lossy, fault)
    late = Store(store.uri, tmp_path / "other").commit(scratch, first.manifest)
    assert late.manifest == first.manifest
    lossy.choose_fault = lambda request: None
    assert store.list_keys(first.folder) == before
    Store(store.uri, tmp_path / "third").find_artifact("make", first.fingerprint).verify_files()


@pytest.mark.parametrize("fault", FAULTS)
def test_every_request_is_repeated_until_its_reply_arrives(lossy, tmp_path, fault):
    fail_first_replies(lossy, fault)
    store = Store(f"s3://hallmark/each-{fault}", tmp_path / "work")
    store.set_secret_if_absent(b"k" * 32)
    assert store.secret == b"k" * 32
    assert store.get("absent") is None
    large = os.urandom(11 << 20)  # in several pieces
    (tmp_path / "large").write_bytes(large)
    store.put("folder/large", tmp_path / "large")
    store.put("folder/small", b"x")
    assert store.get("folder/small") == b"x"
    assert store.fetch_object("folder/large", sha256_hex(large)).read_bytes() == large
    assert store.list_folder_names("") == ["folder"]
    assert store.list_keys("folder") == ["folder/large", "folder/small"]
    store.delete(["folder/small"])
    assert store.list_keys("folder") == ["folder/large"]
    operations = {operation for (operation, _), _ in lossy.faults}
    assert {
        "get",
        "put",
        "create",
        "list",
        "delete",
        "multipart start",
        "multipart part",
    } <= operations


def test_a_store_that_loses_every_reply_is_given_up_in_a_sentence(lossy, tmp_path):
    lossy.choose_fault = lambda request: "reset" if request.operation == "create" else None
    store = Store("s3://hallmark/never", tmp_path)
    # The object was written, and reading it back says so: no reply of its own is needed.
    assert store.create_if_absent("key", b"mine") is True
    lossy.choose_fault = lambda request: "truncate"
    with pytest.raises(HallmarkError, match=r"cannot be used: .* run again"):
        store.list_folder_names("")
    repeated = Counter(lossy.requests)["list", "listing"]
    assert 1 < repeated < 20


def test_a_server_that_answers_nothing_is_given_up_after_some_time(lossy, tmp_path, monkeypatch):
    """The client itself repeats for minutes: nothing is repeated after that."""
    monkeypatch.setattr("hallmark.tasks.contract.object_store.RETRY_DEADLINE_SECONDS", 0.0)
    lossy.choose_fault = lambda request: "truncate"
    store = Store("s3://hallmark/silent", tmp_path)
    with pytest.raises(HallmarkError, match=r"cannot be used: .* run again"):
        store.put("key", b"data")
    assert lossy.requests["put", "other"] <= 12  # the client's own repetitions
    with pytest.raises(HallmarkError, match=r"cannot be used: .* run again"):
        store.list_folder_names("")
    assert lossy.requests["list", "listing"] == 1
