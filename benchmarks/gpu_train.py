"""Measure training speed on one GPU by model size and context: tokens/s and share of the peak.

    python -m benchmarks.gpu_train [--sizes 124M,350M,774M] [--contexts 1024,2048] [--tokens 65536]

Steps use bf16 autocast, fused AdamW, one backward pass, no document mask, and a model compiled for
static shapes. The first size also runs with one of these changed at a time: eager, in fp32, and
compiled for variable lengths.

Operations are counted as the trainer does (model/training/flops.py): matrix products, 6N + 12LdT
for each token, attention not halved for causality. The model flops utilisation (MFU) is relative to
a bf16 matrix product of 8192 x 8192 measured in the same run; another column is relative to the
manufacturer's data sheet. Speeds are medians of the steps after the warm-up. A rehearsal compiles
nothing.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

from benchmarks import gpu

# isort: split
import numpy as np
import torch

from benchmarks.train import LEARNING_RATE, build_hallmark_step
from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig
from hallmark.model.objectives import build_causal_batch
from hallmark.model.training.flops import count_training_flops
from hallmark.model.training.hardware import measure_matmul_flops_per_second


class Variant(NamedTuple):
    """How a step is executed."""

    precision: str
    compiled: bool
    dynamic: bool
    """Whether it is compiled for variable lengths."""


BEST_VARIANT = "all on"
VARIANTS = {
    BEST_VARIANT: Variant("bf16", compiled=True, dynamic=False),
    "eager": Variant("bf16", compiled=False, dynamic=False),
    "fp32": Variant("fp32", compiled=True, dynamic=False),
    "variable lengths": Variant("bf16", compiled=True, dynamic=True),
}


class Measurement(NamedTuple):
    """The result of some training steps."""

    model: Transformer
    step_seconds: list[float]
    last_loss: float


def measure_steps(
    config: ModelConfig, *, batch_size: int, steps: int, device: torch.device, variant: Variant
) -> Measurement:
    """Train a new model for two steps of warm-up and some timed steps."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Transformer(config)
    torch.compiler.reset()  # torch compiles a function only for a limited number of models
    step = build_hallmark_step(model, variant.precision, variant.compiled, variant.dynamic)
    rng = np.random.default_rng(0)
    batches = [rng.integers(2, config.vocab_size, (batch_size, config.context)) for _ in range(4)]
    losses: list[float] = []

    def train_step(number: int) -> None:
        losses.append(step(batches[number % 4], LEARNING_RATE))

    for i in range(2):
        train_step(i)
    seconds = [gpu.time_call(lambda i=i: train_step(i), device) for i in range(steps)]  # type: ignore[misc]
    return Measurement(model, seconds, losses[-1])


def main() -> None:
    parser = gpu.build_parser(__doc__ or "")
    parser.add_argument("--sizes", default="124M,350M,774M")
    parser.add_argument("--contexts", default="1024,2048")
    parser.add_argument("--tokens", type=int, default=65_536, help="tokens of a step")
    parser.add_argument("--steps", type=int, default=20, help="timed steps")
    options = parser.parse_args()
    device = gpu.choose_device(use_cpu=options.rehearse)
    sizes = {name: gpu.SIZES[name] for name in options.sizes.split(",")}
    contexts = [int(context) for context in options.contexts.split(",")]
    if options.rehearse:
        sizes, contexts, options.tokens, options.steps = {"small": gpu.REHEARSAL_SIZE}, [64], 256, 3
    peak = measure_matmul_flops_per_second(device, torch.bfloat16)
    data_sheet = gpu.find_data_sheet(device)
    print(f"{gpu.describe_environment(device)}; measured bf16 peak {peak / 1e12:.0f} TFLOP/s")
    print(
        "| parameters | context | batch | variant | tokens/s | MFU | of data sheet | GiB "
        "| last loss |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    cases = [(size, context, BEST_VARIANT) for size in sizes for context in contexts]
    cases[1:1] = [(*cases[0][:2], name) for name in VARIANTS if name != BEST_VARIANT]
    for number, (size, context, variant_name) in enumerate(cases):
        remaining = ", ".join(f"{case[0]} at {case[1]}" for case in cases[number:])
        if gpu.is_time_over(options, remaining):
            break
        config = ModelConfig(**sizes[size], context=context)  # type: ignore[arg-type]
        batch_size = options.tokens // context
        variant = VARIANTS[variant_name]
        model, step_seconds, last_loss = measure_steps(
            config,
            batch_size=batch_size,
            steps=options.steps,
            device=device,
            variant=variant._replace(compiled=variant.compiled and not options.rehearse),
        )
        seconds = statistics.median(step_seconds)
        batch = build_causal_batch(np.zeros((batch_size, context), np.int64))
        flops_per_second = count_training_flops(model, batch) / seconds
        memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
        data_sheet_share = (
            f"{flops_per_second / data_sheet.flops_per_second:.1%}" if data_sheet else "-"
        )
        print(
            f"| {model.count_parameters_by_group()['total']:,} | {context} | {batch_size} | "
            f"{variant_name} | {batch_size * context / seconds:,.0f} | "
            f"{flops_per_second / peak:.1%} | {data_sheet_share} | "
            f"{memory:.1f} | {last_loss:.3f} |",
            flush=True,
        )
        del model
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
