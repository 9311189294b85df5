"""Measure the effect of orthogonalising stacked matrices separately in the Muon optimizer.

    python -m benchmarks.muon --run latest [--steps 200] [--seeds 0 1 2]

Queries, keys and values share one weight matrix, as do SwiGLU's gate and value. The demo's model is
trained on the packed text of a stored run, from the same weights on the same batches: with Muon on
each of these parts separately, with Muon on each whole matrix, and with AdamW at its own learning
rate. Prints the bits per token of held-out text after each training, and paired differences over
the seeds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import hallmark.model  # noqa: F401  before torch: it sets how threads wait

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
SEPARATE, STACKED, ADAMW = "separate", "stacked", "AdamW"
CONFIGS = {
    SEPARATE: MUON,
    STACKED: MUON,
    ADAMW: TrainConfig(optimizer="adamw", learning_rate=3e-3),
}
BATCH_SIZE, WARMUP_STEPS = 16, 20


def read_token_rows(table: Table) -> NDArray[np.int64]:
    """Read packed sequences, (N, T)."""
    ids = table.read(["token_ids"])["token_ids"].combine_chunks()
    return ids.flatten().to_numpy().reshape(len(ids), -1).astype(np.int64)


def train_model(variant: str, rows: NDArray[np.int64], steps: int, seed: int) -> Transformer:
    """Train a new model with one of CONFIGS."""
    torch.manual_seed(seed)
    model, config = Transformer(MODEL), CONFIGS[variant]
    optimizers = make_optimizers(model, config)
    if variant == STACKED:
        for parameter in optimizers[-1].rows:  # type: ignore[attr-defined]
            optimizers[-1].rows[parameter] = [len(parameter)]  # type: ignore[attr-defined]
    order = make_generator(seed).permutation(len(rows))
    for step in range(steps):
        indices = order[np.arange(step * BATCH_SIZE, (step + 1) * BATCH_SIZE) % len(rows)]
        batch = build_causal_batch(rows[indices])
        loss = model.compute_loss_sum(batch) / batch.require_targets_and_weights()[1].sum()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        clip_gradients(optimizers, config.max_grad_norm)
        rate_factor = min((step + 1) / WARMUP_STEPS, 1 - step / steps)
        set_learning_rate(optimizers, config.learning_rate * rate_factor)
        for optimizer in optimizers:
            optimizer.step()
    return model


@torch.inference_mode()
def compute_bits_per_token(model: Transformer, rows: NDArray[np.int64]) -> float:
    """Compute the mean loss of the rows in bits per token."""
    loss_sum = weight_sum = 0.0
    for part in np.array_split(rows, max(1, len(rows) // 32)):
        batch = build_causal_batch(part)
        loss_sum += model.compute_loss_sum(batch).item()
        weight_sum += batch.require_targets_and_weights()[1].sum().item()
    return loss_sum / weight_sum / math.log(2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", default="latest", help="run whose packed text is used")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    run = open_run(options.run, stage="pretrain")
    train_rows, heldout_rows = (
        read_token_rows(run["pack"][name]) for name in ("train", "validation")
    )
    print(
        f"{len(train_rows):,} sequences, {len(heldout_rows):,} held-out sequences; torch "
        f"{torch.__version__}"
    )
    bits: dict[str, list[float]] = {variant: [] for variant in CONFIGS}
    for seed in options.seeds:
        for variant in CONFIGS:
            start = time.process_time()
            model = train_model(variant, train_rows, options.steps, seed)
            bits[variant].append(compute_bits_per_token(model, heldout_rows))
            seconds = time.process_time() - start
            print(
                f"seed {seed}, {variant}: {bits[variant][-1]:.4f} bits per token, {seconds:.0f} s",
                flush=True,
            )
    for variant in (STACKED, ADAMW):
        differences = [a - b for a, b in zip(bits[SEPARATE], bits[variant], strict=True)]
        print(
            f"{SEPARATE} minus {variant}: {statistics.mean(differences):+.4f} bits per token, by "
            f"seed {', '.join(f'{d:+.4f}' for d in differences)}"
        )


if __name__ == "__main__":
    main()
