"""Run a trained model for inference: without dropout and gradients, in a chosen precision."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, Literal, ParamSpec, TypeVar

import torch
from torch import nn

from hallmark.model.config import Precision
from hallmark.model.precision import choose_dtype

M = TypeVar("M", bound=nn.Module)
P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Within the context, the model is in evaluation mode and records no graph.

    Afterwards each module returns to its previous mode.
    """
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
    """Decorate a function to run in ``evaluation_mode`` of the model, its first argument."""

    @functools.wraps(function)
    def call_in_evaluation_mode(model: M, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with evaluation_mode(model):
            return function(model, *args, **kwargs)

    return call_in_evaluation_mode


@contextmanager
def autocast_to_precision(
    model: nn.Module, precision: Precision = "auto"
) -> Iterator[Literal["fp32", "bf16"]]:
    """Within the context, run the model in a precision, and yield its name for the record.

    bf16 is autocast: matrix products and the decoding cache use bf16, sums and softmax fp32. Scores
    then differ in the second or third digit, and texts where two tokens are about equally probable.
    "auto" is bf16 on a GPU with bf16 matrix units, and fp32 on the CPU, which then gives the same
    bits each time.
    """
    device = next(model.parameters()).device
    if precision == "auto" and device.type == "cpu":
        precision = "fp32"
    dtype = choose_dtype(precision, device)
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        yield "bf16" if dtype == torch.bfloat16 else "fp32"
