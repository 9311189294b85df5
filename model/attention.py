"""Multi-head attention: queries, keys and values of the states, and what is made of them.

Shapes: B sequences, T tokens, d model size, H heads, Hkv key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from model import kernels
from model.config import ModelConfig
from model.masks import Mask
from model.positions import Rotation, rotate


class Attention(nn.Module):
    """Attention over the sequence itself, or over ``memory`` (cross-attention).

    ``kernel`` (q, k, v, mask, dropout) computes softmax(q k^T / sqrt(D)) v; in six lines:
    ``plain.attention``.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.n_heads, config.kv_heads, config.head_dim
        self.width, width = config.heads_width, config.kv_heads * config.head_dim
        # Queries, keys and values in one matrix: one product instead of three.
        self.qkv = kernels.Linear(config.d_model, self.width + 2 * width, bias=config.bias)
        self.out = kernels.Linear(self.width, config.d_model, bias=config.bias)
        self.dropout = config.attention_dropout
        self.kernel: Callable[..., Tensor] = kernels.attention

    def forward(
        self, x: Tensor, mask: Mask, rotation: Rotation | None = None, memory: Tensor | None = None
    ) -> Tensor:
        """x (B, Tq, d) to (B, Tq, d); memory is (B, Tk, d)."""
        if memory is None:
            q, k, v = self.project(x, rotation)
        else:
            q, (k, v) = self.queries(x), self.keys_values(memory)
        return self.attend(q, k, v, mask)

    def project(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D), keys and values (B, Hkv, T, D) of one sequence; where positions
        are rotary, queries and keys are turned by them."""
        q, k, v = self._split(self.qkv(x), self.heads, self.kv_heads, self.kv_heads)
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        return q, k, v

    def queries(self, x: Tensor) -> Tensor:
        """The queries alone, (B, H, Tq, D)."""
        (q,) = self._split(self._rows(x, slice(self.width)), self.heads)
        return q

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values alone, (B, Hkv, Tk, D), of the encoder's states (B, Tk, d)."""
        y = self._rows(memory, slice(self.width, None))
        k, v = self._split(y, self.kv_heads, self.kv_heads)
        return k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """The heads' outputs, concatenated and combined: (B, Tq, d)."""
        dropout = self.dropout if self.training else 0.0
        y = self.kernel(q, k, v, mask, dropout)  # (B, H, Tq, D)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _rows(self, x: Tensor, rows: slice) -> Tensor:
        bias = None if self.qkv.bias is None else self.qkv.bias[rows]
        return self.qkv.kernel(x, self.qkv.weight[rows], bias)

    def _split(self, y: Tensor, *heads: int) -> list[Tensor]:
        """y (B, T, all heads x D) to one (B, H, T, D) for each number of heads."""
        parts = y.unflatten(-1, (-1, self.head_dim)).split(heads, dim=2)  # (B, T, H, D) each
        return [part.transpose(1, 2) for part in parts]
