"""What a step of the trainer does not wait for, each of it on and off, on one GPU.

    python -m benchmarks.gpu_waits [--cpu] [--batch 32, on a CPU 8] [--steps 60] [--turns 2]

The trainer itself, GPT-2's size at 1,024 tokens in bf16, compiled on the GPU; with --cpu 5.3 M
parameters at 256, eager. Each training is a new one on the same rows, in turns; a state and a
checkpoint are kept every ten steps. Switched off are, one at a time: batches made while the step
before is computed; memory from which a GPU copies while it computes; figures that are read a step
late; what is kept being written while training goes on. Prints tokens/s from the tenth step to the
end of the last, all that was kept on the disk. Like gpu_run it needs the tokenizers library.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import gpu

# isort: split
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, models

from benchmarks.gpu_objectives import CPU
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.model.special_tokens import PAD_ID
from hallmark.model.training.job import TrainingJob
from hallmark.model.training.parallel import DistributedWorld
from hallmark.model.training.prefetching import PreparedBatch
from hallmark.model.training.trainer import Trainer

NOTHING = "nothing"
WAITED_FOR = ("batches", "memory", "figures", "what is kept")
#: Steps before the clock starts: the first ones compile.
WARM = 10


class Now:
    """In place of ``Ahead``: each batch is made when it is asked for."""

    def __init__(self, make: Any) -> None:
        self.build_batch = make

    def get_batch(self, step: int) -> PreparedBatch:
        made: PreparedBatch = self.build_batch(step)
        return made

    def stop(self) -> None:
        pass


class Waiting(Trainer):
    """A trainer that waits for one thing more."""

    def __init__(self, job: TrainingJob, waits_for: str) -> None:
        super().__init__(job, DistributedWorld())
        self.waits_for = waits_for
        self.begun = 0.0
        if waits_for == "memory":
            self.prefetcher.build_batch = replace(self.prefetcher.build_batch, pin_memory=False)  # type: ignore[type-var]
        if waits_for == "batches":
            self.prefetcher = Now(self.prefetcher.build_batch)  # type: ignore[assignment]

    def _train_step(self, step: int) -> None:
        if step == WARM:
            gpu.synchronise(self.device)
            self.begun = time.perf_counter()
        super()._train_step(step)

    def _log_pending_steps(self, keep_newest: int = 0) -> None:
        super()._log_pending_steps(0 if self.waits_for == "figures" else keep_newest)

    def _save_state(self, model: Any) -> None:
        super()._save_state(model)
        if self.waits_for == "what is kept":
            self.writer.wait_until_written()


def inputs(folder: Path, config: ModelConfig, rows: int) -> dict[str, Path]:
    """Random rows, packed, and a tokenizer of as many words."""
    random = np.random.default_rng(0)
    ids = random.integers(PAD_ID + 1, config.vocab_size, (rows, config.context), dtype=np.int32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(ids.ravel()), config.context)
    pq.write_table(pa.table({"token_ids": column}), folder / "rows.parquet")
    words = {f"t{i}": i for i in range(config.vocab_size)}
    Tokenizer(models.WordLevel(words, unk_token="t1")).save(str(folder / "tokenizer.json"))
    return {"train": folder / "rows.parquet", "tokenizer": folder / "tokenizer.json"}


def speed(config: ModelConfig, train: TrainConfig, given: dict[str, Path], waits_for: str) -> float:
    """Tokens a second of a training that waits for this."""
    torch.compiler.reset()  # a function is compiled anew for so many models and no more
    with tempfile.TemporaryDirectory(prefix="hallmark-waits-") as work:
        job = TrainingJob(
            config, train, str(given["train"]), None, None, given["tokenizer"], Path(work), None
        )
        with contextlib.redirect_stdout(io.StringIO()):  # its events
            trainer = Waiting(job, waits_for)
            trainer.run_until_done()
        gpu.synchronise(trainer.device)
        seconds = time.perf_counter() - trainer.begun
    return (train.steps - WARM + 1) * train.batch_size * config.context / seconds


def main() -> None:
    parser = gpu.parser(__doc__ or "")
    parser.add_argument("--cpu", action="store_true", help="5.3 M parameters on the CPU")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    options.batch = options.batch or (8 if options.cpu else 32)
    device = gpu.device_of(options.rehearse or options.cpu)
    sizes = CPU if options.cpu else {**gpu.SIZES["124M"], "context": 1024}
    if options.rehearse:
        sizes = {**gpu.SMALL, "context": 64}
        options.batch, options.steps, options.turns = 4, 12, 1
    config = ModelConfig(**sizes)  # type: ignore[arg-type]
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
        f"{gpu.headline(device)}; batch {options.batch} x {config.context}, {options.turns} "
        f"turns of {options.steps} steps"
    )
    print("| it waits for | tokens/s | of the one that waits for nothing |")
    print("|---|---|---|")
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="hallmark-waits-") as folder:
        given = inputs(Path(folder), config, options.batch * options.steps)
        for turn in range(options.turns):
            for name in (NOTHING, *WAITED_FOR):
                if gpu.late(options, f"{name}, turn {turn + 1}"):
                    break
                found.setdefault(name, []).append(speed(config, train, given, name))
    medians = {name: statistics.median(speeds) for name, speeds in found.items()}
    for name, median in medians.items():
        print(f"| {name} | {median:,.0f} | {median / medians[NOTHING]:.3f} |")


if __name__ == "__main__":
    main()
