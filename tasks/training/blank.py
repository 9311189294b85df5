"""Take documents out of packed sequences: padding stands in place of their tokens.

What is left stands where it stood: every other row, position, batch and step of a training stays
what it was, bit for bit, and so does what an objective masks or cuts out there (the pairs of span
corruption, which lie side by side, move up). So two trainings from one seed, one of which lacks the
documents, differ in nothing but these. Padding weighs nothing and is no target, and training has
read the documents never, for they have no span.

Memory: a part of the rows in each worker; 60 bytes a stretch of a document, and of those that lie
across parts one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from model.tokens import PAD
from model.training.data import token_bytes
from tasks.contract import (
    ID,
    Artifact,
    Done,
    HallmarkError,
    NoConfig,
    Part,
    Table,
    Tables,
    Work,
    accounts,
    identities,
    stage,
)
from tasks.training.encoding import load_tokenizer, spelled
from tasks.training.pack import PACKED, SPANS, sequences

Int64 = NDArray[np.int64]


def padded(rows: pa.Table, first: int, spans: pa.Table) -> pa.Table | None:
    """Packed rows, the first of them row ``first`` of its split, with padding in place of the
    tokens of ``spans`` (sequence, start, end); None where they have nothing else."""
    row = spans["sequence"].to_numpy() - first
    here = (row >= 0) & (row < len(rows))
    arrays = []
    changed = False
    for name in rows.column_names:
        values = rows[name].combine_chunks()
        context, fill = values.type.list_size, PAD if name == "ids" else -1
        tokens = values.flatten().to_numpy()
        edges = np.zeros(len(tokens) + 1, np.int64)  # no two spans share a token
        for edge, step in (("start", 1), ("end", -1)):
            np.add.at(edges, row[here] * context + spans[edge].to_numpy()[here], step)
        gone = np.cumsum(edges[:-1]) > 0
        changed |= bool((tokens[gone] != fill).any())
        kept = np.where(gone, np.int32(fill), tokens).astype(np.int32)
        arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(kept), type=values.type))
    return pa.table(arrays, schema=rows.schema) if changed else None


@dataclass(frozen=True)
class Rows:
    """A part of the rows of a split, the first of them row ``first``; the spans in them that go,
    and those that stay, with their sources."""

    split: str
    part: Part
    first: int
    gone: pa.Table
    left: pa.Table

    def __str__(self) -> str:
        return str(self.part)


#: A document at an edge of a part, the tokens of which may go on in the next one.
EDGES = pa.schema([("doc_id", ID), ("source", pa.string()), ("text", pa.large_binary())])


def blank_rows(rows: Rows, tokenizer_path: str, out: Tables) -> accounts.Counts:
    """Write the rows of a part; returns what is left, measured from the tokens as they were
    written. Documents at its edges are spilled instead."""
    before = rows.part.read()
    after = padded(before, rows.first, rows.gone)
    written = before if after is None else after
    out.table(rows.split).write(written)
    ids = written["ids"].combine_chunks()
    tokens = ids.flatten().to_numpy()
    known = token_bytes(load_tokenizer(Path(tokenizer_path)))
    lengths = pc.binary_length(known).to_numpy()
    places = np.concatenate([[0], np.cumsum(lengths[tokens], dtype=np.int64)])  # in bytes
    begins, start, end = side_by_side(rows, ids.type.list_size)
    edges = places[np.append(start, -1)]
    edges[0] = 0  # text that is nobody's any more counts as of the document beside it, and tells
    texts = spelled(known, tokens, edges)
    left = rows.left.take(begins)
    found = pa.table([left["doc_id"], left["source"], texts], schema=EDGES)
    inside = pa.array((start > 0) & (end < len(tokens)))
    out.spill("edges", EDGES).write(found.filter(pc.invert(inside)))
    return counted(found.filter(inside))


def side_by_side(rows: Rows, context: int) -> tuple[Int64, Int64, Int64]:
    """The first span of each document that stays, and where in the part its tokens begin and end:
    they lie side by side, and so do their spans."""
    number = pc.rank(rows.left["doc_id"], tiebreaker="dense").to_numpy()
    first, last = (np.flatnonzero(np.diff(number, **{side: 0})) for side in ("prepend", "append"))
    base = (rows.left["sequence"].to_numpy() - rows.first) * context
    start, end = (base + rows.left[name].to_numpy() for name in ("start", "end"))
    return first, start[first], end[last]


def counted(documents: pa.Table) -> accounts.Counts:
    """The counts of documents, each whole, with what their tokens spell."""
    columns = (documents["source"], pc.binary_length(documents["text"]))
    each = zip(*(column.to_pylist() for column in columns),
               identities(documents["doc_id"], documents["text"]), strict=True)  # fmt: skip
    rows = [[source, "document", 1, size, 0, identity.hex()] for source, size, identity in each]
    return accounts.merged([rows])


def across(done: Sequence[Done]) -> accounts.Counts:
    """The counts of the documents at the edges of parts, joined one by one."""
    rows = (row for part in done for row in part.mapped("edges", EDGES).to_pylist())
    found = []
    for doc_id, pieces in groupby(rows, itemgetter("doc_id")):
        some = [*pieces]
        whole = {"doc_id": doc_id, "source": some[0]["source"],
                 "text": b"".join(piece["text"] for piece in some)}  # fmt: skip
        found.append(counted(pa.Table.from_pylist([whole], schema=EDGES)))
    return accounts.merged(found)


def with_sources(spans: pa.Table, documents: Table) -> pa.Table:
    """Spans of documents that stayed, with the source of each."""
    known = pa.concat_tables([part.read(["doc_id", "source"]) for part in documents.parts])
    at = pc.index_in(spans["doc_id"], value_set=known["doc_id"].combine_chunks())
    return spans.append_column("source", known["source"].combine_chunks().take(at))


def by_part(spans: pa.Table, split: str, ends: Int64) -> list[pa.Table]:
    """The spans of a split from each of these rows to the next; they are in the rows' order."""
    here = spans.filter(pc.equal(spans["split"], split))
    edges = np.searchsorted(here["sequence"].to_numpy(), ends)
    return [here.slice(start, stop - start) for start, stop in pairwise(edges)]


@stage(
    tables={**{split: sequences(-1) for split in PACKED}, "spans": SPANS,
            "accounts": accounts.ACCOUNTS, "checksums": accounts.CHECKSUMS},
    libraries=["tokenizers", "numpy"],
    reads={"packed": (*PACKED, "spans", "accounts", "checksums"), "tokenizer": ("tokenizer.json",)},
)  # fmt: skip
def blank(
    packed: Artifact,
    documents: Table,
    ledger: Table,
    tokenizer: Artifact,
    config: NoConfig,
    work: Work,
) -> None:
    """``documents``: those that stay; ``ledger``: those that go, as ``leave_out`` has them."""
    gone = pc.unique(ledger.read(["doc_id"])["doc_id"].combine_chunks())
    spans = packed["spans"].read()
    nowhere = gone.filter(pc.invert(pc.is_in(gone, value_set=spans["doc_id"].combine_chunks())))
    if len(nowhere):
        raise HallmarkError(
            f"{len(nowhere):,} documents are to be blanked that stand nowhere in {packed.name}, "
            f"{nowhere[0].as_py().hex()} among them; leave out documents that training packed"
        )
    going = pc.is_in(spans["doc_id"], value_set=gone)
    left = with_sources(spans.filter(pc.invert(going)), documents)
    items = []
    for split in PACKED:
        parts = packed[split].parts
        ends = np.cumsum([0, *(part.rows for part in parts)])
        pairs = (by_part(some, split, ends) for some in (spans.filter(going), left))
        for part, first, *pair in zip(parts, ends[:-1].tolist(), *pairs, strict=True):
            items.append(Rows(split, part, first, *pair))
        if packed[split].rows:
            context = packed[split].parts[0].empty().schema.field("ids").type.list_size
            work.schemas |= {name: sequences(context) for name in PACKED}
    done = work.map(blank_rows, items, str(tokenizer.path("tokenizer.json")))
    work.table("spans").write(left.drop_columns("source"))
    kept = accounts.merged([across(done), *(part.value for part in done)])
    books = accounts.balance(entered(packed), kept, ledger.counts)
    sums = accounts.checksums(entered(packed), kept, ledger.counts)
    work.table("accounts").write(pa.Table.from_pylist(books, schema=accounts.ACCOUNTS))
    work.table("checksums").write(pa.Table.from_pylist(sums, schema=accounts.CHECKSUMS))


def entered(packed: Artifact) -> accounts.Counts:
    """What was packed, by its accounts."""
    found = {(r["source"], r["unit"]): r["kept"] for r in packed["accounts"].read().to_pylist()}
    sums = {r["source"]: r["kept"].hex() for r in packed["checksums"].read().to_pylist()}
    return [[source, "document", many, found[source, "bytes"], 0, sums[source]]
            for (source, unit), many in found.items() if unit == "rows"]  # fmt: skip
