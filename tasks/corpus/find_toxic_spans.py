"""Turn the windows that ``score_toxicity`` scored at or above a threshold into spans.

Nothing is scored here. ``redact_spans`` decides what happens to the spans: cutting removes an
insult and keeps the rest of a long document, but removes a document that is a single window.
Documents that a rule already removed for their worst window do not reach this stage. The column
``toxicity`` keeps the score of the text before any cut.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from hallmark.tasks.contract import (
    HallmarkError,
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    align_parts,
    stage,
)
from hallmark.tasks.corpus.spans import SPANS, SpanColumns, Utf8Texts, build_span_columns

Int64Array = NDArray[np.int64]
Float32Array = NDArray[np.float32]


class FindToxicSpansConfig(StageConfig):
    """Choose which windows of documents are toxic, so that cut_toxic can cut them."""

    enabled: bool = Field(
        False,
        description="whether the `cut_toxic` stage removes toxic windows (passages) from "
        "documents; note that the embedded scorer (linear) also scores harmless mentions of "
        "minorities as toxic",
    )
    toxicity_threshold: float = Field(
        0.5,
        gt=0,
        le=1,
        description="minimum score at which a window (a passage scored by the `score_toxicity` "
        "stage) is treated as toxic",
    )


def write_toxic_spans(
    documents_and_windows: tuple[TablePart, TablePart], min_score: float, out: TableWriters
) -> None:
    """Write the toxic spans of a partition.

    Args:
        documents_and_windows: The documents, and their windows.
        min_score: Least score of a toxic window.
    """
    documents, windows_partition = documents_and_windows
    windows = windows_partition.read(["doc_id", "char_start", "char_end", "toxicity"])
    scored_ids = pc.unique(windows["doc_id"])
    toxic_windows = windows.filter(
        pc.greater_equal(windows["toxicity"].cast(pa.float64()), min_score)
    )
    for batch in documents.iter_batches(["doc_id", "text"]):
        unscored_count = pc.index_in(batch["doc_id"], value_set=scored_ids).null_count
        if unscored_count:
            raise HallmarkError(
                f"{windows_partition} has no toxicity scores for {unscored_count} of {len(batch)} "
                f"documents in {documents}; run score_toxicity on these documents first"
            )
        document_rows = pc.index_in(toxic_windows["doc_id"], value_set=batch["doc_id"])
        batch_windows = toxic_windows.filter(document_rows.is_valid())
        out.get_table_writer("spans").write(
            build_toxic_span_columns(batch, document_rows.drop_null().to_numpy(), batch_windows)
        )


def build_toxic_span_columns(
    batch: pa.RecordBatch, document_rows: Int64Array, windows: pa.Table
) -> SpanColumns:
    """Build the columns of SPANS from toxic windows.

    Args:
        document_rows: Row in the batch of the document of each window, (m,).
        windows: The m windows, with positions in characters.

    Raises:
        HallmarkError: A window ends after the end of its text.
    """
    start, end = (windows[name].to_numpy() for name in ("char_start", "char_end"))
    score = windows["toxicity"].to_numpy()
    order = np.lexsort((start, document_rows))
    document_rows, start, end, score = merge_overlapping_windows(
        document_rows[order], start[order], end[order], score[order]
    )
    unique_rows, text_rows = np.unique(document_rows, return_inverse=True)
    texts = batch["text"].take(pa.array(unique_rows, pa.int64()))
    text_lengths = pc.utf8_length(texts).to_numpy()[text_rows]
    for i in np.flatnonzero(end > text_lengths)[:1]:
        raise HallmarkError(
            f"a window ends at character {end[i]} of document "
            f"{batch['doc_id'][int(document_rows[i])].as_py().hex()}, but the document text has "
            f"only {text_lengths[i]} characters: the windows were computed from different texts; "
            "run score_toxicity on these documents first"
        )
    utf8 = Utf8Texts.from_array(texts)
    return build_span_columns(
        batch,
        document_rows,
        byte_start=utf8.characters_to_bytes(text_rows, start),
        byte_end=utf8.characters_to_bytes(text_rows, end),
        type=pa.array(["TOXIC"] * len(document_rows), pa.string()),
        score=pa.array(score, pa.float32()),
    )


class MergedWindows(NamedTuple):
    """Hold k windows that do not overlap, in order of document and start."""

    document_rows: Int64Array
    """Row of the document; shape (k,)."""
    start: Int64Array
    """First character; shape (k,)."""
    end: Int64Array
    """End in characters; shape (k,)."""
    score: Float32Array
    """Highest score among the windows that were merged; shape (k,)."""


def merge_overlapping_windows(
    document_rows: Int64Array, start: Int64Array, end: Int64Array, score: Float32Array
) -> MergedWindows:
    """Merge windows that overlap or touch.

    All arguments are (m,), sorted by row and start.
    """
    if not len(document_rows):
        return MergedWindows(document_rows, start, end, score)
    # Place the texts one after another, so that one running maximum serves all documents.
    row_offsets = document_rows * (end.max() + 1)
    furthest_ends = np.maximum.accumulate(row_offsets + end)
    first_windows = np.flatnonzero(np.append(True, (row_offsets + start)[1:] > furthest_ends[:-1]))
    last_windows = np.append(first_windows[1:], len(document_rows)) - 1
    return MergedWindows(
        document_rows[first_windows],
        start[first_windows],
        (furthest_ends - row_offsets)[last_windows],
        np.maximum.reduceat(score, first_windows),
    )


@stage(name="find_toxic_spans", tables={"spans": SPANS}, libraries=["numpy"])
def find_toxic_spans(
    documents: Table, windows: Table, config: FindToxicSpansConfig, context: StageContext
) -> None:
    """Find the toxic windows of all documents.

    Args:
        documents: Documents that ``score_toxicity`` scored and later stages kept.
        windows: The ``windows`` table of ``score_toxicity``.

    Raises:
        HallmarkError: A document has no window, or a window does not fit its text.
    """
    context.map_partitions(
        write_toxic_spans, align_parts(documents, windows), config.toxicity_threshold
    )
