"""What the stages that remove duplicates share: who comes first, clusters, and how a verdict on all
documents becomes the tables of each part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from tasks.contract import (
    ID,
    Part,
    StageConfig,
    Tables,
    removals,
    utf8_bytes,
    with_columns,
)

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
Bools = NDArray[np.bool_]


class KeeperConfig(StageConfig):
    """Which of several copies stays: that of the source named first, then the longest, then that of
    the smallest doc_id. Content decides, neither order nor parts."""

    prefer: tuple[str, ...] = Field(
        (), description="sources whose documents are kept before those of others, best first"
    )


#: What must be known of a document to rank it and to name it; 48 bytes.
STANDING = pa.schema(
    [("doc_id", ID), ("cluster", ID), ("preference", pa.int32()), ("bytes", pa.int64())]
)


def standing(batch: pa.RecordBatch, prefer: Sequence[str]) -> dict[str, pa.Array]:
    """The columns of STANDING for a batch with doc_id, cluster, source and text."""
    preference = pc.index_in(batch["source"], value_set=pa.array(prefer, pa.string()))
    return {
        "doc_id": batch["doc_id"],
        "cluster": batch["cluster"],
        "preference": pc.fill_null(preference, len(prefer)),
        "bytes": utf8_bytes(batch["text"]),
    }


def by_rank(known: pa.Table) -> Int64:
    """The places of the documents in the order in which they would be kept, (n,)."""
    doc_ids = halves(known["doc_id"])
    sizes, preference = known["bytes"].to_numpy(), known["preference"].to_numpy()
    return np.lexsort((doc_ids[:, 1], doc_ids[:, 0], -sizes, preference))


def halves(column: pa.ChunkedArray) -> UInt64:
    """16-byte ids as (n, 2) uint64 that sort as the bytes do."""
    found = [
        np.frombuffer(chunk.buffers()[1], ">u8", 2 * len(chunk), 16 * chunk.offset)
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate([np.empty(0, ">u8"), *found]).astype(np.uint64).reshape(-1, 2)


def first_of_equals(values: UInt64, rank: Int64) -> Int64:
    """For each row of values the place of the equal row with the lowest rank.

    values: (n, 2) uint64; rank: (n,) distinct integers.
    """
    order = np.lexsort((rank, values[:, 1], values[:, 0]))
    ordered = values[order]
    new = np.ones(len(order), bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    head = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    first = np.empty(len(order), np.int64)
    first[order] = order[head]
    return first


def clusters(known: pa.Table, twin: Int64, left: Int64, right: Int64) -> pa.Array:
    """The cluster of each document: the smallest doc_id among the kept ones joined with it, by the
    clusters that came in, by a removed document and its twin, or by a pair (left, right)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    doc_ids = halves(known["doc_id"])
    n = len(doc_ids)
    place = np.arange(n)
    gone = np.flatnonzero(twin >= 0)
    ends = (
        np.concatenate([place, gone, left]),
        np.concatenate([first_of_equals(halves(known["cluster"]), place), twin[gone], right]),
    )
    graph = coo_array((np.ones(len(ends[0]), np.int8), ends), shape=(n, n))
    _, label = connected_components(graph, directed=False)
    rank = np.empty(n, np.int64)  # kept documents first, then by doc_id
    rank[np.lexsort((doc_ids[:, 1], doc_ids[:, 0], twin >= 0))] = place
    labels = np.stack([label, np.zeros(n)], axis=1).astype(np.uint64)
    return known["doc_id"].combine_chunks().take(pa.array(first_of_equals(labels, rank)))


# From the verdict to the tables ------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """For each document, by its place in the input."""

    twin: Int64  # the kept document it is a copy of, -1 of those kept
    similarity: NDArray[np.float64]  # to the twin; 1 of those kept
    cluster: pa.Array  # ids


@dataclass(frozen=True)
class Ruling:
    """A part with the verdict on its documents."""

    part: Part
    twin: pa.Array  # ids of the kept documents they are copies of, null of those kept
    similarity: NDArray[np.float64]
    cluster: pa.Array

    def __str__(self) -> str:
        return str(self.part)


def rulings(parts: Sequence[Part], doc_ids: pa.ChunkedArray, verdict: Verdict) -> list[Ruling]:
    """doc_ids: of all parts behind one another."""
    twins = doc_ids.combine_chunks().take(pa.array(verdict.twin, mask=verdict.twin < 0))
    found = []
    start = 0
    for part in parts:
        rows = slice(start, start + part.rows)
        start = rows.stop
        similarity = verdict.similarity[rows].copy()
        found.append(Ruling(part, _copied(twins[rows]), similarity, _copied(verdict.cluster[rows])))
    return found


def _copied(values: pa.Array) -> pa.Array:
    """A slice by itself: sent to another process, it would take the whole array along."""
    return pa.concat_arrays([values.take(pa.array(np.arange(len(values))))])


def write_part(ruling: Ruling, reason: str, threshold: float, out: Tables) -> None:
    """The documents of a part that stay, with their clusters, and a ledger row for each other."""
    start = 0
    for batch in ruling.part.batches():
        rows = slice(start, start + len(batch))
        start = rows.stop
        twin = ruling.twin[rows]
        gone = twin.is_valid()
        kept = pa.table(with_columns(batch, cluster=ruling.cluster[rows])).filter(pc.invert(gone))
        out.table("documents").write(kept)
        out.table("ledger").write(
            removals(
                reason,
                batch.filter(gone),
                score=ruling.similarity[rows][gone.to_numpy(zero_copy_only=False)],
                threshold=threshold,
                matched=twin.drop_null(),
            )
        )
