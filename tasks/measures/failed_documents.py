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

from hallmark.tasks.contract import HallmarkError, StageContext

log = logging.getLogger("hallmark")

Result = TypeVar("Result")

#: These say nothing of a document: what has its own words, and what the machine lacks.
PROPAGATED_ERRORS = (HallmarkError, OSError, MemoryError, ImportError)


class UnprocessableDocumentError(Exception):
    """Why a kernel does not take a document, with the remedy, in words that hold no text of it."""


@dataclass(frozen=True)
class FailedDocuments:
    """The documents of a batch on which a kernel failed, and how, (k,) each."""

    rows: pa.Array  # int64, ascending
    reasons: pa.Array  # string

    def __len__(self) -> int:
        return len(self.rows)


def run_isolating_failures(
    kernel: Callable[[pa.RecordBatch], Result], batch: pa.RecordBatch
) -> tuple[Result, FailedDocuments]:
    """``kernel(batch)``; where it fails on some documents, with an empty text in their place.

    A kernel that fails on the batch and on no document by itself raises what it raised.
    """
    failures: list[tuple[int, str]] = []
    try:
        result = kernel(batch)
    except PROPAGATED_ERRORS:
        raise
    except Exception:
        failures = list(_find_failing_rows(kernel, batch, 0))
        texts = pc.replace_with_mask(
            batch["text"],
            pa.array(np.isin(np.arange(len(batch)), [row for row, _ in failures])),
            pa.array([""] * len(failures), batch["text"].type),
        )
        result = kernel(batch.set_column(batch.schema.get_field_index("text"), "text", texts))
    rows = pa.array([row for row, _ in failures], pa.int64())
    return result, FailedDocuments(rows, pa.array([reason for _, reason in failures], pa.string()))


def _find_failing_rows(
    kernel: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch, first_row: int
) -> Iterator[tuple[int, str]]:
    """Documents of a batch on which the kernel fails when it is asked about them alone."""
    try:
        kernel(batch)
    except PROPAGATED_ERRORS:
        raise
    except Exception as error:
        if len(batch) == 1:
            is_unprocessable = isinstance(error, UnprocessableDocumentError)
            yield first_row, str(error) if is_unprocessable else f"failed: {type(error).__name__}"
            return
        half = len(batch) // 2
        yield from _find_failing_rows(kernel, batch[:half], first_row)
        yield from _find_failing_rows(kernel, batch[half:], first_row + half)


#: [doc_id, reason] of each, as a part returns them.
FailureList = list[list[str]]


def list_failures_by_doc_id(batch: pa.RecordBatch, failed: FailedDocuments) -> FailureList:
    doc_ids = batch["doc_id"].take(failed.rows).to_pylist()
    return [
        [doc_id.hex(), reason]
        for doc_id, reason in zip(doc_ids, failed.reasons.to_pylist(), strict=True)
    ]


def report_failures(
    context: StageContext,
    failures_by_part: Iterable[FailureList],
    document_count: int,
    activity: str,
) -> None:
    """Count the faults of all parts, and say so where there are any.

    HallmarkError if all documents failed: then none of them is to blame.
    """
    failures = [failure for part_failures in failures_by_part for failure in part_failures]
    context.record_measurement("failed_documents", len(failures), "documents")
    if not failures:
        return
    count, (doc_id, reason) = len(failures), failures[0]
    if count == document_count:
        raise HallmarkError(
            f"{activity} failed on all {count:,} documents, the first of them {doc_id} "
            f"({reason}): the "
            f"fault is in no document; hallmark doctor says what this machine has"
        )
    log.warning(
        "%s failed on %d of %d documents, the first of them %s (%s)",
        activity,
        count,
        document_count,
        doc_id,
        reason,
    )
