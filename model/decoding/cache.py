"""Run the decoder with a cache of the keys and values of earlier tokens.

Shapes: B sequences, T tokens, Hkv key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from hallmark.model.architecture import Block, Transformer
from hallmark.model.attention import Attention
from hallmark.model.batch import Batch
from hallmark.model.masks import AttentionMask, MaskSpec
from hallmark.model.positions import RotaryCosSin


class LayerCache:
    """Keys and values of one layer, (B, Hkv, capacity, D); a token's slot is its position."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def write_tokens(self, keys: Tensor, values: Tensor, slots: Tensor | slice) -> None:
        """Write the keys and values (B, Hkv, T, D) of new tokens at ``slots``.

        A slice writes all rows at the same slots; a tensor (B,) writes one token per row.
        """
        if isinstance(slots, slice):
            self.keys[:, :, slots] = keys
            self.values[:, :, slots] = values
        else:
            row_indices = torch.arange(keys.shape[0], device=keys.device)
            self.keys[row_indices, :, slots] = keys[:, :, 0]
            self.values[row_indices, :, slots] = values[:, :, 0]


@dataclass
class KeyValueCache:
    """Keys and values that decoding keeps between steps.

    Attributes:
        layers: cache of each decoder layer.
        filled_length: number of slots that attention looks at.
        slots: where the next tokens are written (see ``LayerCache.write_tokens``).
        source_keys_values: keys and values of the encoder's states in each layer, for
            cross-attention.
        source_attention_mask: padding mask of the source, (B, S).
    """

    layers: list[LayerCache]
    filled_length: int
    slots: Tensor | slice
    source_keys_values: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    source_attention_mask: Tensor | None = None

    def select_rows(self, row_indices: Tensor) -> None:
        """Keep the given rows in the given order; rows may repeat."""
        self.layers = [
            LayerCache(layer.keys[row_indices], layer.values[row_indices]) for layer in self.layers
        ]
        self.source_keys_values = [
            (keys[row_indices], values[row_indices]) for keys, values in self.source_keys_values
        ]
        if self.source_attention_mask is not None:
            self.source_attention_mask = self.source_attention_mask[row_indices]


def allocate_cache(model: Transformer, row_count: int, capacity: int) -> KeyValueCache:
    """Allocate an empty cache for ``row_count`` sequences of up to ``capacity`` tokens."""
    assert model.decoder is not None
    shape = (row_count, model.config.kv_head_count, capacity, model.config.head_dim)
    weight = model.embedding.weight
    device_type, dtype = weight.device.type, weight.dtype
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
    # Not like the weight, which may be a shard.
    tensor_options: Any = {"dtype": dtype, "device": weight.device}
    layers = [
        LayerCache(torch.zeros(shape, **tensor_options), torch.zeros(shape, **tensor_options))
        for _ in model.decoder.blocks
    ]
    return KeyValueCache(layers, 0, slice(0, 0))


def make_prefix_lm_lengths(
    model: Transformer, prompt_lengths: Sequence[int] | Tensor
) -> Tensor | None:
    """Return the prompt lengths for ``Batch.prefix`` if the model is a prefix LM, else None.

    A prefix LM reads its prompts in both directions.
    """
    if model.objective != "prefix":
        return None
    return torch.as_tensor(prompt_lengths, device=model.embedding.weight.device)


def compute_hidden_states_with_cache(
    model: Transformer, batch: Batch, cache: KeyValueCache
) -> Tensor:
    """Compute ``model(batch)``, (B, T, d), for tokens that are written to the cache's slots.

    The tokens attend to the filled slots. If the batch has a source, it is read, and the cache
    keeps its keys and values for cross-attention. For a sharded model every process must read the
    same batch; each block is gathered only for its own computation.

    Raises:
        ValueError: The model is an encoder-decoder, and neither batch nor cache has a source.
    """
    assert model.decoder is not None
    blocks = cast(list[Block], model.decoder.blocks)
    _gather_own_weights(model)  # weights outside the blocks, until the next training step
    if batch.source is not None:
        states = model.encode_source(batch)
        cache.source_keys_values = []
        for block in blocks:
            _gather_own_weights(block)
            cache.source_keys_values.append(block.cross.project_keys_values(states))
            _release_own_weights(block)
        cache.source_attention_mask = batch.source_attention_mask
    elif model.encoder is not None and not cache.source_keys_values:
        raise ValueError(
            "An encoder-decoder model needs a source sequence, but the batch has none."
        )
    x, rotation = model.embed_tokens(batch.ids, batch.positions)
    attend_over_cache = partial(_attend_over_cache, _build_cache_mask(batch, cache), cache)
    source_mask = cache.source_attention_mask
    if source_mask is not None:
        source_mask = source_mask[:, None, None]  # (B, 1, 1, S)
    for i, block in enumerate(blocks):
        _gather_own_weights(block)
        attend = partial(attend_over_cache, rotation, block.attention, cache.layers[i])
        x = block.add_residual(x, block.attention_norm, attend)
        if cache.source_keys_values:
            attend = partial(
                _attend_over_source, block.cross, source_mask, *cache.source_keys_values[i]
            )
            x = block.add_residual(x, block.cross_norm, attend)
        x = block.add_residual(x, block.feed_forward_norm, block.feed_forward)
        _release_own_weights(block)
    return model.transform(model.decoder.norm(x))  # type: ignore[no-any-return]


def _gather_own_weights(module: nn.Module) -> None:
    """Gather the weights of a module that FSDP shards, but not of its sharded submodules.

    FSDP itself only gathers them in ``forward``, which is not called here.
    """
    if hasattr(module, "unshard"):
        gather_weights: Any = module.unshard
        gather_weights()


def _release_own_weights(module: nn.Module) -> None:
    """Release the weights that ``_gather_own_weights`` gathered."""
    if hasattr(module, "reshard"):
        release_weights: Any = module.reshard
        release_weights()


def _attend_over_cache(
    mask: AttentionMask,
    cache: KeyValueCache,
    rotation: RotaryCosSin | None,
    layer: Attention,
    layer_cache: LayerCache,
    x: Tensor,
) -> Tensor:
    """Apply self-attention of new tokens x (B, T, d) to the filled cache, including themselves."""
    q, k, v = layer.project_qkv(x, rotation)
    layer_cache.write_tokens(k, v, cache.slots)
    filled = slice(cache.filled_length)
    return layer.attend_and_project(
        q, layer_cache.keys[:, :, filled], layer_cache.values[:, :, filled], mask
    )


def _attend_over_source(
    layer: Attention, mask: AttentionMask, keys: Tensor, values: Tensor, x: Tensor
) -> Tensor:
    return layer.attend_and_project(layer.project_queries(x), keys, values, mask)


def _build_cache_mask(batch: Batch, cache: KeyValueCache) -> AttentionMask:
    """Build the mask of the new tokens over the filled slots of the cache."""
    query_count, key_count = batch.ids.shape[1], cache.filled_length
    mask_fields = {
        "prefix": batch.prefix,
        "key_mask": batch.attention_mask,
        "segments": batch.segments,
    }
    spec = MaskSpec(True, query_positions=batch.positions, **mask_fields)
    if isinstance(cache.slots, slice):
        if cache.slots.start == 0:
            spec = MaskSpec(True, **mask_fields)
        elif cache.slots.stop - cache.slots.start == 1:
            # One new token at the same slot of each row: it attends to all filled slots.
            spec = MaskSpec(False, **mask_fields)
    if spec.is_only_causal and key_count == query_count:
        return "causal"
    return spec.build_dense_mask(query_count, key_count, batch.ids.device)
