"""Write and join signals: values that stages compute for each document.

A table of signals has one row per document, in the order and partitions of the documents. Signals
decide nothing: ``select`` applies rules to them, so another bound needs no new computation. Signals
are named by their columns, and no two stages may share a name. If a stage fails on a document, its
signals are null, and rules treat them as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

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
    run_with_failing_texts_emptied,
)


def build_signal_schema(meaning: str, *fields: pa.Field) -> pa.Schema:
    """Build the schema of a stage's table ``signals``."""
    return table_schema(
        meaning, column("doc_id", ID_TYPE, "id", "the document"), *fields, partition_by_doc_id=True
    )


def get_types_by_signal(*schemas: pa.Schema) -> dict[str, pa.DataType]:
    """Return the type of each signal in these schemas, by name."""
    return {
        field.name: field.type for schema in schemas for field in schema if field.name != "doc_id"
    }


def write_signals(
    partition: TablePart,
    compute_signals: Callable[[pa.RecordBatch], Mapping[str, pa.Array]],
    out: TableWriters,
) -> FailureList:
    """Compute and write the signals of a partition.

    Args:
        compute_signals: Returns the columns of signals for a batch with doc_id and text.

    Returns:
        The documents on which ``compute_signals`` failed; their signals are null.
    """
    failures: FailureList = []
    for batch in partition.iter_batches(["doc_id", "text"]):
        columns, faults = run_with_failing_texts_emptied(compute_signals, batch)
        if len(faults):
            is_faulty = np.isin(np.arange(len(batch)), faults.rows)
            row_indices = pa.array(np.arange(len(batch)), mask=is_faulty)
            columns = {name: values.take(row_indices) for name, values in columns.items()}
            failures += list_failures_by_doc_id(batch, faults)
        out.get_table_writer("signals").write({"doc_id": batch["doc_id"], **columns})
    return failures


def concatenate_signal_columns(
    expected_documents: TablePart, signal_partitions: Iterable[TablePart]
) -> pa.Table:
    """Concatenate doc_id and all signals of a partition into one table in memory.

    Raises:
        HallmarkError: A table has other documents or another order, or two tables share a column
            name.
    """
    doc_ids = expected_documents.read(["doc_id"])["doc_id"].combine_chunks()
    joined_signals = pa.table({"doc_id": doc_ids})
    for signal_partition in signal_partitions:
        signal_rows = signal_partition.read()
        if not signal_rows["doc_id"].combine_chunks().equals(doc_ids):
            raise HallmarkError(
                f"{expected_documents} and {signal_partition} describe different documents; first "
                "run the stages that compute signals on these documents"
            )
        for name in signal_rows.schema.names:
            if name == "doc_id":
                continue
            if name in joined_signals.schema.names:
                raise HallmarkError(
                    f"two stages compute a signal with the name {name!r}; rename one of the signals"
                )
            joined_signals = joined_signals.append_column(
                signal_rows.schema.field(name), signal_rows[name]
            )
    return joined_signals
