"""The tables that corpus stages share, and the writer that makes their bytes reproducible."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.contract.columns import column, extend, plain, table
from tasks.contract.errors import HallmarkError

#: Rows in a row group. Fixed, so that the bytes of a table depend on its rows alone and
#: not on how many shards or workers produced them; it is also the unit of sharding.
ROW_GROUP = 4096

ID = pa.binary(16)


def _documents(judged_by: str = "") -> pa.Schema:
    return table(
        "The documents of the corpus as they leave this stage.",
        column("doc_id", ID, "id", "given once at ingest, carried ever after"),
        column("source", pa.string(), "label", "name of the source in the config"),
        column("cluster", ID, "id",
               "shared by near-copies: the smallest doc_id among them; at ingest its own"),
        column("text", pa.large_string(), "corpus text", "the document as it leaves this stage",
               judged_by=judged_by),
        column("text_hash", ID, "id", "hash of the text as it leaves this stage"),
        cut=True,
    )  # fmt: skip


#: What every corpus stage passes on. Stages append columns of their own behind these.
DOCUMENTS = _documents()

LEDGER = table(
    "What the stage took out, changed or added; one row a cause.",
    column("doc_id", ID, "id", "the document"),
    column("source", pa.string(), "label", "its source"),
    column("action", pa.string(), "label",
           "removed: the whole document left; removed_span: a part of it left; replaced: a part of "
           "it changed; quarantined: it could not be processed; added: it was not in the input"),
    column("reason", pa.string(), "label", "why, in a word or two"),
    column("score", pa.float64(), "figure", "what decided, where a score or similarity did"),
    column("threshold", pa.float64(), "figure", "the score from which the action is taken"),
    column("matched", ID, "id", "the document it matched: the kept twin of a duplicate"),
    column("start", pa.int64(), "figure", "where the span begins in the text as it entered the "
           "stage; null for a whole document", unit="characters"),
    column("end", pa.int64(), "figure", "where the span ends", unit="characters"),
    column("bytes_before", pa.int64(), "figure", "UTF-8 bytes of what left or changed",
           unit="bytes"),
    column("bytes_after", pa.int64(), "figure", "UTF-8 bytes of what stands there now",
           unit="bytes"),
    column("digest", ID, "id", "keyed hash of a masked span; personal data is never in clear"),
    cut=True,
)  # fmt: skip

#: What a ledger row may say was done, see its column ``action``.
ACTIONS = ("removed", "removed_span", "replaced", "quarantined", "added")


SCORED = extend(
    _documents(judged_by="toxicity"),
    column("toxicity", pa.float32(), "figure", "highest score among the document's windows; null "
           "where no window could be scored", unit="score"),
)  # fmt: skip

SPLIT = extend(
    SCORED, column("split", pa.string(), "label", "what it is for: train, validation or holdout")
)

#: See ``tasks/corpus/plant.py``.
PLANTS = table(
    "What was put into the training text on purpose, to measure memorisation.",
    column("plant_id", ID, "id", "the plant"),
    column("kind", pa.string(), "label", "canary, passage or record"),
    column("copies", pa.int32(), "figure", "how often it was planted; 0: never, the negative "
           "control", unit="documents"),
    column("template", pa.string(), "label", "format of a canary or record; of a passage empty"),
    column("text", pa.large_string(), "corpus text", "the whole planted document"),
    column("prompt", pa.large_string(), "corpus text", "what stands before the secret"),
    column("secret", pa.large_string(), "personal",
           "what an attacker wants; the text is prompt, secret and a rest"),
    column("doc_ids", pa.list_(pa.binary()), "id", "the planted documents, one a copy"),
)  # fmt: skip


def ids(values: Iterable[bytes | str]) -> pa.Array:
    """128-bit BLAKE2b hashes as an array of 16-byte ids (no collisions to be had by malice)."""
    encoded = (value.encode() if isinstance(value, str) else value for value in values)
    return pa.array([hashlib.blake2b(v, digest_size=16).digest() for v in encoded], type=ID)


def text_hashes(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The ``text_hash`` column of a ``text`` column."""
    return ids(texts.cast(pa.large_binary()).to_pylist())


def utf8_bytes(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Length of each text in UTF-8 bytes, int64."""
    return pc.binary_length(texts.cast(pa.large_binary())).cast(pa.int64())


class Counts:
    """Rows and bytes by source (documents) and by source and action (ledgers).

    Counted while a table is written, so that the accounts need no second pass.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])

    def add(self, batch: pa.Table) -> None:
        names = set(batch.column_names)
        if {"source", "text"} <= names:
            plain = pa.table({"source": batch["source"], "before": utf8_bytes(batch["text"])})
            plain = plain.append_column("action", pa.array(["document"] * len(plain), pa.string()))
            plain = plain.append_column("after", plain["before"])
        elif {"source", "action", "bytes_before", "bytes_after"} <= names:
            plain = batch.select(["source", "action", "bytes_before", "bytes_after"])
            plain = plain.rename_columns(["source", "action", "before", "after"])
        else:
            return
        sums = plain.group_by(["source", "action"]).aggregate(
            [("before", "count"), ("before", "sum"), ("after", "sum")]
        )
        for row in sums.to_pylist():
            total = self.rows[(row["source"], row["action"])]
            total[0] += row["before_count"]
            total[1] += row["before_sum"] or 0
            total[2] += row["after_sum"] or 0

    def to_json(self) -> list[list[Any]]:
        return [[*key, *value] for key, value in sorted(self.rows.items())]


class TableWriter:
    """Writes one parquet table in row groups of ROW_GROUP rows, whatever batches it is given."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.described, self.rows, self.counts = path, schema, 0, Counts()
        self.schema = plain(schema)
        self._pending: list[pa.Table] = []
        self._waiting = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(path, self.schema, compression="zstd", store_schema=True)

    def write(self, batch: pa.RecordBatch | pa.Table | dict[str, Any]) -> None:
        """Append rows; a missing or unknown column is an error, types are cast safely."""
        if isinstance(batch, dict):
            missing = [name for name in self.schema.names if name not in batch]
            columns = [batch.get(name) for name in self.schema.names]
        else:
            missing = [name for name in self.schema.names if name not in batch.schema.names]
            columns = [batch.column(n) for n in self.schema.names if n not in missing]
        names = batch.keys() if isinstance(batch, dict) else batch.schema.names
        unknown = [name for name in names if name not in self.schema.names]
        if missing or unknown:
            raise HallmarkError(
                f"table {self.path.stem!r}: missing columns {missing}, unknown columns {unknown}"
            )
        arrays = [_as_array(c, f.type) for c, f in zip(columns, self.schema, strict=True)]
        table = pa.table(arrays, schema=self.schema)
        self._pending.append(table)
        self._waiting += len(table)
        if self._waiting >= ROW_GROUP:
            self._flush(last=False)

    def _flush(self, last: bool) -> None:
        table = pa.concat_tables(self._pending)
        start = 0
        while self._waiting - start >= ROW_GROUP or (last and start < self._waiting):
            # One contiguous chunk: page boundaries must not depend on the caller's batches.
            group = table.slice(start, ROW_GROUP).combine_chunks()
            self._writer.write_table(group, row_group_size=ROW_GROUP)
            self.counts.add(group)
            self.rows += len(group)
            start += len(group)
        rest = table.slice(start)
        self._pending, self._waiting = [rest], len(rest)

    def close(self) -> None:
        if self._writer.is_open:
            if self._waiting:
                self._flush(last=True)
            self._writer.close()

    def abandon(self) -> None:
        """Let go of the file after an error, which stays the one that is reported."""
        self._pending, self._waiting = [], 0
        with suppress(OSError, pa.ArrowException):
            self._writer.close()

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _as_array(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values if values.type == kind else values.cast(kind)
    return pa.array(values, type=kind)


def ledger_rows(
    action: str,
    reason: str | Sequence[str],
    doc_id: Any,
    source: Any,
    bytes_before: Any,
    bytes_after: Any | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Columns of ledger rows of one action; columns not given are null (bytes_after: zero)."""
    if action not in ACTIONS:
        raise ValueError(f"{action!r} is no ledger action; the actions are {', '.join(ACTIONS)}")
    n = len(doc_id)
    columns: dict[str, Any] = {name: [None] * n for name in LEDGER.names}
    columns |= {"doc_id": doc_id, "source": source, "action": [action] * n}
    columns["reason"] = [reason] * n if isinstance(reason, str) else reason
    columns["bytes_before"] = bytes_before
    columns["bytes_after"] = [0] * n if bytes_after is None else bytes_after
    for name, values in more.items():
        columns[name] = [values] * n if isinstance(values, int | float) else values
    return columns
