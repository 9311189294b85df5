"""Define a batch: the tensors that a model reads, and the tokens that it predicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B sequences of T tokens. Tensors are (B, T) unless stated otherwise; None means absent.

    Attributes:
        ids: input of the decoder, or of an encoder-only model.
        targets: the token to predict at each position.
        weights: float weight of each target; 0 where nothing is predicted.
        predicted_positions: (N,) distinct indices into the B x T positions; all other positions
            have weight 0. None means all positions.
        segments: document number of each token, where attention must not cross documents.
        token_types: sentence number of each token (BERT's segments); None means 0.
        positions: position of each token in its sequence; None means 0 ... T-1.
        prefix: (B,) lengths of the prefixes that the whole sequence can attend to (prefix LM).
        attention_mask: padding mask, True where ``ids`` is a real token; padding follows the text.
        source: (B, S) input of the encoder of an encoder-decoder.
        source_attention_mask: (B, S) padding mask of ``source``.
        source_segments: (B, S), present if ``segments`` is: a target token attends to the source
            tokens of its own segment.
        source_positions: (B, S) position of each source token.
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
        """Return targets and weights.

        Raises:
            ValueError: The batch has no targets or no weights.
        """
        if self.targets is None or self.weights is None:
            raise ValueError(
                "The loss of this batch cannot be computed because the batch has no targets or "
                "target weights."
            )
        return self.targets, self.weights

    def select_predicted(self, x: Tensor) -> Tensor:
        """Select x (B, T, ...) at ``predicted_positions``, (N, ...); if that is None, return x."""
        if self.predicted_positions is None:
            return x
        return x.flatten(0, 1).index_select(0, self.predicted_positions)

    def with_predicted_positions(self) -> Batch:
        """Return the batch with ``predicted_positions`` set to the positions of non-zero weight.

        Further positions pad their number to a multiple of one sixth of all, so that a training
        sees few shapes. If that would be all positions, ``predicted_positions`` is None.
        """
        is_unweighted = self.require_targets_and_weights()[1].flatten() == 0
        count_multiple = -(-len(is_unweighted) // 6)
        count = -(-int((~is_unweighted).sum()) // count_multiple) * count_multiple
        positions = (
            is_unweighted.argsort(stable=True)[:count] if count < len(is_unweighted) else None
        )
        return replace(self, predicted_positions=positions)

    def split_into_micro_batches(self, count: int) -> list[Batch]:
        """Split into ``count`` equal micro-batches, in order, with ``predicted_positions`` set."""
        full_batch = replace(self, predicted_positions=None)
        chunks = {k: v.chunk(count) for k, v in vars(full_batch).items() if v is not None}
        return [
            Batch(**{k: v[i] for k, v in chunks.items()}).with_predicted_positions()
            for i in range(count)
        ]

    def map_tensors(self, transform: Callable[[Tensor], Tensor]) -> Batch:
        """Return a batch with ``transform`` applied to each tensor."""
        return Batch(**{k: transform(v) for k, v in vars(self).items() if v is not None})

    def to_device(self, device: torch.device) -> Batch:
        return self.map_tensors(lambda x: x.to(device, non_blocking=True))
