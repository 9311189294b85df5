"""Resume a training from states that it left in the store, or that another training left.

Trainings share a work area if they differ only in settings that change no batch or, with the
schedules `wsd` and `constant`, in what determines the learning rates of later steps: the number of
steps can be raised. Each schedule has its own folder in the area, so that no training deletes
another's states. If the store is no local folder, the states of this training are sent to the
store, and a training on another host begins with the newest of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa

from hallmark.model.config import BATCH_INVARIANT_SETTINGS, SCHEDULE_SETTINGS, TrainConfig
from hallmark.model.training.schedule import find_last_step_before_decay
from hallmark.model.training.work_folder import (
    iter_resumable_steps,
    link_outputs_until,
    list_state_steps,
)
from hallmark.tasks.contract import (
    StageContext,
    column,
    sha256_hex,
    table_schema,
    to_canonical_json,
)

#: Name of the trainer's job file in the work area; it records the data of the trainings.
JOB_FILE = "job.json"

#: Schedules whose first steps do not depend on the total number of steps.
EXTENDABLE_SCHEDULES = ("wsd", "constant")

SETTINGS = table_schema(
    "Training settings that may be changed when training is resumed, because they do not affect "
    "the batches. The table has one row per setting and segment of steps. If there is more than "
    "one segment, training was resumed with different settings; the results then match an "
    "uninterrupted run except for small random differences.",
    column(
        "first_step", pa.int64(), "figure", "first step of the segment; steps are counted from 1"
    ),
    column("last_step", pa.int64(), "figure", "last step of the segment"),
    column(
        "setting",
        pa.string(),
        "label",
        "setting name in the `train` section of the config; for `device`, `precision`, "
        "`processes` and `compile`, the value that was actually used is recorded (`processes`: "
        "on each host)",
    ),
    column("value", pa.string(), "label", "value of the setting, as JSON"),
)


#: The config of a stage as a run records it: settings by name, in sections.
RecordedConfig = dict[str, Any]


def select_batch_settings(recorded_config: RecordedConfig) -> RecordedConfig:
    """Return the config of a training stage without the settings that change no batch."""
    train_settings = {
        name: value
        for name, value in recorded_config["train"].items()
        if name not in BATCH_INVARIANT_SETTINGS
    }
    return recorded_config | {"train": train_settings}


def select_past_step_settings(recorded_config: RecordedConfig) -> RecordedConfig:
    """Return the config of `pretrain` without what does not determine the steps so far."""
    batch_settings = select_batch_settings(recorded_config)
    excluded_keys = (
        SCHEDULE_SETTINGS if batch_settings["train"]["schedule"] in EXTENDABLE_SCHEDULES else ()
    )
    train_settings = {
        name: value for name, value in batch_settings["train"].items() if name not in excluded_keys
    }
    return batch_settings | {"train": train_settings}


def choose_training_folder(context: StageContext, train_config: TrainConfig) -> Path:
    """Return the folder of a training in the work area.

    If the store has a newer state of it, fetch that. If it has no state yet, link the newest state
    of another training from which it can continue.
    """
    work_area = context.work_area
    schedule_settings = {name: getattr(train_config, name) for name in SCHEDULE_SETTINGS}
    schedule_hash = sha256_hex(to_canonical_json(schedule_settings))[:8]
    folder = work_area / f"training-{schedule_hash}"
    fetch_stored_state(context, folder)
    if not list_state_steps(folder):
        resumable_states = [
            (step, source_folder)
            for source_folder in sorted(_list_training_folders(work_area) - {folder})
            for step in iter_resumable_steps(source_folder, train_config)
        ]
        if resumable_states:
            step, source_folder = max(resumable_states)
            link_outputs_until(source_folder, step, folder)
    return folder


def fetch_stored_state(context: StageContext, training_folder: Path) -> None:
    """Replace the folder of a training by a state of the store, if that has a newer one."""
    if context.stored_states is not None:
        newest_step = next(iter(list_state_steps(training_folder)), None)
        context.stored_states.restore(training_folder, newest_step)


def send_state(context: StageContext, training_folder: Path, step: int) -> None:
    """Send a state, and the outputs until then, to the store in the background."""
    if context.stored_states is not None:
        # The trainer removes old states: if it has removed this one, a newer one follows.
        with suppress(OSError):
            context.stored_states.send(
                training_folder.name,
                step,
                lambda copy_folder: link_outputs_until(training_folder, step, copy_folder),
            )


def preserve_resumable_states(work_area: Path, folder: Path, train_config: TrainConfig) -> set[str]:
    """Return the names in the work area to keep when a training is done.

    They are the folders of other trainings, and a folder with this training's last state from which
    a longer training can continue.
    """
    if train_config.schedule in EXTENDABLE_SCHEDULES and find_last_step_before_decay(
        train_config
    ) in list_state_steps(folder):
        link_outputs_until(
            folder,
            find_last_step_before_decay(train_config),
            work_area / folder.name.replace("training", "kept"),
        )
    preserved_names = {path.name for path in _list_training_folders(work_area) - {folder}}
    return preserved_names | {JOB_FILE} if preserved_names else set()


def _list_training_folders(work_area: Path) -> set[Path]:
    return {*work_area.glob("training-*"), *work_area.glob("kept-*")}


#: Settings of the trainer, and the first step that ran under them.
SettingsSegment = TypedDict("SettingsSegment", {"from": int, "settings": dict[str, Any]})


def build_settings_table(settings_history: Sequence[SettingsSegment], total_steps: int) -> pa.Table:
    """Build the rows of SETTINGS."""
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
