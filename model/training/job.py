"""What a trainer shares with its parent: the job it gets, the events it tells, its life and end."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from model.config import OBJECTIVES, ModelConfig, TrainConfig, from_dict

TERMINATED = 143
#: Behind the job's path: end when standard input ends.
WATCH = "--watch-stdin"
REQUIRED = {"model", "train", "data", "tokenizer", "work"}
OPTIONAL = {"start", "examples", "frozen"}


@dataclass(frozen=True)
class Job:
    """What to train, on what, and where to leave it.

    train, validation: packed tables (see model/training/data.py). groups: which stretches of the
    validation rows belong to which source or identity group (see model/training/validation.py), or
    None. start: the checkpoint whose weights training begins with, or None. examples: the data are
    files of examples (see model/training/examples.py) in place of packed tables: fine-tuning.
    frozen: only the output layer learns, from features without dropout.
    """

    model: ModelConfig
    config: TrainConfig
    train: str | Sequence[str]
    validation: str | Sequence[str] | None
    groups: str | None
    tokenizer: Path
    work: Path
    start: Path | None
    examples: bool = False
    frozen: bool = False

    @property
    def pairs(self) -> bool:
        """Whether the examples are sources with their targets."""
        return self.examples and not self.model.labels


def read_job(path: str) -> Job:
    """The job at ``path``; ValueError names what is wrong with it."""
    try:
        job = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"The job {path} cannot be read: {error}.") from error
    if not isinstance(job, dict) or not REQUIRED <= set(job) <= REQUIRED | OPTIONAL:
        raise ValueError(
            f"The job {path} must have the keys {', '.join(sorted(REQUIRED))} and may have "
            f"{', '.join(sorted(OPTIONAL))}."
        )
    data = job["data"]
    if not isinstance(data, dict) or not set(data) <= {"train", "validation", "groups"}:
        raise ValueError(f"The job {path}: data may have train, validation and groups.")
    for name, value, needed in (
        ("tokenizer", job["tokenizer"], True),
        ("work", job["work"], True),
        ("start", job.get("start"), False),
        ("data.groups", data.get("groups"), False),
    ):
        path_like = isinstance(value, str) and value and "\0" not in value
        if not path_like and (needed or value is not None):
            raise ValueError(f"The job {path}: {name} must be a path, not {value!r}.")
    for name in ("train", "validation"):
        value = data.get(name)
        several = isinstance(value, list) and value and all(isinstance(v, str) for v in value)
        missing = value is None and name == "validation"
        if not ((isinstance(value, str) and value) or several or missing):
            raise ValueError(
                f"The job {path}: data.{name} must be a path, or several, not {value!r}."
            )
    for name in ("examples", "frozen"):
        if not isinstance(job.get(name, False), bool):
            raise ValueError(f"The job {path}: {name} must be true or false, not {job[name]!r}.")
    return Job(
        from_dict(ModelConfig, job["model"]),
        from_dict(TrainConfig, job["train"]),
        data["train"],
        data.get("validation"),
        data.get("groups"),
        Path(job["tokenizer"]),
        Path(job["work"]),
        Path(job["start"]) if job.get("start") else None,
        job.get("examples", False),
        job.get("frozen", False),
    )


def check(job: Job, processes: int) -> None:
    """ValueError where parts of the job do not go together."""
    objective, architecture = job.config.objective, job.model.architecture
    if OBJECTIVES[objective] != architecture:
        raise ValueError(
            f"The objective {objective} trains the architecture {OBJECTIVES[objective]}, not "
            f"{architecture}."
        )
    if job.model.labels and not job.examples:
        raise ValueError(
            "A model of labels learns from examples, not from packed text: set examples to true "
            "and data to files of them, or leave out model.labels."
        )
    if job.frozen and job.model.tie_embeddings:
        raise ValueError(
            "A frozen model learns by its output layer alone, and the output layer of this one is "
            "its embedding: set tie_embeddings or frozen to false."
        )
    if job.config.batch_size % (job.config.accumulation * processes):
        raise ValueError(
            f"batch_size {job.config.batch_size} is not divisible by accumulation "
            f"{job.config.accumulation} x {processes} processes: set processes, or make "
            f"batch_size a multiple."
        )


_speaking = threading.Lock()


def emit(event: str, **values: Any) -> None:
    """One JSON line on stdout; when nobody reads it any more, the parent has died: exit."""
    try:
        # One write: the lines of processes that train together do not mix.
        with _speaking:
            sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)


def watch_parent() -> None:
    """Exit at once when stdin, a pipe that only the parent holds open, ends: it has died."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def lock(work: Path) -> TextIO:
    """Hold the work folder for this process's life; an orphan of a killed parent may go first."""
    work.mkdir(parents=True, exist_ok=True)
    handle = (work / "trainer.lock").open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        emit("waiting")
        fcntl.flock(handle, fcntl.LOCK_EX)
    return handle
