"""Compare the speed of decoding with batched, left-padded ``transformers.generate``.

    python -m benchmarks.decode [--size 5M|124M] [--prompts 64] [--tokens 128] [--repetitions 5]

Both decode greedily in fp32 with a cache, with the same exported weights and prompts of mixed
length, in alternation. Prints the median of new tokens per second, ratios, and the number of equal
texts. All texts must be equal, except where the scores of two tokens agree to the last bits.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import hallmark.model  # noqa: F401  before torch: it sets how threads wait

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


def build_random_model(sizes: dict[str, int]) -> Transformer:
    """Build a model with random weights, so large that the scores of tokens differ clearly."""
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**sizes))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model.eval()


def convert_to_transformers(model: Transformer) -> Any:
    """Convert a model to one of ``transformers`` by exporting and loading it."""
    import transformers
    from tokenizers import Tokenizer, models

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Path(folder) / "tokenizer.json"
        words = {f"<{i}>": i for i in range(model.config.vocab_size)}
        Tokenizer(models.WordLevel(words, unk_token="<0>")).save(str(tokenizer))
        export_transformers(model, Path(folder) / "exported", tokenizer_path=tokenizer)
        return transformers.GPT2LMHeadModel.from_pretrained(Path(folder) / "exported").eval()


def decode_with_transformers(model: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Continue prompts by so many tokens with ``transformers.generate``."""
    width = max(map(len, prompts))
    ids = torch.ones(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, prompt in enumerate(prompts):
        ids[i, width - len(prompt) :] = torch.tensor(prompt)
        mask[i, width - len(prompt) :] = 1
    with torch.inference_mode():
        out = model.generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            use_cache=True,
            pad_token_id=1,
        )
    return [row[width:].tolist() for row in out]


def decode_with_hallmark(
    model: Transformer, prompts: list[list[int]], tokens: int
) -> list[list[int]]:
    """Continue prompts by so many tokens with Hallmark."""
    continuations = generate(
        model, prompts, max_new_tokens=tokens, temperature=0.0, stop=(), forbid=(0,)
    )
    return [samples[0].ids for samples in continuations]


def sample_prompts(count: int, vocab_size: int) -> list[list[int]]:
    """Sample prompts of 8 to 96 random tokens."""
    rng = np.random.default_rng(0)
    return [rng.integers(2, vocab_size, rng.integers(8, 97)).tolist() for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="5M", help="parameters of the model")
    for name, value, description in (
        ("prompts", 64, "number of prompts"),
        ("tokens", 128, "new tokens of each prompt"),
        ("repetitions", 5, "runs of each implementation"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=description)
    options = parser.parse_args()
    model = build_random_model(SIZES[options.size])
    peer = convert_to_transformers(model)
    prompts = sample_prompts(options.prompts, model.config.vocab_size)
    implementations = {
        "transformers": lambda p, n: decode_with_transformers(peer, p, n),
        "hallmark": lambda p, n: decode_with_hallmark(model, p, n),
    }
    for decode in implementations.values():
        decode(prompts[:4], 4)
    speeds: dict[str, list[float]] = {name: [] for name in implementations}
    texts: dict[str, list[list[int]]] = {}
    for _ in range(options.repetitions):
        for name, decode in implementations.items():
            start = time.perf_counter()
            texts[name] = decode(prompts, options.tokens)
            seconds = time.perf_counter() - start
            speeds[name].append(options.prompts * options.tokens / seconds)
    total = model.count_parameters_by_group()["total"]
    print(
        f"{total:,} parameters, {options.prompts} prompts of 8 to 96 tokens x {options.tokens} new "
        f"tokens, greedy, fp32, {torch.get_num_threads()} threads, torch {torch.__version__}; "
        f"{options.repetitions} repetitions"
    )
    peer_speed = statistics.median(speeds["transformers"])
    for name, values in speeds.items():
        speed = statistics.median(values)
        equal = sum(a == b for a, b in zip(texts["transformers"], texts[name], strict=True))
        print(
            f"{name:<14} {speed:9,.0f} tokens/s ({min(values):,.0f} to {max(values):,.0f}), "
            f"{speed / peer_speed:.2f} times as fast as transformers; {equal} of "
            f"{options.prompts} texts equal"
        )


if __name__ == "__main__":
    main()
