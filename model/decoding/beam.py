"""Beam search, apart from any model: it asks a scorer for log-probabilities.

One search, or many side by side: each is what it would be alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from model.architecture import Transformer
from model.decoding.cache import new_cache
from model.decoding.mode import asks, evaluated
from model.decoding.prompts import Window, check_fit, check_prompts, read_windows
from model.decoding.stepping import next_logits
from model.rows import check_ids, check_numbers
from model.tokens import END_OF_TEXT, PAD

Normalisation = Literal["none", "mean", "gnmt"]
Stopping = Literal["textbook", "transformers"]


class Scorer(Protocol):
    """Log-probabilities of the next token of every live hypothesis of B searches."""

    def start(self) -> Tensor:
        """(B, V), before the first token of each search."""

    def advance(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """(n, V) for n hypotheses: row ``parents[i]`` of the last answer, extended by
        ``tokens[i]``."""


@dataclass(frozen=True)
class Hypothesis:
    """Generated ids, with the end symbol if complete; the log-probability of each in nats, and
    their sum; and the score it is ranked by: that sum divided by the length's normaliser."""

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    log_prob: float
    score: float
    complete: bool


def normaliser(kind: Normalisation, alpha: float = 0.6) -> Callable[[int], float]:
    """What a sum of log-probabilities over ``length`` tokens is divided by.

    mean: the length; gnmt: ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14).
    """
    if kind == "none":
        return lambda length: 1.0
    if kind == "mean":
        return lambda length: float(length)
    return lambda length: ((5 + length) / 6) ** alpha


@asks
def beam(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    width: int,
    max_new_tokens: int,
    normalisation: Normalisation = "none",
    alpha: float = 0.6,
    stopping: Stopping = "textbook",
    stop: Collection[int] = (END_OF_TEXT,),
    forbid: Collection[int] = (PAD,),
    sources: Sequence[Sequence[int]] | None = None,
    batch_rows: int = 512,
) -> list[list[Hypothesis]]:
    """Search behind each prompt, or for each source: see ``beam_search``; result [prompt][rank].

    A prompt's result does not depend on the others, but for the last bits of its scores.

    Args:
        stop: token ids that complete a hypothesis.
        forbid: token ids that are in none; the others keep the probabilities that they have.
        sources: as in ``generate``.
        batch_rows: most hypotheses scored together.

    Raises:
        ValueError: an empty prompt, one that is too long with what is to be written, an id outside
            the vocabulary, a setting out of range.
    """
    check_prompts(model, prompts, sources, max_new_tokens)
    check_fit(model, prompts, max_new_tokens)
    check_ids(list(stop), model.config.vocab_size, "stop")
    results: list[list[Hypothesis]] = [[] for _ in prompts]
    # Like lengths together, so that little of what is read is padding.
    order = sorted(range(len(prompts)), key=lambda p: len(prompts[p]))
    many = max(1, batch_rows // max(1, width))
    for begin in range(0, len(order), many):
        part = order[begin : begin + many]
        scorer = ModelScorer(
            model,
            [prompts[p] for p in part],
            max_new_tokens=max_new_tokens,
            sources=None if sources is None else [sources[p] for p in part],
            forbid=forbid,
        )
        found = beam_search(
            scorer,
            width=width,
            max_new_tokens=max_new_tokens,
            stop=stop,
            normalisation=normalisation,
            alpha=alpha,
            stopping=stopping,
        )
        for p, hypotheses in zip(part, found, strict=True):
            results[p] = hypotheses
    return results


def beam_search(
    scorer: Scorer,
    *,
    width: int,
    max_new_tokens: int,
    stop: Collection[int],
    normalisation: Normalisation = "none",
    alpha: float = 0.6,
    stopping: Stopping = "textbook",
) -> list[list[Hypothesis]]:
    """Of each search the best hypotheses, at most ``width``, best first.

    stopping "textbook" (Jurafsky, Martin): each hypothesis is extended by every token and the best
    k are kept; one that produces an end symbol, of ``stop``, is complete and takes its place in
    the beam with it, so the width shrinks by one; the search ends when it is 0. Hypotheses cut off
    by ``max_new_tokens`` are returned as incomplete.

    stopping "transformers": complete hypotheses leave the beam to a list of the best ``width``,
    the width stays, and the search ends when no live one can beat that list at its present length
    (``generate`` with early_stopping=False, length_penalty 0 for "none" and 1 for "mean").
    """
    if width < 1 or max_new_tokens < 1:
        raise ValueError("width and max_new_tokens must be at least 1.")
    grow = _Search.textbook if stopping == "textbook" else _Search.transformers
    log_probs = scorer.start()
    norm = normaliser(normalisation, alpha)
    searches = [_Search(width, stop, norm, [_Live(row)]) for row in range(len(log_probs))]
    going = searches
    for step in range(1, max_new_tokens + 1):
        values, tokens = log_probs.topk(min(looked_at(width, stop), log_probs.shape[1]))
        table = values.tolist(), tokens.tolist()
        for search in going:
            grow(search, table, step == max_new_tokens)
        going = [search for search in going if search.live]
        if not going:
            break
        live = [hypothesis for search in going for hypothesis in search.live]
        log_probs = scorer.advance([h.row for h in live], [h.ids[-1] for h in live])
        rows = count()
        for search in going:
            search.live = [replace(h, row=next(rows)) for h in search.live]
    return [sorted(s.complete, key=lambda h: -h.score)[:width] for s in searches]


def looked_at(width: int, stop: Collection[int]) -> int:
    """How many extensions the rule of transformers looks at: ``width`` remain even if each
    hypothesis is completed by every end symbol."""
    return max(2, 1 + len(set(stop))) * width


@dataclass(frozen=True)
class _Live:
    """A hypothesis that may go on: from ``row`` of the scorer's last answer."""

    row: int
    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    total: float = 0.0


#: The best log-probabilities of each row, best first, and the tokens that have them.
Best = tuple[list[list[float]], list[list[int]]]


@dataclass
class _Search:
    """One of the searches. ``complete`` holds at the end also what was cut off."""

    width: int
    stop: Collection[int]
    norm: Callable[[int], float]
    live: list[_Live]
    complete: list[Hypothesis] = field(default_factory=list)

    def textbook(self, best: Best, last: bool) -> None:
        found = self._extended(best, self.width - len(self.complete))
        self.complete += [self._hypothesis(h) for h in found if last or h.ids[-1] in self.stop]
        self.live = [] if last else [h for h in found if h.ids[-1] not in self.stop]

    def transformers(self, best: Best, last: bool) -> None:
        found = self._extended(best, looked_at(self.width, self.stop))
        ended = [h for h in found[: self.width] if last or h.ids[-1] in self.stop]
        self.complete += [self._hypothesis(h) for h in ended]
        self.complete = sorted(self.complete, key=lambda h: -h.score)[: self.width]
        self.live = [h for h in found if h.ids[-1] not in self.stop][: self.width]
        if last or (
            self.live
            and len(self.complete) == self.width
            and self._hypothesis(self.live[0]).score <= self.complete[-1].score
        ):
            self.live = []

    def _extended(self, best: Best, most: int) -> list[_Live]:
        """The best extensions of the live hypotheses by one token, ``most`` of them, best first."""
        cells = [
            (h.total + value, h, token, value)
            for h in self.live
            for value, token in zip(best[0][h.row], best[1][h.row], strict=True)
            if value > -np.inf
        ]
        cells.sort(key=lambda cell: -cell[0])
        return [
            _Live(h.row, (*h.ids, token), (*h.log_probs, value), total)
            for total, h, token, value in cells[:most]
        ]

    def _hypothesis(self, h: _Live) -> Hypothesis:
        score = h.total / self.norm(len(h.ids))
        return Hypothesis(h.ids, h.log_probs, h.total, score, h.ids[-1] in self.stop)


class ModelScorer:
    """Scores of a model behind prompts, or for sources, with a cache: a row for each hypothesis,
    a token's slot in it its position."""

    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        sources: Sequence[Sequence[int]] | None = None,
        forbid: Collection[int] = (),
    ) -> None:
        check_prompts(model, prompts, sources, max_new_tokens)
        check_fit(model, prompts, max_new_tokens)
        check_ids(list(forbid), model.config.vocab_size, "forbid")
        self.model, self.prompts, self.sources = model, prompts, sources
        self.max_new, self.forbid = max_new_tokens, list(forbid)

    def start(self) -> Tensor:
        self.written = 0
        self.filled = np.array([len(prompt) for prompt in self.prompts])  # slots, of each row
        self.cache = new_cache(self.model, len(self.filled), int(self.filled.max()) + self.max_new)
        windows = [Window(prompt, len(prompt)) for prompt in self.prompts]
        with evaluated(self.model):
            return self._scores(read_windows(self.model, windows, self.cache, self.sources))

    def advance(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        if self.written == self.max_new:
            raise ValueError(
                f"The scorer was made for {self.max_new} new tokens: give it and the search the "
                f"same max_new_tokens."
            )
        self.written += 1
        device = self.model.embedding.weight.device
        if list(parents) != list(range(len(self.filled))):
            self.cache.select(torch.tensor(parents, device=device))
        positions = self.filled[list(parents)]
        self.filled = positions + 1
        first, last = int(positions.min()), int(positions.max())
        slots = torch.from_numpy(positions).to(device)
        self.cache.slots = slice(first, first + 1) if first == last else slots
        self.cache.length = last + 1
        with evaluated(self.model):
            ids = torch.tensor(tokens, device=device)
            return self._scores(next_logits(self.model, ids, slots, self.cache))

    def _scores(self, logits: Tensor) -> Tensor:
        log_probs = check_numbers(logits.log_softmax(-1))
        log_probs[:, self.forbid] = -torch.inf
        return log_probs
