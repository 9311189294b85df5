"""Count the floating-point operations of a training step, to compute how busy the machine is.

Matrix products count, a multiplication and an addition each, as in PaLM (Chowdhery et al. 2022,
appendix B): once forward and twice backward, except below the lowest trained weights, which no
gradient reaches. Attention counts in full, not halved for causality, and for each query head even
if key-value heads are shared. Recomputation does not count. For decoders this gives 6N + 12LdT per
token, where N is the number of matrix parameters.
"""

from __future__ import annotations

from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.config import ModelConfig
from hallmark.model.training.adaptation import is_body_trainable


def count_training_flops(model: Transformer, batch: Batch) -> int:
    """Count the operations of a step on the batch, padding included.

    Each stack counts by the tokens that it reads, the output layer by the rows that it computes.
    """
    config, row_count = model.config, batch.ids.shape[0]
    token_count = row_count * batch.ids.shape[1]
    forward_flops = 0  # of the stacks
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
    # The lowest trained matrix only needs the gradient of its weights; nothing below it is trained.
    if transform_flops:
        return forward_flops + 2 * transform_flops + 3 * output_flops
    return forward_flops + 2 * output_flops


def _count_stack_flops(config: ModelConfig, row_count: int, sequence_length: int) -> int:
    """Count the forward operations of the blocks, without cross-attention."""
    d, kv_width = config.d_model, config.kv_head_count * config.head_dim
    gate_count = 2 if config.activation == "swiglu" else 1
    attention_weights = d * (2 * config.query_width + 2 * kv_width)
    matrix_weights = attention_weights + (gate_count + 1) * d * config.feed_forward_width
    flops_per_row = 2 * sequence_length * matrix_weights
    flops_per_row += _count_attention_flops(config, sequence_length, sequence_length)
    return config.n_layers * row_count * flops_per_row


def _count_cross_attention_flops(
    config: ModelConfig, row_count: int, target_length: int, source_length: int
) -> int:
    """Count the forward operations of cross-attention in all blocks.

    Queries come from the target, keys and values from the source.
    """
    d, kv_width = config.d_model, config.kv_head_count * config.head_dim
    query_weights, kv_weights = d * config.query_width, d * kv_width
    projection_products = target_length * 2 * query_weights + source_length * 2 * kv_weights
    flops_per_row = 2 * projection_products
    flops_per_row += _count_attention_flops(config, target_length, source_length)
    return config.n_layers * row_count * flops_per_row


def _count_attention_flops(config: ModelConfig, query_count: int, key_count: int) -> int:
    """Count queries times keys, and weights times values, of one row."""
    return 2 * 2 * query_count * key_count * config.query_width
