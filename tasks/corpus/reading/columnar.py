"""Read parquet files, and turn tables of any columnar reader into records.

In memory are a page, a dictionary and a batch of rows. A batch takes about ``MAX_DECODED_BYTES`` if
texts have similar sizes. If they do not, it takes up to ``MAX_BATCH_ROWS`` of the longest texts, or
``MAX_DICTIONARY_BYTES`` of dictionary-encoded texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hallmark.tasks.contract import read_declared_roots
from hallmark.tasks.corpus.reading.byte_streams import BLOCK_BYTES, ReadCounts, check_unchanged
from hallmark.tasks.corpus.reading.readers import (
    TOO_LONG,
    decode_record_text,
    fill_record_from_fields,
    find_missing_column_error,
    shorten_repr,
)
from hallmark.tasks.corpus.reading.sources import FileSource, Record, RecordFields

# bytes of values decoded at a time (approximate) and copied to Python at a time (at most)
MAX_DECODED_BYTES = 16 << 20
MAX_BATCH_ROWS = 64  # rows decoded at a time; more are hardly faster
BATCHES_PER_TABLE = 8  # batches converted to records together, up to MAX_DECODED_BYTES
# bytes that a batch may take if every row holds all values of a dictionary
MAX_DICTIONARY_BYTES = 256 << 20

#: Replaces a value that Python cannot represent or that a record cannot use.
UNREADABLE: Any = object()

#: Encodings whose decoded values take no more bytes than their pages.
_PLAIN_ENCODINGS = {
    "PLAIN",
    "RLE",
    "BIT_PACKED",
    "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY",
    "BYTE_STREAM_SPLIT",
}
_DICTIONARY_ENCODINGS = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}


class ParquetSource(FileSource, RecordFields):
    """Configure parquet files with a text column."""

    kind: Literal["parquet"]
    suffixes = (".parquet",)

    def read_file(self, path: Path, max_bytes: int, counts: ReadCounts) -> Iterator[Record]:
        return read_parquet(path, self, max_bytes, counts)


def read_parquet(
    path: Path, source: ParquetSource, max_bytes: int, counts: ReadCounts
) -> Iterator[Record]:
    """Yield the rows of a parquet file; ``raw_bytes`` counts the bytes of the text values.

    The rows of a row group that cannot be read become one error that covers all of them. Its bytes
    are the file's size times the share of these rows, because a damaged group may state a false
    size. Page checksums are verified if the writer stored them.
    """
    with _open_for_arrow(path, counts) as handle:
        size = handle.size()
        yield from _read_parquet_records(handle, source, max_bytes, counts)
    check_unchanged(path, size, path.stat().st_size)


@contextmanager
def _open_for_arrow(path: Path, counts: ReadCounts) -> Iterator[pa.NativeFile]:
    """Open a file for Arrow, which reads faster from a file that it opens itself."""
    if read_declared_roots() is None:
        with pa.OSFile(str(path)) as handle:
            yield handle
    else:
        with counts.open_file(path) as file, pa.PythonFile(file, "r") as handle:
            yield handle


def _read_parquet_records(
    handle: pa.NativeFile, source: ParquetSource, max_bytes: int, counts: ReadCounts
) -> Iterator[Record]:
    error = "the file is empty" if handle.size() == 0 else ""
    if not error:
        try:
            file = pq.ParquetFile(handle, buffer_size=BLOCK_BYTES, page_checksum_verification=True)
            column_names = [field.name for field in file.schema_arrow]
            error = find_missing_column_error(source, column_names) or find_text_column_error(
                source, file.schema_arrow
            )
        except MemoryError:  # also an ArrowException, but not the file's fault
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError):  # the last: column names
            error = "not a complete parquet file"
    if error:
        counts.record_count += 1
        counts.byte_count += handle.size()
        yield Record("whole file", handle.size(), error=error)
        return
    row = 0
    for row_group in range(file.num_row_groups):
        end_row = row + file.metadata.row_group(row_group).num_rows
        for table in _read_readable_rows_of_group(file, handle, source, row_group):
            yield from table_to_records(table, source, row, max_bytes, counts)
            row += len(table)
        if row < end_row:
            size = handle.size() * (end_row - row) // max(file.metadata.num_rows, end_row)
            counts.record_count += end_row - row
            counts.byte_count += size
            location = f"rows {row + 1} to {end_row}"
            yield Record(location, size, error="a damaged row group", record_count=end_row - row)
        row = end_row


def _read_readable_rows_of_group(
    file: pq.ParquetFile, handle: pa.NativeFile, source: ParquetSource, row_group: int
) -> Iterator[pa.Table]:
    """Yield the readable rows of a row group."""
    batches: list[pa.RecordBatch] = []
    for batch in _decode_row_group(file, handle, source, row_group):
        batches.append(batch)
        if (
            sum(pending_batch.nbytes for pending_batch in batches) >= MAX_DECODED_BYTES
            or len(batches) == BATCHES_PER_TABLE
        ):
            yield pa.Table.from_batches(batches).combine_chunks()
            batches = []
    if batches:
        yield pa.Table.from_batches(batches).combine_chunks()


def _decode_row_group(
    file: pq.ParquetFile, handle: pa.NativeFile, source: ParquetSource, row_group: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the usable columns of a row group until the first read error."""
    column_names = [
        name
        for name in source.list_columns()
        if _is_readable_metadata_type(file.schema_arrow.field(name).type)
    ]
    # Threads cost more time than they save.
    iterate_batches = partial(
        file.iter_batches, row_groups=[row_group], columns=column_names, use_threads=False
    )
    try:
        # Read one row first. For a column with contradictory metadata this raises an error,
        # while asking for the dictionary's size would end the process.
        next(iterate_batches(1), None)
        yield from iterate_batches(_choose_batch_rows(file, row_group, column_names, handle))
    except MemoryError:
        raise
    except (pa.ArrowException, OSError):
        return


def _choose_batch_rows(
    file: pq.ParquetFile, row_group_index: int, column_names: list[str], handle: pa.NativeFile
) -> int:
    """Choose how many rows of a row group to decode at a time.

    The number follows from the average size of a row, and from the case that every row holds all
    values of a dictionary. Call it only for columns that could be opened.
    """
    data_bytes = dictionary_bytes = 1
    row_group = file.metadata.row_group(row_group_index)
    for column_index in range(row_group.num_columns):
        column_path = file.schema.column(column_index).path
        if column_path in column_names:
            column = row_group.column(column_index)
            data_bytes += max(0, column.total_uncompressed_size)
            if not set(column.encodings) <= _PLAIN_ENCODINGS | _DICTIONARY_ENCODINGS:
                return 1
            if (
                column.physical_type == "BYTE_ARRAY"
                and set(column.encodings) & _DICTIONARY_ENCODINGS
            ):
                dictionary_bytes += _read_dictionary_size(column, handle)
        elif column_path.startswith(tuple(f"{name}." for name in column_names)):
            return 1  # Arrow takes this column for a part of the other one
    batch_rows: int = max(
        1,
        min(
            MAX_BATCH_ROWS,
            MAX_DECODED_BYTES * row_group.num_rows // data_bytes,
            MAX_DICTIONARY_BYTES // dictionary_bytes,
        ),
    )
    return batch_rows


#: Start of the header of a dictionary page in Thrift's compact protocol: type, then size.
_DICTIONARY_PAGE_HEADER = re.compile(rb"\x15\x04\x15([\x80-\xff]{0,4}[\x00-\x7f])")


def _read_dictionary_size(column_chunk: pq.ColumnChunkMetaData, handle: pa.NativeFile) -> int:
    """Read the bytes of a dictionary from its page header (parquet.thrift, ``PageHeader``)."""
    start = column_chunk.dictionary_page_offset or column_chunk.data_page_offset
    match = _DICTIONARY_PAGE_HEADER.match(handle.read_at(16, start))
    if match is None:
        return MAX_DICTIONARY_BYTES
    digits = (byte & 0x7F for byte in match[1])
    return sum(digit << 7 * position for position, digit in enumerate(digits)) >> 1


def find_text_column_error(source: RecordFields, schema: pa.Schema) -> str:
    """Return why the text column is unusable, or ""."""
    if _is_text_type(schema.field(source.text_field).type):
        return ""
    return f"column {shorten_repr(source.text_field)} is not text"


def _is_text_type(data_type: pa.DataType) -> bool:
    data_type = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
    return bool(
        pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_string_view(data_type)
    )


def _is_readable_metadata_type(data_type: pa.DataType) -> bool:
    """Return whether a key, URL or date may have this type, or the type is cheap to read."""
    return _is_text_type(data_type) or not (
        pa.types.is_nested(data_type) or pa.types.is_fixed_size_binary(data_type)
    )


# Rows of a table ---------------------------------------------------------------------------------


def table_to_records(
    table: pa.Table, source: RecordFields, first_row: int, max_bytes: int, counts: ReadCounts
) -> Iterator[Record]:
    """Yield the records of a table; rows are numbered from 1.

    A row with a value longer than ``max_bytes`` is an error. A value that is not text, or that
    Python cannot represent, is an error as a key and missing as a URL or date.

    Args:
        first_row: Number of rows before this table.
    """
    row_number = first_row
    for batch in table.to_batches():
        for record in _batch_to_records(batch, source, max_bytes):
            row_number += 1
            record.location = f"row {row_number}{record.location}"
            counts.record_count += 1
            counts.byte_count += record.raw_bytes
            yield record


def _batch_to_records(
    batch: pa.RecordBatch, source: RecordFields, max_bytes: int
) -> Iterator[Record]:
    """Convert a batch, copying at most MAX_DECODED_BYTES, or one row, to Python at a time."""
    texts = batch.column(source.text_field)
    text_sizes = _measure_text_bytes(texts)
    other_columns = {n: batch.column(n) for n in batch.schema.names if n != source.text_field}
    column_sizes = [
        text_sizes,
        *(
            _measure_text_bytes(values)
            for values in other_columns.values()
            if _is_text_type(values.type)
        ),
    ]
    is_too_long = np.any([lengths > max_bytes for lengths in column_sizes], axis=0)
    # For columns that were not read.
    default_fields = dict.fromkeys(source.list_columns(), UNREADABLE)
    for start, stop in _split_into_row_ranges(
        np.where(is_too_long, MAX_DECODED_BYTES + 1, np.sum(column_sizes, axis=0))
    ):
        if is_too_long[start:stop].any():
            yield Record(
                "",
                int(text_sizes[start]),
                error=TOO_LONG,
                # One byte more than allowed, as for a long line.
                raw=_read_first_bytes(texts[start], max_bytes + 1),
            )
            continue
        # Read bytes: parquet promises UTF-8, but nobody has checked it.
        raw_texts = _cast_to_large_string(texts[start:stop]).cast(pa.large_binary()).to_pylist()
        other_values = [_column_to_python(values[start:stop]) for values in other_columns.values()]
        for raw, *row_values in zip(raw_texts, *other_values, strict=True):
            yield _row_to_record(
                raw, default_fields | dict(zip(other_columns, row_values, strict=True)), source
            )


def _row_to_record(raw: bytes | None, fields: dict[str, Any], source: RecordFields) -> Record:
    record = Record("", len(raw or b""), raw=raw or b"")
    if raw is None:
        record.error = f"field {shorten_repr(source.text_field)} is null"
        return record
    decode_record_text(record)
    if record.error:
        return record
    fields[source.text_field], record.text, record.raw = record.text, "", raw
    return fill_record_from_fields(record, fields, source)


def _split_into_row_ranges(row_sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield start and stop of row ranges of at most MAX_DECODED_BYTES, or of one larger row.

    Args:
        row_sizes: (n,) bytes per row.
    """
    start = range_bytes = 0
    if row_sizes.sum() > MAX_DECODED_BYTES:
        for row, size in enumerate(row_sizes.tolist()):
            if row > start and range_bytes + size > MAX_DECODED_BYTES:
                yield start, row
                start, range_bytes = row, 0
            range_bytes += size
    yield start, len(row_sizes)


def _measure_text_bytes(texts: pa.Array) -> np.ndarray:
    """Return the bytes of each value of a text column, (n,) int64; 0 for null."""
    if pa.types.is_dictionary(texts.type):
        lengths = pc.binary_length(_cast_to_large_string(texts.dictionary)).take(texts.indices)
    else:
        lengths = pc.binary_length(_cast_to_large_string(texts))
    byte_counts: np.ndarray = lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return byte_counts


def _cast_to_large_string(values: pa.Array) -> pa.Array:
    return values.cast(pa.large_string())


def _read_first_bytes(value: pa.Scalar, byte_count: int) -> bytes:
    """Return the first bytes of a text; none if it is null."""
    value = value.value if isinstance(value, pa.DictionaryScalar) else value
    return value.as_buffer()[:byte_count].to_pybytes() if value.is_valid else b""


def _column_to_python(values: pa.Array) -> list[Any]:
    """Convert values of columns other than the text to Python; UNREADABLE where it has none."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    data_type = values.type
    if _is_text_type(data_type):
        values = _cast_to_large_string(values)
    elif pa.types.is_timestamp(data_type):
        values = _truncate_to_seconds(values)
    elif not (
        pa.types.is_integer(data_type)
        or pa.types.is_date(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_boolean(data_type)
    ):
        return [UNREADABLE if is_valid else None for is_valid in values.is_valid().to_pylist()]
    try:
        return values.to_pylist()  # type: ignore[no-any-return]
    except _CONVERSION_ERRORS:
        return [_scalar_to_python(value) for value in values]


#: Raised by text that is not UTF-8, and by times before the year 1 or after the year 9999.
_CONVERSION_ERRORS = (ValueError, OverflowError)


def _scalar_to_python(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except _CONVERSION_ERRORS:
        return UNREADABLE


def _truncate_to_seconds(timestamps: pa.Array) -> pa.Array:
    """Round timestamps down to seconds, because Python has no nanoseconds."""
    zone = "UTC" if timestamps.type.tz else None
    ticks_per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[timestamps.type.unit]
    ticks = timestamps.cast(pa.int64()).fill_null(0).to_numpy()
    is_null = timestamps.is_null().to_numpy(zero_copy_only=False)
    return pa.array(ticks // ticks_per_second, pa.int64(), mask=is_null).cast(
        pa.timestamp("s", zone)
    )
