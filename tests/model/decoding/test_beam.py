from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from model.decoding.beam import ModelScorer, beam_search, normaliser
from tests.model.oracles import logits, naive_next, tiny

YES, OK, END = range(3)


class Tree:
    """A scorer given as a table: the probabilities after each history."""

    def __init__(self, probabilities):
        self.probabilities = probabilities
        self.live = [()]

    def start(self):
        return self._row([()])

    def advance(self, parents, tokens):
        self.live = [(*self.live[p], t) for p, t in zip(parents, tokens, strict=True)]
        return self._row(self.live)

    def _row(self, histories):
        table = torch.tensor([self.probabilities(h) for h in histories], dtype=torch.float64)
        return table.log()


def textbook(history):
    """The search tree of the chapter; its third step always ends."""
    if len(history) >= 2:
        return [0.0, 0.0, 1.0]
    return {(): [0.5, 0.4, 0.1], (OK,): [0.2, 0.7, 0.1], (YES,): [0.4, 0.3, 0.3]}[history]


def test_a_scorer_serves_again_but_not_beyond_what_it_was_made_for():
    model = tiny()
    scorer = ModelScorer(model, [0, 5], max_new_tokens=3)
    first = beam_search(scorer, width=2, max_new_tokens=3, end=2)
    assert beam_search(scorer, width=2, max_new_tokens=3, end=2) == first
    with pytest.raises(ValueError, match="made for 5 tokens"):
        beam_search(scorer, width=2, max_new_tokens=12, end=60)
    with pytest.raises(ValueError, match="decoder-only"):
        ModelScorer(tiny(architecture="encoder"), [0], max_new_tokens=3)
    with pytest.raises(ValueError, match="source has 0 tokens"):
        ModelScorer(tiny(architecture="encoder_decoder"), [0], max_new_tokens=3, source=[])


def test_greedy_misses_what_a_beam_of_two_finds():
    greedy = beam_search(Tree(textbook), width=1, max_new_tokens=3, end=END)
    assert greedy[0].ids == (YES, YES, END)
    assert math.exp(greedy[0].log_prob) == pytest.approx(0.20)
    best = beam_search(Tree(textbook), width=2, max_new_tokens=3, end=END)[0]
    assert best.ids == (OK, OK, END)
    assert math.exp(best.log_prob) == pytest.approx(0.4 * 0.7 * 1.0)


def exhaustive(probabilities, longest, vocabulary, norm):
    """Every complete sequence of at most ``longest`` tokens, best first."""
    found = []
    for length in range(1, longest + 1):
        words = [w for w in range(vocabulary) if w != END]
        for body in itertools.product(words, repeat=length - 1):
            ids = (*body, END)
            p = math.prod(probabilities(ids[:i])[ids[i]] for i in range(length))
            if p > 0:
                found.append((math.log(p) / norm(length), ids))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("stopping", ["textbook", "transformers"])
@pytest.mark.parametrize("normalisation", ["none", "mean", "gnmt"])
def test_a_wide_beam_equals_exhaustive_search(normalisation, stopping):
    rng = np.random.default_rng(0)
    table = {}

    def probabilities(history):
        if len(history) >= 3:
            return [0.0, 0.0, 1.0, 0.0]
        return table.setdefault(history, rng.dirichlet(np.ones(4)).tolist())

    every = exhaustive(probabilities, 4, 4, normaliser(normalisation))
    assert len(every) == 1 + 3 + 9 + 27
    found = beam_search(
        Tree(probabilities),
        width=40,
        max_new_tokens=4,
        end=END,
        normalisation=normalisation,
        stopping=stopping,
    )
    assert [h.ids for h in found] == [ids for _, ids in every]
    assert [h.score for h in found] == pytest.approx([score for score, _ in every])
    assert all(h.complete for h in found)


def test_a_complete_hypothesis_takes_its_place_in_the_beam():
    def probabilities(history):
        return [0.45, 0.05, 0.5] if not history else [0.9, 0.05, 0.05]

    found = beam_search(Tree(probabilities), width=2, max_new_tokens=4, end=END)
    # </s> completes in the first step; the one place left follows yes, yes, … to the limit.
    assert [h.ids for h in found] == [(END,), (YES, YES, YES, YES)]
    assert [h.complete for h in found] == [True, False]


def test_length_normalisation_follows_its_formulas():
    assert [normaliser("none")(n) for n in (1, 9)] == [1.0, 1.0]
    assert [normaliser("mean")(n) for n in (1, 9)] == [1.0, 9.0]
    assert normaliser("gnmt", 0.6)(7) == pytest.approx(2.0**0.6)


@pytest.mark.parametrize("changes", [{}, {"positions": "rope", "norm": "rmsnorm"}])
def test_cached_scores_of_reordered_hypotheses_equal_the_naive_model(changes):
    model = tiny(**changes)
    prompt = [0, 5, 9]
    for found in beam_search(
        ModelScorer(model, prompt, max_new_tokens=8), width=4, max_new_tokens=8, end=0
    ):
        tokens = list(found.ids)
        total = sum(
            float(naive_next(model, prompt + tokens[:i])[token]) for i, token in enumerate(tokens)
        )
        assert found.log_prob == pytest.approx(total, abs=1e-3)


def test_an_encoder_decoder_searches_given_its_source():
    model = tiny(architecture="encoder_decoder", positions="sinusoidal")
    source = [5, 6, 7]
    best = beam_search(
        ModelScorer(model, [0], max_new_tokens=6, source=source), width=3, max_new_tokens=6, end=0
    )[0]
    ids = torch.tensor([[0, *best.ids[:-1]]])
    log_p = logits(model, ids, source=torch.tensor([source])).log_softmax(-1)[0]
    total = log_p[torch.arange(len(best.ids)), list(best.ids)].sum().item()
    assert best.log_prob == pytest.approx(total, abs=1e-3)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="more than the context"):
        ModelScorer(tiny(), [0] * 10, max_new_tokens=7)
    with pytest.raises(ValueError, match="empty"):
        ModelScorer(tiny(), [], max_new_tokens=7)
    with pytest.raises(ValueError, match="at least 1"):
        beam_search(Tree(textbook), width=0, max_new_tokens=3, end=END)
