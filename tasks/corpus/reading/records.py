"""Records on their way to documents: sorted runs, ids, and the ranges of ids that become parts.

What is read is spilled in runs, sorted by identity: a hash of source and key, or of source and
text. A record's identity is its document's id, but for later copies of a text without a key: those
get ids of their own, which belong to other parts. So the copies are spilled once more under their
new ids, and then part k is a stretch of every run.

Memory: ids and counts only, 118 bytes a record; texts stay in files that are mapped at need.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.contract import ID, Done, Tables

RECORDS = pa.schema(
    [
        ("identity", ID),  # hash of source and key, or of source and text
        ("keyed", pa.bool_()),
        ("source", pa.string()),
        ("reason", pa.string()),  # why it is removed; "" if it is kept
        ("gone", pa.bool_()),  # whether there is such a reason
        ("text", pa.large_string()),
        ("text_hash", ID),
        ("url", pa.string()),
        ("domain", pa.string()),
        ("date", pa.string()),
        ("labels", pa.uint64()),  # hash of url and date; 0 if there are none
        ("bytes", pa.int64()),  # of the text
        ("file", pa.string()),
        ("place", pa.string()),
        ("raw_bytes", pa.int64()),
    ]
)

#: Equal identities stand together; of two records with one key the content decides (one that is
#: removed stands behind), and among copies of a text what is known of them, not which came first.
IN_ORDER: Any = [
    (name, "ascending") for name in ("identity", "gone", "text_hash", "labels", "raw_bytes")
]

#: Text that a worker holds while it sorts a run.
RUN_BYTES = 32 << 20


class Runs:
    """Collects records until they are worth a sorted run."""

    def __init__(self, out: Tables) -> None:
        self.out, self.held, self.size, self.count = out, list[pa.Table](), 0, 0

    def add(self, records: pa.Table) -> None:
        self.held.append(records)
        self.size += pc.sum(records["bytes"]).as_py() or 0
        if self.size >= RUN_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.held:
            run = pa.concat_tables(self.held).sort_by(IN_ORDER)
            self.out.spill(f"run-{self.count:05d}", RECORDS).write(run)
            self.count += 1
        self.held, self.size = [], 0


@dataclass(frozen=True)
class Run:
    """A sorted run in a file of the work area."""

    done: Done
    name: str

    def take(self, rows: np.ndarray, columns: list[str] | None = None) -> pa.Table:
        """Rows by their numbers, copied from the file."""
        table = self.done.mapped(self.name, RECORDS)
        return table.select(columns or RECORDS.names).take(pa.array(rows)).combine_chunks()

    def columns(self, names: list[str]) -> pa.Table:
        return self.done.mapped(self.name, RECORDS).select(names)

    def halves(self, column: str) -> np.ndarray:
        return halves(self.columns([column])[column])


def halves(ids: pa.ChunkedArray) -> np.ndarray:
    """A column of 16 bytes as (n, 2) uint64 that sort as the bytes do."""
    return np.frombuffer(b"".join(ids.to_pylist()), ">u8").astype(np.uint64).reshape(-1, 2)


def runs_of(results: list[Done]) -> list[Run]:
    return [Run(done, name) for done in results for name in done.spills]


# Ids ---------------------------------------------------------------------------------------------


def ordinals(
    identities: np.ndarray, hashes: np.ndarray, others: dict[str, np.ndarray]
) -> np.ndarray:
    """How many records of the same identity stand before each, in IN_ORDER, then by arrival, which
    their places alone tell.

    identities, hashes: (n, 2) uint64, the two halves of 16 bytes; others: the other columns of
    IN_ORDER, (n,) each.
    """
    columns = {"identity": identities, "text_hash": hashes, **others}
    keys = [key for name, _ in IN_ORDER for key in np.atleast_2d(columns[name].T)]
    order = np.lexsort(keys[::-1])  # the last key counts most; stable
    ordered = identities[order]
    first = np.ones(len(order), bool)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    position = np.arange(len(order))
    counts = np.empty(len(order), np.int64)
    counts[order] = position - np.maximum.accumulate(np.where(first, position, 0))
    return counts


@dataclass(frozen=True)
class Copies:
    """The later copies of texts in a run."""

    run: Run
    rows: np.ndarray
    numbers: np.ndarray  # their ordinals

    def __str__(self) -> str:
        return f"copies in {self.run.name}"


def find_copies(runs: list[Run]) -> tuple[list[Copies], list[np.ndarray]]:
    """The later copies in each run that has any, and which records of each are the first of their
    ids."""
    ids, hashes = [np.empty((0, 2), np.uint64)], [np.empty((0, 2), np.uint64)]
    known = [RECORDS.empty_table().select(["keyed", "gone", "labels", "raw_bytes"])]
    for run in runs:
        ids.append(run.halves("identity"))
        hashes.append(run.halves("text_hash"))
        known.append(run.columns(known[0].column_names))
    together = pa.concat_tables(known)
    others = {name: together[name].to_numpy() for name in together.column_names}
    has_key = others.pop("keyed")
    numbers = ordinals(np.concatenate(ids), np.concatenate(hashes), others)
    found, own = [], []
    start = 0
    for run, rows in zip(runs, ids[1:], strict=True):
        here = slice(start, start + len(rows))
        start = here.stop
        own.append(numbers[here] == 0)
        later = np.flatnonzero((numbers[here] > 0) & ~has_key[here])
        if len(later):
            found.append(Copies(run, later, numbers[here][later]))
    return found, own


def name_copies(copies: Copies, out: Tables) -> None:
    """A run of the copies under ids of their own: hashes of the identity and their ordinal."""
    rows = copies.run.take(copies.rows)
    named = [
        hashlib.blake2b(identity + int(number).to_bytes(8, "big"), digest_size=16).digest()
        for identity, number in zip(rows["identity"].to_pylist(), copies.numbers, strict=True)
    ]
    rows = rows.set_column(0, RECORDS.field("identity"), pa.array(named, ID))
    out.spill("run-00000", RECORDS).write(rows.sort_by(IN_ORDER))


# Parts -------------------------------------------------------------------------------------------


class Skip(NamedTuple):
    """What was read of a source and belongs to no document."""

    source: str
    what: str
    records: int
    size: int  # bytes


@dataclass(frozen=True)
class Range:
    """A range of ids: the rows of each run that are in it, but for copies that have ids of their
    own elsewhere, and what belongs to no document."""

    number: int
    of: int
    slices: tuple[tuple[Run, np.ndarray], ...]
    skipped: tuple[Skip, ...] = ()

    def __str__(self) -> str:
        return f"documents, part {self.number + 1} of {self.of}"

    def read(self) -> tuple[pa.Table, np.ndarray]:
        """The records in order, with which of them are not the first of their identity."""
        found = [run.take(rows) for run, rows in self.slices]
        rows = pa.concat_tables([RECORDS.empty_table(), *found]).sort_by(IN_ORDER).combine_chunks()
        same = pc.equal(rows["identity"][1:], rows["identity"][:-1])
        return rows, np.concatenate([[False][: len(rows)], same.to_numpy()]).astype(bool)


def ranges(
    runs: list[tuple[Run, np.ndarray | None]],
    kept_bytes: int,
    part_bytes: int,
    skipped: list[Skip],
) -> list[Range]:
    """2^n ranges of ids, n the least that keeps ``part_bytes`` of text each on average.

    runs: each with which of its records are the first of their ids; None: all.
    """
    of = 1
    while kept_bytes > part_bytes * of:
        of *= 2
    slices: list[list[tuple[Run, np.ndarray]]] = [[] for _ in range(of)]
    ends = np.array([number * 2**64 // of for number in range(1, of)], np.uint64)
    for run, own in runs:
        first = run.halves("identity")[:, 0]
        here = run.columns(["keyed"])["keyed"].to_numpy() | (True if own is None else own)
        cuts = [0, *np.searchsorted(first, ends).tolist(), len(first)]
        for number, (start, stop) in enumerate(pairwise(cuts)):
            rows = start + np.flatnonzero(here[start:stop])
            if len(rows):
                slices[number].append((run, rows))
    return [
        Range(number, of, tuple(found), () if number else tuple(skipped))
        for number, found in enumerate(slices)
    ]
