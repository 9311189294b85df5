"""Clipping by the global norm, against torch's: the same norms and weights."""

import pytest
import torch
from torch import nn

from hallmark.model.config import TrainConfig
from hallmark.model.training.optimizers import clip_gradients, make_optimizers
from tests.model.oracles import tiny


def set_random_gradients(model, step, size):
    for i, parameter in enumerate(model.parameters()):
        drawn = torch.Generator().manual_seed(1000 * step + i)
        parameter.grad = size * torch.randn(parameter.shape, generator=drawn)


@pytest.mark.parametrize("limit", [1.0, 50.0])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_steps_equal_those_with_torchs_clipping(kind, limit):
    """The first gradient is above the limit, the second below it, and the third above it again."""
    norms, final_parameters = [], []
    for ours in (True, False):
        torch.manual_seed(0)
        model = tiny()
        optimizers = make_optimizers(model, TrainConfig(optimizer=kind))
        for step, size in enumerate((1.0, 1e-4, 3.0)):
            set_random_gradients(model, step, size)
            norms.append(
                clip_gradients(optimizers, limit)
                if ours
                else nn.utils.clip_grad_norm_(model.parameters(), limit)
            )
            for optimizer in optimizers:
                optimizer.step()
        final_parameters.append(list(model.parameters()))
    torch.testing.assert_close(norms[:3], norms[3:])
    assert norms[0] > limit > norms[1] and norms[2] > limit
    torch.manual_seed(0)
    for own_parameter, torchs_parameter, start in zip(
        *final_parameters, tiny().parameters(), strict=True
    ):
        assert (torchs_parameter - start).norm() > 0
        torch.testing.assert_close(
            own_parameter - start, torchs_parameter - start, rtol=1e-4, atol=1e-7
        )


def test_gradients_of_unfused_optimizers_are_scaled():
    weights = [
        nn.Parameter(torch.zeros(2)),
        nn.Parameter(torch.zeros(3)),
        nn.Parameter(torch.zeros(1)),
    ]
    weights[0].grad, weights[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0, 0.0])
    # One weight has no gradient.
    assert clip_gradients([torch.optim.SGD(weights, lr=1.0)], 1.0) == 5
    torch.testing.assert_close(weights[0].grad, torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(weights[1].grad, torch.tensor([0.0, 0.8, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float32])
def test_fused_steps_are_clipped_in_every_dtype(dtype):
    final_weights = []
    for ours in (True, False):
        weight = nn.Parameter(torch.ones(3, dtype=dtype))
        optimizer = torch.optim.AdamW([weight], lr=0.1, eps=1.0, fused=True)
        weight.grad = torch.tensor([3.0, 0.0, 4.0], dtype=dtype)
        clip_gradients([optimizer], 1.0) if ours else nn.utils.clip_grad_norm_([weight], 1.0)
        optimizer.step()
        final_weights.append(weight.detach())
    torch.testing.assert_close(*final_weights)
    assert final_weights[0][0] < 1


def test_fused_is_read_from_the_groups_of_an_optimizer():
    """A loaded state brings the settings of the optimizer that it was saved from."""
    final_weights = []
    for fused in (True, False):
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.AdamW([weight], lr=0.1, eps=1.0, fused=fused)
        other = torch.optim.AdamW([nn.Parameter(torch.ones(3))], lr=0.1, eps=1.0, fused=not fused)
        optimizer.load_state_dict(other.state_dict())
        weight.grad = torch.tensor([3.0, 0.0, 4.0])
        assert clip_gradients([optimizer], 1.0) == 5
        optimizer.step()
        final_weights.append(weight.detach())
    torch.testing.assert_close(*final_weights)
