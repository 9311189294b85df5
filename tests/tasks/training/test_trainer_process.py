"""What is heard of a training while it goes on."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from hallmark.tasks.contract import Event, HallmarkError, Session, Store, open_session
from hallmark.tasks.training import trainer_process
from hallmark.tasks.training.pretrain import pretrain
from tests.tasks.training.pretraining import CONFIG, prepared

pytestmark = pytest.mark.usefixtures("forked_trainers")


@pytest.mark.parametrize("code", [1, 127, 128, 255, -200])
def test_an_exit_code_that_is_no_signal_is_a_failure(monkeypatch, tmp_path: Path, code) -> None:
    ended = SimpleNamespace(pid=1, stdout=[], wait=lambda: code)
    monkeypatch.setattr(trainer_process, "start_trainer", lambda *_: nullcontext(ended))
    (tmp_path / "errors").write_text("of no use\n")
    with pytest.raises(HallmarkError, match=f"exit code {code}: 'of no use'"):
        list(trainer_process.iter_trainer_events(tmp_path / "job.json", tmp_path / "errors"))


@pytest.mark.parametrize("code", [-9, 137])
def test_a_killed_trainer_is_started_again_some_times(monkeypatch, tmp_path: Path, code) -> None:
    ended = SimpleNamespace(pid=1, stdout=[], wait=lambda: code)
    monkeypatch.setattr(trainer_process, "start_trainer", lambda *_: nullcontext(ended))
    with pytest.raises(HallmarkError, match="killed 4 times, the last time by SIGKILL"):
        list(trainer_process.iter_trainer_events(tmp_path / "job.json", tmp_path / "errors"))


def test_figures_are_seen_while_it_trains(tmp_path: Path) -> None:
    heard: list[Event] = []
    inputs = prepared(tmp_path)
    with open_session(Session(Store(tmp_path), listener=heard.append)):
        made = pretrain(*inputs, CONFIG)
    log = {row["step"]: row for row in made["log"].read().to_pylist()}
    speed = {row["step"]: row for row in made.read_telemetry("speed").to_pylist()}
    told = {event.completed: event.metrics for event in heard if "loss" in event.metrics}
    assert told and 300 in told
    for step, figures in told.items():
        for name in ("loss", "learning_rate", "grad_norm"):
            assert figures[name] == log[step][name]
        for name in ("tokens_per_second", "mfu"):
            assert figures[name] == speed[step][name] > 0
    validated = [e.completed for e in heard if "validation_bits_per_token" in e.metrics]
    assert validated == [0, 100, 200, 300]
    whats = [event.description for event in heard if event.kind == "progress"]
    behind = whats.index("write_document_reads")
    assert {*whats[behind:]} == {"write_document_reads"}  # what was read of each document, at last
    said = whats[behind - 1]
    last = log[300]
    assert said.startswith(f"loss {last['loss']:.3f}, rate {last['learning_rate']:.2g}, norm ")
    assert re.search(r" [\d,]+ tokens/s, MFU \d+%$", said)
