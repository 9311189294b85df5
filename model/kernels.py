"""Compute attention and matrix products with the fastest kernel for their shapes and device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from hallmark.model import reference
from hallmark.model.masks import AttentionMask

# Up to this many keys, plain products beat the fused kernel on the CPU in bf16, by a factor of two
# to three at head size 32: they run on the matrix units, unlike the fused kernel's small blocks.
# For a single query (a decoding step) they are faster at every length, in fp32 too.
CPU_PLAIN_ATTENTION = 512


def dispatch_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask = None, dropout: float = 0.0
) -> Tensor:
    """Compute the same as ``reference.compute_attention``, with the fastest kernel."""
    is_grouped = q.shape[1] != k.shape[1]
    if mask is not None and not isinstance(mask, Tensor | str):
        output: Tensor = _get_flex_attention(q.device.type)(
            q, k, v, block_mask=mask, enable_gqa=is_grouped
        )
        return output
    is_short_bf16 = q.dtype == torch.bfloat16 and k.shape[2] <= CPU_PLAIN_ATTENTION
    if q.device.type == "cpu" and (is_short_bf16 or q.shape[2] == 1):
        # Compiled, halves take 0.96 of the time of a training step; eagerly they take longer.
        if isinstance(mask, str) and torch.compiler.is_compiling():
            return _attend_causally_in_halves(q, k, v, dropout)
        return reference.compute_attention(q, k, v, mask, dropout)
    is_causal = isinstance(mask, str)
    dense_mask = mask if isinstance(mask, Tensor) else None
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=dense_mask, dropout_p=dropout, is_causal=is_causal, enable_gqa=is_grouped
    )


def _attend_causally_in_halves(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Attend causally, with the first half of the queries over the first half of the keys only.

    This saves a quarter of the work.
    """
    half = q.shape[2] // 2
    first_output = reference.compute_attention(
        q[:, :, :half], k[:, :, :half], v[:, :, :half], "causal", dropout
    )
    positions = torch.arange(q.shape[2], device=q.device)
    visible = positions <= positions[half:, None]  # (Tq - Tq // 2, Tk)
    return torch.cat(
        [first_output, reference.compute_attention(q[:, :, half:], k, v, visible, dropout)], 2
    )


@functools.cache
def _get_flex_attention(device_type: str) -> Callable[..., Any]:
    """Return FlexAttention, compiled on a GPU; the uncompiled form only serves to check masks."""
    from torch.nn.attention.flex_attention import flex_attention

    if device_type == "cuda":
        return torch.compile(flex_attention)
    return flex_attention


# On the CPU torch multiplies fp32 matrices with MKL. On an AMD EPYC with AVX-512, oneDNN took 0.7
# to 0.9 of MKL's time for most layers' outputs and gradients of inputs; for gradients of weights
# MKL was mostly faster. Below this many multiplications the overhead of calling oneDNN is larger.
CPU_ONEDNN_PRODUCT = 1 << 20
HAS_ONEDNN = (
    torch.backends.mkldnn.is_available()
    and "AVX512" in torch.backends.cpu.get_cpu_capability()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
)


class Linear(nn.Linear):
    """``nn.Linear`` with a replaceable product: ``kernel`` (x, weight, bias)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kernel: Callable[..., Tensor] = apply_linear

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel(x, self.weight, self.bias)


def apply_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x weight^T + bias, like ``F.linear``: (..., m) from x (..., n) and weight (m, n)."""
    packed_weights = None if torch.compiler.is_compiling() else _active_packed_weights.get()
    # Check the packed weights first, since decoding steps are short.
    if packed_weights and not torch.is_grad_enabled() and _is_fp32_product(x, weight):
        packed_entry = packed_weights.get(_get_weight_key(weight))
        if packed_entry is not None:
            return _call_onednn_linear(x, packed_entry.packed_copy, bias)
    if not _should_use_onednn(x, weight):
        return F.linear(x, weight, bias)
    use_custom_op = torch.compiler.is_compiling() or torch.is_grad_enabled()
    multiply = _multiply_as_custom_op if use_custom_op else _multiply_packed_weight
    result: Tensor = multiply(x, weight, bias)
    return result


def multiply_transposed(x: Tensor, weight: Tensor, buffer: Tensor) -> Tensor:
    """Compute x weight^T without gradients, in ``buffer`` or, with oneDNN, in new memory."""
    if _should_use_onednn(x, weight):
        return apply_linear(x, weight)
    return torch.mm(x, weight.t(), out=buffer)


def _is_fp32_product(x: Tensor, weight: Tensor) -> bool:
    return x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def _should_use_onednn(x: Tensor, weight: Tensor) -> bool:
    # A compiled program serves all sizes: a choice by size would compile one for each outcome.
    is_large_enough = torch.compiler.is_compiling() or x.numel() * len(weight) >= CPU_ONEDNN_PRODUCT
    return (
        HAS_ONEDNN
        and x.device.type == "cpu"
        and _is_fp32_product(x, weight)
        and x.dim() > 1
        and is_large_enough
    )


#: Address, shape and strides of a weight.
WeightKey = tuple[int, torch.Size, tuple[int, ...]]


class PackedWeight(NamedTuple):
    """A weight and its copy for oneDNN.

    Attributes:
        weight: the original, which is kept so that its address is not reused.
        packed_copy: the copy in oneDNN's layout.
    """

    weight: Tensor
    packed_copy: Tensor


PackedWeights = dict[WeightKey, PackedWeight]
_active_packed_weights: ContextVar[PackedWeights | None] = ContextVar("packed", default=None)


@contextmanager
def reuse_packed_weights(packed_weights: PackedWeights) -> Iterator[None]:
    """Within the context, let oneDNN pack each weight once and reuse it from ``packed_weights``.

    The packed copies are valid as long as no weight changes. They are laid out for the number of
    rows of the first product. They take as much memory as the weights, and packing takes as long as
    about ten products; a decoding step then took 0.94 of its time with 5 million parameters, 0.95
    with 124 million.
    """
    reset_token = _active_packed_weights.set(packed_weights)
    try:
        yield
    finally:
        _active_packed_weights.reset(reset_token)


def _get_weight_key(weight: Tensor) -> WeightKey:
    return weight.data_ptr(), weight.shape, weight.stride()


def _multiply_packed_weight(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply as torch's compiler does with constant weights."""
    packed_weights = _active_packed_weights.get()
    if packed_weights is not None and weight.is_contiguous():
        key, row_count = _get_weight_key(weight), x.numel() // x.shape[-1]
        if key not in packed_weights:
            packed_copy = torch.ops.mkldnn._reorder_linear_weight(weight, row_count)
            packed_weights[key] = PackedWeight(weight, packed_copy)
        weight = packed_weights[key].packed_copy
    return _call_onednn_linear(x, weight, bias)


def _call_onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    onednn_linear: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default
    return onednn_linear(x, weight, bias, "none", [], "")


@torch.library.custom_op("hallmark::linear", mutates_args=(), device_types="cpu")
def _multiply_as_custom_op(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Wrap the oneDNN product as a custom operation, which has a gradient and can be compiled.

    The product alone has no gradient, and the compiler rejects it for weights that may change. The
    custom operation costs 30 microseconds a call.
    """
    return _multiply_packed_weight(x, weight, bias)


@_multiply_as_custom_op.register_fake
def _allocate_linear_output(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], len(weight)))


@register_flop_formula(torch.ops.hallmark.linear)
def _count_linear_flops(x_shape: torch.Size, weight_shape: torch.Size, *_: Any, **__: Any) -> int:
    """Count the operations for torch's FLOP counter."""
    return 2 * x_shape.numel() * weight_shape[0]


def _save_inputs_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _compute_linear_gradients(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    """Compute dL/dx = g W, dL/dW = g^T x, dL/db = the sum of g over rows."""
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad
    grad_rows = grad_output.flatten(0, -2)  # (N, m)
    return (
        _multiply_as_custom_op(grad_output, weight.t(), None) if needs_x else None,
        grad_rows.t() @ x.flatten(0, -2) if needs_weight else None,
        grad_rows.sum(0) if needs_bias else None,
    )


_multiply_as_custom_op.register_autograd(
    _compute_linear_gradients, setup_context=_save_inputs_for_backward
)
