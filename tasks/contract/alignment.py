"""Tables about the same documents, side by side."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract.artifact import Table, TablePart
from hallmark.tasks.contract.errors import HallmarkError


def align_parts(*tables: Table) -> list[tuple[TablePart, ...]]:
    """The parts of tables that are cut alike, side by side, piece by piece."""
    layouts = [table.parts_per_segment for table in tables]
    if any(layout != layouts[0] for layout in layouts):
        descriptions = " and ".join(
            f"{table.name} of {' and '.join(artifact.name for artifact in table.artifacts)} "
            f"({' and '.join(map(str, layout))} parts)"
            for table, layout in zip(tables, layouts, strict=True)
        )
        raise HallmarkError(
            f"{descriptions} are not cut alike, so they are not about one corpus; make both "
            f"from the same "
            f"ingest"
        )
    return list(zip(*(table.parts for table in tables), strict=True))


def lookup_column_by_doc_id(
    annotations: TablePart, column_name: str, documents: TablePart
) -> pa.ChunkedArray:
    """A column of what was told of documents, for those of a part, in their order: some may have
    left since, and of what was planted in the corpus since nothing is told, so that is null.

    Raises HallmarkError where it says nothing of another document: it is of another corpus.
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
            f"{annotations} says nothing of {unmatched_count} of {documents}: it must have "
            f"been made of the same "
            f"corpus"
        )
    return annotation_rows[column_name].take(row_indices)
