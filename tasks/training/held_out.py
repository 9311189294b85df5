"""Which stretches of the validation rows belong to which source and identity group."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from tasks.contract import ID, Table
from tasks.measures.identities import mentioned_groups

#: Of each validation document: what it belongs to. The trainer takes it with the documents' places
#: in the packed rows (model/training/validation.py, GROUPS).
MEMBERSHIP = pa.schema([("doc_id", ID), ("kind", pa.string()), ("name", pa.string())])


def validation_groups(documents: Table, spans: Table) -> pa.Table:
    """Columns sequence, start, end, kind, name: a row for each stretch of a validation document
    in the packed rows, for its source and for each identity group that the document mentions."""
    stretches = spans.read(["split", "sequence", "start", "end", "doc_id"])
    stretches = stretches.filter(pc.equal(stretches["split"], "validation")).drop_columns("split")
    membership = pa.concat_tables([MEMBERSHIP.empty_table(), *_memberships(documents)])
    joined = stretches.join(membership, "doc_id", join_type="inner", use_threads=False)
    order = [(name, "ascending") for name in ("sequence", "start", "kind", "name")]
    return joined.select(["sequence", "start", "end", "kind", "name"]).sort_by(order)


def _memberships(documents: Table) -> Iterator[pa.Table]:
    for batch in documents.batches(["doc_id", "source", "text", "split"]):
        held_out = batch.filter(pc.equal(batch["split"], "validation"))
        yield _rows(held_out["doc_id"], "source", held_out["source"])
        group, owner = mentioned_groups(held_out["text"])
        yield _rows(held_out["doc_id"].take(owner), "identity", group)


def _rows(doc_id: pa.Array, kind: str, name: pa.Array) -> pa.Table:
    kinds = pa.array([kind] * len(doc_id), pa.string())
    return pa.table([doc_id, kinds, name.cast(pa.string())], schema=MEMBERSHIP)
