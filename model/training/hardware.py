"""What the machine offers a trainer: its device, its speed, its memory."""

from __future__ import annotations

import ctypes
import resource
import sys
import time
from typing import Any

import torch
from torch import Tensor

from model.kernels import apply_linear

#: Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def choose_device(device_name: str, local_rank: int = 0) -> torch.device:
    """The device of a config; of several GPUs each process of a machine takes its own."""
    if device_name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but no CUDA device was found: set device to auto or cpu.")
    if device_name == "auto":
        device_name = "cuda" if torch.cuda.is_available() else "cpu"
    if device_name == "cpu":
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ValueError(
            f"There are {torch.cuda.device_count()} CUDA devices, too few for process "
            f"{local_rank + 1} of this machine: lower processes."
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def should_compile(configured: bool | None, device: torch.device, is_unmeasured: bool) -> bool:
    """Whether to compile: where nothing is said, for a GPU, if Triton is there to compile for it.

    Not what nobody has measured: examples of many lengths, and shards.
    """
    if configured is not None:
        return configured
    from torch.utils._triton import has_triton

    return device.type == "cuda" and not is_unmeasured and has_triton()


def compile_function(device: torch.device, function: Any, dynamic: bool | None) -> Any:
    """``torch.compile``. On the CPU what it makes starts the kernels without Python: 0.965 of the
    time of a step of 5 million parameters, and no longer to compile."""
    options: dict[str, Any] | None = {"cpp_wrapper": True} if device.type == "cpu" else None
    return torch.compile(function, dynamic=dynamic, options=options)


def measure_matmul_flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a large square product: the best of as many as it
    takes for three to agree to a hundredth, of ten, or of what a second holds.

    Where a large one would take longer, because the processor only emulates the precision, a small
    one stands for it.
    """
    size = 8192 if device.type == "cuda" else 1024
    if device.type == "cpu":
        small_matrix = _make_square_matrix(256, device, dtype)
        if min(_time_square_product(small_matrix) for _ in range(3)) * 64 > 1:
            size = 256
    matrix, seconds = _make_square_matrix(size, device, dtype), list[float]()
    while len(seconds) < 10 and sum(seconds) < 1 and not _has_stable_minimum(seconds):
        seconds.append(_time_square_product(matrix))
    return float(2 * size**3 / min(seconds))


def _has_stable_minimum(seconds: list[float], count: int = 3) -> bool:
    """Whether so many of the least are alike: with that nothing else was in the way."""
    return len(seconds) >= count and sorted(seconds)[count - 1] <= 1.01 * min(seconds)


def _make_square_matrix(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator(device).manual_seed(0)  # training's own must not notice
    return torch.randn(size, size, device=device, generator=generator).to(dtype)


def _time_square_product(matrix: Tensor) -> float:
    """Seconds of one square product."""
    if matrix.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    apply_linear(matrix, matrix)
    if matrix.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def retain_freed_memory() -> None:
    """Have glibc keep what is freed, for a process that trains and does nothing else.

    Each step asks for the same memory as the step before. By default blocks of some megabytes go
    back to the system and come again page by page, filled with zeros: on the CPU a tenth of a step.
    Elsewhere than with glibc nothing changes.
    """
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "gnu_get_libc_version"):
        c_library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        c_library.mallopt(M_MMAP_THRESHOLD, 2**30)


def measure_peak_memory_mb(device: torch.device) -> float:
    """The most memory this process has held, MiB: of the GPU, or of the machine without one."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    rss_units_per_mb = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / rss_units_per_mb
