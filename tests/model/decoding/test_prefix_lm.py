"""A prefix LM reads its prompts in both directions, in generation and in scoring."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hallmark.model.decoding.beam_search import decode_with_beam_search
from hallmark.model.decoding.generation import generate
from hallmark.model.decoding.token_scores import compute_next_log_probs, compute_token_log_probs
from tests.model.oracles import logits, naive_next_log_probs, naive_window_start, tiny

PROMPTS = [[0], [0, 5, 9], [0, 7, 7, 3, 2, 8, 4, 4, 6], [4] * 16, list(range(2, 45))]
VARIANTS = [{}, {"positions": "rope", "n_kv_heads": 2, "norm_position": "post"}]


def make_prefix_model(**changes):
    model = tiny(**changes)
    model.objective = "prefix"
    return model


@torch.no_grad()
def next_log_probs(model, tokens, prompt_length):
    """Compute log p (V,) of the next token from the window, whose prompt part is bidirectional."""
    start = naive_window_start(len(tokens), 16, 8)
    window, prefix = torch.tensor([tokens[start:]]), torch.tensor([max(0, prompt_length - start)])
    return logits(model, window, prefix=prefix)[0, -1].log_softmax(-1)


@pytest.mark.parametrize("changes", VARIANTS)
def test_a_prefix_lm_generates_as_one_token_at_a_time_under_its_mask(changes):
    model = make_prefix_model(**changes)
    settings = {"max_new_tokens": 30, "temperature": 0.0, "stop": (), "forbid": ()}
    generated = generate(model, PROMPTS, **settings)
    for prompt, (text,) in zip(PROMPTS, generated, strict=True):
        tokens, scores = list(prompt), []
        for _ in range(30):
            log_p = next_log_probs(model, tokens, len(prompt))
            tokens.append(int(log_p.argmax()))
            scores.append(float(log_p.max()))
        assert text.ids == tokens[len(prompt) :]
        np.testing.assert_allclose(text.log_probs, scores, atol=1e-4)
    causal = generate(tiny(**changes), PROMPTS, **settings)
    assert sum(a[0].ids != b[0].ids for a, b in zip(generated, causal, strict=True)) >= 2


def test_beams_are_scored_under_the_prefix_mask():
    model, prompts = make_prefix_model(), PROMPTS[:3]
    searched = decode_with_beam_search(
        model, prompts, width=3, max_new_tokens=6, stop={60}, forbid=()
    )
    for prompt, hypotheses in zip(prompts, searched, strict=True):
        for hypothesis in hypotheses:
            steps = enumerate(hypothesis.ids)
            total = sum(
                float(next_log_probs(model, [*prompt, *hypothesis.ids[:i]], len(prompt))[t])
                for i, t in steps
            )
            assert hypothesis.log_prob == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize("batch_tokens", [1, 10_000])
def test_texts_are_scored_after_their_prompts(batch_tokens):
    model = make_prefix_model()
    texts = [[0, 5, 9, 3, 3, 8], list(range(2, 45)), [0, 4, 4], [0], []]
    prompt_lengths = [3, 11, 1, 1, 0]
    text_scores = compute_token_log_probs(
        model, texts, batch_tokens=batch_tokens, prefix_lm_prompt_lengths=prompt_lengths
    )
    for text, count, scores in zip(texts, prompt_lengths, text_scores, strict=True):
        assert len(scores) == max(0, len(text) - 1) and np.isnan(scores[: max(0, count - 1)]).all()
        for i in range(count, len(text)):
            expected = float(next_log_probs(model, text[:i], count)[text[i]])
            assert scores[i - 1] == pytest.approx(expected, abs=1e-4)
    # By default the prompt is the first token, which makes no difference to a causal model.
    default = compute_token_log_probs(model, texts)
    for scores, causal in zip(default, compute_token_log_probs(tiny(), texts), strict=True):
        np.testing.assert_array_equal(scores, causal)


def test_next_token_scores_differ_from_those_of_the_causal_mask():
    model = make_prefix_model()
    next_scores = compute_next_log_probs(model, PROMPTS)
    for prompt, scores in zip(PROMPTS, next_scores, strict=True):
        expected = next_log_probs(model, prompt, len(prompt))
        np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert abs(next_scores[2] - naive_next_log_probs(model, PROMPTS[2]).numpy()).max() > 0.05


def test_prompt_lengths_do_not_change_a_causal_model():
    texts = [[0, 5, 9, 3, 3, 8], list(range(2, 45))]
    for one, other in zip(
        compute_token_log_probs(tiny(), texts, prefix_lm_prompt_lengths=[3, 11]),
        compute_token_log_probs(tiny(), texts),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("count", [4, -1])
def test_a_prompt_longer_than_its_text_is_refused(count):
    with pytest.raises(
        ValueError, match=f"prompt of sequence 1 must have 0 to 3 tokens .* not {count}"
    ):
        compute_token_log_probs(
            make_prefix_model(), [[0, 4], [0, 5, 9]], prefix_lm_prompt_lengths=[1, count]
        )
