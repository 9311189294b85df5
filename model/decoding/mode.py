"""What every question to a trained model begins with: no dropout, no gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)
P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Within, the model is in evaluation mode and keeps no graph; afterwards each of its modules is
    in the mode that it was found in."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def asks(function: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R]:
    """A function whose first argument is the model that it asks, ``evaluated`` meanwhile."""

    @functools.wraps(function)
    def asked(model: M, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with evaluated(model):
            return function(model, *args, **kwargs)

    return asked
