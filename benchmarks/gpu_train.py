"""Training speed on one GPU by model size and context: tokens/s, and the share of its ceiling.

    python -m benchmarks.gpu_train [--sizes 124M,350M,774M] [--contexts 1024,2048] [--tokens 65536]

bf16 autocast, fused AdamW, one backward pass a step, no document mask, compiled for static shapes;
the first of all sizes also with one of these off at a time: eager, in fp32, and compiled with
lengths that may vary. The count of operations is that of the trainer (model/training/flops.py):
matrix products, 6N + 12LdT a token, attention not halved for causality; MFU is against the bf16
matrix product of 8192 x 8192 measured in the same run, and beside it against the maker's data
sheet. Medians of steps after the first. A rehearsal compiles nothing.
"""

from __future__ import annotations

import statistics

from benchmarks import gpu

# isort: split
import numpy as np
import torch

from benchmarks.train import RATE, ours
from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig
from hallmark.model.objectives import build_causal_batch
from hallmark.model.training.flops import count_training_flops
from hallmark.model.training.hardware import measure_matmul_flops_per_second

#: How a step is run: its precision, whether it is compiled, and whether for lengths that vary.
BEST = "all on"
HOW: dict[str, tuple[str, bool, bool]] = {
    BEST: ("bf16", True, False),
    "eager": ("bf16", False, False),
    "fp32": ("fp32", True, False),
    "lengths vary": ("bf16", True, True),
}


def steps_of(
    config: ModelConfig, batch: int, steps: int, device: torch.device, how: str, compiles: bool
) -> tuple[Transformer, list[float], float]:
    """The model, seconds of each step after two to warm up, and the last loss."""
    torch.manual_seed(0)
    with torch.device(device):
        net = Transformer(config)
    torch.compiler.reset()  # a function is compiled anew for so many models and no more
    precision, compiled, vary = HOW[how]
    step = ours(net, precision, compiled and compiles, vary)
    random = np.random.default_rng(0)
    rows = [random.integers(2, config.vocab_size, (batch, config.context)) for _ in range(4)]
    losses: list[float] = []
    for i in range(2):
        losses.append(step(rows[i], RATE))
    seconds = [
        gpu.timed(lambda i=i: losses.append(step(rows[i % 4], RATE)), device)  # type: ignore[misc]
        for i in range(steps)
    ]
    return net, seconds, losses[-1]


def main() -> None:
    parser = gpu.parser(__doc__ or "")
    parser.add_argument("--sizes", default="124M,350M,774M")
    parser.add_argument("--contexts", default="1024,2048")
    parser.add_argument("--tokens", type=int, default=65_536, help="tokens of a step")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    device = gpu.device_of(options.rehearse)
    sizes = {name: gpu.SIZES[name] for name in options.sizes.split(",")}
    contexts = [int(context) for context in options.contexts.split(",")]
    if options.rehearse:
        sizes, contexts, options.tokens, options.steps = {"small": gpu.SMALL}, [64], 256, 3
    ceiling = measure_matmul_flops_per_second(device, torch.bfloat16)
    sheet = gpu.data_sheet(device)
    print(f"{gpu.headline(device)}; bf16 ceiling measured {ceiling / 1e12:.0f} TFLOP/s")
    print(
        "| parameters | context | batch | how | tokens/s | MFU | of data sheet | GiB | last loss |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    todo = [(size, context, BEST) for size in sizes for context in contexts]
    todo[1:1] = [(*todo[0][:2], how) for how in HOW if how != BEST]  # beside it
    for number, (size, context, how) in enumerate(todo):
        if gpu.late(options, ", ".join(f"{one[0]} at {one[1]}" for one in todo[number:])):
            break
        config = ModelConfig(**sizes[size], context=context)  # type: ignore[arg-type]
        batch = options.tokens // context
        net, seconds, loss = steps_of(
            config, batch, options.steps, device, how, not options.rehearse
        )
        speed = batch * context / statistics.median(seconds)
        read = build_causal_batch(np.zeros((batch, context), np.int64))
        flops = count_training_flops(net, read) / statistics.median(seconds)
        memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
        of_sheet = f"{flops / sheet[0]:.1%}" if sheet else "-"
        print(
            f"| {net.count_parameters_by_group()['total']:,} | {context} | {batch} | "
            f"{how} | {speed:,.0f} | {flops / ceiling:.1%} | {of_sheet} | "
            f"{memory:.1f} | {loss:.3f} |",
            flush=True,
        )
        del net
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
