"""Documents of the validation split, the groups of people that they mention, and which stretches of
the validation rows belong to which source and group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tasks.contract import ID, Table, aligned, looked_up

#: Of each validation document: what it belongs to. The trainer takes it with the documents' places
#: in the packed rows (model/training/validation.py, GROUPS).
MEMBERSHIP = pa.schema([("doc_id", ID), ("kind", pa.string()), ("name", pa.string())])


def held_out_documents(
    documents: Table, signals: Table | None, columns: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, pa.Array, pa.Array]]:
    """Batches of the validation split with these columns; beside each the groups that its documents
    mention, a row each time one mentions a group, and the number of that document in the batch.

    ``signals``: those of the stage ``identities``, which know the groups of every lexicon that the
    corpus was read with. Documents that are not in them, the planted ones, mention nobody, and
    without signals no document does.
    """
    pairs = aligned(documents, signals) if signals else [(p, None) for p in documents.parts]
    for part, told in pairs:
        known = looked_up(told, "identities", part).combine_chunks() if told else None
        start = 0
        for batch in part.batches(["doc_id", "split", *columns]):
            chosen = pc.equal(batch["split"], "validation")
            here = slice(start, start + len(batch))
            start = here.stop
            held_out = batch.filter(chosen)
            if known is None:
                yield held_out, pa.array([], pa.string()), pa.array([], pa.int64())
                continue
            groups = known[here].filter(chosen)
            yield held_out, pc.list_flatten(groups), pc.list_parent_indices(groups)


def validation_groups(documents: Table, signals: Table | None, spans: Table) -> pa.Table:
    """Columns sequence, start, end, kind, name: a row for each stretch of a validation document
    in the packed rows, for its source and for each identity group that the document mentions."""
    stretches = spans.read(["split", "sequence", "start", "end", "doc_id"])
    stretches = stretches.filter(pc.equal(stretches["split"], "validation")).drop_columns("split")
    membership = pa.concat_tables([MEMBERSHIP.empty_table(), *_memberships(documents, signals)])
    joined = stretches.join(membership, "doc_id", join_type="inner", use_threads=False)
    order = [(name, "ascending") for name in ("sequence", "start", "kind", "name")]
    return joined.select(["sequence", "start", "end", "kind", "name"]).sort_by(order)


def _memberships(documents: Table, signals: Table | None) -> Iterator[pa.Table]:
    for batch, group, owner in held_out_documents(documents, signals, ["source"]):
        yield _rows(batch["doc_id"], "source", batch["source"])
        yield _rows(batch["doc_id"].take(owner), "identity", group)


def _rows(doc_id: pa.Array, kind: str, name: pa.Array) -> pa.Table:
    kinds = pa.array([kind] * len(doc_id), pa.string())
    return pa.table([doc_id, kinds, name.cast(pa.string())], schema=MEMBERSHIP)
