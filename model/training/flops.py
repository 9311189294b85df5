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
from model.training.adaptation import is_body_trainable


def count_training_flops(model: Transformer, batch: Batch) -> int:
    """Of a step on the batch, padding included: each stack by the tokens that it reads, the output
    layer by the rows that it computes."""
    config, row_count = model.config, batch.ids.shape[0]
    token_count = row_count * batch.ids.shape[1]
    forward_flops = 0  # of the body
    if model.encoder is not None:
        source = batch.ids if batch.source is None else batch.source
        forward_flops += _count_stack_flops(config, row_count, source.shape[1])
    if model.decoder is not None:
        forward_flops += _count_stack_flops(config, row_count, batch.ids.shape[1])
    if batch.source is not None:
        forward_flops += _count_cross_attention_flops(
            config, row_count, batch.ids.shape[1], batch.source.shape[1]
        )
    transform_flops = 2 * token_count * config.d_model**2 if config.head_transform else 0
    output_rows = batch.select_predicted(batch.require_targets_and_weights()[0]).numel()
    output_flops = 2 * output_rows * config.d_model * model.head.out_features
    if is_body_trainable(model):
        return 3 * (forward_flops + transform_flops + output_flops)
    # Gradients of the weights alone for the lowest matrix that learns, nothing below it.
    return forward_flops + (
        2 * transform_flops + 3 * output_flops if transform_flops else 2 * output_flops
    )


def _count_stack_flops(config: ModelConfig, row_count: int, sequence_length: int) -> int:
    """Blocks without cross-attention, forward."""
    d, kv_width = config.d_model, config.kv_head_count * config.head_dim
    gate_count = 2 if config.activation == "swiglu" else 1
    attention_weights = d * (2 * config.query_width + 2 * kv_width)
    matrix_weights = attention_weights + (gate_count + 1) * d * config.feed_forward_width
    return (
        config.n_layers
        * row_count
        * (
            2 * sequence_length * matrix_weights
            + _count_attention_flops(config, sequence_length, sequence_length)
        )
    )


def _count_cross_attention_flops(
    config: ModelConfig, row_count: int, target_length: int, source_length: int
) -> int:
    """Cross-attention of all blocks, forward: queries of the tokens, keys and values of the
    source."""
    d, kv_width = config.d_model, config.kv_head_count * config.head_dim
    projection_products = (
        target_length * 2 * d * config.query_width + source_length * 2 * d * kv_width
    )
    return (
        config.n_layers
        * row_count
        * (2 * projection_products + _count_attention_flops(config, target_length, source_length))
    )


def _count_attention_flops(config: ModelConfig, query_count: int, key_count: int) -> int:
    """Queries times keys, and weights times values, of one row."""
    return 2 * 2 * query_count * key_count * config.query_width
