"""Detach model weights from the files from which transformers loaded them."""

from __future__ import annotations

from typing import Any


def copy_weights_to_memory(model: Any) -> Any:
    """Copy the weights of a model into memory of their own, and return the model.

    Tensors of a safetensors file are memory-mapped: they change if the file is overwritten, and the
    process crashes if it is truncated.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    return model
