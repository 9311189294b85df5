"""Ingest: raw sources to documents with ids, and an account of every byte that was read.

A ``doc_id`` is given here and carried ever after. It is a hash of the source's name and the
document's declared key, or, without one, of the source's name, the bytes of the document and
its ordinal among identical ones: not of paths, row numbers or workers. The same corpus in
another container, folder or order of files has the same ids. Of records with one key the one with
the smallest hash of its text stays, whichever came first, of those that are not removed here.

What cannot be read goes to ``quarantine`` with its place and its raw bytes, which may hold
personal data in clear: that table stays in the store and is shown by no report.

Memory: one record at a time and a run of RUN_BYTES in each worker, then a part, with all records of
its keys; 118 bytes a record where ids are given (``reading/records.py``).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.contract import (
    DOCUMENTS,
    ID,
    LEDGER,
    Done,
    HallmarkError,
    Tables,
    Work,
    accounts,
    as_documents,
    column,
    ledger_rows,
    removals,
    stage,
    table,
    text_hashes,
    utf8_bytes,
)
from tasks.corpus.reading.blocking import blocked
from tasks.corpus.reading.inputs import Batch, IngestConfig, batches, content, records_of
from tasks.corpus.reading.labels import domains
from tasks.corpus.reading.quotas import Quotas, is_blocked, settle
from tasks.corpus.reading.readers import Record, remedy
from tasks.corpus.reading.records import (
    RECORDS,
    Range,
    Runs,
    Skip,
    find_copies,
    name_copies,
    ranges,
    runs_of,
)
from tasks.corpus.reading.streams import Meter
from tasks.corpus.reading.town import TOWN

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
    column("records", pa.int64(), "figure", "records that the row stands for", unit="records"),
    column("raw_bytes", pa.int64(), "figure", "size of the record", unit="bytes"),
    column("raw", pa.large_binary(), "personal",
           "the first 64 KiB of it, as they came; none of a file or row group of columns that "
           "cannot be opened"),
)  # fmt: skip
QUARANTINED = 64 << 10  # bytes of a record that ``raw`` holds

SKIPPED = table(
    "What was read and is neither a document nor an error: records of other kinds, and what stands "
    "around records.",
    column("source", pa.string(), "label", "the source"),
    column("what", pa.string(), "label", "what it is"),
    column("records", pa.int64(), "figure", "records of the container", unit="records"),
    column("bytes", pa.int64(), "figure", "raw bytes of them", unit="bytes"),
)  # fmt: skip

SOURCES = table(
    "What the config says of each source, and what could not be read of its labels.",
    column("source", pa.string(), "label", "the source"),
    column("kind", pa.string(), "label", "its container"),
    column("licence", pa.string(), "label", "under which terms its texts may be used"),
    column("origin", pa.string(), "label", "who published it, and where it was taken from"),
    column("collected_from", pa.string(), "label", "first day of its collection"),
    column("collected_to", pa.string(), "label", "last day of its collection"),
    column("unread", pa.int64(), "figure", "URLs and dates that could not be read and are null",
           unit="values"),
)  # fmt: skip

ERRORS = table(
    "Why records could not be read, without the files they were in.",
    column("source", pa.string(), "label", "the source"),
    column("error", pa.string(), "project text", "why they could not be read"),
    column("records", pa.int64(), "figure", "records", unit="records"),
    column("bytes", pa.int64(), "figure", "raw bytes of them", unit="bytes"),
)


# Reading -----------------------------------------------------------------------------------------


def read_batch(batch: Batch, config: IngestConfig, kept: Path, out: Tables) -> dict[str, Any]:
    """Inputs to sorted runs of records, and to quarantine; what the meters counted. ``kept``: a
    folder for what came of streams."""
    rows = total = unread = 0
    skipped: list[tuple[str, int, int]] = []
    source = batch.inputs[0].source
    runs = Runs(out)
    good = Rows(partial(_take_records, source, config, runs))
    bad = Rows(partial(_write_quarantine, source, out))
    for part in batch.inputs:
        meter = Meter()
        stream = kept / f"{part.index}-{part.piece[0]}"
        try:
            for record in records_of(part, config, meter, out.folder, stream):
                record.raw = record.raw[:QUARANTINED]
                record.file = record.file or part.file
                unread += record.unread
                (bad if record.error else good).add(record)
        except (HallmarkError, OSError):
            raise
        except Exception as error:
            raise RuntimeError(f"{part}: {error}") from error
        rows, total = rows + meter.rows, total + meter.bytes
        skipped += [(what, n, size) for what, (n, size) in meter.skips.items()]
    good.flush()
    bad.flush()
    runs.flush()
    return {"rows": rows, "bytes": total, "skipped": skipped, "unread": unread}


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


def _take_records(source: str, config: IngestConfig, runs: Runs, records: list[Record]) -> None:
    texts = pa.array([r.text for r in records], pa.large_string())
    short = pc.less(pc.binary_length(texts), config.min_document_bytes)
    blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    urls = pa.array([r.url for r in records], pa.string())
    hosts, block = domains(urls), blocked(config.block)
    reasons = pc.if_else(blank, "empty", pc.if_else(short, "too short", ""))
    reasons = pc.if_else(block.hosts(hosts), "blocked domain", reasons)
    if block.source(source):
        reasons = pa.repeat("blocked source", len(records))
    columns = {
        "identity": [_identity(source, r) for r in records],
        "keyed": [r.key is not None for r in records],
        "source": [source] * len(records),
        "reason": reasons,
        "gone": pc.not_equal(reasons, ""),
        "text": texts,
        "text_hash": text_hashes(texts),
        "url": urls,
        "domain": hosts,
        "date": [r.date for r in records],
        "labels": [_labels(r) for r in records],
        "bytes": utf8_bytes(texts),
        "file": [r.file for r in records],
        "place": [r.place for r in records],
        "raw_bytes": [r.raw_bytes for r in records],
    }
    runs.add(pa.table(columns, schema=RECORDS))


def _identity(source: str, record: Record) -> bytes:
    kind, value = ("text", record.text) if record.key is None else ("key", record.key)
    return hashlib.blake2b(f"{source}\0{kind}\0{value}".encode(), digest_size=16).digest()


def _labels(record: Record) -> int:
    if record.url is None and record.date is None:
        return 0
    known = f"{record.url}\0{record.date}".encode()
    return int.from_bytes(hashlib.blake2b(known, digest_size=8).digest(), "big")


def _write_quarantine(source: str, out: Tables, records: list[Record]) -> None:
    out.table("quarantine").write(
        {
            "source": [source] * len(records),
            "file": [r.file for r in records],
            "place": [r.place for r in records],
            "error": [r.error for r in records],
            "records": [r.records for r in records],
            "raw_bytes": [r.raw_bytes for r in records],
            "raw": [r.raw for r in records],
        }
    )


# Parts -------------------------------------------------------------------------------------------


def write_part(part: Range, quotas: Quotas, out: Tables) -> dict[str, int]:
    """The documents of a range in the order of their ids, and where each came from.

    Returns the raw bytes of what was kept, by source.
    """
    rows, again = part.read()
    reasons = quotas.reasons(rows)
    rows = rows.set_column(rows.schema.get_field_index("reason"), "reason", reasons)
    removed = pc.not_equal(reasons, "").to_numpy(zero_copy_only=False) & ~again
    rows = rows.append_column("doc_id", rows["identity"])
    kept = rows.filter(pa.array(~again & ~removed))
    known = {name: kept[name] for name in DOCUMENTS.names if name in kept.column_names}
    out.table("documents").write(as_documents({**known, "cluster": kept["doc_id"]}))
    out.table("origins").write({name: kept[name] for name in ORIGINS.names})
    _write_ledger(rows.filter(pa.array(removed)), part.skipped, out)
    twice = rows.filter(pa.array(again))
    if len(twice):
        raw = pc.binary_slice(twice["text"].cast(pa.large_binary()), 0, QUARANTINED)
        raw = pc.if_else(is_blocked(twice["reason"]), b"", raw)
        out.table("quarantine").write(
            {
                **{name: twice[name] for name in ("source", "file", "place", "raw_bytes")},
                "error": ["the key was there before"] * len(twice),
                "records": [1] * len(twice),
                "raw": raw,
            }
        )
    sums = kept.group_by("source").aggregate([("raw_bytes", "sum")])
    return dict(zip(sums["source"].to_pylist(), sums["raw_bytes_sum"].to_pylist(), strict=True))


def _write_ledger(gone: pa.Table, skipped: Sequence[Skip], out: Tables) -> None:
    """First what belongs to no document, one row a source and kind: it has no id to be sorted
    by."""
    out.table("ledger").write(
        ledger_rows(
            "removed_span",
            [skip.what for skip in skipped],
            [None] * len(skipped),
            [skip.source for skip in skipped],
            [skip.size for skip in skipped],
        )
    )
    rows = removals(gone["reason"], gone) | {"bytes_before": gone["raw_bytes"]}
    rows["identity"] = pc.if_else(is_blocked(gone["reason"]), None, rows["identity"])
    out.table("ledger").write(rows)


def skips(read: list[tuple[Batch, Done]]) -> list[Skip]:
    """What belongs to no document, by source and kind: in however many files it stood."""
    sums: dict[tuple[str, str], list[int]] = {}
    for batch, done in read:
        for what, records, size in done.value["skipped"]:
            found = sums.setdefault((batch.inputs[0].source, what), [0, 0])
            found[0], found[1] = found[0] + records, found[1] + size
    return [Skip(*key, *sums[key]) for key in sorted(sums)]


def source_rows(config: IngestConfig, read: list[tuple[Batch, Done]]) -> pa.Table:
    """The rows of SOURCES, by name."""
    unread: Counter[str] = Counter()
    declared = {}
    for batch, done in read:
        source = config.sources[batch.inputs[0].index]
        declared[batch.inputs[0].source] = source.model_dump(mode="json")
        unread[batch.inputs[0].source] += done.value["unread"]
    rows = [declared[name] | {"source": name, "unread": unread[name]} for name in sorted(declared)]
    return pa.Table.from_pylist(rows, schema=SOURCES)


# Accounts ----------------------------------------------------------------------------------------


def errors_in(results: list[Done]) -> pa.Table:
    """The rows of ERRORS, counted from quarantine as it was written."""
    names = ["source", "error", "records", "raw_bytes"]
    read = [
        pq.read_table(done.path("quarantine"), columns=names)
        for done in results
        if "quarantine" in done.parts
    ]
    empty = pa.schema([QUARANTINE.field(name) for name in names]).empty_table()
    counts = pa.concat_tables([empty, *read], promote_options="permissive")
    sums = counts.group_by(["source", "error"]).aggregate(
        [("records", "sum"), ("raw_bytes", "sum")]
    )
    return sums.rename_columns(ERRORS.names).sort_by(
        [("source", "ascending"), ("error", "ascending")]
    )


def books(
    read: list[tuple[Batch, Done]], written: list[Done], errors: pa.Table
) -> list[dict[str, Any]]:
    """``in`` from the readers' meters, the other terms from the tables as they were written."""
    entered: accounts.Counts = [
        [batch.inputs[0].source, "document", done.value["rows"], done.value["bytes"], 0, "0"]
        for batch, done in read
    ]
    kept: accounts.Counts = []
    ledger: accounts.Counts = [
        [row["source"], "quarantined", row["records"], row["bytes"], 0, "0"]
        for row in errors.to_pylist()
    ]
    for done in written:
        for source, action, rows, *_ in done.parts["documents"]["counts"]:
            kept.append([source, action, rows, done.value.get(source, 0), 0, "0"])
        ledger += done.parts["ledger"]["counts"]
    return accounts.balance(entered, kept, ledger)


@stage(
    tables={
        "documents": DOCUMENTS,
        "origins": ORIGINS,
        "sources": SOURCES,
        "quarantine": QUARANTINE,
        "errors": ERRORS,
        "skipped": SKIPPED,
        "ledger": LEDGER,
        "accounts": accounts.ACCOUNTS,
    },
    code=TOWN,
    libraries=["datasets", "python-stdnum"],
    external=content,
    determinism="exact",
    admits=True,
)
def ingest(config: IngestConfig, work: Work) -> None:
    """Read every source to sorted runs, then write the documents, a range of ids at a time."""
    todo = batches(config)
    results = work.map(read_batch, todo, config, work.area / "streams")
    read = list(zip(todo, results, strict=True))
    runs = runs_of(results)
    copies, own = find_copies(runs)
    named = runs_of(work.map(name_copies, copies))
    sources = {batch.inputs[0].source: config.sources[batch.inputs[0].index] for batch in todo}
    known = [*zip(runs, own, strict=True), *((run, None) for run in named)]
    quotas, kept_bytes = settle(known, sources, config.block, work.denied)
    skipped = skips(read)
    cut = ranges(known, kept_bytes, config.part_bytes, skipped)
    written = work.parts(write_part, cut, quotas)
    errors = errors_in([*results, *written])
    found = books(read, written, errors)
    if not any(book["kept"] for book in found):
        raise HallmarkError(_nothing([*results, *written]))
    work.table("errors").write(errors)
    rows = [list(column) for column in zip(*skipped, strict=True)] or [[]] * len(SKIPPED)
    work.table("skipped").write(pa.table(rows, schema=SKIPPED))
    work.table("sources").write(source_rows(config, read))
    work.table("accounts").write(pa.Table.from_pylist(found, schema=accounts.ACCOUNTS))


def _nothing(results: list[Done]) -> str:
    names = ["source", "file", "error"]
    damaged = [
        row
        for done in results
        if "quarantine" in done.parts
        for row in pq.read_table(done.path("quarantine"), columns=names).to_pylist()
    ]
    if not damaged:
        return "the sources hold no document; correct their paths or lower min_document_bytes"
    first = damaged[0]
    return (
        f"no document could be read, {len(damaged)} records are damaged; the first: source "
        f"{first['source']!r}, {first['file']!r}: {first['error']}; {remedy(first['error'])}"
    )
