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

from hallmark.model.config import BATCH_INVARIANT_SETTINGS, SCHEDULE_SETTINGS, TrainConfig
from hallmark.model.training.schedule import find_last_step_before_decay
from hallmark.model.training.work_folder import (
    iter_branchable_steps,
    link_outputs_until,
    list_state_steps,
)
from hallmark.tasks.contract import column, sha256_hex, table_schema, to_canonical_json

#: Schedules of which a longer training begins as a shorter one does.
EXTENDABLE_SCHEDULES = ("wsd", "constant")

SETTINGS = table_schema(
    "Under which settings that change no batch the steps ran: a row for each setting of each "
    "stretch of steps. Of more than one stretch, the training went on from the state of a run "
    "with other settings, and its figures agree with those of an undivided one within their noise.",
    column("first_step", pa.int64(), "figure", "first step of the stretch, from 1"),
    column("last_step", pa.int64(), "figure", "last step of the stretch"),
    column(
        "setting",
        pa.string(),
        "label",
        "key in the section train; device, precision, "
        "processes and compile are those that were used",
    ),
    column("value", pa.string(), "label", "its value, as JSON"),
)


def remove_batch_neutral_settings(recorded_config: dict[str, Any]) -> dict[str, Any]:
    """The recorded config of a stage that trains, without what changes no batch."""
    train_settings = {
        k: v for k, v in recorded_config["train"].items() if k not in BATCH_INVARIANT_SETTINGS
    }
    return recorded_config | {"train": train_settings}


def select_past_step_settings(recorded_config: dict[str, Any]) -> dict[str, Any]:
    """What of the recorded config of ``pretrain`` decides the steps that are done, whatever is
    still to come."""
    batch_settings = remove_batch_neutral_settings(recorded_config)
    excluded_keys = (
        SCHEDULE_SETTINGS if batch_settings["train"]["schedule"] in EXTENDABLE_SCHEDULES else ()
    )
    return batch_settings | {
        "train": {k: v for k, v in batch_settings["train"].items() if k not in excluded_keys}
    }


def prepare_training_folder(work_area: Path, train_config: TrainConfig) -> Path:
    """Where a training works in the area. One without a state begins with the newest that another
    left and from which it can go on."""
    schedule_hash = sha256_hex(
        to_canonical_json(
            {
                schedule_hash: getattr(train_config, schedule_hash)
                for schedule_hash in SCHEDULE_SETTINGS
            }
        )
    )[:8]
    folder = work_area / f"training-{schedule_hash}"
    if not list_state_steps(folder):
        resumable_states = [
            (step, source_folder)
            for source_folder in sorted(_list_training_folders(work_area) - {folder})
            for step in iter_branchable_steps(source_folder, train_config)
        ]
        if resumable_states:
            step, source_folder = max(resumable_states)
            link_outputs_until(source_folder, step, folder)
    return folder


def preserve_resumable_states(work_area: Path, folder: Path, train_config: TrainConfig) -> set[str]:
    """The names in the area that stay when a training is done: the folders of others, and of this
    one the state from which a longer one goes on."""
    if train_config.schedule in EXTENDABLE_SCHEDULES and find_last_step_before_decay(
        train_config
    ) in list_state_steps(folder):
        link_outputs_until(
            folder,
            find_last_step_before_decay(train_config),
            work_area / folder.name.replace("training", "kept"),
        )
    preserved_names = {path.name for path in _list_training_folders(work_area) - {folder}}
    return (
        preserved_names | {"job.json"} if preserved_names else set()
    )  # which says on what they trained


def _list_training_folders(work_area: Path) -> set[Path]:
    return {*work_area.glob("training-*"), *work_area.glob("kept-*")}


def build_settings_table(settings_history: Sequence[dict[str, Any]], total_steps: int) -> pa.Table:
    """Rows of SETTINGS from what the trainer tells: [{"from": step, "settings": {…}}, …]."""
    last_steps = [segment["from"] - 1 for segment in settings_history[1:]] + [total_steps]
    rows = [
        {
            "first_step": segment["from"],
            "last_step": last_step,
            "setting": setting,
            "value": json.dumps(value),
        }
        for segment, last_step in zip(settings_history, last_steps, strict=True)
        if segment["from"] <= last_step
        for setting, value in sorted(segment["settings"].items())
    ]
    return pa.Table.from_pylist(rows, schema=SETTINGS)
