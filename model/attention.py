"""Attention, and what decoding and a look inside keep of it.

Shapes: B sequences, T tokens, d model size, H heads, Hkv key-value heads, D head size.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig
from model.positions import rotate

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Rotation = tuple[Tensor, Tensor]
Mask = Union[Tensor, "BlockMask", None]

# Up to this length the plain product beats the fused kernel on the CPU in bf16, by two to three
# times at head size 32: it runs on the matrix units, the fused kernel's small blocks do not. For a
# single query, the step of a decoder, it does at every length and in fp32 too.
CPU_PLAIN_ATTENTION = 512


@dataclass
class Trace:
    """What a forward pass leaves for a look inside, when asked for.

    hidden: per layer (B, T, d), first the embeddings; attention: per layer (B, H, Tq, Tk), the
    weights of self-attention; cross: the same for cross-attention.
    """

    hidden: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)


class LayerCache:
    """Keys and values of one layer, (B, Hkv, capacity, D); a token's slot is its position."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def write(self, keys: Tensor, values: Tensor, slots: Tensor | slice) -> None:
        """Put the keys and values (B, Hkv, T, D) of new tokens at ``slots``.

        A slice puts all rows at the same place; a tensor (B,) puts one token per row.
        """
        if isinstance(slots, slice):
            self.keys[:, :, slots] = keys
            self.values[:, :, slots] = values
        else:
            rows = torch.arange(keys.shape[0], device=keys.device)
            self.keys[rows, :, slots] = keys[:, :, 0]
            self.values[rows, :, slots] = values[:, :, 0]


@dataclass
class Cache:
    """What decoding keeps between steps.

    layers: one per layer of the decoder. length: filled slots that attention looks at.
    slots: where the tokens of the next call go (see LayerCache.write).
    memory: the encoder's keys and values per layer, made once, for cross-attention; memory_keys
    is the padding mask of the source, (B, Tk).
    """

    layers: list[LayerCache]
    length: int
    slots: Tensor | slice
    memory: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    memory_keys: Tensor | None = None

    def select(self, rows: Tensor) -> None:
        """Keep the given rows, repeated or in another order as they say."""
        self.layers = [LayerCache(layer.keys[rows], layer.values[rows]) for layer in self.layers]
        self.memory = [(keys[rows], values[rows]) for keys, values in self.memory]
        if self.memory_keys is not None:
            self.memory_keys = self.memory_keys[rows]


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Mask, trace: list[Tensor] | None
) -> Tensor:
    """Scaled dot-product attention, softmax(q k^T / sqrt(D)) v.

    q is (B, H, Tq, D); k and v are (B, Hkv, Tk, D), Hkv dividing H. ``mask`` is bool, True = may
    attend, or FlexAttention's blocks; ``causal`` says the same as a lower triangle without
    building one.
    """
    queries, keys = q.shape[2], k.shape[2]
    if mask is not None and not isinstance(mask, Tensor):
        return _flex(q.device.type)(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    groups = q.shape[1] // k.shape[1]  # grouped-query: each key-value head serves so many queries
    short = q.dtype == torch.bfloat16 and keys <= CPU_PLAIN_ATTENTION
    plain = q.device.type == "cpu" and (short or queries == 1)
    if trace is None and not plain:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=groups > 1
        )
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    if causal:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril()
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (B, H, Tq, Tk)
    if mask is not None:
        # Not -inf: a query that sees nothing (padding) gets a mean of all, never a NaN.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1).to(v.dtype)
    if trace is not None:
        trace.append(weights.detach())
    return weights @ v


@functools.cache
def _flex(device: str) -> Any:
    """A kernel only once it is compiled; on the CPU it serves to check the masks."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if device == "cuda" else flex_attention


@dataclass(frozen=True)
class Call:
    """What the layers of a stack share while it reads one batch.

    causal, mask: for self-attention, see ``attend``; memory_mask: for cross-attention, (B, 1, 1,
    Tk). rotation: of queries and keys, where positions are rotary. slots, length: see Cache.
    """

    causal: bool
    mask: Mask = None
    memory_mask: Tensor | None = None
    rotation: Rotation | None = None
    slots: Tensor | slice | None = None
    length: int = 0
    trace: Trace | None = None


class Attention(nn.Module):
    """Multi-head attention over the sequence itself, or over ``memory`` (cross-attention)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.n_heads, config.kv_heads, config.head_dim
        width = config.kv_heads * config.head_dim
        # Queries, keys and values in one matrix: one product instead of three.
        self.qkv = nn.Linear(config.d_model, config.d_model + 2 * width, bias=config.bias)
        self.out = nn.Linear(config.d_model, config.d_model, bias=config.bias)

    def forward(
        self,
        x: Tensor,
        call: Call,
        cache: LayerCache | None = None,
        memory: Tensor | tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """x (B, Tq, d) to (B, Tq, d); memory is (B, Tk, d), or its projected keys and values."""
        trace = call.trace
        if memory is None:
            q, k, v = self._split(self.qkv(x), self.heads, self.kv_heads, self.kv_heads)
            if call.rotation is not None:
                q, k = rotate(q, *call.rotation), rotate(k, *call.rotation)
            if cache is not None:
                assert call.slots is not None
                cache.write(k, v, call.slots)
                k, v = cache.keys[:, :, : call.length], cache.values[:, :, : call.length]
            y = attend(q, k, v, call.causal, call.mask, None if trace is None else trace.attention)
        else:
            (q,) = self._split(self._rows(x, slice(x.shape[-1])), self.heads)
            k, v = memory if isinstance(memory, tuple) else self.project_memory(memory)
            y = attend(q, k, v, False, call.memory_mask, None if trace is None else trace.cross)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, H, Tq, D) to (B, Tq, d)

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, Hkv, Tk, D) of the encoder's states (B, Tk, d)."""
        y = self._rows(memory, slice(memory.shape[-1], None))
        k, v = self._split(y, self.kv_heads, self.kv_heads)
        return k, v

    def _rows(self, x: Tensor, rows: slice) -> Tensor:
        bias = None if self.qkv.bias is None else self.qkv.bias[rows]
        return F.linear(x, self.qkv.weight[rows], bias)

    def _split(self, y: Tensor, *heads: int) -> list[Tensor]:
        """y (B, T, all heads x D) to one (B, H, T, D) for each number of heads."""
        parts = y.unflatten(-1, (-1, self.head_dim)).split(heads, dim=2)  # (B, T, H, D) each
        return [part.transpose(1, 2) for part in parts]
