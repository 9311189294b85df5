"""Cluster the near-duplicates among documents that rules removed before near deduplication.

``select`` runs before ``deduplicate_near``, which clusters only the documents that it receives.
Copies share their outcome: without this module, thirty near-duplicates removed by a rule would
count as thirty independent documents.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract import (
    ID_TYPE,
    Artifact,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    align_parts,
    concat_spilled_tables,
)
from hallmark.tasks.corpus.copies.matching import compute_jaccard, find_duplicate_pairs
from hallmark.tasks.corpus.copies.sketches import compute_band_hashes
from hallmark.tasks.corpus.deduplicate_near import (
    SHINGLES,
    DeduplicateNearConfig,
    ShingleStore,
    compute_batch_shingles,
    stack_band_hashes,
)
from hallmark.tasks.corpus.group_effects import REMOVING_ACTIONS

BANDS_SCHEMA = pa.schema([("doc_id", ID_TYPE), ("band_hashes", pa.list_(pa.uint32()))])

#: Each document with the id of the first document of its cluster.
CLUSTERS_SCHEMA = pa.schema([("doc_id", ID_TYPE), ("cluster", ID_TYPE)])


def cluster_removed_documents(history: Mapping[str, Artifact], context: StageContext) -> pa.Table:
    """Cluster what ``select`` stages removed before ``deduplicate_near``, with its settings.

    Memory: about 150 + 4 × bands bytes for each of these documents.

    Returns:
        A table with CLUSTERS_SCHEMA.
    """
    near_artifact = next(
        (candidate for candidate in history.values() if candidate.stage == "deduplicate_near"), None
    )
    if near_artifact is None:
        return CLUSTERS_SCHEMA.empty_table()
    config = DeduplicateNearConfig.model_validate(near_artifact.manifest["parts"]["config"])
    partition_groups: list[tuple[TablePart, ...]] = []
    previous_documents: Table | None = None
    for artifact in history.values():
        if artifact is near_artifact:
            break
        if (
            artifact.stage == "select"
            and previous_documents is not None
            and artifact["ledger"].row_count
        ):
            partition_groups += align_parts(previous_documents, artifact["ledger"])
        if "documents" in artifact.tables:
            previous_documents = artifact["documents"]
    sketch_results = context.map_items(sketch_removed_documents, partition_groups, config)
    sketches = concat_spilled_tables(sketch_results, "band_hashes", BANDS_SCHEMA)
    shingle_store = ShingleStore(
        concat_spilled_tables(sketch_results, "shingles", SHINGLES)["shingles"]
    )
    cluster_heads = find_cluster_heads(sketches, shingle_store, config)
    doc_ids = sketches["doc_id"].combine_chunks()
    return pa.table([doc_ids, doc_ids.take(pa.array(cluster_heads))], schema=CLUSTERS_SCHEMA)


def sketch_removed_documents(
    documents_and_ledger: tuple[TablePart, ...], config: DeduplicateNearConfig, out: TableWriters
) -> None:
    """Spill bands and shingles of the documents of a partition that its ledger removed."""
    documents, ledger = documents_and_ledger
    ledger_rows = ledger.read(["doc_id", "action"])
    removed_ids = ledger_rows.filter(
        pc.is_in(ledger_rows["action"], value_set=pa.array(REMOVING_ACTIONS))
    )["doc_id"]
    for batch in documents.iter_batches(["doc_id", "text"]):
        removed_batch = batch.filter(
            pc.is_in(batch["doc_id"], value_set=removed_ids.combine_chunks())
        )
        if not len(removed_batch):
            continue
        hashes, offsets, _ = compute_batch_shingles(removed_batch, config)
        bands = compute_band_hashes(
            hashes, offsets, config.bands, config.rows_per_band, config.seed
        )
        ends = pa.array(np.arange(len(removed_batch) + 1) * config.bands, pa.int32())
        hash_lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(hashes))
        out.get_spill_writer("shingles", SHINGLES).write({"shingles": hash_lists})
        hash_lists = pa.ListArray.from_arrays(ends, pa.array(bands.ravel()))
        out.get_spill_writer("band_hashes", BANDS_SCHEMA).write(
            {"doc_id": removed_batch["doc_id"], "band_hashes": hash_lists}
        )


def find_cluster_heads(
    sketches: pa.Table, shingle_store: ShingleStore, config: DeduplicateNearConfig
) -> np.ndarray:
    """Return the position of the first document in each document's cluster, (n,)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    document_count = len(sketches)
    if not document_count:
        return np.empty(0, np.int64)
    matches = find_duplicate_pairs(
        stack_band_hashes(sketches, config.bands),
        lambda first, second: compute_jaccard(
            shingle_store, first, second, shingle_store.shingle_counts
        ),
        config.similarity_threshold,
        config.cluster_threshold,
        config.max_candidates,
    )
    edges = (np.ones(len(matches.first)), (matches.first, matches.second))
    _, component_ids = connected_components(
        coo_array(edges, shape=(document_count, document_count)), directed=False
    )
    heads: np.ndarray = np.unique(component_ids, return_index=True)[1][component_ids]
    return heads
