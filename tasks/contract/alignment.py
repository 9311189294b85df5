"""Align tables that have rows about the same documents.

Tables of one corpus are divided into the same partitions, so part k of each has rows about the same
documents, and one part of each at a time is enough to join them.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract.artifact import Table, TablePart
from hallmark.tasks.contract.errors import HallmarkError


def align_parts(*tables: Table) -> list[tuple[TablePart, ...]]:
    """Return tuples of the corresponding parts of tables.

    Raises:
        HallmarkError: The tables have different partitions.
    """
    layouts = [table.parts_per_segment for table in tables]
    if any(layout != layouts[0] for layout in layouts):
        descriptions = " and ".join(
            f"{table.name} of {' and '.join(artifact.name for artifact in table.artifacts)} "
            f"({' and '.join(map(str, layout))} parts)"
            for table, layout in zip(tables, layouts, strict=True)
        )
        raise HallmarkError(
            f"{descriptions} have different partitions, so they are from different corpora; use "
            "tables computed from the same ingest"
        )
    return list(zip(*(table.parts for table in tables), strict=True))


def lookup_column_by_doc_id(
    annotations: TablePart, column_name: str, documents: TablePart
) -> pa.ChunkedArray:
    """Look up a column of annotations for the documents of a part, in the order of the documents.

    Args:
        annotations: Part with ``doc_id`` and the column; it may have rows about further documents.
        column_name: Name of the column.
        documents: Part with ``doc_id`` and ``source``.

    Returns:
        The column; null for canaries (planted documents) without an annotation.

    Raises:
        HallmarkError: Another document has no annotation, so the corpora differ.
    """
    annotation_rows, document_rows = (
        annotations.read(["doc_id", column_name]),
        documents.read(["doc_id", "source"]),
    )
    row_indices = pc.index_in(
        document_rows["doc_id"], value_set=annotation_rows["doc_id"].combine_chunks()
    )
    is_planted = pc.starts_with(document_rows["source"], "planted/")
    unmatched_count = pc.sum(pc.and_not(pc.is_null(row_indices), is_planted)).as_py() or 0
    if unmatched_count:
        raise HallmarkError(
            f"{annotations} has no rows for {unmatched_count} of the documents in {documents}; "
            "use tables computed from the same corpus"
        )
    return annotation_rows[column_name].take(row_indices)
