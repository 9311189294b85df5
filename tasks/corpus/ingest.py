"""Ingest: raw sources to documents with ids, and an account of every byte that was read.

A ``doc_id`` is given here and carried ever after. It is a hash of the source's name and the
document's declared key, or, without one, of the source's name, the bytes of the document and
its ordinal among identical ones: not of paths, row numbers or shards. The same corpus in
another container, folder or order of files has the same ids.

What cannot be read goes to ``quarantine`` with its place and its raw bytes, which may hold
personal data in clear: that table stays in the store and is shown by no report.

Memory: one record at a time in each worker; the merge holds an index of 16 bytes a document,
and 56 while it sorts it.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from tasks.contract import (
    DOCUMENTS,
    ID,
    LEDGER,
    HallmarkError,
    Part,
    StageConfig,
    Tables,
    Work,
    accounts,
    canonical,
    column,
    ledger_rows,
    sha256,
    stage,
    table,
    text_hashes,
)
from tasks.corpus.reading.columns import (
    DatasetsSource,
    ParquetSource,
    commit_of,
    read_dataset,
    read_parquet,
)
from tasks.corpus.reading.documentation import (
    DocumentationSource,
    package_digest,
    package_files,
    read_package,
)
from tasks.corpus.reading.readers import (
    CsvSource,
    JsonlSource,
    Record,
    TextSource,
    read_csv,
    read_jsonl,
    read_text,
)
from tasks.corpus.reading.sources import PATTERNS, FileSource, digest_of, files
from tasks.corpus.reading.streams import Meter

AnySource = Annotated[
    JsonlSource | ParquetSource | CsvSource | TextSource | DatasetsSource | DocumentationSource,
    Field(discriminator="kind"),
]


class IngestConfig(StageConfig):
    """Where the corpus comes from."""

    sources: list[AnySource] = Field(min_length=1)
    min_document_bytes: int = Field(
        1, ge=1, description="documents with fewer UTF-8 bytes of text are removed"
    )
    max_document_bytes: int = Field(
        16 << 20, ge=1, le=1 << 30, description="longer records are quarantined, never held whole"
    )

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = Counter(source.name for source in self.sources)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ValueError(f"two sources are named {twice[0]!r}; every source needs its own name")
        return self


ORIGINS = table(
    "Where each document came from.",
    column("doc_id", ID, "id", "the document"),
    column("source", pa.string(), "label", "its source"),
    column("file", pa.string(), "label",
           "the file, below the source's path; path and machine stay out of it"),
    column("place", pa.string(), "label", "where in the file: line 17, row 17, counted from 1"),
    column("raw_bytes", pa.int64(), "figure", "what was read for it", unit="bytes"),
    cut=True,
)  # fmt: skip

QUARANTINE = table(
    "What could not be read, with its place and its error.",
    column("source", pa.string(), "label", "the source"),
    column("file", pa.string(), "label", "the file, below the source's path"),
    column("place", pa.string(), "label", "where in the file, counted from 1"),
    column("error", pa.string(), "project text", "why it could not be read"),
    column("raw_bytes", pa.int64(), "figure", "size of the record", unit="bytes"),
    column("raw", pa.large_binary(), "personal",
           "the first 64 KiB of it, as they came; none of a file or row group of columns that "
           "cannot be opened"),
)  # fmt: skip
QUARANTINED = 64 << 10  # bytes of a record that ``raw`` holds

#: What a shard hands to the merge: documents that wait for their ids.
RECORDS = pa.schema(
    [
        ("identity", ID),  # hash of source and key, or of source and text
        ("keyed", pa.bool_()),
        ("reason", pa.string()),  # why it is removed; "" if it is kept
        ("text", pa.large_string()),
        ("text_hash", ID),
        ("file", pa.string()),
        ("place", pa.string()),
        ("raw_bytes", pa.int64()),
    ]
)


# What there is to read ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """One file, package or data set: the unit of sharding."""

    source: str  # as the tables name it
    index: int  # of its source in the config
    item: str  # path or package
    file: str  # as the tables name it

    def __str__(self) -> str:
        return f"source {self.source}, {self.file}"


def inputs(config: IngestConfig) -> list[Input]:
    """Everything that will be read, in order. Raises UsageError for what is not there."""
    found: list[Input] = []
    for index, source in enumerate(config.sources):
        if isinstance(source, DocumentationSource):
            for package in source.packages:
                package_files(package)
                found.append(Input(f"{source.name}/{package}", index, package, package))
        elif isinstance(source, DatasetsSource):
            found.append(Input(source.name, index, source.path, source.split))
        else:
            paths = files(source.name, source.path, PATTERNS[source.kind])
            found += [Input(source.name, index, str(p), name) for name, p in paths.items()]
    return found


def content(config: IngestConfig, secret_id: str) -> dict[str, str]:
    """Digests of what the sources hold, for the fingerprint; paths do not enter them."""
    digests: dict[str, dict[str, str]] = defaultdict(dict)
    for part in inputs(config):
        source = config.sources[part.index]
        if isinstance(source, DocumentationSource):
            digest = package_digest(part.item)
        elif isinstance(source, FileSource):
            digest = digest_of(source.name, Path(part.item))
        elif source.local:
            paths = files(source.name, source.path, ("",))
            found = {name: digest_of(source.name, p) for name, p in paths.items()}
            digest = sha256(canonical(found))
        else:
            digest = f"commit {commit_of(source)}"
        digests[part.source][part.file] = digest
    return {name: sha256(canonical(found)) for name, found in sorted(digests.items())}


# One shard ---------------------------------------------------------------------------------------


def records_of(part: Input, config: IngestConfig, meter: Meter) -> Iterator[Record]:
    """The records of one input through the reader of its kind."""
    source, limit = config.sources[part.index], config.max_document_bytes
    path = Path(part.item)
    match source:
        case JsonlSource():
            return read_jsonl(path, source, limit, meter)
        case ParquetSource():
            return read_parquet(path, source, limit, meter)
        case CsvSource():
            return read_csv(path, source, limit, meter)
        case TextSource():
            return read_text(path, source, limit, meter)
        case DatasetsSource():
            return read_dataset(source, limit, meter)
        case DocumentationSource():
            return read_package(part.item, limit, meter)


def read_input(part: Input, config: IngestConfig, out: Tables) -> dict[str, int]:
    """Shard function: one input to records and quarantine; what the meter counted."""
    meter = Meter()
    good = Rows(partial(_write_records, part, config, out))
    bad = Rows(partial(_write_quarantine, part, out))
    for record in records_of(part, config, meter):
        record.raw = record.raw[:QUARANTINED]
        (bad if record.error else good).add(record)
    good.flush()
    bad.flush()
    return {"rows": meter.rows, "bytes": meter.bytes, "skipped": meter.skipped}


class Rows:
    """Collects records until they are worth a batch."""

    def __init__(self, write: Callable[[list[Record]], None]) -> None:
        self.write, self.held, self.size = write, list[Record](), 0

    def add(self, record: Record) -> None:
        self.held.append(record)
        self.size += len(record.text) + len(record.raw)
        if len(self.held) >= 1024 or self.size > 8 << 20:
            self.flush()

    def flush(self) -> None:
        if self.held:
            self.write(self.held)
        self.held, self.size = [], 0


def _write_records(part: Input, config: IngestConfig, out: Tables, records: list[Record]) -> None:
    texts = pa.array([r.text for r in records], pa.large_string())
    short = pc.less(pc.binary_length(texts), config.min_document_bytes)
    blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    out.table("records").write(
        {
            "identity": [_identity(part.source, r) for r in records],
            "keyed": [r.key is not None for r in records],
            "reason": pc.if_else(blank, "empty", pc.if_else(short, "too short", "")),
            "text": texts,
            "text_hash": text_hashes(texts),
            "file": [r.file or part.file for r in records],
            "place": [r.place for r in records],
            "raw_bytes": [r.raw_bytes for r in records],
        }
    )


def _identity(source: str, record: Record) -> bytes:
    kind, value = ("text", record.text) if record.key is None else ("key", record.key)
    return hashlib.blake2b(f"{source}\0{kind}\0{value}".encode(), digest_size=16).digest()


def _write_quarantine(part: Input, out: Tables, records: list[Record]) -> None:
    out.table("quarantine").write(
        {
            "source": [part.source] * len(records),
            "file": [r.file or part.file for r in records],
            "place": [r.place for r in records],
            "error": [r.error for r in records],
            "raw_bytes": [r.raw_bytes for r in records],
            "raw": [r.raw for r in records],
        }
    )


# The merge ---------------------------------------------------------------------------------------


def ordinals(identities: np.ndarray) -> np.ndarray:
    """How many times each identity stood before in the list: 0 for the first of its kind.

    identities: (n, 2) uint64, the two halves of 16 bytes.
    """
    order = np.lexsort((identities[:, 1], identities[:, 0]))  # stable: ties in list order
    ordered = identities[order]
    first = np.ones(len(order), bool)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    position = np.arange(len(order))
    counts = np.empty(len(order), np.int64)
    counts[order] = position - np.maximum.accumulate(np.where(first, position, 0))
    return counts


def _halves(identities: pa.Array) -> np.ndarray:
    buffer = b"".join(identities.to_pylist())
    return np.frombuffer(buffer, np.uint64).reshape(-1, 2)


def _doc_ids(identities: pa.Array, numbers: np.ndarray) -> pa.Array:
    """The identity itself, or of later copies a hash of it and their ordinal."""
    values = identities.to_pylist()
    for index in np.flatnonzero(numbers):
        seed = values[index] + int(numbers[index]).to_bytes(8, "big")
        values[index] = hashlib.blake2b(seed, digest_size=16).digest()
    return pa.array(values, ID)


def _merge(source: str, batch: pa.RecordBatch, numbers: np.ndarray, work: Work) -> None:
    """Give ids to a batch of one part's records and send every row to its table."""
    batch = batch.append_column("source", pa.array([source] * len(batch), pa.string()))
    batch = batch.append_column("doc_id", _doc_ids(batch["identity"], numbers))
    twice = pc.and_(batch["keyed"], pa.array(numbers > 0))
    removed = pc.and_(pc.not_equal(batch["reason"], ""), pc.invert(twice))
    kept = batch.filter(pc.invert(pc.or_(twice, removed)))
    out = batch.filter(removed)
    twice = batch.filter(twice)
    work.table("documents").write(
        {**{n: kept[n] for n in ("doc_id", "source", "text", "text_hash")},
         "cluster": kept["doc_id"]}
    )  # fmt: skip
    work.table("origins").write({name: kept[name] for name in ORIGINS.names})
    work.table("ledger").write(
        ledger_rows("removed", out["reason"], out["doc_id"], out["source"], out["raw_bytes"])
    )
    work.table("quarantine").write(
        {
            **{name: twice[name] for name in ("source", "file", "place", "raw_bytes")},
            "error": ["the key was there before"] * len(twice),
            "raw": pc.binary_slice(twice["text"].cast(pa.binary()), 0, QUARANTINED),
        }
    )


def _skipped(parts: list[Input], results: list[Part], work: Work) -> None:
    """Bytes that belong to no record: one ledger row a file, without a document."""
    rows = [(p, r.value["skipped"]) for p, r in zip(parts, results, strict=True)]
    rows = [(part, size) for part, size in rows if size]
    work.table("ledger").write(
        ledger_rows(
            "removed_span",
            "byte order mark, header or blank lines",
            [None] * len(rows),
            [part.source for part, _ in rows],
            [size for _, size in rows],
        )
    )


def _accounts(parts: list[Input], results: list[Part], work: Work) -> list[dict[str, Any]]:
    """``in`` from the readers' meters, the other terms from the tables as they were written."""
    entered = [[p.source, "", r.value["rows"], r.value["bytes"], 0]
               for p, r in zip(parts, results, strict=True)]  # fmt: skip
    work.table("ledger").close()
    ledger = work.table("ledger").counts.to_json() + _sums(work, "quarantine", "quarantined")
    return accounts.balance(entered, _sums(work, "origins", "document"), ledger)


def _sums(work: Work, table: str, action: str) -> accounts.Counts:
    """Rows and raw bytes of a written table, by source."""
    work.table(table).close()
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    with pq.ParquetFile(work.table(table).path) as file:
        for batch in file.iter_batches(columns=["source", "raw_bytes"]):
            grouped = pa.table(batch).group_by("source")
            for row in grouped.aggregate(
                [("raw_bytes", "count"), ("raw_bytes", "sum")]
            ).to_pylist():
                sums[row["source"]][0] += row["raw_bytes_count"]
                sums[row["source"]][1] += row["raw_bytes_sum"]
    return [[source, action, rows, size, 0] for source, (rows, size) in sums.items()]


@stage(
    tables={
        "documents": DOCUMENTS,
        "origins": ORIGINS,
        "quarantine": QUARANTINE,
        "ledger": LEDGER,
        "accounts": accounts.ACCOUNTS,
    },
    libraries=["datasets"],
    external=content,
    determinism="exact",
)
def ingest(config: IngestConfig, work: Work) -> None:
    """Read every source; one input (file, package, data set) a shard."""
    parts = inputs(config)
    results = work.map(read_input, parts, config, schemas={"records": RECORDS})
    work.merge(results, "quarantine")
    columns = [
        batch["identity"] for part in results for batch in part.batches("records", ["identity"])
    ]
    numbers = ordinals(np.concatenate([np.empty((0, 2), np.uint64), *map(_halves, columns)]))
    start = 0
    for part, result in zip(parts, results, strict=True):
        for batch in result.batches("records"):
            _merge(part.source, batch, numbers[start : start + len(batch)], work)
            start += len(batch)
    _skipped(parts, results, work)
    books = _accounts(parts, results, work)
    if not any(book["kept"] for book in books):
        raise HallmarkError(_nothing(work))
    work.table("accounts").write(pa.Table.from_pylist(books, schema=accounts.ACCOUNTS))


def _nothing(work: Work) -> str:
    quarantine = pq.read_table(work.table("quarantine").path, columns=["source", "file", "error"])
    if not len(quarantine):
        return "the sources hold no document; correct their paths or lower min_document_bytes"
    first = quarantine.slice(0, 1).to_pylist()[0]
    return (
        f"no document could be read, {len(quarantine)} records are damaged; the first: source "
        f"{first['source']!r}, {first['file']!r}: {first['error']}; correct its kind and its fields"
    )
