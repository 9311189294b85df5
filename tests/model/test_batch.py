"""What a batch names for the loss, and its micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.objectives import (
    build_causal_batch,
    build_mlm_batch,
    build_random_prefix_batch,
    build_seq2seq_batch,
)
from model.special_tokens import PAD_ID
from tests.model.oracles import tiny, toy_rows

TEXT = np.random.default_rng(0).integers(PAD_ID + 1, 60, (8, 32))
SHORT = np.where(np.arange(32) < 20, TEXT, PAD_ID)


@pytest.mark.parametrize(
    ("batch", "most"),
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
def test_logits_are_computed_for_what_is_predicted_and_little_else(batch, most):
    sparse = batch.with_predicted_positions()
    places, weights = sparse.predicted_positions, batch.weights.flatten()
    assert len(set(places.tolist())) == len(places)  # none twice
    assert sparse.select_predicted(batch.weights).count_nonzero() == weights.count_nonzero()
    assert torch.equal(sparse.select_predicted(batch.weights), weights[places])
    assert torch.equal(sparse.select_predicted(batch.targets), batch.targets.flatten()[places])
    assert len(places) % -(-len(weights) // 6) == 0 and len(places) <= most * len(weights) + 6
    parts = sparse.split_into_micro_batches(4)  # each names places of its own
    assert sum(part.select_predicted(part.weights).sum() for part in parts) == weights.sum()
    named = [part for part in parts if part.predicted_positions is not None]
    assert named and all(part.predicted_positions.max() < part.weights.numel() for part in named)


def test_a_batch_of_which_all_is_predicted_names_no_places():
    assert build_causal_batch(TEXT).with_predicted_positions().predicted_positions is None


def test_of_a_batch_of_which_nothing_is_predicted_no_logits_are_computed():
    batch = build_causal_batch(np.full((2, 16), PAD_ID)).with_predicted_positions()
    model = tiny()
    assert batch.predicted_positions.shape == (0,)
    loss = model.compute_loss_sum(batch)
    loss.backward()
    assert loss == 0 and not model.head.weight.grad.any()
    assert torch.equal(model.compute_token_losses(batch), torch.zeros(2, 16))


def test_micro_batches_put_together_are_the_batch():
    batch = build_causal_batch(toy_rows(8, 16, 40).astype(np.int64), document_mask=True)
    parts = batch.split_into_micro_batches(4)
    assert torch.equal(torch.cat([p.segments for p in parts]), batch.segments)
    assert [len(p.ids) for p in parts] == [2] * 4
