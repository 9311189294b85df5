"""Clipping by the global norm, beside torch's own: the same norm, and the same weights after it."""

import pytest
import torch
from torch import nn

from model.config import TrainConfig
from model.training.optimizers import clip_gradients, make_optimizers
from tests.model.oracles import tiny


def gradients(model, step, size):
    for i, parameter in enumerate(model.parameters()):
        drawn = torch.Generator().manual_seed(1000 * step + i)
        parameter.grad = size * torch.randn(parameter.shape, generator=drawn)


@pytest.mark.parametrize("limit", [1.0, 50.0])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_steps_are_those_behind_torchs_clipping(kind, limit):
    """One gradient is above the limit and scaled, the next below and left, the last above again."""
    norms, ends = [], []
    for ours in (True, False):
        torch.manual_seed(0)
        model = tiny()
        optimizers = make_optimizers(model, TrainConfig(optimizer=kind))
        for step, size in enumerate((1.0, 1e-4, 3.0)):
            gradients(model, step, size)
            norms.append(
                clip_gradients(optimizers, limit)
                if ours
                else nn.utils.clip_grad_norm_(model.parameters(), limit)
            )
            for optimizer in optimizers:
                optimizer.step()
        ends.append(list(model.parameters()))
    torch.testing.assert_close(norms[:3], norms[3:])
    assert norms[0] > limit > norms[1] and norms[2] > limit
    torch.manual_seed(0)
    for mine, its, start in zip(*ends, tiny().parameters(), strict=True):
        assert (its - start).norm() > 0
        torch.testing.assert_close(mine - start, its - start, rtol=1e-4, atol=1e-7)


def test_an_optimizer_that_is_not_fused_has_its_gradients_scaled():
    weights = [
        nn.Parameter(torch.zeros(2)),
        nn.Parameter(torch.zeros(3)),
        nn.Parameter(torch.zeros(1)),
    ]
    weights[0].grad, weights[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0, 0.0])
    assert clip_gradients([torch.optim.SGD(weights, lr=1.0)], 1.0) == 5  # one weight was not asked
    torch.testing.assert_close(weights[0].grad, torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(weights[1].grad, torch.tensor([0.0, 0.8, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float32])
def test_fused_steps_of_other_kinds_of_numbers_are_clipped(dtype):
    ends = []
    for ours in (True, False):
        weight = nn.Parameter(torch.ones(3, dtype=dtype))
        optimizer = torch.optim.AdamW([weight], lr=0.1, eps=1.0, fused=True)
        weight.grad = torch.tensor([3.0, 0.0, 4.0], dtype=dtype)
        clip_gradients([optimizer], 1.0) if ours else nn.utils.clip_grad_norm_([weight], 1.0)
        optimizer.step()
        ends.append(weight.detach())
    torch.testing.assert_close(*ends)
    assert ends[0][0] < 1


def test_an_optimizer_is_as_fused_as_its_groups_are():
    """A state that was loaded brings the settings of the optimizer that it was taken from."""
    ends = []
    for fused in (True, False):
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.AdamW([weight], lr=0.1, eps=1.0, fused=fused)
        other = torch.optim.AdamW([nn.Parameter(torch.ones(3))], lr=0.1, eps=1.0, fused=not fused)
        optimizer.load_state_dict(other.state_dict())
        weight.grad = torch.tensor([3.0, 0.0, 4.0])
        assert clip_gradients([optimizer], 1.0) == 5
        optimizer.step()
        ends.append(weight.detach())
    torch.testing.assert_close(*ends)
