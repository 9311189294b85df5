"""Tables about the same documents, side by side."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tasks.contract.artifact import Part, Table
from tasks.contract.errors import HallmarkError


def aligned(*tables: Table) -> list[tuple[Part, ...]]:
    """The parts of tables that are cut alike, side by side, piece by piece."""
    cuts = [table.pieces for table in tables]
    if any(cut != cuts[0] for cut in cuts):
        said = " and ".join(
            f"{table.name} of {' and '.join(a.name for a in table.artifacts)} "
            f"({' and '.join(map(str, cut))} parts)"
            for table, cut in zip(tables, cuts, strict=True)
        )
        raise HallmarkError(
            f"{said} are not cut alike, so they are not about one corpus; make both from the same "
            f"ingest"
        )
    return list(zip(*(table.parts for table in tables), strict=True))


def looked_up(told: Part, name: str, documents: Part) -> pa.ChunkedArray:
    """A column of what was told of documents, for those of a part, in their order: some may have
    left since, and of what was planted in the corpus since nothing is told, so that is null.

    Raises HallmarkError where it says nothing of another document: it is of another corpus.
    """
    rows, ours = told.read(["doc_id", name]), documents.read(["doc_id", "source"])
    at = pc.index_in(ours["doc_id"], value_set=rows["doc_id"].combine_chunks())
    planted = pc.starts_with(ours["source"], "planted/")
    unknown = pc.sum(pc.and_not(pc.is_null(at), planted)).as_py() or 0
    if unknown:
        raise HallmarkError(
            f"{told} says nothing of {unknown} of {documents}: it must have been made of the same "
            f"corpus"
        )
    return rows[name].take(at)
