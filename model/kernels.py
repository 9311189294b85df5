"""Attention by the kernel that is fastest for its shapes, its mask and its device."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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
        return plain.attention(q, k, v, mask, dropout)
    dense = mask if isinstance(mask, Tensor) else None
    causal = isinstance(mask, str)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=dense, dropout_p=dropout, is_causal=causal, enable_gqa=grouped
    )


@functools.cache
def _flex(device: str) -> Any:
    """A kernel only once it is compiled; on the CPU it serves to check the masks."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if device == "cuda" else flex_attention
