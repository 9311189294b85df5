"""What the stages that remove duplicates share: who comes first, clusters, and how a verdict on all
documents becomes the tables of each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    build_removal_columns,
    count_utf8_bytes,
    replace_columns,
)

Int64Array = NDArray[np.int64]
UInt64Array = NDArray[np.uint64]
BoolArray = NDArray[np.bool_]


class KeepPreferenceConfig(StageConfig):
    """Which of several copies stays: that of the source named first, then the longest, then that of
    the smallest doc_id. Content decides, neither order nor parts."""

    preferred_sources: tuple[str, ...] = Field(
        (),
        description="sources, each with its parts, whose documents are kept before those of "
        "others, best first",
    )


#: Why a document leaves that has the id of an earlier one, and another text.
REUSED_ID_REASON = "id used before"

#: What must be known of a document to rank it and to name it; 48 bytes.
RANKING_SCHEMA = pa.schema(
    [("doc_id", ID_TYPE), ("cluster", ID_TYPE), ("preference", pa.int32()), ("bytes", pa.int64())]
)


def is_source_or_part(source: str, parent: str) -> bool:
    """Whether a source has this name, or is a part of the one that has it."""
    return f"{source}/".startswith(f"{parent}/")


def build_ranking_columns(
    batch: pa.RecordBatch, preferred_sources: Sequence[str]
) -> dict[str, pa.Array]:
    """The columns of STANDING for a batch with doc_id, cluster, source and text."""
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
    """The places of the documents in the order in which they would be kept, (n,)."""
    doc_ids = ids_to_uint64_pairs(documents["doc_id"])
    sizes, preference = documents["bytes"].to_numpy(), documents["preference"].to_numpy()
    return np.lexsort((doc_ids[:, 1], doc_ids[:, 0], -sizes, preference))


def ids_to_uint64_pairs(column: pa.ChunkedArray) -> UInt64Array:
    """16-byte ids as (n, 2) uint64 that sort as the bytes do."""
    id_pairs, start = np.empty((len(column), 2), np.uint64), 0
    for chunk in column.chunks:
        if len(chunk):
            ids = np.frombuffer(chunk.buffers()[1], ">u8", 2 * len(chunk), 16 * chunk.offset)
            id_pairs[start : start + len(chunk)] = ids.reshape(-1, 2)
            start += len(chunk)
    return id_pairs


def find_lowest_ranked_equal(rows: UInt64Array, ranks: Int64Array) -> Int64Array:
    """For each row of values the place of the equal row with the lowest rank.

    values: (n, 2) uint64; rank: (n,) distinct integers.
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


def assign_clusters(
    documents: pa.Table,
    earlier_signatures: pa.Table,
    duplicate_of: Int64Array,
    pair_first: Int64Array,
    pair_second: Int64Array,
) -> tuple[pa.Array, BoolArray]:
    """The cluster of each of n documents, and whether it joins clusters that are apart, (n,).

    Documents are joined by the clusters that came in, by a removed document and its twin, or by a
    pair (left, right). Their cluster is the smallest doc_id among the kept ones; where an earlier
    document is among them, the cluster of the first of these.

    known: STANDING of the documents; before: the signatures of the m earlier documents that they
    may meet, in the order of the list. Places, also in ``twin`` (n,), count the earlier ones first.
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
    removed, clustered = (
        np.flatnonzero(duplicate_of >= 0),
        np.flatnonzero(incoming_cluster_heads != positions),
    )
    edges = (
        np.concatenate([clustered, m + removed, pair_first]),
        np.concatenate([incoming_cluster_heads[clustered], duplicate_of[removed], pair_second]),
    )
    del incoming_cluster_heads
    graph = coo_array((np.ones(len(edges[0]), np.int8), edges), shape=(m + n, m + n))
    component_count, component_ids = connected_components(graph, directed=False)
    # Earlier documents first, then kept ones, then by doc_id.
    doc_ids = ids_to_uint64_pairs(documents["doc_id"])
    priority_order = m + np.lexsort((doc_ids[:, 1], doc_ids[:, 0], duplicate_of >= 0))
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
    return cluster_ids, earlier_cluster_counts[component_ids[m:]] > 1


# From the verdict to the tables ------------------------------------------------------------------


@dataclass(frozen=True)
class DuplicateAssignment:
    """For each document, by its place in the input."""

    # the index of the document that is kept in its place, earlier ones first; -1 if itself is kept
    duplicate_of: Int64Array
    similarity: NDArray[np.float64]  # to the twin; 1 of those kept; NaN where it has but its id
    cluster: pa.Array  # ids
    joins_earlier_clusters: BoolArray  # whether it joins clusters of earlier corpora that are apart

    @property
    def bridge_count(self) -> int:
        """How many that stay join such clusters."""
        return int((self.joins_earlier_clusters & (self.duplicate_of < 0)).sum())


@dataclass(frozen=True)
class PartitionAssignment:
    """A part with the verdict on its documents."""

    partition: TablePart
    sketch_result: (
        ItemResult  # what ``sketch`` left of it; its value tells the documents that failed
    )
    duplicate_of: pa.Array  # ids of the documents that stay for them, null of those kept
    similarity: NDArray[np.float64]
    cluster: pa.Array

    def __str__(self) -> str:
        return str(self.partition)


def concatenate_doc_ids(earlier_signatures: pa.Table, documents: pa.Table) -> pa.Array:
    """The ids of earlier documents, then of all others."""
    return pa.concat_tables([earlier_signatures.select(["doc_id"]), documents.select(["doc_id"])])[
        "doc_id"
    ].combine_chunks()


def split_by_partition(
    partitions: Sequence[TablePart],
    sketch_results: Sequence[ItemResult],
    doc_ids: pa.Array,
    assignment: DuplicateAssignment,
) -> list[PartitionAssignment]:
    """doc_ids: of earlier documents, then of all parts behind one another."""
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
    """A slice by itself: sent to another process, it would take the whole array along."""
    return pa.concat_arrays([array_slice.take(pa.array(np.arange(len(array_slice))))])


def write_deduplicated_partition(
    assignment: PartitionAssignment,
    reason: str,
    threshold: float,
    sketch_schema: pa.Schema,
    out: TableWriters,
) -> None:
    """The documents of a part that stay, with their clusters and signatures, and a ledger row for
    each other. ``sketches``: the schema of what was spilled; its last column is the signature."""
    failures_by_id = dict(assignment.sketch_result.value)
    start = 0
    for batch in assignment.partition.iter_batches():
        row_range = slice(start, start + len(batch))
        start = row_range.stop
        duplicate_of, failure_reasons = (
            assignment.duplicate_of[row_range],
            _look_up_failure_reasons(batch, failures_by_id),
        )
        has_failed = failure_reasons.is_valid()
        is_removed = pc.and_(duplicate_of.is_valid(), failure_reasons.is_null())
        is_kept = pc.and_(duplicate_of.is_null(), failure_reasons.is_null())
        kept_documents = pa.table(
            replace_columns(batch, cluster=assignment.cluster[row_range])
        ).filter(is_kept)
        out.get_table_writer("documents").write(kept_documents)
        scores = pa.array(assignment.similarity[row_range], from_pandas=True).filter(
            is_removed
        )  # NaN is null
        removal_rows = build_removal_columns(
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
    """Of each document of a batch why it failed, null of all others; ``failed``: by doc_id."""
    if not failures_by_id:
        return pa.nulls(len(batch), pa.string())
    return pa.array([failures_by_id.get(i.hex()) for i in batch["doc_id"].to_pylist()], pa.string())
