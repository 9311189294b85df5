"""Deduplicate: of texts that are the same, one stays.

Texts are compared after NFKC normalisation, lower-casing and collapsing of white space. What is
alike, but not the same, is the work of ``deduplicate_near.py``.

Equal texts are one text, of whatever length: what a removed document was a near copy of may have to
be on its twin's side of the split, so the clusters of both become one. That holds as well for texts
that masking made equal, such as ``<EMAIL>`` and nothing else. No text is empty here: ingest lets
none in, and ``scrub`` takes out the documents that it leaves empty.

Where a corpus grows, a document also leaves whose text an earlier document has, or whose id: a
record that came again with the same key, and another text (``known id``). An earlier document is
one that this stage kept, whatever became of it later: where a rule or the search for near copies
took it out, its text and its id still stay out. So an id that came through here stands for one text
for ever, and ``trace`` and ``purge`` by it mean that one. An earlier document that left in this
very stage, or at ingest, is not known: its id may come again with another text, and enters.

Memory: about 160 bytes a document, and for an earlier one that it meets.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.contract import (
    DOCUMENTS,
    ID,
    LEDGER,
    Artifact,
    Part,
    Table,
    Tables,
    Work,
    column,
    ids,
    stage,
    table,
    together,
)
from tasks.corpus.copies.duplicates import (
    STANDING,
    KeeperConfig,
    Verdict,
    by_rank,
    clusters,
    doc_ids_of,
    first_of_equals,
    halves,
    rulings,
    standing,
    write_part,
)
from tasks.corpus.copies.earlier import MET, among, check_alike, met, signatures, tables
from tasks.measures.faults import Noted, careful, noted, tell
from tasks.measures.words import normalise


class DeduplicateConfig(KeeperConfig):
    """Which of the copies stays."""


SEARCH = table(
    "What was looked at to find the copies; one row.",
    column("documents", pa.int64(), "figure", "documents that came in", unit="documents"),
    *MET,
)

SIGNATURES = signatures(column("exact", ID, "id", "hash of the normalised text"))

#: With the hash of the normalised text.
SKETCHES = pa.schema([*STANDING, pa.field("exact", ID)])


def sketch(part: Part, config: DeduplicateConfig, out: Tables) -> Noted:
    """What must be known of each document of a part to judge it; a document on which that fails is
    like no other."""
    failed: Noted = []
    for batch in part.batches(["doc_id", "cluster", "source", "text"]):
        exact, faults = careful(hashed, batch)
        if len(faults):
            bad = pa.array(np.isin(np.arange(len(batch)), faults.rows))
            exact = pc.if_else(bad, batch["doc_id"], exact)
            failed += noted(batch, faults)
        columns = {**standing(batch, config.prefer), "exact": exact}
        out.spill("sketches", SKETCHES).write(columns)
    return failed


def hashed(batch: pa.RecordBatch) -> pa.Array:
    return ids(normalise(batch["text"]).cast(pa.large_binary()).to_pylist())


def meet(known: pa.Table, earlier: Table) -> pa.Table:
    """Of the earlier signatures those that a document may meet: by text, id or cluster."""
    by = {"exact": "exact", "doc_id": "doc_id", "entered": "cluster"}
    keys = {name: np.sort(halves(known[own])[:, 0]) for name, own in by.items()}

    def test(rows: pa.Table) -> np.ndarray:
        return np.any([among(halves(rows[n])[:, 0], keys[n]) for n in keys], axis=0)

    found = [met(part, test, SIGNATURES.names)[0] for part in earlier.parts]
    return pa.concat_tables([SIGNATURES.empty_table(), *found])


def judge(known: pa.Table, before: pa.Table) -> Verdict:
    """known: SKETCHES of all documents; before: signatures of the earlier ones that they meet."""
    m, n = len(before), len(known)
    place = np.arange(m, m + n)
    rank = np.arange(m + n)
    rank[m + by_rank(known)] = place

    def both(name: str) -> np.ndarray:
        return np.concatenate([halves(before[name]), halves(known[name])])

    same_id = first_of_equals(both("doc_id"), rank)[m:]
    texts = both("exact")
    # The id of an earlier document, and another text than any of them.
    renewed = (same_id < m) & (first_of_equals(texts, rank)[m:] >= m)
    rank[m:][renewed] += n  # such a document stays for no other
    first = first_of_equals(texts, rank)[m:]
    del texts, rank
    twin = np.where(renewed, same_id, np.where(first == place, -1, first))
    none = np.empty(0, np.int64)
    cluster, joins = clusters(known, before, twin, none, none)
    return Verdict(twin, np.where(renewed, np.nan, 1.0), cluster, joins)


@stage(
    tables={
        "documents": DOCUMENTS, "ledger": LEDGER, "search": SEARCH, "signatures": SIGNATURES,
    },
    libraries=["numpy", "scipy"],
    determinism="exact",
    reads={"earlier": ("signatures",)},
)  # fmt: skip
def deduplicate(
    documents: Table, earlier: dict[str, Artifact], config: DeduplicateConfig, work: Work
) -> None:
    """Hash the documents part by part, judge them together, write what stays part by part.

    ``earlier``: what this stage left of earlier corpora, in their order.
    """
    for artifact in earlier.values():
        check_alike(artifact, config, "deduplicate")
    parts = documents.parts
    sketched = work.map(sketch, parts, config)
    tell(work, [part.value for part in sketched], documents.rows, "the search for copies")
    known = together(sketched, "sketches", SKETCHES)
    before = meet(known, tables(earlier, "signatures"))
    verdict = judge(known, before)
    ruled = rulings(parts, sketched, doc_ids_of(before, known), verdict)
    work.parts(write_part, ruled, "exact duplicate", 1.0, SKETCHES)
    found = {"documents": [len(known)], "earlier": [len(before)], "bridges": [verdict.bridges]}
    work.table("search").write(found)
