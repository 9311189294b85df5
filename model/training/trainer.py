"""One training run, from its job to its last checkpoint and state."""

from __future__ import annotations

import hashlib
import math
import signal
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from model.architecture import Transformer
from model.batch import Batch
from model.config import CHANGE_NO_BATCH, OBJECTIVES, SCHEDULE, to_dict
from model.interchange import checkpoint
from model.interchange.files import atomic_file
from model.objectives import make_objective
from model.training import parallel, state
from model.training.data import batch_sequences, combine, materialise, token_lengths
from model.training.flops import training_flops
from model.training.job import TERMINATED, Job, emit
from model.training.machine import choose_device, choose_precision, matmul_ceiling, peak_memory
from model.training.optimise import SpikeGuard, clip, make_optimizers, set_rate
from model.training.schedule import learning_rate, settled
from model.training.texts import SAMPLES, write_samples
from model.training.validation import MEASURED, SHIFT, Validator
from model.training.work import find_state, remove_newer, remove_old_states, step_name

LOG_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("loss", pa.float64(), nullable=False),  # nats per token, with the z-loss
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
SCHEMAS = {"log": LOG_SCHEMA, "validation": MEASURED, "samples": SAMPLES}
MOST_SKIPPED = 10  # steps in a row, and training stops all the same


class TrainingError(Exception):
    """Training cannot go on; the message says at which step, why, and what to change."""


class Trainer:
    """One training run, from its job to its last checkpoint, as one of its processes sees it."""

    def __init__(self, job: Job, world: parallel.World) -> None:
        self.work, self.tokenizer, self.world = job.work, job.tokenizer, world
        self.model_config, self.config = job.model, job.config
        config = job.config
        if config.threads:
            torch.set_num_threads(config.threads)
        self.device = choose_device(config.device, world.local_rank)
        self.dtype = choose_precision(config.precision, self.device)
        self.words = checkpoint.check_tokenizer(self.tokenizer, job.model.vocab_size)
        self._check(job)
        self.objective = make_objective(
            config.objective,
            document_mask=config.document_mask,
            context=job.model.context,
            vocab_size=job.model.vocab_size,
            token_id=self.words.token_to_id,
        )
        world.join(self.device)
        self._read_data(job)
        torch.manual_seed(config.seed)
        self._make_model(job.start)
        self.optimizers = make_optimizers(self.model, config)
        self.guard = SpikeGuard()
        self.tables: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        self.terminated = False
        self.step = 0
        #: Under which settings the steps ran that change no batch: from which step on, and which.
        self.history: list[dict[str, Any]] = [{"from": 1, "settings": self._settings()}]

    def _settings(self) -> dict[str, Any]:
        """What a training may go on with others of, as it is here."""
        apart = CHANGE_NO_BATCH | set(SCHEDULE)
        found = {name: value for name, value in to_dict(self.config).items() if name in apart}
        found |= {"device": self.device.type, "processes": self.world.size}
        return found | {"precision": self.precision}

    @property
    def precision(self) -> str:
        return "bf16" if self.dtype is torch.bfloat16 else "fp32"

    def _check(self, job: Job) -> None:
        """ValueError where parts of the job do not go together."""
        objective, architecture = job.config.objective, job.model.architecture
        if OBJECTIVES[objective] != architecture:
            raise ValueError(
                f"The objective {objective} trains the architecture "
                f"{OBJECTIVES[objective]}, not {architecture}."
            )
        if job.config.batch_size % (job.config.accumulation * self.world.size):
            raise ValueError(
                f"batch_size {job.config.batch_size} is not divisible by accumulation "
                f"{job.config.accumulation} x {self.world.size} processes: set processes, or make "
                f"batch_size a multiple."
            )

    def _read_data(self, job: Job) -> None:
        """Map the packed rows; the first process copies them, the others wait for it."""
        sources = {"train.bin": job.train, "validation.bin": job.validation}
        if not self.world.first:
            self.world.wait()
        found = {
            name: materialise(
                source, self.work / name, self.model_config.context, self.model_config.vocab_size
            )
            for name, source in sources.items()
            if source
        }
        if self.world.first:
            self.world.wait()
        self.train_rows = found["train.bin"]
        start = job.start and checkpoint.weights_path(job.start)
        apart = {*CHANGE_NO_BATCH, *SCHEDULE}  # a training may go on with others
        self.identity = {
            "model": to_dict(self.model_config),
            "train": {k: v for k, v in to_dict(self.config).items() if k not in apart},
            "data": [_digest(rows.path) for rows in found.values()],
            "start": _digest(start) if start else None,
        }
        self.validator = None
        if "validation.bin" in found:
            self.validator = Validator(
                found["validation.bin"],
                self.objective,
                token_lengths(self.words),
                sequences=self.config.validation_sequences,
                shift=SHIFT.get(self.config.objective),
                groups=job.groups,
                world=self.world,
            )

    def _make_model(self, start: Path | None) -> None:
        """The model with the weights it begins with; all processes make the same."""
        if start is None:
            model = Transformer(self.model_config)
        else:
            model = checkpoint.load(start, objective=self.config.objective)
            if model.config != self.model_config:
                raise ValueError(f"The checkpoint {start} is of another model than the job asks.")
            if (start / checkpoint.TOKENIZER).read_bytes() != self.tokenizer.read_bytes():
                raise ValueError(
                    f"The checkpoint {start} has another tokenizer than the job: training goes on "
                    f"with the one it began with; pack the corpus with that."
                )
        if self.world.rank:
            torch.manual_seed(self.config.seed + self.world.rank)  # dropout of its own
        self.model = model.to(self.device)
        self.model.objective = self.config.objective
        for stack in (model.encoder, model.decoder):
            if stack is not None:
                stack.recompute = self.config.recompute
        self.parameters = model.parameter_count()["total"]
        how = self.config.parallel, self.config.compile, self.config.z_loss
        self.loss = self.world.wrap(self.model, *how)

    def run(self) -> int:
        """Train to the end, or until SIGTERM. Returns the process's exit code."""
        signal.signal(signal.SIGTERM, self._terminate)
        resumed = self._resume()
        self.ceiling = matmul_ceiling(self.device, self.dtype) * self.world.size
        self._tell(
            "start",
            step=self.step,
            steps=self.config.steps,
            parameters=self.parameters,
            device=self.device.type,
            precision=self.precision,
            threads=torch.get_num_threads(),
            processes=self.world.size,
            matmul_tflops=round(self.ceiling / 1e12, 3),
            resumed=resumed,
            stretches=len(self.history),
        )
        if resumed:
            for folder in sorted(self._checkpoints.glob("step-*")):
                self._announce(folder)
        else:
            self._validate()  # where it begins from
            self._commit()
        told = 0.0
        while self.step < self.config.steps:
            if self.world.sum(torch.tensor(self.terminated, dtype=torch.int64)).item():
                self._save_tables()
                self._save_state()
                return TERMINATED
            row = self._step(self.step + 1)
            self.step += 1
            self.tables["log"].append(row)
            last = self.step == self.config.steps
            if last or self.step % self.config.validate_every == 0:
                row["validation_bits_per_token"] = self._validate()
                self._write_samples()
            if last or time.monotonic() - told >= 0.5:
                told = time.monotonic()
                rate = round(row["tokens_per_second"])
                self._tell("step", step=self.step, loss=row["loss"], tokens_per_second=rate)
            if last or self._checkpoint_is_due():
                self._commit()
            elif self._state_is_due():
                self._save_tables()
                self._save_state()
        self._tell("done", step=self.step, history=self.history)
        self.world.wait()  # nobody leaves while another still speaks
        return 0

    def _step(self, step: int) -> dict[str, Any]:
        """One optimizer step; returns its row of the log."""
        start = time.perf_counter()
        config, world = self.config, self.world
        index = batch_sequences(config.seed, step, config.batch_size, len(self.train_rows))
        rows = self.train_rows.rows(index)  # (batch, T)
        batch = self.objective(rows, int(combine(config.seed, step)[0]))
        total = batch.answers()[1].sum().clamp(min=1).item()  # of all processes
        rate = learning_rate(config, step)
        set_rate(self.optimizers, rate)
        self.model.train()
        loss = torch.zeros((), device=self.device)
        parts = batch.split(config.accumulation * world.size)
        mine = parts[world.rank * config.accumulation :][: config.accumulation]
        for i, part in enumerate(mine):
            with parallel.without_sync(self.loss, self.model, i + 1 == len(mine)):
                loss += self._backward(part.to(self.device), total)
        norm = clip(self.model.parameters(), config.clip).item()
        value = world.sum(loss).item()
        skipped = self.guard.diverged(value, norm, config.spike)
        if skipped:
            self._diverged(step, value, norm)
        for optimizer in self.optimizers:
            if not skipped:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - start
        return {
            "step": step,
            "loss": value,
            "grad_norm": norm,
            "skipped": skipped,
            "learning_rate": rate,
            "tokens": step * rows.size,
            "validation_bits_per_token": None,
            "seconds": seconds,
            "tokens_per_second": rows.size / seconds,
            "mfu": training_flops(self.model, batch) / seconds / self.ceiling,
            "memory_mb": peak_memory(self.device),
        }

    def _diverged(self, step: int, loss: float, norm: float) -> None:
        """Say so; TrainingError where training is to stop, or has skipped too much already."""
        what = f"the loss is {loss:.4g} and the gradient's norm {norm:.4g}"
        if math.isfinite(norm) and self.guard.mean:
            what += f", {norm / self.guard.mean:.3g} times its mean"
        if self.config.divergence == "stop" or self.guard.skipped > MOST_SKIPPED:
            before = self.guard.skipped - 1
            raise TrainingError(
                f"Step {step}: {what}{f' ({before} steps before it were skipped)' * bool(before)}; "
                f"lower learning_rate (now "
                f"{self.config.learning_rate}) or clip (now {self.config.clip})."
            )
        self._tell("skipped", step=step, message=f"{what}: the step is skipped")

    def _checkpoint_is_due(self) -> bool:
        power_of_two = self.step & (self.step - 1) == 0
        due = self.step % self.config.checkpoint_every == 0
        return due or (self.config.log_spaced and power_of_two)

    def _state_is_due(self) -> bool:
        """Before the rate decays: a longer training can go on from there."""
        return self.config.schedule == "wsd" and self.step == settled(self.config)

    def _backward(self, batch: Batch, total: float) -> torch.Tensor:
        """Forward and backward pass of a micro-batch; its share of the batch's mean loss."""
        with self._autocast():
            loss: torch.Tensor = self.loss(batch) / total
        # Both kinds of parallel training take the mean over processes; the sum is wanted.
        (loss * self.world.size).backward()
        return loss.detach()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def _validate(self) -> float | None:
        """Measure the validation rows; returns bits per token."""
        if self.validator is None:
            return None
        self.model.eval()
        with self._autocast():
            measured = self.validator.measure(self.model)
        self.tables["validation"] += [{"step": self.step, **row} for row in measured.rows]
        if measured.bits_per_token is not None:
            self._tell("validation", step=self.step, bits_per_token=measured.bits_per_token)
        return measured.bits_per_token

    def _write_samples(self) -> None:
        """Let the model write; an encoder-only model cannot."""
        config = self.config
        if not config.samples or self.model.decoder is None:
            return
        self.model.eval()
        batch = None
        if self.model.encoder is not None:
            rows = self.validator.rows if self.validator else self.train_rows
            batch = self.objective(rows.rows(rows.spread(config.samples)), 0)
        with parallel.gathered(self.model):
            written = write_samples(
                self.model,
                self.words,
                count=config.samples,
                tokens=config.sample_tokens,
                seed=config.seed,
                batch=batch,
            )
        self.tables["samples"] += [{"step": self.step, **row} for row in written]

    # --- What is kept ------------------------------------------------------------------------

    @property
    def _checkpoints(self) -> Path:
        return self.work / "checkpoints"

    def _commit(self) -> None:
        """Checkpoint, tables, and last the state, which makes both count."""
        folder = self._checkpoints / step_name(self.step)
        weights = {name: parallel.full_tensor(t) for name, t in self.model.state_dict().items()}
        if self.world.first:
            checkpoint.save(
                self.model, folder, tokenizer=self.tokenizer, step=self.step, weights=weights
            )
        self._save_tables()
        self._save_state()
        self._announce(folder)

    def _announce(self, folder: Path) -> None:
        self._tell("checkpoint", step=int(folder.name.removeprefix("step-")), path=str(folder))

    def _tell(self, event: str, **values: Any) -> None:
        if self.world.first:
            emit(event, **values)

    def _save_tables(self) -> None:
        for name, rows in self.tables.items():
            if rows and self.world.first:
                with atomic_file(self.work / name / f"part-{self.step:08d}.parquet") as path:
                    pq.write_table(pa.Table.from_pylist(rows, SCHEMAS[name]), path)
            rows.clear()

    def _save_state(self) -> None:
        header = {
            "step": self.step,
            "identity": self.identity,
            "config": to_dict(self.config),
            "history": self.history,
        }
        parts = self.model, self.optimizers, self.guard, self.world
        state.save_state(self.work, header, *parts)
        if self.world.first:
            remove_old_states(self.work, self.config)

    def _resume(self) -> bool:
        """Restore the last state that this training can go on from, and remove what is newer; False
        where there is none."""
        # The first looks for all: on a network file system they might see different things.
        seen = find_state(self.work, self.identity, self.config) if self.world.first else None
        found = int(self.world.sum(torch.tensor(0 if seen is None else seen + 1))) - 1
        if self.world.first:
            remove_newer(self.work, seen)
        if found < 0:
            return False
        parts = self.model, self.optimizers, self.world
        self.guard, header = state.load_state(self.work, found, *parts)
        self.step = found
        before = [part for part in header["history"] if part["from"] <= found]
        if not before or before[-1]["settings"] != self.history[0]["settings"]:
            before.append({"from": found + 1, "settings": self.history[0]["settings"]})
        self.history = before
        return True

    def _terminate(self, *_: Any) -> None:
        self.terminated = True


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
