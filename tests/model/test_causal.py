"""Causal attention in C and its gradient, beside the formula in double precision."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from model import causal, kernels, objectives, plain
from model.architecture import Transformer
from model.config import ModelConfig

needs_kernel = pytest.mark.skipif(
    not causal.FITS or causal._made(32) is None, reason="needs AVX-512 and a C compiler"
)


def gradients(attend, tensors, g):
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    y = attend(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, g)]


def drawn(rows, heads, length, size, scale=1.0):
    """q, k and v as they are cut from one product, and the gradient of what is made of them."""
    torch.manual_seed(length + size)
    together = torch.randn(rows, length, 3 * heads * size) * scale
    parts = together.unflatten(-1, (3, heads, size)).unbind(2)
    return [x.transpose(1, 2) for x in parts], torch.randn(rows, heads, length, size)


def formula(q, k, v):
    return plain.attention(q, k, v, "causal")


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("rows", "heads", "length", "size"),
    [(2, 3, 64, 32), (1, 2, 128, 16), (2, 1, 256, 64), (1, 1, 192, 128), (3, 2, 320, 32)],
)
def test_it_computes_the_formula_and_its_gradient(rows, heads, length, size, threads):
    tensors, g = drawn(rows, heads, length, size)
    expected = gradients(formula, [x.double() for x in tensors], g.double())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = gradients(causal.attention, tensors, g)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=2e-5)


@needs_kernel
def test_however_they_lie_they_are_what_they_are():
    tensors, g = drawn(2, 4, 128, 32)
    expected = gradients(causal.attention, tensors, g)
    others = [
        [x.contiguous() for x in tensors],
        [x.transpose(0, 3).contiguous().transpose(0, 3) for x in tensors],
        [x.transpose(2, 3).contiguous().transpose(2, 3) for x in tensors],
    ]
    for made in others:

        def attend(*leaves, made=made):
            strided = [torch.empty_strided(x.shape, x.stride()) for x in made]
            return causal.attention(*(s.copy_(x) for s, x in zip(strided, leaves, strict=True)))

        for one, other in zip(gradients(attend, tensors, g), expected, strict=True):
            assert torch.equal(one, other)
    turned = g.transpose(2, 3).contiguous().transpose(2, 3)
    for one, other in zip(gradients(causal.attention, tensors, turned), expected, strict=True):
        assert torch.equal(one, other)


@needs_kernel
@pytest.mark.parametrize("scale", [10.0, 100.0])
def test_scores_far_apart_weigh_as_they_should(scale):
    """At 100 most queries give all their weight to one key."""
    tensors, g = drawn(1, 2, 128, 32, scale)
    expected = gradients(formula, [x.double() for x in tensors], g.double())
    for one, other in zip(gradients(causal.attention, tensors, g), expected, strict=True):
        near = 1e-3 * other.abs().max().item()
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=near)


@needs_kernel
def test_what_is_no_number_stays_in_its_head_and_row():
    (q, k, v), g = drawn(2, 2, 192, 32)
    expected = gradients(causal.attention, (q, k, v), g)
    k = k.clone()
    k[0, 1, 100, 3] = torch.nan
    found = gradients(causal.attention, (q, k, v), g)
    assert found[0][0, 1, 100:].isnan().all()
    for one, other in zip(found, expected, strict=True):
        one[0, 1] = other[0, 1]
        assert torch.equal(one, other)


@needs_kernel
def test_a_gradient_of_its_gradient_is_refused_not_taken_for_nothing():
    (q, k, v), g = drawn(1, 1, 64, 16)
    leaf = q.clone().requires_grad_()
    y = causal.attention(leaf, k, v)
    (first,) = torch.autograd.grad(y, leaf, g.requires_grad_(), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@needs_kernel
def test_a_training_takes_it_and_what_it_is_not_for_goes_by_torchs(monkeypatch):
    asked = []
    made = causal._Causal.apply
    monkeypatch.setattr(causal._Causal, "apply", lambda *x: asked.append(len(x)) or made(*x))
    (q, k, v), _ = drawn(1, 2, 128, 32)
    leaf = q.clone().requires_grad_()
    others = [
        (q, k, v),  # no gradient
        (leaf[:, :, :100], k[:, :, :100], v[:, :, :100]),
        (leaf.double(), k.double(), v.double()),
        (leaf[..., :24], k[..., :24], v[..., :24]),
        (leaf, k[:, :1], v[:, :1]),
        (leaf, k, v[..., :16]),
    ]
    for given in others:
        expected = formula(*given)
        torch.testing.assert_close(kernels.attention(*given, "causal"), expected)
    kernels.attention(leaf, k, v)
    kernels.attention(leaf, k, v, "causal", dropout=0.5)
    with torch.no_grad():
        kernels.attention(leaf, k, v, "causal")
    assert not asked
    torch.testing.assert_close(kernels.attention(leaf, k, v, "causal"), formula(leaf, k, v))
    assert asked == [3]


@needs_kernel
def test_what_has_no_memory_or_another_kind_goes_by_torchs():
    with FakeTensorMode():
        fake = [torch.randn(1, 1, 64, 32, requires_grad=True) for _ in range(3)]
        assert kernels.attention(*fake, "causal").shape == (1, 1, 64, 32)
    meta = [torch.randn(1, 1, 64, 32, device="meta", requires_grad=True) for _ in range(3)]
    assert causal.attention(*meta) is None
    leaves = [torch.randn(1, 1, 64, 32, requires_grad=True) for _ in range(3)]
    assert causal.attention(leaves[0], *meta[1:]) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert kernels.attention(*leaves, "causal").dtype == torch.bfloat16
    long = [torch.randn(1, 1, causal.LONGEST + 64, 16, requires_grad=True) for _ in range(3)]
    assert causal.attention(*long) is None


@pytest.mark.parametrize("compiler", ['gcc "', "no-such-compiler"])
def test_without_a_compiler_torchs_kernel_does_it(monkeypatch, compiler):
    causal._made.cache_clear()
    monkeypatch.setenv("CC", compiler)
    (q, k, v), _ = drawn(1, 1, 64, 32)
    leaf = q.clone().requires_grad_()
    assert causal.attention(leaf, k, v) is None
    torch.testing.assert_close(kernels.attention(leaf, k, v, "causal"), formula(leaf, k, v))
    causal._made.cache_clear()


@needs_kernel
@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_a_model_learns_the_same_with_it_and_without(monkeypatch, positions):
    config = ModelConfig(vocab_size=50, context=64, d_model=64, n_layers=2, n_heads=2,
                         positions=positions)  # fmt: skip
    found, made, taken = [], causal.attention, []
    for kernel in (lambda *x: taken.append(made(*x)) or taken[-1], lambda *x: None):
        monkeypatch.setattr(causal, "attention", kernel)
        torch.manual_seed(0)
        model = Transformer(config)
        ids = torch.randint(50, (2, 64))
        model.loss(objectives.causal(ids.numpy())).backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    assert len(taken) == config.n_layers and not any(y is None for y in taken)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
