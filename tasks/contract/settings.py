"""Define the base class of all stage configs, and the types of settings that they share."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from hallmark.tasks.contract.errors import UsageError


class StageConfig(BaseModel):
    """Base of every config: frozen, without unknown keys, and with validated defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class EmptyConfig(StageConfig):
    """Config of stages without settings."""


def _validate_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name):
        raise ValueError(
            "must be auto (the GPU if there is one), cpu, cuda, or cuda:N, such as cuda:1"
        )
    return name


def _validate_plain_name(name: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", name) or len(name) > 200:
        raise ValueError(
            "must have at most 200 characters and contain only letters, digits, '_', '-' and '.'; "
            "parts can be separated by '/', and each part must begin with a letter, a digit or '_'"
        )
    return name


def expand_home(path: str) -> Path:
    """Replace a leading ``~`` or ``~user`` by the home folder; an unknown user stays as it is."""
    return Path(os.path.expanduser(path))


def explain_relative_path(path: str | Path) -> str:
    """Return which file a relative path means, to be appended to the path in an error.

    Returns:
        A remark in parentheses after a space; "" for an absolute path and for "~user" of an unknown
        user.
    """
    local_path = expand_home(str(path))
    if local_path.is_absolute() or str(path).startswith("~"):
        return ""
    return (
        f" (resolved to {os.path.abspath(local_path)}: paths in a config file are resolved "
        "relative to the file's folder, and paths in --set relative to the working directory)"
    )


def resolve_torch_device(device: DeviceName) -> str:
    """Convert a device name of a config to a device name of torch.

    Raises:
        UsageError: This machine lacks the device.
    """
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    device_type, _, gpu_index = device.partition(":")
    if device_type == "cuda" and int(gpu_index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"device {device} does not exist: torch detects {torch.cuda.device_count()} usable "
            "GPUs on this machine; set device to auto or cpu"
        )
    return device


#: A seed that every random generator accepts and that fits into an int64 column.
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]

DeviceName = Annotated[str, AfterValidator(_validate_device)]

#: A name that can be used unchanged in a path, a table and a page.
PathSafeName = Annotated[str, AfterValidator(_validate_plain_name)]
