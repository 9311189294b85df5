"""Remove near-duplicates: keep one of several nearly equal texts and cluster similar documents.

Near-duplicates share shingles, runs of ``shingle_length`` words or characters (Broder 1997). The
Jaccard similarity of two documents is the share of their shingles that both have. Texts are
normalised first: NFKC, lower case, single blanks, no invisible characters. In scripts that
write no spaces between words, every character counts as a word. ``evaluate_near_duplicates.py``
measures the recall by script.

Candidate pairs come from MinHash-LSH with ``bands`` × ``rows_per_band`` minima per document. Two
documents are candidates if all rows of any band agree, which at similarity s has probability
1 - (1 - s^rows)^bands: with 32 × 4, 0.87 at 0.5, 0.99 at 0.6, 1 - 5e-8 at 0.8. MinHash decides only
which pairs are compared; each candidate is verified by its true Jaccard similarity
(``copies/matching.py``).

**Kept documents** depend on content alone: documents are visited by source, length and doc_id, and
each is removed if an already kept one matches it at ``similarity_threshold`` or above. So the
matched document in the ledger is always in the corpus, with the similarity recorded there.

**Clusters** determine the split. They are the connected components of kept documents over verified
pairs at ``cluster_threshold`` or above, joined with the clusters of the input. A chain a - b - c
may join a and c that are less similar; chains use verified pairs of kept documents only, never
unverified candidates or removed documents.

If the corpus extends earlier corpora, earlier documents come before all new ones: they are kept and
pass their cluster to the new documents joined with them. A new document that joins several earlier
clusters goes to the first of them (``bridging_documents``). Only earlier documents that share a
band or an incoming cluster with a new one are compared; their shingles are computed again.

Memory: about 4 × ``bands`` + 230 bytes per document and per compared earlier document, if there are
as many pairs to compare as documents. Shingles stay in memory-mapped files, 8 bytes per shingle on
disk; the system drops their pages when memory is short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from hallmark.tasks.contract import (
    DOCUMENTS,
    ID_TYPE,
    LEDGER,
    Artifact,
    ItemResult,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    align_parts,
    column,
    concat_spilled_tables,
    ids_to_uint64_pairs,
    stage,
    table_schema,
)
from hallmark.tasks.corpus.copies.duplicates import (
    RANKING_SCHEMA,
    DuplicateAssignment,
    Int64Array,
    KeepPreferenceConfig,
    assign_clusters,
    build_ranking_columns,
    concatenate_doc_ids,
    order_by_keep_priority,
    split_assignment_by_partition,
    write_deduplicated_partition,
)
from hallmark.tasks.corpus.copies.earlier_corpora import (
    EARLIER_SEARCH_COLUMNS,
    build_signature_schema,
    check_earlier_compatible,
    concatenate_earlier_tables,
    is_in_sorted,
    read_matching_signatures,
)
from hallmark.tasks.corpus.copies.matching import (
    ItemShingles,
    NearDuplicateMatches,
    UInt32Array,
    compute_jaccard,
    find_duplicate_pairs,
)
from hallmark.tasks.corpus.copies.sketches import (
    TextHashes,
    compute_band_hashes,
    compute_shingle_hashes,
)
from hallmark.tasks.measures.failed_documents import (
    FailedDocuments,
    FailureList,
    list_failures_by_doc_id,
    report_failures,
    run_with_failing_texts_emptied,
)
from hallmark.tasks.measures.normalised_words import normalise_texts


class DeduplicateNearConfig(KeepPreferenceConfig):
    """Define which documents are near-duplicates."""

    similarity_threshold: float = Field(
        0.8,
        gt=0,
        le=1,
        description="minimum Jaccard similarity to a kept document at which a document is removed",
    )
    cluster_threshold: float = Field(
        0.5,
        gt=0,
        le=1,
        description="minimum Jaccard similarity at which two documents are put in the same "
        "cluster, and therefore in the same split",
    )
    shingle_unit: Literal["words", "characters"] = Field(
        "words",
        description="unit used to build shingles: words or characters; in scripts without spaces "
        "between words, such as Chinese, Thai and Tibetan, every character is treated as a word",
    )
    shingle_length: int = Field(
        5, ge=1, le=50, description="number of words or characters per shingle"
    )
    bands: int = Field(
        32,
        ge=1,
        le=512,
        description="number of MinHash-LSH bands; two documents are compared if they agree in at "
        "least one band",
    )
    rows_per_band: int = Field(4, ge=1, le=64, description="number of MinHash values in each band")
    seed: int = Field(1, ge=0, lt=1 << 32, description="random seed for the MinHash permutations")
    max_candidates: int = Field(
        16,
        ge=1,
        le=1000,
        description="maximum number of other documents with which a document is compared at a "
        "time; the documents with the most shared bands are chosen. This limit saves computing "
        "time if many documents are slightly similar",
    )

    @model_validator(mode="after")
    def _check_threshold_order(self) -> Self:
        if self.cluster_threshold > self.similarity_threshold:
            raise ValueError("'cluster_threshold' must not be greater than 'similarity_threshold'")
        return self


PAIRS = table_schema(
    "Pairs of documents whose similarity was verified: each removed document with the kept "
    "document that it duplicates, and the pairs that connect the documents in each cluster. The "
    "number of pairs is always smaller than the number of documents (including documents from "
    "earlier corpora).",
    column(
        "first_doc_id",
        ID_TYPE,
        "id",
        "id of the document with the higher priority, which was kept or is in an earlier corpus",
    ),
    column("second_doc_id", ID_TYPE, "id", "the other document"),
    column(
        "similarity",
        pa.float64(),
        "figure",
        "Jaccard similarity of the two documents' shingles",
        unit="share",
    ),
)

SEARCH_SUMMARY = table_schema(
    "Number of documents and pairs compared in the search for near-duplicates, and estimates of "
    "how many near-duplicates the search may have missed (one row).",
    column("documents", pa.int64(), "figure", "input documents", unit="documents"),
    column(
        "compared_pairs",
        pa.int64(),
        "figure",
        "number of pairs whose similarity was computed",
        unit="pairs",
    ),
    column(
        "clustered_pairs",
        pa.int64(),
        "figure",
        "number of compared pairs whose similarity is at least `cluster_threshold`",
        unit="pairs",
    ),
    column(
        "duplicate_pairs",
        pa.int64(),
        "figure",
        "number of compared pairs whose similarity is at least `similarity_threshold`",
        unit="pairs",
    ),
    column(
        "limited_documents",
        pa.int64(),
        "figure",
        "number of kept documents that may have duplicates with which they were not compared "
        "because of the `max_candidates` limit",
        unit="documents",
    ),
    *EARLIER_SEARCH_COLUMNS,
    column(
        "candidate_probability",
        pa.float64(),
        "figure",
        "probability that two documents with a similarity of exactly `similarity_threshold` are "
        "compared: 1 - (1 - similarity_threshold^rows_per_band)^bands",
        unit="share",
    ),
)

SIGNATURES = build_signature_schema(
    column(
        "band_hashes",
        pa.list_(pa.uint32()),
        "id",
        "hashes of the bands of the document's MinHash signature, one per band",
    )
)

SKETCHES = pa.schema([*RANKING_SCHEMA, pa.field("band_hashes", pa.list_(pa.uint32()))])
SHINGLES = pa.schema([("shingles", pa.list_(pa.uint64()))])


def spill_shingles_and_sketches(
    partition: TablePart, config: DeduplicateNearConfig, out: TableWriters
) -> FailureList:
    """Spill the shingles and SKETCHES of a partition; return documents that have no shingles."""
    failures: FailureList = []
    for batch in partition.iter_batches(["doc_id", "cluster", "source", "text"]):
        sketched = sketch_batch(batch, config)
        failures += list_failures_by_doc_id(batch, sketched.failed)
        out.get_spill_writer("shingles", SHINGLES).write({"shingles": sketched.shingles})
        out.get_spill_writer("sketches", SKETCHES).write(sketched.sketch_columns)
    return failures


class SketchedBatch(NamedTuple):
    """Hold what is compared of a batch of n documents."""

    shingles: pa.ListArray
    """The shingle hashes of each document."""
    sketch_columns: dict[str, pa.Array]
    """Columns of SKETCHES."""
    failed: FailedDocuments
    """Documents for which the computation failed."""


def sketch_batch(batch: pa.RecordBatch, config: DeduplicateNearConfig) -> SketchedBatch:
    """Compute the shingles and the sketches of a batch.

    Args:
        batch: Has doc_id, cluster, source and text.
    """
    hashes, offsets, faults = compute_batch_shingles(batch, config)
    bands = compute_band_hashes(hashes, offsets, config.bands, config.rows_per_band, config.seed)
    band_offsets = np.arange(len(batch) + 1) * config.bands
    sketch_columns = {
        **build_ranking_columns(batch, config.preferred_sources),
        "band_hashes": _build_list_array(bands.ravel(), band_offsets),
    }
    return SketchedBatch(_build_list_array(hashes, offsets), sketch_columns, faults)


class BatchShingles(NamedTuple):
    """Hold the shingle hashes of a batch of n documents, concatenated."""

    hashes: np.ndarray
    """uint64."""
    offsets: np.ndarray
    """Document i has ``hashes[offsets[i]:offsets[i + 1]]``; shape (n + 1,)."""
    failed: FailedDocuments
    """Documents for which the computation failed."""


def compute_batch_shingles(batch: pa.RecordBatch, config: DeduplicateNearConfig) -> BatchShingles:
    """Compute the shingle hashes of a batch, as ``compute_shingle_hashes`` does.

    A document on which that fails gets its id as its only shingle, so that it matches no other.
    """

    def hash_shingles(documents: pa.RecordBatch) -> TextHashes:
        return compute_shingle_hashes(
            normalise_texts(documents["text"]), config.shingle_length, config.shingle_unit
        )

    (hashes, offsets), faults = run_with_failing_texts_emptied(hash_shingles, batch)
    if len(faults):
        # Failed documents were hashed with an empty text, which has one shingle.
        faulty_rows = faults.rows.to_numpy()
        hashes[offsets[faulty_rows]] = ids_to_uint64_pairs(
            pa.chunked_array([batch["doc_id"].take(faults.rows)])
        )[:, 0]
    return BatchShingles(hashes, offsets, faults)


def _build_list_array(values: np.ndarray, offsets: np.ndarray) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))


@dataclass(frozen=True)
class EarlierMatches:
    """A partition of an earlier corpus and the rows in it that are compared."""

    partition: TablePart
    row_indices: Int64Array

    def __str__(self) -> str:
        return str(self.partition)


class ComparableDocuments(NamedTuple):
    """Hold the documents of earlier corpora that are compared with the new ones."""

    signatures: pa.Table
    """Rows of SIGNATURES."""
    matches: list[EarlierMatches]
    """Rows of these documents in the earlier partitions, in the same order as ``signatures``."""


def find_comparable_earlier_documents(
    sketches: pa.Table,
    earlier_documents: Table,
    earlier_signatures: Table,
    config: DeduplicateNearConfig,
) -> ComparableDocuments:
    """Find the earlier documents that share a band or the incoming cluster with a new document."""
    if not earlier_signatures.row_count:
        return ComparableDocuments(SIGNATURES.empty_table(), [])
    band_table = stack_band_hashes(sketches, config.bands)
    sorted_bands = [np.unique(band_table[:, band]) for band in range(config.bands)]
    cluster_keys = np.sort(ids_to_uint64_pairs(sketches["cluster"])[:, 0])

    def matches_any_key(signatures: pa.Table) -> np.ndarray:
        earlier_bands = stack_band_hashes(signatures, config.bands)
        band_matches = [
            is_in_sorted(earlier_bands[:, band], key) for band, key in enumerate(sorted_bands)
        ]
        is_match: np.ndarray = np.any(
            [
                *band_matches,
                is_in_sorted(
                    ids_to_uint64_pairs(signatures["incoming_cluster"])[:, 0], cluster_keys
                ),
            ],
            axis=0,
        )
        return is_match

    matching_signatures, matches = [SIGNATURES.empty_table()], []
    for documents_partition, signatures_partition in align_parts(
        earlier_documents, earlier_signatures
    ):
        matching_rows, row_indices = read_matching_signatures(
            signatures_partition, matches_any_key, SIGNATURES.names
        )
        if len(row_indices):
            matching_signatures.append(matching_rows)
            matches.append(EarlierMatches(documents_partition, row_indices))
    return ComparableDocuments(pa.concat_tables(matching_signatures), matches)


def spill_shingles_of_earlier_documents(
    matches: EarlierMatches, config: DeduplicateNearConfig, out: TableWriters
) -> None:
    """Spill the shingles of the matching earlier documents of a partition."""
    batch_start = 0
    for batch in matches.partition.iter_batches(["text"]):
        in_batch = (matches.row_indices >= batch_start) & (
            matches.row_indices < batch_start + len(batch)
        )
        batch_rows = pa.array(matches.row_indices[in_batch] - batch_start)
        batch_start += len(batch)
        if len(batch_rows):
            texts = normalise_texts(batch["text"].take(batch_rows))
            hashes, offsets = compute_shingle_hashes(
                texts, config.shingle_length, config.shingle_unit
            )
            out.get_spill_writer("shingles", SHINGLES).write(
                {"shingles": _build_list_array(hashes, offsets)}
            )


def stack_band_hashes(signatures: pa.Table, band_count: int) -> np.ndarray:
    """Return the band hashes as an array, (n, bands) uint32."""
    chunks = [chunk.flatten().to_numpy() for chunk in signatures["band_hashes"].chunks]
    return np.concatenate([np.empty(0, np.uint32), *chunks]).reshape(-1, band_count)


def reorder_band_hashes(
    chunks: Sequence[pa.ListArray], order: Int64Array, band_count: int
) -> UInt32Array:
    """Return the rows of the chunks in the given order, (n, bands) uint32.

    Copies chunk by chunk, so that memory holds the input and the result, but no concatenation.
    """
    target_rows = np.empty(len(order), np.int64)
    target_rows[order] = np.arange(len(order))
    reordered, start = np.empty((len(order), band_count), np.uint32), 0
    for chunk in chunks:
        reordered[target_rows[start : start + len(chunk)]] = (
            chunk.flatten().to_numpy().reshape(-1, band_count)
        )
        start += len(chunk)
    return reordered


class ShingleStore:
    """Look up the shingles of documents by row; they stay in memory-mapped files."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self.chunk_values = [chunk.values.to_numpy() for chunk in column.chunks]
        offsets = [chunk.offsets.to_numpy() for chunk in column.chunks]
        self.chunk_starts = np.concatenate(
            [np.empty(0, np.int32), *(chunk_offsets[:-1] for chunk_offsets in offsets)]
        )
        self.shingle_counts = np.concatenate(
            [np.empty(0, np.int64), *(np.diff(chunk_offsets) for chunk_offsets in offsets)]
        )
        chunk_numbers = np.arange(len(offsets), dtype=np.int32)
        self.chunk_indices = np.repeat(
            chunk_numbers, [len(chunk_offsets) - 1 for chunk_offsets in offsets]
        )

    def __call__(self, document_rows: Int64Array) -> ItemShingles:
        """Return the shingles of these documents."""
        counts = self.shingle_counts[document_rows]
        starts = self.chunk_starts[document_rows]
        shingle_runs = [
            self.chunk_values[chunk][start:stop]
            for chunk, start, stop in zip(
                self.chunk_indices[document_rows].tolist(),
                starts.tolist(),
                (starts + counts).tolist(),
                strict=True,
            )
        ]
        return ItemShingles(np.concatenate(shingle_runs), counts)


class NearDuplicates(NamedTuple):
    """Hold the result of the search for near-duplicates."""

    assignment: DuplicateAssignment
    """The decision about each document."""
    pair_rows: pa.Table
    """Rows of PAIRS."""
    matches: NearDuplicateMatches
    """All matches, from which the other fields are derived; items are in order of priority."""


def find_near_duplicates(
    sketches: pa.Table,
    earlier_signatures: pa.Table,
    shingle_store: ShingleStore,
    config: DeduplicateNearConfig,
) -> NearDuplicates:
    """Decide which documents are near-duplicates.

    Args:
        sketches: SKETCHES of all documents.
        earlier_signatures: SIGNATURES of the matching earlier documents.
        shingle_store: Shingles of the matching earlier documents, then of all documents.
    """
    earlier_count = len(earlier_signatures)
    order = np.concatenate(
        [np.arange(earlier_count), earlier_count + order_by_keep_priority(sketches)]
    )
    ordered_bands = reorder_band_hashes(
        [*earlier_signatures["band_hashes"].chunks, *sketches["band_hashes"].chunks],
        order,
        config.bands,
    )
    shingle_counts = shingle_store.shingle_counts[order]

    def compute_similarities(first: Int64Array, second: Int64Array) -> np.ndarray:
        return compute_jaccard(
            lambda ranks: shingle_store(order[ranks]), first, second, shingle_counts
        )

    matches = find_duplicate_pairs(
        ordered_bands,
        compute_similarities,
        config.similarity_threshold,
        config.cluster_threshold,
        config.max_candidates,
        earlier_count,
    )
    del ordered_bands
    is_kept = ~matches.removed
    duplicate_pairs = find_best_kept_pair_indices(matches, config.similarity_threshold)
    cluster_pairs = select_spanning_pair_indices(
        matches, is_kept[matches.first] & is_kept[matches.second]
    )
    duplicate_of, similarity = np.full(len(sketches), -1), np.ones(len(sketches))
    duplicate_of[order[matches.second[duplicate_pairs]] - earlier_count] = order[
        matches.first[duplicate_pairs]
    ]
    similarity[order[matches.second[duplicate_pairs]] - earlier_count] = matches.similarity[
        duplicate_pairs
    ]
    clusters = assign_clusters(
        sketches,
        earlier_signatures,
        duplicate_of,
        order[matches.first[cluster_pairs]],
        order[matches.second[cluster_pairs]],
    )
    reported_pairs = np.sort(np.concatenate([duplicate_pairs, cluster_pairs]))
    doc_ids = concatenate_doc_ids(earlier_signatures, sketches)
    pair_rows = pa.table(
        {
            "first_doc_id": doc_ids.take(pa.array(order[matches.first[reported_pairs]])),
            "second_doc_id": doc_ids.take(pa.array(order[matches.second[reported_pairs]])),
            "similarity": matches.similarity[reported_pairs],
        }
    )
    assignment = DuplicateAssignment(
        duplicate_of, similarity, clusters.cluster_ids, clusters.joins_earlier_clusters
    )
    return NearDuplicates(assignment, pair_rows, matches)


def find_best_kept_pair_indices(matches: NearDuplicateMatches, threshold: float) -> Int64Array:
    """Return, for each removed document, the index of its pair with the most similar kept one."""
    pair_indices = np.flatnonzero(
        matches.removed[matches.second]
        & ~matches.removed[matches.first]
        & (matches.similarity >= threshold)
    )
    removed_items = matches.second[pair_indices]
    order = np.lexsort(
        (matches.first[pair_indices], -matches.similarity[pair_indices], removed_items)
    )
    return pair_indices[order[np.unique(removed_items, return_index=True)[1]]]


def select_spanning_pair_indices(
    matches: NearDuplicateMatches, is_eligible: np.ndarray
) -> Int64Array:
    """Select the fewest, most similar pairs that connect the same documents as all eligible ones.

    Args:
        is_eligible: Which pairs may be used, (m,) bool.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    pair_indices = np.flatnonzero(is_eligible)
    n = len(matches.removed)
    # Distinct weights make the tree unique and identify the pair of each edge.
    order = pair_indices[np.lexsort((pair_indices, -matches.similarity[pair_indices]))]
    weights = np.arange(1, len(order) + 1, dtype=np.float64)
    graph = coo_array((weights, (matches.first[order], matches.second[order])), shape=(n, n))
    tree = minimum_spanning_tree(graph.tocsr())
    return order[np.sort(tree.data).astype(np.int64) - 1]


@stage(
    name="deduplicate_near",
    tables={
        "documents": DOCUMENTS,
        "ledger": LEDGER,
        "pairs": PAIRS,
        "search_summary": SEARCH_SUMMARY,
        "signatures": SIGNATURES,
    },
    libraries=["numpy", "scipy"],
    determinism="exact",
    reads={"earlier_corpora": ("documents", "signatures")},
)
def deduplicate_near(
    documents: Table,
    earlier_corpora: dict[str, Artifact],
    config: DeduplicateNearConfig,
    context: StageContext,
) -> None:
    """Sketch the documents by partition, compare all sketches, and write the kept documents.

    Args:
        earlier_corpora: Artifacts of this stage from the earlier corpora, in their order.
    """
    for artifact in earlier_corpora.values():
        check_earlier_compatible(artifact, config, "deduplicate_near")
    partitions = documents.parts
    sketch_results: Sequence[ItemResult] = context.map_items(
        spill_shingles_and_sketches, partitions, config
    )
    report_failures(
        context,
        [result.value for result in sketch_results],
        documents.row_count,
        "the search for near-duplicates",
    )
    sketches = concat_spilled_tables(sketch_results, "sketches", SKETCHES)
    earlier_documents = find_comparable_earlier_documents(
        sketches,
        concatenate_earlier_tables(earlier_corpora, "documents"),
        concatenate_earlier_tables(earlier_corpora, "signatures"),
        config,
    )
    earlier_results: Sequence[ItemResult] = context.map_items(
        spill_shingles_of_earlier_documents, earlier_documents.matches, config
    )
    shingle_store = ShingleStore(
        concat_spilled_tables([*earlier_results, *sketch_results], "shingles", SHINGLES)["shingles"]
    )
    assignment, pair_rows, matches = find_near_duplicates(
        sketches, earlier_documents.signatures, shingle_store, config
    )
    partition_assignments = split_assignment_by_partition(
        partitions,
        sketch_results,
        concatenate_doc_ids(earlier_documents.signatures, sketches),
        assignment,
    )
    context.map_partitions(
        write_deduplicated_partition,
        partition_assignments,
        "near duplicate",
        config.similarity_threshold,
        SKETCHES,
    )
    context.get_table_writer("pairs").write(pair_rows)
    context.get_table_writer("search_summary").write(
        {
            "documents": [len(sketches)],
            "compared_pairs": [matches.compared_pairs],
            "clustered_pairs": [len(matches.similarity)],
            "duplicate_pairs": [int((matches.similarity >= config.similarity_threshold).sum())],
            "limited_documents": [int(matches.has_uncompared.sum())],
            "earlier_documents": [len(earlier_documents.signatures)],
            "bridging_documents": [assignment.bridge_count],
            "candidate_probability": [
                1 - (1 - config.similarity_threshold**config.rows_per_band) ** config.bands
            ],
        }
    )
