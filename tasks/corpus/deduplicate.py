"""Deduplicate: exact and near copies out, one kept of each, and what is alike kept together.

Texts are compared after NFKC normalisation, lower-casing and collapsing of white space.
**Exact** duplicates agree completely then. **Near** duplicates share shingles, stretches of
``shingle_words`` words (Broder 1997): the Jaccard similarity of two sets of shingles is the
share of all their shingles that both have. A text with fewer words is one shingle by itself.
In scripts that leave no space between words every character counts as a word.

Candidates come from MinHash-LSH: ``bands`` × ``rows`` minima of each set; two documents meet
if all rows of any band agree, which at similarity s happens with probability
1 - (1 - s^rows)^bands: with 32 × 4, 0.87 at 0.5, 0.99 at 0.6, 1 - 5e-8 at 0.8. Every candidate
is then verified by its true Jaccard similarity: MinHash decides only which pairs are looked at.

**Who stays** depends on content alone, not on order or parts: from the longest document to
the shortest (then by doc_id), each is removed if one that was kept matches it at ``threshold``
or above. So the twin in the ledger is always in the corpus, at the similarity written there.

**Clusters**, by which the split is made, are the connected components of kept documents over
verified pairs at ``cluster_threshold`` or above, and carry on the clusters that came in. A chain
a - b - c may join a and c that are less alike; it grows through kept documents and verified
pairs only, never through candidates or through documents that were removed.

Memory: 8 × ``bands`` + 150 bytes a document. Shingles stay in files that are mapped at need: 8
bytes on disk for each of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from tasks.contract import (
    DOCUMENTS,
    ID,
    LEDGER,
    Done,
    Part,
    StageConfig,
    Table,
    Tables,
    Work,
    column,
    ids,
    removals,
    stage,
    table,
    together,
    utf8_bytes,
    with_columns,
)
from tasks.corpus.sketches import band_hashes, distinct, normalise, shingles


class DeduplicateConfig(StageConfig):
    """What counts as a copy."""

    near: bool = Field(True, description="also look for near duplicates, not for exact ones alone")
    threshold: float = Field(
        0.8, gt=0, le=1, description="Jaccard similarity from which a document is removed"
    )
    cluster_threshold: float = Field(
        0.5, gt=0, le=1, description="similarity from which documents stay on one side of the split"
    )
    shingle_words: int = Field(5, ge=1, le=50, description="words in a shingle")
    bands: int = Field(32, ge=1, le=512, description="bands of MinHash-LSH")
    rows: int = Field(4, ge=1, le=64, description="minima in a band")
    seed: int = Field(1, ge=0, lt=1 << 32, description="seed of the MinHash permutations")
    bucket_limit: int = Field(
        200,
        ge=1,
        description="of the kept documents that agree in a band, how many (the longest) a document "
        "is compared with; bounds the work where a great many are alike, but not alike enough",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.cluster_threshold > self.threshold:
            raise ValueError("cluster_threshold must not be above threshold")
        return self


PAIRS = table(
    "Verified pairs of near copies, from cluster_threshold on.",
    column("left", ID, "id", "the one that comes first in priority; it was kept"),
    column("right", ID, "id", "the other"),
    column("similarity", pa.float64(), "figure", "Jaccard similarity of their shingles",
           unit="share"),
)  # fmt: skip

#: What is known of each document of a part while the documents are judged together.
SKETCHES = pa.schema(
    [
        ("doc_id", ID),
        ("cluster", ID),
        ("exact", ID),  # hash of the normalised text
        ("bytes", pa.int64()),
        ("bands", pa.list_(pa.uint64())),  # a hash a band; empty without near
        ("shingles", pa.list_(pa.uint64())),  # in the order of the text, copies among them
    ]
)


def sketch(part: Part, config: DeduplicateConfig, out: Tables) -> None:
    """What must be known of each document of a part to judge it."""
    for batch in part.batches(["doc_id", "cluster", "text"]):
        texts = normalise(batch["text"])
        n = len(texts)
        none = pa.array([[]] * n, pa.list_(pa.uint64()))
        columns = {"bands": none, "shingles": none}
        if config.near:
            hashes, offsets = shingles(texts, config.shingle_words)
            bands = band_hashes(hashes, offsets, config.bands, config.rows, config.seed)
            columns["shingles"] = _lists(hashes, offsets)
            columns["bands"] = _lists(bands.ravel(), np.arange(n + 1) * config.bands)
        out.spill("sketches", SKETCHES).write(
            {
                "doc_id": batch["doc_id"],
                "cluster": batch["cluster"],
                "exact": ids(texts.cast(pa.large_binary()).to_pylist()),
                "bytes": utf8_bytes(batch["text"]),
                **columns,
            }
        )


def _lists(values: np.ndarray, offsets: np.ndarray) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))


# Who stays ---------------------------------------------------------------------------------------


#: Sets of shingles that are held in memory; those of others are read and sorted once more.
HELD = 1024


@dataclass
class Verdict:
    """For each document, by its place in the input."""

    twin: np.ndarray  # the kept document it matches, -1 if it is kept itself
    similarity: np.ndarray  # to the twin; 1 of kept documents
    exact: np.ndarray  # its normalised text is the twin's
    pairs: list[tuple[int, int, float]]  # verified, see PAIRS


def halves(column: pa.ChunkedArray) -> np.ndarray:
    """16-byte ids as (n, 2) uint64 that sort as the bytes do."""
    buffer = b"".join(column.to_pylist())
    return np.frombuffer(buffer, ">u8").astype(np.uint64).reshape(-1, 2)


def groups(values: np.ndarray, rank: np.ndarray) -> np.ndarray:
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


def priorities(doc_ids: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Rank of each document: the longest first, then the smallest doc_id."""
    order = np.lexsort((doc_ids[:, 1], doc_ids[:, 0], -sizes))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank


def judge(sketches: pa.Table, shingles: pa.ChunkedArray, config: DeduplicateConfig) -> Verdict:
    """Who stays. ``shingles`` of each document, which may be mapped from files."""
    rank = priorities(halves(sketches["doc_id"]), sketches["bytes"].to_numpy())
    first = groups(halves(sketches["exact"]), rank)
    place = np.arange(len(rank))
    verdict = Verdict(
        np.where(first == place, -1, first), np.ones(len(rank)), np.ones(len(rank), bool), []
    )
    if config.near:
        alone = np.flatnonzero(first == place)
        chunks = [chunk.flatten().to_numpy() for chunk in sketches["bands"].chunks]
        bands = np.concatenate([np.empty(0, np.uint64), *chunks]).reshape(-1, config.bands)
        buckets = shared_buckets(bands, alone)
        _judge_near(buckets, find_shingles(shingles, set(buckets)), rank, config, verdict)
        # Copies of a document that turned out to be a near copy itself go with it.
        lost = (first != place) & (verdict.twin[first] >= 0)
        for name in ("twin", "similarity", "exact"):
            values = getattr(verdict, name)
            values[lost] = values[first[lost]]
    return verdict


def shared_buckets(bands: np.ndarray, members: np.ndarray) -> dict[int, list[int]]:
    """For each member that shares a band with another: the numbers of the shared buckets.

    bands: (n, bands) uint64; a bucket is a band and a hash in it.
    """
    found: dict[int, list[int]] = defaultdict(list)
    start = 0
    for band in range(bands.shape[1]):
        _, bucket, counts = np.unique(bands[members, band], return_inverse=True, return_counts=True)
        shared = counts[bucket] > 1
        for member, number in zip(members[shared].tolist(), bucket[shared].tolist(), strict=True):
            found[member].append(start + number)
        start += len(counts)
    return dict(found)


def find_shingles(column: pa.ChunkedArray, wanted: set[int]) -> dict[int, np.ndarray]:
    """The shingles of the documents at these places in the input; nothing is copied."""
    found: dict[int, np.ndarray] = {}
    start = 0
    for chunk in column.chunks:
        offsets, values = chunk.offsets.to_numpy(), chunk.values.to_numpy()
        for row in range(len(chunk)):
            if start + row in wanted:
                found[start + row] = values[offsets[row] : offsets[row + 1]]
        start += len(chunk)
    return found


def _judge_near(
    buckets: dict[int, list[int]],
    sets: dict[int, np.ndarray],
    rank: np.ndarray,
    config: DeduplicateConfig,
    verdict: Verdict,
) -> None:
    @lru_cache(maxsize=HELD)
    def shingle_set(place: int) -> np.ndarray:
        return distinct(sets[place])

    kept: dict[int, list[int]] = defaultdict(list)  # bucket -> kept documents, best first
    for document in sorted(buckets, key=lambda place: rank[place]):
        met = {other for bucket in buckets[document] for other in kept[bucket]}
        best, twin = 0.0, -1
        for other in sorted(met, key=lambda place: rank[place]):
            similarity = jaccard(
                shingle_set(other), shingle_set(document), config.cluster_threshold
            )
            if similarity >= config.cluster_threshold:
                verdict.pairs.append((other, document, similarity))
            if similarity > best:
                best, twin = similarity, other
        if best >= config.threshold:
            verdict.twin[document], verdict.similarity[document] = twin, best
            verdict.exact[document] = False
            continue
        for bucket in buckets[document]:
            if len(kept[bucket]) < config.bucket_limit:
                kept[bucket].append(document)


def jaccard(left: np.ndarray, right: np.ndarray, least: float = 0.0) -> float:
    """|A ∩ B| / |A ∪ B| of two ascending arrays of distinct hashes.

    0 without a closer look where the sizes alone keep it below ``least``.
    """
    if min(len(left), len(right)) < least * max(len(left), len(right)):
        return 0.0
    both = np.concatenate([left, right])
    both.sort(kind="stable")  # two ascending runs: a merge
    common = int(np.count_nonzero(both[1:] == both[:-1]))
    return common / (len(both) - common)


def clusters(sketches: pa.Table, verdict: Verdict) -> pa.Array:
    """The cluster of each document: the smallest doc_id among the kept ones joined with it."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    doc_ids = halves(sketches["doc_id"])
    n = len(doc_ids)
    place = np.arange(n)
    gone = np.flatnonzero(verdict.twin >= 0)
    alike = np.array([p[:2] for p in verdict.pairs if verdict.twin[p[1]] < 0], np.int64).reshape(
        -1, 2
    )
    left = np.concatenate([place, gone, alike[:, 0]])
    right = np.concatenate(
        [groups(halves(sketches["cluster"]), place), verdict.twin[gone], alike[:, 1]]
    )
    graph = coo_array((np.ones(len(left), np.int8), (left, right)), shape=(n, n))
    _, label = connected_components(graph, directed=False)
    rank = np.empty(n, np.int64)  # kept documents first, then by doc_id
    rank[np.lexsort((doc_ids[:, 1], doc_ids[:, 0], verdict.twin >= 0))] = place
    labels = np.stack([label, np.zeros(n)], axis=1).astype(np.uint64)
    return sketches["doc_id"].combine_chunks().take(pa.array(groups(labels, rank)))


# The stage ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ruling:
    """A part with the verdict on its documents."""

    part: Part
    twin: pa.Array  # ids of the kept documents they match, null of those kept
    similarity: np.ndarray
    exact: np.ndarray
    cluster: pa.Array

    def __str__(self) -> str:
        return str(self.part)


def write_part(ruling: Ruling, config: DeduplicateConfig, out: Tables) -> None:
    start = 0
    for batch in ruling.part.batches():
        rows = slice(start, start + len(batch))
        start = rows.stop
        twin, exact = ruling.twin[rows], ruling.exact[rows]
        gone = twin.is_valid()
        kept = pa.table(with_columns(batch, cluster=ruling.cluster[rows])).filter(pc.invert(gone))
        out.table("documents").write(kept)
        exact = exact[gone.to_numpy(zero_copy_only=False)]
        out.table("ledger").write(
            removals(
                np.where(exact, "exact duplicate", "near duplicate").tolist(),
                batch.filter(gone),
                score=ruling.similarity[rows][gone.to_numpy(zero_copy_only=False)],
                threshold=np.where(exact, 1.0, config.threshold),
                matched=twin.drop_null(),
            )
        )


def rule(
    parts: list[Part], sketched: list[Done], config: DeduplicateConfig
) -> tuple[list[Ruling], pa.Table]:
    """The verdict on every part, and the rows of PAIRS."""
    known = together(sketched, "sketches", SKETCHES)
    verdict = judge(known.drop_columns("shingles"), known["shingles"], config)
    cluster = clusters(known, verdict)
    doc_ids = known["doc_id"].combine_chunks()
    twins = doc_ids.take(pa.array(verdict.twin, mask=verdict.twin < 0))
    left, right, similarity = zip(*verdict.pairs, strict=True) if verdict.pairs else ((), (), ())
    pairs = pa.table(
        {
            "left": doc_ids.take(pa.array(left, pa.int64())),
            "right": doc_ids.take(pa.array(right, pa.int64())),
            "similarity": pa.array(similarity, pa.float64()),
        }
    )
    rulings = []
    start = 0
    for part in parts:
        rows = slice(start, start + part.rows)
        start = rows.stop
        rulings.append(
            Ruling(part, _copied(twins[rows]), verdict.similarity[rows].copy(),
                   verdict.exact[rows].copy(), _copied(cluster[rows]))
        )  # fmt: skip
    return rulings, pairs


def _copied(values: pa.Array) -> pa.Array:
    """A slice by itself: sent to another process, it would take the whole array along."""
    return pa.concat_arrays([values.take(pa.array(range(len(values)), pa.int64()))])


@stage(
    tables={"documents": DOCUMENTS, "ledger": LEDGER, "pairs": PAIRS},
    libraries=["numpy", "scipy"],
    determinism="exact",
)
def deduplicate(documents: Table, config: DeduplicateConfig, work: Work) -> None:
    """Sketch the documents part by part, judge them together, write what stays part by part."""
    parts = documents.parts
    rulings, pairs = rule(parts, work.map(sketch, parts, config), config)
    work.parts(write_part, rulings, config)
    work.table("pairs").write(pairs)
