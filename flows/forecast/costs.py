"""What a training would cost: parameters, memory, and the speed of a few real steps."""

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

from model.config import ModelConfig, TrainConfig, from_dict, to_dict
from tasks.contract import Artifact, HallmarkError
from tasks.measures import machine
from tasks.training.following import event_of, started

#: Seconds that steps are made for, and after which a trainer that still is not done is ended.
STEPS, PATIENCE = 6.0, 60.0

#: Bytes of a number in fp32: weights are kept in it under either precision.
NUMBER = 4


@dataclass(frozen=True)
class Steps:
    """A few steps of the real trainer."""

    seconds: float  # of one: the median
    peak: float  # bytes of the process (or of the GPU) at its highest
    count: int
    device: str


def model_of(settings: ModelConfig, vocabulary: int, context: int) -> ModelConfig:
    return replace(settings, vocab_size=vocabulary, context=context)


def parameters(model: ModelConfig) -> dict[str, int]:
    """Parameters by group and in total, and those that Muon would train; no memory is taken."""
    from model.interchange.unset import unset

    made = unset(model)
    matrices = sum(
        p.numel() for name, p in made.named_parameters() if p.ndim == 2 and ".blocks." in name
    )
    return made.parameter_count() | {"matrices": matrices}


def memory(counted: dict[str, int], config: TrainConfig) -> dict[str, int]:
    """Bytes that weights, gradients and optimizer states take in each process, by formula.

    Autocast keeps weights and gradients in fp32. AdamW keeps two moments of each parameter, Muon
    one of each matrix of the blocks. With fsdp each process holds its share. Besides, the first
    process copies weights and optimizer states to the machine's memory while a state is written.
    """
    total = counted["total"]
    states = 2 * total - (counted["matrices"] if config.optimizer == "muon" else 0)
    apart = max(1, config.processes) if config.parallel == "fsdp" else 1
    found = {"weights": total, "gradients": total, "optimizer": states}
    found = {name: NUMBER * count // apart for name, count in found.items()}
    return found | {"total": sum(found.values())}


def lacks(config: TrainConfig) -> str:
    """The device of the config that this machine lacks, or nothing."""
    import torch

    there = {"auto", "cpu", *(["cuda"] if torch.cuda.is_available() else [])}
    return "" if config.device in there else config.device


def try_steps(
    packed: Artifact, tokenizer: Artifact, model: ModelConfig, config: TrainConfig, folder: Path
) -> Steps | None:
    """A few steps of the trainer, in its own process, on one part of what was packed.

    None where not even two were done in time. HallmarkError with the trainer's own words.
    """
    work = folder / "training"
    never = max(config.steps, 10**9)  # neither validation nor another checkpoint
    rare: Any = {"checkpoint_every": never, "validate_every": never}
    tried = replace(config, **rare, log_spaced=False, state_every=0)
    job = {
        "model": to_dict(model),
        "train": to_dict(tried),
        "data": {"train": str(packed["train"].parts[0].path), "validation": None},
        "tokenizer": str(tokenizer.path("tokenizer.json")),
        "work": str(work),
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    with started(path, folder / "trainer.stderr") as process:
        device = _watch(process)
    rows = [row for part in sorted((work / "log").glob("*.parquet"))
            for row in pq.read_table(part).to_pylist()]  # fmt: skip
    later = [row["seconds"] for row in rows[1:]]  # the first step allocates, and compiles
    if not later:
        return None
    peak = max(row["memory_mb"] for row in rows) * 2**20
    return Steps(statistics.median(later), peak, len(rows), device)


def _watch(process: subprocess.Popen[str]) -> str:
    """Let the trainer work for a while, then ask it to stop, and wait until it has saved its log.

    The device that it said it works on.
    """

    def tell(number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)

    timers = [threading.Timer(PATIENCE, tell, [signal.SIGKILL])]
    timers[0].start()
    device = ""
    try:
        for event in filter(None, map(event_of, process.stdout or ())):
            if event["event"] == "start":
                device = event["device"]
                timers.append(threading.Timer(STEPS, tell, [signal.SIGTERM]))
                timers[-1].start()
            elif event["event"] == "error":
                raise HallmarkError(event["message"].rstrip("."))
    finally:
        for timer in timers:
            timer.cancel()
    return device


def training_seconds(steps: Steps, config: TrainConfig, validation_rows: int) -> float:
    """All steps, and the validations: a forward pass is about a third of a step's work."""
    measured = config.validation_sequences or validation_rows
    rows = min(measured, validation_rows)
    each = steps.seconds * rows / config.batch_size / 3
    validations = 1 + -(-config.steps // config.validate_every)
    return config.steps * steps.seconds + validations * each


def machine_memory(device: str) -> int:
    """Bytes of the GPU, or of the machine."""
    if device == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(0).total_memory)
    return machine.memory()


def started_from(folder: Path) -> ModelConfig:
    """The model of a checkpoint that training goes on from."""
    from model.interchange.checkpoint import read_config

    return from_dict(ModelConfig, to_dict(read_config(folder)))
