"""Choose the trainer's device, and measure its speed and memory."""

from __future__ import annotations

import ctypes
import resource
import sys
import time
from typing import Any

import torch
from torch import Tensor

from hallmark.model.kernels import apply_linear

#: Constants of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def choose_device(device_name: str, local_rank: int = 0) -> torch.device:
    """Return the device of a config; each process of a machine takes its own GPU.

    Raises:
        ValueError: There is no CUDA device, or too few for the processes.
    """
    if device_name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but no CUDA device was found: set device to auto or cpu.")
    if device_name == "auto":
        device_name = "cuda" if torch.cuda.is_available() else "cpu"
    if device_name == "cpu":
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ValueError(
            f"There is no CUDA device for process {local_rank + 1} on this machine (number of "
            f"CUDA devices: {torch.cuda.device_count()}): reduce the 'processes' setting."
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def should_compile(configured: bool | None, device: torch.device, skip_by_default: bool) -> bool:
    """Return whether to compile: as configured, else on a GPU if Triton is installed.

    If nothing is configured, ``skip_by_default`` prevents it: for examples of many lengths, and
    for shards, the benefit was not measured.
    """
    if configured is not None:
        return configured
    from torch.utils._triton import has_triton

    return device.type == "cuda" and not skip_by_default and has_triton()


def compile_with_cpp_wrapper_on_cpu(
    function: Any, device: torch.device, *, dynamic: bool | None
) -> Any:
    """Compile with ``torch.compile``.

    On the CPU the compiled code starts kernels without Python: with 5 million parameters a step
    takes 0.965 of its time, and compiling takes no longer.
    """
    options: dict[str, Any] | None = {"cpp_wrapper": True} if device.type == "cpu" else None
    return torch.compile(function, dynamic=dynamic, options=options)


def measure_matmul_flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the floating-point operations per second of a large square product.

    The result is the best of several runs: until three agree to 1 %, ten are done, or a second has
    passed. If a large product would take too long, because the processor only emulates the
    precision, a small one is measured instead.
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
    """Whether the ``count`` shortest times agree to 1 %, so that nothing else disturbed them."""
    return len(seconds) >= count and sorted(seconds)[count - 1] <= 1.01 * min(seconds)


def _make_square_matrix(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator(device).manual_seed(0)  # leaves training's own draws alone
    return torch.randn(size, size, device=device, generator=generator).to(dtype)


def _time_square_product(matrix: Tensor) -> float:
    if matrix.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    apply_linear(matrix, matrix)
    if matrix.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def retain_freed_memory() -> None:
    """Make glibc keep freed memory, for a process that only trains.

    Each step needs the same memory as the step before. By default blocks of some megabytes return
    to the system and come back page by page, filled with zeros, which takes a tenth of a step on
    the CPU. Without glibc this has no effect.
    """
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "gnu_get_libc_version"):
        c_library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        c_library.mallopt(M_MMAP_THRESHOLD, 2**30)


def measure_peak_memory_mb(device: torch.device) -> float:
    """Return the peak memory of this process in MiB: of the GPU, or of the machine without one."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    rss_units_per_mb = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / rss_units_per_mb
