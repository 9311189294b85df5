"""What the GPU benchmarks share: the device or the news that there is none, its ceilings, sizes."""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Callable
from typing import Any

import hallmark.model  # noqa: F401  before torch: it says how threads wait

# isort: split
import torch

#: GPT-2's sizes: heads of 64, tied embeddings, the vocabulary padded to a multiple of 128.
SIZES: dict[str, dict[str, int]] = {
    "124M": {"d_model": 768, "n_layers": 12, "n_heads": 12, "vocab_size": 50304},
    "350M": {"d_model": 1024, "n_layers": 24, "n_heads": 16, "vocab_size": 50304},
    "774M": {"d_model": 1280, "n_layers": 36, "n_heads": 20, "vocab_size": 50304},
    "1B": {"d_model": 1536, "n_layers": 36, "n_heads": 24, "vocab_size": 50304},
}
#: A rehearsal on the CPU: that the program runs, not how fast.
SMALL = {"d_model": 64, "n_layers": 2, "n_heads": 2, "vocab_size": 512}

#: Dense bf16 operations a second and bytes a second of memory, by the maker's data sheet.
DATA_SHEETS = {
    "H200": (989e12, 4.8e12),
    "H100": (989e12, 3.35e12),
    "A100": (312e12, 2.0e12),
}


def parser(text: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument(
        "--rehearse", action="store_true", help="tiny, on the CPU, to try the program"
    )
    made.add_argument("--minutes", type=float, default=8.0, help="begin nothing more after so many")
    return made


BEGAN = time.monotonic()


def late(options: argparse.Namespace, left: str) -> bool:
    """Whether the program's minutes are over; says then what is ``left`` undone."""
    over = time.monotonic() - BEGAN > 60 * options.minutes
    if over:
        print(f"{options.minutes:g} minutes are over; not measured: {left}", flush=True)
    return over


def device_of(rehearse: bool) -> torch.device:
    """The GPU; without one the program ends and says so."""
    if rehearse:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SystemExit(
            "There is no CUDA device here, so nothing was measured. What was measured earlier is "
            "in benchmarks/results, with date and device."
        )
    return torch.device("cuda", 0)


def headline(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU rehearsal"
    today = datetime.datetime.now(datetime.UTC).date()
    return f"{today}, {name}, torch {torch.__version__}, CUDA {torch.version.cuda}"


def data_sheet(device: torch.device) -> tuple[float, float] | None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((figures for key, figures in DATA_SHEETS.items() if key in name), None)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds of a call, to the end of what it started on the device."""
    synchronise(device)
    start = time.perf_counter()
    run()
    synchronise(device)
    return time.perf_counter() - start


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of a large copy on the device: the median of ten."""
    size = 1 << (30 if device.type == "cuda" else 24)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return (
        2 * size / statistics.median(timed(lambda: target.copy_(source), device) for _ in range(10))
    )
