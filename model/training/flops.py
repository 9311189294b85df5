"""Floating-point operations of a training step, for the share of the machine's speed that it uses.

Counted are matrix products, a multiplication and an addition each, as PaLM does (Chowdhery et al.
2022, appendix B): forward once, backward twice, but for what lies below the lowest weights that
are learnt, which a gradient never reaches. Attention counts in full, not halved for causality,
and with grouped queries as often as there are query heads; what recomputation repeats does not
count. For decoders that is 6N + 12LdT a token, N the matrices' parameters.
"""

from __future__ import annotations

from model.architecture import Transformer
from model.batch import Batch
from model.config import ModelConfig
from model.training.adapt import body_learns


def training_flops(model: Transformer, batch: Batch) -> int:
    """Of a step on the batch, padding included: each stack by the tokens that it reads, the output
    layer by the rows that it computes."""
    config, rows = model.config, batch.ids.shape[0]
    read = rows * batch.ids.shape[1]
    forward = 0  # of the body
    if model.encoder is not None:
        source = batch.ids if batch.source is None else batch.source
        forward += _stack(config, rows, source.shape[1])
    if model.decoder is not None:
        forward += _stack(config, rows, batch.ids.shape[1])
    if batch.source is not None:
        forward += _cross(config, rows, batch.ids.shape[1], batch.source.shape[1])
    transform = 2 * read * config.d_model**2 if config.head_transform else 0
    computed = batch.where_predicted(batch.answers()[0]).numel()
    output = 2 * computed * config.d_model * model.head.out_features
    if body_learns(model):
        return 3 * (forward + transform + output)
    # Gradients of the weights alone for the lowest matrix that learns, nothing below it.
    return forward + (2 * transform + 3 * output if transform else 2 * output)


def _stack(config: ModelConfig, rows: int, tokens: int) -> int:
    """Blocks without cross-attention, forward."""
    d, width = config.d_model, config.kv_heads * config.head_dim
    gates = 2 if config.activation == "swiglu" else 1
    attention = d * (2 * config.heads_width + 2 * width)
    matrices = attention + (gates + 1) * d * config.hidden
    return config.n_layers * rows * (2 * tokens * matrices + _attention(config, tokens, tokens))


def _cross(config: ModelConfig, rows: int, tokens: int, source: int) -> int:
    """Cross-attention of all blocks, forward: queries of the tokens, keys and values of the
    source."""
    d, width = config.d_model, config.kv_heads * config.head_dim
    matrices = tokens * 2 * d * config.heads_width + source * 2 * d * width
    return config.n_layers * rows * (2 * matrices + _attention(config, tokens, source))


def _attention(config: ModelConfig, queries: int, keys: int) -> int:
    """Queries times keys, and weights times values, of one row."""
    return 2 * 2 * queries * keys * config.heads_width
