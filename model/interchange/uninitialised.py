"""Models whose weights are still to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from model.architecture import Transformer
from model.config import ModelConfig


class _SkipInitialisation(TorchFunctionMode):
    """What sets the first weights of a layer leaves them as they are."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def make_uninitialised_model(
    config: ModelConfig, device: str | torch.device = "meta"
) -> Transformer:
    """A model without weights: on "meta" it has their shapes alone, elsewhere they are whatever
    stood in memory, for ``load_state_dict`` to write over.

    No numbers are drawn: that takes seconds of a large model, and on "meta" torch would import its
    compiler for it, more than a second in each process that opens a model.
    """
    with torch.device(device), _SkipInitialisation():
        return Transformer(config)
