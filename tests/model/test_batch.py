"""Batches: the positions that the loss needs, and micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hallmark.model.objectives import (
    build_causal_batch,
    build_mlm_batch,
    build_random_prefix_batch,
    build_seq2seq_batch,
)
from hallmark.model.special_tokens import PAD_ID
from tests.model.oracles import tiny, toy_rows

TEXT = np.random.default_rng(0).integers(PAD_ID + 1, 60, (8, 32))
SHORT = np.where(np.arange(32) < 20, TEXT, PAD_ID)


@pytest.mark.parametrize(
    ("batch", "max_share"),
    [
        (build_mlm_batch(TEXT, 2, mask_id=60, vocab_size=61), 1 / 6),
        (build_random_prefix_batch(TEXT, 2), 4 / 6),  # about half
        (build_causal_batch(SHORT), 4 / 6),
        (
            build_seq2seq_batch(
                TEXT.tolist(), [row[: 4 * i].tolist() for i, row in enumerate(TEXT)]
            ),
            4 / 6,
        ),
    ],
)
def test_few_positions_beyond_the_predicted_are_selected(batch, max_share):
    sparse = batch.with_predicted_positions()
    positions, weights = sparse.predicted_positions, batch.weights.flatten()
    assert len(set(positions.tolist())) == len(positions)  # no repetition
    assert sparse.select_predicted(batch.weights).count_nonzero() == weights.count_nonzero()
    assert torch.equal(sparse.select_predicted(batch.weights), weights[positions])
    assert torch.equal(sparse.select_predicted(batch.targets), batch.targets.flatten()[positions])
    assert (
        len(positions) % -(-len(weights) // 6) == 0
        and len(positions) <= max_share * len(weights) + 6
    )
    parts = sparse.split_into_micro_batches(4)  # each has its own positions
    assert sum(part.select_predicted(part.weights).sum() for part in parts) == weights.sum()
    sparse_parts = [part for part in parts if part.predicted_positions is not None]
    assert sparse_parts and all(
        part.predicted_positions.max() < part.weights.numel() for part in sparse_parts
    )


def test_a_fully_predicted_batch_has_no_predicted_positions():
    assert build_causal_batch(TEXT).with_predicted_positions().predicted_positions is None


def test_a_batch_without_predictions_has_loss_zero():
    batch = build_causal_batch(np.full((2, 16), PAD_ID)).with_predicted_positions()
    model = tiny()
    assert batch.predicted_positions.shape == (0,)
    loss = model.compute_loss_sum(batch)
    loss.backward()
    assert loss == 0 and not model.head.weight.grad.any()
    assert torch.equal(model.compute_token_losses(batch), torch.zeros(2, 16))


def test_micro_batches_make_up_the_batch():
    batch = build_causal_batch(toy_rows(8, 16, 40).astype(np.int64), document_mask=True)
    parts = batch.split_into_micro_batches(4)
    assert torch.equal(torch.cat([p.segments for p in parts]), batch.segments)
    assert [len(p.ids) for p in parts] == [2] * 4
