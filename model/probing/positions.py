"""Loss by position: the later positions of the context are trained less, and predicted worse."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from model.architecture import Transformer
from model.batch import Batch
from model.decoding.mode import asks


@asks
def loss_by_position(
    model: Transformer, batches: Iterable[Batch]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean cross-entropy at each position of the context, (context,) in nats, and the weight it is
    a mean over; NaN where nothing was predicted.

    The batches are those of any objective, with targets and weights. A position is where the
    prediction is made: ``Batch.positions``, which begin anew with each document where attention
    does, else the place in the row.
    """
    device = model.embedding.weight.device
    nats, weight = np.zeros((2, model.config.context))
    for batch in batches:
        targets, scale = batch.answers()
        losses = model.token_losses(batch.to(device)).double().cpu() * scale  # (B, T)
        positions = batch.positions
        if positions is None:
            positions = torch.arange(targets.shape[1]).expand_as(targets)
        where = positions.flatten().numpy()
        nats += np.bincount(where, losses.flatten().numpy(), len(nats))
        weight += np.bincount(where, scale.double().flatten().numpy(), len(nats))
    with np.errstate(invalid="ignore"):
        return nats / weight, weight
