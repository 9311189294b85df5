"""Isolate the documents on which a batch kernel fails, so that the rest of the batch is processed.

A kernel processes each document independently, so halving the batch finds every document that fails
by itself. The calling stage decides what happens to such a document: its signals become null, or it
goes to the quarantine. The recorded reason is the type of the error only, because an error message
may quote text; UnprocessableDocumentError is the exception.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract import HallmarkError, StageContext, format_all

log = logging.getLogger("hallmark")

Result = TypeVar("Result")

#: Errors that no single document causes, or whose own message names the cause.
PROPAGATED_ERRORS = (HallmarkError, OSError, MemoryError, ImportError)


class UnprocessableDocumentError(Exception):
    """Report why a kernel cannot process a document; the message must not quote the document."""


@dataclass(frozen=True)
class FailedDocuments:
    """Rows and failure reasons of the documents on which a kernel failed.

    Attributes:
        rows: (k,) int64 row numbers in the batch, ascending.
        reasons: (k,) string.
    """

    rows: pa.Array
    reasons: pa.Array

    def __len__(self) -> int:
        return len(self.rows)


class KernelRun(NamedTuple, Generic[Result]):
    """The result of a kernel for a batch, and the documents on which it failed."""

    result: Result
    """Result for the batch with empty texts in place of the failed documents."""
    failed_documents: FailedDocuments


class _DocumentFailure(NamedTuple):
    """A document on which a kernel failed."""

    row: int
    """Row number in the batch."""
    reason: str


def run_with_failing_texts_emptied(
    kernel: Callable[[pa.RecordBatch], Result], batch: pa.RecordBatch
) -> KernelRun[Result]:
    """Run a kernel on a batch, with an empty text in place of each document on which it fails.

    Raises:
        Exception: the kernel's own error if it fails on the batch but on no single document, or if
            the error is one of PROPAGATED_ERRORS.
    """
    failures: list[_DocumentFailure] = []
    try:
        result = kernel(batch)
    except PROPAGATED_ERRORS:
        raise
    except Exception:
        failures = list(_find_failing_rows(kernel, batch, 0))
        texts = pc.replace_with_mask(
            batch["text"],
            pa.array(np.isin(np.arange(len(batch)), [failure.row for failure in failures])),
            pa.array([""] * len(failures), batch["text"].type),
        )
        result = kernel(batch.set_column(batch.schema.get_field_index("text"), "text", texts))
    failed_documents = FailedDocuments(
        pa.array([failure.row for failure in failures], pa.int64()),
        pa.array([failure.reason for failure in failures], pa.string()),
    )
    return KernelRun(result, failed_documents)


def _find_failing_rows(
    kernel: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch, first_row: int
) -> Iterator[_DocumentFailure]:
    """Find the documents on which the kernel fails when run on each alone.

    Args:
        kernel: The kernel.
        batch: The documents.
        first_row: Row number of the first document, added to those of all.
    """
    try:
        kernel(batch)
    except PROPAGATED_ERRORS:
        raise
    except Exception as error:
        if len(batch) == 1:
            is_unprocessable = isinstance(error, UnprocessableDocumentError)
            reason = str(error) if is_unprocessable else f"failed: {type(error).__name__}"
            yield _DocumentFailure(first_row, reason)
            return
        half = len(batch) // 2
        yield from _find_failing_rows(kernel, batch[:half], first_row)
        yield from _find_failing_rows(kernel, batch[half:], first_row + half)


#: [doc_id, reason] for each failed document of a partition.
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
    """Record the number of failed documents and log a warning if there are any.

    Args:
        context: Context of the stage, which records the number.
        failures_by_part: Failed documents of each partition.
        document_count: Number of documents that were processed.
        activity: Name of the processing step, the subject of the message.

    Raises:
        HallmarkError: All documents failed, so no single document is the cause.
    """
    failures = [failure for part_failures in failures_by_part for failure in part_failures]
    context.record_measurement("failed_documents", len(failures), "documents")
    if not failures:
        return
    count, (doc_id, reason) = len(failures), failures[0]
    if count == document_count:
        raise HallmarkError(
            f"{activity} failed on {format_all(count, 'document')}, starting with {doc_id} "
            f"({reason}). The documents are probably not the cause; run `hallmark doctor` to "
            "check this machine"
        )
    log.warning(
        "%s failed on %d of %d documents, starting with %s (%s)",
        activity,
        count,
        document_count,
        doc_id,
        reason,
    )
