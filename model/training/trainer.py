"""One training run, from its job to its last checkpoint and state."""

from __future__ import annotations

import hashlib
import math
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.architecture import Transformer
from model.batch import Batch
from model.config import CHANGE_NO_BATCH, SCHEDULE, to_dict
from model.interchange import checkpoint
from model.objectives import make_objective
from model.precision import choose_precision
from model.training import parallel, state
from model.training.adapt import adapted, freeze_body
from model.training.batches import Ahead, Recipe
from model.training.data import token_lengths
from model.training.examples import open_rows
from model.training.figures import TOLD, Figures, Mark, Reading
from model.training.flops import training_flops
from model.training.job import TERMINATED, Job, check, emit
from model.training.keeping import SCHEMAS, Keeper, Rows, announce
from model.training.machine import choose_compile, choose_device, matmul_ceiling, peak_memory
from model.training.optimise import SpikeGuard, clip, make_optimizers, set_rate
from model.training.schedule import checkpoint_is_due, learning_rate, state_is_due
from model.training.tasks import make_task
from model.training.texts import write_samples
from model.training.validation import SHIFT, Validator
from model.training.work import find_state, remove_newer

#: Objectives that once drew for a batch at a time: states of then are of another training.
ROW_DRAWS = ("mlm", "prefix")
MOST_SKIPPED = 10  # steps in a row, and training stops all the same


class TrainingError(Exception):
    """Training cannot go on; the message says at which step, why, and what to change."""


class Trainer:
    """One training run, from its job to its last checkpoint, as one of its processes sees it."""

    def __init__(self, job: Job, world: parallel.World) -> None:
        self.work, self.tokenizer, self.world = job.work, job.tokenizer, world
        self.model_config, self.config, self.frozen = job.model, job.config, job.frozen
        config = job.config
        if config.threads:
            torch.set_num_threads(config.threads)
        self.device = choose_device(config.device, world.local_rank)
        self.dtype = choose_precision(config.precision, self.device)
        self.words = checkpoint.check_tokenizer(self.tokenizer, job.model.vocab_size)
        check(job, world.size)
        self.objective: Callable[[Any, int, int], Batch]
        if job.examples:
            self.objective = make_task(job.model, config.objective)
        else:
            self.objective = make_objective(
                config.objective, document_mask=config.document_mask, context=job.model.context,
                vocab_size=job.model.vocab_size, token_id=self.words.token_to_id,
            )  # fmt: skip
        world.join(self.device)
        self._read_data(job)
        torch.manual_seed(config.seed)
        self._make_model(job)
        self.optimizers = make_optimizers(self.model, config)
        self.guard = SpikeGuard()
        self.tables = _no_rows()
        #: Steps whose figures the device may still be at.
        self.pending: deque[Figures] = deque()
        self.row: dict[str, Any] = {}  # the last of the log
        self.keeper = Keeper(self.work, self.tokenizer, config)
        self.terminated = False
        self.step = 0
        #: Under which settings the steps ran that change no batch: from which step on, and which.
        self.history: list[dict[str, Any]] = [{"from": 1, "settings": self._settings()}]

    def _settings(self) -> dict[str, Any]:
        """What a training may go on with others of, as it is here."""
        apart = (CHANGE_NO_BATCH | set(SCHEDULE)) - {"keep_states"}
        found = {name: value for name, value in to_dict(self.config).items() if name in apart}
        found |= {"device": self.device.type, "processes": self.world.size}
        return found | {"precision": self.precision, "compile": self.compiled}

    @property
    def precision(self) -> str:
        return "bf16" if self.dtype is torch.bfloat16 else "fp32"

    def _read_data(self, job: Job) -> None:
        """Map the rows; packed ones the first process copies, and the others wait for it."""
        sources = {"train.bin": job.train, "validation.bin": job.validation}
        if not self.world.first:
            self.world.wait()
        found = {
            name: open_rows(source, self.work / name, job.model, job.examples)
            for name, source in sources.items()
            if source
        }
        if self.world.first:
            self.world.wait()
        self.train_rows = found["train.bin"]
        recipe = Recipe(
            self.train_rows, self.objective, self.config.seed, self.config.batch_size,
            self.config.accumulation, self.world.rank, self.world.size,
            pinned=self.device.type == "cuda", flops=lambda b: training_flops(self.model, b),
        )  # fmt: skip
        self.batches = Ahead(recipe, self.config.steps)
        start = job.start and checkpoint.weights_path(job.start)
        apart = {*CHANGE_NO_BATCH, *SCHEDULE}  # a training may go on with others
        self.identity = {
            "model": to_dict(self.model_config),
            "train": {k: v for k, v in to_dict(self.config).items() if k not in apart},
            "data": [rows.digest for rows in found.values()] if self.world.first else None,
            "start": _digest(start) if start and self.world.first else None,
            "frozen": self.frozen,
        }
        if self.config.objective in ROW_DRAWS and not job.examples:
            self.identity["draws"] = "by row"
        self.validator = None
        if "validation.bin" in found:
            labels = np.zeros(len(job.model.labels), np.int32)  # they spell nothing
            spelled = labels if len(labels) else token_lengths(self.words)
            self.validator = Validator(
                found["validation.bin"],
                self.objective,
                spelled,
                sequences=self.config.validation_sequences,
                shift=SHIFT.get(self.config.objective),
                groups=job.groups,
                world=self.world,
            )

    def _make_model(self, job: Job) -> None:
        """The model with the weights it begins with; all processes make the same."""
        start = job.start
        if start is None:
            model = Transformer(self.model_config)
        else:
            model = checkpoint.load(start, objective=self.config.objective)
            if model.config != self.model_config:
                if not job.examples:
                    raise ValueError(f"The checkpoint {start} is of another model than the job.")
                model = adapted(model, self.model_config, f"The checkpoint {start}")
            if (start / checkpoint.TOKENIZER).read_bytes() != self.tokenizer.read_bytes():
                raise ValueError(
                    f"The checkpoint {start} has another tokenizer than the job: training goes on "
                    f"with the one it began with; pack the corpus with that."
                )
        if self.world.rank:
            torch.manual_seed(self.config.seed + self.world.rank)  # dropout of its own
        self.model = model.to(self.device)
        self.model.objective, self.model.pairs = self.config.objective, job.pairs
        if job.frozen:
            freeze_body(self.model)
        for stack in (model.encoder, model.decoder):
            if stack is not None:
                stack.recompute = self.config.recompute
        self.parameters = model.parameter_count()["total"]
        kind, z_loss = self.config.parallel, self.config.z_loss
        self.shards = kind == "fsdp" and self.world.size > 1
        unmeasured = self.shards or job.examples
        self.compiled = choose_compile(self.config.compile, self.device, unmeasured)
        # Packed rows have one shape, or a few; examples a length of their own in each batch.
        self.loss = self.world.wrap(self.model, kind, self.compiled, z_loss, not job.examples)

    def run(self) -> int:
        """Train to the end, or until SIGTERM. Returns the process's exit code."""
        signal.signal(signal.SIGTERM, self._terminate)
        try:
            return self._run()
        finally:
            self.batches.close()
            self.keeper.close()

    def _run(self) -> int:
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
            if self.world.first:
                for folder in sorted((self.work / "checkpoints").glob("step-*")):
                    announce(folder)
        else:
            self._validate()  # where it begins from
            self._keep(self.model)
        if not self._train():
            return TERMINATED
        self._tell("done", step=self.step, history=self.history)
        self.world.wait()  # nobody leaves while another still speaks
        return 0

    def _train(self) -> bool:
        """All steps that are left; False where SIGTERM ended them. All is on the disk then."""
        config, told = self.config, 0.0
        self.before = Mark(self.device)
        while self.step < config.steps:
            self.keeper.check()
            if self.world.sum(torch.tensor(self.terminated, dtype=torch.int64)).item():
                self._settle()
                self._keep(None)
                self.keeper.wait()
                return False
            self._step(self.step + 1)
            self.step += 1
            last = self.step == config.steps
            validates = last or self.step % config.validate_every == 0
            leaves = last or checkpoint_is_due(config, self.step)
            keeps = leaves or state_is_due(config, self.step)
            # One step late, so that the device has the next one to do while figures are read.
            self._settle(but=0 if validates or keeps else 1)
            if validates:
                self.row["validation_bits_per_token"] = self._validate()
                self._write_samples()
            if self.tables["log"] and (last or time.monotonic() - told >= 0.5):
                told = time.monotonic()
                self._tell_step()
            if keeps:
                self._keep(self.model if leaves else None)
            if validates or keeps:
                self.before = Mark(self.device)
        self.keeper.wait()
        return True

    def _tell_step(self) -> None:
        self._tell("step", **{name: self.row[name] for name in TOLD})

    def _step(self, step: int) -> None:
        """One optimizer step; nothing waits for the device, unless it may have to be skipped."""
        made, rate = self.batches.of(step), learning_rate(self.config, step)
        set_rate(self.optimizers, rate)
        self.model.train(not self.frozen)  # features are read as they will be, without dropout
        loss = torch.zeros((), device=self.device)
        weight = torch.full((), made.weight, dtype=torch.float64, device=self.device)
        total = self.world.sum_on_device(weight).clamp(min=1).float()
        for i, part in enumerate(made.parts):
            with parallel.without_sync(self.loss, self.model, i + 1 == len(made.parts)):
                loss += self._backward(part.to(self.device), total)
        norm = clip(self.optimizers, self.config.clip)
        read = Reading(self.world.sum_on_device(loss), norm)
        figures = Figures(step, rate, made.tokens, made.seen, made.flops, read)
        if self.config.divergence == "skip":
            self._judge(figures)  # before its weights: a step cannot be taken back
        for optimizer in self.optimizers:
            if not figures.skipped:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        figures.done = Mark(self.device)
        self.pending.append(figures)

    def _settle(self, but: int = 0) -> None:
        """Log all steps that are not, ``but`` so many of the newest.

        Where training stops at a step that diverges it does so here, perhaps a step later: that
        one is neither logged nor kept, so that it is as if it had not been.
        """
        while len(self.pending) > but:
            figures = self.pending.popleft()
            if figures.skipped is None:
                self._judge(figures)
            assert figures.done is not None
            seconds, self.before = figures.done.since(self.before), figures.done
            self.row = figures.row(seconds, self.ceiling, peak_memory(self.device))
            self.tables["log"].append(self.row)

    def _judge(self, figures: Figures) -> None:
        """Whether a step diverged; TrainingError where training is to stop at it."""
        loss, norm = figures.read.read()
        figures.skipped = self.guard.diverged(loss, norm, self.config.spike)
        if figures.skipped:
            self._diverged(figures.step, loss, norm)

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

    def _backward(self, batch: Batch, total: torch.Tensor) -> torch.Tensor:
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
        """Let the model write; an encoder or a model of labels cannot. Of shards all processes
        write, the same, for each block is gathered when it is its turn; else the first alone."""
        config, batch = self.config, None
        if not config.samples or self.model.decoder is None or self.model_config.labels:
            return
        if not (self.shards or self.world.first):
            return
        if self.model.encoder is not None:
            rows = self.validator.rows if self.validator else self.train_rows
            batch = self.objective(rows.rows(rows.spread(config.samples)), 0, 0)
        written = write_samples(
            self.model, self.words, count=config.samples, tokens=config.sample_tokens,
            seed=config.seed, batch=batch, precision=config.precision,
        )  # fmt: skip
        self.tables["samples"] += [{"step": self.step, **row} for row in written]

    # --- What is kept ------------------------------------------------------------------------

    def _keep(self, model: Transformer | None) -> None:
        """Have the state written, the tables, and of a ``model`` a checkpoint."""
        header = {
            "step": self.step,
            "identity": self.identity,
            "config": to_dict(self.config),
            "history": self.history,
        }
        parts = self.model, self.optimizers, self.guard, self.world
        snapshot = state.snapshot(header, *parts)
        if snapshot is not None:
            self.keeper.keep(snapshot, self.tables, model)
        self.tables = _no_rows()

    def _tell(self, event: str, **values: Any) -> None:
        if self.world.first:
            emit(event, **values)

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


def _no_rows() -> Rows:
    return {name: [] for name in SCHEMAS}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
