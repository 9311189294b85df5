"""Spans: places in documents that one stage finds and another, ``scrub``, treats by a policy.

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

from tasks.contract import ID, HallmarkError, Part, column, table
from tasks.measures.personal.types import TYPES as PERSONAL
from tasks.measures.personal.types import UNREAD

SPANS = table(
    "Places in the documents and what stands there; what becomes of them is decided elsewhere.",
    column("doc_id", ID, "id", "the document"),
    column("start", pa.int64(), "figure", "where the span begins in the UTF-8 text", unit="bytes"),
    column("end", pa.int64(), "figure", "where it ends", unit="bytes"),
    column("type", pa.string(), "label", "what it is, such as EMAIL"),
    column("digest", ID, "id", "hash of what stands there, keyed by the store's secret; null where "
           "none is kept; never the text itself"),
    column("score", pa.float32(), "figure", "what the finder measured, where it did"),
    cut=True,
)  # fmt: skip

#: What a policy may be set for. Of spans that are equally long the type first in this list counts.
#: UNREAD is no kind of text: it stands over a document that its finder could not look through,
#: which leaves to quarantine whatever the policies.
TYPES: tuple[str, ...] = (UNREAD, *PERSONAL, "REPEAT", "TOXIC")


@dataclass(frozen=True)
class Utf8:
    """The bytes of a column of texts as one buffer, and where its characters begin.

    bytes    (b,) uint8
    offsets  (n + 1,) int64, where each text begins in it, and where the last ends
    """

    bytes: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, texts: pa.Array) -> Utf8:
        """Of an array of large_string without nulls; nothing is copied."""
        _, offsets, data = texts.buffers()
        if not len(texts) or data is None:
            return cls(np.zeros(0, np.uint8), np.zeros(len(texts) + 1, np.int64))
        where = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        return cls(np.frombuffer(data, np.uint8)[where[0] : where[-1]], where - where[0])

    def to_characters(self, owner: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Positions in the texts of these rows, in bytes, as characters; all (m,) int64."""
        asked = self.offsets[owner] + positions
        places = np.unique(np.concatenate([[0], self.offsets, asked]))
        begins = np.append((self.bytes & 0xC0) != 0x80, False)  # so that each place is in it
        counts = np.add.reduceat(begins, places, dtype=np.int64)
        before = np.append(0, np.cumsum(counts))  # characters in front of each place
        where = np.searchsorted(places, np.stack([asked, self.offsets[owner]]))
        return before[where[0]] - before[where[1]]

    def to_bytes(self, owner: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The same in the other direction. Positions lie in their texts, or at the end of them."""
        begins = np.flatnonzero(np.append((self.bytes & 0xC0) != 0x80, True))
        first = np.searchsorted(begins, self.offsets[owner])
        return begins[first + positions] - self.offsets[owner]

    def inside(self, owner: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Whether spans lie in their texts and on the boundaries of characters, (m,) bool."""
        size = np.diff(self.offsets)[owner]
        found = (start >= 0) & (start < end) & (end <= size)
        for place in (start, end):
            at = (self.offsets[owner] + place)[found]
            within = at < len(self.bytes)
            ok = np.ones(len(at), bool)
            ok[within] = (self.bytes[at[within]] & 0xC0) != 0x80
            found[found] = ok
        return found


def overlapping(
    utf8: Utf8, owner: np.ndarray, start: np.ndarray, end: np.ndarray, rank: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Spans that overlap are one: from where the first begins to where the last ends, so that
    nothing that was found stays. It is what the longest of them is; of equally long ones, that of
    the lowest rank, then the first.

    All arguments (m,), by owner and start. Returns (k,) each: which span each is, its start and
    end.
    """
    if not len(owner):
        return owner, start, end
    base = utf8.offsets[owner]
    reach = np.maximum.accumulate(base + end)
    fresh = np.append(True, (base + start)[1:] >= reach[:-1])
    group = np.cumsum(fresh) - 1
    order = np.lexsort((start, rank, start - end, group))
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(owner)) - 1
    return order[first], start[first], reach[last] - base[first]


def substitute(
    texts: pa.Array, owner: np.ndarray, start: np.ndarray, end: np.ndarray, words: pa.Array
) -> pa.Array:
    """The texts with a word (an empty one cuts) in place of each span, large_string.

    owner, start, end: (m,), by owner and start; spans lie on the boundaries of characters and none
    overlaps another. words: (m,) strings.
    """
    utf8 = Utf8.of(texts)
    word = Utf8.of(words.cast(pa.large_string()))
    at, size = utf8.offsets[owner] + start, np.diff(word.offsets)
    grown = np.append(0, np.cumsum(size - (end - start)))  # by the spans up to each
    kept = ~_covered(at, at + (end - start), len(utf8.bytes))
    put = at + grown[:-1]
    placed = _covered(put, put + size, len(utf8.bytes) + int(grown[-1]))
    data = np.empty(len(placed), np.uint8)
    data[~placed] = utf8.bytes[kept]
    data[placed] = word.bytes
    offsets = utf8.offsets + grown[np.searchsorted(owner, np.arange(len(texts) + 1))]
    return pa.Array.from_buffers(
        pa.large_string(), len(texts), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _covered(start: np.ndarray, end: np.ndarray, n: int) -> np.ndarray:
    """Which of n bytes lie in the spans, (n,) bool."""
    steps = np.zeros(n + 1, np.int8)  # spans touch at most, so a step is never above 1
    np.add.at(steps, start, 1)
    np.add.at(steps, end, -1)
    return np.cumsum(steps[:-1], dtype=np.int8).astype(bool)


def span_rows(batch: pa.RecordBatch, owner: Any, **columns: Any) -> dict[str, Any]:
    """Columns of SPANS for spans in the rows ``owner`` of a batch of documents; ``digest`` and
    ``score`` are null where they are not given."""
    owner = pa.array(owner, pa.int64())
    more = {name: pa.nulls(len(owner), SPANS.field(name).type) for name in ("digest", "score")}
    return {"doc_id": batch["doc_id"].take(owner), **more, **columns}


def spans_of(documents: Part, tables: Mapping[str, Part]) -> pa.Table:
    """The spans of a part's documents, by their rows (column ``row``) and starts.

    Raises HallmarkError where a table has spans of other documents.
    """
    ids = documents.read(["doc_id"])["doc_id"].combine_chunks()
    found = [SPANS.empty_table().append_column("row", pa.array([], pa.int64()))]
    for part in tables.values():
        spans = part.read()
        row = pc.index_in(spans["doc_id"], value_set=ids)
        if row.null_count:
            raise HallmarkError(
                f"{part} has spans of {row.null_count} documents that are not in {documents}: find "
                f"them in these documents first"
            )
        found.append(spans.append_column("row", row.cast(pa.int64())))
    spans = pa.concat_tables(found).combine_chunks()
    return spans.sort_by([("row", "ascending"), ("start", "ascending"), ("end", "ascending")])
