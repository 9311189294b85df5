"""Measure decoding speed on one GPU, and compare it with ``transformers.generate`` if installed.

    python -m benchmarks.gpu_decode [--size 124M] [--prompts 64] [--tokens 128] [--repetitions 5]

All variants decode greedily with a cache, with prompts of mixed length, in alternation:
``transformers`` and Hallmark in fp32, whose texts must be equal; Hallmark in fp32 without CUDA
graphs; and Hallmark in bf16, whose texts differ where two tokens are about equally likely. At the
end, the texts are scored in fp32 and in bf16.

Decoding must at least read the weights and the filled part of the cache once for each token. The
bytes per second of these reads are compared with a large copy measured in the same run, and with
the manufacturer's data sheet.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

from benchmarks import gpu

# isort: split
import torch

from benchmarks.decode import (
    build_random_model,
    convert_to_transformers,
    decode_with_hallmark,
    decode_with_transformers,
    sample_prompts,
)
from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig, Precision
from hallmark.model.decoding import generation
from hallmark.model.decoding.decode_steps import compute_next_logits
from hallmark.model.decoding.inference_mode import autocast_to_precision
from hallmark.model.decoding.token_scores import compute_token_log_probs

TokenSequences = list[list[int]]


def count_required_bytes(
    config: ModelConfig, parameters: int, prompt_lengths: list[int], tokens: int
) -> int:
    """Count the fp32 bytes that decoding must read: weights at each step, keys and values.

    Args:
        config: The model's config.
        parameters: Number of its parameters.
        prompt_lengths: Tokens of each prompt.
        tokens: New tokens of each prompt.
    """
    # Of the position embeddings only single rows are read.
    weights = parameters - config.context * config.d_model
    slots = sum(tokens * length + tokens * (tokens - 1) // 2 for length in prompt_lengths)
    return 4 * (
        tokens * weights + slots * 2 * config.n_layers * config.kv_head_count * config.head_dim
    )


def measure_scoring_speed(
    model: Transformer, sequences: TokenSequences, repetitions: int, device: torch.device
) -> None:
    """Score sequences in both precisions, in alternation, and print the speeds."""
    seconds: dict[Precision, list[float]] = {"fp32": [], "bf16": []}

    def score(precision: Precision) -> None:
        with autocast_to_precision(model, precision):
            compute_token_log_probs(model, sequences)

    for turn in range(repetitions + 1):
        for precision, precision_seconds in seconds.items():
            turn_seconds = gpu.time_call(partial(score, precision), device)
            if turn:  # the first turn warms up
                precision_seconds.append(turn_seconds)
    for precision, precision_seconds in seconds.items():
        speed = sum(map(len, sequences)) / statistics.median(precision_seconds)
        print(f"scoring, {precision} {speed:9,.0f} tokens/s")


def main() -> None:
    parser = gpu.build_parser(__doc__ or "")
    parser.add_argument("--size", choices=list(gpu.SIZES), default="124M")
    for name, value, description in (
        ("prompts", 64, "number of prompts"),
        ("tokens", 128, "new tokens of each prompt"),
        ("repetitions", 5, "runs of each variant"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=description)
    options = parser.parse_args()
    device = gpu.choose_device(use_cpu=options.rehearse)
    size, context = gpu.SIZES[options.size], 1024
    if options.rehearse:
        size, context, options.tokens, options.repetitions = gpu.REHEARSAL_SIZE, 128, 8, 1
    model = build_random_model({**size, "context": context})
    variants: dict[str, Callable[[TokenSequences], TokenSequences]] = {}
    if importlib.util.find_spec("transformers"):
        peer = convert_to_transformers(model).to(device)
        variants["transformers"] = lambda p: decode_with_transformers(peer, p, options.tokens)
    model = model.to(device)
    variants["hallmark"] = lambda p: decode_with_hallmark(model, p, options.tokens)

    def decode_in_bf16(prompts: TokenSequences) -> TokenSequences:
        with autocast_to_precision(model, "bf16"):
            return decode_with_hallmark(model, prompts, options.tokens)

    def decode_without_graphs(prompts: TokenSequences) -> TokenSequences:
        with patch.object(
            generation, "make_decode_step", lambda net, *_: partial(compute_next_logits, net)
        ):
            return decode_with_hallmark(model, prompts, options.tokens)

    variants["hallmark, no graphs"] = decode_without_graphs
    variants["hallmark, bf16"] = decode_in_bf16
    prompts = sample_prompts(options.prompts, model.config.vocab_size)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    texts: dict[str, TokenSequences] = {name: decode(prompts) for name, decode in variants.items()}
    for turn in range(options.repetitions):
        if turn and gpu.is_time_over(options, f"turns {turn + 1} to {options.repetitions}"):
            break
        for name, decode in variants.items():
            seconds[name].append(gpu.time_call(partial(decode, prompts), device))
    bandwidth, data_sheet = gpu.measure_copy_bandwidth(device), gpu.find_data_sheet(device)
    parameters = model.count_parameters_by_group()["total"]
    required_bytes = count_required_bytes(
        model.config, parameters, list(map(len, prompts)), options.tokens
    )
    print(f"{gpu.describe_environment(device)}; a copy runs at {bandwidth / 1e12:.2f} TB/s")
    print(
        f"{parameters:,} parameters, {options.prompts} prompts of 8 to 96 tokens x "
        f"{options.tokens} new tokens; {len(seconds['hallmark'])} repetitions"
    )
    for name, values in seconds.items():
        median = statistics.median(values)
        new_tokens = options.prompts * options.tokens
        equal = sum(a == b for a, b in zip(texts[name], texts["hallmark"], strict=True))
        share = f", {required_bytes / median / bandwidth:.1%} of the copy's bandwidth"
        if data_sheet:
            data_sheet_share = required_bytes / median / data_sheet.bytes_per_second
            share += f", {data_sheet_share:.1%} of the data sheet's"
        if name.endswith("bf16"):  # the bytes were counted for fp32
            share = ""
        print(
            f"{name:<20} {new_tokens / median:9,.0f} tokens/s ({new_tokens / max(values):,.0f} to "
            f"{new_tokens / min(values):,.0f}){share}; {equal} of {options.prompts} texts "
            "equal"
        )
    if "transformers" in seconds:
        ratio = statistics.median(seconds["transformers"]) / statistics.median(seconds["hallmark"])
        print(f"hallmark is {ratio:.2f} times as fast as transformers")
    measure_scoring_speed(model, texts["hallmark"], options.repetitions, device)


if __name__ == "__main__":
    main()
