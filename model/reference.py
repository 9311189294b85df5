"""Define the plain forms of the fast kernels, as a reference for tests and for inspection.

Within ``use_reference_kernels(model)`` attention follows its formula, the loss uses a full table of
logits, products use ``F.linear``, and the attention weights are available.
``generate_without_cache`` does the same as ``decoding.generation``, one text at a time and without
a cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.masks import AttentionMask

if TYPE_CHECKING:
    from model.architecture import Transformer
    from model.decoding.sampling import TokenSampler


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
    return scores.softmax(-1)


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


def generate_without_cache(
    model: Transformer,
    prompt: Sequence[int],
    sampler: TokenSampler,
    *,
    max_new_tokens: int,
    seed: int = 0,
    stop: Collection[int] = (0,),
    forbid: Collection[int] = (1,),
) -> list[int]:
    """Generate the first text that ``generate`` writes after a decoder's prompt.

    Each token is computed from the whole window again.
    """
    # Imported here, because ``kernels`` imports this module.
    from model.batch import Batch
    from model.decoding.cache import make_prefix_lengths
    from model.decoding.context_windows import compute_default_stride, compute_window_start
    from model.decoding.inference_mode import evaluation_mode
    from model.decoding.sampling import make_draw_keys

    tokens, key, context = list(prompt), make_draw_keys(seed, prompt, 1), model.config.context
    device = model.embedding.weight.device
    with evaluation_mode(model):
        for position in range(max_new_tokens):
            start = compute_window_start(len(tokens), context, compute_default_stride(context))
            prefix_lengths = make_prefix_lengths(model, [max(0, len(prompt) - start)])
            hidden = model(
                Batch(torch.tensor([tokens[start:]], device=device), prefix=prefix_lengths)
            )
            logits = model.compute_logits(hidden[:, -1]).float()  # (1, V)
            logits[:, list(forbid)] = -torch.inf
            history = torch.tensor([tokens], device=device)
            tokens += sampler.choose_tokens(logits, key, position, history, list(stop)).tolist()
            if tokens[-1] in stop:
                break
    return tokens[len(prompt) :]


@contextmanager
def use_reference_kernels(model: Transformer) -> Iterator[dict[nn.Module, Tensor]]:
    """Within the context, compute with the plain forms; values are equal apart from rounding.

    Yields:
        The weights (B, H, Tq, Tk) of the last call of each attention layer, by module.
    """
    from model.attention import Attention
    from model.kernels import Linear

    weights_by_layer: dict[nn.Module, Tensor] = {}

    def attend_and_record(
        layer: Attention, q: Tensor, k: Tensor, v: Tensor, *options: Any
    ) -> Tensor:
        weights_by_layer[layer] = compute_attention_weights(q, k, options[0]).detach()
        return compute_attention(q, k, v, *options)

    layers = [module for module in model.modules() if isinstance(module, Attention | Linear)]
    kernels = [layer.kernel for layer in layers], model.cross_entropy
    for layer in layers:
        layer.kernel = F.linear
        if isinstance(layer, Attention):
            layer.kernel = partial(attend_and_record, layer)
    model.cross_entropy = sum_cross_entropy
    try:
        yield weights_by_layer
    finally:
        for layer, kernel in zip(layers, kernels[0], strict=True):
            layer.kernel = kernel
        model.cross_entropy = kernels[1]
