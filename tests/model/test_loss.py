"""The chunked loss against the plain formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hallmark.model import loss as loss_module
from hallmark.model.loss import sum_linear_cross_entropy


def make_inputs(bias: bool):
    torch.manual_seed(0)
    hidden = torch.randn(3, 7, 16, requires_grad=True)
    weight = torch.randn(50, 16, requires_grad=True)
    offset = torch.randn(50, requires_grad=True) if bias else None
    targets = torch.randint(0, 50, (3, 7))
    weights = torch.rand(3, 7) * (torch.rand(3, 7) > 0.3)
    return hidden, weight, offset, targets, weights


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("z_loss", [0.0, 0.3])
@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_loss_and_gradients_equal_the_formula_for_any_chunk_size(monkeypatch, rows, z_loss, bias):
    monkeypatch.setitem(loss_module.CHUNK_BYTES, "cpu", rows * 4 * 50)
    hidden, weight, offset, targets, weights = make_inputs(bias)
    inputs = [x for x in (hidden, weight, offset) if x is not None]
    logits = F.linear(hidden, weight, offset)
    plain = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(3, 7)
    plain = ((plain + z_loss * logits.logsumexp(-1).square()) * weights).sum() / 5
    expected = torch.autograd.grad(plain, inputs)
    ours = sum_linear_cross_entropy(hidden, weight, offset, targets, weights, z_loss) / 5
    torch.testing.assert_close(ours, plain)
    for got, want in zip(torch.autograd.grad(ours, inputs), expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_bf16_stays_close_to_fp32():
    hidden, weight, _, targets, weights = make_inputs(False)
    exact = sum_linear_cross_entropy(hidden, weight, None, targets, weights)
    with torch.autocast("cpu", torch.bfloat16):
        low = sum_linear_cross_entropy(hidden, weight, None, targets, weights)
    assert low.dtype == torch.float32
    assert abs(low.item() / exact.item() - 1) < 0.01
    a, b = torch.autograd.grad(exact, hidden)[0], torch.autograd.grad(low, hidden)[0]
    assert (a - b).norm() / a.norm() < 0.02


def test_no_graph_is_kept_without_gradients():
    hidden, weight, _, targets, weights = make_inputs(False)
    with torch.no_grad():
        assert not sum_linear_cross_entropy(hidden, weight, None, targets, weights).requires_grad


def test_the_bias_can_learn_alone():
    hidden, weight, offset, targets, weights = make_inputs(True)
    fixed = hidden.detach(), weight.detach()
    (got,) = torch.autograd.grad(sum_linear_cross_entropy(*fixed, offset, targets, weights), offset)
    full_loss = sum_linear_cross_entropy(hidden, weight, offset, targets, weights)
    torch.testing.assert_close(got, torch.autograd.grad(full_loss, offset)[0])
