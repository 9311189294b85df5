"""Batches made ready while the step before them is computed, by one thread, one step ahead."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from model.batch import Batch
from model.draws import combine
from model.training.data import PackedRows, batch_sequences
from model.training.examples import ExampleRows


@dataclass(frozen=True)
class Prepared:
    """The batch of a step, as one process computes it.

    parts: its own micro-batches, pinned where they go to a GPU; weight: the sum of their weights.
    Of the whole batch, tokens: positions of its rows; seen: those of all steps to this one; flops:
    of the step, if every process computes as much.
    """

    parts: list[Batch]
    weight: float
    tokens: int
    seen: int
    flops: int


@dataclass(frozen=True)
class Recipe:
    """How the batch of a step is made: a pure function of the step.

    Each process reads and makes its own share of the rows alone, ``accumulation`` micro-batches.
    """

    rows: PackedRows | ExampleRows
    objective: Callable[[Any, int, int], Batch]
    seed: int
    size: int  # rows of a batch
    accumulation: int
    rank: int
    processes: int
    pinned: bool
    flops: Callable[[Batch], int]

    def __call__(self, step: int) -> Prepared:
        index = batch_sequences(self.seed, step, self.size, len(self.rows))
        share = self.size // self.processes
        first = self.rank * share
        own = self.rows.rows(index[first : first + share])
        batch = self.objective(own, int(combine(self.seed, step)[0]), first)
        parts = batch.split(self.accumulation)
        flops = self.processes * sum(map(self.flops, parts))
        if self.pinned:  # a GPU copies from such memory while it computes
            parts = [part.map(Tensor.pin_memory) for part in parts]
        tokens, seen = self.rows.tokens(index), self.rows.read(self.seed, step, self.size)
        return Prepared(parts, batch.answers()[1].sum().item(), tokens, seen, flops)


class Ahead:
    """``make(step)`` of the steps to ``last``, asked for in order, each made during the one before.

    What goes wrong in making one is raised where it is asked for.
    """

    def __init__(self, make: Callable[[int], Prepared], last: int) -> None:
        self.make, self.last = make, last
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self.next: tuple[int, Future[Prepared]] | None = None

    def of(self, step: int) -> Prepared:
        at, coming = self.next or (0, None)
        if coming is None or at != step:
            coming = self.thread.submit(self.make, step)
        made = coming.result()
        self.next = None
        if step < self.last:
            self.next = step + 1, self.thread.submit(self.make, step + 1)
        return made

    def close(self) -> None:
        self.thread.shutdown(cancel_futures=True)
