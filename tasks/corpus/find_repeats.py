"""Find repeats: stretches of so many bytes or more that stood in an earlier document, or earlier in
the same one (Lee et al. 2022). What becomes of the spans, ``redact_spans`` decides; the first
occurrence is none, so cutting them leaves each stretch once.

Documents are taken by source, length and doc_id, so that which occurrence is the first depends on
content alone; those of earlier corpora, where this one adds to them, before all others.

Memory: the text itself is held, that of earlier ones too, with its suffix array and two marks: 7
bytes for each byte of text (11 beyond 2 GB), however much of it repeats; 60 for each document; and
about 100 for each span, when 6 of the 7 are free again. Where the machine has less than the text
takes, the search does not begin.
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
    mark_repeated_windows,
)
from hallmark.tasks.corpus.spans import SPANS, Utf8Texts
from hallmark.tasks.measures.machine import total_memory_bytes

Int64Array = NDArray[np.int64]


class RepeatsConfig(KeepPreferenceConfig):
    """What repeats; which of the documents that share a stretch keeps it."""

    enabled: bool = Field(
        False, description="whether repeats are looked for; that holds the whole text in memory"
    )
    min_bytes: int = Field(
        200, ge=16, description="a repeated passage counts if it has at least so many bytes"
    )


def write_ranking_columns(partition: TablePart, config: RepeatsConfig, out: TableWriters) -> None:
    for batch in partition.iter_batches(["doc_id", "cluster", "source", "text"]):
        out.get_spill_writer("standing", RANKING_SCHEMA).write(
            build_ranking_columns(batch, config.preferred_sources)
        )


def concatenate_texts(
    partitions: Sequence[TablePart], text_starts: Int64Array, total_bytes: int
) -> NDArray[np.uint8]:
    """All texts, END behind each, where ``begins`` (n,) says that they begin."""
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
    """The spans of a part: their documents' rows in it, and where they begin and end."""

    partition: TablePart
    document_rows: Int64Array
    starts: Int64Array
    ends: Int64Array

    def __str__(self) -> str:
        return str(self.partition)


def write_repeat_spans(repeats: RepeatSpans, out: TableWriters) -> None:
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
    """HallmarkError where the search in ``size`` bytes of text takes more memory than is there."""
    needed_bytes = text_bytes * (7 if text_bytes < 1 << 31 else 11)
    if needed_bytes > available_bytes:
        raise HallmarkError(
            f"to find repeats in {text_bytes / 1e9:.1f} GB of text takes "
            f"{needed_bytes / 1e9:.1f} GB of "
            f"memory, and this machine has {available_bytes / 1e9:.1f} GB: run on a larger "
            f"one, or set "
            f"find_repeats.enabled = false"
        )


def find_repeat_spans(
    earlier_partitions: Sequence[TablePart],
    partitions: Sequence[TablePart],
    ranking: pa.Table,
    min_bytes: int,
) -> list[RepeatSpans]:
    """The repeats of each part of its own. known: STANDING of all documents, earlier ones first."""
    all_partitions = [*earlier_partitions, *partitions]
    earlier_count = sum(partition.row_count for partition in earlier_partitions)
    order = np.concatenate(
        [
            np.arange(earlier_count),
            earlier_count + order_by_keep_priority(ranking.slice(earlier_count)),
        ]
    )
    sizes = ranking["bytes"].to_numpy()
    ends = np.cumsum(sizes[order] + 1)  # in the order of rank
    text_starts = np.empty(len(order), np.int64)  # in the order of the input
    text_starts[order] = ends - sizes[order] - 1
    total_bytes = int(ends[-1]) if len(ends) else 0
    check_memory(total_bytes, total_memory_bytes())
    text_buffer = concatenate_texts(all_partitions, text_starts, total_bytes)
    starts, stops = join_repeated_spans(
        text_buffer, mark_repeated_windows(text_buffer, min_bytes), min_bytes
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
    earlier_partitions, partitions = (
        concatenate_earlier_tables(earlier_corpora, "documents").parts,
        documents.parts,
    )
    ranking = concat_spilled_tables(
        context.map_items(write_ranking_columns, [*earlier_partitions, *partitions], config),
        "standing",
        RANKING_SCHEMA,
    )
    context.map_partitions(
        write_repeat_spans,
        find_repeat_spans(earlier_partitions, partitions, ranking, config.min_bytes),
    )
