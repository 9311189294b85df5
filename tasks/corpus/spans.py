"""Describe spans: parts of documents that one stage finds and ``redact_spans`` masks or cuts.

A span has a position in UTF-8 bytes of the text and a type. It decides nothing, so another action
in ``redact_spans`` needs no new search. A stage that finds spans writes a table ``spans``:

    @stage(tables={"spans": SPANS})
    def find_repeats(documents: Table, config: RepeatsConfig, context: StageContext) -> None: ...

Its rows follow the order and partitions of the documents; the spans of a document are sorted by
start. ``build_span_columns`` builds its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract import ID_TYPE, HallmarkError, TablePart, column, table_schema
from hallmark.tasks.measures.personal.types import PERSONAL_DATA_TYPES, UNREADABLE

#: The columns of the bounds of a span.
BYTE_BOUNDS = (
    column(
        "byte_start",
        pa.int64(),
        "figure",
        "start of the span, in bytes from the start of the UTF-8 text",
        unit="bytes",
    ),
    column(
        "byte_end",
        pa.int64(),
        "figure",
        "end of the span (exclusive), in bytes from the start of the UTF-8 text",
        unit="bytes",
    ),
)

SPANS = table_schema(
    "Text spans that a stage found in the documents; the `redact_spans` stage decides what happens "
    "to them.",
    column("doc_id", ID_TYPE, "id", "the document"),
    *BYTE_BOUNDS,
    column("type", pa.string(), "label", "span type, such as EMAIL"),
    column(
        "span_hash",
        ID_TYPE,
        "id",
        "hash of the span's text, keyed with the store's secret (the text itself is never "
        "stored); null if the stage does not compute hashes",
    ),
    column(
        "score",
        pa.float32(),
        "figure",
        "score of the span; null if the stage does not compute scores",
    ),
    partition_by_doc_id=True,
)

ColumnValues: TypeAlias = pa.Array | np.ndarray | Sequence[Any]

#: Columns of SPANS by name, with one value per span.
SpanColumns = dict[str, ColumnValues]

#: Types that actions can be set for; if merged spans are equally long, the first type counts.
#: UNREADABLE marks a whole document that could not be searched; it is always quarantined.
SPAN_TYPES: tuple[str, ...] = (UNREADABLE, *PERSONAL_DATA_TYPES, "REPEAT", "TOXIC")


@dataclass(frozen=True)
class Utf8Texts:
    """The UTF-8 bytes of a column of texts as one buffer.

    Attributes:
        byte_values: The bytes of all texts, (b,) uint8.
        offsets: Start of each text in the buffer, and the end of the last, (n + 1,) int64.
    """

    byte_values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_array(cls, texts: pa.Array) -> Utf8Texts:
        """Wrap an array of large_string without nulls; the bytes are not copied."""
        _, offsets, data = texts.buffers()
        if not len(texts) or data is None:
            return cls(np.zeros(0, np.uint8), np.zeros(len(texts) + 1, np.int64))
        text_offsets = np.frombuffer(offsets, np.int64)[
            texts.offset : texts.offset + len(texts) + 1
        ]
        return cls(
            np.frombuffer(data, np.uint8)[text_offsets[0] : text_offsets[-1]],
            text_offsets - text_offsets[0],
        )

    def bytes_to_characters(self, text_rows: np.ndarray, byte_positions: np.ndarray) -> np.ndarray:
        """Convert positions from bytes to characters; all arrays (m,) int64.

        Args:
            text_rows: Row of the text of each position.
            byte_positions: Bytes from the beginning of that text.
        """
        buffer_positions = self.offsets[text_rows] + byte_positions
        boundaries = np.unique(np.concatenate([[0], self.offsets, buffer_positions]))
        # One more entry, because a boundary may be the end of the buffer.
        is_character_start = np.append((self.byte_values & 0xC0) != 0x80, False)
        character_counts = np.add.reduceat(is_character_start, boundaries, dtype=np.int64)
        preceding_characters = np.append(0, np.cumsum(character_counts))  # before each boundary
        boundary_indices = np.searchsorted(
            boundaries, np.stack([buffer_positions, self.offsets[text_rows]])
        )
        character_positions: np.ndarray = (
            preceding_characters[boundary_indices[0]] - preceding_characters[boundary_indices[1]]
        )
        return character_positions

    def characters_to_bytes(
        self, text_rows: np.ndarray, character_positions: np.ndarray
    ) -> np.ndarray:
        """Convert positions from characters to bytes; they may be at the end of their texts."""
        character_starts = np.flatnonzero(np.append((self.byte_values & 0xC0) != 0x80, True))
        first_characters = np.searchsorted(character_starts, self.offsets[text_rows])
        byte_positions: np.ndarray = (
            character_starts[first_characters + character_positions] - self.offsets[text_rows]
        )
        return byte_positions

    def are_valid_spans(
        self, text_rows: np.ndarray, start: np.ndarray, end: np.ndarray
    ) -> np.ndarray:
        """Return whether each span is inside its text and splits no character, (m,) bool."""
        text_sizes = np.diff(self.offsets)[text_rows]
        is_valid: np.ndarray = (start >= 0) & (start < end) & (end <= text_sizes)
        for boundary in (start, end):
            buffer_positions = (self.offsets[text_rows] + boundary)[is_valid]
            is_in_buffer = buffer_positions < len(self.byte_values)
            is_character_start = np.ones(len(buffer_positions), bool)
            is_character_start[is_in_buffer] = (
                self.byte_values[buffer_positions[is_in_buffer]] & 0xC0
            ) != 0x80
            is_valid[is_valid] = is_character_start
        return is_valid


class MergedSpans(NamedTuple):
    """Hold k merged spans."""

    span_numbers: np.ndarray
    """Index of the original span from which the merged span takes its type; shape (k,)."""
    start: np.ndarray
    """First byte in the text; shape (k,)."""
    end: np.ndarray
    """End in the text; shape (k,)."""


def merge_overlapping_byte_spans(
    utf8: Utf8Texts,
    text_rows: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    type_ranks: np.ndarray,
) -> MergedSpans:
    """Merge overlapping spans into one that covers all of them.

    A merged span has the type of its longest span; if several are equally long, of the one with the
    lowest type rank, then of the first.

    Args:
        text_rows: Row of the text of each span, (m,); spans are sorted by row and start.
        start: First byte of each span in its text, (m,).
        end: End of each span, (m,).
        type_ranks: Rank of the type of each span, (m,).
    """
    if not len(text_rows):
        return MergedSpans(text_rows, start, end)
    text_starts = utf8.offsets[text_rows]
    furthest_ends = np.maximum.accumulate(text_starts + end)
    is_group_start = np.append(True, (text_starts + start)[1:] >= furthest_ends[:-1])
    group_numbers = np.cumsum(is_group_start) - 1
    order = np.lexsort((start, type_ranks, start - end, group_numbers))
    first_spans = np.flatnonzero(is_group_start)
    last_spans = np.append(first_spans[1:], len(text_rows)) - 1
    return MergedSpans(
        order[first_spans],
        start[first_spans],
        furthest_ends[last_spans] - text_starts[first_spans],
    )


def replace_byte_spans(
    texts: pa.Array,
    text_rows: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    replacements: pa.Array,
) -> pa.Array:
    """Replace each span by a string; an empty string cuts the span.

    Args:
        texts: The texts, large_string.
        text_rows: Row of the text of each span, (m,).
        start: First byte of each span in its text, (m,).
        end: End of each span, (m,). Spans are sorted by row and start, and do not overlap or split
            characters.
        replacements: The strings, (m,).

    Returns:
        The edited texts, large_string.
    """
    utf8 = Utf8Texts.from_array(texts)
    replacement_utf8 = Utf8Texts.from_array(replacements.cast(pa.large_string()))
    span_starts = utf8.offsets[text_rows] + start
    replacement_sizes = np.diff(replacement_utf8.offsets)
    # How far bytes move because of the spans before each span, and because of all spans.
    byte_shifts = np.append(0, np.cumsum(replacement_sizes - (end - start)))
    is_kept = ~_mask_covered_bytes(span_starts, span_starts + (end - start), len(utf8.byte_values))
    replacement_starts = span_starts + byte_shifts[:-1]
    is_replacement = _mask_covered_bytes(
        replacement_starts,
        replacement_starts + replacement_sizes,
        len(utf8.byte_values) + int(byte_shifts[-1]),
    )
    data = np.empty(len(is_replacement), np.uint8)
    data[~is_replacement] = utf8.byte_values[is_kept]
    data[is_replacement] = replacement_utf8.byte_values
    offsets = utf8.offsets + byte_shifts[np.searchsorted(text_rows, np.arange(len(texts) + 1))]
    return pa.Array.from_buffers(
        pa.large_string(), len(texts), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _mask_covered_bytes(start: np.ndarray, end: np.ndarray, byte_count: int) -> np.ndarray:
    """Return whether each byte of a buffer is in a span, (byte_count,) bool."""
    steps = np.zeros(byte_count + 1, np.int8)  # int8 suffices because spans do not overlap
    np.add.at(steps, start, 1)
    np.add.at(steps, end, -1)
    return np.cumsum(steps[:-1], dtype=np.int8).astype(bool)


def build_span_columns(
    batch: pa.RecordBatch,
    text_rows: pa.Array | np.ndarray | list[int],
    **other_columns: ColumnValues,
) -> SpanColumns:
    """Build the columns of SPANS.

    Args:
        text_rows: Row in the batch of the document of each span, (m,).
        other_columns: The other columns of SPANS, (m,) each; span_hash and score default to null.
    """
    text_rows = pa.array(text_rows, pa.int64())
    null_columns = {
        name: pa.nulls(len(text_rows), SPANS.field(name).type) for name in ("span_hash", "score")
    }
    return {"doc_id": batch["doc_id"].take(text_rows), **null_columns, **other_columns}


def read_partition_spans(documents: TablePart, span_partitions: Iterable[TablePart]) -> pa.Table:
    """Read the spans of a partition from all stages that found some.

    Returns:
        SPANS with the number of the document in the partition as column ``row``, sorted by row,
        start and end.

    Raises:
        HallmarkError: A table has spans of other documents.
    """
    doc_ids = documents.read(["doc_id"])["doc_id"].combine_chunks()
    span_tables = [SPANS.empty_table().append_column("row", pa.array([], pa.int64()))]
    for span_partition in span_partitions:
        spans = span_partition.read()
        document_rows = pc.index_in(spans["doc_id"], value_set=doc_ids)
        if document_rows.null_count:
            raise HallmarkError(
                f"{span_partition} has {document_rows.null_count} spans in documents that are not "
                f"in {documents}; first process these documents with the stages that find spans"
            )
        span_tables.append(spans.append_column("row", document_rows.cast(pa.int64())))
    spans = pa.concat_tables(span_tables).combine_chunks()
    return spans.sort_by(
        [("row", "ascending"), ("byte_start", "ascending"), ("byte_end", "ascending")]
    )
