"""Estimate the cost of a training: parameters, memory, and the speed of a few real steps."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hallmark.model.config import ModelConfig, TrainConfig, config_from_dict, config_to_dict
from hallmark.tasks.contract import Artifact, HallmarkError
from hallmark.tasks.measures import machine
from hallmark.tasks.training.trainer_process import parse_event, start_trainer

#: Seconds for which steps are measured, and after which a trainer that still runs is killed.
TRIAL_SECONDS, TRIAL_TIMEOUT = 6.0, 60.0

#: Bytes of a number in fp32, in which weights are kept under either precision.
BYTES_PER_NUMBER = 4


@dataclass(frozen=True)
class StepMeasurement:
    """The measurement of a few steps of the real trainer.

    Attributes:
        seconds_per_step: The median time of a step.
        peak_bytes: Peak memory of the process, or of the GPU.
        step_count: Number of steps.
        device: The device on which the trainer ran.
    """

    seconds_per_step: float
    peak_bytes: float
    step_count: int
    device: str


def build_model_config(
    base_config: ModelConfig, vocab_size: int, context_length: int
) -> ModelConfig:
    return replace(base_config, vocab_size=vocab_size, context=context_length)


def count_parameters_by_group(model_config: ModelConfig) -> dict[str, int]:
    """Count parameters by group, in total, and in the matrices that Muon trains.

    The model is not allocated.
    """
    from hallmark.model.interchange.uninitialised import make_uninitialised_model

    meta_model = make_uninitialised_model(model_config)
    matrices = sum(
        parameter.numel()
        for name, parameter in meta_model.named_parameters()
        if parameter.ndim == 2 and ".blocks." in name
    )
    return meta_model.count_parameters_by_group() | {"matrices": matrices}


def estimate_memory_bytes_by_use(
    parameter_counts: dict[str, int], train_config: TrainConfig
) -> dict[str, int]:
    """Compute the bytes of weights, gradients and optimizer states in each process.

    Autocast keeps weights and gradients in fp32. AdamW stores two moments per parameter, Muon one
    for the matrices of the blocks. With fsdp each process stores its share. Not included: the first
    process copies weights and optimizer states to the memory of the machine while it writes a
    state.
    """
    total = parameter_counts["total"]
    optimizer_count = 2 * total - (
        parameter_counts["matrices"] if train_config.optimizer == "muon" else 0
    )
    process_count = max(1, train_config.processes) * train_config.hosts
    shard_count = process_count if train_config.parallel == "fsdp" else 1
    memory_by_kind = {"weights": total, "gradients": total, "optimizer": optimizer_count}
    memory_by_kind = {
        name: BYTES_PER_NUMBER * count // shard_count for name, count in memory_by_kind.items()
    }
    return memory_by_kind | {"total": sum(memory_by_kind.values())}


def find_missing_device(train_config: TrainConfig) -> str:
    """Return the device of the config if this machine lacks it, otherwise ""."""
    import torch

    available_devices = {"auto", "cpu", *(["cuda"] if torch.cuda.is_available() else [])}
    return "" if train_config.device in available_devices else train_config.device


def measure_training_steps(
    packed: Artifact,
    tokenizer: Artifact,
    model_config: ModelConfig,
    train_config: TrainConfig,
    folder: Path,
) -> StepMeasurement | None:
    """Run a few steps of the trainer, in a separate process, on one part of a packed corpus.

    Returns:
        The measurement, or None if fewer than two steps were completed in time.

    Raises:
        HallmarkError: The error of the trainer.
    """
    work_folder = folder / "training"
    unreached_step = max(train_config.steps, 10**9)  # disables validation and checkpoints
    disabled_intervals: Any = {"checkpoint_every": unreached_step, "validate_every": unreached_step}
    # On one host, which computes its share of each batch.
    share: Any = {"batch_size": train_config.batch_size // train_config.hosts, "hosts": 1}
    trial_config = replace(
        train_config,
        **disabled_intervals,
        **share,
        rendezvous="",
        log_spaced_checkpoints=False,
        state_every=0,
    )
    job = {
        "model": config_to_dict(model_config),
        "train": config_to_dict(trial_config),
        "data": {"train": str(packed["train"].parts[0].path), "validation": None},
        "tokenizer": str(tokenizer.fetch_file("tokenizer.json")),
        "work": str(work_folder),
    }
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(job))
    with start_trainer(job_file, folder / "trainer.stderr") as process:
        device = _run_trial_and_get_device(process)
    rows = [
        row
        for log_file in sorted((work_folder / "log").glob("*.parquet"))
        for row in pq.read_table(log_file).to_pylist()
    ]
    step_seconds = [row["seconds"] for row in rows[1:]]  # the first step allocates and compiles
    if not step_seconds:
        return None
    peak_bytes = max(row["memory_mb"] for row in rows) * 2**20
    return StepMeasurement(statistics.median(step_seconds), peak_bytes, len(rows), device)


def _run_trial_and_get_device(process: subprocess.Popen[str]) -> str:
    """Run the trainer for ``TRIAL_SECONDS``, stop it, and wait until it has saved its log.

    Returns:
        The device that the trainer reported.
    """

    def send_signal(signal_number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal_number)

    timers = [threading.Timer(TRIAL_TIMEOUT, send_signal, [signal.SIGKILL])]
    timers[0].start()
    device = ""
    try:
        for event in filter(None, map(parse_event, process.stdout or ())):
            if event["event"] == "start":
                device = event["device"]
                timers.append(threading.Timer(TRIAL_SECONDS, send_signal, [signal.SIGTERM]))
                timers[-1].start()
            elif event["event"] == "error":
                raise HallmarkError(event["message"].rstrip("."))
    finally:
        for timer in timers:
            timer.cancel()
    return device


def estimate_training_seconds(
    measurement: StepMeasurement, train_config: TrainConfig, validation_rows: int
) -> float:
    """Estimate the time of all steps and validations; a forward pass takes a third of a step."""
    requested_rows = train_config.validation_sequences or validation_rows
    validated_rows = min(requested_rows, validation_rows)
    seconds_per_validation = (
        measurement.seconds_per_step * validated_rows / train_config.batch_size / 3
    )
    validation_count = 1 + -(-train_config.steps // train_config.validate_every)
    return (
        train_config.steps * measurement.seconds_per_step
        + validation_count * seconds_per_validation
    )


def get_device_memory_bytes(device: str) -> int:
    """Return the memory of the GPU, or of the machine for a CPU."""
    if device == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(0).total_memory)
    return machine.total_memory_bytes()


def read_checkpoint_model_config(checkpoint_folder: Path) -> ModelConfig:
    """Read the model config of a checkpoint from which training continues."""
    from hallmark.model.interchange.checkpoint import read_model_config

    return config_from_dict(ModelConfig, config_to_dict(read_model_config(checkpoint_folder)))
