"""Find long passages that repeat an earlier document or an earlier place in the same document.

Following Lee et al. 2022, a passage of ``min_bytes`` or more becomes a span at every occurrence but
the first, so cutting the spans keeps each passage once; ``redact_spans`` decides what happens to
them. Documents are ordered by source, length and doc_id, those of earlier corpora first, so the
first occurrence depends on content alone.

Memory: 7 bytes per byte of text (11 beyond 2 GB), earlier corpora included, for the text, its
suffix array and two byte masks, however much repeats; 60 bytes per document; afterwards, when 6 of
the 7 are free again, about 100 bytes per span. The stage fails at once if the machine has less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    concat_spilled_tables,
    stage,
)
from hallmark.tasks.corpus.copies.duplicates import (
    RANKING_SCHEMA,
    KeepPreferenceConfig,
    build_ranking_columns,
    order_by_keep_priority,
)
from hallmark.tasks.corpus.copies.earlier_corpora import concatenate_earlier_tables
from hallmark.tasks.corpus.copies.repeats import (
    TEXT_SEPARATOR,
    join_repeated_spans,
    mark_repeated_window_starts,
)
from hallmark.tasks.corpus.spans import SPANS, Utf8Texts
from hallmark.tasks.measures.machine import total_memory_bytes

Int64Array = NDArray[np.int64]


class RepeatsConfig(KeepPreferenceConfig):
    """Choose which passages count as repeated, and which document keeps a shared passage."""

    enabled: bool = Field(
        False,
        description="whether to search for repeated passages; the search keeps the whole corpus "
        "in memory",
    )
    min_bytes: int = Field(200, ge=16, description="minimum length of a repeated passage, in bytes")


def spill_ranking_columns(partition: TablePart, config: RepeatsConfig, out: TableWriters) -> None:
    """Spill the columns that rank the documents of a partition."""
    for batch in partition.iter_batches(["doc_id", "cluster", "source", "text"]):
        out.get_spill_writer("ranking", RANKING_SCHEMA).write(
            build_ranking_columns(batch, config.preferred_sources)
        )


def concatenate_texts(
    partitions: Sequence[TablePart], text_starts: Int64Array, total_bytes: int
) -> NDArray[np.uint8]:
    """Copy all texts into one buffer, each followed by TEXT_SEPARATOR.

    Args:
        partitions: The partitions of all documents, n in total.
        text_starts: Where each text begins in the buffer, (n,).
    """
    text_buffer = np.full(total_bytes, TEXT_SEPARATOR, np.uint8)
    first_row = 0
    for partition in partitions:
        for batch in partition.iter_batches(["text"]):
            utf8 = Utf8Texts.from_array(batch["text"])
            offsets = utf8.offsets.tolist()
            batch_starts = text_starts[first_row : first_row + len(batch)].tolist()
            for target, start, stop in zip(batch_starts, offsets, offsets[1:], strict=False):
                text_buffer[target : target + stop - start] = utf8.byte_values[start:stop]
            first_row += len(batch)
    return text_buffer


@dataclass(frozen=True)
class RepeatSpans:
    """The spans of a partition, (m,) each: row of the document, first byte and end."""

    partition: TablePart
    document_rows: Int64Array
    starts: Int64Array
    ends: Int64Array

    def __str__(self) -> str:
        return str(self.partition)


def write_repeat_spans(repeats: RepeatSpans, out: TableWriters) -> None:
    """Write the spans of a partition as rows of SPANS."""
    doc_ids = repeats.partition.read(["doc_id"])["doc_id"].combine_chunks()
    span_count = len(repeats.document_rows)
    out.get_table_writer("spans").write(
        {
            "doc_id": doc_ids.take(pa.array(repeats.document_rows)),
            "byte_start": repeats.starts,
            "byte_end": repeats.ends,
            "type": pa.array(["REPEAT"] * span_count, pa.string()),
            "span_hash": pa.nulls(span_count, SPANS.field("span_hash").type),
            "score": pa.nulls(span_count, pa.float32()),
        }
    )


def check_memory(text_bytes: int, available_bytes: int) -> None:
    """Raise HallmarkError if the search needs more memory than this machine has."""
    needed_bytes = text_bytes * (7 if text_bytes < 1 << 31 else 11)
    if needed_bytes > available_bytes:
        raise HallmarkError(
            f"searching {text_bytes / 1e9:.1f} GB of text for repeated passages needs "
            f"{needed_bytes / 1e9:.1f} GB of memory, but this machine has "
            f"{available_bytes / 1e9:.1f} GB; run on a machine with more memory, or set "
            "find_repeats.enabled = false"
        )


def find_repeat_spans(
    earlier_partitions: Sequence[TablePart],
    partitions: Sequence[TablePart],
    ranking: pa.Table,
    min_bytes: int,
) -> list[RepeatSpans]:
    """Find the repeated passages in ``partitions``; those in earlier corpora are not returned.

    Args:
        ranking: RANKING_SCHEMA rows of all documents, earlier ones first.
    """
    all_partitions = [*earlier_partitions, *partitions]
    earlier_count = sum(partition.row_count for partition in earlier_partitions)
    order = np.concatenate(
        [
            np.arange(earlier_count),
            earlier_count + order_by_keep_priority(ranking.slice(earlier_count)),
        ]
    )
    sizes = ranking["bytes"].to_numpy()
    ends = np.cumsum(sizes[order] + 1)  # by rank
    text_starts = np.empty(len(order), np.int64)  # by row
    text_starts[order] = ends - sizes[order] - 1
    total_bytes = int(ends[-1]) if len(ends) else 0
    check_memory(total_bytes, total_memory_bytes())
    text_buffer = concatenate_texts(all_partitions, text_starts, total_bytes)
    starts, stops = join_repeated_spans(
        text_buffer, mark_repeated_window_starts(text_buffer, min_bytes), min_bytes
    )
    document_rows = order[np.searchsorted(ends, starts, side="right")]
    starts, stops = starts - text_starts[document_rows], stops - text_starts[document_rows]
    sort_order = np.lexsort((starts, document_rows))
    document_rows, starts, stops = document_rows[sort_order], starts[sort_order], stops[sort_order]
    partition_bounds = np.concatenate(
        [[0], np.cumsum([partition.row_count for partition in all_partitions])]
    )
    span_bounds = np.searchsorted(document_rows, partition_bounds)
    return [
        RepeatSpans(
            partition,
            document_rows[span_start:span_stop] - first_row,
            starts[span_start:span_stop],
            stops[span_start:span_stop],
        )
        for partition, first_row, span_start, span_stop in zip(
            all_partitions, partition_bounds, span_bounds[:-1], span_bounds[1:], strict=False
        )
    ][len(earlier_partitions) :]


@stage(
    name="find_repeats",
    tables={"spans": SPANS},
    libraries=["numpy", "pydivsufsort"],
    determinism="exact",
    reads={"earlier_corpora": ("documents",)},
)
def find_repeats(
    documents: Table,
    earlier_corpora: dict[str, Artifact],
    config: RepeatsConfig,
    context: StageContext,
) -> None:
    """Find repeated passages in all documents.

    Args:
        earlier_corpora: Artifacts with the documents of the earlier corpora, in their order.
    """
    earlier_partitions = concatenate_earlier_tables(earlier_corpora, "documents").parts
    partitions = documents.parts
    ranking = concat_spilled_tables(
        context.map_items(spill_ranking_columns, [*earlier_partitions, *partitions], config),
        "ranking",
        RANKING_SCHEMA,
    )
    context.map_partitions(
        write_repeat_spans,
        find_repeat_spans(earlier_partitions, partitions, ranking, config.min_bytes),
    )
