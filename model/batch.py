"""A batch: what the model reads, and what it is to predict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B sequences of T tokens. All (B, T) unless said otherwise; what is None is not there.

    ids: what the decoder reads, or an encoder-only model.
    targets: what to predict at each position. weights: float, 0 where nothing is predicted.
    predicted: (N,) places among all B x T outside which weights are 0, none twice; None: all.
    segments: which document a token belongs to, where attention must not cross documents.
    token_types: which sentence of several a token is of (BERT's segments), 0 if not given.
    positions: of the tokens in their sequence, 0 ... T-1 if not given.
    prefix: (B,) lengths that the whole sequence sees in full (prefix LM).
    keys: the padding mask, True where ``ids`` is a real token; padding stands behind the text.
    source: (B, S) what the encoder of an encoder-decoder reads. source_keys, source_segments,
        source_positions: (B, S), of its tokens. It has segments where the target has: a token
        of the target sees of the source its own segment.
    """

    ids: Tensor
    _: KW_ONLY
    targets: Tensor | None = None
    weights: Tensor | None = None
    predicted_positions: Tensor | None = None
    segments: Tensor | None = None
    token_types: Tensor | None = None
    positions: Tensor | None = None
    prefix: Tensor | None = None
    attention_mask: Tensor | None = None
    source: Tensor | None = None
    source_attention_mask: Tensor | None = None
    source_segments: Tensor | None = None
    source_positions: Tensor | None = None

    def require_targets_and_weights(self) -> tuple[Tensor, Tensor]:
        """Targets and weights; ValueError where it has none."""
        if self.targets is None or self.weights is None:
            raise ValueError("A batch without targets and weights has no loss.")
        return self.targets, self.weights

    def select_predicted(self, x: Tensor) -> Tensor:
        """x (B, T, ...) at the places ``predicted``, (N, ...); where that is None x itself."""
        return (
            x
            if self.predicted_positions is None
            else x.flatten(0, 1).index_select(0, self.predicted_positions)
        )

    def with_predicted_positions(self) -> Batch:
        """The same with ``predicted``: where weights are not 0, and as many other places as make it
        some sixths of all, so that a training has few shapes. None where that is all."""
        is_unweighted = self.require_targets_and_weights()[1].flatten() == 0
        count_multiple = -(-len(is_unweighted) // 6)
        count = -(-int((~is_unweighted).sum()) // count_multiple) * count_multiple
        positions = (
            is_unweighted.argsort(stable=True)[:count] if count < len(is_unweighted) else None
        )
        return replace(self, predicted_positions=positions)

    def split_into_micro_batches(self, count: int) -> list[Batch]:
        """Equal micro-batches, in order, ``sparse``."""
        full_batch = replace(self, predicted_positions=None)
        chunks = {k: v.chunk(count) for k, v in vars(full_batch).items() if v is not None}
        return [
            Batch(**{k: v[i] for k, v in chunks.items()}).with_predicted_positions()
            for i in range(count)
        ]

    def map_tensors(self, transform: Callable[[Tensor], Tensor]) -> Batch:
        """The same of what ``change`` makes of its tensors."""
        return Batch(**{k: transform(v) for k, v in vars(self).items() if v is not None})

    def to_device(self, device: torch.device) -> Batch:
        return self.map_tensors(lambda x: x.to(device, non_blocking=True))
