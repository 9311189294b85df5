"""What the configs of all stages have in common: their base, and the kinds of values they share."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from hallmark.tasks.contract.errors import UsageError


class StageConfig(BaseModel):
    """Base of every config: frozen, typed, unknown keys refused, defaults checked too."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class EmptyConfig(StageConfig):
    """For stages that have nothing to set."""


def _validate_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name):
        raise ValueError("must be auto (the GPU if there is one), cpu, cuda or cuda:1")
    return name


def _validate_plain_name(name: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", name) or len(name) > 200:
        raise ValueError(
            "must be at most 200 letters, digits, '_', '-' and '.', in parts that '/' separates "
            "and that begin with a letter, a digit or '_'"
        )
    return name


def expand_home(path: str) -> Path:
    """With the home folder in place of a ~; that of nobody stays, as a name of no file."""
    return Path(os.path.expanduser(path))


def resolve_torch_device(device: DeviceName) -> str:
    """The device of that name as torch takes it; UsageError if this machine lacks it."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    device_type, _, gpu_index = device.partition(":")
    if device_type == "cuda" and int(gpu_index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"device {device}: this machine has {torch.cuda.device_count()} GPUs that torch can "
            f"use; set device to auto or cpu"
        )
    return device


#: What every generator takes, and what fits an int64 column.
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]

DeviceName = Annotated[str, AfterValidator(_validate_device)]

#: A name that may stand in a path, a table and a page as it is.
PathSafeName = Annotated[str, AfterValidator(_validate_plain_name)]
