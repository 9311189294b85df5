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

from tasks.contract import (
    ID,
    Done,
    Part,
    StageConfig,
    Tables,
    departures,
    ledger_table,
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
        (),
        description="sources, each with its parts, whose documents are kept before those of "
        "others, best first",
    )


#: Why a document leaves that has the id of an earlier one, and another text.
KNOWN_ID = "known id"

#: What must be known of a document to rank it and to name it; 48 bytes.
STANDING = pa.schema(
    [("doc_id", ID), ("cluster", ID), ("preference", pa.int32()), ("bytes", pa.int64())]
)


def belongs(source: str, name: str) -> bool:
    """Whether a source has this name, or is a part of the one that has it."""
    return f"{source}/".startswith(f"{name}/")


def standing(batch: pa.RecordBatch, prefer: Sequence[str]) -> dict[str, pa.Array]:
    """The columns of STANDING for a batch with doc_id, cluster, source and text."""
    sources = batch["source"].dictionary_encode()
    places = [
        next((n for n, name in enumerate(prefer) if belongs(source, name)), None)
        for source in sources.dictionary.to_pylist()
    ]
    preference = pa.array(places, pa.int32()).take(sources.indices)
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
    found, start = np.empty((len(column), 2), np.uint64), 0
    for chunk in column.chunks:
        if len(chunk):
            ids = np.frombuffer(chunk.buffers()[1], ">u8", 2 * len(chunk), 16 * chunk.offset)
            found[start : start + len(chunk)] = ids.reshape(-1, 2)
            start += len(chunk)
    return found


def first_of_equals(values: UInt64, rank: Int64) -> Int64:
    """For each row of values the place of the equal row with the lowest rank.

    values: (n, 2) uint64; rank: (n,) distinct integers.
    """
    order = np.lexsort((rank, values[:, 1], values[:, 0]))
    ordered = values[order]
    new = np.ones(len(order), bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    del ordered
    head = np.arange(len(order))
    head[~new] = 0
    np.maximum.accumulate(head, out=head)
    first = np.empty(len(order), np.int64)
    first[order] = order[head]
    return first


def clusters(
    known: pa.Table, before: pa.Table, twin: Int64, left: Int64, right: Int64
) -> tuple[pa.Array, Bools]:
    """The cluster of each of n documents, and whether it joins clusters that are apart, (n,).

    Documents are joined by the clusters that came in, by a removed document and its twin, or by a
    pair (left, right). Their cluster is the smallest doc_id among the kept ones; where an earlier
    document is among them, the cluster of the first of these.

    known: STANDING of the documents; before: the signatures of the m earlier documents that they
    may meet, in the order of the list. Places, also in ``twin`` (n,), count the earlier ones first.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n, m = len(known), len(before)
    place = np.arange(m + n)
    home = first_of_equals(halves(before["cluster"]), place[:m])
    came = np.concatenate([halves(before["entered"]), halves(known["cluster"])])
    came = np.concatenate([home, first_of_equals(came, place)[m:]])
    gone, moved = np.flatnonzero(twin >= 0), np.flatnonzero(came != place)
    ends = (
        np.concatenate([moved, m + gone, left]),
        np.concatenate([came[moved], twin[gone], right]),
    )
    del came
    graph = coo_array((np.ones(len(ends[0]), np.int8), ends), shape=(m + n, m + n))
    count, label = connected_components(graph, directed=False)
    # Earlier documents first, then kept ones, then by doc_id.
    doc_ids = halves(known["doc_id"])
    order = m + np.lexsort((doc_ids[:, 1], doc_ids[:, 0], twin >= 0))
    del doc_ids
    order = np.concatenate([place[:m], order])
    rank = np.empty(m + n, np.int64)
    rank[order] = place
    first = np.full(count, m + n)
    np.minimum.at(first, label, rank)
    names = pa.concat_arrays([pa.array([], ID), *before["cluster"].chunks, *known["doc_id"].chunks])
    names = names.take(pa.array(order[first[label[m:]]]))
    homes = np.bincount(label[np.unique(home)], minlength=count)
    return names, homes[label[m:]] > 1


# From the verdict to the tables ------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """For each document, by its place in the input."""

    twin: Int64  # the place of the document that stays for it, earlier ones first; -1 of those kept
    similarity: NDArray[np.float64]  # to the twin; 1 of those kept; NaN where it has but its id
    cluster: pa.Array  # ids
    joins: Bools  # whether it joins clusters of earlier corpora that are apart

    @property
    def bridges(self) -> int:
        """How many that stay join such clusters."""
        return int((self.joins & (self.twin < 0)).sum())


@dataclass(frozen=True)
class Ruling:
    """A part with the verdict on its documents."""

    part: Part
    sketched: Done  # what ``sketch`` left of it; its value tells the documents that failed
    twin: pa.Array  # ids of the documents that stay for them, null of those kept
    similarity: NDArray[np.float64]
    cluster: pa.Array

    def __str__(self) -> str:
        return str(self.part)


def doc_ids_of(before: pa.Table, known: pa.Table) -> pa.Array:
    """The ids of earlier documents, then of all others."""
    return pa.concat_tables([before.select(["doc_id"]), known.select(["doc_id"])])[
        "doc_id"
    ].combine_chunks()


def rulings(
    parts: Sequence[Part], sketched: Sequence[Done], doc_ids: pa.Array, verdict: Verdict
) -> list[Ruling]:
    """doc_ids: of earlier documents, then of all parts behind one another."""
    twins = doc_ids.take(pa.array(verdict.twin, mask=verdict.twin < 0))
    found = []
    start = 0
    for part, done in zip(parts, sketched, strict=True):
        rows = slice(start, start + part.rows)
        start = rows.stop
        similarity = verdict.similarity[rows].copy()
        cluster = _copied(verdict.cluster[rows])
        found.append(Ruling(part, done, _copied(twins[rows]), similarity, cluster))
    return found


def _copied(values: pa.Array) -> pa.Array:
    """A slice by itself: sent to another process, it would take the whole array along."""
    return pa.concat_arrays([values.take(pa.array(np.arange(len(values))))])


def write_part(
    ruling: Ruling, reason: str, threshold: float, sketches: pa.Schema, out: Tables
) -> None:
    """The documents of a part that stay, with their clusters and signatures, and a ledger row for
    each other. ``sketches``: the schema of what was spilled; its last column is the signature."""
    failed = dict(ruling.sketched.value)
    start = 0
    for batch in ruling.part.batches():
        rows = slice(start, start + len(batch))
        start = rows.stop
        twin, why = ruling.twin[rows], _whys(batch, failed)
        bad = why.is_valid()
        gone = pc.and_(twin.is_valid(), why.is_null())
        stays = pc.and_(twin.is_null(), why.is_null())
        kept = pa.table(with_columns(batch, cluster=ruling.cluster[rows])).filter(stays)
        out.table("documents").write(kept)
        score = pa.array(ruling.similarity[rows], from_pandas=True).filter(gone)  # NaN is null
        left = removals(
            pc.if_else(score.is_valid(), reason, KNOWN_ID),
            batch.filter(gone),
            score=score,
            threshold=pc.if_else(score.is_valid(), threshold, None),
            matched=twin.filter(gone),
        )
        unread = departures("quarantined", why.drop_null(), batch.filter(bad))
        out.table("ledger").write(ledger_table(left, unread))
    known = ruling.sketched.mapped("sketches", sketches)
    known = known.rename_columns({"cluster": "entered"}).append_column("cluster", ruling.cluster)
    signed = known.select(["doc_id", "entered", "cluster", sketches.names[-1]])
    stays = pc.and_(ruling.twin.is_null(), _whys(known, failed).is_null())
    out.table("signatures").write(signed.filter(stays))


def _whys(batch: pa.RecordBatch | pa.Table, failed: Mapping[str, str]) -> pa.Array:
    """Of each document of a batch why it failed, null of all others; ``failed``: by doc_id."""
    if not failed:
        return pa.nulls(len(batch), pa.string())
    return pa.array([failed.get(i.hex()) for i in batch["doc_id"].to_pylist()], pa.string())
