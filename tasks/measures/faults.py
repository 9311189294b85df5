"""One bad document costs itself: what fails on a batch is asked again without the documents on
which it fails.

Kernels look at columns and at no neighbour, so a document on which one fails is found by halving
the batch. What becomes of it is for the stage to say: its signals are null, or it goes to
quarantine. The reason is the kind of the error, whose words may hold text, but for ``Unfit``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.contract import HallmarkError, Work

log = logging.getLogger("hallmark")

Result = TypeVar("Result")

#: These say nothing of a document: what has its own words, and what the machine lacks.
OTHERS = (HallmarkError, OSError, MemoryError, ImportError)


class Unfit(Exception):
    """Why a kernel does not take a document, with the remedy, in words that hold no text of it."""


@dataclass(frozen=True)
class Faults:
    """The documents of a batch on which a kernel failed, and how, (k,) each."""

    rows: pa.Array  # int64, ascending
    reasons: pa.Array  # string

    def __len__(self) -> int:
        return len(self.rows)


def careful(
    kernel: Callable[[pa.RecordBatch], Result], batch: pa.RecordBatch
) -> tuple[Result, Faults]:
    """``kernel(batch)``; where it fails on some documents, with an empty text in their place.

    A kernel that fails on the batch and on no document by itself raises what it raised.
    """
    bad: list[tuple[int, str]] = []
    try:
        found = kernel(batch)
    except OTHERS:
        raise
    except Exception:
        bad = list(_bad(kernel, batch, 0))
        texts = pc.replace_with_mask(
            batch["text"],
            pa.array(np.isin(np.arange(len(batch)), [row for row, _ in bad])),
            pa.array([""] * len(bad), batch["text"].type),
        )
        found = kernel(batch.set_column(batch.schema.get_field_index("text"), "text", texts))
    rows = pa.array([row for row, _ in bad], pa.int64())
    return found, Faults(rows, pa.array([why for _, why in bad], pa.string()))


def _bad(
    kernel: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch, first: int
) -> Iterator[tuple[int, str]]:
    """Documents of a batch on which the kernel fails when it is asked about them alone."""
    try:
        kernel(batch)
    except OTHERS:
        raise
    except Exception as error:
        if len(batch) == 1:
            unfit = isinstance(error, Unfit)
            yield first, str(error) if unfit else f"failed: {type(error).__name__}"
            return
        half = len(batch) // 2
        yield from _bad(kernel, batch[:half], first)
        yield from _bad(kernel, batch[half:], first + half)


#: [doc_id, reason] of each, as a part returns them.
Noted = list[list[str]]


def noted(batch: pa.RecordBatch, faults: Faults) -> Noted:
    ids = batch["doc_id"].take(faults.rows).to_pylist()
    return [[i.hex(), why] for i, why in zip(ids, faults.reasons.to_pylist(), strict=True)]


def tell(work: Work, parts: Iterable[Noted], documents: int, what: str) -> None:
    """Count the faults of all parts, and say so where there are any.

    HallmarkError if all documents failed: then none of them is to blame.
    """
    found = [fault for part in parts for fault in part]
    work.measure("failed", len(found), "documents")
    if not found:
        return
    count, (doc_id, why) = len(found), found[0]
    if count == documents:
        raise HallmarkError(
            f"{what} failed on all {count:,} documents, the first of them {doc_id} ({why}): the "
            f"fault is in no document; hallmark doctor says what this machine has"
        )
    log.warning(
        "%s failed on %d of %d documents, the first of them %s (%s)",
        what, count, documents, doc_id, why,
    )  # fmt: skip
