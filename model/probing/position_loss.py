"""Loss by position: the later positions of the context are trained less, and predicted worse."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from model.architecture import Transformer
from model.batch import Batch
from model.decoding.inference_mode import run_in_evaluation_mode


@run_in_evaluation_mode
def compute_loss_by_position(
    model: Transformer, batches: Iterable[Batch]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean cross-entropy at each position of the context, (context,) in nats, and the weight it is
    a mean over; NaN where nothing was predicted.

    The batches are those of any objective, with targets and weights. A position is where the
    prediction is made: ``Batch.positions``, which begin anew with each document where attention
    does, else the place in the row.
    """
    device = model.embedding.weight.device
    nat_sums, weight_sums = np.zeros((2, model.config.context))
    for batch in batches:
        targets, token_weights = batch.require_targets_and_weights()
        losses = (
            model.compute_token_losses(batch.to_device(device)).double().cpu() * token_weights
        )  # (B, T)
        positions = batch.positions
        if positions is None:
            positions = torch.arange(targets.shape[1]).expand_as(targets)
        flat_positions = positions.flatten().numpy()
        nat_sums += np.bincount(flat_positions, losses.flatten().numpy(), len(nat_sums))
        weight_sums += np.bincount(
            flat_positions, token_weights.double().flatten().numpy(), len(nat_sums)
        )
    with np.errstate(invalid="ignore"):
        return nat_sums / weight_sums, weight_sums
