"""In which precision a device multiplies matrices."""

from __future__ import annotations

import functools
from pathlib import Path

import torch


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """auto is bf16 where the device multiplies bf16 matrices in hardware."""
    if name == "auto":
        if device.type == "cuda":
            supported = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            supported = _cpu_has_bf16()
        name = "bf16" if supported else "fp32"
    return torch.bfloat16 if name == "bf16" else torch.float32


@functools.cache
def _cpu_has_bf16() -> bool:
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return bool({"avx512_bf16", "amx_bf16"} & set(info.split()))
