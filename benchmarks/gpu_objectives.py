"""Measure optimisations of single objectives and of the vocabulary, on and off, on one GPU.

    python -m benchmarks.gpu_objectives [--cpu] [--batch 16] [--turns 5] [--steps 4]

Runs steps of AdamW with bf16 autocast; on the GPU compiled, with GPT-2's size and 1,024 tokens;
with --cpu eager, with 5.3 M parameters and 256 tokens. Compared are:

- masked and prefix LM: logits of the predicted positions, or of all positions;
- packed documents: block masks of FlexAttention, or a dense mask (on the CPU always a dense mask);
- a document mask, or none;
- a vocabulary that is not a multiple of 64: tables padded to a multiple, or not.

Prints medians over turns of wall time or, on the CPU, of processor time. The losses of the fourth
step, the last one before the timed steps, must agree where both variants compute the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from benchmarks import gpu

# isort: split
import numpy as np
import torch

from benchmarks.train import LEARNING_RATE, autocast
from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.model.objectives import build_causal_batch, build_mlm_batch, build_random_prefix_batch
from hallmark.model.special_tokens import END_OF_TEXT_ID
from hallmark.model.training.optimizers import make_optimizers

#: Called with the number of a batch; returns the loss.
Step = Callable[[int], float]
BATCH_COUNT = 4
CPU_SIZE = {"d_model": 256, "n_layers": 4, "n_heads": 8, "vocab_size": 8192, "context": 256}


def build_step(
    device: torch.device, config: ModelConfig, batches: list[Batch], dense_mask: bool = False
) -> Step:
    """Build the training step of a new model.

    Args:
        device: Where the model is.
        config: Its config.
        batches: The batches on which it is trained.
        dense_mask: Whether documents are separated by a dense mask instead of block masks.
    """
    torch.manual_seed(0)
    with torch.device(device):
        model = Transformer(config)
    for stack in (model.encoder, model.decoder):
        if stack is not None:
            stack.supports_flex_attention = stack.supports_flex_attention and not dense_mask
    (optimizer,) = make_optimizers(model, TrainConfig(learning_rate=LEARNING_RATE))
    compute_loss_sum = (
        torch.compile(model.compute_loss_sum, dynamic=False)
        if device.type == "cuda"
        else model.compute_loss_sum
    )

    def step(number: int) -> float:
        batch = batches[number % len(batches)]
        weight_sum = batch.require_targets_and_weights()[1].sum().item()
        with autocast(model, "bf16"):
            loss = compute_loss_sum(batch.to_device(device)) / weight_sum
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    return step


class Variants(NamedTuple):
    """Functions that build the training step with and without an optimisation."""

    build_optimised: Callable[[], Step]
    build_plain: Callable[[], Step]


def build_variants_by_name(
    config: ModelConfig, batch_size: int, device: torch.device
) -> dict[str, Variants]:
    """Build the variants of each measured optimisation, by its name."""
    rng = np.random.default_rng(0)
    rows = [
        rng.integers(3, config.vocab_size, (batch_size, config.context)) for _ in range(BATCH_COUNT)
    ]
    for row in rows:
        row[:, :: config.context // 4] = END_OF_TEXT_ID
    mlm_batches = [
        build_mlm_batch(row, i, mask_id=2, vocab_size=config.vocab_size)
        for i, row in enumerate(rows)
    ]
    prefix_batches = [build_random_prefix_batch(row, i) for i, row in enumerate(rows)]
    masked_documents = [build_causal_batch(row, document_mask=True) for row in rows]
    unmasked_documents = [build_causal_batch(row, document_mask=False) for row in rows]
    encoder = replace(config, architecture="encoder")
    unpadded = replace(config, vocab_size=config.vocab_size - 47)
    padded = replace(unpadded, vocab_multiple=64)
    unpadded_batches = [build_causal_batch(row % unpadded.vocab_size) for row in rows]
    build = partial(build_step, device)
    return {
        "masked LM, logits": Variants(
            partial(build, encoder, [b.with_predicted_positions() for b in mlm_batches]),
            partial(build, encoder, mlm_batches),
        ),
        "prefix LM, logits": Variants(
            partial(build, config, [b.with_predicted_positions() for b in prefix_batches]),
            partial(build, config, prefix_batches),
        ),
        "documents, blocks": Variants(
            partial(build, config, masked_documents),
            partial(build, config, masked_documents, dense_mask=True),
        ),
        "documents or none": Variants(
            partial(build, config, unmasked_documents), partial(build, config, masked_documents)
        ),
        "padded vocabulary": Variants(
            partial(build, padded, unpadded_batches), partial(build, unpadded, unpadded_batches)
        ),
    }


def main() -> None:
    parser = gpu.build_parser(__doc__ or "")
    parser.add_argument("--cpu", action="store_true", help="5.3 M parameters on the CPU")
    parser.add_argument("--batch", type=int, default=16, help="rows of a batch")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="timed steps in a turn")
    options = parser.parse_args()
    device = gpu.choose_device(use_cpu=options.rehearse or options.cpu)
    size = CPU_SIZE if options.cpu else {**gpu.SIZES["124M"], "context": 1024}
    if options.rehearse:
        size = {**gpu.REHEARSAL_SIZE, "context": 64}
        options.batch, options.turns, options.steps = 4, 2, 1
    config = ModelConfig(**size)  # type: ignore[arg-type]
    print(
        f"{gpu.describe_environment(device)}; batch {options.batch} x {config.context}, "
        f"{options.turns} turns of {options.steps} steps"
    )
    print("| optimisation | on, ms per step | off, ms per step | speed-up | losses of step 4 |")
    print("|---|---|---|---|---|")
    read_clock = time.perf_counter if device.type == "cuda" else time.process_time
    variants_by_name = build_variants_by_name(config, options.batch, device)
    for number, (name, variants) in enumerate(variants_by_name.items()):
        if gpu.is_time_over(options, ", ".join(list(variants_by_name)[number:])):
            break
        torch.compiler.reset()  # torch compiles a function only for a limited number of shapes
        steps = [build() for build in variants]
        seconds: list[list[float]] = [[], []]
        # Each batch may have its own shape, for which the function is compiled here.
        losses = [[step(i) for i in range(BATCH_COUNT)][-1] for step in steps]
        for turn in range(options.turns):
            for variant, step in enumerate(steps):
                start = read_clock()
                for i in range(options.steps):
                    step(turn * options.steps + i)
                seconds[variant].append((read_clock() - start) / options.steps)
        optimised, plain = map(statistics.median, seconds)
        print(
            f"| {name} | {1e3 * optimised:.1f} | {1e3 * plain:.1f} | {plain / optimised:.2f} | "
            f"{losses[0]:.4f}, {losses[1]:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
