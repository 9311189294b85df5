"""A model left in training mode answers as in evaluation mode, and is left as it was found."""

from __future__ import annotations

import numpy as np
import pytest

from model.decoding.beam import ModelScorer, beam, beam_search
from model.decoding.generate import generate
from model.decoding.inside import attention_weights, embeddings
from model.decoding.score import next_log_probs, target_log_probs, token_log_probs, token_moments
from model.training.classify import SequenceClassifier, predict
from tests.model.oracles import tiny

TEXTS = [[0, 5, 9, 4, 3, 7], [0, 7, 8]]


def searched(model):
    found = beam(model, TEXTS, width=3, max_new_tokens=5)
    return [[h.log_prob for h in hypotheses] for hypotheses in found]


def scored(model):
    """By the scorer alone."""
    scorer = ModelScorer(model, TEXTS, max_new_tokens=5)
    found = beam_search(scorer, width=3, max_new_tokens=5, stop={0})
    return [[h.log_prob for h in hypotheses] for hypotheses in found]


def written(model):
    return [text.log_probs for (text,) in generate(model, TEXTS, max_new_tokens=6)]


ENTRIES = {
    "token_log_probs": (tiny, lambda m: token_log_probs(m, TEXTS)),
    "token_moments": (tiny, lambda m: [moments.mean for moments in token_moments(m, TEXTS)]),
    "target_log_probs": (
        lambda **changes: tiny(architecture="encoder_decoder", **changes),
        lambda m: target_log_probs(m, TEXTS, TEXTS),
    ),
    "next_log_probs": (tiny, lambda m: next_log_probs(m, TEXTS)),
    "embeddings": (tiny, lambda m: embeddings(m, TEXTS)),
    "attention_weights": (tiny, lambda m: attention_weights(m, TEXTS[0])["decoder"]),
    "beam": (tiny, searched),
    "scorer": (tiny, scored),
    "generate": (tiny, written),
    "predict": (
        lambda **changes: SequenceClassifier(tiny(**changes), 2).eval(),
        lambda m: predict(m, TEXTS),
    ),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_dropout_is_off_meanwhile_and_on_again_afterwards(name):
    make, ask = ENTRIES[name]
    model = make(dropout=0.5)
    expected = ask(model)
    model.train()
    still = list(model.modules())[-1].eval()  # as of a part that is frozen
    for one, other in zip(ask(model), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert model.training and not still.training
    assert all(module.training for module in model.modules() if module is not still)


def test_it_is_on_again_where_the_question_was_refused():
    model = tiny(dropout=0.5).train()
    with pytest.raises(ValueError, match="vocabulary"):
        token_log_probs(model, [[0, 61]])
    assert all(module.training for module in model.modules())
