"""Slow, obvious versions of what the package does fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from model.architecture import Transformer
from model.batch import Batch
from model.config import ModelConfig


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tiny(**changes: object) -> Transformer:
    """A small random model whose logits differ enough for mistakes to show."""
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


def logits(model: Transformer, ids: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
    """Scores of the next token at every position, (B, T, V)."""
    return model.compute_logits(model(Batch(ids, **given)))


def naive_start(n: int, context: int, stride: int) -> int:
    """The window rule by search: the first multiple of the stride from which token n is reached."""
    start = 0
    while n - start > context:
        start += stride
    return start


@torch.no_grad()
def naive_next(model: Transformer, tokens: Sequence[int]) -> torch.Tensor:
    """Log-probabilities (V,) of the next token: the whole window, alone, without a cache."""
    context = model.config.context
    start = naive_start(len(tokens), context, context // 2)
    return logits(model, torch.tensor([list(tokens[start:])]))[0, -1].log_softmax(-1)


def naive_generate(
    model: Transformer,
    prompt: Sequence[int],
    steps: int,
    choose: Callable[[torch.Tensor, int], int],
    stop: int | None = None,
) -> tuple[list[int], list[float]]:
    tokens, scores = list(prompt), []
    for t in range(steps):
        log_p = naive_next(model, tokens)
        token = choose(log_p, t)
        tokens.append(token)
        scores.append(float(log_p[token]))
        if token == stop:
            break
    return tokens[len(prompt) :], scores


class Tree:
    """A scorer of beam search given as a table: for each search the probabilities behind each
    history. ``frontiers`` are the histories that the search has gone on with, step by step."""

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
    """A packed table as the pack stage leaves it."""
    flat = pa.array(np.ascontiguousarray(rows, dtype=np.int32).ravel())
    array = pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
    pq.write_table(pa.table({"ids": array}), path)
    return path


def write_tokenizer(path: Path, vocab_size: int, last: Sequence[str] = ()) -> Path:
    """A tokenizer of ``vocab_size`` words, the last of which are special tokens."""
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
    """Learnable text: counting upwards from a random start, documents of random length."""
    rng = np.random.default_rng(seed)
    flat: list[int] = []
    while len(flat) < n * context:
        start, length = int(rng.integers(2, vocab_size)), int(rng.integers(3, 20))
        flat += [0] + [2 + (start + i) % (vocab_size - 2) for i in range(length)]
    return np.array(flat[: n * context], dtype=np.int32).reshape(n, context)
