"""Every host says the same of a run whose process was killed, whatever the clocks of the hosts."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hallmark.flows import run_liveness
from hallmark.flows.commands.runs import list_runs
from hallmark.flows.commands.status import build_status_report, render_status
from hallmark.flows.document_purge import check_store_is_idle
from hallmark.flows.run_liveness import find_reason_of_silence, lease_run
from hallmark.flows.run_progress import format_progress_key
from hallmark.flows.runs import Run, open_run, read_all_runs
from hallmark.tasks.contract import Store, TemporaryError, object_store

HERE = socket.gethostname()
PROJECT_FOLDER = Path(__file__).parents[2]
Process = subprocess.Popen[str]


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def execute_run(tmp_path):
    """Start a run in a process of its own; it is killed at the end of the test."""
    processes: list[Process] = []

    def execute(store: Store, host: str = HERE, clock_offset: float = 0) -> tuple[str, Process]:
        work_folder = store.work_folder if host == HERE else tmp_path / f"work-{host}"
        arguments = [store.uri, str(work_folder), host, str(clock_offset)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.flows.executed_run", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=PROJECT_FOLDER,
        )
        processes.append(process)
        run_id = process.stdout.readline().strip()
        assert run_id, process.communicate()
        return run_id, process

    yield execute
    for process in processes:
        process.kill()
        process.communicate()


def kill(process: Process) -> None:
    process.kill()
    process.communicate()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def get_status(store: Store, run_id: str) -> str:
    return open_run(run_id, store).status


def make_silent_run(store: Store, **fields) -> Run:
    """Write the record of a run that says it is running, without a sign of life."""
    record = {"run": "r", "flow": "pipeline", "config_name": "x"}
    record |= {"config": {}, "checkpoint": None, "status": "running"}
    record |= {"started": "2026-01-01T10:00:00+00:00", "ended": None, "host": HERE}
    record |= {"pid": os.getpid(), "platform": "", "stages": [], "error": None} | fields
    run = Run(store, record)
    run.save()
    return run


@pytest.mark.slow
def test_a_killed_run_is_interrupted_at_once_on_its_host(store, execute_run):
    run_id, process = execute_run(store)
    assert get_status(store, run_id) == "running"
    kill(process)
    (row,) = list_runs(store.uri)
    assert row["status"] == "interrupted"
    assert row["error"].startswith(f"no sign of life from process {process.pid} on {HERE} since 20")
    text = render_status(build_status_report(open_run(run_id, store)))
    assert f"interrupted: {row['error']}" in text and "continue with: hallmark run smoke" in text
    assert json.loads(store.get(f"runs/{run_id}/run.json"))["status"] == "running"


@pytest.mark.slow
@pytest.mark.parametrize("clock_offset", [-3600, 0, 3600])
def test_a_run_killed_on_another_host_is_interrupted(store, execute_run, monkeypatch, clock_offset):
    run_id, process = execute_run(store, "host-a", clock_offset)
    monkeypatch.setattr(run_liveness, "SILENCE_SECONDS", 3.0)
    monkeypatch.setattr(object_store, "CLOCK_VALIDITY_SECONDS", 0.0)
    end = time.monotonic() + 4  # longer than the bound
    while time.monotonic() < end:
        assert get_status(store, run_id) == "running"
        time.sleep(0.1)
    with pytest.raises(Exception, match=f"run {run_id} on host-a is using the store"):
        check_store_is_idle(store, True, "")
    kill(process)
    killed_at = datetime.now(UTC)
    assert get_status(store, run_id) == "running"
    wait_until(lambda: get_status(store, run_id) == "interrupted")
    reason = open_run(run_id, store).reason
    start, _, since = reason.rpartition(" since ")
    assert start == f"no sign of life from process {process.pid} on host-a"
    assert abs(datetime.fromisoformat(since) - killed_at) < timedelta(seconds=3)
    check_store_is_idle(store, True, "")


@pytest.mark.slow
def test_a_run_in_object_storage_is_interrupted_for_other_hosts(
    bucket, tmp_path, execute_run, monkeypatch
):
    store = Store("s3://hallmark/liveness", tmp_path / "work")
    run_id, process = execute_run(store, "host-a", -3600)
    monkeypatch.setattr(run_liveness, "SILENCE_SECONDS", 3.0)
    monkeypatch.setattr(object_store, "CLOCK_VALIDITY_SECONDS", 0.0)
    progress_key = format_progress_key(run_id)
    first_sign = store.read_modification_time(progress_key)
    wait_until(lambda: store.read_modification_time(progress_key) > first_sign)
    assert get_status(store, run_id) == "running"
    kill(process)
    wait_until(lambda: get_status(store, run_id) == "interrupted")
    (row,) = list_runs(store.uri)
    assert (row["status"], row["current_stage"]) == ("interrupted", "")


def test_a_reused_process_id_is_no_sign_of_life(store):
    run = make_silent_run(store)  # with the id of this process
    assert run.status == "interrupted"
    process_name = f"process {os.getpid()} on {HERE}"
    assert run.reason == f"no sign of life from {process_name} since 2026-01-01T10:00:00+00:00"
    assert make_silent_run(store, started=None).reason == f"no sign of life from {process_name}"


@pytest.mark.slow
def test_the_run_that_began_last_is_the_latest_although_its_clock_is_slow(store, execute_run):
    first_id, _ = execute_run(store, "host-a", 3600)
    second_id, process = execute_run(store, "host-b", -3600)
    assert second_id < first_id
    assert open_run("latest", store).id == second_id
    assert [row["run"] for row in list_runs(store.uri)] == [first_id, second_id]
    process.communicate("")
    assert open_run("latest", store).id == second_id


@pytest.mark.slow
def test_a_run_that_ends_is_not_interrupted(store, execute_run):
    run_id, process = execute_run(store)
    earlier = open_run(run_id, store)  # as read before the run ended
    process.communicate("")
    assert earlier.status == "completed" and earlier.reason is None
    assert store.list_keys(f"runs/{run_id}") == [f"runs/{run_id}/run.json"]
    assert not list(store.work_folder.glob("run-*"))


def test_a_lease_or_a_recent_sign_is_a_sign_of_life(store, monkeypatch):
    run = make_silent_run(store, host="host-a")
    store.put(format_progress_key("r"), b"{}")
    assert find_reason_of_silence(store, run.record) is None
    monkeypatch.setattr(run_liveness, "SILENCE_SECONDS", -1.0)
    assert "on host-a since 20" in find_reason_of_silence(store, run.record)
    with lease_run(store, "r"):
        assert find_reason_of_silence(store, run.record) is None
    assert find_reason_of_silence(store, run.record) is not None


def test_what_somebody_else_put_there_is_no_sign_of_life(store, tmp_path):
    run = make_silent_run(store, host="host-a")
    progress = store.root_folder / format_progress_key("r")
    progress.symlink_to(progress)
    lease = store.work_folder / "run-r" / "lease"
    lease.parent.mkdir(parents=True)
    os.mkfifo(lease)
    assert "no sign of life" in find_reason_of_silence(store, run.record)
    lease.unlink()
    lease.symlink_to(lease)
    assert "no sign of life" in find_reason_of_silence(store, run.record)


def test_a_store_that_does_not_answer_interrupts_no_run(store, monkeypatch):
    run = make_silent_run(store, host="host-a")
    assert "no sign of life" in find_reason_of_silence(store, run.record)

    def fail(key):
        raise TemporaryError("the store does not answer")

    monkeypatch.setattr(store, "read_modification_time", fail)
    assert find_reason_of_silence(store, run.record) is None
    lease = store.work_folder / "run-r" / "lease"
    lease.parent.mkdir(parents=True)
    lease.touch()  # as a dead process of this host leaves it
    here = run.record | {"host": HERE}
    assert "no sign of life" in find_reason_of_silence(store, here)


@contextmanager
def read_only(folder: Path):
    """Make a folder read-only; mode bits do not stop root, so its work folder becomes a file."""
    (folder / "work").write_text("")
    yield
    (folder / "work").unlink()


def test_who_may_not_write_cannot_tell_the_time_and_calls_no_run_interrupted(store, monkeypatch):
    run = make_silent_run(store, host="host-a")
    store.put(format_progress_key("r"), b"{}")
    monkeypatch.setattr(run_liveness, "SILENCE_SECONDS", -1.0)
    with read_only(store.root_folder):
        assert store.read_current_time() is None
        assert find_reason_of_silence(store, run.record) is None


@pytest.mark.parametrize("status", ["cancelled", "interrupted"])
def test_a_stop_is_recorded_with_its_reason(store, status):
    run = make_silent_run(store)
    assert run.record_stop(status, "Prefect cancelled the flow run")
    (read_run,) = read_all_runs(store)
    assert (read_run.status, read_run.reason) == (status, "Prefect cancelled the flow run")
    assert read_run.record["ended"]
    assert not run.record_stop("interrupted", "another reason")
    assert open_run("r", store).reason == "Prefect cancelled the flow run"


def test_a_stop_is_not_recorded_for_a_run_that_has_ended(store):
    run = make_silent_run(store)
    make_silent_run(store, status="completed")
    assert not run.record_stop("cancelled", "a reason")
    assert run.status == "completed"
