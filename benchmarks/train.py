"""Training speed beside nanoGPT's and a ``transformers`` loop's: same architecture, data, weights.

    python -m benchmarks.train --nanogpt FOLDER [--precision fp32] [--compile] [--repetitions 5]

FOLDER is a checkout of github.com/karpathy/nanoGPT (its model.py is read, nothing else). All three
start from the same weights, see the same batches, clip to the same norm and step AdamW with the
same groups, warm-up and decay. Each has a process of its own, with its own settings: Hallmark's
trainer tells the C library to keep what is freed. Steps are timed in turns: a few of theirs, a few
of ours, and again. Prints medians of tokens/s with ratios, the most memory that each process held,
and the last losses, which must agree.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import hallmark.model  # noqa: F401  before torch: it says how threads wait

# isort: split
import numpy as np
import torch
from torch import Tensor

from benchmarks.decode import exported
from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.model.objectives import build_causal_batch
from hallmark.model.training.hardware import (
    compile_function,
    measure_peak_memory_mb,
    retain_freed_memory,
)
from hallmark.model.training.optimizers import clip_gradients, make_optimizers

SIDES = ("nanoGPT", "transformers", "hallmark")
SPAWN = multiprocessing.get_context("spawn")
#: Takes a batch's rows and the learning rate, returns the loss before the step.
Step = Callable[[np.ndarray, float], float]
#: In this order: a later name may be a part of an earlier one.
NANOGPT_NAMES = {
    "decoder.blocks.": "transformer.h.",
    "decoder.norm": "transformer.ln_f",
    "position_embedding": "transformer.wpe",
    "embedding.": "transformer.wte.",
    "head.": "lm_head.",
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}
RATE, DECAY, BETAS, CLIP = 1e-3, 0.1, (0.9, 0.95), 1.0
#: Steps of linear warm-up. Without one Adam's first steps move every weight by the whole rate,
#: whichever sign rounding gave a gradient near zero, and runs in bf16 part for no other reason.
WARMUP = 100


def autocast(net: torch.nn.Module, precision: str) -> AbstractContextManager[Any]:
    device = next(net.parameters()).device.type
    return torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext()


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def ours(net: Transformer, precision: str, compiled: bool, dynamic: bool | None = None) -> Step:
    """``dynamic``: as torch.compile takes it; the trainer compiles packed rows with False."""
    config = TrainConfig(learning_rate=RATE, weight_decay=DECAY, beta1=BETAS[0], beta2=BETAS[1])
    (optimizer,) = make_optimizers(net, config)
    device = net.embedding.weight.device
    loss_of = (
        compile_function(device, net.compute_loss_sum, dynamic)
        if compiled
        else net.compute_loss_sum
    )

    def step(rows: np.ndarray, rate: float) -> float:
        batch = build_causal_batch(rows)
        total = batch.require_targets_and_weights()[1].sum().item()
        batch = batch.to_device(device)
        with autocast(net, precision):
            loss = loss_of(batch) / total
        loss.backward()
        clip_gradients([optimizer], CLIP)
        set_rate(optimizer, rate)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def theirs(
    net: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[Any, Tensor, Tensor], Tensor],
    precision: str,
    compiled: bool,
) -> Step:
    forward = torch.compile(net) if compiled else net

    def step(rows: np.ndarray, rate: float) -> float:
        ids = torch.from_numpy(rows)
        targets = torch.full_like(ids, -1)
        targets[:, :-1] = ids[:, 1:]
        with autocast(net, precision):
            loss = loss_of(forward, ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        set_rate(optimizer, rate)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def nanogpt(folder: Path, source: Transformer, *how: Any) -> Step:
    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = source.config
    net = module.GPT(
        module.GPTConfig(
            block_size=config.context,
            vocab_size=config.vocab_size,
            n_layer=config.n_layers,
            n_head=config.n_heads,
            n_embd=config.d_model,
            dropout=0.0,
            bias=True,
        )
    )
    weights = {}
    for name, tensor in source.state_dict().items():
        for one, other in NANOGPT_NAMES.items():
            name = name.replace(one, other)
        weights[name] = tensor
    net.load_state_dict(weights)
    optimizer = net.configure_optimizers(DECAY, RATE, BETAS, "cpu")
    return theirs(net, optimizer, lambda f, x, y: f(x, y)[1], *how)


def hugging_face(source: Transformer, *how: Any) -> Step:
    net = exported(source).train()
    decayed = [p for p in net.parameters() if p.ndim >= 2]
    rest = [p for p in net.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS)

    def loss_of(forward: Any, ids: Tensor, targets: Tensor) -> Tensor:
        logits = forward(input_ids=ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-1
        )

    return theirs(net, optimizer, loss_of, *how)


def batches(count: int, batch: int, config: ModelConfig) -> list[np.ndarray]:
    """Rows of a chain in which every token has four likely successors; none is special."""
    random = np.random.default_rng(0)
    successors = random.integers(2, config.vocab_size, (config.vocab_size, 4))
    result = []
    for _ in range(count):
        rows = np.empty((batch, config.context), np.int64)
        rows[:, 0] = random.integers(2, config.vocab_size, batch)
        for t in range(1, config.context):
            rows[:, t] = successors[rows[:, t - 1], random.integers(0, 4, batch)]
        result.append(rows)
    return result


def step_of(side: str, options: argparse.Namespace, seed: int = 0) -> Step:
    """A training of one side, from the weights of ``seed``; as its users run it."""
    torch.manual_seed(seed)
    net, how = Transformer(model_config(options)), (options.precision, options.compile)
    if side == "hallmark":
        retain_freed_memory()  # as the trainer begins
        return ours(net, *how)
    if side == "transformers":
        return hugging_face(net, *how)
    return nanogpt(options.nanogpt, net, *how)


def model_config(options: argparse.Namespace) -> ModelConfig:
    return ModelConfig(
        vocab_size=options.vocab_size,
        context=options.context,
        d_model=options.d_model,
        n_layers=options.n_layers,
        n_heads=options.n_heads,
    )


def serve(side: str, options: argparse.Namespace, context: list[Any], pipe: Connection) -> None:
    """A side in a process of its own: for each slice of ``work`` that comes, the seconds that it
    took and the last loss; in the end the most memory that was held, MiB."""
    step = step_of(side, options)
    while (part := pipe.recv()) is not None:
        start = time.perf_counter()
        losses = [step(*one) for one in context[part]]
        pipe.send((time.perf_counter() - start, losses[-1]))
    pipe.send(measure_peak_memory_mb(torch.device("cpu")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nanogpt", type=Path, required=True)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="timed steps in a turn")
    parser.add_argument("--batch", type=int, default=8)
    for name, value in (
        ("d_model", 256),
        ("n_layers", 4),
        ("n_heads", 8),
        ("context", 256),
        ("vocab_size", 8192),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    config = model_config(options)
    data = batches(2 + options.steps * options.repetitions, options.batch, config)
    rates = [RATE * min(1, (i + 1) / WARMUP) for i in range(len(data))]
    work = list(zip(data, rates, strict=True))
    pipes: dict[str, Connection] = {}
    processes = []
    for side in options.sides:
        pipes[side], theirs = SPAWN.Pipe()
        processes.append(SPAWN.Process(target=serve, args=(side, options, work, theirs)))
        processes[-1].start()
    seconds: dict[str, list[float]] = {side: [] for side in pipes}
    last = {}
    for turn in range(-1, options.repetitions):  # the first is to warm up
        first = 2 + turn * options.steps
        part = slice(first, first + options.steps) if turn >= 0 else slice(2)
        for side, pipe in pipes.items():
            pipe.send(part)
            took, last[side] = pipe.recv()
            seconds[side] += [took] * (turn >= 0)
    peaks = {}
    for side, pipe in pipes.items():
        pipe.send(None)
        peaks[side] = pipe.recv()
    for process in processes:
        process.join()
    total = Transformer(config).count_parameters_by_group()["total"]
    print(
        f"{total:,} parameters, batch {options.batch} x {config.context}, {options.precision}, "
        f"{'compiled' if options.compile else 'eager'}, {torch.get_num_threads()} threads, torch "
        f"{torch.__version__}; {options.repetitions} turns of {options.steps} steps"
    )
    tokens = options.steps * options.batch * config.context
    speed = {side: [tokens / took for took in found] for side, found in seconds.items()}
    mine = statistics.median(speed["hallmark"])
    for side, values in speed.items():
        middle = statistics.median(values)
        spread = f"({min(values):,.0f} to {max(values):,.0f})"
        print(
            f"{side:<14} {middle:9,.0f} tokens/s {spread}, hallmark is {mine / middle:.2f} times "
            f"as fast; at most {peaks[side]:,.0f} MiB; last loss {last[side]:.5f}"
        )


if __name__ == "__main__":
    main()
