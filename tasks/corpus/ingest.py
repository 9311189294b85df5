"""Read raw sources into documents with ids, and account for every byte that was read.

Ingest assigns the ``doc_id`` that a document keeps through all stages: a hash of the source's name
and the document's declared key or, without a key, of the source's name, the text and its ordinal
among identical texts. Paths, row numbers and workers do not count, so the same corpus in another
container, folder or file order has the same ids. If several records have the same key, the one with
the smallest text hash is kept, among those that no rule of this stage removes.

Unreadable records go to ``quarantine`` with their location and raw bytes. These may contain
personal data in clear, so the table stays in the store and no report shows it.

Memory: one record and a run of MAX_RUN_BYTES per worker, then one partition with all records of its
keys; 118 bytes per record while ids are assigned (``reading/records.py``).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hallmark.tasks.contract import (
    DOCUMENTS,
    ID_TYPE,
    LEDGER,
    METADATA_TYPE,
    HallmarkError,
    ItemResult,
    Row,
    StageContext,
    TableWriters,
    accounts,
    build_ledger_columns,
    build_removal_ledger_columns,
    column,
    count_metadata_bytes,
    count_utf8_bytes,
    fill_document_columns,
    format_count,
    hash_texts,
    stage,
    table_schema,
    to_canonical_json,
)
from hallmark.tasks.corpus.reading.block_list import load_block_list
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.inputs import (
    IngestConfig,
    InputBatch,
    digest_sources_and_block_lists,
    explain_missing_file_field,
    list_input_batches,
    list_inputs_and_unread_files,
    list_reader_modules_and_data,
    read_input_records,
)
from hallmark.tasks.corpus.reading.metadata import extract_domains
from hallmark.tasks.corpus.reading.quotas import SourceQuotas, compute_quotas, mark_blocked_reasons
from hallmark.tasks.corpus.reading.readers import MISSING_COLUMN_ENDING, suggest_remedy
from hallmark.tasks.corpus.reading.records import (
    RECORDS_SCHEMA,
    IdRange,
    MaskedRun,
    SkippedInput,
    SortedRunWriter,
    find_later_copies,
    list_sorted_runs,
    split_into_id_ranges,
    write_copies_with_new_ids,
)
from hallmark.tasks.corpus.reading.sources import (
    CustomSource,
    Record,
    UnreadFile,
    describe_unread_files,
)

log = logging.getLogger("hallmark")

ORIGINS = table_schema(
    "File from which each document was read, and the document's location in that file.",
    column("doc_id", ID_TYPE, "id", "the document"),
    column("source", pa.string(), "label", "source name"),
    column(
        "file_name",
        pa.string(),
        "label",
        "file path relative to the source path, which is not recorded",
    ),
    column(
        "location",
        pa.string(),
        "label",
        "location of the document in the file, such as line 17 or row 17; numbering starts at 1",
    ),
    column(
        "raw_bytes",
        pa.int64(),
        "figure",
        "number of bytes that the document occupies in the file",
        unit="bytes",
    ),
    column(
        "is_truncated",
        pa.bool_(),
        "figure",
        "whether the end of the document is missing from the archive",
    ),
    column(
        "lost_characters",
        pa.int64(),
        "figure",
        "number of characters that are missing because their bytes are not valid in the "
        "document's encoding",
        unit="characters",
    ),
    column(
        "is_whole_page",
        pa.bool_(),
        "figure",
        "whether the document contains all text on a web page, including navigation, because no "
        "main content was found on the page",
    ),
    partition_by_doc_id=True,
)

QUARANTINE = table_schema(
    "Records that could not be read, with their locations and errors.",
    column("source", pa.string(), "label", "source name"),
    column("file_name", pa.string(), "label", "file path relative to the source path"),
    column(
        "location",
        pa.string(),
        "label",
        "location of the record in the file, such as line 17 or row 17; numbering starts at 1",
    ),
    column("error", pa.string(), "project text", "reason why the record could not be read"),
    column(
        "records", pa.int64(), "figure", "number of records that this row describes", unit="records"
    ),
    column("raw_bytes", pa.int64(), "figure", "total size of these records", unit="bytes"),
    column(
        "raw",
        pa.large_binary(),
        "personal",
        "the first 64 KiB of the record, unchanged; empty if the row describes a columnar file or "
        "row group that could not be opened",
    ),
)
MAX_QUARANTINED_BYTES = 64 << 10  # size limit of ``raw``

SKIPPED = table_schema(
    "Input that contains no documents but is not an error (records of other kinds, and bytes "
    "between records).",
    column("source", pa.string(), "label", "source name"),
    column("kind", pa.string(), "label", "kind of skipped input"),
    column("records", pa.int64(), "figure", "number of skipped records", unit="records"),
    column("raw_bytes", pa.int64(), "figure", "total size of the skipped input", unit="bytes"),
)

UNREAD_FILES = table_schema(
    "Unread files at the source paths, with the reasons why they were not read. Their bytes are "
    "not counted in any other table.",
    column("source", pa.string(), "label", "source name"),
    column(
        "file_name",
        pa.string(),
        "label",
        "path of the file or folder, relative to the source path",
    ),
    column("reason", pa.string(), "label", "reason why the file or folder was not read"),
    column(
        "files",
        pa.int64(),
        "figure",
        "number of files that this row describes; can be more than 1 for a hidden folder",
        unit="files",
    ),
    column(
        "raw_bytes",
        pa.int64(),
        "figure",
        "total size of the files; 0 for links and everything else that is not a regular file",
        unit="bytes",
    ),
)

FILE_FORMATS = table_schema(
    "Formats of the delimited files (CSV, TSV), as configured or detected, and any unusual "
    "encodings or compression formats.",
    column("source", pa.string(), "label", "source name"),
    column(
        "file_format",
        pa.string(),
        "label",
        "encoding, if it is UTF-16 or UTF-32; compression, if the file name does not imply it; "
        "and, for delimited files, delimiter, quote character, line endings and whether "
        "the first row contains the column names",
    ),
    column("files", pa.int64(), "figure", "number of files of this format", unit="files"),
    column(
        "file_name",
        pa.string(),
        "label",
        "name of the first file, in alphabetical order, that has this format",
    ),
)

SOURCES = table_schema(
    "Sources as described in the config, with the numbers of unread files, truncated documents, "
    "missing characters, and URLs, dates and metadata values that could not be parsed.",
    column("source", pa.string(), "label", "source name"),
    column("kind", pa.string(), "label", "its container format"),
    column(
        "licence",
        pa.string(),
        "label",
        "licence or terms of use for documents from the source",
    ),
    column(
        "origin",
        pa.string(),
        "label",
        "publisher of the source, and where it was obtained",
    ),
    column("collected_from", pa.string(), "label", "first day of the collection period"),
    column("collected_to", pa.string(), "label", "last day of the collection period"),
    column(
        "unreadable_values",
        pa.int64(),
        "figure",
        "number of URLs, dates and metadata values that could not be parsed. Such dates and "
        "metadata values are omitted. A URL without a host name has no domain and therefore does "
        "not match any blocked domain",
        unit="values",
    ),
    column(
        "unread_files",
        pa.int64(),
        "figure",
        "number of files at the source path that were not read",
        unit="files",
    ),
    column(
        "truncated_documents",
        pa.int64(),
        "figure",
        "number of documents whose end is missing from the archive",
        unit="documents",
    ),
    column(
        "lost_characters",
        pa.int64(),
        "figure",
        "number of characters that are missing because their bytes are not valid in their "
        "document's encoding",
        unit="characters",
    ),
    column(
        "whole_pages",
        pa.int64(),
        "figure",
        "number of web pages on which no main content was found; their documents contain all "
        "text on the page",
        unit="documents",
    ),
)

ERRORS = table_schema(
    "Number and size of the quarantined records by source and error, without file names.",
    column("source", pa.string(), "label", "source name"),
    column("error", pa.string(), "project text", "reason why the records could not be read"),
    column("records", pa.int64(), "figure", "number of quarantined records", unit="records"),
    column("raw_bytes", pa.int64(), "figure", "total size of these records", unit="bytes"),
)


# Reading -----------------------------------------------------------------------------------------


class InputBatchCounts(TypedDict):
    """Count what was read from the inputs of a batch."""

    rows: int
    """Number of records, including those that could not be read."""
    bytes: int
    """Decompressed bytes."""
    skipped: list[tuple[str, int, int]]
    """Kind, number of records and number of bytes of the input that belongs to no document."""
    unreadable_values: int
    """Number of URLs without a host, and of dates and metadata values that could not be parsed."""
    file_formats: list[tuple[str, str]]
    """Format and name of each file whose reader detects its format."""
    truncated_documents: int
    lost_characters: int
    whole_pages: int


def read_input_batch_into_sorted_runs(
    batch: InputBatch, config: IngestConfig, stream_folder: Path, out: TableWriters
) -> InputBatchCounts:
    """Read inputs into sorted runs of records and into quarantine.

    Args:
        stream_folder: Folder in which data read from streams is kept.
    """
    record_count = byte_count = unreadable_values = 0
    truncated_documents = lost_characters = whole_pages = 0
    skipped: list[tuple[str, int, int]] = []
    hostless_url_counts: list[int] = []  # by batch of records
    file_formats: list[tuple[str, str]] = []
    source = batch.inputs[0].source
    runs = SortedRunWriter(out)
    record_buffer = RecordBuffer(
        lambda records: hostless_url_counts.append(
            _add_records_to_runs(source, config, runs, records)
        )
    )
    quarantine_buffer = RecordBuffer(partial(_write_quarantine, source, out))
    for source_input in batch.inputs:
        meter = ReadCounts()
        stream_path = (
            stream_folder / f"{source_input.source_index}-{source_input.shard.shard_index}"
        )
        try:
            for record in read_input_records(source_input, config, meter, out.folder, stream_path):
                record.raw = record.raw[:MAX_QUARANTINED_BYTES]
                record.file_name = record.file_name or source_input.file_name
                unreadable_values += record.unreadable_labels
                truncated_documents += record.is_truncated
                lost_characters += record.lost_characters
                whole_pages += record.is_whole_page
                (quarantine_buffer if record.error else record_buffer).add(record)
        except (HallmarkError, OSError):
            raise
        except Exception as error:
            raise RuntimeError(f"{source_input}: {error}") from error
        record_count, byte_count = record_count + meter.record_count, byte_count + meter.byte_count
        skipped += [(kind, count, size) for kind, (count, size) in meter.skipped_by_kind.items()]
        if file_format := ", ".join(filter(None, (meter.storage_format, meter.file_format))):
            file_formats.append((file_format, source_input.file_name))
    record_buffer.flush()
    quarantine_buffer.flush()
    runs.write_pending_run()
    return {
        "rows": record_count,
        "bytes": byte_count,
        "skipped": skipped,
        "unreadable_values": unreadable_values + sum(hostless_url_counts),
        "file_formats": file_formats,
        "truncated_documents": truncated_documents,
        "lost_characters": lost_characters,
        "whole_pages": whole_pages,
    }


class RecordBuffer:
    """Collect records and write them in batches of 1024 records or 8 MiB."""

    def __init__(self, write_records: Callable[[list[Record]], None]) -> None:
        self.write_records, self.records, self.byte_count = write_records, list[Record](), 0

    def add(self, record: Record) -> None:
        self.records.append(record)
        self.byte_count += len(record.text) + len(record.raw)
        self.byte_count += sum(map(len, record.metadata.values())) if record.metadata else 0
        if len(self.records) >= 1024 or self.byte_count > 8 << 20:
            self.flush()

    def flush(self) -> None:
        if self.records:
            self.write_records(self.records)
        self.records, self.byte_count = [], 0


def _add_records_to_runs(
    source: str, config: IngestConfig, runs: SortedRunWriter, records: list[Record]
) -> int:
    """Add records to the runs, and return how many of their URLs have no host."""
    texts = pa.array([record.text for record in records], pa.large_string())
    is_short = pc.less(pc.binary_length(texts), config.min_document_bytes)
    is_blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    urls = pa.array([record.url for record in records], pa.string())
    metadata = pa.array([record.metadata for record in records], METADATA_TYPE)
    hosts, blocklist = extract_domains(urls), load_block_list(config.block)
    reasons = pc.if_else(is_blank, "empty", pc.if_else(is_short, "too short", ""))
    reasons = pc.if_else(blocklist.mark_blocked_domains(hosts), "blocked domain", reasons)
    if blocklist.is_source_blocked(source):
        reasons = pa.repeat("blocked source", len(records))
    columns = {
        "identity": [_hash_record_identity(source, record) for record in records],
        "has_key": [record.key is not None for record in records],
        "source": [source] * len(records),
        "reason": reasons,
        "is_removed": pc.not_equal(reasons, ""),
        "text": texts,
        "text_hash": hash_texts(texts),
        "url": urls,
        "domain": hosts,
        "date": [record.date for record in records],
        "metadata": metadata,
        "metadata_hash": [_hash_metadata(record) for record in records],
        "bytes": pc.add(count_utf8_bytes(texts), count_metadata_bytes(metadata)),
        "file_name": [record.file_name for record in records],
        "location": [record.location for record in records],
        "raw_bytes": [record.raw_bytes for record in records],
        "is_truncated": [record.is_truncated for record in records],
        "lost_characters": [record.lost_characters for record in records],
        "is_whole_page": [record.is_whole_page for record in records],
    }
    runs.add_records(pa.table(columns, schema=RECORDS_SCHEMA))
    return int(hosts.null_count - urls.null_count)


def _hash_record_identity(source: str, record: Record) -> bytes:
    kind, value = ("text", record.text) if record.key is None else ("key", record.key)
    return hashlib.blake2b(f"{source}\0{kind}\0{value}".encode(), digest_size=16).digest()


def _hash_metadata(record: Record) -> int:
    if record.url is None and record.date is None and record.metadata is None:
        return 0
    values = to_canonical_json([record.url, record.date, record.metadata])
    return int.from_bytes(hashlib.blake2b(values, digest_size=8).digest(), "big")


def _write_quarantine(source: str, out: TableWriters, records: list[Record]) -> None:
    out.get_table_writer("quarantine").write(
        {
            "source": [source] * len(records),
            "file_name": [record.file_name for record in records],
            "location": [record.location for record in records],
            "error": [record.error for record in records],
            "records": [record.record_count for record in records],
            "raw_bytes": [record.raw_bytes for record in records],
            "raw": [record.raw for record in records],
        }
    )


# Partitions --------------------------------------------------------------------------------------


#: Size of the kept documents in the input, by source.
RawBytesBySource = dict[str, int]


def write_documents_in_range(
    id_range: IdRange, quotas: SourceQuotas, out: TableWriters
) -> RawBytesBySource:
    """Write the documents of a range of ids, in order, with their origins and removals."""
    records, is_repeated_key = id_range.read_records()
    reasons = quotas.find_removal_reasons(records)
    records = records.set_column(records.schema.get_field_index("reason"), "reason", reasons)
    is_removed = pc.not_equal(reasons, "").to_numpy(zero_copy_only=False) & ~is_repeated_key
    records = records.append_column("doc_id", records["identity"])
    kept_records = records.filter(pa.array(~is_repeated_key & ~is_removed))
    document_columns = {
        name: kept_records[name] for name in DOCUMENTS.names if name in kept_records.column_names
    }
    out.get_table_writer("documents").write(
        fill_document_columns({**document_columns, "cluster": kept_records["doc_id"]})
    )
    out.get_table_writer("origins").write({name: kept_records[name] for name in ORIGINS.names})
    _write_removal_ledger(records.filter(pa.array(is_removed)), id_range.skipped, out)
    repeated_records = records.filter(pa.array(is_repeated_key))
    if len(repeated_records):
        raw_bytes = pc.binary_slice(
            repeated_records["text"].cast(pa.large_binary()), 0, MAX_QUARANTINED_BYTES
        )
        raw_bytes = pc.if_else(mark_blocked_reasons(repeated_records["reason"]), b"", raw_bytes)
        out.get_table_writer("quarantine").write(
            {
                **{
                    name: repeated_records[name]
                    for name in ("source", "file_name", "location", "raw_bytes")
                },
                "error": ["duplicate key"] * len(repeated_records),
                "records": [1] * len(repeated_records),
                "raw": raw_bytes,
            }
        )
    byte_sums = kept_records.group_by("source").aggregate([("raw_bytes", "sum")])
    return dict(
        zip(byte_sums["source"].to_pylist(), byte_sums["raw_bytes_sum"].to_pylist(), strict=True)
    )


def _write_removal_ledger(
    removed_records: pa.Table, skipped: Sequence[SkippedInput], out: TableWriters
) -> None:
    """Write the ledger rows of skipped input, which have no id, then those of removed records."""
    out.get_table_writer("ledger").write(
        build_ledger_columns(
            "removed_span",
            [skip.kind for skip in skipped],
            [None] * len(skipped),
            [skip.source for skip in skipped],
            [skip.byte_count for skip in skipped],
        )
    )
    ledger_columns = build_removal_ledger_columns(removed_records["reason"], removed_records) | {
        "bytes_before": removed_records["raw_bytes"]
    }
    ledger_columns["document_hash"] = pc.if_else(
        mark_blocked_reasons(removed_records["reason"]), None, ledger_columns["document_hash"]
    )
    out.get_table_writer("ledger").write(ledger_columns)


def sum_skipped_inputs(batch_results: list[tuple[InputBatch, ItemResult]]) -> list[SkippedInput]:
    """Sum the skipped input of all files, by source and kind."""
    sums: dict[tuple[str, str], list[int]] = {}
    for batch, result in batch_results:
        for kind, records, size in result.value["skipped"]:
            totals = sums.setdefault((batch.inputs[0].source, kind), [0, 0])
            totals[0], totals[1] = totals[0] + records, totals[1] + size
    return [SkippedInput(*key, *sums[key]) for key in sorted(sums)]


def build_table_from_tuples(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Build a table from rows whose values are in the order of the schema's columns."""
    columns = [list(values) for values in zip(*rows, strict=True)] or [[] for _ in schema]
    return pa.table(columns, schema=schema)


#: Formats of files that need no mention on the terminal.
USUAL_FORMATS = re.compile(
    r"""delimiter (','|tab), (quotes '"' doubled|no quotes), line endings (LF|CRLF), with header"""
)


def build_format_rows(batch_results: list[tuple[InputBatch, ItemResult]]) -> pa.Table:
    """Build the rows of FILE_FORMATS, sorted by source and format."""
    names: dict[tuple[str, str], list[str]] = {}
    for batch, result in batch_results:
        for file_format, file_name in result.value["file_formats"]:
            names.setdefault((batch.inputs[0].source, file_format), []).append(file_name)
    rows = [
        (source, file_format, len(file_names), min(file_names))
        for (source, file_format), file_names in sorted(names.items())
    ]
    return build_table_from_tuples(rows, FILE_FORMATS)


def build_unread_rows(unread_files: dict[str, list[UnreadFile]]) -> pa.Table:
    """Build the rows of UNREAD_FILES, sorted by source and name."""
    rows = [
        (source_name, *unread)
        for source_name, source_unread_files in sorted(unread_files.items())
        for unread in source_unread_files
    ]
    return build_table_from_tuples(rows, UNREAD_FILES)


def build_source_rows(
    config: IngestConfig,
    batch_results: list[tuple[InputBatch, ItemResult]],
    unread_files: dict[str, list[UnreadFile]],
) -> pa.Table:
    """Build the rows of SOURCES, sorted by name."""
    counts: Counter[tuple[str, str]] = Counter()
    count_names = ("unreadable_values", "truncated_documents", "lost_characters", "whole_pages")
    declared_sources = {}
    for batch, result in batch_results:
        source = config.sources[batch.inputs[0].source_index]
        source_name = batch.inputs[0].source
        declared_sources[source_name] = source.model_dump(mode="json")
        for count_name in count_names:
            counts[source_name, count_name] += result.value[count_name]
    rows = [
        declared_sources[name]
        | {
            "source": name,
            "unread_files": sum(unread.file_count for unread in unread_files.get(name, ())),
        }
        | {count_name: counts[name, count_name] for count_name in count_names}
        for name in sorted(declared_sources)
    ]
    return pa.Table.from_pylist(rows, schema=SOURCES)


# Accounts ----------------------------------------------------------------------------------------


def count_quarantine_errors(results: list[ItemResult]) -> pa.Table:
    """Build the rows of ERRORS by counting the written rows of quarantine."""
    column_names = ["source", "error", "records", "raw_bytes"]
    quarantine_tables = [
        pq.read_table(result.table_path("quarantine"), columns=column_names)
        for result in results
        if "quarantine" in result.parts
    ]
    empty = pa.schema([QUARANTINE.field(name) for name in column_names]).empty_table()
    quarantined_rows = pa.concat_tables([empty, *quarantine_tables], promote_options="permissive")
    sums = quarantined_rows.group_by(["source", "error"]).aggregate(
        [("records", "sum"), ("raw_bytes", "sum")]
    )
    return sums.rename_columns(ERRORS.names).sort_by(
        [("source", "ascending"), ("error", "ascending")]
    )


def build_account_rows(
    batch_results: list[tuple[InputBatch, ItemResult]],
    range_results: list[ItemResult],
    errors: pa.Table,
) -> list[Row]:
    """Build the rows of the ``accounts`` table for ingest.

    ``input`` comes from the readers' counters, the other terms from the written tables, so that the
    two are independent.
    """
    input_counts: accounts.SourceCounts = [
        [batch.inputs[0].source, "document", result.value["rows"], result.value["bytes"], 0, "0"]
        for batch, result in batch_results
    ]
    kept_counts: accounts.SourceCounts = []
    ledger_counts: accounts.SourceCounts = [
        [row["source"], "quarantined", row["records"], row["raw_bytes"], 0, "0"]
        for row in errors.to_pylist()
    ]
    for result in range_results:
        for source, action, row_count, *_ in result.parts["documents"]["counts"]:
            kept_counts.append([source, action, row_count, result.value.get(source, 0), 0, "0"])
        ledger_counts += result.parts["ledger"]["counts"]
    return accounts.compute_account_rows(input_counts, kept_counts, ledger_counts)


@stage(
    name="ingest",
    tables={
        "documents": DOCUMENTS,
        "origins": ORIGINS,
        "sources": SOURCES,
        "quarantine": QUARANTINE,
        "errors": ERRORS,
        "skipped": SKIPPED,
        "unread_files": UNREAD_FILES,
        "file_formats": FILE_FORMATS,
        "ledger": LEDGER,
        "accounts": accounts.ACCOUNTS,
    },
    extra_code=list_reader_modules_and_data(),
    libraries=["datasets", "idna", "publicsuffixlist", "python-stdnum"],
    external_digests=digest_sources_and_block_lists,
    determinism="exact",
    is_entry_point=True,
)
def ingest(config: IngestConfig, context: StageContext) -> None:
    """Read every source into sorted runs, then write the documents by ranges of ids."""
    listing = list_inputs_and_unread_files(config)
    unread_files = listing.unread_files | {
        source.name: source.list_unread_files()
        for source in config.sources
        if isinstance(source, CustomSource)
    }
    for source_name, source_unread_files in unread_files.items():
        if source_unread_files:
            log.warning(
                "source %r: %s; see the unread_files table of the ingest stage",
                source_name,
                describe_unread_files(source_unread_files),
            )
    input_batches = list_input_batches(config, listing.inputs)
    read_results = context.map_items(
        read_input_batch_into_sorted_runs, input_batches, config, context.work_area / "streams"
    )
    batch_results = list(zip(input_batches, read_results, strict=True))
    format_rows = build_format_rows(batch_results)
    for row in format_rows.to_pylist():
        if not USUAL_FORMATS.fullmatch(row["file_format"]):
            log.warning(
                "source %r: %s read with %s; the first is %r",
                row["source"],
                "1 file is" if row["files"] == 1 else f"{row['files']:,} files are",
                row["file_format"],
                row["file_name"],
            )
    runs = list_sorted_runs(read_results)
    copy_search = find_later_copies(runs)
    copy_runs = list_sorted_runs(
        context.map_items(write_copies_with_new_ids, copy_search.later_copies)
    )
    sources = {
        batch.inputs[0].source: config.sources[batch.inputs[0].source_index]
        for batch in input_batches
    }
    all_runs = [
        *map(MaskedRun, runs, copy_search.first_record_masks),
        *(MaskedRun(run, None) for run in copy_runs),
    ]
    quotas, kept_bytes = compute_quotas(all_runs, sources, config.block, context.purged_ids)
    skipped = sum_skipped_inputs(batch_results)
    id_ranges = split_into_id_ranges(all_runs, kept_bytes, config.partition_bytes, skipped)
    range_results = context.map_partitions(write_documents_in_range, id_ranges, quotas)
    errors = count_quarantine_errors([*read_results, *range_results])
    account_rows = build_account_rows(batch_results, range_results, errors)
    if not any(account["kept"] for account in account_rows):
        raise HallmarkError(_explain_empty_corpus(config, [*read_results, *range_results]))
    _warn_about_missing_columns(config, read_results)
    context.get_table_writer("errors").write(errors)
    context.get_table_writer("skipped").write(build_table_from_tuples(skipped, SKIPPED))
    context.get_table_writer("sources").write(
        build_source_rows(config, batch_results, unread_files)
    )
    context.get_table_writer("file_formats").write(format_rows)
    context.get_table_writer("unread_files").write(build_unread_rows(unread_files))
    context.get_table_writer("accounts").write(
        pa.Table.from_pylist(account_rows, schema=accounts.ACCOUNTS)
    )


def _warn_about_missing_columns(config: IngestConfig, results: list[ItemResult]) -> None:
    """Name a file of each source that lacks a column, with the columns that it has."""
    column_names = ["source", "file_name", "records", "error"]
    missing_by_source: dict[str, list[Row]] = {}
    for result in results:
        if "quarantine" in result.parts:
            rows = pq.read_table(
                result.table_path("quarantine"),
                columns=column_names,
                filters=pc.ends_with(pc.field("error"), MISSING_COLUMN_ENDING),
            )
            for row in rows.to_pylist():
                missing_by_source.setdefault(row["source"], []).append(row)
    for source, rows in sorted(missing_by_source.items()):
        file_name, error = rows[0]["file_name"], rows[0]["error"]
        log.warning(
            "source %r: %s in quarantine because of a missing column; in %r, %s%s; %s",
            source,
            _describe_quarantine(rows),
            file_name,
            error,
            explain_missing_file_field(config, source, file_name),
            suggest_remedy(error),
        )


def _describe_quarantine(rows: list[Row]) -> str:
    """Say how many records of how many files are in quarantine."""
    record_count = sum(row["records"] for row in rows)
    file_count = len({row["file_name"] for row in rows})
    files = format_count(file_count, "file")
    if record_count == file_count:
        return f"1 record in each of {files} is" if file_count > 1 else "1 record in 1 file is"
    return f"{format_count(record_count, 'record')} in {files} are"


def _explain_empty_corpus(config: IngestConfig, results: list[ItemResult]) -> str:
    column_names = ["source", "file_name", "error"]
    damaged_records = [
        row
        for result in results
        if "quarantine" in result.parts
        for row in pq.read_table(result.table_path("quarantine"), columns=column_names).to_pylist()
    ]
    if not damaged_records:
        return (
            "the sources contain no documents; correct the paths in ingest.sources or lower "
            "ingest.min_document_bytes"
        )
    first_damaged = damaged_records[0]
    return (
        f"no documents could be read ({format_count(len(damaged_records), 'damaged record')}); "
        f"the first damaged record is in source {first_damaged['source']!r}, file "
        f"{first_damaged['file_name']!r}: "
        f"{first_damaged['error']}"
        f"{explain_missing_file_field(config, first_damaged['source'], first_damaged['file_name'])}"
        f"; {suggest_remedy(first_damaged['error'])}"
    )
