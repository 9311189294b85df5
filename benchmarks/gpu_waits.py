"""Measure what the trainer gains by doing work concurrently with a training step, on one GPU.

    python -m benchmarks.gpu_waits [--cpu] [--batch 32, on a CPU 8] [--steps 60] [--turns 2]

The real trainer runs in bf16, on the GPU compiled with GPT-2's size and 1,024 tokens, with --cpu
eager with 5.3 M parameters and 256 tokens. Each training is a new one on the same rows; state and
checkpoint are saved every ten steps. In alternation, one kind of concurrency is switched off, so
that the trainer waits for it:

- batches: built while the previous step is computed;
- memory: pinned memory, from which a GPU copies while it computes;
- metrics: read from the device one step late;
- saving: files are written while the training continues.

Prints tokens per second from the tenth step to the end, when everything is on disk. Like gpu_run it
needs the tokenizers library.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import gpu

# isort: split
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, models

from benchmarks.gpu_objectives import CPU_SIZE
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.model.special_tokens import PAD_ID
from hallmark.model.training.job import TrainingJob
from hallmark.model.training.parallel import DistributedWorld
from hallmark.model.training.prefetching import PreparedBatch
from hallmark.model.training.trainer import Trainer

WAITS_FOR_NOTHING = "nothing"
WAIT_KINDS = ("batches", "memory", "metrics", "saving")
#: Steps before the timed ones; the first of them compile.
WARMUP_STEPS = 10


class ImmediateBatches:
    """Builds each batch when it is requested; replaces the trainer's ``Prefetcher``."""

    def __init__(self, build_batch: Any) -> None:
        self.build_batch = build_batch

    def get_batch(self, step: int) -> PreparedBatch:
        batch: PreparedBatch = self.build_batch(step)
        return batch

    def stop(self) -> None:
        pass


class WaitingTrainer(Trainer):
    """A trainer that waits for one kind of concurrent work."""

    def __init__(self, job: TrainingJob, waits_for: str) -> None:
        super().__init__(job, DistributedWorld())
        self.waits_for = waits_for
        self.start = 0.0
        """When the first timed step started."""
        if waits_for == "memory":
            self.prefetcher.build_batch = replace(self.prefetcher.build_batch, pin_memory=False)  # type: ignore[type-var]
        if waits_for == "batches":
            self.prefetcher = ImmediateBatches(self.prefetcher.build_batch)  # type: ignore[assignment]

    def _train_step(self, step: int) -> None:
        if step == WARMUP_STEPS:
            gpu.synchronise(self.device)
            self.start = time.perf_counter()
        super()._train_step(step)

    def _log_pending_steps(self, keep_newest: int = 0) -> None:
        super()._log_pending_steps(0 if self.waits_for == "metrics" else keep_newest)

    def _save_state_in_background(self, model: Any) -> None:
        super()._save_state_in_background(model)
        if self.waits_for == "saving":
            self.writer.wait_until_written()


class TrainingInputs(NamedTuple):
    """The files that the trainer reads."""

    rows: Path
    tokenizer: Path


def write_inputs(folder: Path, config: ModelConfig, row_count: int) -> TrainingInputs:
    """Write random packed rows, and a tokenizer with a vocabulary of the same size."""
    rng = np.random.default_rng(0)
    ids = rng.integers(PAD_ID + 1, config.vocab_size, (row_count, config.context), dtype=np.int32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(ids.ravel()), config.context)
    inputs = TrainingInputs(folder / "rows.parquet", folder / "tokenizer.json")
    pq.write_table(pa.table({"token_ids": column}), inputs.rows)
    words = {f"t{i}": i for i in range(config.vocab_size)}
    Tokenizer(models.WordLevel(words, unk_token="t1")).save(str(inputs.tokenizer))
    return inputs


def measure_training_speed(
    config: ModelConfig, train: TrainConfig, inputs: TrainingInputs, waits_for: str
) -> float:
    """Return the tokens per second of a training that waits for one kind of work."""
    torch.compiler.reset()  # torch compiles a function only for a limited number of models
    with tempfile.TemporaryDirectory(prefix="hallmark-waits-") as work_folder:
        job = TrainingJob(
            config, train, str(inputs.rows), None, None, inputs.tokenizer, Path(work_folder), None
        )
        with contextlib.redirect_stdout(io.StringIO()):  # hide the trainer's events
            trainer = WaitingTrainer(job, waits_for)
            trainer.run_until_done()
        gpu.synchronise(trainer.device)
        seconds = time.perf_counter() - trainer.start
    timed_steps = train.steps - WARMUP_STEPS + 1
    return timed_steps * train.batch_size * config.context / seconds


def main() -> None:
    parser = gpu.build_parser(__doc__ or "")
    parser.add_argument("--cpu", action="store_true", help="5.3 M parameters on the CPU")
    parser.add_argument("--batch", type=int, help="rows of a batch")
    parser.add_argument("--steps", type=int, default=60, help="steps of each training")
    parser.add_argument("--turns", type=int, default=2, help="trainings of each kind")
    options = parser.parse_args()
    options.batch = options.batch or (8 if options.cpu else 32)
    device = gpu.choose_device(use_cpu=options.rehearse or options.cpu)
    size = CPU_SIZE if options.cpu else {**gpu.SIZES["124M"], "context": 1024}
    if options.rehearse:
        size = {**gpu.REHEARSAL_SIZE, "context": 64}
        options.batch, options.steps, options.turns = 4, 12, 1
    config = ModelConfig(**size)  # type: ignore[arg-type]
    train = TrainConfig(
        steps=options.steps,
        batch_size=options.batch,
        warmup_steps=1,
        checkpoint_every=10,
        device=device.type,
        precision="bf16" if device.type == "cuda" else "auto",
        compile=device.type == "cuda",
        validate_every=options.steps,
        sample_count=0,
    )
    print(
        f"{gpu.describe_environment(device)}; batch {options.batch} x {config.context}, "
        f"{options.turns} turns of {options.steps} steps"
    )
    print("| the trainer waits for | tokens/s | relative to waiting for nothing |")
    print("|---|---|---|")
    speeds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="hallmark-waits-") as folder:
        inputs = write_inputs(Path(folder), config, options.batch * options.steps)
        for turn in range(options.turns):
            for name in (WAITS_FOR_NOTHING, *WAIT_KINDS):
                if gpu.is_time_over(options, f"{name}, turn {turn + 1}"):
                    break
                speed = measure_training_speed(config, train, inputs, name)
                speeds.setdefault(name, []).append(speed)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, median in medians.items():
        print(f"| {name} | {median:,.0f} | {median / medians[WAITS_FOR_NOTHING]:.3f} |")


if __name__ == "__main__":
    main()
