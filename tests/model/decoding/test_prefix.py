"""A prefix LM reads its prompts in both directions, whatever it is asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.decoding.beam_search import decode_with_beam_search
from model.decoding.generation import generate
from model.decoding.token_scores import compute_next_log_probs, compute_token_log_probs
from tests.model.oracles import logits, naive_next, naive_start, tiny

PROMPTS = [[0], [0, 5, 9], [0, 7, 7, 3, 2, 8, 4, 4, 6], [4] * 16, list(range(2, 45))]
VARIANTS = [{}, {"positions": "rope", "n_kv_heads": 2, "norm_position": "post"}]


def prefix_model(**changes):
    model = tiny(**changes)
    model.objective = "prefix"
    return model


@torch.no_grad()
def next_of(model, tokens, given):
    """log p (V,) of the next token: the window alone, what of it is ``given`` in full sight."""
    start = naive_start(len(tokens), 16, 8)
    window, seen = torch.tensor([tokens[start:]]), torch.tensor([max(0, given - start)])
    return logits(model, window, prefix=seen)[0, -1].log_softmax(-1)


@pytest.mark.parametrize("changes", VARIANTS)
def test_it_writes_as_one_token_at_a_time_under_its_own_mask(changes):
    model = prefix_model(**changes)
    settings = {"max_new_tokens": 30, "temperature": 0.0, "stop": (), "forbid": ()}
    made = generate(model, PROMPTS, **settings)
    for prompt, (text,) in zip(PROMPTS, made, strict=True):
        tokens, scores = list(prompt), []
        for _ in range(30):
            log_p = next_of(model, tokens, len(prompt))
            tokens.append(int(log_p.argmax()))
            scores.append(float(log_p.max()))
        assert text.ids == tokens[len(prompt) :]
        np.testing.assert_allclose(text.log_probs, scores, atol=1e-4)
    causal = generate(tiny(**changes), PROMPTS, **settings)
    assert sum(a[0].ids != b[0].ids for a, b in zip(made, causal, strict=True)) >= 2


def test_beams_are_scored_under_its_own_mask():
    model, prompts = prefix_model(), PROMPTS[:3]
    searched = decode_with_beam_search(
        model, prompts, width=3, max_new_tokens=6, stop={60}, forbid=()
    )
    for prompt, hypotheses in zip(prompts, searched, strict=True):
        for found in hypotheses:
            steps = enumerate(found.ids)
            total = sum(
                float(next_of(model, [*prompt, *found.ids[:i]], len(prompt))[t]) for i, t in steps
            )
            assert found.log_prob == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize("batch_tokens", [1, 10_000])
def test_texts_are_scored_behind_their_prompts(batch_tokens):
    model = prefix_model()
    texts = [[0, 5, 9, 3, 3, 8], list(range(2, 45)), [0, 4, 4], [0], []]
    given = [3, 11, 1, 1, 0]
    found = compute_token_log_probs(model, texts, batch_tokens=batch_tokens, prompt_lengths=given)
    for text, count, scores in zip(texts, given, found, strict=True):
        assert len(scores) == max(0, len(text) - 1) and np.isnan(scores[: max(0, count - 1)]).all()
        for i in range(count, len(text)):
            expected = float(next_of(model, text[:i], count)[text[i]])
            assert scores[i - 1] == pytest.approx(expected, abs=1e-4)
    alone = compute_token_log_probs(
        model, texts
    )  # the first token is all that is given: no difference
    for scores, others in zip(alone, compute_token_log_probs(tiny(), texts), strict=True):
        np.testing.assert_array_equal(scores, others)


def test_the_next_token_of_a_prompt_is_not_that_of_the_causal_mask():
    model = prefix_model()
    found = compute_next_log_probs(model, PROMPTS)
    for prompt, scores in zip(PROMPTS, found, strict=True):
        expected = next_of(model, prompt, len(prompt))
        np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert abs(found[2] - naive_next(model, PROMPTS[2]).numpy()).max() > 0.05


def test_a_causal_model_reads_its_prompts_in_one_direction():
    texts = [[0, 5, 9, 3, 3, 8], list(range(2, 45))]
    for one, other in zip(
        compute_token_log_probs(tiny(), texts, prompt_lengths=[3, 11]),
        compute_token_log_probs(tiny(), texts),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("count", [4, -1])
def test_a_prompt_longer_than_its_text_is_refused(count):
    with pytest.raises(ValueError, match=f"Sequence 1 has 3 tokens, its prompt {count}"):
        compute_token_log_probs(prefix_model(), [[0, 4], [0, 5, 9]], prompt_lengths=[1, count])
