"""Log-probabilities of given tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.architecture import Transformer
from model.batch import Batch
from model.decoding.cache import prompt_lengths
from model.decoding.mode import asks
from model.decoding.windows import default_stride, window_start
from model.loss import chunk_rows
from model.rows import by_length, check_ids, padded
from model.tokens import PAD, Tokens

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Moments:
    """Per predicted token of one sequence (all of length len(sequence) - 1).

    log_probs: log p of the token, in nats. mean, std: of log p over the vocabulary under p itself
    (Min-K%++, Zhang et al. 2024). rank: how many of the tokens that may be written there the model
    thought more likely, of equally likely ones those of a lower id: 0 is what greedy decoding
    writes, -1 stands where the model gives no number.
    """

    log_probs: Float32
    mean: Float32
    std: Float32
    rank: NDArray[np.int32]

    def behind(self, count: int) -> Moments:
        """Without those of the first tokens."""
        return Moments(
            self.log_probs[count:], self.mean[count:], self.std[count:], self.rank[count:]
        )


def token_log_probs(
    model: Transformer,
    sequences: Sequence[Tokens],
    *,
    batch_tokens: int = 16_384,
    stride: int | None = None,
    given: Sequence[int] | None = None,
) -> list[Float32]:
    """log p of each token after the first, in nats: entry i is log p(s[i+1] | s[...i]).

    Sequences longer than the context are scored in windows (see ``window_start``; ``stride``
    defaults to half the context). Sequences of fewer than two tokens give an empty array.

    Args:
        batch_tokens: most tokens per forward pass, padding included.
        given: how many tokens of each sequence are its prompt, by default the first alone. A
            prefix LM reads them in both directions, and says nothing of them: NaN.
    """
    how = batch_tokens, stride, given
    return [cells[0] for cells in _scan(model, sequences, log_probs_of, 1, *how)]


def token_moments(
    model: Transformer,
    sequences: Sequence[Tokens],
    *,
    batch_tokens: int = 16_384,
    stride: int | None = None,
    given: Sequence[int] | None = None,
    forbid: Sequence[int] = (PAD,),
) -> list[Moments]:
    """As ``token_log_probs``, with the moments over the vocabulary that some scores need.

    Args:
        forbid: tokens that are never written, as ``generate`` takes them: they have no rank.
    """
    reduce = partial(moments_of, forbid=forbid)
    return as_moments(_scan(model, sequences, reduce, 4, batch_tokens, stride, given))


def as_moments(cells: Sequence[Float32]) -> list[Moments]:
    """Of what ``moments_of`` gave for sequences, each (4, n)."""
    ranks = [np.where(np.isnan(c[0]), -1, c[3]).astype(np.int32) for c in cells]
    return [Moments(c[0], c[1], c[2], rank) for c, rank in zip(cells, ranks, strict=True)]


def target_log_probs(
    model: Transformer,
    sources: Sequence[Tokens],
    targets: Sequence[Tokens],
    *,
    batch_tokens: int = 16_384,
) -> list[Float32]:
    """log p of each token of a target after its first, given its source; an encoder-decoder.

    A source or a target longer than the context is a ValueError. ``batch_tokens``: most tokens of
    sources and targets per forward pass, padding included; a pair that has more is read alone.
    """
    cells = _scan_targets(model, sources, targets, log_probs_of, 1, batch_tokens)
    return [cell[0] for cell in cells]


def target_moments(
    model: Transformer,
    sources: Sequence[Tokens],
    targets: Sequence[Tokens],
    *,
    batch_tokens: int = 16_384,
    forbid: Sequence[int] = (PAD,),
) -> list[Moments]:
    """As ``target_log_probs``, with the moments of ``token_moments``."""
    reduce = partial(moments_of, forbid=forbid)
    return as_moments(_scan_targets(model, sources, targets, reduce, 4, batch_tokens))


@asks
def _scan_targets(
    model: Transformer,
    sources: Sequence[Tokens],
    targets: Sequence[Tokens],
    reduce: Callable[[Tensor, Tensor], Tensor],
    columns: int,
    batch_tokens: int,
) -> list[Float32]:
    """As ``_scan``: one (columns, len(target) - 1) array per target."""
    if model.encoder is None or model.decoder is None:
        raise ValueError("Targets for sources need an encoder-decoder.")
    if len(sources) != len(targets) or not all(map(len, sources)):
        raise ValueError("Each target needs a source of at least one token.")
    for name, sequences in (("Source", sources), ("Target", targets)):
        for i, sequence in enumerate(sequences):
            check_ids(sequence, model.config.vocab_size, f"{name} {i}")
    device = model.embedding.weight.device
    results = [np.empty((columns, max(0, len(t) - 1)), dtype=np.float32) for t in targets]
    order = sorted((i for i, t in enumerate(targets) if len(t) > 1),
                   key=lambda i: (len(targets[i]), len(sources[i])))  # fmt: skip
    size = chunk_rows(model.config.vocab_size, device.type)
    while order:
        batch = [order.pop()]
        longest, widest = len(targets[batch[0]]), len(sources[batch[0]])
        while order:
            widest = max(widest, len(sources[order[-1]]))
            if (len(batch) + 1) * (longest + widest) > batch_tokens:
                break
            batch.append(order.pop())
        ids, real = padded([targets[i] for i in batch], device)
        source, keys = padded([sources[i] for i in batch], device)
        keep = real[:, 1:]
        hidden = model(Batch(ids[:, :-1], source=source, source_keys=keys))[keep]  # (n, d)
        parts = [
            reduce(model.logits(h).float(), t)
            for h, t in zip(hidden.split(size), ids[:, 1:][keep].split(size), strict=True)
        ]
        values = torch.cat(parts, 1).cpu().numpy()
        begin = 0
        for i in batch:
            count = results[i].shape[1]
            results[i][:] = values[:, begin : begin + count]
            begin += count
    return results


@asks
def next_log_probs(
    model: Transformer, prompts: Sequence[Tokens], *, batch_tokens: int = 16_384
) -> Float32:
    """log p of every token after each prompt, (prompts, V). An empty prompt is a ValueError."""
    if model.config.architecture != "decoder":
        raise ValueError("Left-to-right scores need a decoder-only model.")
    context = model.config.context
    result = np.empty((len(prompts), model.config.vocab_size), dtype=np.float32)
    rows = []
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"Prompt {i} is empty: begin it with the begin-of-text token.")
        start = window_start(len(prompt), context, default_stride(context))
        rows.append(_Row(i, start, len(prompt), len(prompt)))
    for batch, ids in _batches(model, prompts, rows, batch_tokens):
        prefix = prompt_lengths(model, [row.last - row.start for row in batch])
        hidden = model(Batch(ids[:, :-1], prefix=prefix))  # (B, T, d)
        ends = torch.tensor([row.last - 1 - row.start for row in batch], device=ids.device)
        logits = model.logits(hidden[torch.arange(len(batch), device=ids.device), ends]).float()
        result[[row.sequence for row in batch]] = logits.log_softmax(-1).cpu().numpy()
    return result


@dataclass(frozen=True)
class _Row:
    """One window: the tokens start ... last-1 as input predict tokens ``first`` ... ``last``."""

    sequence: int
    start: int
    first: int
    last: int

    @property
    def skip(self) -> int:
        """Predictions that an earlier window has made already."""
        return self.first - 1 - self.start

    @property
    def count(self) -> int:
        return self.last - self.first + 1


def _windows(sequence: int, length: int, context: int, stride: int) -> Iterator[_Row]:
    first = 1
    while first < length:
        start = window_start(first, context, stride)
        last = min(start + context, length - 1)
        yield _Row(sequence, start, first, last)
        first = last + 1


@asks
def _scan(
    model: Transformer,
    sequences: Sequence[Tokens],
    reduce: Callable[[Tensor, Tensor], Tensor],
    columns: int,
    batch_tokens: int,
    stride: int | None,
    given: Sequence[int] | None = None,
) -> list[Float32]:
    """``reduce`` (logits (n, V) float32, targets (n,)) -> (columns, n) for every predicted token.

    Returns one (columns, len(sequence) - 1) array per sequence. Logits exist for one chunk of
    tokens at a time, as in training, and for no padding.
    """
    if model.config.architecture != "decoder":
        raise ValueError("Left-to-right scores need a decoder-only model.")
    context = model.config.context
    stride = default_stride(context) if stride is None else stride
    if not 1 <= stride <= context:
        raise ValueError(f"stride must be between 1 and the context {context}, not {stride}.")
    given = [min(1, len(s)) for s in sequences] if given is None else given
    for i, (count, sequence) in enumerate(zip(given, sequences, strict=True)):
        if not 0 <= count <= len(sequence):
            raise ValueError(f"Sequence {i} has {len(sequence)} tokens, its prompt {count}.")
    results = [np.empty((columns, max(0, len(s) - 1)), dtype=np.float32) for s in sequences]
    rows = [row for i, s in enumerate(sequences) for row in _windows(i, len(s), context, stride)]
    for batch, ids in _batches(model, sequences, rows, batch_tokens):
        wanted = np.zeros((len(batch), ids.shape[1] - 1), dtype=bool)
        for i, row in enumerate(batch):
            wanted[i, row.skip : row.skip + row.count] = True
        keep = torch.from_numpy(wanted).to(ids.device)
        seen = [min(max(0, given[row.sequence] - row.start), row.last - row.start) for row in batch]
        prefix = prompt_lengths(model, seen) if max(seen) > 1 else None
        hidden = model(Batch(ids[:, :-1], prefix=prefix))[keep]  # (n, d)
        targets = ids[:, 1:][keep]  # (n,)
        size = chunk_rows(model.config.vocab_size, ids.device.type)
        parts = [
            reduce(model.logits(h).float(), t)
            for h, t in zip(hidden.split(size), targets.split(size), strict=True)
        ]
        values = torch.cat(parts, 1).cpu().numpy()
        begin = 0
        for row in batch:
            results[row.sequence][:, row.first - 1 : row.last] = values[
                :, begin : begin + row.count
            ]
            begin += row.count
    if model.objective == "prefix":
        for cells, count in zip(results, given, strict=True):
            cells[:, : max(0, count - 1)] = np.nan
    return results


def _batches(
    model: Transformer, sequences: Sequence[Tokens], rows: list[_Row], batch_tokens: int
) -> Iterator[tuple[list[_Row], Tensor]]:
    """Rows of like length together, longest first, with their ids (B, width + 1).

    Padding stands to the right, where a causal model cannot see it: no mask is needed.
    """
    for chosen in by_length([row.last - row.start for row in rows], batch_tokens):
        batch = [rows[i] for i in chosen]
        width = batch[0].last - batch[0].start
        tokens = np.full((len(batch), width + 1), PAD, dtype=np.int64)
        for i, row in enumerate(batch):
            part = sequences[row.sequence][row.start : row.last + 1]
            name = f"Sequence {row.sequence}"
            tokens[i, : len(part)] = check_ids(part, model.config.vocab_size, name)
        yield batch, torch.from_numpy(tokens).to(model.embedding.weight.device)


def chosen_log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """log p (...) of targets (...) under logits (..., V), without a second table of that size.

    NaN where the logits are no distribution: any is NaN or +inf, or all are -inf. A target whose
    own logit is -inf, as of a token that a model never gives, has log p -inf.
    """
    total = logits.logsumexp(-1)
    chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return chosen - total + (total - total)  # inf - inf is NaN


def log_probs_of(logits: Tensor, targets: Tensor) -> Tensor:
    """log p of the targets, (1, n), of logits (n, V); see ``chosen_log_probs``."""
    return chosen_log_probs(logits, targets).unsqueeze(0)


def moments_of(logits: Tensor, targets: Tensor, forbid: Sequence[int] = ()) -> Tensor:
    """Of logits (n, V) and targets (n,): log p, mean, std and rank of ``Moments``, (4, n)."""
    log_p = logits.log_softmax(1)  # (n, V)
    p = log_p.exp()
    chosen = log_p.gather(1, targets.unsqueeze(1))  # (n, 1)
    log_p.masked_fill_(log_p.isneginf(), 0.0)  # weighs nothing, and 0 * inf is NaN
    mean = (p * log_p).sum(1, keepdim=True)
    variance = (p * (log_p - mean).square()).sum(1)
    own = logits.gather(1, targets.unsqueeze(1))
    lower = torch.arange(logits.shape[1], device=logits.device) < targets.unsqueeze(1)
    before = (logits > own) | ((logits == own) & lower)  # (n, V)
    before[:, list(forbid)] = False
    rank = before.sum(1)
    return torch.stack((chosen.squeeze(1), mean.squeeze(1), variance.sqrt(), rank.float()))
