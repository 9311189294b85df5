"""Multi-head attention: queries, keys and values of the states, and what is made of them.

Shapes: B sequences, T tokens, d model size, H heads, Hkv key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from model import kernels
from model.config import ModelConfig
from model.masks import AttentionMask
from model.positions import RotaryCosSin, apply_rotary


class Attention(nn.Module):
    """Attention over the sequence itself, or over ``memory`` (cross-attention).

    ``kernel`` (q, k, v, mask, dropout) computes softmax(q k^T / sqrt(D)) v; in six lines:
    ``plain.attention``.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.n_heads,
            config.kv_head_count,
            config.head_dim,
        )
        self.query_width, kv_width = config.query_width, config.kv_head_count * config.head_dim
        # Queries, keys and values in one matrix: one product instead of three.
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
        """x (B, Tq, d) to (B, Tq, d); memory is (B, Tk, d)."""
        if memory is None:
            q, k, v = self.project_qkv(x, rotation)
        else:
            q, (k, v) = self.project_queries(x), self.project_keys_values(memory)
        return self.attend_and_project(q, k, v, mask)

    def project_qkv(
        self, x: Tensor, rotation: RotaryCosSin | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D), keys and values (B, Hkv, T, D) of one sequence; where positions
        are rotary, queries and keys are turned by them."""
        q, k, v = self._split_heads(self.qkv(x), self.heads, self.kv_heads, self.kv_heads)
        if rotation is not None:
            q, k = apply_rotary(q, *rotation), apply_rotary(k, *rotation)
        return q, k, v

    def project_queries(self, x: Tensor) -> Tensor:
        """The queries alone, (B, H, Tq, D)."""
        (q,) = self._split_heads(self._project_with_rows(x, slice(self.query_width)), self.heads)
        return q

    def project_keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values alone, (B, Hkv, Tk, D), of the encoder's states (B, Tk, d)."""
        projected = self._project_with_rows(memory, slice(self.query_width, None))
        k, v = self._split_heads(projected, self.kv_heads, self.kv_heads)
        return k, v

    def attend_and_project(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        """The heads' outputs, concatenated and combined: (B, Tq, d)."""
        dropout = self.dropout if self.training else 0.0
        head_outputs = self.kernel(q, k, v, mask, dropout)  # (B, H, Tq, D)
        return self.out(head_outputs.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _project_with_rows(self, x: Tensor, weight_rows: slice) -> Tensor:
        bias = None if self.qkv.bias is None else self.qkv.bias[weight_rows]
        return self.qkv.kernel(x, self.qkv.weight[weight_rows], bias)

    def _split_heads(self, projected: Tensor, *head_counts: int) -> list[Tensor]:
        """y (B, T, all heads x D) to one (B, H, T, D) for each number of heads."""
        parts = projected.unflatten(-1, (-1, self.head_dim)).split(
            head_counts, dim=2
        )  # (B, T, H, D) each
        return [part.transpose(1, 2) for part in parts]
