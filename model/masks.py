"""Who may attend to whom: one description, lowered to what the attention kernel takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Union

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

#: What attention takes: None, all see all; "causal", the lower triangle, which no one need build;
#: a bool tensor (B or 1, 1, Tq, Tk), True = may attend; or FlexAttention's blocks.
Mask = Union[Tensor, "BlockMask", Literal["causal"], None]


@dataclass(frozen=True)
class MaskSpec:
    """The positions a query may attend to; what is given is combined with *and*.

    causal: the sequence mask, keys no later than the query.
    prefix: (B,) lengths; the keys of the prefix are visible to the whole sequence in spite of
        ``causal`` (prefix LM: full attention within the prefix, causal after it).
    keys: (B, Tk) bool, the padding mask: True where the key is a real token.
    segments: (B, Tq) int, queries see the keys of their own segment only (documents in a row).
    key_segments: (B, Tk) int, those of the keys where they are not the queries' (cross-attention).
    query_positions: (B, Tq) int, where queries stand among the keys (decoding with a cache);
        default 0 ... Tq-1.
    """

    causal: bool = False
    prefix: Tensor | None = None
    keys: Tensor | None = None
    segments: Tensor | None = None
    key_segments: Tensor | None = None
    query_positions: Tensor | None = None

    @property
    def only_causal(self) -> bool:
        """Whether a kernel's own causal path says it all, so that no mask need be built."""
        rest = (self.prefix, self.keys, self.segments, self.query_positions)
        return self.causal and all(part is None for part in rest)

    def lower(self, x: Tensor, memory: Tensor, blocks: bool) -> Mask:
        """The mask of the tokens x (B, Tq, d) over ``memory`` (B, Tk, d), as is fastest on their
        device; ``blocks``: whether FlexAttention could take it."""
        batch, queries, keys = *x.shape[:2], memory.shape[1]
        if self.only_causal:
            return "causal"
        if x.is_cuda and blocks and self.is_blockwise(queries, keys):
            return self.blocks(batch, queries, keys, x.device)
        return self.dense(queries, keys, x.device)

    def is_blockwise(self, queries: int, keys: int) -> bool:
        """Whether FlexAttention's blocks save something; a dense mask has no flash kernel."""
        parts = any(part is not None for part in (self.prefix, self.keys, self.segments))
        return parts and queries % 128 == 0 and keys % 128 == 0

    def dense(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """The mask as bool (B or 1, 1, Tq, Tk), True = may attend; None where all may."""
        key = torch.arange(keys, device=device)
        mask: Tensor | None = None
        if self.causal:
            query = self.query_positions
            if query is None:
                query = torch.arange(queries, device=device).unsqueeze(0)
            mask = key <= query.unsqueeze(-1)  # (B or 1, Tq, Tk)
            if self.prefix is not None:
                mask = mask | (key < self.prefix[:, None, None])
        if self.keys is not None:
            visible = self.keys.unsqueeze(1)  # (B, 1, Tk)
            mask = visible if mask is None else mask & visible
        if self.segments is not None:
            of_keys = self.segments if self.key_segments is None else self.key_segments
            same = self.segments.unsqueeze(-1) == of_keys.unsqueeze(1)  # (B, Tq, Tk)
            mask = same if mask is None else mask & same
        return None if mask is None else mask.unsqueeze(1)

    def blocks(self, batch: int, queries: int, keys: int, device: torch.device) -> BlockMask:
        """The mask for FlexAttention (Dong et al. 2024), which skips blocks of 128 x 128 that
        nobody may attend to. Making them takes a dense mask for a moment."""
        from torch.nn.attention.flex_attention import create_block_mask

        of_keys = self.segments if self.key_segments is None else self.key_segments

        def visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
            allowed = key <= query if self.causal else key >= 0
            if self.prefix is not None:
                allowed = allowed | (key < self.prefix[b])
            if self.keys is not None:
                allowed = allowed & self.keys[b, key]
            if self.segments is not None and of_keys is not None:
                allowed = allowed & (self.segments[b, query] == of_keys[b, key])
            return allowed

        return create_block_mask(visible, batch, None, queries, keys, device=str(device))
