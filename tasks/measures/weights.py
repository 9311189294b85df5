"""Detach model weights from the files from which transformers loaded them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def detach_weights_from_files(model: nn.Module) -> None:
    """Replace the weights of a model by copies in memory of their own.

    Tensors of a safetensors file are memory-mapped: they change if the file is overwritten, and the
    process crashes if it is truncated.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
