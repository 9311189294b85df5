"""Decoding with a cache: the same blocks, over the keys and values of what was read before.

Shapes: B sequences, T tokens, Hkv key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from model.architecture import Block, Transformer
from model.attention import Attention
from model.batch import Batch
from model.masks import Mask, MaskSpec
from model.positions import Rotation


class LayerCache:
    """Keys and values of one layer, (B, Hkv, capacity, D); a token's slot is its position."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def write(self, keys: Tensor, values: Tensor, slots: Tensor | slice) -> None:
        """Put the keys and values (B, Hkv, T, D) of new tokens at ``slots``.

        A slice puts all rows at the same place; a tensor (B,) puts one token per row.
        """
        if isinstance(slots, slice):
            self.keys[:, :, slots] = keys
            self.values[:, :, slots] = values
        else:
            rows = torch.arange(keys.shape[0], device=keys.device)
            self.keys[rows, :, slots] = keys[:, :, 0]
            self.values[rows, :, slots] = values[:, :, 0]


@dataclass
class Cache:
    """What decoding keeps between steps.

    layers: one per layer of the decoder. length: filled slots that attention looks at.
    slots: where the tokens read next go (see LayerCache.write).
    memory: the encoder's keys and values per layer, made once, for cross-attention; memory_keys
    is the padding mask of the source, (B, S).
    """

    layers: list[LayerCache]
    length: int
    slots: Tensor | slice
    memory: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    memory_keys: Tensor | None = None

    def select(self, rows: Tensor) -> None:
        """Keep the given rows, repeated or in another order as they say."""
        self.layers = [LayerCache(layer.keys[rows], layer.values[rows]) for layer in self.layers]
        self.memory = [(keys[rows], values[rows]) for keys, values in self.memory]
        if self.memory_keys is not None:
            self.memory_keys = self.memory_keys[rows]


def new_cache(model: Transformer, rows: int, capacity: int) -> Cache:
    """An empty cache for ``rows`` sequences of up to ``capacity`` tokens."""
    assert model.decoder is not None
    shape = (rows, model.config.kv_heads, capacity, model.config.head_dim)
    weight = model.embedding.weight
    kind, dtype = weight.device.type, weight.dtype
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
    how: Any = {"dtype": dtype, "device": weight.device}  # not as the weight, which may be a shard
    layers = [
        LayerCache(torch.zeros(shape, **how), torch.zeros(shape, **how))
        for _ in model.decoder.blocks
    ]
    return Cache(layers, 0, slice(0, 0))


def prompt_lengths(model: Transformer, lengths: Sequence[int] | Tensor) -> Tensor | None:
    """For ``Batch.prefix``: how many tokens of each sequence are its prompt, of a prefix LM, which
    reads them in both directions; None for every other model."""
    if model.objective != "prefix":
        return None
    return torch.as_tensor(lengths, device=model.embedding.weight.device)


def read(model: Transformer, batch: Batch, cache: Cache) -> Tensor:
    """As ``model(batch)``, (B, T, d), of tokens that go to the cache's slots and see the filled.

    A source is read where the batch has one; the cache keeps what cross-attention needs of it. Of a
    model in shards every process reads the same; a block is gathered while it is its turn.
    """
    assert model.decoder is not None
    blocks = cast(list[Block], model.decoder.blocks)
    _gather(model)  # what belongs to no block, until the next training step
    if batch.source is not None:
        states = model.encode(batch)
        cache.memory = []
        for block in blocks:
            _gather(block)
            cache.memory.append(block.cross.keys_values(states))
            _gather(block, whole=False)
        cache.memory_keys = batch.source_keys
    elif model.encoder is not None and not cache.memory:
        raise ValueError("An encoder-decoder needs a source.")
    x, rotation = model.embed(batch.ids, batch.positions)
    over_cache = partial(_attend, _mask(batch, cache), cache)
    keys = cache.memory_keys
    real = None if keys is None else keys[:, None, None]  # (B, 1, 1, S)
    for i, block in enumerate(blocks):
        _gather(block)
        attend = partial(over_cache, rotation, block.attention, cache.layers[i])
        x = block.residual(x, block.attention_norm, attend)
        if cache.memory:
            attend = partial(_attend_memory, block.cross, real, *cache.memory[i])
            x = block.residual(x, block.cross_norm, attend)
        x = block.residual(x, block.feed_forward_norm, block.feed_forward)
        _gather(block, whole=False)
    return model.transform(model.decoder.norm(x))  # type: ignore[no-any-return]


def _gather(module: nn.Module, whole: bool = True) -> None:
    """Gather the weights of a module that FSDP cuts into shards, or let them go. By itself it does
    so around ``forward``, which is not called here."""
    if hasattr(module, "unshard"):
        change: Any = module.unshard if whole else module.reshard
        change()


def _attend(
    mask: Mask,
    cache: Cache,
    rotation: Rotation | None,
    layer: Attention,
    kept: LayerCache,
    x: Tensor,
) -> Tensor:
    """Self-attention of new tokens x (B, T, d) over all that the cache holds, and themselves."""
    q, k, v = layer.project(x, rotation)
    kept.write(k, v, cache.slots)
    filled = slice(cache.length)
    return layer.attend(q, kept.keys[:, :, filled], kept.values[:, :, filled], mask)


def _attend_memory(layer: Attention, mask: Mask, keys: Tensor, values: Tensor, x: Tensor) -> Tensor:
    return layer.attend(layer.queries(x), keys, values, mask)


def _mask(batch: Batch, cache: Cache) -> Mask:
    """Where among the cached keys the queries stand, lowered."""
    tokens, length = batch.ids.shape[1], cache.length
    given = {"prefix": batch.prefix, "keys": batch.keys, "segments": batch.segments}
    spec = MaskSpec(True, query_positions=batch.positions, **given)
    if isinstance(cache.slots, slice):
        if cache.slots.start == 0:
            spec = MaskSpec(True, **given)
        elif cache.slots.stop - cache.slots.start == 1:
            spec = MaskSpec(False, **given)  # the newest of all rows alike: all is visible
    if spec.only_causal and length == tokens:
        return "causal"
    return spec.dense(tokens, length, batch.ids.device)
