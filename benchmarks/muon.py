"""What it changes that Muon takes apart the matrices that one product holds.

    python -m benchmarks.muon --run latest [--steps 200] [--seeds 0 1 2]

Trains the demo's model on the packed text of a run of the store, from the same weights on the same
batches: with Muon over queries, keys and values and over SwiGLU's gate and value each for itself,
with Muon over each such stack as one matrix, and with AdamW at its own rate. Prints the bits per
token of held-out text behind each training, and paired differences over the seeds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import hallmark.model  # noqa: F401  before torch: it says how threads wait

# isort: split
import numpy as np
import torch
from numpy.typing import NDArray

from hallmark import open_run
from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.model.keyed_randomness import make_generator
from hallmark.model.objectives import build_causal_batch
from hallmark.model.training.optimizers import clip_gradients, make_optimizers, set_learning_rate
from hallmark.tasks.contract import Table

MODEL = ModelConfig(
    d_model=128,
    n_layers=4,
    n_heads=2,
    positions="rope",
    norm="rmsnorm",
    activation="swiglu",
    bias=False,
)
MUON = TrainConfig(optimizer="muon", learning_rate=1e-2)
SIDES = {
    "each": MUON,
    "as one": MUON,
    "AdamW": TrainConfig(optimizer="adamw", learning_rate=3e-3),
}
BATCH, WARMUP = 16, 20


def rows_of(table: Table) -> NDArray[np.int64]:
    """Packed sequences, (N, T)."""
    ids = table.read(["token_ids"])["token_ids"].combine_chunks()
    return ids.flatten().to_numpy().reshape(len(ids), -1).astype(np.int64)


def trained(side: str, rows: NDArray[np.int64], steps: int, seed: int) -> Transformer:
    torch.manual_seed(seed)
    made, config = Transformer(MODEL), SIDES[side]
    optimizers = make_optimizers(made, config)
    if side == "as one":
        for parameter in optimizers[-1].rows:  # type: ignore[attr-defined]
            optimizers[-1].rows[parameter] = [len(parameter)]  # type: ignore[attr-defined]
    order = make_generator(seed).permutation(len(rows))
    for step in range(steps):
        chosen = order[np.arange(step * BATCH, (step + 1) * BATCH) % len(rows)]
        batch = build_causal_batch(rows[chosen])
        loss = made.compute_loss_sum(batch) / batch.require_targets_and_weights()[1].sum()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        clip_gradients(optimizers, config.max_grad_norm)
        set_learning_rate(
            optimizers, config.learning_rate * min((step + 1) / WARMUP, 1 - step / steps)
        )
        for optimizer in optimizers:
            optimizer.step()
    return made


@torch.inference_mode()
def bits(made: Transformer, rows: NDArray[np.int64]) -> float:
    """Bits per token of the rows."""
    total = count = 0.0
    for part in np.array_split(rows, max(1, len(rows) // 32)):
        batch = build_causal_batch(part)
        total += made.compute_loss_sum(batch).item()
        count += batch.require_targets_and_weights()[1].sum().item()
    return total / count / math.log(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="latest")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    run = open_run(options.run, stage="pretrain")
    train, held_out = (rows_of(run["pack"][name]) for name in ("train", "validation"))
    print(f"{len(train):,} sequences, {len(held_out):,} held out; torch {torch.__version__}")
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for seed in options.seeds:
        for side in SIDES:
            start = time.process_time()
            found[side].append(bits(trained(side, train, options.steps, seed), held_out))
            used = time.process_time() - start
            print(
                f"seed {seed}, {side}: {found[side][-1]:.4f} bits a token, {used:.0f} s", flush=True
            )
    for side in ("as one", "AdamW"):
        apart = [a - b for a, b in zip(found["each"], found[side], strict=True)]
        print(
            f"each for itself less {side}: {statistics.mean(apart):+.4f} bits a token, by seed "
            f"{', '.join(f'{d:+.4f}' for d in apart)}"
        )


if __name__ == "__main__":
    main()
