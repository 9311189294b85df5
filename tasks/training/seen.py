"""What a training read of each document: computed from (seed, step), for nothing was logged.

Rows of packed tokens are walked epoch by epoch (see ``model.training.data.batch_sequences``), so
how often a row was read until a step, and when first and last, has a closed form.

Memory: 60 bytes a packed row, 60 bytes a stretch of a document, and the ids of the documents; in a
worker a part of these for each checkpoint. What each row's readings are waits in a file, 12 bytes a
row and checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from model.training.data import step_of, times_read
from tasks.contract import ID, Part, Table, Tables, Work, column, table

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

SEEN = table(
    "What training read of each packed document: a row for each checkpoint before which it read "
    "any of it since the checkpoint before that.",
    column("doc_id", ID, "id", "the document"),
    column("step", pa.int64(), "figure", "optimizer step of the checkpoint"),
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
    cut=True,
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
    """The training documents of a part, (D,), in the order of their ids, and where they stand in
    the packed rows, (S,): ``begin`` is the first stretch of each document."""

    part: Part
    doc_id: pa.Array
    source: pa.Array
    begin: Int64
    row: Int64
    tokens: Int64

    def __str__(self) -> str:
        return str(self.part)

    def of_documents(self, how: np.ufunc, values: Int64) -> Int64:
        """``how`` over the stretches of each document: (S,) to (D,)."""
        return how.reduceat(values, self.begin) if len(self.begin) else values

    @property
    def size(self) -> Int64:
        """Tokens of each document, (D,)."""
        return self.of_documents(np.add, self.tokens)


def stretches(spans: Table, documents: Table) -> list[Stretches]:
    """Where the documents of the split "train" stand, for each part of ``documents``."""
    found = spans.read(["split", "sequence", "start", "end", "doc_id"])
    found = found.filter(pc.equal(found["split"], "train")).sort_by("doc_id").combine_chunks()
    own = [part.read(["doc_id", "source"]) for part in documents.parts]
    known = pa.concat_tables(own).combine_chunks()
    at = pc.index_in(found["doc_id"], value_set=known["doc_id"].combine_chunks())
    owner = np.repeat(np.arange(len(own)), [len(rows) for rows in own])[at.to_numpy()]
    found = found.append_column("source", known["source"].cast(pa.string()).take(at))
    order = np.argsort(owner, kind="stable")
    found = found.take(order).combine_chunks()
    edges = np.searchsorted(owner[order], np.arange(len(own) + 1))
    return [
        _of_part(part, found.slice(begin, end - begin))
        for part, begin, end in zip(documents.parts, edges[:-1], edges[1:], strict=True)
    ]


def _of_part(part: Part, rows: pa.Table) -> Stretches:
    doc_id = pc.unique(rows["doc_id"])  # in the order in which they first appear: sorted
    number = pc.index_in(rows["doc_id"], value_set=doc_id).to_numpy()
    begin = np.searchsorted(number, np.arange(len(doc_id)))
    source = rows["source"].combine_chunks().take(pa.array(begin))
    tokens = pc.subtract(rows["end"], rows["start"]).to_numpy().astype(np.int64)
    return Stretches(part, doc_id, source, begin, rows["sequence"].to_numpy(), tokens)


#: The first reading of a row that was not read.
NEVER = np.iinfo(np.int32).max


def readings_of(rows: int, seed: int, batch: int, steps: Sequence[int]) -> Iterator[Int32]:
    """For each of these ascending steps, (3, rows): how often each packed row had been read; the
    first step since the one before that read it, or NEVER; and the last, or 0."""
    before = np.zeros(rows, np.int64)
    for step in steps:
        count = times_read(seed, step, batch, rows)
        fresh = count > before
        first = np.where(fresh, step_of(before, seed, batch), NEVER)
        last = np.where(fresh, step_of(np.maximum(count - 1, 0), seed, batch), 0)
        yield np.array([count, first, last], np.int32)
        before = count


def seen_of(
    found: Stretches, readings: Iterable[Int32], steps: Sequence[int]
) -> tuple[pa.Table, pa.Table]:
    """Rows of SEEN and of COVERAGE for each of the checkpoints' steps, from the rows' readings."""
    seen, coverage = [SEEN.empty_table()], [COVERAGE.empty_table()]
    before = np.zeros(len(found.row), np.int64)
    for step, reading in zip(steps, readings, strict=True):
        count, first, last = reading[:, found.row].astype(np.int64)  # (S,) each
        columns = {
            "tokens": found.of_documents(np.add, (count - before) * found.tokens),
            "first_step": found.of_documents(np.minimum, first),
            "last_step": found.of_documents(np.maximum, last),
            "passes": found.of_documents(np.minimum, count),
        }
        known = {"doc_id": found.doc_id, "step": pa.array(np.full(len(found.size), step)),
                 "source": found.source, "size": pa.array(found.size)}  # fmt: skip
        read = np.flatnonzero(columns["tokens"])
        seen.append(pa.table({**known, **columns}, schema=SEEN).take(read))
        coverage.append(_coverage(step, found, count))
        before = count
    order: Any = [("doc_id", "ascending"), ("step", "ascending")]
    return pa.concat_tables(seen).sort_by(order), pa.concat_tables(coverage)


def _coverage(step: int, found: Stretches, count: Int64) -> pa.Table:
    """Rows of COVERAGE for one checkpoint, by which the row of each stretch was read ``count``
    times."""
    tokens = found.of_documents(np.add, count * found.tokens)
    whole = found.of_documents(np.minimum, count) > 0
    documents = pa.table(
        {
            "step": np.full(len(tokens), step),
            "source": found.source,
            "documents": np.ones(len(tokens), np.int64),
            "touched": (tokens > 0).astype(np.int64),
            "whole": whole.astype(np.int64),
            "packed": found.size,
            "tokens": tokens,
        },
        schema=COVERAGE,
    )
    return summed(documents)


def summed(coverage: pa.Table) -> pa.Table:
    """Rows of COVERAGE with one for each checkpoint and source, in their order."""
    keys, names = COVERAGE.names[:2], COVERAGE.names[2:]
    sums = coverage.group_by(keys).aggregate([(name, "sum") for name in names])
    sums = sums.rename_columns([name.removesuffix("_sum") for name in sums.column_names])
    order: Any = [(name, "ascending") for name in keys]
    return sums.select(COVERAGE.names).cast(COVERAGE).sort_by(order)


def see_part(found: Stretches, path: str, steps: Sequence[int], out: Tables) -> Any:
    """Write what was read of the documents of a part; returns the rows of COVERAGE."""
    readings = np.memmap(path, np.int32, "r").reshape(len(steps), 3, -1)
    seen, coverage = seen_of(found, readings, steps)
    out.table("seen").write(seen)
    return coverage.to_pylist()


def write_seen(
    packed: Table, spans: Table, documents: Table, seed: int, batch: int, steps: Sequence[int],
    work: Work,
) -> None:  # fmt: skip
    """The tables ``seen`` and ``coverage``; ``packed``: the rows of the split "train"."""
    path = work.area / "readings"
    with path.open("wb") as file:
        for reading in readings_of(packed.rows, seed, batch, steps):
            reading.tofile(file)
    done = work.parts(see_part, stretches(spans, documents), str(path), steps)
    rows = [row for part in done for row in part.value]
    work.table("coverage").write(summed(pa.Table.from_pylist(rows, schema=COVERAGE)))
