"""Scores of targets given sources, against an encoder-decoder that reads one token at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hallmark.model.decoding import token_scores
from hallmark.model.decoding.token_scores import compute_target_log_probs, compute_target_statistics
from tests.model.oracles import logits, tiny

TARGETS = [[0, 5, 9, 3], [0, 7], [0], [], list(range(2, 18)), [0, 4, 4, 8, 8, 8, 2]]
SOURCES = [[3], [9, 8, 7, 6], [5], [5], [4] * 16, [2, 60]]


@pytest.fixture(scope="module")
def model():
    return tiny(architecture="encoder_decoder")


@torch.no_grad()
def next_log_probs(model, source, tokens):
    """Compute log p (V,) of the token after ``tokens``, for one pair without padding."""
    token_logits = logits(model, torch.tensor([tokens]), source=torch.tensor([source]))
    return token_logits[0, -1].log_softmax(-1).double()


@pytest.mark.parametrize("chunk", [3, 1000])
@pytest.mark.parametrize("batch_tokens", [1, 30, 10_000])
def test_target_log_probs_equal_those_of_each_pair_alone(model, monkeypatch, batch_tokens, chunk):
    monkeypatch.setattr(token_scores, "choose_chunk_rows", lambda *_: chunk)
    target_scores = compute_target_log_probs(model, SOURCES, TARGETS, batch_tokens=batch_tokens)
    for source, target, scores in zip(SOURCES, TARGETS, target_scores, strict=True):
        assert scores.dtype == np.float32
        expected = [
            float(next_log_probs(model, source, target[:i])[target[i]])
            for i in range(1, len(target))
        ]
        np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_a_batch_has_at_most_batch_tokens(model, monkeypatch):
    """Its size is the longest source and target times the pairs; a longer pair is alone."""
    sizes = []
    forward = type(model).forward

    def count_tokens(self, batch):
        sizes.append(batch.ids.shape[0] * (batch.ids.shape[1] + 1 + batch.source.shape[1]))
        return forward(self, batch)

    monkeypatch.setattr(type(model), "forward", count_tokens)
    compute_target_log_probs(model, SOURCES, TARGETS, batch_tokens=30)
    assert len(sizes) >= 3 and sorted(sizes)[-1] == 32 and sorted(sizes)[-2] <= 30
    sizes.clear()
    compute_target_log_probs(model, SOURCES, TARGETS, batch_tokens=10_000)
    assert len(sizes) == 1


def test_target_statistics_equal_those_of_each_pair_alone(model):
    target_statistics = compute_target_statistics(model, SOURCES, TARGETS, unranked_tokens=(1, 2))
    for source, target, statistics in zip(SOURCES, TARGETS, target_statistics, strict=True):
        assert len(statistics.rank) == max(0, len(target) - 1)
        for i in range(1, len(target)):
            log_p = next_log_probs(model, source, target[:i])
            mean = float((log_p.exp() * log_p).sum())
            assert statistics.log_probs[i - 1] == pytest.approx(float(log_p[target[i]]), abs=1e-4)
            assert statistics.mean_log_prob[i - 1] == pytest.approx(mean, abs=1e-4)
            allowed_tokens = [token for token in range(len(log_p)) if token not in (1, 2)]
            assert statistics.rank[i - 1] == int((log_p[allowed_tokens] > log_p[target[i]]).sum())


@pytest.mark.parametrize(
    ("sources", "targets", "words"),
    [
        ([[3]], [[0, 1], [0, 1]], "Each target sequence needs one source sequence"),
        ([[]], [[0, 1]], "with at least one token"),
        ([[61]], [[0, 1]], "Token id 61"),
        ([[3]], [[0, 61]], "Token id 61"),
        ([[3]], [[0] * 18], "17 tokens exceeds the context of 16"),
    ],
)
def test_invalid_pairs_are_refused(model, sources, targets, words):
    with pytest.raises(ValueError, match=words):
        compute_target_log_probs(model, sources, targets)


def test_a_decoder_cannot_score_sources():
    with pytest.raises(ValueError, match="encoder-decoder"):
        compute_target_log_probs(tiny(), [[3]], [[0, 1]])
