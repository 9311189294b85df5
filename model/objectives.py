"""Objectives: pure functions from packed tokens to one frozen Batch.

The trainer never asks which. Draws hang on a ``key``, on the row's number, counted from ``first``,
and on a document's place in it, not on other rows: a batch may be made in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.batch import Batch
from model.config import CORRUPTED, Objective, span_count
from model.draws import generator
from model.tokens import END_OF_TEXT, PAD

FIRST_TEXT = PAD + 1  # ids from here on are text, as far as an objective knows
Rows = NDArray[np.int64]
Pair = tuple[Sequence[int], Sequence[int]]  # source and target


def causal(rows: Rows, *, document_mask: bool = False) -> Batch:
    """Next-token prediction with teacher forcing: the gold history, never the model's own guess.

    The targets are the row shifted by one; the last position, padding and whatever predicts
    padding weigh 0. With ``document_mask`` no attention crosses the start of a document and
    positions count from there: a document's logits are those it would have alone.
    """
    ids = torch.from_numpy(rows)
    targets = torch.full_like(ids, PAD)
    targets[:, :-1] = ids[:, 1:]
    weights = ((targets != PAD) & (ids != PAD)).float()
    batch = Batch(ids, targets=targets, weights=weights)
    if not document_mask:
        return batch
    segments, positions = documents(ids == END_OF_TEXT)
    return replace(batch, segments=segments, positions=positions)


def documents(starts: Tensor) -> tuple[Tensor, Tensor]:
    """Segment ids and positions within the document, (B, T) each; ``starts``: where one begins.

    A row that goes on with the previous row's document begins with segment 0, at position 0.
    """
    segments = starts.cumsum(1)
    index = torch.arange(starts.shape[1], device=starts.device).expand_as(starts)
    begin = torch.where(starts, index, 0).cummax(1).values
    return segments, index - begin


def prefix(rows: Rows, lengths: NDArray[np.int64]) -> Batch:
    """Prefix LM: the first ``lengths`` (B,) tokens are seen in full, the rest predicted. ValueError
    where a prefix is longer than its row."""
    wrong = (lengths < 0) | (lengths > rows.shape[1])
    if wrong.any():
        i = wrong.argmax()
        raise ValueError(f"Row {i} has {rows.shape[1]} tokens, its prefix {lengths[i]}.")
    batch = causal(rows)
    given = torch.from_numpy(lengths)
    predicted = torch.arange(rows.shape[1]) + 1  # position t predicts token t + 1
    weights = batch.answers()[1] * (predicted >= given[:, None])
    return replace(batch, weights=weights, prefix=given)


def random_prefix(rows: Rows, key: int, first: int = 0) -> Batch:
    """Prefix LM with a length drawn for each row, uniform over 1 ... T-1."""
    end = max(2, rows.shape[1])
    lengths = [generator(key, first + i).integers(1, end) for i in range(len(rows))]
    return prefix(rows, np.array(lengths))


def mlm(
    rows: Rows, key: int, first: int = 0, *, mask: int, vocab_size: int, rate: float = 0.15
) -> Batch:
    """Masked LM (Devlin et al. 2019): predict 15 % of each row's places, chosen at random.

    Of the chosen 80 % become the ``mask`` token, 10 % a random token, 10 % stay. Begin-of-text and
    padding weigh 0: a row of few tokens may predict none. No attention crosses the start of a
    document, and positions count from there, as in texts that the model is asked about later. These
    begin with begin-of-text, as does every row: it replaces a token of one that goes on a document.
    """
    rows, width = rows.copy(), rows.shape[1]
    rows[:, 0] = END_OF_TEXT
    draws = [generator(key, first + i).random((3, width)) for i in range(len(rows))]
    chances, fate, words = np.stack(draws, 1)  # (B, T) each
    chances[:, 0] = 1.0  # not the begin
    last = max(1, round(rate * width)) - 1  # of as many places in each row
    chosen = chances <= np.partition(chances, last, axis=1)[:, last, None]
    chosen &= (rows >= FIRST_TEXT) & (rows != mask)
    others = FIRST_TEXT + (words * (vocab_size - FIRST_TEXT)).astype(np.int64)
    ids = np.where(chosen & (fate < 0.8), mask, rows)
    ids = np.where(chosen & (fate >= 0.8) & (fate < 0.9), others, ids)
    targets = torch.from_numpy(rows)
    segments, positions = documents(targets == END_OF_TEXT)
    return Batch(
        torch.from_numpy(ids), targets=targets, weights=torch.from_numpy(chosen).float(),
        segments=segments, positions=positions, keys=targets != PAD,
    )  # fmt: skip


def span_corruption(rows: Rows, key: int, first: int = 0, *, sentinels: Sequence[int]) -> Batch:
    """Spans of text go to the target, a sentinel stays in their place (Raffel et al. 2020).

    Source: "I took <x> to <y> his walk."; target: "<x> my dog, Fido, <y> the park for". In each
    document 15 % of the tokens fall into spans of 3 on average, never two of them side by side.
    The documents of a row are pairs of their own, without their begin-of-text tokens; a row without
    text weighs 0. ValueError where there are fewer sentinels than spans.
    """
    pairs: list[list[Pair]] = []
    for i, row in enumerate(rows):
        begins = [0, *np.flatnonzero(row == END_OF_TEXT)]
        texts = [text[text >= FIRST_TEXT].tolist() for text in np.split(row, begins[1:])]
        pairs.append([corrupt(text, _spans(len(text), generator(key, first + i, begin)), sentinels)
                      for begin, text in zip(begins, texts, strict=True) if text]
                     or [([], [])])  # fmt: skip
    # So that a training has few shapes: sources as long as a row, targets some eighths of it.
    batch = packed_pairs(pairs, rows.shape[1], max(1, rows.shape[1] // 8))
    text = torch.from_numpy(rows >= FIRST_TEXT).any(1, keepdim=True)
    return replace(batch, weights=batch.answers()[1] * text)


def corrupt(
    tokens: Sequence[int] | Rows, spans: Sequence[tuple[int, int]], sentinels: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Source and target of one sequence whose ``spans`` [begin, end) are cut out, in order."""
    if len(spans) > len(sentinels):
        raise ValueError(f"{len(spans)} spans need as many sentinels, not {len(sentinels)}.")
    source: list[int] = []
    target: list[int] = []
    done = 0
    for (begin, end), sentinel in zip(spans, sentinels, strict=False):
        source += [*map(int, tokens[done:begin]), sentinel]
        target += [sentinel, *map(int, tokens[begin:end])]
        done = end
    return source + list(map(int, tokens[done:])), target


def seq2seq(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Batch:
    """Pairs: source s; target t with the end symbol; decoder input t shifted right behind a start.

    Start and end are both <|endoftext|>, as at the two ends of a packed document. Each side is
    padded to its longest sequence; empty sources get one start symbol, so that there is a key.
    ValueError where a source is without its target, or a target without its source.
    """
    if len(sources) != len(targets):
        raise ValueError(f"There are {len(sources)} sources and {len(targets)} targets, no pairs.")
    made = packed_pairs([[pair] for pair in zip(sources, targets, strict=True)])
    return replace(made, segments=None, positions=None, source_segments=None, source_positions=None)


def packed_pairs(
    rows: Sequence[Sequence[Pair]], source_step: int = 1, target_step: int = 1
) -> Batch:
    """As ``seq2seq``, of the pairs of a row side by side: each is predicted as it would be alone,
    positions count from its own beginnings. Both widths are multiples of a step."""
    source = _side_by_side(
        [[list(s) or [END_OF_TEXT] for s, _ in row] for row in rows], source_step
    )
    target = _side_by_side([[[END_OF_TEXT, *t] for _, t in row] for row in rows], target_step)
    ends = _side_by_side([[[*t, END_OF_TEXT] for _, t in row] for row in rows], target_step)
    assert target.keys is not None
    return Batch(
        target.ids, targets=ends.ids, weights=target.keys.float(), segments=target.segments,
        positions=target.positions, source=source.ids, source_keys=source.keys,
        source_segments=source.segments, source_positions=source.positions,
    )  # fmt: skip


def make_objective(
    name: Objective, *, document_mask: bool, context: int, vocab_size: int,
    token_id: Callable[[str], int | None],
) -> Callable[[Rows, int, int], Batch]:  # fmt: skip
    """The function (rows, key, first) -> Batch that a config names, for rows of ``context`` tokens.

    ``token_id`` looks up special tokens: masked LM needs <|mask|>, span corruption <|sentinel_0|>
    and so on, one for each span of a row; ValueError where the tokenizer lacks them.
    """
    if name == "causal":
        return lambda rows, key, first: causal(rows, document_mask=document_mask)
    if document_mask:
        raise ValueError(f"document_mask is for the causal objective, not {name}.")
    if name == "prefix":
        return random_prefix
    if name == "mlm":
        mask = token_id("<|mask|>")
        if mask is None:
            raise ValueError("Masked LM needs a tokenizer made for it, and this has no <|mask|>.")
        return partial(mlm, mask=mask, vocab_size=vocab_size)
    if name == "seq2seq":
        raise ValueError("The objective seq2seq learns from pairs, not from packed text.")
    needed = span_count(context)
    found = [token_id(f"<|sentinel_{i}|>") for i in range(needed)]
    sentinels = [token for token in found if token is not None]
    if len(sentinels) < needed:
        most = max(t for t in range(context + 1) if span_count(t) <= max(1, len(sentinels)))
        raise ValueError(
            f"Span corruption of {context} tokens needs a tokenizer with {needed} special tokens, "
            f"<|sentinel_0|> and so on, and it has {len(sentinels)}; {span_count(most)} are enough "
            f"for a context of {most}."
        )
    return partial(span_corruption, sentinels=sentinels)


def _spans(length: int, random: np.random.Generator) -> list[tuple[int, int]]:
    """Random disjoint spans, with at least one token before, between and after them."""
    noise = max(1, round(length * CORRUPTED))
    spans = min(span_count(length), noise, length - noise - 1)
    if spans < 1:
        return []
    inside, outside = _parts(noise, spans, random), _parts(length - noise, spans + 1, random)
    edges = np.cumsum(np.stack((outside[:-1], inside), 1).ravel()).reshape(-1, 2)
    return [(int(begin), int(end)) for begin, end in edges]


def _parts(total: int, parts: int, random: np.random.Generator) -> NDArray[np.int64]:
    """``total`` as a sum of ``parts`` positive integers, every way equally likely."""
    cuts = np.sort(random.choice(max(1, total - 1), parts - 1, replace=False)) + 1
    return np.diff(np.concatenate(([0], cuts, [total]))).astype(np.int64)


def _side_by_side(rows: Sequence[Sequence[Sequence[int]]], step: int) -> Batch:
    """The sequences of each row, none of them empty, with their segments, positions and padding
    mask; as wide as the longest, rounded up to a multiple of ``step``. Padding belongs to a row's
    last sequence: what sees nothing has no state."""
    lengths = [[len(sequence) for sequence in row] for row in rows]
    shape = len(rows), -(-max(map(sum, lengths)) // step) * step
    ids, (starts, keys) = np.full(shape, PAD), np.zeros((2, *shape), bool)
    for i, row in enumerate(rows):
        ids[i, : sum(lengths[i])] = np.concatenate(row)
        keys[i, : sum(lengths[i])] = True
        starts[i, np.cumsum([0, *lengths[i][:-1]])] = True
    segments, positions = documents(torch.from_numpy(starts))
    given = {"segments": segments, "positions": positions, "keys": torch.from_numpy(keys)}
    return Batch(torch.from_numpy(ids), **given)
