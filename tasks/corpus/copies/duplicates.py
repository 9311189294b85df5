"""Share code between the stages that remove duplicates.

Ranks documents by which copy is kept, joins duplicates into clusters, and turns the decision about
all documents into the tables of each partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from hallmark.tasks.contract import (
    ID_TYPE,
    ItemResult,
    StageConfig,
    TablePart,
    TableWriters,
    build_document_ledger_columns,
    build_ledger_table,
    build_removal_ledger_columns,
    count_utf8_bytes,
    ids_to_uint64_pairs,
    replace_columns,
)

Int64Array = NDArray[np.int64]
UInt64Array = NDArray[np.uint64]
BoolArray = NDArray[np.bool_]


class KeepPreferenceConfig(StageConfig):
    """Configure which of several copies is kept.

    Copies are ranked by source, in the configured order; then by length, longest first; then by
    doc_id, smallest first. The result does not depend on the order of documents or partitions.
    """

    preferred_sources: tuple[str, ...] = Field(
        (),
        description="sources, or parts of sources, in order of priority; among duplicates, the "
        "document whose source is listed first is kept",
    )


#: Reason to remove a document with the id of an earlier one but another text.
REUSED_ID_REASON = "id used before"

#: Columns needed to rank and identify a document; 48 bytes each.
RANKING_SCHEMA = pa.schema(
    [("doc_id", ID_TYPE), ("cluster", ID_TYPE), ("preference", pa.int32()), ("bytes", pa.int64())]
)


def is_source_or_part(source: str, parent: str) -> bool:
    """Return whether a source has this name or is a part of the source with this name."""
    return f"{source}/".startswith(f"{parent}/")


def build_ranking_columns(
    batch: pa.RecordBatch, preferred_sources: Sequence[str]
) -> dict[str, pa.Array]:
    """Build the columns of RANKING_SCHEMA.

    Args:
        batch: Has doc_id, cluster, source and text.
    """
    sources = batch["source"].dictionary_encode()
    preference_ranks = [
        next(
            (
                rank
                for rank, name in enumerate(preferred_sources)
                if is_source_or_part(source, name)
            ),
            None,
        )
        for source in sources.dictionary.to_pylist()
    ]
    preference = pa.array(preference_ranks, pa.int32()).take(sources.indices)
    return {
        "doc_id": batch["doc_id"],
        "cluster": batch["cluster"],
        "preference": pc.fill_null(preference, len(preferred_sources)),
        "bytes": count_utf8_bytes(batch["text"]),
    }


def order_by_keep_priority(documents: pa.Table) -> Int64Array:
    """Return the document positions in order of preference to be kept, (n,)."""
    doc_ids = ids_to_uint64_pairs(documents["doc_id"])
    sizes, preference = documents["bytes"].to_numpy(), documents["preference"].to_numpy()
    return np.lexsort((doc_ids[:, 1], doc_ids[:, 0], -sizes, preference))


def find_lowest_ranked_equal(rows: UInt64Array, ranks: Int64Array) -> Int64Array:
    """Return for each row the position of the equal row with the lowest rank.

    Args:
        rows: (n, 2) uint64.
        ranks: (n,) distinct integers.
    """
    sort_order = np.lexsort((ranks, rows[:, 1], rows[:, 0]))
    sorted_rows = rows[sort_order]
    starts_group = np.ones(len(sort_order), bool)
    starts_group[1:] = (sorted_rows[1:] != sorted_rows[:-1]).any(axis=1)
    del sorted_rows
    group_heads = np.arange(len(sort_order))
    group_heads[~starts_group] = 0
    np.maximum.accumulate(group_heads, out=group_heads)
    lowest_ranked = np.empty(len(sort_order), np.int64)
    lowest_ranked[sort_order] = sort_order[group_heads]
    return lowest_ranked


class ClusterAssignment(NamedTuple):
    """Hold the clusters of n documents."""

    cluster_ids: pa.Array
    """Ids of the clusters, (n,)."""
    joins_earlier_clusters: BoolArray
    """Whether the document is similar to several clusters of earlier corpora; shape (n,)."""


def assign_clusters(
    documents: pa.Table,
    earlier_signatures: pa.Table,
    duplicate_of_positions: Int64Array,
    pair_first_positions: Int64Array,
    pair_second_positions: Int64Array,
) -> ClusterAssignment:
    """Assign a cluster to each document.

    Documents are joined if they arrive in the same cluster, if one was removed as a duplicate of
    the other, or if they are a pair. Their cluster is the smallest doc_id among the kept ones. If
    earlier documents are among them, it is the cluster of the first of these. Positions count the
    earlier documents first.

    Args:
        documents: The n new documents, with the columns of RANKING_SCHEMA.
        earlier_signatures: Signatures of the m earlier documents that new ones may match, in the
            order of the earlier corpora.
        duplicate_of_positions: (n,) position of the document kept instead; -1 if kept.
        pair_first_positions: Positions of the first documents of further pairs.
        pair_second_positions: Positions of the second documents of further pairs.

    Returns:
        The clusters of the new documents.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n, m = len(documents), len(earlier_signatures)
    positions = np.arange(m + n)
    earlier_cluster_heads = find_lowest_ranked_equal(
        ids_to_uint64_pairs(earlier_signatures["cluster"]), positions[:m]
    )
    incoming_cluster_heads = np.concatenate(
        [
            ids_to_uint64_pairs(earlier_signatures["incoming_cluster"]),
            ids_to_uint64_pairs(documents["cluster"]),
        ]
    )
    incoming_cluster_heads = np.concatenate(
        [earlier_cluster_heads, find_lowest_ranked_equal(incoming_cluster_heads, positions)[m:]]
    )
    removed = np.flatnonzero(duplicate_of_positions >= 0)
    clustered = np.flatnonzero(incoming_cluster_heads != positions)
    edges = (
        np.concatenate([clustered, m + removed, pair_first_positions]),
        np.concatenate(
            [
                incoming_cluster_heads[clustered],
                duplicate_of_positions[removed],
                pair_second_positions,
            ]
        ),
    )
    del incoming_cluster_heads
    graph = coo_array((np.ones(len(edges[0]), np.int8), edges), shape=(m + n, m + n))
    component_count, component_ids = connected_components(graph, directed=False)
    # Earlier documents first, then kept ones, then by doc_id.
    doc_ids = ids_to_uint64_pairs(documents["doc_id"])
    priority_order = m + np.lexsort((doc_ids[:, 1], doc_ids[:, 0], duplicate_of_positions >= 0))
    del doc_ids
    priority_order = np.concatenate([positions[:m], priority_order])
    ranks = np.empty(m + n, np.int64)
    ranks[priority_order] = positions
    lowest_ranks = np.full(component_count, m + n)
    np.minimum.at(lowest_ranks, component_ids, ranks)
    cluster_ids = pa.concat_arrays(
        [pa.array([], ID_TYPE), *earlier_signatures["cluster"].chunks, *documents["doc_id"].chunks]
    )
    cluster_ids = cluster_ids.take(pa.array(priority_order[lowest_ranks[component_ids[m:]]]))
    earlier_cluster_counts = np.bincount(
        component_ids[np.unique(earlier_cluster_heads)], minlength=component_count
    )
    return ClusterAssignment(cluster_ids, earlier_cluster_counts[component_ids[m:]] > 1)


# From the decision to the tables -----------------------------------------------------------------


@dataclass(frozen=True)
class DuplicateAssignment:
    """Hold the decision about each document, by its position in the input."""

    # position of the document kept instead, counting earlier ones first; -1 if this one is kept
    duplicate_of: Int64Array
    similarity: NDArray[np.float64]  # to that document; 1 if kept; NaN if only the ids are equal
    cluster: pa.Array  # ids
    joins_earlier_clusters: BoolArray  # whether it joins different clusters of earlier corpora

    @property
    def bridge_count(self) -> int:
        """Return how many kept documents join different clusters of earlier corpora."""
        return int((self.joins_earlier_clusters & (self.duplicate_of < 0)).sum())


@dataclass(frozen=True)
class PartitionAssignment:
    """Hold a partition with the decision about its documents."""

    partition: TablePart
    sketch_result: ItemResult  # spilled sketches; its value lists the documents that failed
    duplicate_of: pa.Array  # id of the document kept instead; null if this one is kept
    similarity: NDArray[np.float64]
    cluster: pa.Array

    def __str__(self) -> str:
        return str(self.partition)


def concatenate_doc_ids(earlier_signatures: pa.Table, documents: pa.Table) -> pa.Array:
    """Return the ids of earlier documents, then of all others."""
    return pa.concat_tables([earlier_signatures.select(["doc_id"]), documents.select(["doc_id"])])[
        "doc_id"
    ].combine_chunks()


def split_assignment_by_partition(
    partitions: Sequence[TablePart],
    sketch_results: Sequence[ItemResult],
    doc_ids: pa.Array,
    assignment: DuplicateAssignment,
) -> list[PartitionAssignment]:
    """Split the decision about all documents by partition.

    Args:
        doc_ids: Of earlier documents, then of all partitions in order.
    """
    duplicate_of_ids = doc_ids.take(
        pa.array(assignment.duplicate_of, mask=assignment.duplicate_of < 0)
    )
    assignments = []
    start = 0
    for partition, sketch_result in zip(partitions, sketch_results, strict=True):
        row_range = slice(start, start + partition.row_count)
        start = row_range.stop
        similarity = assignment.similarity[row_range].copy()
        cluster = _copy_slice(assignment.cluster[row_range])
        assignments.append(
            PartitionAssignment(
                partition,
                sketch_result,
                _copy_slice(duplicate_of_ids[row_range]),
                similarity,
                cluster,
            )
        )
    return assignments


def _copy_slice(array_slice: pa.Array) -> pa.Array:
    """Copy a slice; sent to another process without a copy, it would include the whole array."""
    return pa.concat_arrays([array_slice.take(pa.array(np.arange(len(array_slice))))])


def write_deduplicated_partition(
    assignment: PartitionAssignment,
    reason: str,
    threshold: float,
    sketch_schema: pa.Schema,
    out: TableWriters,
) -> None:
    """Write the kept documents, their signatures and the ledger rows of the others.

    Args:
        sketch_schema: Schema of the spilled sketches; its last column is the signature.
    """
    failures_by_id = dict(assignment.sketch_result.value)
    start = 0
    for batch in assignment.partition.iter_batches():
        row_range = slice(start, start + len(batch))
        start = row_range.stop
        duplicate_of = assignment.duplicate_of[row_range]
        failure_reasons = _look_up_failure_reasons(batch, failures_by_id)
        has_failed = failure_reasons.is_valid()
        is_removed = pc.and_(duplicate_of.is_valid(), failure_reasons.is_null())
        is_kept = pc.and_(duplicate_of.is_null(), failure_reasons.is_null())
        kept_documents = pa.table(
            replace_columns(batch, cluster=assignment.cluster[row_range])
        ).filter(is_kept)
        out.get_table_writer("documents").write(kept_documents)
        # from_pandas turns NaN into null.
        scores = pa.array(assignment.similarity[row_range], from_pandas=True).filter(is_removed)
        removal_rows = build_removal_ledger_columns(
            pc.if_else(scores.is_valid(), reason, REUSED_ID_REASON),
            batch.filter(is_removed),
            score=scores,
            threshold=pc.if_else(scores.is_valid(), threshold, None),
            matched_doc_id=duplicate_of.filter(is_removed),
        )
        quarantine_rows = build_document_ledger_columns(
            "quarantined", failure_reasons.drop_null(), batch.filter(has_failed)
        )
        out.get_table_writer("ledger").write(build_ledger_table(removal_rows, quarantine_rows))
    sketches = assignment.sketch_result.open_spilled_table("sketches", sketch_schema)
    sketches = sketches.rename_columns({"cluster": "incoming_cluster"}).append_column(
        "cluster", assignment.cluster
    )
    signature_rows = sketches.select(
        ["doc_id", "incoming_cluster", "cluster", sketch_schema.names[-1]]
    )
    is_kept = pc.and_(
        assignment.duplicate_of.is_null(),
        _look_up_failure_reasons(sketches, failures_by_id).is_null(),
    )
    out.get_table_writer("signatures").write(signature_rows.filter(is_kept))


def _look_up_failure_reasons(
    batch: pa.RecordBatch | pa.Table, failures_by_id: Mapping[str, str]
) -> pa.Array:
    """Return why each document failed; null for the others.

    Args:
        failures_by_id: Reasons by hexadecimal doc_id.
    """
    if not failures_by_id:
        return pa.nulls(len(batch), pa.string())
    return pa.array([failures_by_id.get(i.hex()) for i in batch["doc_id"].to_pylist()], pa.string())
