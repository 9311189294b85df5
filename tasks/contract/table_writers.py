"""Write the tables of a stage, and count the written rows and bytes for the accounts.

The bytes of a parquet part depend on its rows alone, not on how the caller batches them. The stage
context derives from ``TableWriters``; every item that a mapper runs gets ``TableWriters`` of its
own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hallmark.tasks.contract.accounts import TEXT_CHANGING_ACTIONS, SourceCounts
from hallmark.tasks.contract.columns import is_partitioned, strip_metadata
from hallmark.tasks.contract.corpus_tables import (
    count_metadata_bytes,
    count_utf8_bytes,
    hash_documents,
)
from hallmark.tasks.contract.errors import HallmarkError
from hallmark.tasks.contract.external_files import hash_file
from hallmark.tasks.contract.tombstones import ManifestEntry

#: Maximum rows and bytes of a row group. Readers hold one row group in memory at a time. Both are
#: fixed, so that the bytes of a part depend on its rows alone. A single row may exceed the bytes.
MAX_ROW_GROUP_ROWS = 4096
MAX_ROW_GROUP_BYTES = 4 << 20


def estimate_row_bytes(table: pa.Table) -> np.ndarray:
    """Estimate the bytes of each row, (n,) int64; the chunks of the table make no difference."""
    sizes = np.zeros(len(table), np.int64)
    for column in table.columns:
        data_type = column.type
        if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
            lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
            sizes += lengths * _estimate_value_bytes(data_type.value_type)
        elif pa.types.is_fixed_size_list(data_type):
            sizes += data_type.list_size * _estimate_value_bytes(data_type.value_type)
        elif pa.types.is_primitive(data_type) or pa.types.is_fixed_size_binary(data_type):
            sizes += _estimate_value_bytes(data_type)
        elif pa.types.is_map(data_type):
            sizes += count_metadata_bytes(column)
        else:
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    return sizes


def _estimate_value_bytes(data_type: pa.DataType) -> int:
    is_fixed_width = pa.types.is_primitive(data_type) or pa.types.is_fixed_size_binary(data_type)
    return max(1, data_type.bit_width // 8) if is_fixed_width else 16


class TableWriter:
    """Write one part of a table in row groups that depend only on its rows."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.declared_schema, self.row_count = path, schema, 0
        self.schema = strip_metadata(schema)
        self._pending_tables: list[pa.Table] = []
        self._pending_row_bytes: list[np.ndarray] = []
        self._pending_totals = [0, 0]  # rows and bytes
        names = set(self.schema.names)
        self._is_documents_table = {"doc_id", "source", "text"} <= names and is_partitioned(schema)
        self._is_ledger = {
            "doc_id",
            "action",
            "bytes_before",
            "bytes_after",
            "document_hash",
        } <= names
        self._sums_by_source: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        # Tables of doc_id and source, with the hashes of the documents.
        self._written_documents: list[tuple[pa.Table, list[bytes]]] = []
        # Ids of the documents whose text changed according to the ledger that is written here.
        self.changed_ids: set[bytes] = set()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(
            path,
            self.schema,
            compression="zstd",
            # Names repeat; texts, ids and figures rarely do.
            use_dictionary=[
                name for field in self.schema for name in _list_dictionary_column_paths(field)
            ],
            write_page_checksum=True,
        )

    def write(self, batch: pa.RecordBatch | pa.Table | Mapping[str, Any]) -> None:
        """Append rows and cast their columns safely to the types of the schema.

        Raises:
            HallmarkError: A column is missing or unknown.
        """
        names = batch.keys() if isinstance(batch, Mapping) else batch.schema.names
        missing = [name for name in self.schema.names if name not in names]
        unknown = [name for name in names if name not in self.schema.names]
        if missing or unknown:
            raise HallmarkError(
                f"table {self.path.stem!r}: missing columns {missing}, unknown columns {unknown}; "
                f"its columns are {', '.join(self.schema.names)}"
            )
        arrays = [_to_arrow_array(batch[field.name], field.type) for field in self.schema]
        table = pa.table(arrays, schema=self.schema)
        if not len(table):
            return
        row_bytes = estimate_row_bytes(table)
        self._pending_tables.append(table)
        self._pending_row_bytes.append(row_bytes)
        self._pending_totals[0] += len(table)
        self._pending_totals[1] += int(row_bytes.sum())
        if (
            self._pending_totals[0] >= MAX_ROW_GROUP_ROWS
            or self._pending_totals[1] >= MAX_ROW_GROUP_BYTES
        ):
            self._flush_row_groups(is_last=False)

    def _flush_row_groups(self, is_last: bool) -> None:
        table = pa.concat_tables(self._pending_tables)
        row_bytes = np.concatenate(self._pending_row_bytes)
        ends = np.cumsum(row_bytes)
        start = 0
        while start < len(table):
            byte_limit = ends[start] - row_bytes[start] + MAX_ROW_GROUP_BYTES
            stop = max(start + 1, int(np.searchsorted(ends, byte_limit, side="right")))
            stop = min(stop, start + MAX_ROW_GROUP_ROWS)
            if stop >= len(table) and not is_last and stop < start + MAX_ROW_GROUP_ROWS:
                break  # more rows may still fit
            stop = min(stop, len(table))
            # In one contiguous chunk, since page boundaries must not depend on the batches.
            group = table.slice(start, stop - start).combine_chunks()
            self._writer.write_table(group, row_group_size=MAX_ROW_GROUP_ROWS)
            self._count_row_group(group)
            self.row_count += len(group)
            start = stop
        remaining_rows, remaining_row_bytes = table.slice(start), row_bytes[start:]
        self._pending_tables, self._pending_row_bytes = [remaining_rows], [remaining_row_bytes]
        self._pending_totals = [len(remaining_rows), int(remaining_row_bytes.sum())]

    # Count while writing, so that the accounts need no second pass ----------------------------

    def _count_row_group(self, row_group: pa.Table) -> None:
        if self._is_documents_table:
            hashes = hash_documents(row_group["doc_id"], row_group["text"])
            self._written_documents.append((row_group.select(["doc_id", "source"]), hashes))
            byte_counts = count_utf8_bytes(row_group["text"])
            rows_to_count = pa.table(
                {"source": row_group["source"], "before": byte_counts, "after": byte_counts}
            )
            actions = pa.array(["document"] * len(row_group), pa.string())
            self._add_to_sums(rows_to_count.append_column("action", actions), hashes)
        elif self._is_ledger:
            names = ["source", "bytes_before", "bytes_after", "action"]
            rows_to_count = row_group.select(names).rename_columns(
                ["source", "before", "after", "action"]
            )
            self._add_to_sums(rows_to_count, row_group["document_hash"].to_pylist())
            is_change = pc.is_in(row_group["action"], value_set=pa.array(TEXT_CHANGING_ACTIONS))
            self.changed_ids.update(row_group["doc_id"].filter(is_change).to_pylist())

    def _add_to_sums(
        self, rows_to_count: pa.Table, document_hashes: Sequence[bytes | None]
    ) -> None:
        hash_bytes = b"".join(document_hash or bytes(16) for document_hash in document_hashes)
        limbs = np.frombuffer(hash_bytes, ">u4").astype(np.uint64).reshape(-1, 4)
        for number in range(4):  # sums of 32-bit numbers do not overflow 64 bits
            rows_to_count = rows_to_count.append_column(f"limb{number}", pa.array(limbs[:, number]))
        sums = rows_to_count.group_by(["source", "action"]).aggregate(
            [("before", "count"), ("before", "sum"), ("after", "sum")]
            + [(f"limb{number}", "sum") for number in range(4)]
        )
        for row in sums.to_pylist():
            totals = self._sums_by_source[(row["source"], row["action"])]
            totals[0] += row["before_count"]
            totals[1] += row["before_sum"] or 0
            totals[2] += row["after_sum"] or 0
            totals[3] += sum(row[f"limb{n}_sum"] << 32 * (3 - n) for n in range(4))

    def compute_source_counts(self) -> SourceCounts:
        """Return the counts by source and action, see ``accounts.SourceCounts``."""
        return [
            [*key, *n[:3], f"{n[3] % 2**128:032x}"]
            for key, n in sorted(self._sums_by_source.items())
        ]

    def add_changed_documents_to_checksums(self, changed_ids: set[bytes]) -> None:
        """Add the hashes of changed documents under the action "changed".

        Their texts differ from the input, so ``accounts.compute_checksum_rows`` subtracts them from
        the checksum of the kept documents.

        Args:
            changed_ids: Ids of the documents whose text changed according to the ledger.
        """
        for written_rows, hashes in self._written_documents if changed_ids else ():
            columns = (written_rows[name].to_pylist() for name in ("doc_id", "source"))
            for doc_id, source, document_hash in zip(*columns, hashes, strict=True):
                if doc_id in changed_ids:
                    self._sums_by_source[(source, "changed")][3] += int.from_bytes(
                        document_hash, "big"
                    )

    # Close -------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._writer.is_open:
            if self._pending_totals[0]:
                self._flush_row_groups(is_last=True)
            self._writer.close()

    def build_manifest_entry(self, name: str) -> ManifestEntry:
        """Return the manifest entry of this part; the writer must be closed."""
        size, digest = self.path.stat().st_size, hash_file(self.path)
        return {
            "name": name,
            "size": size,
            "sha256": digest,
            "rows": self.row_count,
            "counts": self.compute_source_counts(),
        }

    def close_quietly(self) -> None:
        """Close the file after an error without raising another one."""
        self._pending_tables, self._pending_row_bytes, self._pending_totals = [], [], [0, 0]
        with suppress(OSError, pa.ArrowException):
            self._writer.close()


def _list_dictionary_column_paths(field: pa.Field) -> list[str]:
    """Return the parquet columns of a field that are stored as a dictionary."""
    if pa.types.is_map(field.type):
        return [f"{field.name}.key_value.{part}" for part in ("key", "value")]
    return [field.name] if field.type == pa.string() else []


def _to_arrow_array(values: Any, data_type: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values if values.type == data_type else values.cast(data_type)
    return pa.array(values, type=data_type)


class SpillWriter:
    """Write an Arrow file of rows that only the stage itself reads again, by memory mapping."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.schema = path, schema
        self._writer = pa.ipc.new_file(str(path), schema)

    def write(self, batch: pa.RecordBatch | pa.Table | Mapping[str, Any]) -> None:
        """Append rows as a batch; columns are matched by name, and additional ones are ignored."""
        arrays = [_to_arrow_array(batch[field.name], field.type) for field in self.schema]
        self._writer.write_table(pa.table(arrays, schema=self.schema).combine_chunks())

    def close(self) -> None:
        self._writer.close()

    def close_quietly(self) -> None:
        with suppress(OSError, pa.ArrowException):
            self._writer.close()


class TableWriters:
    """Writers for one part of each table of a stage, opened on first use."""

    def __init__(self, folder: Path, schemas: Mapping[str, pa.Schema]) -> None:
        self.folder, self.schemas = folder, dict(schemas)
        self.table_writers: dict[str, TableWriter] = {}
        self.spill_writers: dict[str, SpillWriter] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def get_table_writer(self, name: str) -> TableWriter:
        """Return the writer of a declared table of the stage.

        Raises:
            HallmarkError: The stage declares no such table.
        """
        if name not in self.table_writers:
            if name not in self.schemas:
                raise HallmarkError(
                    f"the stage does not declare a table {name!r}; its tables are "
                    f"{', '.join(self.schemas)}"
                )
            path = self.folder / f"{name}.parquet"
            self.table_writers[name] = TableWriter(path, self.schemas[name])
        return self.table_writers[name]

    def get_spill_writer(self, name: str, schema: pa.Schema) -> SpillWriter:
        """Return the writer of rows that the stage reads again from its ``ItemResult``."""
        if name not in self.spill_writers:
            self.spill_writers[name] = SpillWriter(self.folder / f"{name}.arrow", schema)
        return self.spill_writers[name]

    def close(self) -> None:
        """Close all writers, and count the documents that the ledger reports as changed."""
        for writer in self._iter_writers():
            writer.close()
        changed_ids = set().union(*(w.changed_ids for w in self.table_writers.values()))
        for table_writer in self.table_writers.values():
            table_writer.add_changed_documents_to_checksums(changed_ids)

    def close_quietly(self) -> None:
        for writer in self._iter_writers():
            writer.close_quietly()

    def _iter_writers(self) -> Iterator[TableWriter | SpillWriter]:
        yield from self.table_writers.values()
        yield from self.spill_writers.values()
