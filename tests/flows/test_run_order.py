"""The order of the runs of a store does not depend on the clocks of their hosts."""

import json
import threading

import pytest

from hallmark.flows.notices import NOTICE
from hallmark.flows.run_order import assign_number_of_copied_run, assign_run_number, list_run_ids
from hallmark.flows.runs import open_run, read_all_runs
from hallmark.tasks.contract import Store


@pytest.fixture(params=["folder", "bucket"])
def store(request, tmp_path) -> Store:
    if request.param == "folder":
        return Store(tmp_path / "store")
    bucket = request.getfixturevalue("bucket")
    assert bucket
    return Store(f"s3://hallmark/{request.node.name}", tmp_path / "work")


def start_run(store: Store, run_id: str, started: str | None = None) -> None:
    """Write what a run writes when it begins, and end it."""
    write_record(store, run_id, started)
    assign_run_number(store, run_id)


def write_record(store: Store, run_id: str, started: str | None = None) -> None:
    record = {"run": run_id, "flow": "pipeline", "config_name": "x"}
    record |= {"config": {}, "checkpoint": None, "status": "completed"}
    record |= {"started": started, "ended": None, "host": "h", "pid": 1}
    record |= {"platform": "", "stages": [], "error": None}
    store.put(f"runs/{run_id}/run.json", json.dumps(record).encode())


def test_the_last_run_to_begin_is_the_latest_whatever_its_id(store, caplog):
    for run_id in ("20260101-120000-a", "20260101-130000-b", "20260101-110000-c"):
        start_run(store, run_id)
    ids = ["20260101-120000-a", "20260101-130000-b", "20260101-110000-c"]
    assert list_run_ids(store) == [run.id for run in read_all_runs(store)] == ids
    with caplog.at_level(NOTICE, "hallmark"):
        assert open_run("latest", store).id == "20260101-110000-c"
    assert caplog.messages == ["latest refers to run 20260101-110000-c, the newest run"]


def test_runs_without_a_number_are_the_oldest(store):
    start_run(store, "m")
    for run_id in ("z", "b"):
        start_run(store, run_id)
        store.delete([key for key in store.list_keys("run-order") if key.endswith(f"-{run_id}")])
    start_run(store, "a")
    assert list_run_ids(store) == ["b", "z", "m", "a"]


def test_a_run_is_listed_as_soon_as_its_record_can_be_read(store):
    start_run(store, "b")
    store.put("runs/a/lease", b"{}")
    assert list_run_ids(store) == [run.id for run in read_all_runs(store)] == ["b"]
    assert open_run("latest", store).id == "b"
    write_record(store, "a")
    assert list_run_ids(store) == ["a", "b"]
    assign_run_number(store, "a")
    assert list_run_ids(store) == ["b", "a"]


def test_a_copied_run_is_one_of_the_oldest_unless_the_store_had_it(store):
    for run_id in ("b", "c"):
        start_run(store, run_id)
    write_record(store, "d")
    for run_id in ("d", "c"):
        assign_number_of_copied_run(store, run_id)
    assert list_run_ids(store) == ["d", "b", "c"]


def test_a_run_that_is_started_again_is_the_newest(store):
    for run_id in ("a", "b", "a"):
        start_run(store, run_id)
    assert list_run_ids(store) == ["b", "a"]


def test_removed_runs_and_foreign_names_are_ignored(store):
    for name in ("x", "1", "-a", "٣-a", "00000007-never-recorded"):
        store.put(f"run-order/{name}", b"")
    for run_id in ("b", "a"):
        start_run(store, run_id)
    assert list_run_ids(store) == ["b", "a"]
    assert "run-order/00000009-a" in store.list_keys("run-order")


def test_simultaneous_runs_get_a_place_each(store):
    barrier = threading.Barrier(8)

    def begin(number: int) -> None:
        barrier.wait()
        start_run(store, f"r{number}")

    threads = [threading.Thread(target=begin, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = list_run_ids(store)
    assert sorted(ids) == [f"r{number}" for number in range(8)]
    start_run(store, "a")
    assert list_run_ids(store) == [*ids, "a"]


def test_a_number_that_no_run_can_have_is_ignored(store):
    store.put(f"run-order/{'9' * 200}-b", b"")
    start_run(store, "a")
    start_run(store, "b")
    start_run(store, "c")
    assert list_run_ids(store) == ["a", "b", "c"]
