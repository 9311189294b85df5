"""Compute how often training read each document from (seed, step); training logs no documents.

Training reads rows of packed tokens epoch by epoch, in the order of
`model.training.packed_rows.select_batch_rows`. How often a row was read up to a step, and when
first and last, therefore has a closed form.

Memory: 60 bytes per packed row, 60 bytes per span, and the ids of the documents; in each worker,
one partition of these per checkpoint. The reads of the rows are in a file, with 12 bytes per row
and checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hallmark.model.training.packed_rows import compute_read_steps, count_reads_per_row
from hallmark.tasks.contract import (
    ID_TYPE,
    Row,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    column,
    table_schema,
)

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

DOCUMENT_READS = table_schema(
    "Number of tokens of each packed document that were used in training. Each checkpoint has "
    "one row per document with tokens used since the previous checkpoint.",
    column("doc_id", ID_TYPE, "id", "the document"),
    column("step", pa.int64(), "figure", "optimizer step of the checkpoint"),
    column("source", pa.string(), "label", "source of the document"),
    column(
        "document_tokens",
        pa.int64(),
        "figure",
        "number of tokens of the document, including <|endoftext|>",
        unit="tokens",
    ),
    column(
        "tokens_read",
        pa.int64(),
        "figure",
        "number of tokens of the document that were used in training since the previous "
        "checkpoint; a token that was used twice is counted twice",
        unit="tokens",
    ),
    column(
        "first_step",
        pa.int64(),
        "figure",
        "first training step since the previous checkpoint that used tokens of the document",
    ),
    column(
        "last_step",
        pa.int64(),
        "figure",
        "last training step up to this checkpoint that used tokens of the document",
    ),
    column(
        "times_read",
        pa.int64(),
        "figure",
        "number of times that the whole document was used in training up to and including this "
        "checkpoint",
    ),
    partition_by_doc_id=True,
)

COVERAGE = table_schema(
    "Number of documents and tokens from each source used in training up to each checkpoint.",
    column("step", pa.int64(), "figure", "optimizer step of the checkpoint"),
    column("source", pa.string(), "label", "the source"),
    column(
        "documents",
        pa.int64(),
        "figure",
        "number of documents that were packed for training",
        unit="documents",
    ),
    column(
        "read_documents",
        pa.int64(),
        "figure",
        "number of documents with at least one token that was used in training",
        unit="documents",
    ),
    column(
        "fully_read_documents",
        pa.int64(),
        "figure",
        "number of documents whose tokens were all used in training",
        unit="documents",
    ),
    column(
        "packed_tokens",
        pa.int64(),
        "figure",
        "number of tokens in the packed documents",
        unit="tokens",
    ),
    column(
        "tokens_read",
        pa.int64(),
        "figure",
        "number of tokens that were used in training; a token that was used twice is counted twice",
        unit="tokens",
    ),
)


@dataclass(frozen=True)
class DocumentSpans:
    """The training documents of a partition, sorted by id, and their spans in the packed rows.

    Attributes:
        part: The partition.
        doc_ids: (D,) ids.
        sources: (D,) sources.
        first_span_indices: (D,) index of the first span of each document.
        span_rows: (S,) packed row of each span.
        span_tokens: (S,) number of tokens of each span.
    """

    part: TablePart
    doc_ids: pa.Array
    sources: pa.Array
    first_span_indices: Int64
    span_rows: Int64
    span_tokens: Int64

    def __str__(self) -> str:
        return str(self.part)

    def reduce_by_document(self, ufunc: np.ufunc, span_values: Int64) -> Int64:
        """Apply a ufunc's `reduceat` to the spans of each document: (S,) to (D,)."""
        return (
            ufunc.reduceat(span_values, self.first_span_indices)
            if len(self.first_span_indices)
            else span_values
        )

    @property
    def document_tokens(self) -> Int64:
        """Number of tokens of each document, (D,)."""
        return self.reduce_by_document(np.add, self.span_tokens)


def load_document_spans(spans: Table, documents: Table) -> list[DocumentSpans]:
    """Load the spans of the train split for each partition of `documents`."""
    train_spans = spans.read(["split", "sequence", "row_start", "row_end", "doc_id"])
    train_spans = (
        train_spans.filter(pc.equal(train_spans["split"], "train"))
        .sort_by("doc_id")
        .combine_chunks()
    )
    part_documents = [part.read(["doc_id", "source"]) for part in documents.parts]
    all_documents = pa.concat_tables(part_documents).combine_chunks()
    document_indices = pc.index_in(
        train_spans["doc_id"], value_set=all_documents["doc_id"].combine_chunks()
    )
    part_indices = np.repeat(
        np.arange(len(part_documents)), [len(rows) for rows in part_documents]
    )[document_indices.to_numpy()]
    train_spans = train_spans.append_column(
        "source", all_documents["source"].cast(pa.string()).take(document_indices)
    )
    part_order = np.argsort(part_indices, kind="stable")
    train_spans = train_spans.take(part_order).combine_chunks()
    part_edges = np.searchsorted(part_indices[part_order], np.arange(len(part_documents) + 1))
    return [
        _build_document_spans(part, train_spans.slice(begin, end - begin))
        for part, begin, end in zip(documents.parts, part_edges[:-1], part_edges[1:], strict=True)
    ]


def _build_document_spans(part: TablePart, span_table: pa.Table) -> DocumentSpans:
    doc_ids = pc.unique(span_table["doc_id"])  # Keeps the order, so the ids are sorted.
    document_numbers = pc.index_in(span_table["doc_id"], value_set=doc_ids).to_numpy()
    first_span_indices = np.searchsorted(document_numbers, np.arange(len(doc_ids)))
    sources = span_table["source"].combine_chunks().take(pa.array(first_span_indices))
    span_tokens = (
        pc.subtract(span_table["row_end"], span_table["row_start"]).to_numpy().astype(np.int64)
    )
    return DocumentSpans(
        part, doc_ids, sources, first_span_indices, span_table["sequence"].to_numpy(), span_tokens
    )


#: First step of a row that was not read.
NEVER_READ = np.iinfo(np.int32).max


#: How often and when n packed rows were read, (3, n): the number of reads up to a step; the first
#: step since the previous checkpoint's that read the row, or NEVER_READ; and the last one, or 0.
RowReads = Int32


def iter_row_reads(
    row_count: int, seed: int, batch_size: int, steps: Sequence[int]
) -> Iterator[RowReads]:
    """Yield, for each of the ascending steps, how often and when each packed row was read."""
    previous_counts = np.zeros(row_count, np.int64)
    for step in steps:
        read_counts = count_reads_per_row(seed, step, batch_size, row_count)
        is_newly_read = read_counts > previous_counts
        first_steps = np.where(
            is_newly_read, compute_read_steps(previous_counts, seed, batch_size), NEVER_READ
        )
        last_steps = np.where(
            is_newly_read, compute_read_steps(np.maximum(read_counts - 1, 0), seed, batch_size), 0
        )
        yield np.array([read_counts, first_steps, last_steps], np.int32)
        previous_counts = read_counts


class ReadTables(NamedTuple):
    """Hold what a training read of the documents of a partition.

    Attributes:
        document_reads: Rows of DOCUMENT_READS.
        coverage: Rows of COVERAGE.
    """

    document_reads: pa.Table
    coverage: pa.Table


def build_read_tables(
    document_spans: DocumentSpans, row_reads: Iterable[RowReads], steps: Sequence[int]
) -> ReadTables:
    """Build the tables of reads at each checkpoint.

    Args:
        document_spans: Documents of a partition.
        row_reads: Reads of all rows of the train split, for each step.
        steps: Steps of the checkpoints, ascending.
    """
    read_tables, coverage_tables = [DOCUMENT_READS.empty_table()], [COVERAGE.empty_table()]
    previous_counts = np.zeros(len(document_spans.span_rows), np.int64)
    for step, step_reads in zip(steps, row_reads, strict=True):
        read_counts, first_steps, last_steps = step_reads[:, document_spans.span_rows].astype(
            np.int64
        )  # (S,) each
        read_columns = {
            "tokens_read": document_spans.reduce_by_document(
                np.add, (read_counts - previous_counts) * document_spans.span_tokens
            ),
            "first_step": document_spans.reduce_by_document(np.minimum, first_steps),
            "last_step": document_spans.reduce_by_document(np.maximum, last_steps),
            "times_read": document_spans.reduce_by_document(np.minimum, read_counts),
        }
        document_columns = {
            "doc_id": document_spans.doc_ids,
            "step": pa.array(np.full(len(document_spans.document_tokens), step)),
            "source": document_spans.sources,
            "document_tokens": pa.array(document_spans.document_tokens),
        }
        read_documents = np.flatnonzero(read_columns["tokens_read"])
        read_tables.append(
            pa.table({**document_columns, **read_columns}, schema=DOCUMENT_READS).take(
                read_documents
            )
        )
        coverage_tables.append(_build_coverage_by_source(step, document_spans, read_counts))
        previous_counts = read_counts
    sort_keys: Any = [("doc_id", "ascending"), ("step", "ascending")]
    return ReadTables(
        pa.concat_tables(read_tables).sort_by(sort_keys), pa.concat_tables(coverage_tables)
    )


def _build_coverage_by_source(
    step: int, document_spans: DocumentSpans, reads_per_span: Int64
) -> pa.Table:
    """Build the rows of COVERAGE of one checkpoint from the number of reads of each span, (S,)."""
    tokens_read = document_spans.reduce_by_document(
        np.add, reads_per_span * document_spans.span_tokens
    )
    is_fully_read = document_spans.reduce_by_document(np.minimum, reads_per_span) > 0
    document_coverage = pa.table(
        {
            "step": np.full(len(tokens_read), step),
            "source": document_spans.sources,
            "documents": np.ones(len(tokens_read), np.int64),
            "read_documents": (tokens_read > 0).astype(np.int64),
            "fully_read_documents": is_fully_read.astype(np.int64),
            "packed_tokens": document_spans.document_tokens,
            "tokens_read": tokens_read,
        },
        schema=COVERAGE,
    )
    return sum_coverage_by_source(document_coverage)


def sum_coverage_by_source(coverage: pa.Table) -> pa.Table:
    """Sum rows of COVERAGE to one for each checkpoint and source, sorted."""
    key_columns, count_columns = COVERAGE.names[:2], COVERAGE.names[2:]
    sums = coverage.group_by(key_columns).aggregate([(name, "sum") for name in count_columns])
    sums = sums.rename_columns([name.removesuffix("_sum") for name in sums.column_names])
    sort_keys: Any = [(name, "ascending") for name in key_columns]
    return sums.select(COVERAGE.names).cast(COVERAGE).sort_by(sort_keys)


def write_document_reads(
    document_spans: DocumentSpans, reads_path: str, steps: Sequence[int], out: TableWriters
) -> list[Row]:
    """Write DOCUMENT_READS of a partition; return its rows of COVERAGE."""
    row_reads = np.memmap(reads_path, np.int32, "r").reshape(len(steps), 3, -1)
    tables = build_read_tables(document_spans, row_reads, steps)
    out.get_table_writer("document_reads").write(tables.document_reads)
    coverage_rows: list[Row] = tables.coverage.to_pylist()
    return coverage_rows


def write_read_tables(
    packed_rows: Table,
    spans: Table,
    documents: Table,
    seed: int,
    batch_size: int,
    steps: Sequence[int],
    context: StageContext,
) -> None:
    """Write the tables `document_reads` and `coverage`.

    Args:
        packed_rows: The packed train split.
        spans: Rows of SPANS.
        documents: The packed documents.
        seed: Seed of the training.
        batch_size: Sequences per step.
        steps: Steps of the checkpoints, ascending.
        context: Context of the stage.
    """
    reads_path = context.work_area / "readings"
    with reads_path.open("wb") as file:
        for step_reads in iter_row_reads(packed_rows.row_count, seed, batch_size, steps):
            step_reads.tofile(file)
    results = context.map_partitions(
        write_document_reads, load_document_spans(spans, documents), str(reads_path), steps
    )
    coverage_rows = [row for result in results for row in result.value]
    context.get_table_writer("coverage").write(
        sum_coverage_by_source(pa.Table.from_pylist(coverage_rows, schema=COVERAGE))
    )
