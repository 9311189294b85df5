"""Beam search, apart from any model: it asks a scorer for log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from model.architecture import Transformer
from model.batch import Batch
from model.decoding.cache import new_cache, prompt_lengths, read
from model.decoding.mode import evaluated
from model.decoding.score import check_ids, check_numbers

Normalisation = Literal["none", "mean", "gnmt"]
Stopping = Literal["textbook", "transformers"]


class Scorer(Protocol):
    """Log-probabilities of the next token of every live hypothesis."""

    def start(self) -> Tensor:
        """(1, V), before the first token."""

    def advance(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """(n, V) for n hypotheses: ``parents[i]`` of the last call, extended by ``tokens[i]``."""


@dataclass(frozen=True)
class Hypothesis:
    """Generated ids, with the end symbol if complete; the sum of their log-probabilities in nats;
    and the score it is ranked by, which is that sum divided by the length's normaliser."""

    ids: tuple[int, ...]
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


def beam_search(
    scorer: Scorer,
    *,
    width: int,
    max_new_tokens: int,
    end: int,
    normalisation: Normalisation = "none",
    alpha: float = 0.6,
    stopping: Stopping = "textbook",
) -> list[Hypothesis]:
    """The best hypotheses, at most ``width``, best first.

    stopping "textbook" (Jurafsky, Martin): each hypothesis is extended by every token and the best
    k are kept; one that produces ``end`` is complete and takes its place in the beam with it, so
    the width shrinks by one; the search ends when it is 0. Hypotheses cut off by
    ``max_new_tokens`` are returned as incomplete.

    stopping "transformers": complete hypotheses leave the beam to a list of the best ``width``,
    the width stays, and the search ends when no live one can beat that list at its present length
    (``generate`` with early_stopping=False, length_penalty 0 for "none" and 1 for "mean").
    """
    if width < 1 or max_new_tokens < 1:
        raise ValueError("width and max_new_tokens must be at least 1.")
    search = _textbook if stopping == "textbook" else _transformers
    found = search(scorer, width, max_new_tokens, end, normaliser(normalisation, alpha))
    return sorted(found, key=lambda h: -h.score)[:width]


Candidate = tuple[tuple[int, ...], float, int]  # ids, sum of log-probabilities, parent


def _extend(live: list[Candidate], log_probs: Tensor, count: int) -> list[Candidate]:
    """The best ``count`` extensions of the live hypotheses by one token, best first."""
    sums = torch.tensor([total for _, total, _ in live], dtype=torch.float64)
    totals = (sums.unsqueeze(1) + log_probs.double().cpu()).flatten()  # (n * V,)
    values, places = totals.topk(min(count, len(totals)))
    vocabulary = log_probs.shape[1]
    extended = []
    for value, place in zip(values.tolist(), places.tolist(), strict=True):
        parent, token = divmod(place, vocabulary)
        if value > -np.inf:
            extended.append(((*live[parent][0], token), value, parent))
    return extended


def _textbook(
    scorer: Scorer, width: int, max_new: int, end: int, norm: Callable[[int], float]
) -> list[Hypothesis]:
    live: list[Candidate] = [((), 0.0, 0)]
    log_probs = scorer.start()
    complete: list[Hypothesis] = []
    for step in range(1, max_new + 1):
        best = _extend(live, log_probs, width - len(complete))
        complete += [Hypothesis(i, s, s / norm(len(i)), True) for i, s, _ in best if i[-1] == end]
        live = [candidate for candidate in best if candidate[0][-1] != end]
        if not live:
            break
        if step < max_new:
            log_probs = scorer.advance([p for *_, p in live], [ids[-1] for ids, *_ in live])
    return complete + [Hypothesis(i, s, s / norm(len(i)), False) for i, s, _ in live]


def _transformers(
    scorer: Scorer, width: int, max_new: int, end: int, norm: Callable[[int], float]
) -> list[Hypothesis]:
    live: list[Candidate] = [((), 0.0, 0)]
    log_probs = scorer.start()
    complete: list[Hypothesis] = []
    for step in range(1, max_new + 1):
        # Twice the width, so that enough remain even if all of the best are complete.
        best = _extend(live, log_probs, 2 * width)
        for ids, total, _ in best[:width]:
            if ids[-1] == end or step == max_new:
                complete.append(Hypothesis(ids, total, total / norm(step), ids[-1] == end))
        complete = sorted(complete, key=lambda h: -h.score)[:width]
        live = [candidate for candidate in best if candidate[0][-1] != end][:width]
        if step == max_new or not live:
            break
        if len(complete) == width and live[0][1] / norm(step) <= complete[-1].score:
            break
        log_probs = scorer.advance([p for *_, p in live], [ids[-1] for ids, *_ in live])
    return complete


class ModelScorer:
    """Scores of a model after one prompt, or for one source, with a cache."""

    def __init__(
        self,
        model: Transformer,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        source: Sequence[int] | None = None,
    ) -> None:
        length = len(prompt) + max_new_tokens
        if model.decoder is None or (source is None) != (model.encoder is None):
            raise ValueError(
                "Beam search needs a decoder-only model without a source, or an encoder-decoder "
                "with one."
            )
        if source is not None and not 0 < len(source) <= model.config.context:
            raise ValueError(
                f"The source has {len(source)} tokens, not between 1 and {model.config.context}."
            )
        if not len(prompt):
            raise ValueError("The prompt is empty: begin it with the begin-of-text token.")
        if length > model.config.context:
            raise ValueError(
                f"The prompt and {max_new_tokens} new tokens make {length}, more than the context "
                f"of {model.config.context}: lower max_new_tokens or cut the prompt."
            )
        check_ids(prompt, model.config.vocab_size, "The prompt")
        check_ids([] if source is None else source, model.config.vocab_size, "The source")
        self.model, self.device = model, model.embedding.weight.device
        self.prompt = torch.tensor([list(prompt)], device=self.device)
        self.source = None if source is None else torch.tensor([list(source)], device=self.device)
        self.capacity = length

    def start(self) -> Tensor:
        tokens = self.prompt.shape[1]
        self.cache = new_cache(self.model, 1, self.capacity)
        self.cache.slots, self.cache.length = slice(0, tokens), tokens
        prefix = prompt_lengths(self.model, [tokens])
        return self._next(Batch(self.prompt, prefix=prefix, source=self.source))

    def advance(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        position = self.cache.length
        if position >= self.capacity:
            raise ValueError(
                f"The scorer was made for {self.capacity} tokens, prompt and new ones together: "
                "give it and the search the same max_new_tokens."
            )
        self.cache.select(torch.tensor(parents, device=self.device))
        self.cache.slots, self.cache.length = slice(position, position + 1), position + 1
        ids = torch.tensor(tokens, device=self.device).unsqueeze(1)
        return self._next(Batch(ids, positions=torch.full_like(ids, position)))

    def _next(self, batch: Batch) -> Tensor:
        with evaluated(self.model):
            hidden = read(self.model, batch, self.cache)
            return check_numbers(self.model.logits(hidden[:, -1]).float().log_softmax(-1))
