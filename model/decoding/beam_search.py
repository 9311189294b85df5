"""Search for the most probable continuations with a beam, independently of any model.

The search asks a scorer for log-probabilities. Several searches can run together; each gives the
same result as if it were alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from hallmark.model.architecture import Transformer
from hallmark.model.decoding.cache import allocate_cache
from hallmark.model.decoding.decode_steps import compute_next_logits
from hallmark.model.decoding.inference_mode import evaluation_mode, run_in_evaluation_mode
from hallmark.model.decoding.prompts import (
    PromptWindow,
    check_prompts,
    check_prompts_fit_context,
    prefill_windows,
)
from hallmark.model.padding import check_no_nan, check_token_ids
from hallmark.model.special_tokens import END_OF_TEXT_ID, PAD_ID

LengthNormalisation = Literal["none", "mean", "gnmt"]
StoppingRule = Literal["textbook", "transformers"]


class NextTokenScorer(Protocol):
    """Scores the next tokens of all live hypotheses of B searches."""

    def score_first_tokens(self) -> Tensor:
        """Return log-probabilities (B, V) of the first token of each search."""

    def score_next_tokens(self, parent_rows: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Return log-probabilities (n, V) of the next tokens of n hypotheses.

        Hypothesis i extends row ``parent_rows[i]`` of the last result by ``tokens[i]``.
        """


@dataclass(frozen=True)
class Hypothesis:
    """A result of the search.

    Attributes:
        ids: generated tokens, with the end symbol if complete.
        log_probs: log-probability of each token in nats.
        log_prob: their sum.
        score: the sum divided by the normaliser of the length; hypotheses are ranked by it.
        complete: whether an end symbol ended it.
    """

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    log_prob: float
    score: float
    complete: bool


def make_length_normaliser(kind: LengthNormalisation, alpha: float = 0.6) -> Callable[[int], float]:
    """Return the function of the length that a sum of log-probabilities is divided by.

    mean: the length; gnmt: ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14).
    """
    if kind == "none":
        return lambda length: 1.0
    if kind == "mean":
        return lambda length: float(length)
    return lambda length: ((5 + length) / 6) ** alpha


@run_in_evaluation_mode
def decode_with_beam_search(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    width: int,
    max_new_tokens: int,
    normalisation: LengthNormalisation = "none",
    alpha: float = 0.6,
    stopping: StoppingRule = "textbook",
    stop: Collection[int] = (END_OF_TEXT_ID,),
    forbid: Collection[int] = (PAD_ID,),
    sources: Sequence[Sequence[int]] | None = None,
    batch_rows: int = 512,
) -> list[list[Hypothesis]]:
    """Search for continuations of each prompt, or targets of each source; result [prompt][rank].

    A prompt's result does not depend on the others, except for the last bits of its scores. For the
    settings of the search see ``run_beam_search``.

    Args:
        stop: token ids that complete a hypothesis.
        forbid: token ids that no hypothesis contains; the others keep their probabilities.
        sources: as in ``generate``.
        batch_rows: most hypotheses scored together.

    Raises:
        ValueError: A prompt is empty, or too long together with the new tokens; an id is outside
            the vocabulary; a setting is out of range.
    """
    check_prompts(model, prompts, sources, max_new_tokens)
    check_prompts_fit_context(model, prompts, max_new_tokens)
    check_token_ids(list(stop), model.config.vocab_size, "stop")
    results: list[list[Hypothesis]] = [[] for _ in prompts]
    # Group prompts of similar length, so that little padding is read.
    order = sorted(range(len(prompts)), key=lambda p: len(prompts[p]))
    searches_per_batch = max(1, batch_rows // max(1, width))
    for begin in range(0, len(order), searches_per_batch):
        prompt_indices = order[begin : begin + searches_per_batch]
        scorer = CachedModelScorer(
            model,
            [prompts[p] for p in prompt_indices],
            max_new_tokens=max_new_tokens,
            sources=None if sources is None else [sources[p] for p in prompt_indices],
            forbid=forbid,
        )
        hypotheses_by_prompt = run_beam_search(
            scorer,
            width=width,
            max_new_tokens=max_new_tokens,
            stop=stop,
            normalisation=normalisation,
            alpha=alpha,
            stopping=stopping,
        )
        for p, hypotheses in zip(prompt_indices, hypotheses_by_prompt, strict=True):
            results[p] = hypotheses
    return results


def run_beam_search(
    scorer: NextTokenScorer,
    *,
    width: int,
    max_new_tokens: int,
    stop: Collection[int],
    normalisation: LengthNormalisation = "none",
    alpha: float = 0.6,
    stopping: StoppingRule = "textbook",
) -> list[list[Hypothesis]]:
    """Return the best hypotheses of each search, at most ``width``, best first.

    stopping "textbook" (Jurafsky & Martin): each hypothesis is extended by every token and the best
    k are kept. One that produces an end symbol of ``stop`` is complete and keeps its place in the
    beam, so the width shrinks by one; the search ends when it is 0. Hypotheses cut off by
    ``max_new_tokens`` are returned as incomplete.

    stopping "transformers": complete hypotheses move from the beam to a list of the best ``width``,
    the width stays, and the search ends when no live hypothesis can beat that list at its present
    length (``generate`` with early_stopping=False, length_penalty 0 for "none" and 1 for "mean").
    """
    if width < 1 or max_new_tokens < 1:
        raise ValueError(
            f"width and max_new_tokens must be at least 1, not {width} and {max_new_tokens}."
        )
    advance_search = (
        _BeamSearch.step_textbook if stopping == "textbook" else _BeamSearch.step_like_transformers
    )
    log_probs = scorer.score_first_tokens()
    length_normaliser = make_length_normaliser(normalisation, alpha)
    searches = [
        _BeamSearch(width, stop, length_normaliser, [_LiveHypothesis(row)])
        for row in range(len(log_probs))
    ]
    active_searches = searches
    for step in range(1, max_new_tokens + 1):
        top_log_probs, tokens = log_probs.topk(
            min(count_candidate_extensions(width, stop), log_probs.shape[1])
        )
        top_tokens = TopTokens(top_log_probs.tolist(), tokens.tolist())
        for search in active_searches:
            advance_search(search, top_tokens, step == max_new_tokens)
        active_searches = [search for search in active_searches if search.live]
        if not active_searches:
            break
        live_hypotheses = [hypothesis for search in active_searches for hypothesis in search.live]
        log_probs = scorer.score_next_tokens(
            [hypothesis.row for hypothesis in live_hypotheses],
            [hypothesis.ids[-1] for hypothesis in live_hypotheses],
        )
        next_rows = count()
        for search in active_searches:
            search.live = [replace(hypothesis, row=next(next_rows)) for hypothesis in search.live]
    return [
        sorted(search.complete, key=lambda hypothesis: -hypothesis.score)[:width]
        for search in searches
    ]


def count_candidate_extensions(width: int, stop: Collection[int]) -> int:
    """Count the extensions that the rule of transformers considers.

    ``width`` of them remain even if each hypothesis is completed by every end symbol.
    """
    return max(2, 1 + len(set(stop))) * width


@dataclass(frozen=True)
class _LiveHypothesis:
    """A hypothesis that can be extended, from ``row`` of the scorer's last result."""

    row: int
    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    log_prob: float = 0.0


class TopTokens(NamedTuple):
    """The most probable next tokens of each row, best first.

    Attributes:
        log_probs: their log-probabilities, [row][rank].
        tokens: their ids, [row][rank].
    """

    log_probs: list[list[float]]
    tokens: list[list[int]]


@dataclass
class _BeamSearch:
    """One of the searches. At the end, ``complete`` also contains hypotheses that were cut off."""

    width: int
    stop: Collection[int]
    length_normaliser: Callable[[int], float]
    live: list[_LiveHypothesis]
    complete: list[Hypothesis] = field(default_factory=list)

    def step_textbook(self, top_tokens: TopTokens, is_last_step: bool) -> None:
        extensions = self._extend_live_hypotheses(top_tokens, self.width - len(self.complete))
        self.complete += [
            self._to_scored_hypothesis(hypothesis)
            for hypothesis in extensions
            if is_last_step or hypothesis.ids[-1] in self.stop
        ]
        self.live = []
        if not is_last_step:
            self.live = [
                hypothesis for hypothesis in extensions if hypothesis.ids[-1] not in self.stop
            ]

    def step_like_transformers(self, top_tokens: TopTokens, is_last_step: bool) -> None:
        extensions = self._extend_live_hypotheses(
            top_tokens, count_candidate_extensions(self.width, self.stop)
        )
        complete_extensions = [
            hypothesis
            for hypothesis in extensions[: self.width]
            if is_last_step or hypothesis.ids[-1] in self.stop
        ]
        self.complete += map(self._to_scored_hypothesis, complete_extensions)
        self.complete = sorted(self.complete, key=lambda hypothesis: -hypothesis.score)
        self.complete = self.complete[: self.width]
        live = [hypothesis for hypothesis in extensions if hypothesis.ids[-1] not in self.stop]
        self.live = live[: self.width]
        if is_last_step or (
            self.live
            and len(self.complete) == self.width
            and self._to_scored_hypothesis(self.live[0]).score <= self.complete[-1].score
        ):
            self.live = []

    def _extend_live_hypotheses(self, top_tokens: TopTokens, limit: int) -> list[_LiveHypothesis]:
        """Return the ``limit`` best extensions of the live hypotheses by one token, best first."""
        candidates = [
            (hypothesis.log_prob + token_log_prob, hypothesis, token, token_log_prob)
            for hypothesis in self.live
            for token_log_prob, token in zip(
                top_tokens.log_probs[hypothesis.row], top_tokens.tokens[hypothesis.row], strict=True
            )
            if token_log_prob > -np.inf
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        return [
            _LiveHypothesis(
                hypothesis.row,
                (*hypothesis.ids, token),
                (*hypothesis.log_probs, token_log_prob),
                sum_log_prob,
            )
            for sum_log_prob, hypothesis, token, token_log_prob in candidates[:limit]
        ]

    def _to_scored_hypothesis(self, hypothesis: _LiveHypothesis) -> Hypothesis:
        score = hypothesis.log_prob / self.length_normaliser(len(hypothesis.ids))
        return Hypothesis(
            hypothesis.ids,
            hypothesis.log_probs,
            hypothesis.log_prob,
            score,
            hypothesis.ids[-1] in self.stop,
        )


class CachedModelScorer:
    """Scores continuations of prompts, or targets of sources, with a model and a cache.

    The cache has a row for each hypothesis; a token's slot in it is its position.
    """

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
        check_prompts_fit_context(model, prompts, max_new_tokens)
        check_token_ids(list(forbid), model.config.vocab_size, "forbid")
        self.model, self.prompts, self.sources = model, prompts, sources
        self.max_new_tokens, self.forbid = max_new_tokens, list(forbid)

    def score_first_tokens(self) -> Tensor:
        self.step_count = 0
        self.filled_slots = np.array([len(prompt) for prompt in self.prompts])  # of each row
        self.cache = allocate_cache(
            self.model, len(self.filled_slots), int(self.filled_slots.max()) + self.max_new_tokens
        )
        windows = [PromptWindow(prompt, len(prompt)) for prompt in self.prompts]
        with evaluation_mode(self.model):
            return self._compute_log_probs(
                prefill_windows(self.model, windows, self.cache, self.sources)
            )

    def score_next_tokens(self, parent_rows: Sequence[int], tokens: Sequence[int]) -> Tensor:
        if self.step_count == self.max_new_tokens:
            raise ValueError(
                "The search needs more new tokens than the scorer's max_new_tokens allows "
                f"({self.max_new_tokens}); set max_new_tokens to the same value for the search "
                "and the scorer."
            )
        self.step_count += 1
        device = self.model.embedding.weight.device
        if list(parent_rows) != list(range(len(self.filled_slots))):
            self.cache.select_rows(torch.tensor(parent_rows, device=device))
        positions = self.filled_slots[list(parent_rows)]
        self.filled_slots = positions + 1
        first_slot, last_slot = int(positions.min()), int(positions.max())
        slots = torch.from_numpy(positions).to(device)
        self.cache.slots = slice(first_slot, first_slot + 1) if first_slot == last_slot else slots
        self.cache.filled_length = last_slot + 1
        with evaluation_mode(self.model):
            ids = torch.tensor(tokens, device=device)
            return self._compute_log_probs(compute_next_logits(self.model, ids, slots, self.cache))

    def _compute_log_probs(self, logits: Tensor) -> Tensor:
        log_probs = check_no_nan(logits.log_softmax(-1))
        log_probs[:, self.forbid] = -torch.inf
        return log_probs
