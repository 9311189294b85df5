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
AttentionMask = Union[Tensor, "BlockMask", Literal["causal"], None]


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
    key_mask: Tensor | None = None
    segments: Tensor | None = None
    key_segments: Tensor | None = None
    query_positions: Tensor | None = None

    @property
    def is_only_causal(self) -> bool:
        """Whether a kernel's own causal path says it all, so that no mask need be built."""
        other_masks = (self.prefix, self.key_mask, self.segments, self.query_positions)
        return self.causal and all(mask is None for mask in other_masks)

    def to_kernel_mask(
        self, x: Tensor, memory: Tensor, allow_flex_attention: bool
    ) -> AttentionMask:
        """The mask of the tokens x (B, Tq, d) over ``memory`` (B, Tk, d), as is fastest on their
        device; ``blocks``: whether FlexAttention could take it."""
        batch_size, query_count, key_count = *x.shape[:2], memory.shape[1]
        if self.is_only_causal:
            return "causal"
        if x.is_cuda and allow_flex_attention and self.can_skip_blocks(query_count, key_count):
            return self.build_block_mask(batch_size, query_count, key_count, x.device)
        return self.build_dense_mask(query_count, key_count, x.device)

    def can_skip_blocks(self, query_count: int, key_count: int) -> bool:
        """Whether FlexAttention's blocks save something; a dense mask has no flash kernel."""
        hides_keys = any(mask is not None for mask in (self.prefix, self.key_mask, self.segments))
        return hides_keys and query_count % 128 == 0 and key_count % 128 == 0

    def build_dense_mask(
        self, query_count: int, key_count: int, device: torch.device
    ) -> Tensor | None:
        """The mask as bool (B or 1, 1, Tq, Tk), True = may attend; None where all may."""
        key_positions = torch.arange(key_count, device=device)
        mask: Tensor | None = None
        if self.causal:
            query_positions = self.query_positions
            if query_positions is None:
                query_positions = torch.arange(query_count, device=device).unsqueeze(0)
            mask = key_positions <= query_positions.unsqueeze(-1)  # (B or 1, Tq, Tk)
            if self.prefix is not None:
                mask = mask | (key_positions < self.prefix[:, None, None])
        if self.key_mask is not None:
            is_real_key = self.key_mask.unsqueeze(1)  # (B, 1, Tk)
            mask = is_real_key if mask is None else mask & is_real_key
        if self.segments is not None:
            key_segments = self.segments if self.key_segments is None else self.key_segments
            same_segment = self.segments.unsqueeze(-1) == key_segments.unsqueeze(1)  # (B, Tq, Tk)
            mask = same_segment if mask is None else mask & same_segment
        return None if mask is None else mask.unsqueeze(1)

    def build_block_mask(
        self, batch_size: int, query_count: int, key_count: int, device: torch.device
    ) -> BlockMask:
        """The mask for FlexAttention (Dong et al. 2024), which skips blocks of 128 x 128 that
        nobody may attend to. Making them takes a dense mask for a moment."""
        from torch.nn.attention.flex_attention import create_block_mask

        key_segments = self.segments if self.key_segments is None else self.key_segments

        def may_attend(batch_index: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            allowed = key <= query if self.causal else key >= 0
            if self.prefix is not None:
                allowed = allowed | (key < self.prefix[batch_index])
            if self.key_mask is not None:
                allowed = allowed & self.key_mask[batch_index, key]
            if self.segments is not None and key_segments is not None:
                allowed = allowed & (
                    self.segments[batch_index, query] == key_segments[batch_index, key]
                )
            return allowed

        return create_block_mask(
            may_attend, batch_size, None, query_count, key_count, device=str(device)
        )
