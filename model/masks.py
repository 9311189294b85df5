"""Describe which tokens may attend to which, and build the mask that the attention kernel takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Union

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

#: None: every query attends to every key; "causal": the lower triangle, built by the kernel itself;
#: a bool tensor (B or 1, 1, Tq, Tk), True = may attend; or FlexAttention's blocks.
AttentionMask = Union[Tensor, "BlockMask", Literal["causal"], None]


@dataclass(frozen=True)
class MaskSpec:
    """The positions that a query may attend to; all given conditions must hold.

    Attributes:
        causal: a query attends only to keys that are not later (sequence mask).
        prefix: (B,) prefix lengths; the whole sequence attends to the prefix in spite of ``causal``
            (prefix LM: full attention within the prefix, causal after it).
        key_mask: (B, Tk) bool padding mask, True where the key is a real token.
        segments: (B, Tq) int; a query attends only to keys of its own segment (documents in a row).
        key_segments: (B, Tk) int segments of the keys, if they differ from the queries'
            (cross-attention).
        query_positions: (B, Tq) int positions of the queries among the keys (decoding with a
            cache); default 0 ... Tq-1.
    """

    causal: bool = False
    prefix: Tensor | None = None
    key_mask: Tensor | None = None
    segments: Tensor | None = None
    key_segments: Tensor | None = None
    query_positions: Tensor | None = None

    @property
    def is_only_causal(self) -> bool:
        """Whether the kernel's own causal path is enough, so that no mask must be built."""
        other_masks = (self.prefix, self.key_mask, self.segments, self.query_positions)
        return self.causal and all(mask is None for mask in other_masks)

    def to_kernel_mask(
        self, x: Tensor, memory: Tensor, allow_flex_attention: bool
    ) -> AttentionMask:
        """Build the form of the mask that is fastest on the device.

        Args:
            x: hidden states of the queries, (B, Tq, d).
            memory: hidden states of the keys, (B, Tk, d).
            allow_flex_attention: whether FlexAttention supports the layer.
        """
        batch_size, query_count, key_count = *x.shape[:2], memory.shape[1]
        if self.is_only_causal:
            return "causal"
        if (
            x.is_cuda
            and allow_flex_attention
            and self.is_block_mask_worthwhile(query_count, key_count)
        ):
            return self.build_block_mask(batch_size, query_count, key_count, x.device)
        return self.build_dense_mask(query_count, key_count, x.device)

    def is_block_mask_worthwhile(self, query_count: int, key_count: int) -> bool:
        """Whether FlexAttention's blocks save work; a dense mask has no flash kernel."""
        hides_keys = any(mask is not None for mask in (self.prefix, self.key_mask, self.segments))
        return hides_keys and query_count % 128 == 0 and key_count % 128 == 0

    def build_dense_mask(
        self, query_count: int, key_count: int, device: torch.device
    ) -> Tensor | None:
        """Build a bool mask (B or 1, 1, Tq, Tk), True = may attend; None if nothing is masked."""
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
        """Build the mask for FlexAttention (Dong et al. 2024), which skips masked 128 x 128 blocks.

        Building it temporarily takes the memory of a dense mask.
        """
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
