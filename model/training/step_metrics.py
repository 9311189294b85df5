"""The figures of a step: how they leave the device without holding it up, and the log's rows."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

LOG_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("loss", pa.float64(), nullable=False),  # nats per token, with the z-loss
        pa.field("grad_norm", pa.float64(), nullable=False),  # before clipping
        pa.field("skipped", pa.bool_(), nullable=False),  # the step diverged and changed nothing
        pa.field("learning_rate", pa.float64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),  # positions seen so far
        pa.field("validation_bits_per_token", pa.float64()),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("tokens_per_second", pa.float64(), nullable=False),
        pa.field("mfu", pa.float64(), nullable=False),  # share of the measured matmul ceiling
        pa.field("memory_mb", pa.float64(), nullable=False),  # peak
    ]
)
TIMING_COLUMNS = ("seconds", "tokens_per_second", "mfu", "memory_mb")
#: Of a row, what is told while training goes on.
PROGRESS_COLUMNS = ("step", "loss", "learning_rate", "grad_norm", "tokens_per_second", "mfu")


class DeviceTimestamp:
    """A moment of the device's work; taking it does not wait for the device."""

    def __init__(self, device: torch.device) -> None:
        self.time, self.event = time.perf_counter(), None
        if device.type == "cuda":
            self.event = torch.cuda.Event(enable_timing=True)
            self.event.record()

    def seconds_since(self, earlier: DeviceTimestamp) -> float:
        """Seconds from an earlier moment; waits until this one has come."""
        if self.event is None or earlier.event is None:
            return self.time - earlier.time
        self.event.synchronize()
        return float(earlier.event.elapsed_time(self.event)) / 1000


class PendingValues:
    """Numbers on their way from the device. Reading them waits until they are computed, and for
    nothing that the device was asked for later."""

    def __init__(self, *values: Tensor) -> None:
        stacked = torch.stack([value.detach() for value in values])
        self.values = stacked.to("cpu", non_blocking=True)
        self.computed_at = DeviceTimestamp(stacked.device)

    def read_when_ready(self) -> list[float]:
        if self.computed_at.event is not None:
            self.computed_at.event.synchronize()
        return list(self.values.tolist())


@dataclass
class StepMetrics:
    """What is known of a step while the device may still be at it."""

    step: int
    learning_rate: float
    batch_tokens: int  # positions of the batch, of all processes
    tokens_so_far: int  # of all steps up to this one
    flops: int  # of the step
    loss_and_norm: PendingValues  # the loss and the gradient's norm
    is_skipped: bool | None = None  # None: nobody has looked whether it diverged
    finished_at: DeviceTimestamp | None = field(default=None)

    def to_log_row(
        self, seconds: float, peak_flops_per_second: float, memory_mb: float
    ) -> dict[str, Any]:
        """Of the log; ``ceiling`` in operations a second, ``memory`` in MiB."""
        loss, grad_norm = self.loss_and_norm.read_when_ready()
        return {
            "step": self.step,
            "loss": loss,
            "grad_norm": grad_norm,
            "skipped": bool(self.is_skipped),
            "learning_rate": self.learning_rate,
            "tokens": self.tokens_so_far,
            "validation_bits_per_token": None,
            "seconds": seconds,
            "tokens_per_second": self.batch_tokens / seconds,
            "mfu": self.flops / seconds / peak_flops_per_second,
            "memory_mb": memory_mb,
        }
