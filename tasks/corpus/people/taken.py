"""Near copies among the documents that rules took before anybody looked for near copies.

``select`` stands before ``deduplicate_near``, which clusters what comes to it. Copies share their
fate: without this, thirty near copies that a rule took would count as thirty documents.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.contract import ID, Artifact, Part, Table, Tables, Work, aligned, together
from tasks.corpus.copies.matching import jaccard, match
from tasks.corpus.copies.sketches import band_hashes
from tasks.corpus.deduplicate_near import (
    SHINGLES,
    DeduplicateNearConfig,
    Shelf,
    shingled,
    table_of_bands,
)
from tasks.corpus.people import LEAVING

BANDS = pa.schema([("doc_id", ID), ("bands", pa.list_(pa.uint32()))])

#: Of each document the id of the first in its cluster.
CLUSTERS = pa.schema([("doc_id", ID), ("cluster", ID)])


def taken_clusters(history: Mapping[str, Artifact], work: Work) -> pa.Table:
    """CLUSTERS of what stages ``select`` took before ``deduplicate_near``, by its settings.

    Holds about 150 + 4 × bands bytes for each of these documents.
    """
    near = next((a for a in history.values() if a.stage == "deduplicate_near"), None)
    if near is None:
        return CLUSTERS.empty_table()
    config = DeduplicateNearConfig.model_validate(near.manifest["parts"]["config"])
    pairs: list[tuple[Part, ...]] = []
    before: Table | None = None
    for artifact in history.values():
        if artifact is near:
            break
        if artifact.stage == "select" and before is not None and artifact["ledger"].rows:
            pairs += aligned(before, artifact["ledger"])
        if "documents" in artifact.tables:
            before = artifact["documents"]
    done = work.map(sketch_taken, pairs, config)
    known = together(done, "bands", BANDS)
    shelf = Shelf(together(done, "shingles", SHINGLES)["shingles"])
    first = alike(known, shelf, config)
    doc_ids = known["doc_id"].combine_chunks()
    return pa.table([doc_ids, doc_ids.take(pa.array(first))], schema=CLUSTERS)


def sketch_taken(parts: tuple[Part, ...], config: DeduplicateNearConfig, out: Tables) -> None:
    """Bands and shingles of the documents of a part that its ledger took."""
    documents, ledger = parts
    rows = ledger.read(["doc_id", "action"])
    gone = rows.filter(pc.is_in(rows["action"], value_set=pa.array(LEAVING)))["doc_id"]
    for batch in documents.batches(["doc_id", "text"]):
        chosen = batch.filter(pc.is_in(batch["doc_id"], value_set=gone.combine_chunks()))
        if not len(chosen):
            continue
        hashes, offsets, _ = shingled(chosen, config)
        bands = band_hashes(hashes, offsets, config.bands, config.rows, config.seed)
        ends = pa.array(np.arange(len(chosen) + 1) * config.bands, pa.int32())
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(hashes))
        out.spill("shingles", SHINGLES).write({"shingles": lists})
        lists = pa.ListArray.from_arrays(ends, pa.array(bands.ravel()))
        out.spill("bands", BANDS).write({"doc_id": chosen["doc_id"], "bands": lists})


def alike(known: pa.Table, shelf: Shelf, config: DeduplicateNearConfig) -> np.ndarray:
    """The place of the first in each document's cluster, (n,)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(known)
    if not n:
        return np.empty(0, np.int64)
    found = match(
        table_of_bands(known, config.bands),
        lambda left, right: jaccard(shelf, left, right, shelf.sizes),
        config.threshold, config.cluster_threshold, config.candidate_limit,
    )  # fmt: skip
    edges = (np.ones(len(found.left)), (found.left, found.right))
    _, label = connected_components(coo_array(edges, shape=(n, n)), directed=False)
    return np.unique(label, return_index=True)[1][label]
