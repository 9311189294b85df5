"""Muon against singular values, torch's own, and matrices that stand alone."""

import pytest
import torch
from torch import nn

from model.architecture import Transformer
from model.config import ModelConfig, TrainConfig
from model.training.muon import (
    NEWTON_SCHULZ_COEFFICIENTS,
    NEWTON_SCHULZ_ITERATIONS,
    Muon,
    orthogonalise,
)
from model.training.optimizers import find_fused_matrices, make_optimizers, set_learning_rate


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype, near", [(torch.float32, 1e-4), (torch.bfloat16, 0.06)])
@pytest.mark.parametrize("shape", [(1, 7, 7), (3, 6, 40), (2, 40, 6), (1, 1, 5), (1, 5, 1)])
def test_only_singular_values_change_and_as_the_polynomial_says(shape, dtype, near):
    matrices = drawn(*shape)
    found = orthogonalise(matrices, dtype)
    assert found.shape == matrices.shape and found.dtype == dtype
    for matrix, made in zip(matrices.double(), found.double(), strict=True):
        u, s, v = torch.linalg.svd(matrix, full_matrices=False)
        s = s / s.square().sum().sqrt()
        for _ in range(NEWTON_SCHULZ_ITERATIONS):
            a, b, c = NEWTON_SCHULZ_COEFFICIENTS
            s = a * s + b * s**3 + c * s**5
        torch.testing.assert_close(made, u @ s.diag() @ v, atol=near, rtol=near)


def test_nothing_stays_nothing():
    assert not orthogonalise(torch.zeros(2, 3, 4), torch.float32).any()


def parameters(*shapes):
    return [nn.Parameter(drawn(*shape, seed=i)) for i, shape in enumerate(shapes)]


def descend(optimizer, weights, steps=5):
    for step in range(steps):
        set_learning_rate([optimizer], 0.01 * (step + 1))
        for i, parameter in enumerate(weights):
            parameter.grad = drawn(*parameter.shape, seed=100 * step + i)
        optimizer.step()


def test_a_matrix_that_stands_alone_goes_the_way_of_torchs_muon():
    """Which computes in bf16: equal to about three digits of each update."""
    shapes = [(8, 8), (16, 8), (8, 24), (8, 8)]
    ours, theirs = parameters(*shapes), parameters(*shapes)
    descend(Muon([(p, [len(p)]) for p in ours], 0.01, 0.1, 0.9), ours)
    descend(torch.optim.Muon(theirs, 0.01, 0.1, 0.9, adjust_lr_fn="match_rms_adamw"), theirs)
    for one, other, start in zip(ours, theirs, parameters(*shapes), strict=True):
        moved = (one - start).norm()
        assert moved > 0.1 and (one - other).norm() < 0.02 * moved


def test_what_a_matrix_holds_goes_its_own_ways():
    whole = nn.Parameter(drawn(20, 8))
    parts = [nn.Parameter(part.clone()) for part in whole.detach().split([8, 6, 6])]
    one = Muon([(whole, [8, 6, 6])], 0.01, 0.1, 0.9)
    other = Muon([(part, [len(part)]) for part in parts], 0.01, 0.1, 0.9)
    for step in range(3):
        whole.grad = drawn(20, 8, seed=step)
        for part, gradient in zip(parts, whole.grad.split([8, 6, 6]), strict=True):
            part.grad = gradient.clone()
        one.step(), other.step()
    torch.testing.assert_close(whole, torch.cat(parts))


def test_a_parameter_without_a_gradient_stays():
    weights, still = parameters((4, 4), (4, 4))
    weights.grad = drawn(4, 4)
    Muon([(weights, [4]), (still, [4])], 0.01, 0.1, 0.9).step()
    assert torch.equal(still, drawn(4, 4, seed=1)) and not torch.equal(weights, drawn(4, 4))


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_the_rows_of_fused_matrices_are_those_that_the_model_cuts(architecture):
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
    found = find_fused_matrices(model)
    assert {tuple(rows) for rows in found.values()} == {(24, 12, 12), (40, 40)}
    assert all(len(matrix) == sum(rows) for matrix, rows in found.items())
    blocks = 1 if architecture == "decoder" else 2
    assert len(found) == 2 * blocks + (architecture != "decoder")  # cross-attention, too
    muon = make_optimizers(model, TrainConfig(optimizer="muon", momentum=0.8))[1]
    assert muon.row_counts.items() >= found.items() and muon.defaults["momentum"] == 0.8
    plain = [p for p in muon.row_counts if p not in found]
    assert plain and all(muon.row_counts[p] == [len(p)] for p in plain)
