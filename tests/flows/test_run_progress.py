"""The progress of a running stage is kept in the store, and removed with the end of the run."""

import json
import os

import pytest

from hallmark.flows import run_progress
from hallmark.flows.run_progress import (
    MAX_CURVE_POINTS,
    RunProgress,
    RunProgressListener,
    format_progress_key,
    read_run_progress,
)
from hallmark.tasks.contract import Event, Store
from tests.time_limits import limit_time


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "store"))


@pytest.fixture
def listener(store, monkeypatch):
    monkeypatch.setattr(run_progress, "WRITE_INTERVAL_SECONDS", 0)
    return RunProgressListener(store, "r")


def make_figures(step, **metrics):
    return Event("figures", "pretrain", completed=step, metrics=metrics)


def test_progress_and_losses_are_written_and_removed(store, listener):
    assert read_run_progress(store, "r") is None
    listener(Event("start", "pack"))
    listener(make_figures(1, loss=9.0))
    listener(Event("start", "pretrain"))
    listener(Event("progress", "pretrain", completed=2, total=5, description="loss 8"))
    listener(make_figures(2, loss=8.0, learning_rate=1.0))
    listener(make_figures(2, validation_bits_per_token=4.0))
    listener(make_figures(3, loss=float("nan")))
    listener(Event("silence", ""))
    curves = {"loss": [[2, 8.0]], "validation_bits_per_token": [[2, 4.0]]}
    assert read_run_progress(store, "r") == RunProgress("pretrain", 2, 5, "loss 8", curves)
    listener.remove_file()
    listener(make_figures(4, loss=1.0))  # a listener may still deliver what it holds
    assert read_run_progress(store, "r") is None and store.list_keys("runs") == []
    listener.remove_file()


def test_a_run_without_events_has_no_file_to_remove(store, listener):
    listener.remove_file()
    assert store.list_keys("runs") == []


def test_a_long_curve_is_thinned_and_keeps_its_ends(listener):
    for step in range(1, 3 * MAX_CURVE_POINTS):
        listener.progress.handle_event(make_figures(step, loss=1.0))
    points = listener.progress.curves["loss"]
    assert len(points) <= MAX_CURVE_POINTS and points[0][0] == 1
    assert points[-1][0] == 3 * MAX_CURVE_POINTS - 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"label": 3}',
        b'{"other": 3}',
        b'{"curves": []}',
        b'{"curves": {"loss": [[1]]}}',
        b'{"curves": {"loss": [[1, "a"]]}}',
        b'{"completed": "1"}',
        b'{"completed": -1}',
        b'{"completed": true}',
        b'{"total": 9223372036854775808}',
        b'{"label": "pack\\nfake-run  completed"}',
        b'{"label": "' + b"x" * 1_000_000 + b'"}',
        b'{"description": "' + b"x" * 1_000_000 + b'"}',
        b'{"curves": {"loss": ' + json.dumps([[1, 1]] * 10_000).encode() + b"}}",
    ],
)
def test_a_damaged_file_is_ignored(store, content):
    store.put(format_progress_key("r"), content)
    assert read_run_progress(store, "r") is None


def test_missing_fields_have_defaults(store):
    store.put(format_progress_key("r"), json.dumps({"label": "pack"}).encode())
    assert read_run_progress(store, "r") == RunProgress("pack")


def test_a_pipe_in_place_of_the_file_is_ignored(store):
    path = store.root_folder / format_progress_key("r")
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with limit_time():
        assert read_run_progress(store, "r") is None
