"""Choose the precision in which a device multiplies matrices."""

from __future__ import annotations

import functools
from pathlib import Path

import torch


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of a precision; "auto" is bf16 if the device has bf16 matrix units."""
    if precision == "auto":
        if device.type == "cuda":
            is_supported = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            is_supported = _cpu_has_bf16()
        precision = "bf16" if is_supported else "fp32"
    return torch.bfloat16 if precision == "bf16" else torch.float32


@functools.cache
def _cpu_has_bf16() -> bool:
    try:
        cpu_info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return bool({"avx512_bf16", "amx_bf16"} & set(cpu_info.split()))
