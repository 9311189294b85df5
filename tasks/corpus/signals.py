"""Signals: what stages say of each document, a row each, in the order and cut of the documents.

A signal decides nothing. ``select`` reads signals, applies its rules to them, and keeps or removes:
another bound measures nothing again. Signals are named as their columns are; no two stages have one
of the same name. A document on which a stage fails has null signals, which rules call unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from hallmark.tasks.contract import (
    ID_TYPE,
    HallmarkError,
    TablePart,
    TableWriters,
    column,
    table_schema,
)
from hallmark.tasks.measures.failed_documents import (
    FailureList,
    list_failures_by_doc_id,
    run_isolating_failures,
)


def build_signal_schema(meaning: str, *fields: pa.Field) -> pa.Schema:
    """Schema of a stage's table ``signals``."""
    return table_schema(
        meaning, column("doc_id", ID_TYPE, "id", "the document"), *fields, partition_by=True
    )


def get_signal_types(*schemas: pa.Schema) -> dict[str, pa.DataType]:
    """The type of each signal of these tables."""
    return {
        field.name: field.type for schema in schemas for field in schema if field.name != "doc_id"
    }


def write_signals(
    partition: TablePart,
    compute_signals: Callable[[pa.RecordBatch], Mapping[str, pa.Array]],
    out: TableWriters,
) -> FailureList:
    """Write the signals of a part: the columns that the kernel gives for its documents (doc_id,
    text), null for those on which it fails. Returns these."""
    failures: FailureList = []
    for batch in partition.iter_batches(["doc_id", "text"]):
        columns, faults = run_isolating_failures(compute_signals, batch)
        if len(faults):
            is_faulty = np.isin(np.arange(len(batch)), faults.rows)
            row_indices = pa.array(np.arange(len(batch)), mask=is_faulty)
            columns = {name: values.take(row_indices) for name, values in columns.items()}
            failures += list_failures_by_doc_id(batch, faults)
        out.get_table_writer("signals").write({"doc_id": batch["doc_id"], **columns})
    return failures


def join_partition_signals(
    documents: TablePart, signal_partitions: Mapping[str, TablePart]
) -> pa.Table:
    """The signals of a part's documents side by side, a row each, held in memory.

    Raises HallmarkError where a table is about other documents, or two have a column of one name.
    """
    doc_ids = documents.read(["doc_id"])["doc_id"].combine_chunks()
    joined_signals = pa.table({"doc_id": doc_ids})
    for signal_partition in signal_partitions.values():
        signal_rows = signal_partition.read()
        if not signal_rows["doc_id"].combine_chunks().equals(doc_ids):
            raise HallmarkError(
                f"{documents} and {signal_partition} are not about the same documents: make "
                f"the signals of "
                f"these ones first"
            )
        for name in signal_rows.schema.names:
            if name == "doc_id":
                continue
            if name in joined_signals.schema.names:
                raise HallmarkError(f"two stages have a signal {name!r}; rename one of them")
            joined_signals = joined_signals.append_column(
                signal_rows.schema.field(name), signal_rows[name]
            )
    return joined_signals
