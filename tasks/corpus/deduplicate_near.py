"""Deduplicate, near: of texts that are nearly the same one stays; what is alike stays together.

Near copies share shingles, stretches of ``shingle_length`` words or characters (Broder 1997): the
Jaccard similarity of two sets of shingles is the share of all their shingles that both have. Texts
are normalised first, as for exact duplicates.

Candidates come from MinHash-LSH: ``bands`` × ``rows`` minima of each set; two documents meet if all
rows of any band agree, which at similarity s happens with probability 1 - (1 - s^rows)^bands: with
32 × 4, 0.87 at 0.5, 0.99 at 0.6, 1 - 5e-8 at 0.8. Every candidate is then verified by its true
Jaccard similarity: MinHash decides only which pairs are looked at (``copies/matching.py``).

**Who stays** depends on content alone: documents are taken by source, length and doc_id, and each
goes if one that was kept matches it at ``threshold`` or above. So the twin in the ledger is always
in the corpus, at the similarity written there.

**Clusters**, by which the split is made, are the connected components of kept documents over
verified pairs at ``cluster_threshold`` or above, and carry on the clusters that came in. A chain
a - b - c may join a and c that are less alike; it grows through kept documents and verified pairs
only, never through candidates or through documents that were removed.

Where a corpus grows, earlier documents stand before all new ones: they stay and keep their cluster,
which passes to the new documents that are joined with it. Where these join clusters that are apart,
they go to the first of them (``bridges``). Of earlier documents only those take part that agree
with a new one in a band (or came from its cluster); their shingles are made again from their texts.

Memory: about 4 × ``bands`` + 230 bytes a document, where there are as many pairs to compare as
documents, and for an earlier one that takes part, none for others. Shingles stay in files that are
mapped at need, 8 bytes on disk for each of them; their pages stand in memory only while it is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from tasks.contract import (
    DOCUMENTS,
    ID,
    LEDGER,
    Artifact,
    Done,
    Part,
    Table,
    Tables,
    Work,
    aligned,
    column,
    stage,
    table,
    together,
)
from tasks.corpus.copies.duplicates import (
    STANDING,
    Int64,
    KeeperConfig,
    UInt64,
    Verdict,
    by_rank,
    clusters,
    doc_ids_of,
    halves,
    rulings,
    standing,
    write_part,
)
from tasks.corpus.copies.earlier import MET, among, check_alike, met, signatures, tables
from tasks.corpus.copies.matching import Matches, UInt32, jaccard, match
from tasks.corpus.copies.sketches import band_hashes, shingles
from tasks.measures.faults import Faults, Noted, careful, noted, tell
from tasks.measures.words import normalise


class DeduplicateNearConfig(KeeperConfig):
    """What counts as a near copy."""

    threshold: float = Field(
        0.8, gt=0, le=1, description="Jaccard similarity from which a document is removed"
    )
    cluster_threshold: float = Field(
        0.5, gt=0, le=1, description="similarity from which documents stay on one side of the split"
    )
    shingle: Literal["words", "characters"] = Field(
        "words", description="what a shingle is made of"
    )
    shingle_length: int = Field(5, ge=1, le=50, description="words or characters in a shingle")
    bands: int = Field(32, ge=1, le=512, description="bands of MinHash-LSH")
    rows: int = Field(4, ge=1, le=64, description="minima in a band")
    seed: int = Field(1, ge=0, lt=1 << 32, description="seed of the MinHash permutations")
    candidate_limit: int = Field(
        16,
        ge=1,
        le=1000,
        description="with how many others a document is compared at a time, those that agree with "
        "it in most bands; bounds the work where a great many are a little alike",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.cluster_threshold > self.threshold:
            raise ValueError("cluster_threshold must not be above threshold")
        return self


PAIRS = table(
    "Verified pairs: each removed document with its twin, and those that hold clusters together; "
    "at most one fewer than documents, earlier ones that they meet among them.",
    column("left", ID, "id", "the one that comes first in priority; it was kept, or is of an "
           "earlier corpus"),
    column("right", ID, "id", "the other"),
    column("similarity", pa.float64(), "figure", "Jaccard similarity of their shingles",
           unit="share"),
)  # fmt: skip

SEARCH = table(
    "What was looked at to find the near copies, and what may have been missed; one row.",
    column("documents", pa.int64(), "figure", "documents that came in", unit="documents"),
    column("compared", pa.int64(), "figure", "pairs whose similarity was computed", unit="pairs"),
    column("alike", pa.int64(), "figure", "of these at cluster_threshold or above", unit="pairs"),
    column("copies", pa.int64(), "figure", "of these at threshold or above", unit="pairs"),
    column("limited", pa.int64(), "figure", "documents that stayed and for which candidate_limit "
           "left a candidate uncompared", unit="documents"),
    *MET,
    column("chance", pa.float64(), "figure", "that two documents at threshold agree in a band, "
           "1 - (1 - threshold^rows)^bands", unit="share"),
)  # fmt: skip

SIGNATURES = signatures(
    column("bands", pa.list_(pa.uint32()), "id", "hashes of the bands of its MinHash")
)

SKETCHES = pa.schema([*STANDING, pa.field("bands", pa.list_(pa.uint32()))])
SHINGLES = pa.schema([("shingles", pa.list_(pa.uint64()))])


def sketch(part: Part, config: DeduplicateNearConfig, out: Tables) -> Noted:
    """What must be known of each document of a part to judge it."""
    failed: Noted = []
    for batch in part.batches(["doc_id", "cluster", "source", "text"]):
        hashes, offsets, faults = shingled(batch, config)
        failed += noted(batch, faults)
        bands = band_hashes(hashes, offsets, config.bands, config.rows, config.seed)
        ends = np.arange(len(batch) + 1) * config.bands
        out.spill("shingles", SHINGLES).write({"shingles": _lists(hashes, offsets)})
        out.spill("sketches", SKETCHES).write(
            {**standing(batch, config.prefer), "bands": _lists(bands.ravel(), ends)}
        )
    return failed


def shingled(
    batch: pa.RecordBatch, config: DeduplicateNearConfig
) -> tuple[np.ndarray, np.ndarray, Faults]:
    """``shingles``; a document on which that fails has the one that is its id: it is like no
    other."""

    def kernel(some: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        return shingles(normalise(some["text"]), config.shingle_length, config.shingle)

    (hashes, offsets), faults = careful(kernel, batch)
    if len(faults):
        at = faults.rows.to_numpy()  # an empty text has one shingle, too
        hashes[offsets[at]] = halves(pa.chunked_array([batch["doc_id"].take(faults.rows)]))[:, 0]
    return hashes, offsets, faults


def _lists(values: np.ndarray, offsets: np.ndarray) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))


@dataclass(frozen=True)
class Met:
    """A part of an earlier corpus, and the places in it of the documents that take part."""

    part: Part
    places: Int64

    def __str__(self) -> str:
        return str(self.part)


def meet(
    known: pa.Table, documents: Table, earlier: Table, config: DeduplicateNearConfig
) -> tuple[pa.Table, list[Met]]:
    """Of the ``earlier`` signatures those that agree with a document in a band, or came in with its
    cluster, and where their documents are."""
    if not earlier.rows:
        return SIGNATURES.empty_table(), []
    ours = table_of_bands(known, config.bands)
    keys = [np.unique(ours[:, band]) for band in range(config.bands)]
    came = np.sort(halves(known["cluster"])[:, 0])

    def test(rows: pa.Table) -> np.ndarray:
        theirs = table_of_bands(rows, config.bands)
        agree = [among(theirs[:, band], key) for band, key in enumerate(keys)]
        return np.any([*agree, among(halves(rows["entered"])[:, 0], came)], axis=0)

    before, places = [SIGNATURES.empty_table()], []
    for of_documents, part in aligned(documents, earlier):
        rows, at = met(part, test, SIGNATURES.names)
        if len(at):
            before.append(rows)
            places.append(Met(of_documents, at))
    return pa.concat_tables(before), places


def sketch_earlier(found: Met, config: DeduplicateNearConfig, out: Tables) -> None:
    """The shingles of the earlier documents of a part that take part."""
    first = 0
    for batch in found.part.batches(["text"]):
        inside = (found.places >= first) & (found.places < first + len(batch))
        rows = pa.array(found.places[inside] - first)
        first += len(batch)
        if len(rows):
            texts = normalise(batch["text"].take(rows))
            hashes, offsets = shingles(texts, config.shingle_length, config.shingle)
            out.spill("shingles", SHINGLES).write({"shingles": _lists(hashes, offsets)})


def table_of_bands(rows: pa.Table, bands: int) -> np.ndarray:
    """(n, bands) uint32."""
    chunks = [chunk.flatten().to_numpy() for chunk in rows["bands"].chunks]
    return np.concatenate([np.empty(0, np.uint32), *chunks]).reshape(-1, bands)


def bands_in_order(chunks: Sequence[pa.ListArray], order: Int64, bands: int) -> UInt32:
    """(n, bands) uint32, the rows of these chunks in this order; they are not held twice."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    found, start = np.empty((len(order), bands), np.uint32), 0
    for chunk in chunks:
        found[place[start : start + len(chunk)]] = chunk.flatten().to_numpy().reshape(-1, bands)
        start += len(chunk)
    return found


class Shelf:
    """The shingles of all documents, found by place; they stay in their files."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self.values = [chunk.values.to_numpy() for chunk in column.chunks]
        offsets = [chunk.offsets.to_numpy() for chunk in column.chunks]
        self.start = np.concatenate([np.empty(0, np.int32), *(o[:-1] for o in offsets)])
        self.sizes = np.concatenate([np.empty(0, np.int64), *(np.diff(o) for o in offsets)])
        numbers = np.arange(len(offsets), dtype=np.int32)
        self.chunk = np.repeat(numbers, [len(o) - 1 for o in offsets])

    def __call__(self, places: Int64) -> tuple[UInt64, Int64]:
        """The shingles of these documents behind one another, and how many each has."""
        sizes = self.sizes[places]
        starts = self.start[places]
        found = [
            self.values[chunk][start:stop]
            for chunk, start, stop in zip(
                self.chunk[places].tolist(), starts.tolist(), (starts + sizes).tolist(), strict=True
            )
        ]
        return np.concatenate(found), sizes


def judge(
    known: pa.Table, before: pa.Table, shelf: Shelf, config: DeduplicateNearConfig
) -> tuple[Verdict, pa.Table, Matches]:
    """Who stays, and the rows of PAIRS. known: SKETCHES of all documents; before: signatures of the
    earlier ones that take part, whose shingles come first."""
    m = len(before)
    order = np.concatenate([np.arange(m), m + by_rank(known)])
    bands = bands_in_order([*before["bands"].chunks, *known["bands"].chunks], order, config.bands)
    sizes = shelf.sizes[order]

    def similarities(left: Int64, right: Int64) -> np.ndarray:
        return jaccard(lambda items: shelf(order[items]), left, right, sizes)

    found = match(
        bands, similarities, config.threshold, config.cluster_threshold, config.candidate_limit, m
    )
    del bands
    kept = ~found.gone
    to_twin = twins(found, config.threshold)
    link = spanning(found, kept[found.left] & kept[found.right])
    twin, similarity = np.full(len(known), -1), np.ones(len(known))
    twin[order[found.right[to_twin]] - m] = order[found.left[to_twin]]
    similarity[order[found.right[to_twin]] - m] = found.similarity[to_twin]
    ends = (order[found.left[link]], order[found.right[link]])
    cluster, joins = clusters(known, before, twin, *ends)
    shown = np.sort(np.concatenate([to_twin, link]))
    doc_ids = doc_ids_of(before, known)
    pairs = pa.table(
        {
            "left": doc_ids.take(pa.array(order[found.left[shown]])),
            "right": doc_ids.take(pa.array(order[found.right[shown]])),
            "similarity": found.similarity[shown],
        }
    )
    return Verdict(twin, similarity, cluster, joins), pairs, found


def twins(found: Matches, threshold: float) -> Int64:
    """The pair of each item that goes with the most similar one that stays."""
    pairs = np.flatnonzero(
        found.gone[found.right] & ~found.gone[found.left] & (found.similarity >= threshold)
    )
    right = found.right[pairs]
    order = np.lexsort((found.left[pairs], -found.similarity[pairs], right))
    return pairs[order[np.unique(right, return_index=True)[1]]]


def spanning(found: Matches, which: np.ndarray) -> Int64:
    """Of these pairs, ``which`` (m,) bool, as few as hold together what all do, the most alike."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    pairs = np.flatnonzero(which)
    n = len(found.gone)
    # A weight of its own for each pair, so that there is one tree and the pair is found again.
    order = pairs[np.lexsort((pairs, -found.similarity[pairs]))]
    weights = np.arange(1, len(order) + 1, dtype=np.float64)
    graph = coo_array((weights, (found.left[order], found.right[order])), shape=(n, n))
    tree = minimum_spanning_tree(graph.tocsr())
    return order[np.sort(tree.data).astype(np.int64) - 1]


@stage(
    tables={
        "documents": DOCUMENTS, "ledger": LEDGER, "pairs": PAIRS, "search": SEARCH,
        "signatures": SIGNATURES,
    },
    libraries=["numpy", "scipy"],
    determinism="exact",
    reads={"earlier": ("documents", "signatures")},
)  # fmt: skip
def deduplicate_near(
    documents: Table, earlier: dict[str, Artifact], config: DeduplicateNearConfig, work: Work
) -> None:
    """Sketch the documents part by part, judge them together, write what stays part by part.

    ``earlier``: what this stage left of earlier corpora, in their order.
    """
    for artifact in earlier.values():
        check_alike(artifact, config, "deduplicate_near")
    parts = documents.parts
    sketched: Sequence[Done] = work.map(sketch, parts, config)
    tell(work, [part.value for part in sketched], documents.rows, "the search for near copies")
    known = together(sketched, "sketches", SKETCHES)
    before, places = meet(
        known, tables(earlier, "documents"), tables(earlier, "signatures"), config
    )
    again: Sequence[Done] = work.map(sketch_earlier, places, config)
    shelf = Shelf(together([*again, *sketched], "shingles", SHINGLES)["shingles"])
    verdict, pairs, found = judge(known, before, shelf, config)
    ruled = rulings(parts, sketched, doc_ids_of(before, known), verdict)
    work.parts(write_part, ruled, "near duplicate", config.threshold, SKETCHES)
    work.table("pairs").write(pairs)
    work.table("search").write(
        {
            "documents": [len(known)],
            "compared": [found.compared],
            "alike": [len(found.similarity)],
            "copies": [int((found.similarity >= config.threshold).sum())],
            "limited": [int(found.limited.sum())],
            "earlier": [len(before)],
            "bridges": [verdict.bridges],
            "chance": [1 - (1 - config.threshold**config.rows) ** config.bands],
        }
    )
