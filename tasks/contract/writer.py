"""Writing tables so that their bytes depend on their rows alone, and counting what is written."""

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

from tasks.contract.accounts import CHANGED, Counts
from tasks.contract.columns import is_cut, plain
from tasks.contract.errors import HallmarkError
from tasks.contract.external_files import file_digest
from tasks.contract.tables import identities, utf8_bytes

#: Most rows and bytes of a row group, which is what readers hold at a time. Fixed, so that the
#: bytes of a part depend on its rows alone. One row may be larger than a group.
ROW_GROUP = 4096
GROUP_BYTES = 4 << 20


def row_bytes(table: pa.Table) -> np.ndarray:
    """About how many bytes each row takes, (n,) int64; the same however the table is chunked."""
    sizes = np.zeros(len(table), np.int64)
    for column in table.columns:
        kind = column.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
            sizes += lengths * _width(kind.value_type)
        elif pa.types.is_fixed_size_list(kind):
            sizes += kind.list_size * _width(kind.value_type)
        elif pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind):
            sizes += _width(kind)
        else:
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    return sizes


def _width(kind: pa.DataType) -> int:
    fixed = pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind)
    return max(1, kind.bit_width // 8) if fixed else 16


class TableWriter:
    """Writes one part of a table in row groups that depend on nothing but its rows."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.described, self.rows = path, schema, 0
        self.schema = plain(schema)
        self._pending: list[pa.Table] = []
        self._sizes: list[np.ndarray] = []
        self._waiting = [0, 0]  # rows and bytes
        names = set(self.schema.names)
        self._documents = {"doc_id", "source", "text"} <= names and is_cut(schema)
        self._ledger = {"doc_id", "action", "bytes_before", "bytes_after", "identity"} <= names
        self._sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        self._written: list[tuple[pa.Table, list[bytes]]] = []  # ids and sources, identities
        self.changed: set[bytes] = set()  # ids of documents that a ledger says were changed
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(
            path,
            self.schema,
            compression="zstd",
            # Names repeat; texts, ids and figures hardly do.
            use_dictionary=[f.name for f in self.schema if f.type == pa.string()],
            write_page_checksum=True,
        )

    def write(self, batch: pa.RecordBatch | pa.Table | Mapping[str, Any]) -> None:
        """Append rows; a missing or unknown column is an error, types are cast safely."""
        names = batch.keys() if isinstance(batch, Mapping) else batch.schema.names
        missing = [name for name in self.schema.names if name not in names]
        unknown = [name for name in names if name not in self.schema.names]
        if missing or unknown:
            raise HallmarkError(
                f"table {self.path.stem!r}: missing columns {missing}, unknown columns {unknown}"
            )
        arrays = [_as_array(batch[field.name], field.type) for field in self.schema]
        table = pa.table(arrays, schema=self.schema)
        if not len(table):
            return
        sizes = row_bytes(table)
        self._pending.append(table)
        self._sizes.append(sizes)
        self._waiting[0] += len(table)
        self._waiting[1] += int(sizes.sum())
        if self._waiting[0] >= ROW_GROUP or self._waiting[1] >= GROUP_BYTES:
            self._flush(last=False)

    def _flush(self, last: bool) -> None:
        table = pa.concat_tables(self._pending)
        sizes = np.concatenate(self._sizes)
        ends = np.cumsum(sizes)
        start = 0
        while start < len(table):
            most = ends[start] - sizes[start] + GROUP_BYTES
            stop = max(start + 1, int(np.searchsorted(ends, most, side="right")))
            stop = min(stop, start + ROW_GROUP)
            if stop >= len(table) and not last and stop < start + ROW_GROUP:
                break  # more rows may still fit
            stop = min(stop, len(table))
            # One contiguous chunk: page boundaries must not depend on the caller's batches.
            group = table.slice(start, stop - start).combine_chunks()
            self._writer.write_table(group, row_group_size=ROW_GROUP)
            self._count(group)
            self.rows += len(group)
            start = stop
        rest, left = table.slice(start), sizes[start:]
        self._pending, self._sizes = [rest], [left]
        self._waiting = [len(rest), int(left.sum())]

    # Counting, so that the accounts need no second pass ---------------------------------------

    def _count(self, group: pa.Table) -> None:
        if self._documents:
            hashes = identities(group["doc_id"], group["text"])
            self._written.append((group.select(["doc_id", "source"]), hashes))
            size = utf8_bytes(group["text"])
            counted = pa.table({"source": group["source"], "before": size, "after": size})
            actions = pa.array(["document"] * len(group), pa.string())
            self._add(counted.append_column("action", actions), hashes)
        elif self._ledger:
            names = ["source", "bytes_before", "bytes_after", "action"]
            counted = group.select(names).rename_columns(["source", "before", "after", "action"])
            self._add(counted, group["identity"].to_pylist())
            changes = pc.is_in(group["action"], value_set=pa.array(CHANGED))
            self.changed.update(group["doc_id"].filter(changes).to_pylist())

    def _add(self, counted: pa.Table, hashes: Sequence[bytes | None]) -> None:
        data = b"".join(h or bytes(16) for h in hashes)
        limbs = np.frombuffer(data, ">u4").astype(np.uint64).reshape(-1, 4)
        for number in range(4):  # sums of 32-bit numbers: no group overflows 64 bits
            counted = counted.append_column(f"limb{number}", pa.array(limbs[:, number]))
        sums = counted.group_by(["source", "action"]).aggregate(
            [("before", "count"), ("before", "sum"), ("after", "sum")]
            + [(f"limb{number}", "sum") for number in range(4)]
        )
        for row in sums.to_pylist():
            total = self._sums[(row["source"], row["action"])]
            total[0] += row["before_count"]
            total[1] += row["before_sum"] or 0
            total[2] += row["after_sum"] or 0
            total[3] += sum(row[f"limb{n}_sum"] << 32 * (3 - n) for n in range(4))

    def counts(self) -> Counts:
        """[source, action, rows, bytes before, bytes after, sum of identities in hexadecimal]."""
        return [[*key, *n[:3], f"{n[3] % 2**128:032x}"] for key, n in sorted(self._sums.items())]

    def mark_changed(self, changed: set[bytes]) -> None:
        """Count the documents that a ledger says were changed: the texts differ, so they are no
        part of the checksums of what was kept."""
        for group, hashes in self._written if changed else ():
            columns = (group[name].to_pylist() for name in ("doc_id", "source"))
            for doc_id, source, identity in zip(*columns, hashes, strict=True):
                if doc_id in changed:
                    self._sums[(source, "changed")][3] += int.from_bytes(identity, "big")

    # The end -----------------------------------------------------------------------------------

    def close(self) -> None:
        if self._writer.is_open:
            if self._waiting[0]:
                self._flush(last=True)
            self._writer.close()

    def entry(self, name: str) -> dict[str, Any]:
        """How a manifest describes this part once it is closed."""
        size, digest = self.path.stat().st_size, file_digest(self.path)
        return {"name": name, "size": size, "sha256": digest, "rows": self.rows,
                "counts": self.counts()}  # fmt: skip

    def abandon(self) -> None:
        """Let go of the file after an error, which stays the one that is reported."""
        self._pending, self._sizes, self._waiting = [], [], [0, 0]
        with suppress(OSError, pa.ArrowException):
            self._writer.close()


def _as_array(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values if values.type == kind else values.cast(kind)
    return pa.array(values, type=kind)


class SpillWriter:
    """Writes rows that only the stage itself reads again: an Arrow file, mapped by its readers."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.schema = path, schema
        self._writer = pa.ipc.new_file(str(path), schema)

    def write(self, batch: pa.RecordBatch | pa.Table | Mapping[str, Any]) -> None:
        """Append rows, columns by their names in the schema; each call is a batch of its own."""
        arrays = [_as_array(batch[field.name], field.type) for field in self.schema]
        self._writer.write_table(pa.table(arrays, schema=self.schema).combine_chunks())

    def close(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        with suppress(OSError, pa.ArrowException):
            self._writer.close()


class Tables:
    """Writers for one part of each table of a stage, opened when first asked for."""

    def __init__(self, folder: Path, schemas: Mapping[str, pa.Schema]) -> None:
        self.folder, self.schemas = folder, dict(schemas)
        self.written: dict[str, TableWriter] = {}
        self.spilled: dict[str, SpillWriter] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def table(self, name: str) -> TableWriter:
        """The writer of a table of the stage."""
        if name not in self.written:
            if name not in self.schemas:
                raise HallmarkError(f"the stage declares no table {name!r}")
            path = self.folder / f"{name}.parquet"
            self.written[name] = TableWriter(path, self.schemas[name])
        return self.written[name]

    def spill(self, name: str, schema: pa.Schema) -> SpillWriter:
        """The writer of rows that the stage reads again from what ``Work.map`` returns."""
        if name not in self.spilled:
            self.spilled[name] = SpillWriter(self.folder / f"{name}.arrow", schema)
        return self.spilled[name]

    def close(self) -> None:
        """Close all writers; documents learn from the ledger which of them were changed."""
        for writer in self._writers():
            writer.close()
        changed = set().union(*(w.changed for w in self.written.values()))
        for table in self.written.values():
            table.mark_changed(changed)

    def abandon(self) -> None:
        for writer in self._writers():
            writer.abandon()

    def _writers(self) -> Iterator[TableWriter | SpillWriter]:
        yield from self.written.values()
        yield from self.spilled.values()
