"""Runs of a store into which somebody else wrote: no row is split, and no command hangs."""

import json
import os
import socket
import time

import pytest

from hallmark.flows.commands.runs import list_runs, render_run_list
from hallmark.flows.commands.status import build_status_report, render_status
from hallmark.flows.run_liveness import FUTURE_TOLERANCE_SECONDS
from hallmark.flows.run_order import assign_run_number
from hallmark.flows.run_progress import format_progress_key
from hallmark.flows.runs import open_run
from hallmark.flows.training_stop import TrainingStopReader, format_stop_key
from hallmark.tasks.contract import HallmarkError, Store
from tests.flows.test_untrusted_run_names import RECORD
from tests.time_limits import limit_time


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def add_run(store, run_id="r1", **changes):
    record = RECORD | {"stages": [], "run": run_id} | changes
    store.put(f"runs/{run_id}/run.json", json.dumps(record).encode())


def test_a_pipe_in_place_of_a_record_is_skipped(store, caplog):
    add_run(store)
    assign_run_number(store, "zzz")
    (store.root_folder / "runs" / "zzz").mkdir()
    os.mkfifo(store.root_folder / "runs" / "zzz" / "run.json")
    with limit_time(20):
        assert [row["run"] for row in list_runs(store.uri)] == ["r1"]
        with pytest.raises(HallmarkError, match=r"zzz/run\.json is a named pipe"):
            open_run("zzz", store)
    assert "skipped: " in caplog.text and "run.json is a named pipe" in caplog.text


def test_a_pipe_in_place_of_a_request_to_stop_does_not_stall_a_training(store, monkeypatch):
    monkeypatch.setattr("hallmark.flows.training_stop.CHECK_INTERVAL_SECONDS", 0.0)
    path = store.root_folder / format_stop_key("r1")
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with limit_time():
        assert TrainingStopReader(store, "r1").find_stop_reason() is None


LINE_BREAKS = "\n\r\n\x0b\x0c\x1c\x85\u2028\u2029"


@pytest.mark.parametrize("key", ["host", "config_name", "error", "checkpoint", "flow", "folder"])
def test_each_run_has_one_short_line(store, key):
    text = f"a{LINE_BREAKS}fake-run  pipeline  completed" + "x" * 1_000_000
    add_run(store, "r0")
    add_run(store, status="running" if key == "host" else "failed", **{key: text})
    output = render_run_list(list_runs(store.uri))
    assert len(output.splitlines()) == 3 and len(output) < 10_000
    report = render_status(build_status_report(open_run("r1", store)))
    assert not any(line.startswith("fake-run") for line in report.splitlines())
    assert len(report) < 50_000


@pytest.mark.parametrize("length", [248, 252, 255])
def test_a_long_run_id_does_not_fail_the_list(store, length):
    run_id = "r" * length
    add_run(store, run_id, status="running", host=socket.gethostname())
    [row] = list_runs(store.uri)
    assert row["run"] == run_id and row["status"] == "interrupted"
    assert render_status(build_status_report(open_run(run_id, store)))


@pytest.mark.parametrize(
    ("seconds_ahead", "status"),
    [
        (FUTURE_TOLERANCE_SECONDS / 2, "running"),
        (1_000_000, "interrupted"),
        (10**12, "interrupted"),
    ],
)
def test_a_sign_of_life_from_the_future_is_none(store, seconds_ahead, status):
    add_run(store, status="running", host="another host", started="2026-11-29T00:00:00+00:00")
    store.put(format_progress_key("r1"), b"{}")
    path = store.root_folder / format_progress_key("r1")
    try:
        os.utime(path, (time.time() + seconds_ahead,) * 2)
    except OSError:
        pytest.skip("the file system has no such times")
    run = open_run("r1", store)
    assert run.status == status
    if status == "interrupted":
        assert run.reason.endswith("since 2026-11-29T00:00:00+00:00")
