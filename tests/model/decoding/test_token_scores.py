"""Log-probabilities, statistics and ranks of tokens, against the naive model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hallmark.model.batch import Batch
from hallmark.model.decoding.token_scores import (
    compute_log_prob_mean_std_rank,
    compute_next_log_probs,
    compute_token_log_probs,
    compute_token_statistics,
    to_token_statistics,
)
from tests.model.oracles import logits, naive_next_log_probs, tiny

LENGTHS = [2, 5, 16, 17, 18, 24, 25, 40, 1, 0, 3]


@pytest.fixture(scope="module")
def sequences():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 61, n).tolist() for n in LENGTHS]


@pytest.mark.parametrize("batch_tokens", [1, 40, 10_000])
@pytest.mark.parametrize(
    "changes", [{}, {"positions": "rope", "norm": "rmsnorm"}, {"positions": "sinusoidal"}]
)
def test_scores_equal_the_naive_model_token_by_token(sequences, changes, batch_tokens):
    model = tiny(**changes)
    scores = compute_token_log_probs(model, sequences, batch_tokens=batch_tokens)
    for sequence, got in zip(sequences, scores, strict=True):
        want = [
            float(naive_next_log_probs(model, sequence[:i])[sequence[i]])
            for i in range(1, len(sequence))
        ]
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, atol=1e-4)


def test_a_smaller_stride_gives_every_token_more_context(sequences):
    model = tiny()
    long = sequences[LENGTHS.index(40)]
    with torch.no_grad():
        want = [
            float(logits(model, torch.tensor([long[max(0, i - 16) : i]]))[0, -1].log_softmax(-1)[t])
            for i, t in enumerate(long[1:], 1)
        ]
    got = compute_token_log_probs(model, [long], stride=1)[0]
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_probabilities_of_all_continuations_sum_to_one():
    model = tiny()
    scores = compute_token_log_probs(model, [[0, 5, t] for t in range(61)])
    assert abs(sum(np.exp(s[1]) for s in scores) - 1) < 1e-5


def test_statistics_equal_their_definition(sequences):
    model = tiny()
    for sequence, got in zip(sequences, compute_token_statistics(model, sequences), strict=True):
        assert len(got.mean_log_prob) == max(0, len(sequence) - 1)
        for i in range(1, len(sequence)):
            log_p = naive_next_log_probs(model, sequence[:i]).double()
            p = log_p.exp()
            mean = float((p * log_p).sum())
            std = float((p * (log_p - mean) ** 2).sum().sqrt())
            chosen = float(log_p[sequence[i]])
            assert got.log_probs[i - 1] == pytest.approx(chosen, abs=1e-4)
            assert got.mean_log_prob[i - 1] == pytest.approx(mean, abs=1e-4)
            assert got.std_log_prob[i - 1] == pytest.approx(std, abs=1e-4)
            allowed_tokens = [token for token in range(len(log_p)) if token != 1]  # not padding
            more_probable = (log_p[allowed_tokens] > log_p[sequence[i]]).sum()
            assert got.rank[i - 1] == int(more_probable)


def test_among_equally_probable_tokens_the_lowest_id_ranks_first():
    logits = torch.tensor([[3.0, 9.0, 5.0, 5.0, 5.0, 1.0]]).repeat(4, 1)
    statistics = compute_log_prob_mean_std_rank(
        logits, torch.tensor([2, 3, 5, 0]), unranked_tokens=(1,)
    )
    assert statistics[3].tolist() == [0, 1, 4, 3]
    assert int(logits[0, [0, 2, 3, 4, 5]].argmax()) == 1  # among the allowed tokens: token 2
    (nan_statistics,) = to_token_statistics(
        [compute_log_prob_mean_std_rank(logits * torch.nan, torch.tensor([2] * 4)).numpy()]
    )
    assert nan_statistics.rank.tolist() == [-1] * 4 and np.isnan(nan_statistics.log_probs).all()


def test_next_token_distributions_equal_the_naive_ones(sequences):
    model = tiny()
    prompts = [s for s in sequences if s]
    got = compute_next_log_probs(model, prompts, batch_tokens=48)
    want = torch.stack([naive_next_log_probs(model, p) for p in prompts])
    np.testing.assert_allclose(got, want.numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda m: compute_token_log_probs(m, [[0, 61]]), "Token id 61"),
        (lambda m: compute_token_log_probs(m, [[-1, 2]]), "Token id -1"),
        (lambda m: compute_token_log_probs(m, [[0, 1]], stride=17), "stride"),
        (lambda m: compute_next_log_probs(m, [[0], []]), "Prompt 1 is empty"),
        (
            lambda m: compute_next_log_probs(m, [[0], [0.5]]),
            "Sequence 1 is not a list of token ids",
        ),
        (lambda m: compute_token_log_probs(m, [[0, 2**70]]), "not a list of token ids"),
        (lambda m: m(Batch(torch.tensor([[0]]), source=torch.tensor([[0]]))), "has no encoder"),
    ],
)
def test_invalid_sequences_are_refused(call, word):
    with pytest.raises(ValueError, match=word):
        call(tiny())
