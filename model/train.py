"""The trainer, a process of its own: ``python -m model.train JOB.json``.

JOB.json: {"model": ModelConfig, "train": TrainConfig, "data": {"train": path, "validation": path
or null}, "tokenizer": path of tokenizer.json, "work": folder}.

The work folder receives ``checkpoints/step-*``, ``log/part-*.parquet`` and ``state/``. A step is
committed by its state, written after its checkpoint and log; what is newer than the state is
removed on resume and made again, bit for bit on the CPU. Events are JSON lines on stdout. When
stdin is a pipe, its end means the parent died, and the trainer with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import resource
import shutil
import signal
import stat
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from model import checkpoint, state
from model.architecture import Transformer
from model.config import OBJECTIVES, ModelConfig, TrainConfig, from_dict, to_dict
from model.data import PackedRows, batch_sequences, combine, materialise
from model.files import remove_unfinished, whole_file
from model.objectives import Batch, make_objective
from model.optimise import SpikeGuard, clip, learning_rate, make_optimizers, set_rate

LOG_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("loss", pa.float64(), nullable=False),  # nats per token
        pa.field("grad_norm", pa.float64(), nullable=False),  # before clipping
        pa.field("skipped", pa.bool_(), nullable=False),  # the step diverged and changed nothing
        pa.field("learning_rate", pa.float64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),  # positions seen so far
        pa.field("validation_bits_per_token", pa.float64()),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("tokens_per_second", pa.float64(), nullable=False),
        pa.field("mfu", pa.float64(), nullable=False),  # share of the measured matmul ceiling
        pa.field("memory_mb", pa.float64(), nullable=False),  # peak
    ]
)
TIMING_COLUMNS = ("seconds", "tokens_per_second", "mfu", "memory_mb")
TERMINATED = 143
MOST_SKIPPED = 10  # steps in a row, and training stops all the same


class TrainingError(Exception):
    """Training cannot go on; the message says at which step, why, and what to change."""


def emit(event: str, **values: Any) -> None:
    """One JSON line on stdout; when nobody reads it any more, the parent has died: exit."""
    try:
        print(json.dumps({"event": event, **values}), flush=True)
    except BrokenPipeError:
        os._exit(1)


def choose_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but no CUDA device was found: set device to auto or cpu.")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """auto is bf16 where the device multiplies bf16 matrices in hardware."""
    if name == "auto":
        name = "bf16" if device.type == "cuda" or _cpu_has_bf16() else "fp32"
    return torch.bfloat16 if name == "bf16" else torch.float32


def _cpu_has_bf16() -> bool:
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return bool({"avx512_bf16", "amx_bf16"} & set(info.split()))


def matmul_ceiling(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a large square product: the best of ten."""
    size = 8192 if device.type == "cuda" else 1024
    generator = torch.Generator(device).manual_seed(0)  # training's own must not notice
    a = torch.randn(size, size, device=device, generator=generator).to(dtype)
    best = math.inf
    for _ in range(10):
        start = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


class Trainer:
    """One training run on one device, from its job to its last checkpoint."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.work = Path(job["work"])
        self.tokenizer = Path(job["tokenizer"])
        self.model_config = from_dict(ModelConfig, job["model"])
        self.config = config = from_dict(TrainConfig, job["train"])
        if config.threads:
            torch.set_num_threads(config.threads)
        self.device = choose_device(config.device)
        self.dtype = choose_precision(config.precision, self.device)
        tokenizer = checkpoint.check_tokenizer(self.tokenizer, self.model_config.vocab_size)
        if OBJECTIVES[config.objective] != self.model_config.architecture:
            raise ValueError(
                f"The objective {config.objective} trains the architecture "
                f"{OBJECTIVES[config.objective]}, not {self.model_config.architecture}."
            )
        self.objective = make_objective(
            config.objective,
            document_mask=config.document_mask,
            vocab_size=self.model_config.vocab_size,
            token_id=tokenizer.token_to_id,
        )
        self.train_rows = self._rows(job["data"]["train"], "train.bin")
        validation = job["data"].get("validation")
        self.validation_rows = self._rows(validation, "validation.bin") if validation else None
        self.identity = {
            "model": to_dict(self.model_config),
            "train": to_dict(config),
            "data": [_digest(rows) for rows in (self.train_rows, self.validation_rows) if rows],
        }
        torch.manual_seed(config.seed)
        self.model = Transformer(self.model_config).to(self.device)
        for stack in (self.model.encoder, self.model.decoder):
            if stack is not None:
                stack.recompute = config.recompute
        self.optimizers = make_optimizers(self.model, config)
        self.guard = SpikeGuard()
        self.forward = torch.compile(self.model) if config.compile else self.model
        self.log: list[dict[str, Any]] = []
        self.terminated = False
        self.step = 0

    def _rows(self, source: str | list[str], name: str) -> PackedRows:
        return materialise(
            source, self.work / name, self.model_config.context, self.model_config.vocab_size
        )

    def run(self) -> int:
        """Train to the end, or until SIGTERM. Returns the process's exit code."""
        signal.signal(signal.SIGTERM, self._terminate)
        resumed = self._resume()
        self.ceiling = matmul_ceiling(self.device, self.dtype)
        emit(
            "start",
            step=self.step,
            steps=self.config.steps,
            parameters=self.model.parameter_count()["total"],
            device=self.device.type,
            precision="bf16" if self.dtype is torch.bfloat16 else "fp32",
            threads=torch.get_num_threads(),
            matmul_tflops=round(self.ceiling / 1e12, 3),
            resumed=resumed,
        )
        if resumed:
            for folder in sorted(self._checkpoints.glob("step-*")):
                self._announce(folder)
        else:
            self._commit()
        told = 0.0
        while self.step < self.config.steps:
            if self.terminated:
                self._save_log()
                self._save_state()
                return TERMINATED
            row = self._step(self.step + 1)
            self.step += 1
            self.log.append(row)
            last = self.step == self.config.steps
            if last or self.step % self.config.validate_every == 0:
                row["validation_bits_per_token"] = self._validate()
            if last or time.monotonic() - told >= 0.5:
                told = time.monotonic()
                rate = round(row["tokens_per_second"])
                emit("step", step=self.step, loss=row["loss"], tokens_per_second=rate)
            if last or self._checkpoint_is_due():
                self._commit()
        emit("done", step=self.step)
        return 0

    def _step(self, step: int) -> dict[str, Any]:
        """One optimizer step; returns its row of the log."""
        start = time.perf_counter()
        config = self.config
        index = batch_sequences(config.seed, step, config.batch_size, len(self.train_rows))
        rows = self.train_rows.rows(index)  # (batch, T)
        batch = self.objective(rows, int(combine(config.seed, step)[0]))
        total = batch.weights.sum().clamp(min=1).item()
        rate = learning_rate(config, step)
        set_rate(self.optimizers, rate)
        self.model.train()
        loss = torch.zeros((), device=self.device)
        for part in batch.split(config.accumulation):
            loss += self._loss(part.to(self.device), total, backward=True)
        norm = clip(self.model.parameters(), config.clip).item()
        value = loss.item()
        skipped = self.guard.diverged(value, norm, config.spike)
        if skipped:
            self._diverged(step, value, norm)
        for optimizer in self.optimizers:
            if not skipped:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - start
        speed = rows.size / seconds
        flops = self.model.flops_per_token(self.model_config.context)
        return {
            "step": step,
            "loss": value,
            "grad_norm": norm,
            "skipped": skipped,
            "learning_rate": rate,
            "tokens": step * rows.size,
            "validation_bits_per_token": None,
            "seconds": seconds,
            "tokens_per_second": speed,
            "mfu": flops * speed / self.ceiling,
            "memory_mb": self._memory(),
        }

    def _diverged(self, step: int, loss: float, norm: float) -> None:
        """Say so; TrainingError where training is to stop, or has skipped too much already."""
        what = f"the loss is {loss:.4g} and the gradient's norm {norm:.4g}"
        if math.isfinite(norm):
            what += f", {norm / self.guard.mean:.3g} times its mean"
        if self.config.divergence == "stop" or self.guard.skipped > MOST_SKIPPED:
            before = self.guard.skipped - 1
            raise TrainingError(
                f"Step {step}: {what}{f' ({before} steps before it were skipped)' * bool(before)}; "
                f"lower learning_rate (now "
                f"{self.config.learning_rate}) or clip (now {self.config.clip})."
            )
        emit("skipped", step=step, message=f"{what}: the step is skipped")

    def _checkpoint_is_due(self) -> bool:
        power_of_two = self.step & (self.step - 1) == 0
        due = self.step % self.config.checkpoint_every == 0
        return due or (self.config.log_spaced and power_of_two)

    def _loss(self, batch: Batch, total: float, *, backward: bool) -> torch.Tensor:
        with self._autocast():
            loss: torch.Tensor = self.forward(
                batch.ids,
                targets=batch.targets,
                weights=batch.weights,
                z_loss=self.config.z_loss if backward else 0.0,
                **batch.inputs(),
            )
        loss = loss / total
        if backward:
            loss.backward()
        return loss.detach()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    @torch.no_grad()
    def _validate(self) -> float | None:
        """Bits per token over ``validation_sequences`` rows, evenly spread over the table."""
        if self.validation_rows is None:
            return None
        n = len(self.validation_rows)
        count = min(n, self.config.validation_sequences or n)
        chosen = np.linspace(0, n - 1, count).round().astype(np.int64)
        self.model.eval()
        size = self.config.batch_size // self.config.accumulation
        nats = tokens = 0.0
        for start in range(0, count, size):
            rows = self.validation_rows.rows(chosen[start : start + size])
            batch = self.objective(rows, start)  # the same draws at every validation
            tokens += batch.weights.sum().item()
            nats += self._loss(batch.to(self.device), 1.0, backward=False).item()
        if not tokens:
            return None
        bits = nats / tokens / math.log(2)
        emit("validation", step=self.step, bits_per_token=bits)
        return bits

    def _memory(self) -> float:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated() / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # KiB on Linux

    # --- What is kept ------------------------------------------------------------------------

    @property
    def _checkpoints(self) -> Path:
        return self.work / "checkpoints"

    def _commit(self) -> None:
        """Checkpoint, log, and last the state, which makes both count."""
        folder = self._checkpoints / state.step_name(self.step)
        checkpoint.save(self.model, folder, tokenizer=self.tokenizer, step=self.step)
        self._save_log()
        self._save_state()
        self._announce(folder)

    def _announce(self, folder: Path) -> None:
        emit("checkpoint", step=int(folder.name.removeprefix("step-")), path=str(folder))

    def _save_log(self) -> None:
        if self.log:
            with whole_file(self.work / "log" / f"part-{self.step:08d}.parquet") as path:
                pq.write_table(pa.Table.from_pylist(self.log, LOG_SCHEMA), path)
        self.log = []

    def _save_state(self) -> None:
        folder = self.work / "state"
        state.save_state(
            folder, self.step, self.identity, self.model, self.optimizers, asdict(self.guard)
        )

    def _resume(self) -> bool:
        """Restore the last committed state and remove what is newer; False where there is none."""
        found = state.find_state(self.work / "state")
        for kind in ("checkpoints", "log"):
            remove_unfinished(self.work / kind)
            for path in (self.work / kind).glob("*-*"):
                if found is None or int(path.stem.split("-")[1]) > found:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        if found is None:
            return False
        folder = self.work / "state"
        guard = state.load_state(folder, found, self.identity, self.model, self.optimizers)
        self.guard = SpikeGuard(**guard)
        self.step = found
        return True

    def _terminate(self, *_: Any) -> None:
        self.terminated = True


def _digest(rows: PackedRows) -> str:
    with Path(rows.ids.filename).open("rb") as file:  # type: ignore[arg-type]
        return hashlib.file_digest(file, "sha256").hexdigest()


def watch_parent() -> None:
    """Exit at once when stdin, where it is a pipe, reaches its end: the parent has died."""
    if not stat.S_ISFIFO(os.fstat(0).st_mode) and not stat.S_ISSOCK(os.fstat(0).st_mode):
        return

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


def read_job(path: str) -> dict[str, Any]:
    """The job at ``path``; ValueError names what is wrong with it."""
    try:
        job = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"The job {path} cannot be read: {error}.") from error
    keys = {"model", "train", "data", "tokenizer", "work"}
    if not isinstance(job, dict) or set(job) != keys:
        raise ValueError(f"The job {path} must have exactly the keys {', '.join(sorted(keys))}.")
    if not isinstance(job["data"], dict) or not job["data"].get("train"):
        raise ValueError(f"The job {path} must give a path at data.train.")
    return job


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m model.train JOB.json", file=sys.stderr)
        return 2
    watch_parent()
    try:
        job = read_job(arguments[0])
        handle = lock(Path(job["work"]))
        try:
            return Trainer(job).run()
        finally:
            handle.close()
    except (TrainingError, ValueError) as error:
        message = str(error)
    except OSError as error:
        message = f"A file could not be written or read: {error}; the last state is whole."
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        message = "Out of memory: raise accumulation, or lower batch_size, context or d_model."
    emit("error", message=" ".join(message.split()))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
