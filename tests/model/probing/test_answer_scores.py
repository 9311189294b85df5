"""Answers scored as word prediction, and few-shot prompts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from hallmark.model.batch import Batch
from hallmark.model.probing.answer_scores import build_few_shot_prompt, compute_answer_log_probs
from tests.model.oracles import tiny

PROMPTS = [[0, 5, 9], [0], [0, 7, 7, 3]]
ANSWERS = [[[4], [5, 6], [7, 8, 9]], [[2, 2]], []]
KINDS = {
    "causal": {},
    "prefix": {"positions": "rope"},
    "encoder-decoder": {"architecture": "encoder_decoder", "positions": "sinusoidal"},
}


def make_model(kind, **changes):
    model = tiny(**KINDS[kind], **changes)
    if kind == "prefix":
        model.objective = "prefix"
    return model


@torch.no_grad()
def score_token_by_token(model, prompt, answer):
    """Compute log p of an answer, one token at a time, without a cache."""
    total = 0.0
    for i, token in enumerate(answer):
        if model.encoder is not None:
            batch = Batch(torch.tensor([[0, *answer[:i]]]), source=torch.tensor([prompt]))
        else:
            batch = Batch(torch.tensor([[*prompt, *answer[:i]]]))
        if model.objective == "prefix":
            batch = replace(batch, prefix=torch.tensor([len(prompt)]))
        total += float(model.compute_logits(model(batch))[0, -1].log_softmax(-1)[token])
    return total


@pytest.mark.parametrize("batch_tokens", [1, 10_000])
@pytest.mark.parametrize("kind", KINDS)
def test_answer_scores_equal_the_sum_over_tokens(kind, batch_tokens):
    model = make_model(kind)
    answer_scores = compute_answer_log_probs(model, PROMPTS, ANSWERS, batch_tokens=batch_tokens)
    for prompt, answers, scores in zip(PROMPTS, ANSWERS, answer_scores, strict=True):
        expected = [score_token_by_token(model, prompt, answer) for answer in answers]
        assert scores.dtype == np.float64
        np.testing.assert_allclose(scores, expected, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_of_all_answers_of_a_length_sum_to_one(kind):
    model = make_model(kind, vocab_size=7)
    answers = list(itertools.product(range(7), repeat=2))
    (scores,) = compute_answer_log_probs(model, [[0, 3]], [answers])
    assert np.exp(scores).sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("prompts", "answers", "words"),
    [
        ([[0]], [], "one list of answers per prompt, but got 0 for 1"),
        ([[0], []], [[], [[5]]], "Prompt 1 or one of its answers is empty"),
        ([[0]], [[[5], []]], "Prompt 0 or one of its answers is empty"),
        ([[0] * 15], [[[5], [5, 6]]], "Prompt 0 and one of its answers exceed"),
        ([[0]], [[[61]]], "Token id 61"),
    ],
)
def test_invalid_prompts_and_answers_are_refused(prompts, answers, words):
    with pytest.raises(ValueError, match=words):
        compute_answer_log_probs(tiny(), prompts, answers)


def test_answers_that_fill_the_context_are_scored():
    model = tiny()
    (scores,) = compute_answer_log_probs(model, [[0] * 14], [[[5, 6]]])
    assert scores[0] == pytest.approx(score_token_by_token(model, [0] * 14, [5, 6]), abs=1e-4)
    both = make_model("encoder-decoder")
    # Source and target each have a context.
    (scores,) = compute_answer_log_probs(both, [[4] * 16], [[[5] * 15]])
    assert scores[0] == pytest.approx(score_token_by_token(both, [4] * 16, [5] * 15), abs=1e-3)
    with pytest.raises(ValueError, match="exceed the context of"):
        compute_answer_log_probs(both, [[4] * 17], [[[5]]])


EXAMPLES = [[10, 11], [20], [30, 31, 32]]
QUESTION = [40, 41]


@pytest.mark.parametrize("max_tokens", range(3, 12))
@pytest.mark.parametrize("shots", [0, 1, 3])
def test_the_prompt_has_the_nearest_examples_that_fit(shots, max_tokens):
    examples = EXAMPLES[len(EXAMPLES) - shots :]
    prompt = build_few_shot_prompt(examples, QUESTION, max_tokens=max_tokens)
    # Try all tails of the examples, and take the longest that fits.
    tails = [examples[i:] for i in range(shots + 1)]
    fits = [t for t in tails if 1 + sum(map(len, t)) + len(QUESTION) <= max_tokens]
    longest = max(fits, key=len)
    assert prompt.ids == [0, *itertools.chain(*longest), *QUESTION]
    assert (prompt.shot_count, prompt.dropped_count) == (len(longest), shots - len(longest))


def test_a_question_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"have 3 tokens in total, but only 2"):
        build_few_shot_prompt(EXAMPLES, QUESTION, max_tokens=2)
    assert build_few_shot_prompt([], QUESTION, max_tokens=2, begin_ids=()).ids == QUESTION
