"""Weights of models that transformers loads."""

from __future__ import annotations

from typing import Any


def copy_weights_to_memory(model: Any) -> Any:
    """The model, its weights copied into memory of their own.

    Tensors of a safetensors file are mapped into memory: they change where the file is written
    over, and where it is cut the process ends.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    return model
