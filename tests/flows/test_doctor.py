"""`hallmark doctor` says of each part of the machine what is there, and what to correct."""

from collections import namedtuple
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
import torch

from hallmark.flows import prefect_server
from hallmark.flows.commands import doctor
from hallmark.tasks.contract import HallmarkError, Store
from hallmark.tasks.measures.scorers import detoxify

DiskUsage = namedtuple("DiskUsage", "total used free")


def test_installed_and_missing_libraries_are_named(monkeypatch):
    def version(name):
        if name in ("prefect", "detoxify"):
            raise PackageNotFoundError(name)
        return "1.2"

    assert doctor._check_libraries()["is_ok"]
    monkeypatch.setattr(doctor, "version", version)
    result = doctor._check_libraries()
    assert not result["is_ok"] and result["message"].endswith("; missing: prefect, detoxify")
    assert "torch 1.2, datasets 1.2" in result["message"]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, "1 GPU: fast, 80 GiB"), (2, "2 GPUs; first GPU: fast, 80 GiB")],
)
def test_graphics_processors_are_counted(monkeypatch, count, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    properties = SimpleNamespace(name="fast", total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    assert doctor._check_device()["message"] == expected


@pytest.mark.parametrize(("threads", "expected"), [(1, "1 thread)"), (2, "2 threads)")])
def test_a_machine_without_graphics_processor_says_so(monkeypatch, threads, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert doctor._check_device()["message"].endswith(f"{expected}; no GPU found")


@pytest.mark.parametrize(
    ("checkpoints", "expected"), [([], "none downloaded"), (["original", "x"], "original, x")]
)
def test_downloaded_weights_of_detoxify_are_listed(monkeypatch, checkpoints, expected):
    monkeypatch.setattr(detoxify, "list_downloaded_checkpoints", lambda: checkpoints)
    result = doctor._check_scorers()
    assert result["is_ok"] and result["message"].endswith(f". Detoxify weights: {expected}")


def test_scorers_are_listed_with_what_they_do_not_detect():
    linear, vader, _ = doctor._check_scorers()["message"].split(". ")[-3:]
    assert "; it often misses threats and veiled hate" in linear and "too often flags " in linear
    assert vader.startswith("VADER ") and "; it often misses descriptions of bad events" in vader


@pytest.mark.parametrize("is_answering", [True, False])
def test_a_configured_prefect_server_must_answer(monkeypatch, is_answering):
    monkeypatch.setenv("PREFECT_API_URL", "http://here/api")
    monkeypatch.setattr(prefect_server, "is_prefect_server_reachable", lambda url: is_answering)
    result = doctor._check_prefect()
    assert result["is_ok"] == is_answering
    assert result["message"] == (
        "server at http://here/api responds"
        if is_answering
        else f"server at http://here/api does not respond; {prefect_server.START_SERVER_HINT}"
    )


def test_without_a_configured_prefect_server_each_command_starts_its_own(monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    result = doctor._check_prefect()
    assert result["is_ok"] and result["message"].startswith("each command starts its own server")


@pytest.mark.parametrize(
    ("free_bytes", "is_ok", "ending"),
    [
        (3_000_000_000, True, "(3 GB free)"),
        (2_000_000_001, True, "(2 GB free)"),
        (2_000_000_000, False, "(2 GB free); free at least 2 GB"),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_local_store_needs_permission_and_space(
    monkeypatch, tmp_path, exists, free_bytes, is_ok, ending
):
    store = tmp_path / "store"
    if exists:
        store.mkdir()
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: DiskUsage(0, 0, free_bytes))
    result = doctor._check_store(str(store))
    state = "is writable" if exists else "can be created"
    assert (result["is_ok"], result["message"]) == (is_ok, f"{store} {state} {ending}")
    assert store.exists() == exists


def test_a_check_that_raises_gives_its_error(monkeypatch):
    def _check_disk():
        raise OSError("the disk is gone")

    assert doctor._run_check_catching_errors(_check_disk) == {
        "check": "disk",
        "is_ok": False,
        "message": "the disk is gone",
    }


def test_a_remote_store_must_create_objects_only_if_they_are_absent(bucket, monkeypatch):
    result = doctor._check_store("s3://hallmark/doctor")
    assert result["is_ok"] and result["message"] == "s3://hallmark/doctor is writable"
    assert not bucket.list_objects_v2(Bucket="hallmark", Prefix="doctor").get("Contents")

    def create_always(self, key, data):
        self.put(key, data)
        return True

    monkeypatch.setattr(Store, "create_if_absent", create_always)
    result = doctor._check_store("s3://hallmark/doctor")
    assert not result["is_ok"]
    assert (
        "overwrites an existing object even if a conditional write should prevent this"
        in result["message"]
    )
    assert not bucket.list_objects_v2(Bucket="hallmark", Prefix="doctor").get("Contents")


def test_a_remote_store_must_replace_objects_only_if_they_are_unchanged(bucket, monkeypatch):
    def replace_always(self, key, data, version):
        self.put(key, data)
        return {"e_tag": "1"}

    monkeypatch.setattr(Store, "replace_if_unchanged", replace_always)
    result = doctor._check_store("s3://hallmark/doctor-replaces")
    assert not result["is_ok"]
    assert (
        "overwrites a changed object even if a conditional write should prevent this"
        in result["message"]
    )
    assert not bucket.list_objects_v2(Bucket="hallmark", Prefix="doctor-rep").get("Contents")


def test_a_missing_bucket_is_one_sentence(bucket):
    sentence = (
        "the store s3://absent/doctor cannot be used, because its bucket does not exist; create "
        "the bucket, or correct the store's address"
    )
    result = doctor._run_check_catching_errors(doctor._check_store, "s3://absent/doctor")
    assert (result["is_ok"], result["message"]) == (False, sentence)
    store = Store("s3://absent/doctor")
    for use in (
        lambda: store.get("runs/a/run.json"),
        lambda: store.put("a", b""),
        lambda: store.create_if_absent("a", b"1"),
        lambda: store.list_folder_names("runs"),
        lambda: store.list_keys("runs"),
        lambda: store.hash_object("a"),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises(HallmarkError) as raised:
            use()
        assert str(raised.value) == sentence
