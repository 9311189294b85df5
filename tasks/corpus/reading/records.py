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

from hallmark.tasks.contract import ID_TYPE, ItemResult, TableWriters

RECORDS_SCHEMA = pa.schema(
    [
        ("identity", ID_TYPE),  # hash of source and key, or of source and text
        ("has_key", pa.bool_()),
        ("source", pa.string()),
        ("reason", pa.string()),  # why it is removed; "" if it is kept
        ("is_removed", pa.bool_()),  # whether there is such a reason
        ("text", pa.large_string()),
        ("text_hash", ID_TYPE),
        ("url", pa.string()),
        ("domain", pa.string()),
        ("date", pa.string()),
        ("metadata_hash", pa.uint64()),  # hash of url and date; 0 if there are none
        ("bytes", pa.int64()),  # of the text
        ("file_name", pa.string()),
        ("location", pa.string()),
        ("raw_bytes", pa.int64()),
    ]
)

#: Equal identities stand together; of two records with one key the content decides (one that is
#: removed stands behind), and among copies of a text what is known of them, not which came first.
SORT_ORDER: Any = [
    (name, "ascending")
    for name in ("identity", "is_removed", "text_hash", "metadata_hash", "raw_bytes")
]

#: Text that a worker holds while it sorts a run.
MAX_RUN_BYTES = 32 << 20


class SortedRunWriter:
    """Collects records until they are worth a sorted run."""

    def __init__(self, out: TableWriters) -> None:
        self.out, self.pending_tables, self.pending_bytes, self.run_count = (
            out,
            list[pa.Table](),
            0,
            0,
        )

    def add_records(self, records: pa.Table) -> None:
        self.pending_tables.append(records)
        self.pending_bytes += pc.sum(records["bytes"]).as_py() or 0
        if self.pending_bytes >= MAX_RUN_BYTES:
            self.write_pending_run()

    def write_pending_run(self) -> None:
        if self.pending_tables:
            run = pa.concat_tables(self.pending_tables).sort_by(SORT_ORDER)
            self.out.get_spill_writer(f"run-{self.run_count:05d}", RECORDS_SCHEMA).write(run)
            self.run_count += 1
        self.pending_tables, self.pending_bytes = [], 0


@dataclass(frozen=True)
class SortedRun:
    """A sorted run in a file of the work area."""

    result: ItemResult
    name: str

    def take_rows(self, row_numbers: np.ndarray, column_names: list[str] | None = None) -> pa.Table:
        """Rows by their numbers, copied from the file."""
        table = self.result.open_spilled_table(self.name, RECORDS_SCHEMA)
        return (
            table.select(column_names or RECORDS_SCHEMA.names)
            .take(pa.array(row_numbers))
            .combine_chunks()
        )

    def read_columns(self, column_names: list[str]) -> pa.Table:
        return self.result.open_spilled_table(self.name, RECORDS_SCHEMA).select(column_names)

    def read_id_pairs(self, column_name: str) -> np.ndarray:
        return ids_to_uint64_pairs(self.read_columns([column_name])[column_name])


def ids_to_uint64_pairs(ids: pa.ChunkedArray) -> np.ndarray:
    """A column of 16 bytes as (n, 2) uint64 that sort as the bytes do."""
    return np.frombuffer(b"".join(ids.to_pylist()), ">u8").astype(np.uint64).reshape(-1, 2)


def list_sorted_runs(results: list[ItemResult]) -> list[SortedRun]:
    return [SortedRun(result, name) for result in results for name in result.spill_names]


# Ids ---------------------------------------------------------------------------------------------


def count_preceding_duplicates(
    identities: np.ndarray, text_hashes: np.ndarray, other_columns: dict[str, np.ndarray]
) -> np.ndarray:
    """How many records of the same identity stand before each, in IN_ORDER, then by arrival, which
    their places alone tell.

    identities, hashes: (n, 2) uint64, the two halves of 16 bytes; others: the other columns of
    IN_ORDER, (n,) each.
    """
    columns = {"identity": identities, "text_hash": text_hashes, **other_columns}
    sort_keys = [key for name, _ in SORT_ORDER for key in np.atleast_2d(columns[name].T)]
    sort_order = np.lexsort(sort_keys[::-1])  # the last key counts most; stable
    sorted_identities = identities[sort_order]
    starts_identity = np.ones(len(sort_order), bool)
    starts_identity[1:] = (sorted_identities[1:] != sorted_identities[:-1]).any(axis=1)
    positions = np.arange(len(sort_order))
    ordinals = np.empty(len(sort_order), np.int64)
    ordinals[sort_order] = positions - np.maximum.accumulate(
        np.where(starts_identity, positions, 0)
    )
    return ordinals


@dataclass(frozen=True)
class LaterCopies:
    """The later copies of texts in a run."""

    run: SortedRun
    row_numbers: np.ndarray
    ordinals: np.ndarray  # their ordinals

    def __str__(self) -> str:
        return f"copies in {self.run.name}"


def find_later_copies(runs: list[SortedRun]) -> tuple[list[LaterCopies], list[np.ndarray]]:
    """The later copies in each run that has any, and which records of each are the first of their
    ids."""
    ids, text_hashes = [np.empty((0, 2), np.uint64)], [np.empty((0, 2), np.uint64)]
    record_tables = [
        RECORDS_SCHEMA.empty_table().select(["has_key", "is_removed", "metadata_hash", "raw_bytes"])
    ]
    for run in runs:
        ids.append(run.read_id_pairs("identity"))
        text_hashes.append(run.read_id_pairs("text_hash"))
        record_tables.append(run.read_columns(record_tables[0].column_names))
    all_records = pa.concat_tables(record_tables)
    other_columns = {name: all_records[name].to_numpy() for name in all_records.column_names}
    has_key = other_columns.pop("has_key")
    ordinals = count_preceding_duplicates(
        np.concatenate(ids), np.concatenate(text_hashes), other_columns
    )
    copies, is_first_by_run = [], []
    start = 0
    for run, identities in zip(runs, ids[1:], strict=True):
        row_range = slice(start, start + len(identities))
        start = row_range.stop
        is_first_by_run.append(ordinals[row_range] == 0)
        later_rows = np.flatnonzero((ordinals[row_range] > 0) & ~has_key[row_range])
        if len(later_rows):
            copies.append(LaterCopies(run, later_rows, ordinals[row_range][later_rows]))
    return copies, is_first_by_run


def reassign_copy_ids(copies: LaterCopies, out: TableWriters) -> None:
    """A run of the copies under ids of their own: hashes of the identity and their ordinal."""
    rows = copies.run.take_rows(copies.row_numbers)
    new_ids = [
        hashlib.blake2b(identity + int(ordinal).to_bytes(8, "big"), digest_size=16).digest()
        for identity, ordinal in zip(rows["identity"].to_pylist(), copies.ordinals, strict=True)
    ]
    rows = rows.set_column(0, RECORDS_SCHEMA.field("identity"), pa.array(new_ids, ID_TYPE))
    out.get_spill_writer("run-00000", RECORDS_SCHEMA).write(rows.sort_by(SORT_ORDER))


# Parts -------------------------------------------------------------------------------------------


class SkippedInput(NamedTuple):
    """What was read of a source and belongs to no document."""

    source: str
    kind: str
    record_count: int
    byte_count: int  # bytes


@dataclass(frozen=True)
class IdRange:
    """A range of ids: the rows of each run that are in it, but for copies that have ids of their
    own elsewhere, and what belongs to no document."""

    index: int
    range_count: int
    run_slices: tuple[tuple[SortedRun, np.ndarray], ...]
    skipped: tuple[SkippedInput, ...] = ()

    def __str__(self) -> str:
        return f"documents, part {self.index + 1} of {self.range_count}"

    def read_records(self) -> tuple[pa.Table, np.ndarray]:
        """The records in order, with which of them are not the first of their identity."""
        run_tables = [run.take_rows(records) for run, records in self.run_slices]
        records = (
            pa.concat_tables([RECORDS_SCHEMA.empty_table(), *run_tables])
            .sort_by(SORT_ORDER)
            .combine_chunks()
        )
        equals_previous = pc.equal(records["identity"][1:], records["identity"][:-1])
        return records, np.concatenate(
            [[False][: len(records)], equals_previous.to_numpy()]
        ).astype(bool)


def split_into_id_ranges(
    runs: list[tuple[SortedRun, np.ndarray | None]],
    kept_bytes: int,
    partition_bytes: int,
    skipped: list[SkippedInput],
) -> list[IdRange]:
    """2^n ranges of ids, n the least that keeps ``partition_bytes`` of text each on average.

    runs: each with which of its records are the first of their ids; None: all.
    """
    range_count = 1
    while kept_bytes > partition_bytes * range_count:
        range_count *= 2
    slices_by_range: list[list[tuple[SortedRun, np.ndarray]]] = [[] for _ in range(range_count)]
    range_ends = np.array(
        [range_index * 2**64 // range_count for range_index in range(1, range_count)], np.uint64
    )
    for run, is_first in runs:
        id_prefixes = run.read_id_pairs("identity")[:, 0]
        is_included = run.read_columns(["has_key"])["has_key"].to_numpy() | (
            True if is_first is None else is_first
        )
        boundaries = [0, *np.searchsorted(id_prefixes, range_ends).tolist(), len(id_prefixes)]
        for range_index, (start, stop) in enumerate(pairwise(boundaries)):
            row_numbers = start + np.flatnonzero(is_included[start:stop])
            if len(row_numbers):
                slices_by_range[range_index].append((run, row_numbers))
    return [
        IdRange(range_index, range_count, tuple(run_slices), () if range_index else tuple(skipped))
        for range_index, run_slices in enumerate(slices_by_range)
    ]
