"""Relate validation documents and their packed spans to sources and identity groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract import ID_TYPE, Table, align_parts, lookup_column_by_doc_id

#: Source and identity groups of each validation document. The trainer gets them with the documents'
#: spans in the packed rows (model/training/validation.py, GROUPS).
MEMBERSHIP = pa.schema([("doc_id", ID_TYPE), ("kind", pa.string()), ("name", pa.string())])


class ValidationBatch(NamedTuple):
    """Documents of the validation split and the m groups that they mention.

    Attributes:
        documents: The documents.
        group_names: (m,) a group that a document mentions.
        document_rows: (m,) row of this document in the batch.
    """

    documents: pa.RecordBatch
    group_names: pa.Array
    document_rows: pa.Array


def iter_validation_batches(
    documents: Table, identity_signals: Table | None, columns: Sequence[str]
) -> Iterator[ValidationBatch]:
    """Yield batches of the validation split with the groups that their documents mention.

    Args:
        documents: All documents.
        identity_signals: Output of the `identities` stage, which covers the groups of all lexicons.
            Documents without signals, such as planted ones, mention no group; without this table no
            document does.
        columns: Columns of the batches, besides doc_id and split.
    """
    aligned_parts = (
        align_parts(documents, identity_signals)
        if identity_signals
        else [(part, None) for part in documents.parts]
    )
    for part, part_signals in aligned_parts:
        identity_lists = (
            lookup_column_by_doc_id(part_signals, "identities", part).combine_chunks()
            if part_signals
            else None
        )
        start = 0
        for batch in part.iter_batches(["doc_id", "split", *columns]):
            is_validation = pc.equal(batch["split"], "validation")
            batch_rows = slice(start, start + len(batch))
            start = batch_rows.stop
            validation_batch = batch.filter(is_validation)
            if identity_lists is None:
                no_groups, no_rows = pa.array([], pa.string()), pa.array([], pa.int64())
                yield ValidationBatch(validation_batch, no_groups, no_rows)
                continue
            group_lists = identity_lists[batch_rows].filter(is_validation)
            yield ValidationBatch(
                validation_batch,
                pc.list_flatten(group_lists),
                pc.list_parent_indices(group_lists),
            )


def build_validation_groups(
    documents: Table, identity_signals: Table | None, spans: Table
) -> pa.Table:
    """Build rows that assign each validation span to its source and its document's groups.

    Returns:
        Columns sequence, row_start, row_end, kind, name.
    """
    validation_spans = spans.read(["split", "sequence", "row_start", "row_end", "doc_id"])
    validation_spans = validation_spans.filter(
        pc.equal(validation_spans["split"], "validation")
    ).drop_columns("split")
    memberships = pa.concat_tables(
        [MEMBERSHIP.empty_table(), *_iter_memberships(documents, identity_signals)]
    )
    joined_spans = validation_spans.join(
        memberships, "doc_id", join_type="inner", use_threads=False
    )
    sort_keys = [
        (column_name, "ascending") for column_name in ("sequence", "row_start", "kind", "name")
    ]
    return joined_spans.select(["sequence", "row_start", "row_end", "kind", "name"]).sort_by(
        sort_keys
    )


def _iter_memberships(documents: Table, identity_signals: Table | None) -> Iterator[pa.Table]:
    for batch, group_names, document_indices in iter_validation_batches(
        documents, identity_signals, ["source"]
    ):
        yield _build_membership_rows(batch["doc_id"], "source", batch["source"])
        yield _build_membership_rows(
            batch["doc_id"].take(document_indices), "identity", group_names
        )


def _build_membership_rows(doc_ids: pa.Array, kind: str, names: pa.Array) -> pa.Table:
    kinds = pa.array([kind] * len(doc_ids), pa.string())
    return pa.table([doc_ids, kinds, names.cast(pa.string())], schema=MEMBERSHIP)
