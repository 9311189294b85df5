"""A model in training mode gives the same results as in evaluation mode, and keeps its mode."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hallmark.model.decoding.activations import (
    compute_contextual_embeddings,
    extract_attention_weights,
)
from hallmark.model.decoding.beam_search import (
    CachedModelScorer,
    decode_with_beam_search,
    run_beam_search,
)
from hallmark.model.decoding.cache import allocate_cache
from hallmark.model.decoding.generation import generate
from hallmark.model.decoding.inference_mode import autocast_to_precision
from hallmark.model.decoding.token_scores import (
    compute_next_log_probs,
    compute_target_log_probs,
    compute_token_log_probs,
    compute_token_statistics,
)
from hallmark.model.objectives import build_causal_batch
from hallmark.model.probing.answer_spans import AnswerSpanModel, find_answer_spans
from hallmark.model.probing.cloze import compute_mask_log_probs
from hallmark.model.probing.label_scores import compute_log_probs_at_labelled_tokens
from hallmark.model.probing.layer_probes import compute_token_states
from hallmark.model.probing.position_loss import compute_loss_by_position
from hallmark.model.training.examples import Example
from tests.model.oracles import tiny

TEXTS = [[0, 5, 9, 4, 3, 7], [0, 7, 8]]


def search_beams(model):
    hypotheses_by_text = decode_with_beam_search(model, TEXTS, width=3, max_new_tokens=5)
    return [[h.log_prob for h in hypotheses] for hypotheses in hypotheses_by_text]


def search_with_scorer(model):
    """Search with the scorer directly."""
    scorer = CachedModelScorer(model, TEXTS, max_new_tokens=5)
    hypotheses_by_text = run_beam_search(scorer, width=3, max_new_tokens=5, stop={0})
    return [[h.log_prob for h in hypotheses] for hypotheses in hypotheses_by_text]


def generate_texts(model):
    return [text.log_probs for (text,) in generate(model, TEXTS, max_new_tokens=6)]


def make_encoder(**changes):
    return tiny(architecture="encoder", **changes)


def find_spans(model):
    allowed = [[True] * len(text) for text in TEXTS]
    return [span.score for span in find_answer_spans(AnswerSpanModel(model), TEXTS, allowed)]


CASES = {
    "mask_log_probs": (make_encoder, lambda m: compute_mask_log_probs(m, TEXTS, 7)),
    "layer_states": (tiny, lambda m: compute_token_states(m, TEXTS, [2, 1])),
    "loss_by_position": (
        tiny,
        lambda m: compute_loss_by_position(m, [build_causal_batch(np.array([TEXTS[0]]))]),
    ),
    "find_spans": (make_encoder, find_spans),
    "token_log_probs": (tiny, lambda m: compute_token_log_probs(m, TEXTS)),
    "token_moments": (
        tiny,
        lambda m: [moments.mean_log_prob for moments in compute_token_statistics(m, TEXTS)],
    ),
    "target_log_probs": (
        lambda **changes: tiny(architecture="encoder_decoder", **changes),
        lambda m: compute_target_log_probs(m, TEXTS, TEXTS),
    ),
    "next_log_probs": (tiny, lambda m: compute_next_log_probs(m, TEXTS)),
    "embeddings": (tiny, lambda m: compute_contextual_embeddings(m, TEXTS)),
    "attention_weights": (tiny, lambda m: extract_attention_weights(m, TEXTS[0])["decoder"]),
    "beam": (tiny, search_beams),
    "scorer": (tiny, search_with_scorer),
    "generate": (tiny, generate_texts),
    "label_log_probs": (
        lambda **changes: tiny(labels=("a", "b"), tie_embeddings=False, **changes),
        lambda m: compute_log_probs_at_labelled_tokens(
            m, [Example(text, [0] * len(text)) for text in TEXTS]
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_dropout_is_off_during_inference_and_on_afterwards(name):
    make, compute = CASES[name]
    model = make(dropout=0.5)
    expected = compute(model)
    model.train()
    frozen_module = list(model.modules())[-1].eval()  # as in a frozen part of a model
    for one, other in zip(compute(model), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert model.training and not frozen_module.training
    assert all(module.training for module in model.modules() if module is not frozen_module)


def test_training_mode_is_restored_after_an_error():
    model = tiny(dropout=0.5).train()
    with pytest.raises(ValueError, match="vocabulary"):
        compute_token_log_probs(model, [[0, 61]])
    assert all(module.training for module in model.modules())


TOLERANCE = 0.25  # nats: error of a token's score from products rounded to 8 bits


#: Results that are no token scores, or come from a search that bf16 may change.
CASES_WITHOUT_TOKEN_SCORES = {"beam", "scorer", "layer_states", "loss_by_position", "find_spans"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in CASES_WITHOUT_TOKEN_SCORES])
def test_results_in_bf16_are_close_to_fp32(name):
    make, compute = CASES[name]
    model = make()
    exact = compute(model)
    with autocast_to_precision(model, "bf16") as used:
        near = compute(model)
    assert used == "bf16"
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(exact, near, strict=True)]
    if name == "generate":  # after a different token, everything differs
        pairs = [(a[:1], b[:1]) for a, b in pairs]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, atol=TOLERANCE)
    assert any((one != other).any() for one, other in pairs)  # the precision did differ


def test_the_decoding_cache_has_the_precision():
    model = tiny()
    for precision, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        with autocast_to_precision(model, precision) as used:
            assert used == precision
            assert allocate_cache(model, 2, 4).layers[0].keys.dtype == dtype


def test_auto_precision_on_the_cpu_is_fp32():
    model = tiny()
    exact = compute_token_log_probs(model, TEXTS)
    with autocast_to_precision(model) as used:
        assert used == "fp32"
        for one, other in zip(compute_token_log_probs(model, TEXTS), exact, strict=True):
            np.testing.assert_array_equal(one, other)
    assert not torch.is_autocast_enabled("cpu")


def test_beam_scores_in_bf16_equal_token_scores_in_bf16():
    """With a cache and for the whole text, the precision is the same and the sums nearly so."""
    model = tiny()
    with autocast_to_precision(model, "bf16"):
        for prompt, hypotheses in zip(
            TEXTS, decode_with_beam_search(model, TEXTS, width=3, max_new_tokens=5), strict=True
        ):
            for h in hypotheses:
                (scores,) = compute_token_log_probs(model, [[*prompt, *h.ids]])
                assert h.log_probs == pytest.approx(scores[len(prompt) - 1 :], abs=TOLERANCE)
