"""The protocol between the training process and its parent: the job, the events, the exit."""

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

from model.config import ARCHITECTURE_BY_OBJECTIVE, ModelConfig, TrainConfig, config_from_dict

TERMINATED_EXIT_CODE = 143
#: Behind the job's path: end when standard input ends.
WATCH_STDIN_OPTION = "--watch-stdin"
REQUIRED_KEYS = {"model", "train", "data", "tokenizer", "work"}
OPTIONAL_KEYS = {"start", "examples", "frozen"}


@dataclass(frozen=True)
class TrainingJob:
    """What to train, on which data, and where to write it.

    Attributes:
        train_data, validation_data: Packed tables (see model/training/packed_rows.py).
        groups_path: Which spans of the validation rows belong to which source or identity group (see
            model/training/validation.py), or None.
        start_checkpoint: The checkpoint whose weights training begins with, or None.
        uses_examples: The data are files of examples (see model/training/examples.py) instead of packed
            tables: fine-tuning.
        has_frozen_body: Only the output layer is trained, on features without dropout.
    """

    model_config: ModelConfig
    train_config: TrainConfig
    train_data: str | Sequence[str]
    validation_data: str | Sequence[str] | None
    groups_path: str | None
    tokenizer_path: Path
    work_folder: Path
    start_checkpoint: Path | None
    uses_examples: bool = False
    has_frozen_body: bool = False

    @property
    def trains_on_pairs(self) -> bool:
        """Whether the examples are sources with their targets."""
        return self.uses_examples and not self.model_config.labels


def read_job(job_path: str) -> TrainingJob:
    """The job at ``path``; ValueError names what is wrong with it."""
    try:
        job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"The job {job_path} cannot be read: {error}.") from error
    if not isinstance(job, dict) or not REQUIRED_KEYS <= set(job) <= REQUIRED_KEYS | OPTIONAL_KEYS:
        raise ValueError(
            f"The job {job_path} must have the keys {', '.join(sorted(REQUIRED_KEYS))} and "
            f"may have "
            f"{', '.join(sorted(OPTIONAL_KEYS))}."
        )
    data_settings = job["data"]
    if not isinstance(data_settings, dict) or not set(data_settings) <= {
        "train",
        "validation",
        "groups",
    }:
        raise ValueError(f"The job {job_path}: data may have train, validation and groups.")
    for name, value, is_required in (
        ("tokenizer", job["tokenizer"], True),
        ("work", job["work"], True),
        ("start", job.get("start"), False),
        ("data.groups", data_settings.get("groups"), False),
    ):
        is_path = isinstance(value, str) and value and "\0" not in value
        if not is_path and (is_required or value is not None):
            raise ValueError(f"The job {job_path}: {name} must be a path, not {value!r}.")
    for name in ("train", "validation"):
        value = data_settings.get(name)
        is_path_list = (
            isinstance(value, list) and value and all(isinstance(item, str) for item in value)
        )
        is_absent = value is None and name == "validation"
        if not ((isinstance(value, str) and value) or is_path_list or is_absent):
            raise ValueError(
                f"The job {job_path}: data.{name} must be a path, or several, not {value!r}."
            )
    for name in ("examples", "frozen"):
        if not isinstance(job.get(name, False), bool):
            raise ValueError(
                f"The job {job_path}: {name} must be true or false, not {job[name]!r}."
            )
    return TrainingJob(
        config_from_dict(ModelConfig, job["model"]),
        config_from_dict(TrainConfig, job["train"]),
        data_settings["train"],
        data_settings.get("validation"),
        data_settings.get("groups"),
        Path(job["tokenizer"]),
        Path(job["work"]),
        Path(job["start"]) if job.get("start") else None,
        job.get("examples", False),
        job.get("frozen", False),
    )


def check_job(job: TrainingJob, process_count: int) -> None:
    """ValueError where parts of the job do not go together."""
    objective, architecture = job.train_config.objective, job.model_config.architecture
    if ARCHITECTURE_BY_OBJECTIVE[objective] != architecture:
        raise ValueError(
            f"The objective {objective} trains the architecture "
            f"{ARCHITECTURE_BY_OBJECTIVE[objective]}, not "
            f"{architecture}."
        )
    if job.model_config.labels and not job.uses_examples:
        raise ValueError(
            "A model of labels learns from examples, not from packed text: set examples to true "
            "and data to files of them, or leave out model.labels."
        )
    if job.has_frozen_body and job.model_config.tie_embeddings:
        raise ValueError(
            "A frozen model learns by its output layer alone, and the output layer of this one is "
            "its embedding: set tie_embeddings or frozen to false."
        )
    if job.train_config.batch_size % (job.train_config.accumulation * process_count):
        raise ValueError(
            f"batch_size {job.train_config.batch_size} is not divisible by accumulation "
            f"{job.train_config.accumulation} x {process_count} processes: set processes, or make "
            f"batch_size a multiple."
        )


_stdout_lock = threading.Lock()


def emit_event(event: str, **fields: Any) -> None:
    """One JSON line on stdout; when nobody reads it any more, the parent has died: exit."""
    try:
        # One write: the lines of processes that train together do not mix.
        with _stdout_lock:
            sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)


def exit_when_parent_dies() -> None:
    """Exit at once when stdin, a pipe that only the parent holds open, ends: it has died."""

    def wait_for_stdin_end() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait_for_stdin_end, daemon=True).start()


def lock_work_folder(work_folder: Path) -> TextIO:
    """Hold the work folder for this process's life; an orphan of a killed parent may go first."""
    work_folder.mkdir(parents=True, exist_ok=True)
    lock_file = (work_folder / "trainer.lock").open("w")
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        emit_event("waiting")
        fcntl.flock(lock_file, fcntl.LOCK_EX)
    return lock_file
