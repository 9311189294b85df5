"""One step of the trainer, compared with the same step in plain PyTorch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.model.objectives import build_causal_batch
from hallmark.model.training.parallel import DistributedWorld
from hallmark.model.training.prefetching import PreparedBatch
from hallmark.model.training.schedule import compute_learning_rate
from hallmark.model.training.training_step import TrainingError, TrainingStep
from tests.model.oracles import toy_rows


def make_model():
    torch.manual_seed(0)
    return Transformer(ModelConfig(vocab_size=40, context=16, d_model=32, n_layers=2, n_heads=2))


def make_batch():
    return build_causal_batch(toy_rows(8, 16, 40).astype(np.int64))


def make_step(model, config):
    world = DistributedWorld()
    loss_of_batch = world.shard_model_and_wrap_loss(
        model, config.parallel, False, config.z_loss, True
    )
    return TrainingStep(
        model, loss_of_batch, config, world, dtype=torch.float32, has_frozen_body=False
    )


def run(training_step, number, batch, micro_batch_count=1):
    weight_sum = batch.require_targets_and_weights()[1].sum().item()
    micro_batches = batch.split_into_micro_batches(micro_batch_count)
    return training_step.run(number, PreparedBatch(micro_batches, weight_sum, 128, 128, 1))


@pytest.mark.parametrize("micro_batch_count", [1, 4])
def test_a_step_equals_one_in_plain_pytorch(micro_batch_count):
    """Clipping acts: the norm is above the limit."""
    config = TrainConfig(steps=10, warmup_steps=4, learning_rate=0.01, max_grad_norm=0.1)
    model, batch = make_model(), make_batch()
    expected = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in expected.parameters() if p.ndim >= 2]},
            {"params": [p for p in expected.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ],
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )
    training_step = make_step(model, config)
    for number in (1, 2, 3):
        for group in optimizer.param_groups:
            group["lr"] = compute_learning_rate(config, number)
        loss = expected.compute_loss_sum(batch) / batch.require_targets_and_weights()[1].sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(expected.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        metrics = run(training_step, number, batch, micro_batch_count)
        assert norm > config.max_grad_norm
        assert metrics.loss_and_norm.read_when_ready() == pytest.approx([loss.item(), norm.item()])
        assert metrics.learning_rate == 0.01 * number / 4
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_divergent_step_changes_nothing_and_too_many_stop_the_training(capsys):
    config = TrainConfig(steps=100, warmup_steps=4, on_divergence="skip")
    model, batch = make_model(), make_batch()
    training_step = make_step(model, config)
    run(training_step, 1, batch)
    with torch.no_grad():
        model.head.weight[0, 0] = torch.nan
    before = copy.deepcopy(model.state_dict())
    for number in range(2, 12):
        assert run(training_step, number, batch).is_skipped
    assert all(p.grad is None for p in model.parameters())
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0, equal_nan=True)
    with pytest.raises(
        TrainingError, match=r"Training diverged at step 12: .*skipped immediately before: 10"
    ):
        run(training_step, 12, batch)
    assert capsys.readouterr().out.count('"skipped"') == 10
