"""Remove exact duplicates: keep one document of each group with equal texts.

Texts are equal if a reader sees no difference (``copies/text_equality.py``): their Unicode form,
line ends and blanks at the end of lines may differ, but not their capitals or indentation.
``deduplicate_near.py`` handles similar texts. The clusters of equal texts are joined, so that near
copies of a removed document stay on the same side of the split as the kept one. This also applies
to texts that masking made equal, such as a lone ``<EMAIL>``. No text is empty here: ingest and
``redact_spans`` remove empty documents.

If the corpus extends earlier corpora, a document is also removed if an earlier document has its
text, or has its id with another text (``id used before``: a record that returned with the same
key). "Earlier documents" are those that this stage kept, even if a later stage removed them. So an
id that passed this stage means one text forever, for ``trace`` and ``purge``, too. A document that
ingest or this stage removed earlier is unknown here: its id may return with another text.

Memory: about 160 bytes per document and per matching earlier document.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract import (
    DOCUMENTS,
    ID_TYPE,
    LEDGER,
    Artifact,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    column,
    concat_spilled_tables,
    hash_to_ids,
    ids_to_uint64_pairs,
    stage,
    table_schema,
)
from hallmark.tasks.corpus.copies.duplicates import (
    RANKING_SCHEMA,
    DuplicateAssignment,
    KeepPreferenceConfig,
    assign_clusters,
    build_ranking_columns,
    concatenate_doc_ids,
    find_lowest_ranked_equal,
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
from hallmark.tasks.corpus.copies.text_equality import fold_invisible_differences
from hallmark.tasks.measures.failed_documents import (
    FailureList,
    list_failures_by_doc_id,
    report_failures,
    run_with_failing_texts_emptied,
)


class DeduplicateConfig(KeepPreferenceConfig):
    """Choose which document of a group of duplicates is kept."""


SEARCH_SUMMARY = table_schema(
    "Number of documents compared in the search for duplicates (one row).",
    column("documents", pa.int64(), "figure", "input documents", unit="documents"),
    *EARLIER_SEARCH_COLUMNS,
)

SIGNATURES = build_signature_schema(
    column(
        "folded_text_hash",
        ID_TYPE,
        "id",
        "hash of the text, ignoring differences that readers cannot see, such as spaces at the "
        "ends of lines",
    )
)

#: The columns needed to rank a document and to compare its text.
SKETCHES = pa.schema([*RANKING_SCHEMA, pa.field("folded_text_hash", ID_TYPE)])


def spill_text_hash_sketches(
    partition: TablePart, config: DeduplicateConfig, out: TableWriters
) -> FailureList:
    """Spill the SKETCHES of a partition and return the documents that could not be hashed.

    Such a document gets its doc_id as hash, so that it matches no other document.
    """
    failures: FailureList = []
    for batch in partition.iter_batches(["doc_id", "cluster", "source", "text"]):
        hashes, faults = run_with_failing_texts_emptied(hash_folded_texts, batch)
        if len(faults):
            is_faulty = pa.array(np.isin(np.arange(len(batch)), faults.rows))
            hashes = pc.if_else(is_faulty, batch["doc_id"], hashes)
            failures += list_failures_by_doc_id(batch, faults)
        columns = {
            **build_ranking_columns(batch, config.preferred_sources),
            "folded_text_hash": hashes,
        }
        out.get_spill_writer("sketches", SKETCHES).write(columns)
    return failures


def hash_folded_texts(batch: pa.RecordBatch) -> pa.Array:
    """Hash the text of each document, without invisible differences, to 16 bytes."""
    return hash_to_ids(
        fold_invisible_differences(batch["text"]).cast(pa.large_binary()).to_pylist()
    )


def find_possibly_matching_earlier_signatures(
    sketches: pa.Table, earlier_signatures: Table
) -> pa.Table:
    """Return the earlier signatures that may share a text, an id or a cluster with a document.

    Only the first 8 bytes of each key are compared, so a few others may be included.
    """
    key_columns = {
        "folded_text_hash": "folded_text_hash",
        "doc_id": "doc_id",
        "incoming_cluster": "cluster",
    }
    sorted_keys = {
        name: np.sort(ids_to_uint64_pairs(sketches[sketch_column])[:, 0])
        for name, sketch_column in key_columns.items()
    }

    def matches_any_key(rows: pa.Table) -> np.ndarray:
        is_match: np.ndarray = np.any(
            [
                is_in_sorted(ids_to_uint64_pairs(rows[name])[:, 0], sorted_keys[name])
                for name in sorted_keys
            ],
            axis=0,
        )
        return is_match

    matching_tables = [
        read_matching_signatures(partition, matches_any_key, SIGNATURES.names).rows
        for partition in earlier_signatures.parts
    ]
    return pa.concat_tables([SIGNATURES.empty_table(), *matching_tables])


def find_exact_duplicates(sketches: pa.Table, earlier_signatures: pa.Table) -> DuplicateAssignment:
    """Decide which documents are duplicates, and of which document.

    Args:
        sketches: SKETCHES of all documents.
        earlier_signatures: SIGNATURES of the matching earlier documents.
    """
    earlier_count, document_count = len(earlier_signatures), len(sketches)
    positions = np.arange(earlier_count, earlier_count + document_count)
    rank = np.arange(earlier_count + document_count)
    rank[earlier_count + order_by_keep_priority(sketches)] = positions

    def concatenate_ids(name: str) -> np.ndarray:
        return np.concatenate(
            [ids_to_uint64_pairs(earlier_signatures[name]), ids_to_uint64_pairs(sketches[name])]
        )

    first_with_same_id = find_lowest_ranked_equal(concatenate_ids("doc_id"), rank)[earlier_count:]
    text_hashes = concatenate_ids("folded_text_hash")
    # Same id as an earlier document, but a text that no earlier document has.
    reuses_known_id = (first_with_same_id < earlier_count) & (
        find_lowest_ranked_equal(text_hashes, rank)[earlier_count:] >= earlier_count
    )
    # These documents are removed, so no other may be removed as a duplicate of them.
    rank[earlier_count:][reuses_known_id] += document_count
    first_with_same_text = find_lowest_ranked_equal(text_hashes, rank)[earlier_count:]
    del text_hashes, rank
    duplicate_of = np.where(
        reuses_known_id,
        first_with_same_id,
        np.where(first_with_same_text == positions, -1, first_with_same_text),
    )
    no_pairs = np.empty(0, np.int64)
    clusters = assign_clusters(sketches, earlier_signatures, duplicate_of, no_pairs, no_pairs)
    return DuplicateAssignment(
        duplicate_of,
        np.where(reuses_known_id, np.nan, 1.0),
        clusters.cluster_ids,
        clusters.joins_earlier_clusters,
    )


@stage(
    name="deduplicate",
    tables={
        "documents": DOCUMENTS,
        "ledger": LEDGER,
        "search_summary": SEARCH_SUMMARY,
        "signatures": SIGNATURES,
    },
    libraries=["numpy", "scipy"],
    determinism="exact",
    reads={"earlier_corpora": ("signatures",)},
)
def deduplicate(
    documents: Table,
    earlier_corpora: dict[str, Artifact],
    config: DeduplicateConfig,
    context: StageContext,
) -> None:
    """Hash the documents by partition, compare all hashes, and write the kept documents.

    Args:
        earlier_corpora: Artifacts of this stage from the earlier corpora, in their order.
    """
    for artifact in earlier_corpora.values():
        check_earlier_compatible(artifact, config, "deduplicate")
    partitions = documents.parts
    sketch_results = context.map_items(spill_text_hash_sketches, partitions, config)
    report_failures(
        context,
        [result.value for result in sketch_results],
        documents.row_count,
        "the search for exact duplicates",
    )
    sketches = concat_spilled_tables(sketch_results, "sketches", SKETCHES)
    earlier_signatures = find_possibly_matching_earlier_signatures(
        sketches, concatenate_earlier_tables(earlier_corpora, "signatures")
    )
    assignment = find_exact_duplicates(sketches, earlier_signatures)
    partition_assignments = split_assignment_by_partition(
        partitions, sketch_results, concatenate_doc_ids(earlier_signatures, sketches), assignment
    )
    context.map_partitions(
        write_deduplicated_partition, partition_assignments, "exact duplicate", 1.0, SKETCHES
    )
    search_row = {
        "documents": [len(sketches)],
        "earlier_documents": [len(earlier_signatures)],
        "bridging_documents": [assignment.bridge_count],
    }
    context.get_table_writer("search_summary").write(search_row)
