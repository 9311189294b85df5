"""Spans: places in documents that one stage finds and ``redact_spans`` treats by a policy.

A span decides nothing. It says where something stands, in UTF-8 bytes of the text, and what it is;
another policy finds nothing again. A stage that finds some leaves a table ``spans``:

    @stage(tables={"spans": SPANS})
    def find_repeats(documents: Table, config: RepeatsConfig, work: Work) -> None: ...

its rows in the order of the documents, those of a document by their start, cut like the documents.
``span_rows`` makes them, columns at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract import ID_TYPE, HallmarkError, TablePart, column, table_schema
from hallmark.tasks.measures.personal.types import PERSONAL_DATA_TYPES, UNREADABLE

SPANS = table_schema(
    "Places in the documents and what stands there; what becomes of them is decided elsewhere.",
    column("doc_id", ID_TYPE, "id", "the document"),
    column(
        "byte_start", pa.int64(), "figure", "where the span begins in the UTF-8 text", unit="bytes"
    ),
    column("byte_end", pa.int64(), "figure", "where it ends", unit="bytes"),
    column("type", pa.string(), "label", "what it is, such as EMAIL"),
    column(
        "span_hash",
        ID_TYPE,
        "id",
        "hash of what stands there, keyed by the store's secret; null where "
        "none is kept; never the text itself",
    ),
    column("score", pa.float32(), "figure", "what the finder measured, where it did"),
    partition_by=True,
)

#: What a policy may be set for. Of spans that are equally long the type first in this list counts.
#: UNREADABLE is no kind of text: it stands over a document that its finder could not look through,
#: which leaves to quarantine whatever the policies.
SPAN_TYPES: tuple[str, ...] = (UNREADABLE, *PERSONAL_DATA_TYPES, "REPEAT", "TOXIC")


@dataclass(frozen=True)
class Utf8Texts:
    """The bytes of a column of texts as one buffer, and where its characters begin.

    bytes    (b,) uint8
    offsets  (n + 1,) int64, where each text begins in it, and where the last ends
    """

    byte_values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_array(cls, texts: pa.Array) -> Utf8Texts:
        """Of an array of large_string without nulls; nothing is copied."""
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
        """Positions in the texts of these rows, in bytes, as characters; all (m,) int64."""
        buffer_positions = self.offsets[text_rows] + byte_positions
        boundaries = np.unique(np.concatenate([[0], self.offsets, buffer_positions]))
        is_character_start = np.append(
            (self.byte_values & 0xC0) != 0x80, False
        )  # so that each place is in it
        character_counts = np.add.reduceat(is_character_start, boundaries, dtype=np.int64)
        preceding_characters = np.append(
            0, np.cumsum(character_counts)
        )  # characters in front of each place
        boundary_indices = np.searchsorted(
            boundaries, np.stack([buffer_positions, self.offsets[text_rows]])
        )
        return preceding_characters[boundary_indices[0]] - preceding_characters[boundary_indices[1]]

    def characters_to_bytes(
        self, text_rows: np.ndarray, character_positions: np.ndarray
    ) -> np.ndarray:
        """The same in the other direction. Positions lie in their texts, or at the end of them."""
        character_starts = np.flatnonzero(np.append((self.byte_values & 0xC0) != 0x80, True))
        first_characters = np.searchsorted(character_starts, self.offsets[text_rows])
        return character_starts[first_characters + character_positions] - self.offsets[text_rows]

    def are_valid_spans(
        self, text_rows: np.ndarray, start: np.ndarray, end: np.ndarray
    ) -> np.ndarray:
        """Whether spans lie in their texts and on the boundaries of characters, (m,) bool."""
        text_sizes = np.diff(self.offsets)[text_rows]
        is_valid = (start >= 0) & (start < end) & (end <= text_sizes)
        for boundary in (start, end):
            buffer_positions = (self.offsets[text_rows] + boundary)[is_valid]
            is_in_buffer = buffer_positions < len(self.byte_values)
            is_character_start = np.ones(len(buffer_positions), bool)
            is_character_start[is_in_buffer] = (
                self.byte_values[buffer_positions[is_in_buffer]] & 0xC0
            ) != 0x80
            is_valid[is_valid] = is_character_start
        return is_valid


def merge_overlapping_spans(
    utf8: Utf8Texts,
    text_rows: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    type_ranks: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Spans that overlap are one: from where the first begins to where the last ends, so that
    nothing that was found stays. It is what the longest of them is; of equally long ones, that of
    the lowest rank, then the first.

    All arguments (m,), by owner and start. Returns (k,) each: which span each is, its start and
    end.
    """
    if not len(text_rows):
        return text_rows, start, end
    text_starts = utf8.offsets[text_rows]
    furthest_ends = np.maximum.accumulate(text_starts + end)
    is_group_start = np.append(True, (text_starts + start)[1:] >= furthest_ends[:-1])
    group_numbers = np.cumsum(is_group_start) - 1
    order = np.lexsort((start, type_ranks, start - end, group_numbers))
    first_spans = np.flatnonzero(is_group_start)
    last_spans = np.append(first_spans[1:], len(text_rows)) - 1
    return (
        order[first_spans],
        start[first_spans],
        furthest_ends[last_spans] - text_starts[first_spans],
    )


def replace_spans(
    texts: pa.Array,
    text_rows: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    replacements: pa.Array,
) -> pa.Array:
    """The texts with a word (an empty one cuts) in place of each span, large_string.

    owner, start, end: (m,), by owner and start; spans lie on the boundaries of characters and none
    overlaps another. words: (m,) strings.
    """
    utf8 = Utf8Texts.from_array(texts)
    replacement_utf8 = Utf8Texts.from_array(replacements.cast(pa.large_string()))
    span_starts, replacement_sizes = (
        utf8.offsets[text_rows] + start,
        np.diff(replacement_utf8.offsets),
    )
    byte_shifts = np.append(
        0, np.cumsum(replacement_sizes - (end - start))
    )  # by the spans up to each
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
    """Which of n bytes lie in the spans, (n,) bool."""
    steps = np.zeros(byte_count + 1, np.int8)  # spans touch at most, so a step is never above 1
    np.add.at(steps, start, 1)
    np.add.at(steps, end, -1)
    return np.cumsum(steps[:-1], dtype=np.int8).astype(bool)


def build_span_columns(batch: pa.RecordBatch, text_rows: Any, **columns: Any) -> dict[str, Any]:
    """Columns of SPANS for spans in the rows ``owner`` of a batch of documents; ``span_hash`` and
    ``score`` are null where they are not given."""
    text_rows = pa.array(text_rows, pa.int64())
    null_columns = {
        name: pa.nulls(len(text_rows), SPANS.field(name).type) for name in ("span_hash", "score")
    }
    return {"doc_id": batch["doc_id"].take(text_rows), **null_columns, **columns}


def read_partition_spans(
    documents: TablePart, span_partitions: Mapping[str, TablePart]
) -> pa.Table:
    """The spans of a part's documents, by their rows (column ``row``) and starts.

    Raises HallmarkError where a table has spans of other documents.
    """
    doc_ids = documents.read(["doc_id"])["doc_id"].combine_chunks()
    span_tables = [SPANS.empty_table().append_column("row", pa.array([], pa.int64()))]
    for span_partition in span_partitions.values():
        spans = span_partition.read()
        document_rows = pc.index_in(spans["doc_id"], value_set=doc_ids)
        if document_rows.null_count:
            raise HallmarkError(
                f"{span_partition} has spans of {document_rows.null_count} documents that "
                f"are not in {documents}: find "
                f"them in these documents first"
            )
        span_tables.append(spans.append_column("row", document_rows.cast(pa.int64())))
    spans = pa.concat_tables(span_tables).combine_chunks()
    return spans.sort_by(
        [("row", "ascending"), ("byte_start", "ascending"), ("byte_end", "ascending")]
    )
