"""Decoding speed beside batched, left-padded ``transformers.generate`` on the exported weights.

    python -m benchmarks.decode [--size 5M|124M] [--prompts 64] [--tokens 128] [--repetitions 5]

Greedy, fp32, prompts of mixed length, both with a cache. They decode in turns; prints medians of
new tokens/s with ratios, and how many of the texts are equal (they must be, except for tokens whose
scores agree to the last bits).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import hallmark.model

# isort: split
import numpy as np
import torch

from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig
from hallmark.model.decoding.generation import generate
from hallmark.model.interchange.transformers_checkpoint import export_transformers

SIZES: dict[str, dict[str, int]] = {
    "5M": {"vocab_size": 8192, "d_model": 256, "n_layers": 4, "n_heads": 8, "context": 256},
    "124M": {"vocab_size": 50304, "d_model": 768, "n_layers": 12, "n_heads": 12, "context": 1024},
}


def make_model(sizes: dict[str, int]) -> Transformer:
    """Random weights, large enough that words differ clearly in their scores."""
    torch.manual_seed(0)
    net = Transformer(ModelConfig(**sizes))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return net.eval()


def exported(net: Transformer) -> Any:
    """The same model as one of ``transformers``."""
    import transformers
    from tokenizers import Tokenizer, models

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Path(folder) / "tokenizer.json"
        words = {f"<{i}>": i for i in range(net.config.vocab_size)}
        Tokenizer(models.WordLevel(words, unk_token="<0>")).save(str(tokenizer))
        export_transformers(net, Path(folder) / "c", tokenizer_path=tokenizer)
        return transformers.GPT2LMHeadModel.from_pretrained(Path(folder) / "c").eval()


def hugging_face(net: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    width = max(map(len, prompts))
    ids = torch.ones(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, prompt in enumerate(prompts):
        ids[i, width - len(prompt) :] = torch.tensor(prompt)
        mask[i, width - len(prompt) :] = 1
    with torch.inference_mode():
        out = net.generate(
            ids.to(net.device),
            attention_mask=mask.to(net.device),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            use_cache=True,
            pad_token_id=1,
        )
    return [row[width:].tolist() for row in out]


def hallmark(net: Transformer, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    continuations = generate(
        net, prompts, max_new_tokens=tokens, temperature=0.0, stop=(), forbid=(0,)
    )
    return [samples[0].ids for samples in continuations]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="5M")
    for name, value in (("prompts", 64), ("tokens", 128), ("repetitions", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    net = make_model(SIZES[options.size])
    peer = exported(net)
    random = np.random.default_rng(0)
    prompts = [
        random.integers(2, net.config.vocab_size, random.integers(8, 97)).tolist()
        for _ in range(options.prompts)
    ]
    sides = {
        "transformers": lambda p, n: hugging_face(peer, p, n),
        "hallmark": lambda p, n: hallmark(net, p, n),
    }
    for decode in sides.values():
        decode(prompts[:4], 4)
    speed: dict[str, list[float]] = {name: [] for name in sides}
    texts: dict[str, list[list[int]]] = {}
    for _ in range(options.repetitions):
        for name, decode in sides.items():
            start = time.perf_counter()
            texts[name] = decode(prompts, options.tokens)
            seconds = time.perf_counter() - start
            speed[name].append(options.prompts * options.tokens / seconds)
    total = net.count_parameters_by_group()["total"]
    print(
        f"{total:,} parameters, {options.prompts} prompts of 8 to 96 tokens x {options.tokens} new "
        f"ones, greedy, fp32, {torch.get_num_threads()} threads, torch {torch.__version__}; "
        f"{options.repetitions} repetitions"
    )
    base = statistics.median(speed["transformers"])
    for name, values in speed.items():
        value = statistics.median(values)
        equal = sum(a == b for a, b in zip(texts["transformers"], texts[name], strict=True))
        print(
            f"{name:<14} {value:9,.0f} tokens/s ({min(values):,.0f} to {max(values):,.0f}), "
            f"{value / base:.2f} times transformers; {equal} of {options.prompts} texts equal"
        )


if __name__ == "__main__":
    main()
