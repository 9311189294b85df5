"""Take one optimizer step: learning rate, forward and backward pass, clipping, update, metrics.

``TrainingStep.run`` is everything that changes the weights. The trainer calls it once for each
step; the rest of the trainer prepares it and writes down what came of it.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from hallmark.model.architecture import Transformer
from hallmark.model.config import TrainConfig
from hallmark.model.training import parallel
from hallmark.model.training.job import emit_event
from hallmark.model.training.optimizers import (
    SpikeGuard,
    clip_gradients,
    make_optimizers,
    set_learning_rate,
)
from hallmark.model.training.prefetching import PreparedBatch
from hallmark.model.training.schedule import compute_learning_rate
from hallmark.model.training.step_metrics import DeviceTimestamp, PendingValues, StepMetrics

MAX_SKIPPED_STEPS = 10  # training stops after this many consecutive divergent steps


class TrainingError(Exception):
    """Training cannot continue; the message says at which step, why, and what to change."""


class TrainingStep:
    """Takes the optimizer steps of one process.

    Attributes:
        model: the model itself, whose weights change.
        loss_of_batch: a module that computes the model's summed loss of a batch, wrapped for
            several processes and compiled as configured.
        optimizers: AdamW, and Muon if configured.
        spike_guard: running mean of the gradient norm, and the count of divergent steps.
    """

    def __init__(
        self,
        model: Transformer,
        loss_of_batch: nn.Module,
        config: TrainConfig,
        world: parallel.DistributedWorld,
        *,
        dtype: torch.dtype,
        has_frozen_body: bool,
    ) -> None:
        self.model, self.loss_of_batch = model, loss_of_batch
        self.config, self.world = config, world
        self.device, self.dtype = model.embedding.weight.device, dtype
        self.has_frozen_body = has_frozen_body
        self.optimizers = make_optimizers(model, config)
        self.spike_guard = SpikeGuard()

    def run(self, step: int, batch: PreparedBatch) -> StepMetrics:
        """Take step ``step`` (from 1); wait for the device only if divergent steps are skipped.

        Raises:
            TrainingError: Divergent steps are skipped, and too many followed each other.
        """
        config, world = self.config, self.world
        learning_rate = compute_learning_rate(config, step)
        set_learning_rate(self.optimizers, learning_rate)
        # A frozen body computes its features without dropout, as after the training.
        self.model.train(not self.has_frozen_body)

        # The loss is the mean over the whole batch: over all micro-batches of all processes.
        weight_sum = torch.full((), batch.weight_sum, dtype=torch.float64, device=self.device)
        total_weight = world.sum_on_device(weight_sum).clamp(min=1).float()
        loss = torch.zeros((), device=self.device)
        for number, micro_batch in enumerate(batch.micro_batches, 1):
            is_last = number == len(batch.micro_batches)
            with parallel.defer_gradient_sync(self.loss_of_batch, self.model, is_last):
                device_batch = micro_batch.to_device(self.device)
                with self.make_autocast_context():
                    loss_share = self.loss_of_batch(device_batch) / total_weight
                # DDP and FSDP average gradients over processes, but the sum is needed.
                (loss_share * world.size).backward()
                loss += loss_share.detach()

        grad_norm = clip_gradients(self.optimizers, config.max_grad_norm)
        metrics = StepMetrics(
            step,
            learning_rate,
            batch.token_count,
            batch.tokens_so_far,
            batch.flops,
            PendingValues(world.sum_on_device(loss), grad_norm),
        )
        if config.on_divergence == "skip":
            self.record_whether_skipped(metrics)  # before the update, which cannot be undone
        for optimizer in self.optimizers:
            if not metrics.is_skipped:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        metrics.finished_at = DeviceTimestamp(self.device)
        return metrics

    def make_autocast_context(self) -> AbstractContextManager[Any]:
        """Return a context in which matrix products are computed in the configured precision."""
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def record_whether_skipped(self, metrics: StepMetrics) -> None:
        """Record in ``metrics.is_skipped`` whether a step diverged, and report it if so.

        Raises:
            TrainingError: Training must stop at it, or too many consecutive steps were skipped.
        """
        loss, grad_norm = metrics.loss_and_norm.read_when_ready()
        config, guard = self.config, self.spike_guard
        metrics.is_skipped = guard.update_and_detect_divergence(
            loss, grad_norm, config.spike_factor
        )
        if not metrics.is_skipped:
            return
        description = f"the loss is {loss:.4g} and the gradient norm is {grad_norm:.4g}"
        if math.isfinite(grad_norm) and guard.mean_norm:
            description += f", {grad_norm / guard.mean_norm:.3g} times its running mean"
        if config.on_divergence == "stop" or guard.divergent_steps > MAX_SKIPPED_STEPS:
            earlier_skipped = guard.divergent_steps - 1
            if earlier_skipped:
                description += f" (number of steps skipped immediately before: {earlier_skipped})"
            raise TrainingError(
                f"Training diverged at step {metrics.step}: {description}. Reduce learning_rate "
                f"(now {config.learning_rate}) or max_grad_norm (now {config.max_grad_norm})."
            )
        if self.world.is_first:
            emit_event("skipped", step=metrics.step, message=f"{description}; skipping this step")
