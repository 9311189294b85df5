"""Signals: what stages say of each document, a row each, in the order and cut of the documents.

A signal decides nothing. ``select`` reads signals, applies its rules to them, and keeps or removes:
another bound measures nothing again. Signals are named as their columns are; no two stages have one
of the same name. A document on which a stage fails has null signals, which rules call unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from tasks.contract import ID, HallmarkError, Part, Tables, column, table
from tasks.measures.faults import Noted, careful, noted


def signals(meaning: str, *fields: pa.Field) -> pa.Schema:
    """Schema of a stage's table ``signals``."""
    return table(meaning, column("doc_id", ID, "id", "the document"), *fields, cut=True)


def kinds_of(*schemas: pa.Schema) -> dict[str, pa.DataType]:
    """The type of each signal of these tables."""
    return {f.name: f.type for schema in schemas for f in schema if f.name != "doc_id"}


def write_signals(
    part: Part, kernel: Callable[[pa.RecordBatch], Mapping[str, pa.Array]], out: Tables
) -> Noted:
    """Write the signals of a part: the columns that the kernel gives for its documents (doc_id,
    text), null for those on which it fails. Returns these."""
    failed: Noted = []
    for batch in part.batches(["doc_id", "text"]):
        columns, faults = careful(kernel, batch)
        if len(faults):
            bad = np.isin(np.arange(len(batch)), faults.rows)
            rows = pa.array(np.arange(len(batch)), mask=bad)
            columns = {name: values.take(rows) for name, values in columns.items()}
            failed += noted(batch, faults)
        out.table("signals").write({"doc_id": batch["doc_id"], **columns})
    return failed


def of_part(documents: Part, tables: Mapping[str, Part]) -> pa.Table:
    """The signals of a part's documents side by side, a row each, held in memory.

    Raises HallmarkError where a table is about other documents, or two have a column of one name.
    """
    ids = documents.read(["doc_id"])["doc_id"].combine_chunks()
    found = pa.table({"doc_id": ids})
    for part in tables.values():
        rows = part.read()
        if not rows["doc_id"].combine_chunks().equals(ids):
            raise HallmarkError(
                f"{documents} and {part} are not about the same documents: make the signals of "
                f"these ones first"
            )
        for name in rows.schema.names:
            if name == "doc_id":
                continue
            if name in found.schema.names:
                raise HallmarkError(f"two stages have a signal {name!r}; rename one of them")
            found = found.append_column(rows.schema.field(name), rows[name])
    return found
