"""Let a model compute by the formulas of ``reference.py`` instead of the fast kernels.

Tests compare the two; ``decoding.activations`` reads the attention weights, which the fast kernels
never hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from hallmark.model import reference
from hallmark.model.architecture import Transformer
from hallmark.model.attention import Attention
from hallmark.model.kernels import Linear

#: By attention layer: the weights (B, H, Tq, Tk) of its last call.
AttentionWeightsByLayer = dict[nn.Module, Tensor]


@contextmanager
def use_reference_kernels(model: Transformer) -> Iterator[AttentionWeightsByLayer]:
    """Within the context, compute with the plain forms; values are equal up to rounding error.

    Yields:
        The weights (B, H, Tq, Tk) of the last call of each attention layer, by module.
    """
    weights_by_layer: AttentionWeightsByLayer = {}

    def attend_and_record(
        layer: Attention, q: Tensor, k: Tensor, v: Tensor, *options: Any
    ) -> Tensor:
        weights_by_layer[layer] = reference.compute_attention_weights(q, k, options[0]).detach()
        return reference.compute_attention(q, k, v, *options)

    layers = [module for module in model.modules() if isinstance(module, Attention | Linear)]
    kernels = [layer.kernel for layer in layers], model.cross_entropy
    for layer in layers:
        layer.kernel = F.linear
        if isinstance(layer, Attention):
            layer.kernel = partial(attend_and_record, layer)
    model.cross_entropy = reference.sum_cross_entropy
    try:
        yield weights_by_layer
    finally:
        for layer, kernel in zip(layers, kernels[0], strict=True):
            layer.kernel = kernel
        model.cross_entropy = kernels[1]
