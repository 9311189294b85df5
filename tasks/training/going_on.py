"""Trainings that go on from what another one left in the work area that they share.

Those share it that differ in nothing but settings that change no batch and, with the schedules
``wsd`` and ``constant``, in what the rates of later steps depend on: steps can be raised. In it
each schedule has a folder of its own, so that none takes another's states away.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from model.config import CHANGE_NO_BATCH, SCHEDULE, TrainConfig
from model.training.schedule import settled
from model.training.work import branches, link_until, states
from tasks.contract import canonical, column, sha256, table

#: Schedules of which a longer training begins as a shorter one does.
LONGER = ("wsd", "constant")

SETTINGS = table(
    "Under which settings that change no batch the steps ran: a row for each setting of each "
    "stretch of steps. Of more than one stretch, the training went on from the state of a run "
    "with other settings, and its figures agree with those of an undivided one within their noise.",
    column("first_step", pa.int64(), "figure", "first step of the stretch, from 1"),
    column("last_step", pa.int64(), "figure", "last step of the stretch"),
    column("setting", pa.string(), "label", "key in the section train; device, precision, "
           "processes and compile are those that were used"),
    column("value", pa.string(), "label", "its value, as JSON"),
)  # fmt: skip


def of_batches(recorded: dict[str, Any]) -> dict[str, Any]:
    """The recorded config of a stage that trains, without what changes no batch."""
    train = {k: v for k, v in recorded["train"].items() if k not in CHANGE_NO_BATCH}
    return recorded | {"train": train}


def of_past_steps(recorded: dict[str, Any]) -> dict[str, Any]:
    """What of the recorded config of ``pretrain`` decides the steps that are done, whatever is
    still to come."""
    found = of_batches(recorded)
    apart = SCHEDULE if found["train"]["schedule"] in LONGER else ()
    return found | {"train": {k: v for k, v in found["train"].items() if k not in apart}}


def training_folder(area: Path, train: TrainConfig) -> Path:
    """Where a training works in the area. One without a state begins with the newest that another
    left and from which it can go on."""
    name = sha256(canonical({name: getattr(train, name) for name in SCHEDULE}))[:8]
    folder = area / f"training-{name}"
    if not states(folder):
        others = [(step, other) for other in sorted(_folders(area) - {folder})
                  for step in branches(other, train)]  # fmt: skip
        if others:
            step, other = max(others)
            link_until(other, step, folder)
    return folder


def keep(area: Path, folder: Path, train: TrainConfig) -> set[str]:
    """The names in the area that stay when a training is done: the folders of others, and of this
    one the state from which a longer one goes on."""
    if train.schedule in LONGER and settled(train) in states(folder):
        link_until(folder, settled(train), area / folder.name.replace("training", "kept"))
    others = {path.name for path in _folders(area) - {folder}}
    return others | {"job.json"} if others else set()  # which says on what they trained


def _folders(area: Path) -> set[Path]:
    return {*area.glob("training-*"), *area.glob("kept-*")}


def settings_rows(history: Sequence[dict[str, Any]], steps: int) -> pa.Table:
    """Rows of SETTINGS from what the trainer tells: [{"from": step, "settings": {…}}, …]."""
    ends = [part["from"] - 1 for part in history[1:]] + [steps]
    rows = [
        {"first_step": part["from"], "last_step": end, "setting": key, "value": json.dumps(value)}
        for part, end in zip(history, ends, strict=True)
        if part["from"] <= end
        for key, value in sorted(part["settings"].items())
    ]
    return pa.Table.from_pylist(rows, schema=SETTINGS)
