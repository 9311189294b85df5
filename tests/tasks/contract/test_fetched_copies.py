"""Test that copies of remote objects are bounded, and none is removed that a process uses."""

import os
import subprocess
import sys

import pytest

from hallmark.tasks.contract import PROJECT_ROOT, Store, UsageError
from hallmark.tasks.contract.fetched_copies import (
    CACHE_SIZE_VARIABLE,
    FETCH_USERS_FOLDER,
    FetchedCopies,
)
from hallmark.tasks.contract.fingerprint import sha256_hex

#: Fetches objects in a process, prints a line, and uses them until its standard input ends.
FETCH_SCRIPT = """
import sys
from pathlib import Path
from hallmark.tasks.contract import Store
store = Store(sys.argv[1], Path(sys.argv[2]))
paths = [store.fetch_object(*item.split("=")) for item in sys.argv[3:]]
print(*(path.stat().st_size for path in paths), flush=True)
sys.stdin.read()
print(*(path.stat().st_size for path in paths), flush=True)
"""


@pytest.fixture
def store(bucket, tmp_path, monkeypatch):
    """A store with five artifacts of 100 kB each; 250 kB of copies are kept."""
    monkeypatch.setenv(CACHE_SIZE_VARIABLE, "0.00025")
    store = Store(f"s3://hallmark/{tmp_path.name}", tmp_path / "work")
    for number in range(5):
        store.put(key_of(number), data_of(number))
    return store


def key_of(number):
    return f"artifacts/make/{number:016x}/ab/file"


def data_of(number):
    return bytes([number]) * 100_000


def start_user(store, *numbers):
    """Start a process that fetches objects and uses them until it is ended."""
    items = [f"{key_of(number)}={sha256_hex(data_of(number))}" for number in numbers]
    process = subprocess.Popen(
        [sys.executable, "-c", FETCH_SCRIPT, store.uri, str(store.work_folder), *items],
        cwd=PROJECT_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().split() == ["100000"] * len(numbers)
    return process


def end(process):
    output, _ = process.communicate()
    assert process.returncode == 0
    assert set(output.split()) == {"100000"}  # its copies are still there


def list_copies(store):
    return [n for n in range(5) if (store.work_folder / "fetched" / key_of(n)).exists()]


@pytest.mark.slow
def test_copies_that_were_not_used_for_the_longest_time_are_removed(store):
    for number in (0, 1, 0, 2):  # the use of 0 makes 1 the oldest
        end(start_user(store, number))
    assert list_copies(store) == [0, 2]
    end(start_user(store, 3))
    assert list_copies(store) == [2, 3]
    # The lists of dead processes are removed by the next one that begins.
    assert len([*(store.work_folder / FETCH_USERS_FOLDER).iterdir()]) == 1


@pytest.mark.slow
def test_copies_that_a_process_uses_stay(store):
    user = start_user(store, 0, 1)
    end(start_user(store, 2, 3))
    assert list_copies(store) == [0, 1, 2, 3]  # more than allowed, as all are in use
    end(start_user(store, 4))
    assert list_copies(store) == [0, 1, 4]
    end(user)
    user = start_user(store, 2)
    assert list_copies(store) == [2, 4]
    user.kill()  # a killed process uses nothing
    user.communicate()
    end(start_user(store, 0, 1))
    assert list_copies(store) == [0, 1]


def test_without_space_only_copies_in_use_are_kept(store, monkeypatch):
    monkeypatch.setenv(CACHE_SIZE_VARIABLE, "0")
    end(start_user(store, 0, 1))
    end(start_user(store, 2))
    assert list_copies(store) == [2]


def test_all_stores_of_a_process_count_as_one(store):
    for number in range(4):
        again = Store(store.uri, store.work_folder)
        again.fetch_object(key_of(number), sha256_hex(data_of(number)))
    assert list_copies(store) == [0, 1, 2, 3]
    assert len([*(store.work_folder / FETCH_USERS_FOLDER).iterdir()]) == 1


def test_a_fetched_copy_is_read_again_without_a_lock(store, monkeypatch):
    store.fetch_object(key_of(0), sha256_hex(data_of(0)))
    monkeypatch.setattr(FetchedCopies, "_hold_lock", lambda *_: pytest.fail("locked"))
    assert store.fetch_object(key_of(0), sha256_hex(data_of(0))).read_bytes() == data_of(0)


@pytest.mark.parametrize("value", ["much", "-1", "nan", "inf", "1 TB"])
def test_a_wrong_size_is_a_sentence(bucket, tmp_path, monkeypatch, value):
    monkeypatch.setenv(CACHE_SIZE_VARIABLE, value)
    with pytest.raises(UsageError, match=f"HALLMARK_CACHE_GB is '{value}', but must be a number"):
        Store("s3://hallmark/x", tmp_path)
    Store(tmp_path / "local")  # which has no copies


def test_the_default_is_used_if_the_variable_is_empty(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_SIZE_VARIABLE, "")
    Store("s3://hallmark/x", tmp_path)
    assert "HALLMARK_CACHE_GB" in os.environ
