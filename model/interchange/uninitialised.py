"""Build models without initial weights, for weights that are loaded afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig


class _SkipInitialisation(TorchFunctionMode):
    """Makes the functions of ``torch.nn.init`` leave tensors unchanged."""

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
    """Build a model without weights, for ``load_state_dict`` to fill.

    On "meta" the tensors only have shapes; elsewhere their content is arbitrary. No numbers are
    drawn, because that takes seconds for a large model, and on "meta" it would make torch import
    its compiler, which takes more than a second in each process that opens a model.
    """
    with torch.device(device), _SkipInitialisation():
        return Transformer(config)
