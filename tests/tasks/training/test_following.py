"""What is heard of a training while it goes on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tasks.contract import Event, Session, Store, open_session
from tasks.training.pretrain import pretrain
from tests.tasks.training.pretraining import CONFIG, prepared

pytestmark = pytest.mark.usefixtures("forked_trainers")


def test_figures_are_seen_while_it_trains(tmp_path: Path) -> None:
    heard: list[Event] = []
    inputs = prepared(tmp_path)
    with open_session(Session(Store(tmp_path), listener=heard.append)):
        made = pretrain(*inputs, CONFIG)
    log = {row["step"]: row for row in made["log"].read().to_pylist()}
    speed = {row["step"]: row for row in made.telemetry("speed").to_pylist()}
    told = {event.done: event.figures for event in heard if "loss" in event.figures}
    assert told and 300 in told
    for step, figures in told.items():
        for name in ("loss", "learning_rate", "grad_norm"):
            assert figures[name] == log[step][name]
        for name in ("tokens_per_second", "mfu"):
            assert figures[name] == speed[step][name] > 0
    validated = [e.done for e in heard if "validation_bits_per_token" in e.figures]
    assert validated == [0, 100, 200, 300]
    said = [event.what for event in heard if event.kind == "progress"][-1]
    last = log[300]
    assert said.startswith(f"loss {last['loss']:.3f}, rate {last['learning_rate']:.2g}, norm ")
    assert re.search(r" [\d,]+ tokens/s, MFU \d+%$", said)
