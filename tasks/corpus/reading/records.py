"""Sort records in runs, give them ids, and split them into ranges of ids.

Records are written to sorted runs on disk, ordered by identity: a hash of source and key, or of
source and text. The identity is the document's id, except for later copies of a text without a key.
These get new ids, which fall into other ranges, and are written again under the new ids. After
that, each range of ids is a contiguous slice of every run.

Memory: only ids and counts, 118 bytes per record; texts stay in memory-mapped files.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract import (
    ID_TYPE,
    METADATA_TYPE,
    ItemResult,
    TableWriters,
    ids_to_uint64_pairs,
)

RECORDS_SCHEMA = pa.schema(
    [
        ("identity", ID_TYPE),  # hash of source and key, or of source and text
        ("has_key", pa.bool_()),
        ("source", pa.string()),
        ("reason", pa.string()),  # why the record is removed; "" if it is kept
        ("is_removed", pa.bool_()),  # whether reason is not ""
        ("text", pa.large_string()),
        ("text_hash", ID_TYPE),
        ("url", pa.string()),
        ("domain", pa.string()),
        ("date", pa.string()),
        ("metadata", METADATA_TYPE),
        ("metadata_hash", pa.uint64()),  # hash of url, date and metadata; 0 if there are none
        ("bytes", pa.int64()),  # size of the text and the metadata
        ("file_name", pa.string()),
        ("location", pa.string()),
        ("raw_bytes", pa.int64()),
        ("is_truncated", pa.bool_()),
        ("lost_characters", pa.int64()),
        ("is_whole_page", pa.bool_()),
    ]
)

#: Puts equal identities together. Records with the same key are ordered by content, removed ones
#: last; copies of a text are ordered by metadata and size, not by arrival.
SORT_ORDER: Any = [
    (name, "ascending")
    for name in ("identity", "is_removed", "text_hash", "metadata_hash", "raw_bytes")
]

#: Bytes of text and metadata in memory while a worker sorts a run.
MAX_RUN_BYTES = 32 << 20


class SortedRunWriter:
    """Collect records and write them as sorted runs of about MAX_RUN_BYTES."""

    def __init__(self, out: TableWriters) -> None:
        self.out = out
        self.pending_tables = list[pa.Table]()
        self.pending_bytes = 0
        self.run_count = 0

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
    """Refer to a sorted run in a file of the work area."""

    result: ItemResult
    name: str

    def take_rows(self, row_numbers: np.ndarray, column_names: list[str] | None = None) -> pa.Table:
        """Copy rows by number from the file."""
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


def list_sorted_runs(results: list[ItemResult]) -> list[SortedRun]:
    return [SortedRun(result, name) for result in results for name in result.spill_names]


# Ids ---------------------------------------------------------------------------------------------


def count_preceding_equal_identities(
    identities: np.ndarray, text_hashes: np.ndarray, other_columns: dict[str, np.ndarray]
) -> np.ndarray:
    """Count the records of the same identity that precede each record.

    The order is SORT_ORDER, then the order of arrival, which is the position in the arrays.

    Args:
        identities: (n, 2) uint64, the two halves of 16 bytes.
        text_hashes: (n, 2) uint64.
        other_columns: The other columns of SORT_ORDER, (n,) each.

    Returns:
        (n,) int64.
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
    """List the later copies of texts in a run."""

    run: SortedRun
    row_numbers: np.ndarray
    ordinals: np.ndarray  # how many records of the same identity precede each

    def __str__(self) -> str:
        return f"copies in {self.run.name}"


class CopySearch(NamedTuple):
    """Hold the result of the search for records with the same id in several runs."""

    later_copies: list[LaterCopies]
    """Every copy after the first of texts without an id, one entry per run that contains one."""
    first_record_masks: list[np.ndarray]
    """For each run, a mask that tells whether each record is the first record with its id."""


def find_later_copies(runs: list[SortedRun]) -> CopySearch:
    """Find the later copies of texts without a key, and the first record of each id."""
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
    ordinals = count_preceding_equal_identities(
        np.concatenate(ids), np.concatenate(text_hashes), other_columns
    )
    later_copies, first_record_masks = [], []
    start = 0
    for run, identities in zip(runs, ids[1:], strict=True):
        row_range = slice(start, start + len(identities))
        start = row_range.stop
        first_record_masks.append(ordinals[row_range] == 0)
        later_rows = np.flatnonzero((ordinals[row_range] > 0) & ~has_key[row_range])
        if len(later_rows):
            later_copies.append(LaterCopies(run, later_rows, ordinals[row_range][later_rows]))
    return CopySearch(later_copies, first_record_masks)


def write_copies_with_new_ids(copies: LaterCopies, out: TableWriters) -> None:
    """Write a run of the copies under new ids: hashes of their identity and ordinal."""
    rows = copies.run.take_rows(copies.row_numbers)
    new_ids = [
        hashlib.blake2b(identity + int(ordinal).to_bytes(8, "big"), digest_size=16).digest()
        for identity, ordinal in zip(rows["identity"].to_pylist(), copies.ordinals, strict=True)
    ]
    rows = rows.set_column(0, RECORDS_SCHEMA.field("identity"), pa.array(new_ids, ID_TYPE))
    out.get_spill_writer("run-00000", RECORDS_SCHEMA).write(rows.sort_by(SORT_ORDER))


# Id ranges ---------------------------------------------------------------------------------------


class MaskedRun(NamedTuple):
    """Hold a run and which of its records are the first of their id."""

    run: SortedRun
    is_first: np.ndarray | None
    """Whether each record is the first with its id; None if all records are; bool, shape (n,)."""


class RunRows(NamedTuple):
    """Refer to some rows of a run."""

    run: SortedRun
    row_numbers: np.ndarray


class RangeRecords(NamedTuple):
    """Hold the n records of a range of ids, in SORT_ORDER."""

    records: pa.Table
    repeats_identity: np.ndarray
    """Whether the record has the same identity as the previous record; shape (n,)."""


class SkippedInput(NamedTuple):
    """Count what was read of a source and belongs to no document."""

    source: str
    kind: str
    record_count: int
    byte_count: int


@dataclass(frozen=True)
class IdRange:
    """Hold a range of ids and the rows of each run that belong to it.

    Copies that have new ids in another range are not included. ``skipped`` holds the input that
    belongs to no document.
    """

    index: int
    range_count: int
    run_rows: tuple[RunRows, ...]
    skipped: tuple[SkippedInput, ...] = ()

    def __str__(self) -> str:
        return f"documents, partition {self.index + 1} of {self.range_count}"

    def read_records(self) -> RangeRecords:
        """Read the records in SORT_ORDER."""
        run_tables = [run.take_rows(row_numbers) for run, row_numbers in self.run_rows]
        records = (
            pa.concat_tables([RECORDS_SCHEMA.empty_table(), *run_tables])
            .sort_by(SORT_ORDER)
            .combine_chunks()
        )
        equals_previous = pc.equal(records["identity"][1:], records["identity"][:-1])
        repeats_identity = np.concatenate([[False][: len(records)], equals_previous.to_numpy()])
        return RangeRecords(records, repeats_identity.astype(bool))


def split_into_id_ranges(
    runs: list[MaskedRun],
    kept_bytes: int,
    partition_bytes: int,
    skipped: list[SkippedInput],
) -> list[IdRange]:
    """Split the ids into 2^n ranges with at most ``partition_bytes`` on average.

    Args:
        kept_bytes: Bytes of text and metadata of all kept records.
    """
    range_count = 1
    while kept_bytes > partition_bytes * range_count:
        range_count *= 2
    run_rows_by_range: list[list[RunRows]] = [[] for _ in range(range_count)]
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
                run_rows_by_range[range_index].append(RunRows(run, row_numbers))
    return [
        IdRange(range_index, range_count, tuple(run_rows), () if range_index else tuple(skipped))
        for range_index, run_rows in enumerate(run_rows_by_range)
    ]
