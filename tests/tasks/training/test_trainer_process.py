"""Test the trainer's process: failures, restarts and reported metrics."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from hallmark.tasks.contract import Event, HallmarkError, Session, Store, open_session
from hallmark.tasks.training import trainer_process
from hallmark.tasks.training.pretrain import pretrain
from tests.tasks.training.pretraining import CONFIG, prepare_inputs

pytestmark = pytest.mark.usefixtures("forked_trainers")


@pytest.mark.parametrize("code", [1, 127, 128, 255, -200])
def test_an_exit_code_without_a_signal_is_a_failure(monkeypatch, tmp_path: Path, code) -> None:
    ended_process = SimpleNamespace(pid=1, stdout=[], wait=lambda: code)
    monkeypatch.setattr(trainer_process, "start_trainer", lambda *_: nullcontext(ended_process))
    (tmp_path / "errors").write_text("of no use\n")
    with pytest.raises(HallmarkError, match=f"exit code {code}: 'of no use'"):
        list(trainer_process.iter_trainer_events(tmp_path / "job.json", tmp_path / "errors"))


@pytest.mark.parametrize("code", [-9, 137])
def test_a_killed_trainer_is_restarted_a_limited_number_of_times(
    monkeypatch, tmp_path: Path, code
) -> None:
    ended_process = SimpleNamespace(pid=1, stdout=[], wait=lambda: code)
    monkeypatch.setattr(trainer_process, "start_trainer", lambda *_: nullcontext(ended_process))
    with pytest.raises(HallmarkError, match="killed 4 times, the last time by SIGKILL"):
        list(trainer_process.iter_trainer_events(tmp_path / "job.json", tmp_path / "errors"))


def test_a_trainer_without_restarts_is_killed_once(monkeypatch, tmp_path: Path) -> None:
    ended_process = SimpleNamespace(pid=1, stdout=[], wait=lambda: -9)
    monkeypatch.setattr(trainer_process, "start_trainer", lambda *_: nullcontext(ended_process))
    events = trainer_process.iter_trainer_events(
        tmp_path / "job.json", tmp_path / "errors", max_restarts=0
    )
    with pytest.raises(HallmarkError, match="the trainer was killed by SIGKILL; if the machine"):
        list(events)


def test_metrics_are_reported_during_training(tmp_path: Path) -> None:
    events: list[Event] = []
    inputs = prepare_inputs(tmp_path)
    with open_session(Session(Store(tmp_path), listener=events.append)):
        made = pretrain(*inputs, CONFIG)
    log = {row["step"]: row for row in made["log"].read().to_pylist()}
    speed = {row["step"]: row for row in made.read_telemetry("speed").to_pylist()}
    metrics_by_step = {
        event.completed: event.metrics for event in events if "loss" in event.metrics
    }
    assert metrics_by_step and 300 in metrics_by_step
    for step, figures in metrics_by_step.items():
        for name in ("loss", "learning_rate", "grad_norm"):
            assert figures[name] == log[step][name]
        for name in ("tokens_per_second", "mfu"):
            assert figures[name] == speed[step][name] > 0
    validated = [e.completed for e in events if "validation_bits_per_token" in e.metrics]
    assert validated == [0, 100, 200, 300]
    descriptions = [event.description for event in events if event.kind == "progress"]
    first_read_table = descriptions.index("write_document_reads")
    assert {*descriptions[first_read_table:]} == {
        "write_document_reads"
    }  # Reads of documents are computed last.
    last_progress = descriptions[first_read_table - 1]
    last = log[300]
    assert last_progress.startswith(
        f"loss {last['loss']:.3f}, validation {last['validation_loss']:.3f} (step "
    )
    assert re.search(
        rf" [\d,]+ tokens/s, MFU \d+%, learning rate {last['learning_rate']:.2g}, gradient norm ",
        last_progress,
    )
