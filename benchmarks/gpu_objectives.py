"""What is spared by objective and vocabulary, each on and off in turns, on one GPU.

    python -m benchmarks.gpu_objectives [--cpu] [--batch 16] [--turns 5] [--steps 4]

Steps of AdamW under bf16 autocast, compiled on the GPU, GPT-2's sizes at 1,024 tokens; with --cpu
5.3 M parameters at 256, eager. Of masked and prefix LM: logits for what is predicted, or for all.
Of packed documents: blocks of FlexAttention, or a dense mask (on the CPU there is but the mask).
Of a vocabulary that is no multiple of 64: tables padded to one, or not. Medians over turns, of wall
time or, on the CPU, of processor time; the losses of the fourth step, the last before the clock
starts, must agree where both compute the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks import gpu

# isort: split
import numpy as np
import torch

from benchmarks.train import RATE, autocast
from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.model.objectives import build_causal_batch, build_mlm_batch, build_random_prefix_batch
from hallmark.model.special_tokens import END_OF_TEXT_ID
from hallmark.model.training.optimizers import make_optimizers

Step = Callable[[int], float]
BATCHES = 4
CPU = {"d_model": 256, "n_layers": 4, "n_heads": 8, "vocab_size": 8192, "context": 256}


def stepper(
    device: torch.device, config: ModelConfig, batches: list[Batch], dense: bool = False
) -> Step:
    """A training of its own; a step is told which batch, and gives its loss. ``dense``: masks as
    they are where there are no blocks."""
    torch.manual_seed(0)
    with torch.device(device):
        net = Transformer(config)
    for stack in (net.encoder, net.decoder):
        if stack is not None:
            stack.supports_flex_attention = stack.supports_flex_attention and not dense
    (optimizer,) = make_optimizers(net, TrainConfig(learning_rate=RATE))
    loss_of = (
        torch.compile(net.compute_loss_sum, dynamic=False)
        if device.type == "cuda"
        else net.compute_loss_sum
    )

    def step(number: int) -> float:
        batch = batches[number % len(batches)]
        total = batch.require_targets_and_weights()[1].sum().item()
        with autocast(net, "bf16"):
            loss = loss_of(batch.to_device(device)) / total
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    return step


def pairs(
    config: ModelConfig, batch: int, device: torch.device
) -> dict[str, list[Callable[[], Step]]]:
    """What is measured, and how to make its training with and without what it spares."""
    random = np.random.default_rng(0)
    rows = [random.integers(3, config.vocab_size, (batch, config.context)) for _ in range(BATCHES)]
    for row in rows:
        row[:, :: config.context // 4] = END_OF_TEXT_ID
    everywhere = [
        build_mlm_batch(row, i, mask_id=2, vocab_size=config.vocab_size)
        for i, row in enumerate(rows)
    ]
    masked = [one.with_predicted_positions() for one in everywhere]
    both_ways = [build_random_prefix_batch(row, i) for i, row in enumerate(rows)]
    behind = [one.with_predicted_positions() for one in both_ways]
    apart, plain = (
        [build_causal_batch(row, document_mask=mask) for row in rows] for mask in (True, False)
    )
    encoder = replace(config, architecture="encoder")
    odd = replace(config, vocab_size=config.vocab_size - 47)
    odd_rows = [build_causal_batch(row % odd.vocab_size) for row in rows]
    even = replace(odd, vocab_multiple=64)
    sides: dict[str, Any] = {
        "masked LM, logits": ((encoder, masked), (encoder, everywhere)),
        "prefix LM, logits": ((config, behind), (config, both_ways)),
        "documents, blocks": ((config, apart), (config, apart, True)),
        "documents or none": ((config, plain), (config, apart)),
        "padded vocabulary": ((even, odd_rows), (odd, odd_rows)),
    }
    return {
        name: [partial(stepper, device, *given) for given in both] for name, both in sides.items()
    }


def main() -> None:
    parser = gpu.parser(__doc__ or "")
    parser.add_argument("--cpu", action="store_true", help="5.3 M parameters on the CPU")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="timed steps in a turn")
    options = parser.parse_args()
    device = gpu.device_of(options.rehearse or options.cpu)
    sizes = CPU if options.cpu else {**gpu.SIZES["124M"], "context": 1024}
    if options.rehearse:
        sizes = {**gpu.SMALL, "context": 64}
        options.batch, options.turns, options.steps = 4, 2, 1
    config = ModelConfig(**sizes)  # type: ignore[arg-type]
    print(
        f"{gpu.headline(device)}; batch {options.batch} x {config.context}, "
        f"{options.turns} turns of {options.steps} steps"
    )
    print("| what is spared | with, ms a step | without, ms | times as fast | losses of step 4 |")
    print("|---|---|---|---|---|")
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    todo = pairs(config, options.batch, device)
    for number, (name, makers) in enumerate(todo.items()):
        if gpu.late(options, ", ".join(list(todo)[number:])):
            break
        torch.compiler.reset()  # a function is compiled anew for so many shapes and no more
        sides = [maker() for maker in makers]
        seconds: list[list[float]] = [[], []]
        losses = [[side(i) for i in range(BATCHES)][-1] for side in sides]  # each of its shapes
        for turn in range(options.turns):
            for which, side in enumerate(sides):
                start = clock()
                for i in range(options.steps):
                    side(turn * options.steps + i)
                seconds[which].append((clock() - start) / options.steps)
        on, off = map(statistics.median, seconds)
        print(
            f"| {name} | {1e3 * on:.1f} | {1e3 * off:.1f} | {off / on:.2f} | "
            f"{losses[0]:.4f}, {losses[1]:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
