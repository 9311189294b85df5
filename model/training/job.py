"""Define the protocol between the training process and its parent: job, events and exit code."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from hallmark.model.config import (
    ARCHITECTURE_BY_OBJECTIVE,
    ModelConfig,
    TrainConfig,
    config_from_dict,
)

TERMINATED_EXIT_CODE = 143
#: Exit code of a process that stops because another process of its training has ended.
PEER_ENDED_EXIT_CODE = 76
#: Option after the job's path: exit when standard input ends.
WATCH_STDIN_OPTION = "--watch-stdin"
#: Option after the job's path: join the training of another host.
JOIN_OPTION = "--join"
REQUIRED_KEYS = {"model", "train", "data", "tokenizer", "work"}
OPTIONAL_KEYS = {"start", "examples", "frozen", "versions"}


@dataclass(frozen=True)
class TrainingJob:
    """What to train, on which data, and where to write it.

    Attributes:
        model_config: sizes of the model.
        train_config: settings of the training.
        train_data: packed table (see ``training.packed_rows``), or a file of examples.
        validation_data: the same for validation, or None.
        groups_path: table of the source and identity groups of spans in the validation rows (see
            ``training.validation``), or None.
        tokenizer_path: the tokenizer.json of the data.
        work_folder: folder for all outputs.
        start_checkpoint: checkpoint whose weights the training starts with, or None.
        uses_examples: whether the data are files of examples (see ``training.examples``) instead of
            packed tables: fine-tuning.
        has_frozen_body: whether only the output layer is trained, on features without dropout.
        versions: versions of the code and the libraries, which all hosts of the training must have;
            the trainer itself does not read them.
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
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def trains_on_pairs(self) -> bool:
        """Whether the examples are pairs of a source and a target."""
        return self.uses_examples and not self.model_config.labels


def read_job(job_path: str) -> TrainingJob:
    """Read the job at ``job_path``.

    Raises:
        ValueError: The job is unreadable or invalid; the message names the key.
    """
    try:
        job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"The job {job_path} cannot be read: {error}.") from error
    if not isinstance(job, dict) or not REQUIRED_KEYS <= set(job) <= REQUIRED_KEYS | OPTIONAL_KEYS:
        raise ValueError(
            f"The job {job_path} must have the keys {', '.join(sorted(REQUIRED_KEYS))}. The keys "
            f"{', '.join(sorted(OPTIONAL_KEYS))} are optional, and no other keys are allowed."
        )
    data_settings = job["data"]
    data_keys = {"train", "validation", "groups"}
    if not isinstance(data_settings, dict) or not set(data_settings) <= data_keys:
        raise ValueError(
            f"Job {job_path}: data must be an object with the key train and the optional keys "
            "validation and groups."
        )
    for name, value, is_required in (
        ("tokenizer", job["tokenizer"], True),
        ("work", job["work"], True),
        ("start", job.get("start"), False),
        ("data.groups", data_settings.get("groups"), False),
    ):
        is_path = isinstance(value, str) and value and "\0" not in value
        if not is_path and (is_required or value is not None):
            raise ValueError(f"Job {job_path}: {name} must be a path, not {value!r}.")
    for name in ("train", "validation"):
        value = data_settings.get(name)
        is_path_list = (
            isinstance(value, list) and value and all(isinstance(item, str) for item in value)
        )
        is_absent = value is None and name == "validation"
        if not ((isinstance(value, str) and value) or is_path_list or is_absent):
            raise ValueError(
                f"Job {job_path}: data.{name} must be a path or a list of paths, not {value!r}."
            )
    for name in ("examples", "frozen"):
        if not isinstance(job.get(name, False), bool):
            raise ValueError(f"Job {job_path}: {name} must be true or false, not {job[name]!r}.")
    versions = job.get("versions", {})
    if not isinstance(versions, dict) or not all(isinstance(v, str) for v in versions.values()):
        raise ValueError(f"Job {job_path}: versions must be an object whose values are strings.")
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
        versions,
    )


def check_job(job: TrainingJob, process_count: int) -> None:
    """Raise ValueError if parts of the job contradict each other."""
    objective, architecture = job.train_config.objective, job.model_config.architecture
    if ARCHITECTURE_BY_OBJECTIVE[objective] != architecture:
        raise ValueError(
            f"The objective {objective} requires the architecture "
            f"{ARCHITECTURE_BY_OBJECTIVE[objective]}, not {architecture}: change train.objective "
            "or model.architecture."
        )
    if job.model_config.labels and not job.uses_examples:
        raise ValueError(
            "A model with labels learns from examples, not from packed text: set examples to true "
            "and data to example files, or remove model.labels."
        )
    if job.has_frozen_body and job.model_config.tie_embeddings:
        raise ValueError(
            "With frozen = true, only the output layer is trained, but this model uses the "
            "embedding table as its output layer: set tie_embeddings or frozen to false."
        )
    if job.train_config.batch_size % (job.train_config.accumulation_steps * process_count):
        raise ValueError(
            f"batch_size {job.train_config.batch_size} is not divisible by accumulation_steps "
            f"{job.train_config.accumulation_steps} x {process_count} processes: change one of "
            "these settings."
        )


_stdout_lock = threading.Lock()


def emit_event(event: str, **fields: Any) -> None:
    """Write one JSON line to stdout; exit if nobody reads it, because the parent has died."""
    try:
        # A single write, so that the lines of several processes do not mix.
        with _stdout_lock:
            sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)


def watch_stdin_and_exit_at_end() -> None:
    """Exit as soon as stdin ends: only the parent holds that pipe open, so it has died."""

    def wait_for_stdin_end() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait_for_stdin_end, daemon=True).start()


def lock_work_folder(work_folder: Path) -> TextIO:
    """Lock the work folder; wait for a trainer whose parent was killed to exit."""
    work_folder.mkdir(parents=True, exist_ok=True)
    lock_file = (work_folder / "trainer.lock").open("w")
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        emit_event("waiting")
        fcntl.flock(lock_file, fcntl.LOCK_EX)
    return lock_file
