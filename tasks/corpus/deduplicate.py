"""Deduplicate: of texts that are the same, one stays.

Texts are compared after NFKC normalisation, lower-casing and collapsing of white space. What is
alike, but not the same, is the work of ``deduplicate_near.py``.

Equal texts are one text, of whatever length: what a removed document was a near copy of may have to
be on its twin's side of the split, so the clusters of both become one. That holds as well for texts
that masking made equal, such as ``<EMAIL>`` and nothing else. No text is empty here: ingest lets
none in, and ``redact_spans`` takes out the documents that it leaves empty.

Where a corpus grows, a document also leaves whose text an earlier document has, or whose id: a
record that came again with the same key, and another text (``id used before``). An earlier
document is one that this stage kept, whatever became of it later: where a rule or the search for
near copies took it out, its text and its id still stay out. So an id that came through here stands
for one text for ever, and ``trace`` and ``purge`` by it mean that one. An earlier document
that left in this very stage, or at ingest, is not known: its id may come again with another text,
and enters.

Memory: about 160 bytes a document, and for an earlier one that it meets.
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
    ids_to_uint64_pairs,
    order_by_keep_priority,
    split_by_partition,
    write_deduplicated_partition,
)
from hallmark.tasks.corpus.copies.earlier_corpora import (
    EARLIER_SEARCH_COLUMNS,
    build_signature_schema,
    check_earlier_compatible,
    concatenate_earlier_tables,
    is_in_sorted,
    read_matching_earlier,
)
from hallmark.tasks.measures.failed_documents import (
    FailureList,
    list_failures_by_doc_id,
    report_failures,
    run_isolating_failures,
)
from hallmark.tasks.measures.normalised_words import normalise_texts


class DeduplicateConfig(KeepPreferenceConfig):
    """Which of the copies stays."""


SEARCH_SUMMARY = table_schema(
    "What was looked at to find the copies; one row.",
    column("documents", pa.int64(), "figure", "documents that came in", unit="documents"),
    *EARLIER_SEARCH_COLUMNS,
)

SIGNATURES = build_signature_schema(
    column("normalised_text_hash", ID_TYPE, "id", "hash of the normalised text")
)

#: With the hash of the normalised text.
SKETCHES = pa.schema([*RANKING_SCHEMA, pa.field("normalised_text_hash", ID_TYPE)])


def hash_partition_texts(
    partition: TablePart, config: DeduplicateConfig, out: TableWriters
) -> FailureList:
    """What must be known of each document of a part to judge it; a document on which that fails is
    like no other."""
    failures: FailureList = []
    for batch in partition.iter_batches(["doc_id", "cluster", "source", "text"]):
        hashes, faults = run_isolating_failures(hash_normalised_texts, batch)
        if len(faults):
            is_faulty = pa.array(np.isin(np.arange(len(batch)), faults.rows))
            hashes = pc.if_else(is_faulty, batch["doc_id"], hashes)
            failures += list_failures_by_doc_id(batch, faults)
        columns = {
            **build_ranking_columns(batch, config.preferred_sources),
            "normalised_text_hash": hashes,
        }
        out.get_spill_writer("sketches", SKETCHES).write(columns)
    return failures


def hash_normalised_texts(batch: pa.RecordBatch) -> pa.Array:
    return hash_to_ids(normalise_texts(batch["text"]).cast(pa.large_binary()).to_pylist())


def find_matching_earlier(sketches: pa.Table, earlier_signatures: Table) -> pa.Table:
    """Of the earlier signatures those that a document may meet: by text, id or cluster."""
    key_columns = {
        "normalised_text_hash": "normalised_text_hash",
        "doc_id": "doc_id",
        "incoming_cluster": "cluster",
    }
    sorted_keys = {
        name: np.sort(ids_to_uint64_pairs(sketches[sketch_column])[:, 0])
        for name, sketch_column in key_columns.items()
    }

    def matches_any_key(rows: pa.Table) -> np.ndarray:
        return np.any(
            [
                is_in_sorted(ids_to_uint64_pairs(rows[name])[:, 0], sorted_keys[name])
                for name in sorted_keys
            ],
            axis=0,
        )

    matching_tables = [
        read_matching_earlier(partition, matches_any_key, SIGNATURES.names)[0]
        for partition in earlier_signatures.parts
    ]
    return pa.concat_tables([SIGNATURES.empty_table(), *matching_tables])


def find_exact_duplicates(sketches: pa.Table, earlier_signatures: pa.Table) -> DuplicateAssignment:
    """known: SKETCHES of all documents; before: signatures of the earlier ones that they meet."""
    earlier_count, document_count = len(earlier_signatures), len(sketches)
    positions = np.arange(earlier_count, earlier_count + document_count)
    rank = np.arange(earlier_count + document_count)
    rank[earlier_count + order_by_keep_priority(sketches)] = positions

    def concatenate_ids(name: str) -> np.ndarray:
        return np.concatenate(
            [ids_to_uint64_pairs(earlier_signatures[name]), ids_to_uint64_pairs(sketches[name])]
        )

    first_with_same_id = find_lowest_ranked_equal(concatenate_ids("doc_id"), rank)[earlier_count:]
    text_hashes = concatenate_ids("normalised_text_hash")
    # The id of an earlier document, and another text than any of them.
    reuses_known_id = (first_with_same_id < earlier_count) & (
        find_lowest_ranked_equal(text_hashes, rank)[earlier_count:] >= earlier_count
    )
    rank[earlier_count:][reuses_known_id] += document_count  # such a document stays for no other
    first_with_same_text = find_lowest_ranked_equal(text_hashes, rank)[earlier_count:]
    del text_hashes, rank
    duplicate_of = np.where(
        reuses_known_id,
        first_with_same_id,
        np.where(first_with_same_text == positions, -1, first_with_same_text),
    )
    no_pairs = np.empty(0, np.int64)
    cluster_ids, joins_clusters = assign_clusters(
        sketches, earlier_signatures, duplicate_of, no_pairs, no_pairs
    )
    return DuplicateAssignment(
        duplicate_of, np.where(reuses_known_id, np.nan, 1.0), cluster_ids, joins_clusters
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
    """Hash the documents part by part, judge them together, write what stays part by part.

    ``earlier``: what this stage left of earlier corpora, in their order.
    """
    for artifact in earlier_corpora.values():
        check_earlier_compatible(artifact, config, "deduplicate")
    partitions = documents.parts
    sketch_results = context.map_items(hash_partition_texts, partitions, config)
    report_failures(
        context,
        [result.value for result in sketch_results],
        documents.row_count,
        "the search for copies",
    )
    sketches = concat_spilled_tables(sketch_results, "sketches", SKETCHES)
    earlier_signatures = find_matching_earlier(
        sketches, concatenate_earlier_tables(earlier_corpora, "signatures")
    )
    assignment = find_exact_duplicates(sketches, earlier_signatures)
    partition_assignments = split_by_partition(
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
