"""A local store into which somebody else put pipes, sockets, devices and links."""

import os
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hallmark.tasks.contract import HallmarkError, Store, UsageError, read_regular_file
from hallmark.tasks.contract.external_inputs import RECORD_FILE, ExternalInputMonitor
from hallmark.tasks.contract.lease import lease_folder
from tests.tasks.contract.stages import MakeConfig, make
from tests.time_limits import limit_time


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # an absolute path may be too long


def make_outside_file(path: Path) -> Path:
    outside = path.parents[2] / "outside"
    outside.write_text("{}")
    return outside


HOSTILE_FILES = {
    "a named pipe": lambda path: os.mkfifo(path),
    "a socket": make_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link out of the store": lambda path: path.symlink_to(make_outside_file(path)),
    "a link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("kind", HOSTILE_FILES)
def test_what_is_no_file_of_the_store_is_not_read(store, kind):
    path = store.root_folder / "runs" / "a"
    path.parent.mkdir(parents=True)
    HOSTILE_FILES[kind](path)
    sentence = r"runs/a (is|points) .*; (remove it|remove the link), then run again"
    for read in (
        store.get,
        store.read_modification_time,
        lambda key: store.fetch_object(key, "0"),
        lambda key: store.create_if_absent(key, b"x"),
    ):
        with limit_time(), pytest.raises(HallmarkError, match=sentence):
            read("runs/a")


def test_a_folder_of_the_store_that_is_a_link_is_neither_read_nor_changed(store, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a").write_text("kept")
    (store.root_folder / "runs").symlink_to(tmp_path / "outside")
    for change in (
        lambda: store.get("runs/a"),
        lambda: store.put("runs/b", b"x"),
        lambda: store.create_if_absent("runs/b", b"x"),
        lambda: store.delete(["runs/a"]),
    ):
        with pytest.raises(
            HallmarkError, match=(r"runs/\w points outside the store; remove the link")
        ):
            change()
    assert os.listdir(tmp_path / "outside") == ["a"]


def test_a_link_inside_the_store_is_read(store):
    store.put("runs/a", b"x")
    (store.root_folder / "runs" / "b").symlink_to("a")
    assert store.get("runs/b") == b"x"


def test_a_table_that_is_a_pipe_is_refused(session):
    artifact = make(MakeConfig(documents=5))
    path = artifact["documents"].parts[0].path
    path.unlink()
    os.mkfifo(path)
    for read in (artifact["documents"].read, artifact.verify_files, artifact.verify_tables):
        with limit_time(), pytest.raises(HallmarkError, match="is a named pipe"):
            read()


def test_names_that_are_no_keys_are_ignored_with_one_warning(store, caplog):
    folder = store.root_folder / "runs"
    store.put("runs/good/run.json", b"{}")
    for name in (b"not-utf-8-\xff", b"control-\x07\n", b"good#1"):
        (Path(os.fsdecode(bytes(folder))) / os.fsdecode(name)).mkdir()
        (Path(os.fsdecode(bytes(folder))) / os.fsdecode(name) / "run.json").touch()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "root").symlink_to("/")
    for _ in range(2):
        with limit_time():
            assert store.list_folder_names("runs") == ["good", "good#1"]
            assert store.list_keys("runs") == ["runs/good#1/run.json", "runs/good/run.json"]
    [message] = [record.getMessage() for record in caplog.records]
    assert (
        ", runs/loop (is a link), runs/not-utf-8-\\udcff, runs/pipe (is a named pipe), " in message
    )
    assert "runs/root (is a link) in the store" in message
    assert message.startswith("ignored runs/control-\\x07\\n, ") and "; remove them" in message
    assert message.isprintable()


def test_a_listed_folder_that_is_a_link_is_ignored_with_a_warning(store, caplog):
    (store.root_folder / "run-order").symlink_to("/")
    with limit_time():
        assert store.list_keys("run-order") == []
        assert store.list_folder_names("run-order") == []
    [message] = [record.getMessage() for record in caplog.records]
    assert "ignored run-order (is a link) in the store" in message


@pytest.mark.parametrize("kind", ["a file", "a named pipe"])
@pytest.mark.parametrize("folder", ["reviews", "runs", "artifacts", "releases", "run-order"])
def test_a_folder_that_is_a_file_or_a_pipe_is_refused(store, folder, kind):
    path = store.root_folder / folder
    path.touch() if kind == "a file" else os.mkfifo(path)
    for use in (
        lambda: store.list_entry_names(folder),
        lambda: store.list_folder_names(folder),
        lambda: store.list_keys(folder),
        lambda: store.get(f"{folder}/a"),
        lambda: store.put(f"{folder}/a", b"x"),
        lambda: store.create_if_absent(f"{folder}/a/b", b"x"),
    ):
        sentence = rf"/{folder} is {kind}, but must be a folder; restore it from a backup, or"
        with limit_time(), pytest.raises(HallmarkError, match=sentence):
            use()


def test_unfinished_uploads_are_not_listed(store):
    store.put("runs/a", b"x")
    (store.root_folder / "runs" / "a#7").write_text("unfinished")
    assert store.list_keys("runs") == ["runs/a"]


def test_a_work_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "work").symlink_to(tmp_path / "other")
    with pytest.raises(UsageError, match=r"store/work is a link to .*other.*remove the link"):
        Store(tmp_path / "store")


def test_a_work_area_that_is_a_link_is_not_leased(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").touch()
    (tmp_path / "area").symlink_to(tmp_path / "other")
    with (
        pytest.raises(UsageError, match=r"area is a link to .*other"),
        lease_folder(tmp_path / "area"),
    ):
        pass
    assert os.listdir(tmp_path / "other") == ["kept"]


def test_the_modification_time_is_that_of_the_file(store):
    store.put("a", b"")
    seconds = 1_000_000_000
    os.utime(store.root_folder / "a", (seconds, seconds))
    assert store.read_modification_time("a") == datetime.fromtimestamp(seconds, UTC)
    assert store.read_modification_time("b") is None


def test_a_secret_that_is_a_folder_is_refused(store):
    (store.root_folder / "secret").mkdir()
    with pytest.raises(HallmarkError, match=r"/secret is a folder.*restore it from a backup"):
        store.compute_secret_id()


def test_a_pipe_in_a_work_area_is_removed(tmp_path):
    os.mkfifo(tmp_path / RECORD_FILE)
    monitor = ExternalInputMonitor([], {}, dict)
    with limit_time():
        monitor.clear_outdated_work_area_and_record_files(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_pipe_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"x")
    assert read_regular_file(tmp_path / "file") == b"x"
    with limit_time(), pytest.raises(OSError, match="not a regular file"):
        read_regular_file(tmp_path / "pipe")
