"""What a training read of each document: computed from (seed, step), for nothing was logged.

Rows of packed tokens are walked epoch by epoch (see ``model.training.data.batch_sequences``), so
how often a row was read until a step, and when first and last, has a closed form.

Memory: 60 bytes a packed row, 60 bytes a stretch of a document, and the ids of the documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from model.training.data import step_of, times_read
from tasks.contract import ID, Table, column, table

Int64 = NDArray[np.int64]

SEEN = table(
    "What training read of each packed document: a row for each checkpoint before which it read "
    "any of it since the checkpoint before that.",
    column("step", pa.int64(), "figure", "optimizer step of the checkpoint"),
    column("doc_id", ID, "id", "the document"),
    column("source", pa.string(), "label", "source of the document"),
    column("size", pa.int64(), "figure", "tokens of the document, its begin among them",
           unit="tokens"),
    column("tokens", pa.int64(), "figure", "tokens of it that were read since the checkpoint "
           "before, each as often as it was read", unit="tokens"),
    column("first_step", pa.int64(), "figure", "first step since the checkpoint before that read "
           "any of it"),
    column("last_step", pa.int64(), "figure", "last step so far that read any of it"),
    column("passes", pa.int64(), "figure", "how often the whole of it was read, in all steps until "
           "this checkpoint"),
)  # fmt: skip

COVERAGE = table(
    "How much of each source training had read, in all steps until a checkpoint.",
    column("step", pa.int64(), "figure", "optimizer step of the checkpoint"),
    column("source", pa.string(), "label", "the source"),
    column("documents", pa.int64(), "figure", "documents packed for training", unit="documents"),
    column("touched", pa.int64(), "figure", "those of which any token was read", unit="documents"),
    column("whole", pa.int64(), "figure", "those of which every token was read",
           unit="documents"),
    column("packed", pa.int64(), "figure", "tokens of the documents", unit="tokens"),
    column("tokens", pa.int64(), "figure", "tokens read, each as often as it was read",
           unit="tokens"),
)  # fmt: skip


@dataclass(frozen=True)
class Stretches:
    """The training documents, (D,), in the order of their ids, and where they stand in the packed
    rows, (S,): ``begin`` is the first stretch of each document."""

    doc_id: pa.Array
    source: pa.Array
    begin: Int64
    row: Int64
    tokens: Int64

    def of_documents(self, how: np.ufunc, values: Int64) -> Int64:
        """``how`` over the stretches of each document: (S,) to (D,)."""
        return how.reduceat(values, self.begin) if len(self.begin) else values

    @property
    def size(self) -> Int64:
        """Tokens of each document, (D,)."""
        return self.of_documents(np.add, self.tokens)


def stretches(spans: Table, documents: Table) -> Stretches:
    """Where the documents of the split "train" stand."""
    found = spans.read(["split", "sequence", "start", "end", "doc_id"])
    found = found.filter(pc.equal(found["split"], "train")).sort_by("doc_id").combine_chunks()
    doc_id = pc.unique(found["doc_id"])  # in the order in which they first appear: sorted
    number = pc.index_in(found["doc_id"], value_set=doc_id).to_numpy()
    begin = np.searchsorted(number, np.arange(len(doc_id)))
    tokens = pc.subtract(found["end"], found["start"]).to_numpy().astype(np.int64)
    row = found["sequence"].to_numpy()
    return Stretches(doc_id, _sources(doc_id, documents), begin, row, tokens)


def _sources(doc_id: pa.Array, documents: Table) -> pa.Array:
    """The source of each of these documents."""
    known = pa.concat_tables([part.read(["doc_id", "source"]) for part in documents.parts])
    at = pc.index_in(doc_id, value_set=known["doc_id"].combine_chunks())
    return known["source"].combine_chunks().cast(pa.string()).take(at)


def seen_of(
    found: Stretches, rows: int, seed: int, batch: int, steps: Sequence[int]
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Rows of SEEN and of COVERAGE for each of the checkpoints' ``steps``, ascending; of ``rows``
    packed rows."""
    before = np.zeros(rows, np.int64)
    for step in steps:
        count = times_read(seed, step, batch, rows)
        new, fresh = (count - before)[found.row], count > before
        never = np.iinfo(np.int64).max
        first = np.where(fresh, step_of(before, seed, batch), never)[found.row]
        last = np.where(fresh, step_of(np.maximum(count - 1, 0), seed, batch), 0)[found.row]
        columns = {
            "tokens": found.of_documents(np.add, new * found.tokens),
            "first_step": found.of_documents(np.minimum, first),
            "last_step": found.of_documents(np.maximum, last),
            "passes": found.of_documents(np.minimum, count[found.row]),
        }
        read = np.flatnonzero(columns["tokens"])
        known = {"doc_id": found.doc_id, "source": found.source, "size": pa.array(found.size)}
        seen = {"step": pa.array(np.full(len(found.size), step)), **known, **columns}
        yield pa.table(seen, schema=SEEN).take(read), _coverage(step, found, count)
        before = count


def _coverage(step: int, found: Stretches, count: Int64) -> pa.Table:
    """Rows of COVERAGE for one checkpoint, by which each row was read ``count`` times."""
    tokens = found.of_documents(np.add, count[found.row] * found.tokens)
    whole = found.of_documents(np.minimum, count[found.row]) > 0
    documents = pa.table(
        {
            "source": found.source,
            "documents": np.ones(len(tokens), np.int64),
            "touched": (tokens > 0).astype(np.int64),
            "whole": whole.astype(np.int64),
            "packed": found.size,
            "tokens": tokens,
        }
    )
    names = documents.column_names[1:]
    sums = documents.group_by("source").aggregate([(name, "sum") for name in names])
    sums = sums.sort_by("source").rename_columns(
        [name.removesuffix("_sum") for name in sums.column_names]
    )
    steps = pa.array([step] * len(sums), pa.int64())
    return sums.append_column("step", steps).select(COVERAGE.names).cast(COVERAGE)
