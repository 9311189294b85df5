"""Muon against singular values, torch's Muon, and separate matrices."""

import pytest
import torch
from torch import nn

from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.model.training.muon import (
    NEWTON_SCHULZ_COEFFICIENTS,
    NEWTON_SCHULZ_ITERATIONS,
    Muon,
    orthogonalise,
)
from hallmark.model.training.optimizers import (
    get_fused_row_counts_by_weight,
    make_optimizers,
    set_learning_rate,
)
from tests.model.oracles import random_tensor


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 0.06)])
@pytest.mark.parametrize("shape", [(1, 7, 7), (3, 6, 40), (2, 40, 6), (1, 1, 5), (1, 5, 1)])
def test_orthogonalise_maps_singular_values_by_the_polynomial(shape, dtype, tolerance):
    matrices = random_tensor(*shape)
    results = orthogonalise(matrices, dtype)
    assert results.shape == matrices.shape and results.dtype == dtype
    for matrix, result in zip(matrices.double(), results.double(), strict=True):
        u, s, v = torch.linalg.svd(matrix, full_matrices=False)
        s = s / s.square().sum().sqrt()
        for _ in range(NEWTON_SCHULZ_ITERATIONS):
            a, b, c = NEWTON_SCHULZ_COEFFICIENTS
            s = a * s + b * s**3 + c * s**5
        torch.testing.assert_close(result, u @ s.diag() @ v, atol=tolerance, rtol=tolerance)


def test_zero_matrices_stay_zero():
    assert not orthogonalise(torch.zeros(2, 3, 4), torch.float32).any()


def parameters(*shapes):
    return [nn.Parameter(random_tensor(*shape, seed=i)) for i, shape in enumerate(shapes)]


def descend(optimizer, weights, steps=5):
    for step in range(steps):
        set_learning_rate([optimizer], 0.01 * (step + 1))
        for i, parameter in enumerate(weights):
            parameter.grad = random_tensor(*parameter.shape, seed=100 * step + i)
        optimizer.step()


def test_separate_matrices_are_updated_like_torchs_muon():
    """torch computes in bf16: each update agrees to about three digits."""
    shapes = [(8, 8), (16, 8), (8, 24), (8, 8)]
    ours, theirs = parameters(*shapes), parameters(*shapes)
    descend(Muon({p: [len(p)] for p in ours}, 0.01, 0.1, 0.9), ours)
    descend(torch.optim.Muon(theirs, 0.01, 0.1, 0.9, adjust_lr_fn="match_rms_adamw"), theirs)
    for one, other, start in zip(ours, theirs, parameters(*shapes), strict=True):
        moved = (one - start).norm()
        assert moved > 0.1 and (one - other).norm() < 0.02 * moved


def test_fused_matrices_are_updated_separately():
    fused = nn.Parameter(random_tensor(20, 8))
    parts = [nn.Parameter(part.clone()) for part in fused.detach().split([8, 6, 6])]
    one = Muon({fused: [8, 6, 6]}, 0.01, 0.1, 0.9)
    other = Muon({part: [len(part)] for part in parts}, 0.01, 0.1, 0.9)
    for step in range(3):
        fused.grad = random_tensor(20, 8, seed=step)
        for part, gradient in zip(parts, fused.grad.split([8, 6, 6]), strict=True):
            part.grad = gradient.clone()
        one.step(), other.step()
    torch.testing.assert_close(fused, torch.cat(parts))


def test_a_parameter_without_gradient_does_not_change():
    weights, unchanged = parameters((4, 4), (4, 4))
    weights.grad = random_tensor(4, 4)
    Muon({weights: [4], unchanged: [4]}, 0.01, 0.1, 0.9).step()
    assert torch.equal(unchanged, random_tensor(4, 4, seed=1)) and not torch.equal(
        weights, random_tensor(4, 4)
    )


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_row_counts_of_fused_matrices_equal_those_of_the_model(architecture):
    config = ModelConfig(
        vocab_size=50,
        context=8,
        d_model=24,
        n_layers=1,
        n_heads=4,
        n_kv_heads=2,
        activation="swiglu",
        d_ff=40,
        architecture=architecture,
    )
    model = Transformer(config)
    fused_rows = get_fused_row_counts_by_weight(model)
    assert {tuple(rows) for rows in fused_rows.values()} == {(24, 12, 12), (40, 40)}
    assert all(len(matrix) == sum(rows) for matrix, rows in fused_rows.items())
    blocks = 1 if architecture == "decoder" else 2
    assert len(fused_rows) == 2 * blocks + (architecture != "decoder")  # cross-attention, too
    muon = make_optimizers(model, TrainConfig(optimizer="muon", momentum=0.8))[1]
    assert muon.row_counts.items() >= fused_rows.items() and muon.defaults["momentum"] == 0.8
    plain = [p for p in muon.row_counts if p not in fused_rows]
    assert plain and all(muon.row_counts[p] == [len(p)] for p in plain)
