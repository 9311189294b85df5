"""Remove documents from packed sequences by replacing their tokens with padding.

All other rows, positions, batches and steps of a training stay the same, bit for bit, and so does
what an objective masks or cuts out there (except that the adjacent pairs of span corruption move
up). Two trainings from the same seed, one without the documents, therefore differ in nothing else.
Padding has no weight and is no target, and since the documents have no spans, training counts them
as never read.

Memory: a partition of the rows in each worker; 60 bytes per span; and one document across
partitions at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hallmark.model.special_tokens import PAD_ID
from hallmark.model.training.packed_rows import spell_tokens_as_bytes
from hallmark.tasks.contract import (
    ID_TYPE,
    Artifact,
    EmptyConfig,
    HallmarkError,
    ItemResult,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    accounts,
    format_count,
    hash_documents,
    stage,
)
from hallmark.tasks.training.encoding import join_token_bytes, load_tokenizer
from hallmark.tasks.training.pack import PACKED_SPLITS, SPANS, build_sequences_schema

Int64 = NDArray[np.int64]


def replace_spans_with_padding(rows: pa.Table, first_row: int, spans: pa.Table) -> pa.Table | None:
    """Replace the tokens of spans with padding.

    Args:
        rows: Packed rows.
        first_row: Number of the first of them in its split.
        spans: Columns sequence, row_start and row_end; spans do not overlap.

    Returns:
        The padded rows, or None if they are unchanged.
    """
    row_indices = spans["sequence"].to_numpy() - first_row
    is_in_rows = (row_indices >= 0) & (row_indices < len(rows))
    arrays = []
    is_changed = False
    for column_name in rows.column_names:
        values = rows[column_name].combine_chunks()
        context_length = values.type.list_size
        padding_value = PAD_ID if column_name == "token_ids" else -1
        flat_values = values.flatten().to_numpy()
        span_edges = np.zeros(len(flat_values) + 1, np.int64)
        for edge_column, step in (("row_start", 1), ("row_end", -1)):
            np.add.at(
                span_edges,
                row_indices[is_in_rows] * context_length
                + spans[edge_column].to_numpy()[is_in_rows],
                step,
            )
        is_removed = np.cumsum(span_edges[:-1]) > 0
        is_changed |= bool((flat_values[is_removed] != padding_value).any())
        padded_values = np.where(is_removed, np.int32(padding_value), flat_values).astype(np.int32)
        arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(padded_values), type=values.type))
    return pa.table(arrays, schema=rows.schema) if is_changed else None


@dataclass(frozen=True)
class PackedRows:
    """A partition of the packed rows of a split.

    Attributes:
        split: The split.
        part: The rows.
        first_row: Number of the first row in the split.
        removed_spans: Spans in these rows of documents to remove.
        remaining_spans: Spans of all other documents, with a column source.
    """

    split: str
    part: TablePart
    first_row: int
    removed_spans: pa.Table
    remaining_spans: pa.Table

    def __str__(self) -> str:
        return str(self.part)


#: Part of a document at an edge of a partition, which may continue in the neighbouring one.
EDGE_DOCUMENTS = pa.schema(
    [("doc_id", ID_TYPE), ("source", pa.string()), ("text", pa.large_binary())]
)


def write_padded_partition(
    packed_rows: PackedRows, tokenizer_path: str, out: TableWriters
) -> accounts.SourceCounts:
    """Write the padded rows of a partition, and spill the documents at its edges.

    Returns:
        Counts of the remaining documents except those at the edges, computed from the written
            tokens.
    """
    original_rows = packed_rows.part.read()
    padded_rows = replace_spans_with_padding(
        original_rows, packed_rows.first_row, packed_rows.removed_spans
    )
    written_rows = original_rows if padded_rows is None else padded_rows
    out.get_table_writer(packed_rows.split).write(written_rows)
    id_array = written_rows["token_ids"].combine_chunks()
    token_ids = id_array.flatten().to_numpy()
    bytes_by_token = spell_tokens_as_bytes(load_tokenizer(Path(tokenizer_path)))
    token_byte_lengths = pc.binary_length(bytes_by_token).to_numpy()
    byte_offsets = np.concatenate([[0], np.cumsum(token_byte_lengths[token_ids], dtype=np.int64)])
    first_span_indices, token_starts, token_ends = find_document_token_ranges(
        packed_rows, id_array.type.list_size
    )
    text_edges = byte_offsets[np.append(token_starts, -1)]
    # Text without a span is added to the first document, so that its checksum reveals it.
    text_edges[0] = 0
    texts = join_token_bytes(bytes_by_token, token_ids, text_edges)
    first_spans = packed_rows.remaining_spans.take(first_span_indices)
    documents = pa.table(
        [first_spans["doc_id"], first_spans["source"], texts], schema=EDGE_DOCUMENTS
    )
    is_complete = pa.array((token_starts > 0) & (token_ends < len(token_ids)))
    out.get_spill_writer("edges", EDGE_DOCUMENTS).write(documents.filter(pc.invert(is_complete)))
    return count_documents_by_source(documents.filter(is_complete))


class DocumentTokenRanges(NamedTuple):
    """Hold where the tokens of n documents are in a partition.

    Attributes:
        first_span_indices: (n,) index of the first span of the document.
        token_starts: (n,) first token.
        token_ends: (n,) end token, exclusive.
    """

    first_span_indices: Int64
    token_starts: Int64
    token_ends: Int64


def find_document_token_ranges(packed_rows: PackedRows, context_length: int) -> DocumentTokenRanges:
    """Find where the tokens of each remaining document begin and end in the partition.

    The spans of a document are consecutive, and so are its tokens.
    """
    document_numbers = pc.rank(packed_rows.remaining_spans["doc_id"], tiebreaker="dense").to_numpy()
    first_spans, last_spans = (
        np.flatnonzero(np.diff(document_numbers, **{side: 0})) for side in ("prepend", "append")
    )
    row_offsets = (
        packed_rows.remaining_spans["sequence"].to_numpy() - packed_rows.first_row
    ) * context_length
    token_starts, token_ends = (
        row_offsets + packed_rows.remaining_spans[span_column].to_numpy()
        for span_column in ("row_start", "row_end")
    )
    return DocumentTokenRanges(first_spans, token_starts[first_spans], token_ends[last_spans])


def count_documents_by_source(documents: pa.Table) -> accounts.SourceCounts:
    """Count whole documents, with the bytes and hashes of what their tokens spell."""
    document_columns = (documents["source"], pc.binary_length(documents["text"]))
    document_values = zip(
        *(column.to_pylist() for column in document_columns),
        hash_documents(documents["doc_id"], documents["text"]),
        strict=True,
    )
    count_rows = [
        [source, "document", 1, byte_count, 0, document_hash.hex()]
        for source, byte_count, document_hash in document_values
    ]
    return accounts.merge_counts([count_rows])


def count_documents_split_across_partitions(results: Sequence[ItemResult]) -> accounts.SourceCounts:
    """Count the documents at the edges of partitions, joining the pieces of one at a time.

    The partitions spilled these documents, as each has only a piece of them.
    """
    piece_rows = (
        piece_row
        for result in results
        for piece_row in result.open_spilled_table("edges", EDGE_DOCUMENTS).to_pylist()
    )
    document_counts = []
    for doc_id, grouped_pieces in groupby(piece_rows, itemgetter("doc_id")):
        document_pieces = [*grouped_pieces]
        document = {
            "doc_id": doc_id,
            "source": document_pieces[0]["source"],
            "text": b"".join(piece["text"] for piece in document_pieces),
        }
        document_counts.append(
            count_documents_by_source(pa.Table.from_pylist([document], schema=EDGE_DOCUMENTS))
        )
    return accounts.merge_counts(document_counts)


def append_source_column(spans: pa.Table, documents: Table) -> pa.Table:
    """Append the source of each document to its spans."""
    document_sources = pa.concat_tables(
        [part.read(["doc_id", "source"]) for part in documents.parts]
    )
    source_indices = pc.index_in(
        spans["doc_id"], value_set=document_sources["doc_id"].combine_chunks()
    )
    return spans.append_column(
        "source", document_sources["source"].combine_chunks().take(source_indices)
    )


def split_spans_by_part(spans: pa.Table, split: str, row_edges: Int64) -> list[pa.Table]:
    """Divide the spans of a split, which are sorted by row, at the given rows."""
    split_spans = spans.filter(pc.equal(spans["split"], split))
    span_edges = np.searchsorted(split_spans["sequence"].to_numpy(), row_edges)
    return [split_spans.slice(start, stop - start) for start, stop in pairwise(span_edges)]


@stage(
    name="pad_removed_documents",
    tables={
        **{split: build_sequences_schema(-1) for split in PACKED_SPLITS},
        "spans": SPANS,
        "accounts": accounts.ACCOUNTS,
        "checksums": accounts.CHECKSUMS,
    },
    libraries=["tokenizers", "numpy"],
    reads={
        "packed_corpus": (*PACKED_SPLITS, "spans", "accounts", "checksums"),
        "tokenizer": ("tokenizer.json",),
    },
)
def pad_removed_documents(
    packed_corpus: Artifact,
    documents: Table,
    ledger: Table,
    tokenizer: Artifact,
    config: EmptyConfig,
    context: StageContext,
) -> None:
    """Replace removed documents in the packed sequences with padding.

    Args:
        packed_corpus: Output of `pack`.
        documents: The remaining documents.
        ledger: The removed documents, from the `leave_out` stage.
        tokenizer: Output of `train_tokenizer`.
        config: Empty.
        context: Context of the stage.

    Raises:
        HallmarkError: A removed document is not in the packed sequences.
    """
    removed_ids = pc.unique(ledger.read(["doc_id"])["doc_id"].combine_chunks())
    spans = packed_corpus["spans"].read()
    unpacked_ids = removed_ids.filter(
        pc.invert(pc.is_in(removed_ids, value_set=spans["doc_id"].combine_chunks()))
    )
    if len(unpacked_ids):
        raise HallmarkError(
            f"{format_count(len(unpacked_ids), 'document')} to remove cannot be found in the "
            f"packed sequences of {packed_corpus.name}, for example "
            f"{unpacked_ids[0].as_py().hex()}; remove only documents that were packed for training"
        )
    is_removed = pc.is_in(spans["doc_id"], value_set=removed_ids)
    remaining_spans = append_source_column(spans.filter(pc.invert(is_removed)), documents)
    packed_rows = []
    for split in PACKED_SPLITS:
        parts = packed_corpus[split].parts
        row_edges = np.cumsum([0, *(part.row_count for part in parts)])
        spans_by_part = (
            split_spans_by_part(span_table, split, row_edges)
            for span_table in (spans.filter(is_removed), remaining_spans)
        )
        for part, first_row, *part_spans in zip(
            parts, row_edges[:-1].tolist(), *spans_by_part, strict=True
        ):
            packed_rows.append(PackedRows(split, part, first_row, *part_spans))
        if packed_corpus[split].row_count:
            row_schema = parts[0].read_empty_table().schema
            context_length = row_schema.field("token_ids").type.list_size
            context.schemas |= {
                name: build_sequences_schema(context_length) for name in PACKED_SPLITS
            }
    results = context.map_items(
        write_padded_partition, packed_rows, str(tokenizer.fetch_file("tokenizer.json"))
    )
    context.get_table_writer("spans").write(remaining_spans.drop_columns("source"))
    kept_counts = accounts.merge_counts(
        [count_documents_split_across_partitions(results), *(part.value for part in results)]
    )
    account_rows = accounts.compute_account_rows(
        read_packed_counts(packed_corpus), kept_counts, ledger.source_counts
    )
    checksum_rows = accounts.compute_checksum_rows(
        read_packed_counts(packed_corpus), kept_counts, ledger.source_counts
    )
    context.get_table_writer("accounts").write(
        pa.Table.from_pylist(account_rows, schema=accounts.ACCOUNTS)
    )
    context.get_table_writer("checksums").write(
        pa.Table.from_pylist(checksum_rows, schema=accounts.CHECKSUMS)
    )


def read_packed_counts(packed_corpus: Artifact) -> accounts.SourceCounts:
    """Read the counts of packed documents from the accounts and checksums."""
    counts_by_unit = {
        (row["source"], row["unit"]): row["kept"]
        for row in packed_corpus["accounts"].read().to_pylist()
    }
    checksums = {
        row["source"]: row["kept"].hex() for row in packed_corpus["checksums"].read().to_pylist()
    }
    return [
        [source, "document", document_count, counts_by_unit[source, "bytes"], 0, checksums[source]]
        for (source, unit), document_count in counts_by_unit.items()
        if unit == "rows"
    ]
