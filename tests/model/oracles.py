"""Slow, obvious versions of what the package computes fast, and small models and data for tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.config import ModelConfig
from hallmark.model.decoding.cache import make_prefix_lm_lengths
from hallmark.model.decoding.context_windows import compute_default_stride, compute_window_start
from hallmark.model.decoding.inference_mode import evaluation_mode
from hallmark.model.decoding.sampling import TokenSampler, make_draw_keys


def random_tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tiny(**changes: object) -> Transformer:
    """Return a small random model whose logits differ enough for mistakes to show."""
    values: dict[str, object] = {
        "vocab_size": 61,
        "context": 16,
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
    }
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**{**values, **changes})).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.ndim > 1 else 0.1))
    return model


def logits(model: Transformer, ids: torch.Tensor, **fields: torch.Tensor) -> torch.Tensor:
    """Score the next token at every position, (B, T, V)."""
    return model.compute_logits(model(Batch(ids, **fields)))


def naive_window_start(n: int, context: int, stride: int) -> int:
    """Search for the start of the window: the first multiple of the stride that reaches token n."""
    start = 0
    while n - start > context:
        start += stride
    return start


@torch.no_grad()
def naive_next_log_probs(model: Transformer, tokens: Sequence[int]) -> torch.Tensor:
    """Compute log-probabilities (V,) of the next token from the whole window, without a cache."""
    context = model.config.context
    start = naive_window_start(len(tokens), context, context // 2)
    return logits(model, torch.tensor([list(tokens[start:])]))[0, -1].log_softmax(-1)


def naive_generate(
    model: Transformer,
    prompt: Sequence[int],
    steps: int,
    choose: Callable[[torch.Tensor, int], int],
    stop: int | None = None,
) -> tuple[list[int], list[float]]:
    """Generate one token at a time; return the new tokens and their log-probabilities."""
    tokens, scores = list(prompt), []
    for t in range(steps):
        log_p = naive_next_log_probs(model, tokens)
        token = choose(log_p, t)
        tokens.append(token)
        scores.append(float(log_p[token]))
        if token == stop:
            break
    return tokens[len(prompt) :], scores


class TableScorer:
    """A scorer for beam search with a table of probabilities after each history, for each search.

    ``frontiers`` are the histories that the search has extended, step by step.
    """

    def __init__(self, *probabilities: Callable[[tuple[int, ...]], list[float]]) -> None:
        self.compute_token_probs = probabilities
        self.live: list[tuple[int, tuple[int, ...]]] = []
        self.frontiers: list[list[tuple[int, ...]]] = []

    def score_first_tokens(self) -> torch.Tensor:
        self.live = [(search, ()) for search in range(len(self.compute_token_probs))]
        return self._rows()

    def score_next_tokens(self, parent_rows: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        rows = [(self.live[p], t) for p, t in zip(parent_rows, tokens, strict=True)]
        self.live = [(search, (*history, token)) for (search, history), token in rows]
        self.frontiers.append([history for _, history in self.live])
        return self._rows()

    def _rows(self) -> torch.Tensor:
        table = [self.compute_token_probs[search](history) for search, history in self.live]
        return torch.tensor(table, dtype=torch.float64).log()


def write_rows(path: Path, rows: NDArray[np.int32]) -> Path:
    """Write a packed table as the pack stage does."""
    flat = pa.array(np.ascontiguousarray(rows, dtype=np.int32).ravel())
    array = pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
    pq.write_table(pa.table({"token_ids": array}), path)
    return path


def write_tokenizer(path: Path, vocab_size: int, last: Sequence[str] = ()) -> Path:
    """Write a tokenizer of ``vocab_size`` words; the last ones are special tokens."""
    words = [
        "<|endoftext|>",
        "<|pad|>",
        *(f"t{i}" for i in range(2, vocab_size - len(last))),
        *last,
    ]
    vocab = {word: i for i, word in enumerate(words)}
    Tokenizer(models.WordLevel(vocab, unk_token="<|pad|>")).save(str(path))
    return path


def toy_rows(n: int, context: int, vocab_size: int, seed: int = 0) -> NDArray[np.int32]:
    """Build learnable text: counting upwards from a random start, documents of random length."""
    rng = np.random.default_rng(seed)
    flat: list[int] = []
    while len(flat) < n * context:
        start, length = int(rng.integers(2, vocab_size)), int(rng.integers(3, 20))
        flat += [0] + [2 + (start + i) % (vocab_size - 2) for i in range(length)]
    return np.array(flat[: n * context], dtype=np.int32).reshape(n, context)


def generate_without_cache(
    model: Transformer,
    prompt: Sequence[int],
    sampler: TokenSampler,
    *,
    max_new_tokens: int,
    seed: int = 0,
    stop: Collection[int] = (0,),
    forbid: Collection[int] = (1,),
) -> list[int]:
    """Generate the first text that ``generate`` writes after a decoder's prompt.

    Each token is computed from the whole window again.
    """
    tokens, key, context = list(prompt), make_draw_keys(seed, prompt, 1), model.config.context
    device = model.embedding.weight.device
    with evaluation_mode(model):
        for position in range(max_new_tokens):
            start = compute_window_start(len(tokens), context, compute_default_stride(context))
            prefix_lengths = make_prefix_lm_lengths(model, [max(0, len(prompt) - start)])
            hidden = model(
                Batch(torch.tensor([tokens[start:]], device=device), prefix=prefix_lengths)
            )
            logits = model.compute_logits(hidden[:, -1]).float()  # (1, V)
            logits[:, list(forbid)] = -torch.inf
            history = torch.tensor([tokens], device=device)
            tokens += sampler.choose_tokens(logits, key, position, history, list(stop)).tolist()
            if tokens[-1] in stop:
                break
    return tokens[len(prompt) :]
