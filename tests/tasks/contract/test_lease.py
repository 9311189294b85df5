"""Leases within one process: the locks are those of open files, so threads wait as processes do."""

import contextvars
import logging
import os
import shutil
import socket
import threading
from datetime import UTC, datetime

import pytest

from hallmark.tasks.contract import EmptyConfig, StageContext, Store, UsageError, stage
from hallmark.tasks.contract.lease import (
    LEASE_FILE,
    is_folder_leased,
    lease_folder,
    shared_lock,
    try_exclusive_lock,
)


def test_a_lease_that_is_a_link_changes_no_other_file(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for target in (victim, tmp_path / "missing" / "file"):
        folder = tmp_path / f"folder of {target.name}"
        folder.mkdir()
        (folder / LEASE_FILE).symlink_to(target)
        assert is_folder_leased(folder) is None
        message = "lease is a link, which cannot be locked; remove the link and run again"
        with pytest.raises(UsageError, match=message), lease_folder(folder):
            pass
    assert victim.read_text() == "precious"


def test_many_may_stand_beside_each_other_and_nobody_is_alone_meanwhile(tmp_path):
    folder = tmp_path / "made" / "here"
    with shared_lock(folder), shared_lock(folder), try_exclusive_lock(folder) as free:
        assert free is False
    with try_exclusive_lock(folder) as free:
        assert free is True
        with try_exclusive_lock(folder) as second:
            assert second is False
    with shared_lock(folder):
        pass


def test_who_stands_beside_waits_for_who_is_alone(tmp_path):
    entered = threading.Event()

    def enter():
        with shared_lock(tmp_path):
            entered.set()

    with try_exclusive_lock(tmp_path) as free:
        assert free
        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.wait(0.05)
    assert entered.wait(30)
    thread.join()


def test_a_reader_sees_whether_a_folder_is_leased(tmp_path):
    folder = tmp_path / "area"
    assert is_folder_leased(folder) is None
    with lease_folder(folder):
        assert is_folder_leased(folder) is True
    assert is_folder_leased(folder) is False  # its holder left the file
    (folder / LEASE_FILE).unlink()
    assert is_folder_leased(folder) is None
    (tmp_path / "file").touch()
    assert is_folder_leased(tmp_path / "file") is None


@pytest.mark.parametrize("removed", [True, False])
def test_the_second_holder_has_the_folder_that_is_there(tmp_path, removed):
    """Also where the first one removed it, or it was made anew, while the second waited."""
    folder = tmp_path / "work"
    held, found = threading.Event(), []

    def second():
        held.wait(30)
        with lease_folder(folder) as area:
            found.append(sorted(path.name for path in area.iterdir()))

    thread = threading.Thread(target=second)
    thread.start()
    with lease_folder(folder) as area:
        assert area == folder
        (area / "of the first").touch()
        held.set()
        thread.join(0.05)
        assert thread.is_alive() and not found
        if removed:
            shutil.rmtree(area)
    thread.join(30)
    assert found == [["lease"] if removed else ["lease", "of the first"]]
    assert (folder / "lease").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_whoever_comes_gets_the_folder_though_its_holder_removes_it_meanwhile(
    tmp_path, monkeypatch, call
):
    """Here just before its making is found needless, and between its making and its lock."""
    folder, real = tmp_path / "work", getattr(os, call)
    folder.mkdir()

    def removed_before(path, *more):
        if folder.exists() and not taken:
            taken.append(path)
            folder.rmdir()
            if call == "mkdir":
                raise FileExistsError(path)
        return real(path, *more)

    taken = []
    monkeypatch.setattr(os, call, removed_before)
    with lease_folder(folder) as area:
        assert taken and [path.name for path in area.iterdir()] == ["lease"]


def lease_meanwhile(folder, while_waiting=lambda lease_file: None):
    """Lease a folder that another thread holds; return the holders that were reported."""
    is_held, can_end, holders = threading.Event(), threading.Event(), []

    def hold():
        with lease_folder(folder):
            while_waiting(folder / "lease")
            is_held.set()
            can_end.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(30)

    def report(holder):
        holders.append(holder)
        can_end.set()

    with lease_folder(folder, report):
        pass
    thread.join()
    return holders


def test_whoever_waits_learns_who_holds_the_lease_and_since_when(tmp_path):
    with lease_folder(tmp_path / "free", lambda holder: pytest.fail(f"{holder}")):
        pass
    [holder] = lease_meanwhile(tmp_path / "work")
    assert (holder.host, holder.pid) == (socket.gethostname(), os.getpid())
    age = datetime.now(UTC) - datetime.fromisoformat(holder.since)
    assert 0 <= age.total_seconds() < 60
    since = holder.since
    assert f"{holder}" == f"process {os.getpid()} on {socket.gethostname()}, since {since}"


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"host": 1, "pid": "a"}', '{"who": 1}', "[" * 999]
)
def test_a_lease_that_does_not_say_who_holds_it_is_waited_for(tmp_path, text):
    [holder] = lease_meanwhile(tmp_path / "work", lambda file: file.write_text(text))
    assert f"{holder}" == "another process"


def test_a_stage_says_for_whom_it_waits(session, tmp_path, caplog):
    started, can_end = threading.Event(), threading.Event()

    @stage(name="waited", tables={})
    def wait(config: EmptyConfig, context: StageContext) -> None:
        started.set()
        can_end.wait(30)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(wait, EmptyConfig()))
    thread.start()
    assert started.wait(30)

    class Waiting(logging.Handler):
        def emit(self, record):
            can_end.set()

    handler = Waiting()
    logging.getLogger("hallmark").addHandler(handler)
    try:
        wait(EmptyConfig())
    finally:
        logging.getLogger("hallmark").removeHandler(handler)
    thread.join()
    sentence = (
        f"stage waited is waiting for process {os.getpid()} on {socket.gethostname()}, since 2"
    )
    assert sentence in caplog.text


def test_no_lease_is_waited_for_where_there_can_be_none(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "away")  # a disk that is not mounted
    for name in ("file", "file/work", "link/work"):
        with pytest.raises(OSError), lease_folder(tmp_path / name):
            pass
    away = (
        r"link is a link to .*away, whose files a run could delete; remove the link and run again"
    )
    with pytest.raises(UsageError, match=away), lease_folder(tmp_path / "link"):
        pass


def test_a_lease_ends_with_its_error(tmp_path):
    with pytest.raises(KeyError), lease_folder(tmp_path / "work"):
        raise KeyError
    with lease_folder(tmp_path / "work"):
        pass


def test_a_store_is_used_beside_others_and_leased_by_fingerprint(tmp_path):
    store, other = Store(tmp_path / "store"), Store(tmp_path / "store")
    with store.shared_lock(), other.shared_lock(), store.try_exclusive_lock() as free:
        assert not free
    with other.try_exclusive_lock() as free:
        assert free
    one, two = "a" * 64, "a" * 15 + "b" * 49
    with store.lease_work_area("make", one) as first, other.lease_work_area("make", two) as second:
        assert first == store.work_folder / ("make-" + "a" * 16)
        assert second == store.work_folder / ("make-" + "a" * 15 + "b")
