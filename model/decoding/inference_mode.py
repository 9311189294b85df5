"""What every question to a trained model begins with: no dropout, no gradients, a precision."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, Literal, ParamSpec, TypeVar

import torch
from torch import nn

from model.config import Precision
from model.precision import choose_dtype

M = TypeVar("M", bound=nn.Module)
P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Within, the model is in evaluation mode and keeps no graph; afterwards each of its modules is
    in the mode that it was found in."""
    training_modules = [module for module in model.modules() if module.training]
    for module in training_modules:
        module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training_modules:
            module.training = True


def run_in_evaluation_mode(
    function: Callable[Concatenate[M, P], R],
) -> Callable[Concatenate[M, P], R]:
    """A function whose first argument is the model that it asks, ``evaluated`` meanwhile."""

    @functools.wraps(function)
    def call_in_evaluation_mode(model: M, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with evaluation_mode(model):
            return function(model, *args, **kwargs)

    return call_in_evaluation_mode


@contextmanager
def autocast_to_precision(
    model: nn.Module, precision: Precision = "auto"
) -> Iterator[Literal["fp32", "bf16"]]:
    """Within, questions to the model are answered in this precision; gives which it is, to be
    recorded beside the answers.

    bf16 is autocast: products of matrices and the cache of decoding in bf16, sums and softmax in
    fp32; scores then differ in the second or third digit, and texts where two words are about as
    likely. "auto" is bf16 on a GPU that multiplies bf16 in hardware, and fp32 on the CPU, whose
    answers are the same bits each time.
    """
    device = next(model.parameters()).device
    if precision == "auto" and device.type == "cpu":
        precision = "fp32"
    dtype = choose_dtype(precision, device)
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        yield "bf16" if dtype == torch.bfloat16 else "fp32"
