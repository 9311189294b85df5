"""Compare training speed with nanoGPT and a ``transformers`` loop: same model, data and weights.

    python -m benchmarks.train --nanogpt FOLDER [--precision fp32] [--compile] [--repetitions 5]

FOLDER is a checkout of github.com/karpathy/nanoGPT, of which only model.py is used. All three start
from the same weights, see the same batches, clip gradients to the same norm and use AdamW with the
same groups, warm-up and decay. Each runs in its own process with its own settings: Hallmark's
trainer tells the C library to keep freed memory. The implementations run a few steps each, in
alternation. Prints the median of tokens per second, ratios, the peak memory of each process, and
the last losses, which must agree.
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
from typing import Any, NamedTuple

import hallmark.model  # noqa: F401  before torch: it sets how threads wait

# isort: split
import numpy as np
import torch
from torch import Tensor

from benchmarks.decode import convert_to_transformers
from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.model.objectives import build_causal_batch
from hallmark.model.training.hardware import (
    compile_with_cpp_wrapper_on_cpu,
    measure_peak_memory_mb,
    retain_freed_memory,
)
from hallmark.model.training.optimizers import clip_gradients, make_optimizers

IMPLEMENTATIONS = ("nanoGPT", "transformers", "hallmark")
SPAWN = multiprocessing.get_context("spawn")
#: Called with a batch's rows and the learning rate; returns the loss before the step.
Step = Callable[[np.ndarray, float], float]
#: nanoGPT's names of parameters. The order matters: a later name may be a part of an earlier one.
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
LEARNING_RATE, WEIGHT_DECAY, BETAS, MAX_GRAD_NORM = 1e-3, 0.1, (0.9, 0.95), 1.0
#: Steps of linear warm-up. Without it, Adam's first steps change every weight by the whole rate, in
#: a direction that for gradients near zero depends on rounding, so that runs in bf16 diverge.
WARMUP_STEPS = 100


def autocast(model: torch.nn.Module, precision: str) -> AbstractContextManager[Any]:
    """Return a context of bf16 autocast, or one without effect for fp32."""
    device = next(model.parameters()).device.type
    return torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext()


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def build_hallmark_step(
    model: Transformer, precision: str, compiled: bool, dynamic: bool | None = None
) -> Step:
    """Build the training step of Hallmark.

    Args:
        model: The model to train.
        precision: "fp32" or "bf16".
        compiled: Whether the loss is compiled.
        dynamic: Passed to torch.compile; the trainer compiles packed rows with False.
    """
    config = TrainConfig(
        learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, beta1=BETAS[0], beta2=BETAS[1]
    )
    (optimizer,) = make_optimizers(model, config)
    device = model.embedding.weight.device
    compute_loss_sum = (
        compile_with_cpp_wrapper_on_cpu(model.compute_loss_sum, device, dynamic=dynamic)
        if compiled
        else model.compute_loss_sum
    )

    def step(rows: np.ndarray, rate: float) -> float:
        batch = build_causal_batch(rows)
        weight_sum = batch.require_targets_and_weights()[1].sum().item()
        batch = batch.to_device(device)
        with autocast(model, precision):
            loss = compute_loss_sum(batch) / weight_sum
        loss.backward()
        clip_gradients([optimizer], MAX_GRAD_NORM)
        set_learning_rate(optimizer, rate)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def build_peer_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    compute_loss: Callable[[Any, Tensor, Tensor], Tensor],
    precision: str,
    compiled: bool,
) -> Step:
    """Build the training step of another implementation.

    Args:
        model: The model to train.
        optimizer: Its optimizer.
        compute_loss: Called with (forward function, ids, targets); returns the mean loss.
        precision: "fp32" or "bf16".
        compiled: Whether the model is compiled.
    """
    forward = torch.compile(model) if compiled else model

    def step(rows: np.ndarray, rate: float) -> float:
        ids = torch.from_numpy(rows)
        targets = torch.full_like(ids, -1)
        targets[:, :-1] = ids[:, 1:]
        with autocast(model, precision):
            loss = compute_loss(forward, ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        set_learning_rate(optimizer, rate)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def build_nanogpt_step(folder: Path, source: Transformer, precision: str, compiled: bool) -> Step:
    """Build the training step of nanoGPT, with the weights of a model of Hallmark.

    Args:
        folder: Checkout of nanoGPT.
        source: The model whose weights are copied.
        precision: "fp32" or "bf16".
        compiled: Whether the model is compiled.
    """
    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = source.config
    model = module.GPT(
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
        for hallmark_name, nanogpt_name in NANOGPT_NAMES.items():
            name = name.replace(hallmark_name, nanogpt_name)
        weights[name] = tensor
    model.load_state_dict(weights)
    optimizer = model.configure_optimizers(WEIGHT_DECAY, LEARNING_RATE, BETAS, "cpu")
    return build_peer_step(
        model, optimizer, lambda forward, x, y: forward(x, y)[1], precision, compiled
    )


def build_transformers_step(source: Transformer, precision: str, compiled: bool) -> Step:
    """Build the training step of a ``transformers`` model, with the weights of ``source``."""
    model = convert_to_transformers(source).train()
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    not_decayed = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": decayed, "weight_decay": WEIGHT_DECAY},
        {"params": not_decayed, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS)

    def compute_loss(forward: Any, ids: Tensor, targets: Tensor) -> Tensor:
        logits = forward(input_ids=ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-1
        )

    return build_peer_step(model, optimizer, compute_loss, precision, compiled)


def sample_batches(count: int, batch_size: int, config: ModelConfig) -> list[np.ndarray]:
    """Sample rows of a Markov chain in which every token has four successors.

    Special tokens do not occur.
    """
    rng = np.random.default_rng(0)
    successors = rng.integers(2, config.vocab_size, (config.vocab_size, 4))
    batches = []
    for _ in range(count):
        rows = np.empty((batch_size, config.context), np.int64)
        rows[:, 0] = rng.integers(2, config.vocab_size, batch_size)
        for t in range(1, config.context):
            rows[:, t] = successors[rows[:, t - 1], rng.integers(0, 4, batch_size)]
        batches.append(rows)
    return batches


def build_step(implementation: str, options: argparse.Namespace, seed: int = 0) -> Step:
    """Build the training step of an implementation, with random weights from a seed."""
    torch.manual_seed(seed)
    model = Transformer(build_model_config(options))
    if implementation == "hallmark":
        retain_freed_memory()  # as the trainer does at its start
        return build_hallmark_step(model, options.precision, options.compile)
    if implementation == "transformers":
        return build_transformers_step(model, options.precision, options.compile)
    return build_nanogpt_step(options.nanogpt, model, options.precision, options.compile)


def build_model_config(options: argparse.Namespace) -> ModelConfig:
    return ModelConfig(
        vocab_size=options.vocab_size,
        context=options.context,
        d_model=options.d_model,
        n_layers=options.n_layers,
        n_heads=options.n_heads,
    )


class TurnResult(NamedTuple):
    """The result of a few training steps."""

    seconds: float
    last_loss: float


def serve_steps(
    implementation: str,
    options: argparse.Namespace,
    step_inputs: list[tuple[np.ndarray, float]],
    pipe: Connection,
) -> None:
    """Run training steps on demand, in a separate process.

    For each slice of ``step_inputs`` that comes through the pipe, a TurnResult is sent. After None
    the process sends its peak memory in MiB and ends.

    Args:
        implementation: One of IMPLEMENTATIONS.
        options: The parsed options.
        step_inputs: Rows and learning rate of each step.
        pipe: The connection to the main process.
    """
    step = build_step(implementation, options)
    while (part := pipe.recv()) is not None:
        start = time.perf_counter()
        losses = [step(rows, rate) for rows, rate in step_inputs[part]]
        pipe.send(TurnResult(time.perf_counter() - start, losses[-1]))
    pipe.send(measure_peak_memory_mb(torch.device("cpu")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nanogpt", type=Path, required=True, help="checkout of nanoGPT")
    parser.add_argument(
        "--sides",
        nargs="+",
        choices=IMPLEMENTATIONS,
        default=IMPLEMENTATIONS,
        help="implementations to compare",
    )
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true", help="compile the models")
    parser.add_argument("--repetitions", type=int, default=5, help="timed turns")
    parser.add_argument("--steps", type=int, default=6, help="timed steps in a turn")
    parser.add_argument("--batch", type=int, default=8, help="rows of a batch")
    for name, value in (
        ("d_model", 256),
        ("n_layers", 4),
        ("n_heads", 8),
        ("context", 256),
        ("vocab_size", 8192),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    config = build_model_config(options)
    batches = sample_batches(2 + options.steps * options.repetitions, options.batch, config)
    rates = [LEARNING_RATE * min(1, (i + 1) / WARMUP_STEPS) for i in range(len(batches))]
    step_inputs = list(zip(batches, rates, strict=True))
    pipes: dict[str, Connection] = {}
    processes = []
    for implementation in options.sides:
        pipes[implementation], child_pipe = SPAWN.Pipe()
        arguments = (implementation, options, step_inputs, child_pipe)
        processes.append(SPAWN.Process(target=serve_steps, args=arguments))
        processes[-1].start()
    seconds: dict[str, list[float]] = {implementation: [] for implementation in pipes}
    last_losses = {}
    for turn in range(-1, options.repetitions):  # turn -1 warms up
        first = 2 + turn * options.steps
        part = slice(first, first + options.steps) if turn >= 0 else slice(2)
        for implementation, pipe in pipes.items():
            pipe.send(part)
            result: TurnResult = pipe.recv()
            last_losses[implementation] = result.last_loss
            if turn >= 0:
                seconds[implementation].append(result.seconds)
    peaks = {}
    for implementation, pipe in pipes.items():
        pipe.send(None)
        peaks[implementation] = pipe.recv()
    for process in processes:
        process.join()
    parameters = Transformer(config).count_parameters_by_group()["total"]
    print(
        f"{parameters:,} parameters, batch {options.batch} x {config.context}, "
        f"{options.precision}, {'compiled' if options.compile else 'eager'}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}; {options.repetitions} "
        f"turns of {options.steps} steps"
    )
    tokens = options.steps * options.batch * config.context
    speeds = {
        implementation: [tokens / turn_seconds for turn_seconds in turns]
        for implementation, turns in seconds.items()
    }
    hallmark_speed = statistics.median(speeds["hallmark"])
    for implementation, values in speeds.items():
        speed = statistics.median(values)
        spread = f"({min(values):,.0f} to {max(values):,.0f})"
        print(
            f"{implementation:<14} {speed:9,.0f} tokens/s {spread}, hallmark is "
            f"{hallmark_speed / speed:.2f} times as fast; peak {peaks[implementation]:,.0f} MiB; "
            f"last loss {last_losses[implementation]:.5f}"
        )


if __name__ == "__main__":
    main()
