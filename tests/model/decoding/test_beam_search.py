"""Beam search against exhaustive search, the naive model and transformers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from hallmark.model.decoding.beam_search import (
    CachedModelScorer,
    decode_with_beam_search,
    make_length_normaliser,
    run_beam_search,
)
from tests.model.oracles import TableScorer, logits, naive_next_log_probs, tiny

YES, OK, END = range(3)


def textbook_probabilities(history):
    """Return probabilities of the chapter's search tree; its third step always ends."""
    if len(history) >= 2:
        return [0.0, 0.0, 1.0]
    return {(): [0.5, 0.4, 0.1], (OK,): [0.2, 0.7, 0.1], (YES,): [0.4, 0.3, 0.3]}[history]


def search(probabilities, **settings):
    """Run one search over a table of probabilities."""
    return run_beam_search(TableScorer(probabilities), **{"stop": {END}, **settings})[0]


def test_a_scorer_can_be_reused_but_not_for_more_tokens():
    scorer = CachedModelScorer(tiny(), [[0, 5]], max_new_tokens=3)
    first = run_beam_search(scorer, width=2, max_new_tokens=3, stop={2})
    assert run_beam_search(scorer, width=2, max_new_tokens=3, stop={2}) == first
    with pytest.raises(ValueError, match=r"than the scorer's max_new_tokens allows \(3\)"):
        run_beam_search(scorer, width=2, max_new_tokens=12, stop={60})


def test_a_beam_of_two_finds_what_greedy_misses():
    greedy = search(textbook_probabilities, width=1, max_new_tokens=3)
    assert greedy[0].ids == (YES, YES, END)
    assert math.exp(greedy[0].log_prob) == pytest.approx(0.20)
    best = search(textbook_probabilities, width=2, max_new_tokens=3)[0]
    assert best.ids == (OK, OK, END)
    assert math.exp(best.log_prob) == pytest.approx(0.4 * 0.7 * 1.0)


def search_exhaustively(probabilities, longest, vocabulary, norm):
    """Return every complete sequence of at most ``longest`` tokens, best first."""
    sequences = []
    for length in range(1, longest + 1):
        words = [w for w in range(vocabulary) if w != END]
        for body in itertools.product(words, repeat=length - 1):
            ids = (*body, END)
            p = math.prod(probabilities(ids[:i])[ids[i]] for i in range(length))
            if p > 0:
                sequences.append((math.log(p) / norm(length), ids))
    return sorted(sequences, reverse=True)


@pytest.mark.parametrize("stopping", ["textbook", "transformers"])
@pytest.mark.parametrize("normalisation", ["none", "mean", "gnmt"])
def test_a_wide_beam_equals_exhaustive_search(normalisation, stopping):
    rng = np.random.default_rng(0)
    table = {}

    def probabilities(history):
        if len(history) >= 3:
            return [0.0, 0.0, 1.0, 0.0]
        return table.setdefault(history, rng.dirichlet(np.ones(4)).tolist())

    expected = search_exhaustively(probabilities, 4, 4, make_length_normaliser(normalisation))
    assert len(expected) == 1 + 3 + 9 + 27
    settings = {"normalisation": normalisation, "stopping": stopping}
    hypotheses = search(probabilities, width=45, max_new_tokens=4, **settings)  # more than exist
    assert [h.ids for h in hypotheses] == [ids for _, ids in expected]
    assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected])
    assert all(h.complete for h in hypotheses)


def test_a_complete_hypothesis_keeps_its_place_in_the_beam():
    def probabilities(history):
        return [0.45, 0.05, 0.5] if not history else [0.9, 0.05, 0.05]

    hypotheses = search(probabilities, width=2, max_new_tokens=4)
    # </s> completes in the first step; the other place follows yes, yes, ... to the limit.
    assert [h.ids for h in hypotheses] == [(END,), (YES, YES, YES, YES)]
    assert [h.complete for h in hypotheses] == [True, False]


def test_length_normalisation_follows_its_formulas():
    assert [make_length_normaliser("none")(n) for n in (1, 9)] == [1.0, 1.0]
    assert [make_length_normaliser("mean")(n) for n in (1, 9)] == [1.0, 9.0]
    assert make_length_normaliser("gnmt", 0.6)(7) == pytest.approx(2.0**0.6)


@pytest.mark.parametrize("changes", [{}, {"positions": "rope", "norm": "rmsnorm"}])
def test_cached_scores_of_reordered_hypotheses_equal_the_naive_model(changes):
    model = tiny(**changes)
    prompt = [0, 5, 9]
    for hypothesis in decode_with_beam_search(
        model, [prompt], width=4, max_new_tokens=8, forbid=()
    )[0]:
        tokens = list(hypothesis.ids)
        total = sum(
            float(naive_next_log_probs(model, prompt + tokens[:i])[token])
            for i, token in enumerate(tokens)
        )
        assert hypothesis.log_prob == pytest.approx(total, abs=1e-3)


def test_an_encoder_decoder_searches_with_its_source():
    model = tiny(architecture="encoder_decoder", positions="sinusoidal")
    source = [5, 6, 7]
    ((best, *_),) = decode_with_beam_search(
        model, [[0]], width=3, max_new_tokens=6, sources=[source]
    )
    ids = torch.tensor([[0, *best.ids[:-1]]])
    log_p = logits(model, ids, source=torch.tensor([source])).log_softmax(-1)[0]
    total = log_p[torch.arange(len(best.ids)), list(best.ids)].sum().item()
    assert best.log_prob == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize(
    ("model", "prompts", "settings", "words"),
    [
        (
            {},
            [[0], [0] * 10],
            {"max_new_tokens": 7},
            "with 7 new tokens it exceeds the context",
        ),
        ({}, [[0], []], {}, "Prompt 1 is empty"),
        ({}, [[0, 61]], {}, "Token id 61"),
        ({}, [[0]], {"forbid": [61]}, "Token id 61"),
        ({}, [[0]], {"stop": [61]}, "Token id 61"),
        ({}, [[0]], {"stop": [1.5]}, "stop is not a list of token ids"),
        ({}, [[0]], {"width": 0}, "at least 1"),
        ({}, [[0]], {"max_new_tokens": 0}, "at least 1"),
        ({}, [[0]], {"sources": [[0]]}, "decoder-only model without source sequences"),
        (
            {"architecture": "encoder"},
            [[0]],
            {},
            "only by a decoder-only model without source sequences",
        ),
        (
            {"architecture": "encoder_decoder"},
            [[0]],
            {"sources": [[]]},
            "Source 0 must have 1 to 16 tokens, not 0",
        ),
        (
            {"architecture": "encoder_decoder"},
            [[0]],
            {"sources": []},
            "one source sequence per prompt, but got 0 for 1",
        ),
    ],
)
def test_invalid_searches_are_refused(model, prompts, settings, words):
    with pytest.raises(ValueError, match=words):
        decode_with_beam_search(
            tiny(**model), prompts, **{"width": 2, "max_new_tokens": 3, **settings}
        )


def test_searches_with_several_end_symbols_equal_transformers():
    """In this table of bigrams, the most probable next symbols are all end symbols."""
    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutputWithPast

    ends, size = [2, 3, 4, 5], 12
    table = torch.randn(size, size, generator=torch.Generator().manual_seed(41)) * 1.5

    class Config(PretrainedConfig):
        model_type = "bigrams"

    class Peer(PreTrainedModel, GenerationMixin):
        config_class = Config

        def __init__(self, config):
            super().__init__(config)
            self.table = torch.nn.Parameter(table.clone())
            self.post_init()

        def _init_weights(self, module):
            pass

        def forward(self, input_ids=None, **_):
            return CausalLMOutputWithPast(logits=self.table[input_ids])

        def prepare_inputs_for_generation(self, input_ids, **_):
            return {"input_ids": input_ids}

    class Bigrams:
        def score_first_tokens(self):
            return table[[9]].log_softmax(-1)

        def score_next_tokens(self, parent_rows, tokens):
            return table[list(tokens)].log_softmax(-1)

    peer = Peer(Config(vocab_size=size, eos_token_id=ends, pad_token_id=1)).eval()
    theirs = peer.generate(
        torch.tensor([[9]]),
        num_beams=2,
        num_return_sequences=2,
        max_new_tokens=6,
        do_sample=False,
        length_penalty=1.0,
        early_stopping=False,
        eos_token_id=ends,
        pad_token_id=1,
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    (ours,) = run_beam_search(
        Bigrams(),
        width=2,
        max_new_tokens=6,
        stop=ends,
        normalisation="mean",
        stopping="transformers",
    )
    expected = []
    for ids in theirs.sequences[:, 1:].tolist():
        end = next((n for n, i in enumerate(ids) if i in ends), len(ids))
        expected.append(tuple(ids[: end + 1]))  # padding follows
    assert [h.ids for h in ours] == expected
    assert [h.score for h in ours] == pytest.approx(theirs.sequences_scores.tolist(), abs=1e-4)
