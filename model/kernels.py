"""Attention and matrix products by the kernel that is fastest for their shapes and device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from model import plain
from model.masks import Mask

# Up to this length the plain product beats the fused kernel on the CPU in bf16, by two to three
# times at head size 32: it runs on the matrix units, the fused kernel's small blocks do not. For a
# single query, the step of a decoder, it does at every length and in fp32 too.
CPU_PLAIN_ATTENTION = 512


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask = None, dropout: float = 0.0) -> Tensor:
    """What ``plain.attention`` computes."""
    grouped = q.shape[1] != k.shape[1]
    if mask is not None and not isinstance(mask, Tensor | str):
        return _flex(q.device.type)(q, k, v, block_mask=mask, enable_gqa=grouped)
    short = q.dtype == torch.bfloat16 and k.shape[2] <= CPU_PLAIN_ATTENTION
    if q.device.type == "cpu" and (short or q.shape[2] == 1):
        # Compiled this takes 0.96 of a training step; eagerly more operations take longer.
        if isinstance(mask, str) and torch.compiler.is_compiling():
            return _by_halves(q, k, v, dropout)
        return plain.attention(q, k, v, mask, dropout)
    is_causal = isinstance(mask, str)
    dense = mask if isinstance(mask, Tensor) else None
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=dense, dropout_p=dropout, is_causal=is_causal, enable_gqa=grouped
    )


def _by_halves(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Causal attention, the first half of the queries over the first half of the keys alone: a
    quarter less to compute."""
    half = q.shape[2] // 2
    first = plain.attention(q[:, :, :half], k[:, :, :half], v[:, :, :half], "causal", dropout)
    places = torch.arange(q.shape[2], device=q.device)
    visible = places <= places[half:, None]  # (Tq - Tq // 2, Tk)
    return torch.cat([first, plain.attention(q[:, :, half:], k, v, visible, dropout)], 2)


@functools.cache
def _flex(device: str) -> Any:
    """A kernel only once it is compiled; on the CPU it serves to check the masks."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if device == "cuda" else flex_attention


# On the CPU torch multiplies fp32 by MKL. oneDNN, the library of its other products, took 0.7 to
# 0.9 of the time on an AMD EPYC with AVX-512 for most layers' outputs and their inputs' gradients;
# for the weight's MKL was mostly the faster. Below this many multiplications the way there takes
# longer.
CPU_ONEDNN_PRODUCT = 1 << 20
HAS_ONEDNN = (
    torch.backends.mkldnn.is_available()
    and "AVX512" in torch.backends.cpu.get_cpu_capability()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
)


class Linear(nn.Linear):
    """``nn.Linear``; ``kernel`` (x, weight, bias) computes its product, plainly ``F.linear``."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.kernel: Callable[..., Tensor] = linear

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """What ``F.linear`` computes: x weight^T + bias, (..., m) of x (..., n) and weight (m, n)."""
    packed = None if torch.compiler.is_compiling() else _packed.get()
    if packed and not torch.is_grad_enabled() and _in_fp32(x, weight):  # first, for steps are short
        kept = packed.get(_place(weight))
        if kept is not None:
            return _multiply(x, kept[1], bias)
    if not _by_onednn(x, weight):
        return F.linear(x, weight, bias)
    apart = torch.compiler.is_compiling() or torch.is_grad_enabled()
    result: Tensor = (_product if apart else _onednn)(x, weight, bias)
    return result


def mm(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """x weight^T, without gradient: in ``out``, or in memory of its own where oneDNN makes it."""
    return linear(x, weight) if _by_onednn(x, weight) else torch.mm(x, weight.t(), out=out)


def _in_fp32(x: Tensor, weight: Tensor) -> bool:
    return x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def _by_onednn(x: Tensor, weight: Tensor) -> bool:
    # A compiled program is one for all sizes: a choice by size would be another for each choice.
    sized = torch.compiler.is_compiling() or x.numel() * len(weight) >= CPU_ONEDNN_PRODUCT
    return HAS_ONEDNN and x.device.type == "cpu" and _in_fp32(x, weight) and x.dim() > 1 and sized


#: By where and how it lies, each weight, and as oneDNN's products read it fastest. The weight is
#: kept for its place: no other comes to lie there.
Place = tuple[int, torch.Size, tuple[int, ...]]
Packed = dict[Place, tuple[Tensor, Tensor]]
_packed: ContextVar[Packed | None] = ContextVar("packed", default=None)


@contextmanager
def packing(packed: Packed) -> Iterator[None]:
    """Within, oneDNN lays each weight out for its products once, for the number of rows of the
    first, and keeps it in ``packed``, which serves as long as no weight changes.

    It takes as much memory again as the weights, and the time of some ten products; a step of
    decoding then took 0.94 of its time with 5 million parameters, 0.95 with 124.
    """
    token = _packed.set(packed)
    try:
        yield
    finally:
        _packed.reset(token)


def _place(weight: Tensor) -> Place:
    return weight.data_ptr(), weight.shape, weight.stride()


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product as torch's compiler makes it of constant weights."""
    packed = _packed.get()
    if packed is not None and weight.is_contiguous():
        place, rows = _place(weight), x.numel() // x.shape[-1]
        if place not in packed:
            packed[place] = weight, torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        weight = packed[place][1]
    return _multiply(x, weight, bias)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default
    return product(x, weight, bias, "none", [], "")


@torch.library.custom_op("hallmark::linear", mutates_args=(), device_types="cpu")
def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``_onednn`` as an operation of our own: alone it has no gradient, and the compiler takes it
    with no weight that may change. Being one costs 30 microseconds a call."""
    return _onednn(x, weight, bias)


@_product.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], len(weight)))


@register_flop_formula(torch.ops.hallmark.linear)
def _operations(x: torch.Size, weight: torch.Size, *_: Any, **__: Any) -> int:
    """What torch's counter counts for it, by shapes."""
    return 2 * x.numel() * weight[0]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    """dL/dx = g W, dL/dW = g^T x, dL/db = the sum of g."""
    x, weight = ctx.saved_tensors
    of_x, of_weight, of_bias = ctx.needs_input_grad
    rows = g.flatten(0, -2)  # (N, m)
    return (
        _product(g, weight.t(), None) if of_x else None,
        rows.t() @ x.flatten(0, -2) if of_weight else None,
        rows.sum(0) if of_bias else None,
    )


_product.register_autograd(_gradients, setup_context=_keep)
