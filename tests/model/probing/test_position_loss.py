"""The loss by position, against token scores and each document alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hallmark.model.decoding.token_scores import compute_token_log_probs
from hallmark.model.objectives import build_causal_batch, build_mlm_batch, build_prefix_batch
from hallmark.model.probing.position_loss import compute_loss_by_position
from tests.model.oracles import logits, tiny, toy_rows

ROWS = toy_rows(12, 16, 60).astype(np.int64)


def test_a_decoders_loss_by_position_equals_its_token_scores():
    model = tiny()
    losses, weight = compute_loss_by_position(
        model, [build_causal_batch(ROWS[:7]), build_causal_batch(ROWS[7:])]
    )
    scores = np.array(compute_token_log_probs(model, ROWS.tolist()))  # (12, 15)
    np.testing.assert_allclose(losses[:15], -scores.mean(0), atol=1e-5)
    assert weight.tolist() == [12.0] * 15 + [0.0] and np.isnan(losses[15])


def test_positions_restart_with_each_document_if_attention_does():
    model = tiny()
    batch = build_causal_batch(ROWS, document_mask=True)
    losses, weight = compute_loss_by_position(model, [batch])
    nats, n = np.zeros(16), np.zeros(16)
    for row in ROWS:
        begins = sorted({0, *np.flatnonzero(row == 0)})
        for begin, end in zip(begins, [*begins[1:], len(row)], strict=True):
            with torch.no_grad():
                log_probs = logits(model, torch.tensor(row[None, begin:end]))[0].log_softmax(-1)
            for t in range(begin, min(end, len(row) - 1)):  # the last predicts the next begin
                nats[t - begin] -= float(log_probs[t - begin, row[t + 1]])
                n[t - begin] += 1
    np.testing.assert_array_equal(weight, n)
    np.testing.assert_allclose(losses[n > 0], (nats / np.maximum(n, 1))[n > 0], atol=1e-5)
    assert (np.diff(n[n > 0]) <= 0).all() and n[0] > len(ROWS)


@pytest.mark.parametrize("kind", ["masked", "prefix"])
def test_only_predicted_tokens_count(kind):
    if kind == "masked":
        model, batch = (
            tiny(architecture="encoder"),
            build_mlm_batch(ROWS, 3, mask_id=60, vocab_size=61, mask_rate=0.3),
        )
    else:
        model, batch = tiny(), build_prefix_batch(ROWS, np.arange(1, 13))
    mean_losses, weight = compute_loss_by_position(model, [batch])
    _, scale = batch.require_targets_and_weights()
    positions = torch.arange(16).expand_as(scale) if batch.positions is None else batch.positions
    assert weight.tolist() == [scale[positions == position].sum() for position in range(16)]
    losses = model.compute_token_losses(batch)
    for position in range(16):
        chosen = losses[(positions == position) & (scale > 0)]
        if len(chosen):
            assert mean_losses[position] == pytest.approx(float(chosen.mean()), abs=1e-5)
        else:
            assert np.isnan(mean_losses[position])
    total = model.compute_loss_sum(batch).item()
    assert np.nansum(mean_losses * weight) == pytest.approx(total, rel=1e-5)
