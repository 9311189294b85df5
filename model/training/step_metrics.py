"""Collect a step's metrics without waiting for the device, and define the rows of the log."""

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
        pa.field("tokens_seen", pa.int64(), nullable=False),  # positions seen so far
        pa.field("validation_bits_per_token", pa.float64()),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("tokens_per_second", pa.float64(), nullable=False),
        pa.field("mfu", pa.float64(), nullable=False),  # share of the measured matmul speed
        pa.field("memory_mb", pa.float64(), nullable=False),  # peak
    ]
)
#: Columns that are reported as progress during the training.
PROGRESS_COLUMNS = ("step", "loss", "learning_rate", "grad_norm", "tokens_per_second", "mfu")


class DeviceTimestamp:
    """A point in the device's work; recording it does not wait for the device."""

    def __init__(self, device: torch.device) -> None:
        self.time, self.event = time.perf_counter(), None
        if device.type == "cuda":
            self.event = torch.cuda.Event(enable_timing=True)
            self.event.record()

    def seconds_since(self, earlier: DeviceTimestamp) -> float:
        """Return the seconds since an earlier timestamp; wait until this one is reached."""
        if self.event is None or earlier.event is None:
            return self.time - earlier.time
        self.event.synchronize()
        return float(earlier.event.elapsed_time(self.event)) / 1000


class PendingValues:
    """Numbers that the device is still computing or copying.

    Reading them waits for them, but not for work that was queued later.
    """

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
    """Metrics of a step that the device may still be computing.

    Attributes:
        step: number of the step, from 1.
        learning_rate: learning rate of the step.
        batch_tokens: positions in the batch, over all processes.
        tokens_so_far: positions in the batches of all steps so far.
        flops: floating-point operations of the step.
        loss_and_norm: the loss and the gradient norm.
        is_skipped: whether the step diverged and was skipped; None if not yet checked.
        finished_at: when the device finished the step.
    """

    step: int
    learning_rate: float
    batch_tokens: int
    tokens_so_far: int
    flops: int
    loss_and_norm: PendingValues
    is_skipped: bool | None = None
    finished_at: DeviceTimestamp | None = field(default=None)

    def to_log_row(
        self, seconds: float, peak_flops_per_second: float, memory_mb: float
    ) -> dict[str, Any]:
        """Build a row of the log.

        Args:
            seconds: duration of the step.
            peak_flops_per_second: measured speed of matrix products, over all processes.
            memory_mb: peak memory in MiB.
        """
        loss, grad_norm = self.loss_and_norm.read_when_ready()
        return {
            "step": self.step,
            "loss": loss,
            "grad_norm": grad_norm,
            "skipped": bool(self.is_skipped),
            "learning_rate": self.learning_rate,
            "tokens_seen": self.tokens_so_far,
            "validation_bits_per_token": None,
            "seconds": seconds,
            "tokens_per_second": self.batch_tokens / seconds,
            "mfu": self.flops / seconds / peak_flops_per_second,
            "memory_mb": memory_mb,
        }
