"""Prepare the batch of the next step in a thread, while the current step is computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hallmark.model.batch import Batch
from hallmark.model.keyed_randomness import combine_into_key
from hallmark.model.training.examples import ExampleRows
from hallmark.model.training.packed_rows import PackedRows, select_batch_rows


@dataclass(frozen=True)
class PreparedBatch:
    """The batch of a step, as one process computes it.

    Attributes:
        micro_batches: this process's micro-batches, pinned if they go to a GPU.
        weight_sum: sum of the weights of ``micro_batches``.
        token_count: positions in the rows of the whole batch.
        tokens_so_far: positions in the batches of all steps so far.
        flops: operations of the step, if every process computes the same number.
    """

    micro_batches: list[Batch]
    weight_sum: float
    token_count: int
    tokens_so_far: int
    flops: int


@dataclass(frozen=True)
class BatchBuilder:
    """Builds the batch of a step: a pure function of the step.

    Each process reads only its own share of the rows, and splits it into ``accumulation_steps``
    micro-batches. ``batch_size`` counts the rows of the whole batch.
    """

    training_rows: PackedRows | ExampleRows
    objective: Callable[[Any, int, int], Batch]
    seed: int
    batch_size: int
    accumulation_steps: int
    rank: int
    processes: int
    pin_memory: bool
    count_flops: Callable[[Batch], int]

    def __call__(self, step: int) -> PreparedBatch:
        row_indices = select_batch_rows(self.seed, step, self.batch_size, len(self.training_rows))
        share = self.batch_size // self.processes
        first_row = self.rank * share
        own_rows = self.training_rows.read_rows(row_indices[first_row : first_row + share])
        batch = self.objective(own_rows, int(combine_into_key(self.seed, step)[0]), first_row)
        micro_batches = batch.split_into_micro_batches(self.accumulation_steps)
        flops = self.processes * sum(map(self.count_flops, micro_batches))
        if self.pin_memory:  # a GPU can copy from pinned memory while it computes
            micro_batches = [
                micro_batch.map_tensors(Tensor.pin_memory) for micro_batch in micro_batches
            ]
        token_count = self.training_rows.count_tokens(row_indices)
        tokens_so_far = self.training_rows.count_tokens_read(self.seed, step, self.batch_size)
        return PreparedBatch(
            micro_batches,
            batch.require_targets_and_weights()[1].sum().item(),
            token_count,
            tokens_so_far,
            flops,
        )


class Prefetcher:
    """Returns ``build_batch(step)`` of consecutive steps until ``last_step``, built in advance.

    An error in building a batch is raised when the batch is requested.
    """

    def __init__(self, build_batch: Callable[[int], PreparedBatch], last_step: int) -> None:
        self.build_batch, self.last_step = build_batch, last_step
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self.pending: tuple[int, Future[PreparedBatch]] | None = None

    def get_batch(self, step: int) -> PreparedBatch:
        pending_step, future = self.pending or (0, None)
        if future is None or pending_step != step:
            future = self.executor.submit(self.build_batch, step)
        prepared_batch = future.result()
        self.pending = None
        if step < self.last_step:
            self.pending = step + 1, self.executor.submit(self.build_batch, step + 1)
        return prepared_batch

    def stop(self) -> None:
        self.executor.shutdown(cancel_futures=True)
