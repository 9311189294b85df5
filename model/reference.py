"""Define attention and loss by their formulas.

``kernels.py`` and ``loss.py`` compute the same values faster. The formulas are used where they are
as fast, and in ``reference_kernels.use_reference_kernels``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hallmark.model.masks import AttentionMask


def compute_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask = None, dropout: float = 0.0
) -> Tensor:
    """Compute softmax(q k^T / sqrt(D)) v.

    Args:
        q: queries, (B, H, Tq, D).
        k: keys, (B, Hkv, Tk, D); Hkv divides H, and H / Hkv query heads share a key-value head.
        v: values, (B, Hkv, Tk, D).
        mask: which queries may attend to which keys.
        dropout: share of the weights that become 0.

    Returns:
        (B, H, Tq, D).
    """
    weights = compute_attention_weights(q, k, mask).to(v.dtype)  # (B, H, Tq, Tk)
    return F.dropout(weights, dropout) @ repeat_kv_heads(v, q)


def compute_attention_weights(q: Tensor, k: Tensor, mask: AttentionMask) -> Tensor:
    """Compute softmax(q k^T / sqrt(D)), (B, H, Tq, Tk): rows sum to 1."""
    scores = (q * q.shape[-1] ** -0.5) @ repeat_kv_heads(k, q).transpose(-2, -1)
    if mask is not None:
        # Not -inf: a query that may attend to nothing (padding) gets the mean of all values, not
        # NaN. Any score is negligible next to this number; on the CPU, adding it takes a quarter of
        # the time of filling it in.
        lowest_score = torch.finfo(scores.dtype).min
        scores = scores + (~to_bool_mask(mask, scores)).to(scores.dtype) * lowest_score
    weights: Tensor = scores.softmax(-1)
    return weights


def repeat_kv_heads(keys_or_values: Tensor, queries: Tensor) -> Tensor:
    """Repeat ``keys_or_values`` (B, Hkv, Tk, D) for each head of ``queries`` (B, H, Tq, D)."""
    repeats = queries.shape[1] // keys_or_values.shape[1]
    return keys_or_values.repeat_interleave(repeats, dim=1) if repeats > 1 else keys_or_values


def to_bool_mask(mask: AttentionMask, scores: Tensor) -> Tensor:
    """Convert a mask to bool that broadcasts to ``scores`` (B, H, Tq, Tk): True = may attend."""
    if isinstance(mask, str):
        return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if isinstance(mask, Tensor):
        return mask
    from torch.nn.attention.flex_attention import create_mask

    assert mask is not None
    batch_size, _, query_count, key_count = scores.shape
    return create_mask(
        mask.mask_mod, batch_size, 1, query_count, key_count, device=str(scores.device)
    )


def sum_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor,
    z_loss: float = 0.0,
    vocab_size: int | None = None,
) -> Tensor:
    """Compute the loss by its definition; arguments as in ``sum_linear_cross_entropy``."""
    logits = F.linear(hidden, weight, bias).float()[..., :vocab_size]
    nats = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    penalty = z_loss * logits.logsumexp(-1).square().flatten()
    return ((nats + penalty) * weights.flatten()).sum()
