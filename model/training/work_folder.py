"""Manage the work folder of a training: its states, and the outputs until each of them.

    state/step-*/          states to resume from: state.json, state.safetensors
    checkpoints/step-*/    models for other programs, never removed
    log, validation, samples/part-*.parquet

This module does not load torch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hallmark.model.config import TrainConfig, config_from_dict
from hallmark.model.interchange.atomic_files import remove_unfinished_writes
from hallmark.model.training.schedule import find_last_step_before_decay, have_same_rates_until

STATE_FORMAT = 7
STATES_FOLDER = "state"
OUTPUT_FOLDERS = ("checkpoints", "log", "validation", "samples")

#: What a message says of each key of ``identity`` in which two trainings differ.
IDENTITY_DIFFERENCES = {
    "model": "another model config",
    "train": "other training settings",
    "data": "other data",
    "start": "another start checkpoint",
    "frozen": "a different value of 'frozen'",
    "draws": "other random draws",
}

StateHeader = dict[str, Any]


class DamagedStateError(ValueError):
    """A state cannot be used; the message names it, and says what to remove."""

    def __init__(self, state_folder: Path, reason: object) -> None:
        other_states = [path for path in state_folder.parent.glob("step-*") if path != state_folder]
        advice = (
            f"remove {state_folder} to resume training from the previous state"
            if other_states
            else "remove the work folder"
        )
        super().__init__(f"The training state {state_folder} is damaged ({reason}): {advice}.")


class OtherTrainingError(ValueError):
    """A state is intact, but belongs to another training."""


def format_step_name(step: int) -> str:
    return f"step-{step:08d}"


def parse_step_from_path(path: Path) -> int | None:
    """Return the step of a trainer's output; None for any other file."""
    match = re.fullmatch(r"step-(\d{8})|part-(\d{8})\.parquet", path.name)
    return int(match[1] or match[2]) if match else None


def list_state_steps(work_folder: Path) -> list[int]:
    """Return the steps of the complete states, newest first."""
    parsed_steps = (
        parse_step_from_path(path) for path in (work_folder / STATES_FOLDER).glob("step-*")
    )
    return sorted((step for step in parsed_steps if step is not None), reverse=True)


def read_state_header(work_folder: Path, step: int) -> StateHeader:
    """Read and check the header of a state.

    Raises:
        DamagedStateError: The header is missing or invalid.
        OtherTrainingError: Another version of this program wrote the state.
    """
    state_folder = work_folder / STATES_FOLDER / format_step_name(step)
    try:
        header = json.loads((state_folder / "state.json").read_text(encoding="utf-8"))
        if header["format"] != STATE_FORMAT:
            raise OtherTrainingError(
                f"The training state {state_folder} was written by another version of Hallmark: "
                "use another work folder, or remove this folder."
            )
        config_from_dict(TrainConfig, header["config"])
        if header["step"] != step:
            raise ValueError(f"according to its header, the state is from step {header['step']}")
        typed_values: list[tuple[object, type]] = [(header["identity"], dict)]
        for period in header["history"]:
            typed_values += [(period["from"], int), (period["settings"], dict)]
        if not all(isinstance(value, expected_type) for value, expected_type in typed_values):
            raise TypeError("the identity or the history in the state's header has the wrong type")
        return dict(header)
    except OtherTrainingError:
        raise
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedStateError(state_folder, error) from error


def find_resumable_step(
    work_folder: Path, identity: dict[str, Any], config: TrainConfig
) -> int | None:
    """Return the step of the newest state that a training can resume from; None without states.

    Raises:
        OtherTrainingError: There are states, but all belong to other trainings: with another model,
            other data or settings (``identity``), or other learning rates until then.
        DamagedStateError: A state is damaged.
    """
    state_steps = list_state_steps(work_folder)
    for step in state_steps:
        header = read_state_header(work_folder, step)
        for key in identity:
            if header["identity"].get(key) != identity[key]:
                raise OtherTrainingError(
                    f"The work folder {work_folder} contains a training run with "
                    f"{IDENTITY_DIFFERENCES[key]}: use another work folder, or remove this folder."
                )
        if have_same_rates_until(config_from_dict(TrainConfig, header["config"]), config, step):
            return step
    if state_steps:
        raise OtherTrainingError(
            f"The work folder {work_folder} contains a training run that has a different "
            f"learning-rate schedule and has reached step {state_steps[0]}: use another work "
            "folder, or remove this folder."
        )
    return None


def remove_old_states(work_folder: Path, config: TrainConfig) -> None:
    """Keep the newest states, and the last one before the rate decays, for a longer training."""
    for age, step in enumerate(list_state_steps(work_folder)):
        if age >= config.keep_states and not (
            config.schedule == "wsd" and step == find_last_step_before_decay(config)
        ):
            shutil.rmtree(work_folder / STATES_FOLDER / format_step_name(step))


def remove_unfinished_and_newer_outputs(work_folder: Path, step: int | None) -> None:
    """Remove unfinished outputs, and outputs of steps after the state at ``step``."""
    for folder_name in (STATES_FOLDER, *OUTPUT_FOLDERS):
        remove_unfinished_writes(work_folder / folder_name)
        for path in (work_folder / folder_name).glob("*-*"):
            output_step = parse_step_from_path(path)
            if output_step is not None and (step is None or output_step > step):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def iter_resumable_steps(work_folder: Path, config: TrainConfig) -> Iterator[int]:
    """Yield the steps of the states that a training with ``config`` could resume from.

    The caller must know that everything except the schedule is the same.
    """
    for step in list_state_steps(work_folder):
        try:
            header = read_state_header(work_folder, step)
        except ValueError:
            continue  # an unusable state is no reason to fail
        if have_same_rates_until(config_from_dict(TrainConfig, header["config"]), config, step):
            yield step


def link_outputs_until(work_folder: Path, step: int, target_folder: Path) -> None:
    """Link the state of a step, and all outputs until then, into ``target_folder``.

    The folder replaces an earlier one, and appears complete or not at all. Files are hard links,
    since nothing changes them.
    """
    unfinished_folder = target_folder.with_name(f".{target_folder.name}.half")
    shutil.rmtree(unfinished_folder, ignore_errors=True)
    for folder_name in OUTPUT_FOLDERS:
        for path in (work_folder / folder_name).glob("*-*"):
            output_step = parse_step_from_path(path)
            if output_step is not None and output_step <= step:
                _link_path(path, unfinished_folder / folder_name / path.name)
    _link_path(
        work_folder / STATES_FOLDER / format_step_name(step),
        unfinished_folder / STATES_FOLDER / format_step_name(step),
    )
    shutil.rmtree(target_folder, ignore_errors=True)
    unfinished_folder.rename(target_folder)


def _link_path(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, target, copy_function=_link_file)
    else:
        _link_file(path, target)


def _link_file(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
