"""Test leases in an object store: one holder at a time, and none that continues after another."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from benchmarks.lossy_proxy import LossyProxy
from hallmark.tasks.contract import (
    PROJECT_ROOT,
    HallmarkError,
    Session,
    Store,
    TemporaryError,
    open_session,
    store_lease,
)
from hallmark.tasks.contract.lease import LeaseHolder
from hallmark.tasks.contract.store_lease import (
    LeaseLostError,
    LeaseRecord,
    StoredState,
    StoredWork,
    format_lease_key,
    lease_in_store,
    parse_lease_record,
)
from tests.tasks.contract.stages import MakeConfig, make

AREA = "climb-0123456789abcdef"
KEY = format_lease_key(AREA)


@pytest.fixture
def store(bucket, tmp_path):
    return Store(f"s3://hallmark/{tmp_path.name}", tmp_path / "work")


@pytest.fixture
def fast_expiry(monkeypatch):
    """Let leases expire soon for those who wait here; holders do not renew theirs."""
    monkeypatch.setattr(store_lease, "EXPIRY_SECONDS", 0.6)
    monkeypatch.setattr(store_lease, "CHECK_INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(store_lease, "RENEWAL_SECONDS", 1000.0)


def lease(store, tmp_path, host, on_wait=lambda holder: None):
    """Lease the area on a host with a folder of its own."""
    work_area = tmp_path / host / AREA
    work_area.mkdir(parents=True, exist_ok=True)
    return lease_in_store(store, AREA, work_area, on_wait)


def fail_to_wait(holder):
    pytest.fail(f"waited for {holder}")


def read_record(store):
    return parse_lease_record(store.get(KEY))


def test_a_lease_names_its_holder_and_ends_without_a_trace(store, tmp_path):
    with lease(store, tmp_path, "one", fail_to_wait) as held:
        record = read_record(store)
        assert record == held.record and record.number == 1
        assert record.holder.pid == os.getpid() and not record.is_ended
        held.renew()
        assert read_record(store).renewals == record.renewals + 1
    assert store.list_keys("") == []


def test_another_host_waits_until_the_lease_is_released(store, tmp_path, monkeypatch):
    monkeypatch.setattr(store_lease, "CHECK_INTERVAL_SECONDS", 0.05)
    waited_for, second_holds = [], threading.Event()

    def hold():
        with lease(store, tmp_path, "two", waited_for.append):
            second_holds.set()

    with lease(store, tmp_path, "one") as first:
        thread = threading.Thread(target=hold)
        thread.start()
        assert not second_holds.wait(0.5)
        assert waited_for == [first.record.holder]
    assert second_holds.wait(30)
    thread.join()


def test_a_holder_renews_its_lease_while_it_works(store, tmp_path, monkeypatch):
    monkeypatch.setattr(store_lease, "RENEWAL_SECONDS", 0.05)
    monkeypatch.setattr(store_lease, "EXPIRY_SECONDS", 2.0)
    monkeypatch.setattr(store_lease, "CHECK_INTERVAL_SECONDS", 0.05)
    second_holds = threading.Event()

    def hold():
        with lease(store, tmp_path, "two"):
            second_holds.set()

    with lease(store, tmp_path, "one"):
        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        assert not second_holds.wait(4)
    assert second_holds.wait(30)
    thread.join()


@pytest.mark.parametrize("host", ["another", "same"])
def test_the_lease_of_a_killed_process_is_taken_over(store, tmp_path, fast_expiry, caplog, host):
    """On another host after some time; at once by whoever locked the work area of the process."""
    script = (
        "import pathlib, sys, time\n"
        "from hallmark.tasks.contract import Store\n"
        "from hallmark.tasks.contract.store_lease import lease_in_store\n"
        "with lease_in_store(Store(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(1000)\n"
    )
    work_area = tmp_path / "same" / AREA
    work_area.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-c", script, store.uri, AREA, str(work_area)],
        cwd=PROJECT_ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    waited_for = []
    with caplog.at_level(logging.WARNING), lease(store, tmp_path, host, waited_for.append) as held:
        assert held.record.number == 2
    if host == "same":
        assert waited_for == [] and not caplog.messages
    else:
        assert [holder.pid for holder in waited_for] == [process.pid]
        assert "was not renewed for 1 seconds; taking over its work" in caplog.text
    assert store.list_keys("") == []


def test_a_holder_that_continues_too_late_changes_nothing(store, tmp_path, fast_expiry):
    works = {"training": StoredWork("f" * 64, ("pack/0",), (StoredState(7, "a/b", "0" * 64),))}
    with lease(store, tmp_path, "one") as first, lease(store, tmp_path, "two") as second:
        second.change_works(lambda _: works)
        for act in (first.renew, lambda: first.change_works(lambda _: {}), first.check_not_lost):
            with pytest.raises(LeaseLostError, match=rf"process {os.getpid()} on .* taken over"):
                act()
        first.release()
        assert read_record(store) == second.record
        assert second.record.works == works and second.record.number == 2
    record = read_record(store)  # the states stay for a later run, which need not wait
    assert record.holder is None and record.works == works
    with lease(store, tmp_path, "three", fail_to_wait) as third:
        assert third.record.works == works and third.record.number == 3
        third.change_works(lambda _: {})
    assert store.list_keys("") == []


@pytest.mark.parametrize("data", [b"", b"[]", b'{"number": -1, "token": ""}', b"\xff" * 9])
def test_a_damaged_lease_expires_like_any_other(store, tmp_path, fast_expiry, data):
    store.put(KEY, data)
    waited_for = []
    with lease(store, tmp_path, "one", waited_for.append) as held:
        assert held.record.number == 1
    assert waited_for == [LeaseHolder()]


def test_a_lease_that_is_being_removed_is_not_taken_before(store, tmp_path, fast_expiry):
    record = {"number": 4, "token": "x", "is_ended": True}
    store.put(KEY, json.dumps(record).encode())
    waited_for = []
    with lease(store, tmp_path, "one", waited_for.append) as held:
        assert held.record.number == 5  # its remover is dead
    assert waited_for == [LeaseHolder()]


def test_what_others_wrote_into_a_lease_is_made_printable():
    holder = {"host": "\x1b[2Jevil\n" + "x" * 5000, "pid": 1, "since": "\x07"}
    data = json.dumps({"number": 1, "token": "x", "holder": holder}).encode()
    text = str(parse_lease_record(data).holder)
    assert text.isprintable() and len(text) < 500
    works = {"t": {"fingerprint": "f", "inputs": [], "states": [[1, "../../secret", "0"]]}}
    assert (
        parse_lease_record(json.dumps({"number": 1, "token": "x", "works": works}).encode()) is None
    )
    assert parse_lease_record(b" " * (2 << 20)) is None


def test_a_stage_whose_lease_was_taken_over_commits_nothing(store, tmp_path, monkeypatch):
    real_renew = store_lease.StoreLease.renew

    def renew_too_late(self):
        stolen = LeaseRecord(9, "thief", holder=LeaseHolder("elsewhere", 4711, "noon"))
        store.put(self.key, store_lease._format_record(stolen))
        real_renew(self)

    monkeypatch.setattr(store_lease.StoreLease, "renew", renew_too_late)
    with (
        open_session(Session(store)),
        pytest.raises(
            TemporaryError,
            match="stage make: process 4711 on elsewhere, since noon has taken over this work",
        ),
    ):
        make(MakeConfig(documents=3))
    assert store.list_artifacts("make") == []


@pytest.mark.parametrize("fault", ["lost", "reset", "delay", "duplicate", "truncate"])
def test_a_conditional_replacement_recognises_its_own_object(bucket, tmp_path, monkeypatch, fault):
    monkeypatch.setattr("benchmarks.lossy_proxy.DELAY", 0.1)
    with LossyProxy(os.environ["AWS_ENDPOINT_URL"], lambda request: None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        store = Store(f"s3://hallmark/replace-{fault}", tmp_path)
        proxy.choose_fault = lambda request: None if request.attempt else fault
        first = store.replace_if_unchanged("key", b"one", None)
        assert first is not None and store.get("key") == b"one"
        assert store.replace_if_unchanged("key", b"other", None) is None
        second = store.replace_if_unchanged("key", b"two", first)
        assert second is not None and second != first
        assert store.replace_if_unchanged("key", b"three", first) is None
        assert store.get_versioned("key") == (b"two", second)
        store.delete(["key"])
        assert store.replace_if_unchanged("key", b"four", second) is None
        assert store.get_versioned("key") is None


def test_a_missing_bucket_is_a_sentence(bucket, tmp_path):
    store = Store("s3://absent/x", tmp_path)
    for version in (None, {"e_tag": '"1"'}):
        with pytest.raises(HallmarkError, match="its bucket does not exist; create the bucket"):
            store.replace_if_unchanged("a", b"1", version)
