"""Functions that the GPU benchmarks share: device, time limit, sizes of models, bandwidth."""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import hallmark.model  # noqa: F401  before torch: it sets how threads wait

# isort: split
import torch

#: GPT-2's sizes: heads of 64, tied embeddings, the vocabulary padded to a multiple of 128.
SIZES: dict[str, dict[str, int]] = {
    "124M": {"d_model": 768, "n_layers": 12, "n_heads": 12, "vocab_size": 50304},
    "350M": {"d_model": 1024, "n_layers": 24, "n_heads": 16, "vocab_size": 50304},
    "774M": {"d_model": 1280, "n_layers": 36, "n_heads": 20, "vocab_size": 50304},
    "1B": {"d_model": 1536, "n_layers": 36, "n_heads": 24, "vocab_size": 50304},
}
#: The model of a rehearsal on the CPU, which shows that the program runs, not how fast.
REHEARSAL_SIZE = {"d_model": 64, "n_layers": 2, "n_heads": 2, "vocab_size": 512}


class DataSheet(NamedTuple):
    """Peak figures of a GPU from the manufacturer's data sheet."""

    flops_per_second: float
    """Dense bf16 operations per second."""
    bytes_per_second: float
    """Memory bandwidth."""


DATA_SHEETS = {
    "H200": DataSheet(989e12, 4.8e12),
    "H100": DataSheet(989e12, 3.35e12),
    "A100": DataSheet(312e12, 2.0e12),
}

#: When this program started.
START = time.monotonic()


def build_parser(description: str) -> argparse.ArgumentParser:
    """Build a parser with the options that all GPU benchmarks have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="run a tiny model on the CPU, to try the program"
    )
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="start no further measurement after this time"
    )
    return parser


def is_time_over(options: argparse.Namespace, remaining: str) -> bool:
    """Return whether the program's minutes are over, and print so.

    Args:
        options: The parsed options.
        remaining: What is not measured in this case.
    """
    is_over = time.monotonic() - START > 60 * options.minutes
    if is_over:
        print(f"{options.minutes:g} minutes are over; not measured: {remaining}", flush=True)
    return is_over


def choose_device(*, use_cpu: bool) -> torch.device:
    """Return the CPU or the GPU.

    Raises:
        SystemExit: if there is no GPU.
    """
    if use_cpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SystemExit(
            "There is no CUDA device here, so nothing was measured. Earlier measurements, with "
            "date and device, are in benchmarks/results."
        )
    return torch.device("cuda", 0)


def describe_environment(device: torch.device) -> str:
    """Describe date, device and versions in one line."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU rehearsal"
    today = datetime.datetime.now(datetime.UTC).date()
    return f"{today}, {name}, torch {torch.__version__}, CUDA {torch.version.cuda}"


def find_data_sheet(device: torch.device) -> DataSheet | None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((sheet for key, sheet in DATA_SHEETS.items() if key in name), None)


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_call(function: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of a call, including the work that it started on the device."""
    synchronise(device)
    start = time.perf_counter()
    function()
    synchronise(device)
    return time.perf_counter() - start


def measure_copy_bandwidth(device: torch.device) -> float:
    """Measure the bytes per second, read and written, of a large copy on the device."""
    size = 1 << (30 if device.type == "cuda" else 24)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = statistics.median(time_call(lambda: target.copy_(source), device) for _ in range(10))
    return 2 * size / seconds
