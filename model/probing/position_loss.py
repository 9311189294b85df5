"""Measure the loss by position: later positions are trained less, and predicted worse."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.decoding.inference_mode import run_in_evaluation_mode


class PositionLosses(NamedTuple):
    """The loss at each position of the context.

    Attributes:
        means: mean cross-entropy in nats, (context,); NaN where nothing was predicted.
        weight_sums: sum of the weights of the predicted tokens, (context,).
    """

    means: NDArray[np.float64]
    weight_sums: NDArray[np.float64]


@run_in_evaluation_mode
def compute_loss_by_position(model: Transformer, batches: Iterable[Batch]) -> PositionLosses:
    """Compute the mean cross-entropy at each position of the context.

    A position is that of the token that makes the prediction: ``Batch.positions``, which count from
    the start of each document if attention does not cross documents, else the position in the row.

    Args:
        batches: batches of any objective, with targets and weights.
    """
    device = model.embedding.weight.device
    nat_sums, weight_sums = np.zeros((2, model.config.context))
    for batch in batches:
        targets, token_weights = batch.require_targets_and_weights()
        losses = model.compute_token_losses(batch.to_device(device)).double().cpu()  # (B, T)
        losses = losses * token_weights
        positions = batch.positions
        if positions is None:
            positions = torch.arange(targets.shape[1]).expand_as(targets)
        flat_positions = positions.flatten().numpy()
        nat_sums += np.bincount(flat_positions, losses.flatten().numpy(), len(nat_sums))
        weight_sums += np.bincount(
            flat_positions, token_weights.double().flatten().numpy(), len(nat_sums)
        )
    with np.errstate(invalid="ignore"):
        return PositionLosses(nat_sums / weight_sums, weight_sums)
