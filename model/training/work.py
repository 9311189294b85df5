"""The work folder of a training, by step: its states, and what it left until each of them.

    state/step-*/          what a killed training goes on from: state.json, state.safetensors
    checkpoints/step-*/    models for others, which nobody removes
    log, validation, samples/part-*.parquet

Nothing here loads torch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model.config import TrainConfig, from_dict
from model.interchange.files import remove_unfinished
from model.training.schedule import same_rates, settled

FORMAT = 5
STATES = "state"
LEFT = ("checkpoints", "log", "validation", "samples")

Header = dict[str, Any]


class DamagedState(ValueError):
    """A state cannot be used; the message names it, and what to remove."""

    def __init__(self, source: Path, why: object) -> None:
        others = [path for path in source.parent.glob("step-*") if path != source]
        goes = f"{source}: training goes on from the one before" if others else "the work folder"
        super().__init__(f"The training state {source} is damaged ({why}): remove {goes}.")


class AnotherTraining(ValueError):
    """A state is whole, and another training's."""


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(path: Path) -> int | None:
    """The step of what a trainer has left; None for what is not its own."""
    found = re.fullmatch(r"step-(\d{8})|part-(\d{8})\.parquet", path.name)
    return int(found[1] or found[2]) if found else None


def states(work: Path) -> list[int]:
    """The steps of its whole states, newest first."""
    found = (step_of(path) for path in (work / STATES).glob("step-*"))
    return sorted((step for step in found if step is not None), reverse=True)


def read_header(work: Path, step: int) -> Header:
    """What a state says of itself; DamagedState where it does not say it."""
    source = work / STATES / step_name(step)
    try:
        header = json.loads((source / "state.json").read_text(encoding="utf-8"))
        if header["format"] != FORMAT:
            raise AnotherTraining(
                f"The training state {source} is of another version of this program: use another "
                f"work folder, or remove this one."
            )
        from_dict(TrainConfig, header["config"])
        if header["step"] != step:
            raise ValueError(f"it is of step {header['step']}")
        kinds: list[tuple[object, type]] = [(header["identity"], dict)]
        for part in header["history"]:
            kinds += [(part["from"], int), (part["settings"], dict)]
        if not all(isinstance(value, kind) for value, kind in kinds):
            raise TypeError("its identity and history are none")
        return dict(header)
    except AnotherTraining:
        raise
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedState(source, error) from error


def find_state(work: Path, identity: dict[str, Any], config: TrainConfig) -> int | None:
    """The step of the newest state from which a training can go on; None where there is no state.

    AnotherTraining where there are some, and all of them are of other steps than this training's
    would have been: of another model, other data or settings (``identity``), or at other rates.
    """
    found = states(work)
    for step in found:
        header = read_header(work, step)
        for key in identity:
            if header["identity"].get(key) != identity[key]:
                raise AnotherTraining(
                    f"The work folder {work} belongs to a training with other {key} settings: use "
                    "another work folder, or remove this one."
                )
        if same_rates(from_dict(TrainConfig, header["config"]), config, step):
            return step
    if found:
        raise AnotherTraining(
            f"The work folder {work} belongs to a training with another schedule, of which "
            f"{found[0]} steps are done: use another work folder, or remove this one."
        )
    return None


def remove_old_states(work: Path, config: TrainConfig) -> None:
    """Keep the newest, and the last before the rate decays: a longer training goes on from that."""
    for age, step in enumerate(states(work)):
        if age >= config.keep_states and not (config.schedule == "wsd" and step == settled(config)):
            shutil.rmtree(work / STATES / step_name(step))


def remove_newer(work: Path, step: int | None) -> None:
    """Remove what a killed training left half done, or made after the state it goes on from."""
    for kind in (STATES, *LEFT):
        remove_unfinished(work / kind)
        for path in (work / kind).glob("*-*"):
            made = step_of(path)
            if made is not None and (step is None or made > step):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


# Going on from another training --------------------------------------------------------------


def branches(work: Path, config: TrainConfig) -> Iterator[int]:
    """The steps of the states here from which a training with ``config`` could go on, where all
    but the schedule is known to be the same."""
    for step in states(work):
        try:
            header = read_header(work, step)
        except ValueError:
            continue  # of no use, and no reason to fail
        if same_rates(from_dict(TrainConfig, header["config"]), config, step):
            yield step


def link_until(work: Path, step: int, other: Path) -> None:
    """Give the folder ``other`` the state of a step, and what was left until then; a kill leaves it
    whole or not at all. Files are linked, for nobody changes them."""
    half = other.with_name(f".{other.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    for kind in LEFT:
        for path in (work / kind).glob("*-*"):
            made = step_of(path)
            if made is not None and made <= step:
                _link(path, half / kind / path.name)
    _link(work / STATES / step_name(step), half / STATES / step_name(step))
    shutil.rmtree(other, ignore_errors=True)
    half.rename(other)


def _link(path: Path, target: Path) -> None:
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
