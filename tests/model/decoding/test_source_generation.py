"""Texts that an encoder-decoder generates from sources, against one token at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hallmark.model.decoding.generation import generate
from tests.model.oracles import logits, tiny

PROMPTS = [[0], [0, 5, 9], [0], [0, 7, 7, 3, 2]]
SOURCES = [[3], [9, 8, 7, 6], [4] * 16, [2, 60]]  # the third fills the context


@pytest.fixture(scope="module")
def model():
    return tiny(architecture="encoder_decoder")


@torch.no_grad()
def generate_greedily(model, source, prompt, count):
    tokens, scores = list(prompt), []
    for _ in range(count):
        token_logits = logits(model, torch.tensor([tokens]), source=torch.tensor([source]))
        log_p = token_logits[0, -1].log_softmax(-1)
        tokens.append(int(log_p.argmax()))
        scores.append(float(log_p.max()))
    return tokens[len(prompt) :], scores


@pytest.mark.parametrize("batch_rows", [1, 64])
def test_greedy_text_equals_that_of_each_pair_alone(model, batch_rows):
    settings = {"max_new_tokens": 11, "temperature": 0.0, "stop": (), "forbid": ()}
    continuations = generate(model, PROMPTS, sources=SOURCES, batch_rows=batch_rows, **settings)
    for source, prompt, (one,) in zip(SOURCES, PROMPTS, continuations, strict=True):
        ids, scores = generate_greedily(model, source, prompt, 11)
        assert one.ids == ids
        np.testing.assert_allclose(one.log_probs, scores, atol=1e-4)


def test_samples_of_a_source_equal_those_of_it_alone(model):
    settings = {"max_new_tokens": 8, "samples": 3, "seed": 3, "stop": (), "temperature": 1.5}
    together = generate(model, PROMPTS, sources=SOURCES, **settings)
    for source, prompt, samples in zip(SOURCES, PROMPTS, together, strict=True):
        (alone,) = generate(model, [prompt], sources=[source], **settings)
        assert [one.ids for one in samples] == [one.ids for one in alone]
    assert len({tuple(one.ids) for one in together[0]}) > 1


@pytest.mark.parametrize(
    ("prompts", "sources", "words"),
    [
        ([[0]], None, "an encoder-decoder model with one source sequence per prompt"),
        ([[0]], [[]], "Source 0 must have 1 to 16 tokens, not 0"),
        ([[0], [0]], [[3], [3] * 17], "Source 1 must have 1 to 16 tokens, not 17"),
        ([[0], [0]], [[3]], "one source sequence per prompt, but got 1 for 2"),
        ([[0], [0] * 12], [[3], [3]], "Prompt 1 has 12 tokens, and with 5 new tokens it exceeds"),
        ([[0]], [[61]], "Token id 61"),
        ([[]], [[3]], "Prompt 0 is empty"),
    ],
)
def test_invalid_sources_and_prompts_are_refused(model, prompts, sources, words):
    with pytest.raises(ValueError, match=words):
        generate(model, prompts, sources=sources, max_new_tokens=5)


def test_source_and_target_may_fill_the_context(model):
    (continuations,) = generate(model, [[0] * 11], sources=[[3] * 16], max_new_tokens=5, stop=())
    assert len(continuations[0].ids) == 5


def test_a_decoder_refuses_sources_and_an_encoder_cannot_generate():
    with pytest.raises(ValueError, match="decoder-only model without source sequences"):
        generate(tiny(), [[0]], sources=[[3]], max_new_tokens=2)
    for sources in (None, [[3]]):
        with pytest.raises(
            ValueError, match="only by a decoder-only model without source sequences"
        ):
            generate(tiny(architecture="encoder"), [[0]], sources=sources, max_new_tokens=2)
