"""Multi-head attention: project states to queries, keys and values, attend, and combine the heads.

Shapes: B sequences, T tokens, d model size, H heads, Hkv key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from hallmark.model import kernels
from hallmark.model.config import ModelConfig
from hallmark.model.masks import AttentionMask
from hallmark.model.positions import RotaryCosSin, apply_rotary


class Attention(nn.Module):
    """Attend over the sequence itself, or over ``memory`` (cross-attention).

    ``kernel`` (q, k, v, mask, dropout) computes softmax(q k^T / sqrt(D)) v;
    ``reference.compute_attention`` is the formula in plain code.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.n_heads
        self.kv_heads = config.kv_head_count
        self.head_dim = config.head_dim
        self.query_width, kv_width = config.query_width, config.kv_head_count * config.head_dim
        # One matrix for queries, keys and values: one product instead of three.
        self.qkv = kernels.Linear(config.d_model, self.query_width + 2 * kv_width, bias=config.bias)
        self.out = kernels.Linear(self.query_width, config.d_model, bias=config.bias)
        self.dropout = config.attention_dropout
        self.kernel: Callable[..., Tensor] = kernels.dispatch_attention

    def forward(
        self,
        x: Tensor,
        mask: AttentionMask,
        rotation: RotaryCosSin | None = None,
        memory: Tensor | None = None,
    ) -> Tensor:
        """Attend from x (B, Tq, d) to x or ``memory`` (B, Tk, d); return (B, Tq, d)."""
        if memory is None:
            q, k, v = self.project_qkv(x, rotation)
        else:
            q, (k, v) = self.project_queries(x), self.project_keys_values(memory)
        return self.attend_and_project(q, k, v, mask)

    def project_qkv(
        self, x: Tensor, rotation: RotaryCosSin | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries (B, H, T, D) and keys and values (B, Hkv, T, D), rotated if asked."""
        q, k, v = self._split_heads(self.qkv(x), self.heads, self.kv_heads, self.kv_heads)
        if rotation is not None:
            q, k = apply_rotary(q, *rotation), apply_rotary(k, *rotation)
        return q, k, v

    def project_queries(self, x: Tensor) -> Tensor:
        """Compute only the queries, (B, H, Tq, D)."""
        (q,) = self._split_heads(
            self._project_with_weight_rows(x, slice(self.query_width)), self.heads
        )
        return q

    def project_keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys and values, (B, Hkv, Tk, D) each, from the encoder's states (B, Tk, d)."""
        projected = self._project_with_weight_rows(memory, slice(self.query_width, None))
        k, v = self._split_heads(projected, self.kv_heads, self.kv_heads)
        return k, v

    def attend_and_project(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        """Attend, concatenate the heads and apply the output projection: (B, Tq, d)."""
        dropout = self.dropout if self.training else 0.0
        head_outputs = self.kernel(q, k, v, mask, dropout)  # (B, H, Tq, D)
        return self.out(head_outputs.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _project_with_weight_rows(self, x: Tensor, weight_rows: slice) -> Tensor:
        bias = None if self.qkv.bias is None else self.qkv.bias[weight_rows]
        return self.qkv.kernel(x, self.qkv.weight[weight_rows], bias)

    def _split_heads(self, projected: Tensor, *head_counts: int) -> list[Tensor]:
        """Split ``projected`` (B, T, all heads x D) into one (B, H, T, D) for each head count."""
        heads = projected.unflatten(-1, (-1, self.head_dim))  # (B, T, all heads, D)
        return [part.transpose(1, 2) for part in heads.split(head_counts, dim=2)]
