"""The plain form of what runs fast: what the tests hold the fast forms against.

``with plain(model):`` is the switch. Attention then goes by its formula, the loss by a full table
of logits, products by ``F.linear``; and the weights that attention gave each key are there to be
looked at. ``write`` is what ``decoding.generate`` does, one text at a time and without a cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.masks import Mask

if TYPE_CHECKING:
    from model.architecture import Transformer
    from model.decoding.choice import Choice


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask = None, dropout: float = 0.0) -> Tensor:
    """softmax(q k^T / sqrt(D)) v, (B, H, Tq, D).

    q is (B, H, Tq, D); k and v are (B, Hkv, Tk, D), Hkv dividing H: each key-value head serves as
    many heads of queries. ``dropout`` is the share of weights that become 0.
    """
    weights = attention_weights(q, k, mask).to(v.dtype)  # (B, H, Tq, Tk)
    return F.dropout(weights, dropout) @ repeat_heads(v, q)


def attention_weights(q: Tensor, k: Tensor, mask: Mask) -> Tensor:
    """softmax(q k^T / sqrt(D)), (B, H, Tq, Tk): rows sum to 1."""
    scores = (q * q.shape[-1] ** -0.5) @ repeat_heads(k, q).transpose(-2, -1)
    if mask is not None:
        # Not -inf: a query that sees nothing (padding) gets a mean of all, never a NaN. Beside this
        # number every score is nothing; added it takes the CPU a quarter of what filling in does.
        low = torch.finfo(scores.dtype).min
        scores = scores + (~visible(mask, scores)).to(scores.dtype) * low
    return scores.softmax(-1)


def repeat_heads(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values x (B, Hkv, Tk, D), one for each of the heads of q (B, H, Tq, D)."""
    groups = q.shape[1] // x.shape[1]
    return x.repeat_interleave(groups, dim=1) if groups > 1 else x


def visible(mask: Mask, scores: Tensor) -> Tensor:
    """The mask as bool, which broadcasts to the scores (B, H, Tq, Tk): True = may attend."""
    if isinstance(mask, str):
        return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if isinstance(mask, Tensor):
        return mask
    from torch.nn.attention.flex_attention import create_mask

    assert mask is not None
    batch, _, queries, keys = scores.shape
    return create_mask(mask.mask_mod, batch, 1, queries, keys, device=str(scores.device))


def cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, weights: Tensor,
    z_loss: float = 0.0, words: int | None = None,
) -> Tensor:  # fmt: skip
    """The loss by its definition; arguments as in ``model.loss.linear_cross_entropy``."""
    logits = F.linear(hidden, weight, bias).float()[..., :words]
    nats = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    penalty = z_loss * logits.logsumexp(-1).square().flatten()
    return ((nats + penalty) * weights.flatten()).sum()


def write(
    model: Transformer,
    prompt: Sequence[int],
    choice: Choice,
    *,
    max_new_tokens: int,
    seed: int = 0,
    stop: Collection[int] = (0,),
    forbid: Collection[int] = (1,),
) -> list[int]:
    """The first text that ``generate`` writes after a prompt of a decoder: each token from the
    whole window, read anew."""
    from model.batch import Batch  # here and below: what attention itself need not know
    from model.decoding.cache import prompt_lengths
    from model.decoding.choice import draw_keys
    from model.decoding.mode import evaluated
    from model.decoding.windows import default_stride, window_start

    tokens, key, context = list(prompt), draw_keys(seed, prompt, 1), model.config.context
    device = model.embedding.weight.device
    with evaluated(model):
        for position in range(max_new_tokens):
            start = window_start(len(tokens), context, default_stride(context))
            given = prompt_lengths(model, [max(0, len(prompt) - start)])
            hidden = model(Batch(torch.tensor([tokens[start:]], device=device), prefix=given))
            logits = model.logits(hidden[:, -1]).float()  # (1, V)
            logits[:, list(forbid)] = -torch.inf
            history = torch.tensor([tokens], device=device)
            tokens += choice.choose(logits, key, position, history, list(stop)).tolist()
            if tokens[-1] in stop:
                break
    return tokens[len(prompt) :]


@contextmanager
def plain(model: Transformer) -> Iterator[dict[nn.Module, Tensor]]:
    """Within, the model computes by the plain forms, to the same values but for rounding.

    Gives the weights (B, H, Tq, Tk) of every attention as it was last called, by its module.
    """
    from model.attention import Attention
    from model.kernels import Linear

    seen: dict[nn.Module, Tensor] = {}

    def watched(layer: Attention, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        seen[layer] = attention_weights(q, k, rest[0]).detach()
        return attention(q, k, v, *rest)

    layers = [module for module in model.modules() if isinstance(module, Attention | Linear)]
    kernels = [layer.kernel for layer in layers], model.cross_entropy
    for layer in layers:
        layer.kernel = partial(watched, layer) if isinstance(layer, Attention) else F.linear
    model.cross_entropy = cross_entropy
    try:
        yield seen
    finally:
        for layer, kernel in zip(layers, kernels[0], strict=True):
            layer.kernel = kernel
        model.cross_entropy = kernels[1]
