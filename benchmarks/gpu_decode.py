"""Decoding speed on one GPU, beside ``transformers.generate`` where that is installed.

    python -m benchmarks.gpu_decode [--size 124M] [--prompts 64] [--tokens 128] [--repetitions 5]

Greedy, prompts of mixed length, both with their cache, in turns, in fp32, where texts must be
equal, Hallmark also without graphs of steps; then Hallmark in bf16, whose texts part where two
words are about as likely. Last the texts are scored, in fp32 and in bf16. The memory that decoding
cannot do without, the weights and the filled part of the cache once for every token, is set against
a large copy measured in the same run (and the maker's data sheet).
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

from benchmarks import gpu

# isort: split
import numpy as np
import torch

from benchmarks.decode import exported, hallmark, hugging_face, make_model
from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig, Precision
from hallmark.model.decoding import generation
from hallmark.model.decoding.decode_steps import compute_next_logits
from hallmark.model.decoding.inference_mode import autocast_to_precision
from hallmark.model.decoding.token_scores import compute_token_log_probs

Texts = list[list[int]]


def bytes_needed(config: ModelConfig, parameters: int, lengths: list[int], tokens: int) -> int:
    """fp32 bytes that must be read: the weights at each step, and each row's keys and values."""
    weights = parameters - config.context * config.d_model  # of positions only rows are read
    slots = sum(tokens * length + tokens * (tokens - 1) // 2 for length in lengths)
    return 4 * (
        tokens * weights + slots * 2 * config.n_layers * config.kv_head_count * config.head_dim
    )


def scoring(net: Transformer, texts: Texts, repetitions: int, device: torch.device) -> None:
    """Scores the texts in both precisions, in turns, and prints how fast."""
    seconds: dict[Precision, list[float]] = {"fp32": [], "bf16": []}

    def score(precision: Precision) -> None:
        with autocast_to_precision(net, precision):
            compute_token_log_probs(net, texts)

    for turn in range(repetitions + 1):
        for precision, taken in seconds.items():
            took = gpu.timed(partial(score, precision), device)
            if turn:  # the first warms up
                taken.append(took)
    for precision, taken in seconds.items():
        speed = sum(map(len, texts)) / statistics.median(taken)
        print(f"scoring, {precision} {speed:9,.0f} tokens/s")


def main() -> None:
    parser = gpu.parser(__doc__ or "")
    parser.add_argument("--size", choices=list(gpu.SIZES), default="124M")
    for name, value in (("prompts", 64), ("tokens", 128), ("repetitions", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    device = gpu.device_of(options.rehearse)
    sizes, context = gpu.SIZES[options.size], 1024
    if options.rehearse:
        sizes, context, options.tokens, options.repetitions = gpu.SMALL, 128, 8, 1
    net = make_model({**sizes, "context": context})
    sides: dict[str, Callable[[list[list[int]]], Texts]] = {}
    if importlib.util.find_spec("transformers"):
        peer = exported(net).to(device)
        sides["transformers"] = lambda prompts: hugging_face(peer, prompts, options.tokens)
    net = net.to(device)
    sides["hallmark"] = lambda prompts: hallmark(net, prompts, options.tokens)

    def in_bf16(prompts: Texts) -> Texts:
        with autocast_to_precision(net, "bf16"):
            return hallmark(net, prompts, options.tokens)

    def launched_one_by_one(prompts: Texts) -> Texts:
        with patch.object(
            generation, "make_decode_step", lambda net, *_: partial(compute_next_logits, net)
        ):
            return hallmark(net, prompts, options.tokens)

    sides["hallmark, no graphs"] = launched_one_by_one
    sides["hallmark, bf16"] = in_bf16
    random = np.random.default_rng(0)
    prompts = [
        random.integers(2, net.config.vocab_size, random.integers(8, 97)).tolist()
        for _ in range(options.prompts)
    ]
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    texts: dict[str, Texts] = {name: decode(prompts) for name, decode in sides.items()}
    for turn in range(options.repetitions):
        if turn and gpu.late(options, f"turns {turn + 1} to {options.repetitions}"):
            break
        for name, decode in sides.items():
            seconds[name].append(gpu.timed(lambda decode=decode: decode(prompts), device))  # type: ignore[misc]
    bandwidth, sheet = gpu.copy_bandwidth(device), gpu.data_sheet(device)
    parameters = net.count_parameters_by_group()["total"]
    needed = bytes_needed(net.config, parameters, list(map(len, prompts)), options.tokens)
    print(f"{gpu.headline(device)}; copying at {bandwidth / 1e12:.2f} TB/s")
    print(
        f"{parameters:,} parameters, {options.prompts} prompts of 8 to 96 tokens x "
        f"{options.tokens} new ones; {len(seconds['hallmark'])} repetitions"
    )
    for name, values in seconds.items():
        middle = statistics.median(values)
        new = options.prompts * options.tokens
        equal = sum(a == b for a, b in zip(texts[name], texts["hallmark"], strict=True))
        share = f"{needed / middle / bandwidth:.1%} of the bandwidth"
        share += f", {needed / middle / sheet[1]:.1%} of the data sheet's" if sheet else ""
        share = "" if name.endswith("bf16") else f", {share}"  # the bytes are those of fp32
        print(
            f"{name:<20} {new / middle:9,.0f} tokens/s ({new / max(values):,.0f} to "
            f"{new / min(values):,.0f}){share}; {equal} of {options.prompts} texts "
            "equal"
        )
    if "transformers" in seconds:
        ratio = statistics.median(seconds["transformers"]) / statistics.median(seconds["hallmark"])
        print(f"hallmark is {ratio:.2f} times as fast")
    scoring(net, texts["hallmark"], options.repetitions, device)


if __name__ == "__main__":
    main()
