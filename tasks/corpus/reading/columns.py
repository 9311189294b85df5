"""Readers of columns: parquet files, and what all readers of columns share.

Memory of parquet: a page, a dictionary and a batch of rows, few enough to take about ``HELD`` bytes
where texts are of one size, and ``ROWS`` of the longest texts at most where they are not; of those
in dictionaries up to ``REPEATED`` bytes.
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

from tasks.contract import declared_roots
from tasks.corpus.reading.readers import TOO_LONG, Record, decode, missing, short, take
from tasks.corpus.reading.sources import Fields, FileSource
from tasks.corpus.reading.streams import BLOCK, Meter, unchanged

HELD = 16 << 20  # bytes of values that are decoded at a time, about, and copied to Python, at most
ROWS = 64  # that are decoded at a time at most; more are hardly faster
TOGETHER = 8  # batches of them that are made records together, up to HELD
REPEATED = 256 << 20  # bytes that a batch may take if every row holds all of a dictionary

#: Stands for a value that Python cannot have, or that no field of a record may be.
UNREADABLE: Any = object()

#: Encodings whose values take no more bytes than their pages.
_PLAIN = {"PLAIN", "RLE", "BIT_PACKED", "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY",
          "BYTE_STREAM_SPLIT"}  # fmt: skip
_DICTIONARY = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}


class ParquetSource(FileSource, Fields):
    """Parquet with a column of text."""

    kind: Literal["parquet"]


def read_parquet(path: Path, source: ParquetSource, limit: int, meter: Meter) -> Iterator[Record]:
    """Rows of a parquet file; raw bytes are those of the text values.

    The rows of a group that could not be read are one error, which stands for as many records.
    Its bytes are their share of the file, by their number: what a damaged group says of its own
    size may be false. Page checksums are verified where the writer stored them.
    """
    with _open_arrow(path, meter) as handle:
        size = handle.size()
        yield from _parquet_records(handle, source, limit, meter)
    unchanged(path, size, path.stat().st_size)


@contextmanager
def _open_arrow(path: Path, meter: Meter) -> Iterator[pa.NativeFile]:
    """Open a file for Arrow, which reads one faster that it opens itself."""
    if declared_roots() is None:
        with pa.OSFile(str(path)) as handle:
            yield handle
    else:
        with meter.open(path) as opened, pa.PythonFile(opened, "r") as handle:
            yield handle


def _parquet_records(
    handle: pa.NativeFile, source: ParquetSource, limit: int, meter: Meter
) -> Iterator[Record]:
    error = "the file is empty" if handle.size() == 0 else ""
    if not error:
        try:
            file = pq.ParquetFile(handle, buffer_size=BLOCK, page_checksum_verification=True)
            names = [field.name for field in file.schema_arrow]
            error = missing(source, names) or no_text(source, file.schema_arrow)
        except MemoryError:  # an ArrowException too, and no fault of the file
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError):  # in the names of columns
            error = "not a whole parquet file"
    if error:
        meter.rows += 1
        meter.bytes += handle.size()
        yield Record("whole file", handle.size(), error=error)
        return
    row = 0
    for group in range(file.num_row_groups):
        end = row + file.metadata.row_group(group).num_rows
        for table in _tables(file, handle, source, group):
            yield from column_records(table, source, row, limit, meter)
            row += len(table)
        if row < end:
            size = handle.size() * (end - row) // max(file.metadata.num_rows, end)
            meter.rows += end - row
            meter.bytes += size
            place = f"rows {row + 1} to {end}"
            yield Record(place, size, error="a damaged row group", records=end - row)
        row = end


def _tables(
    file: pq.ParquetFile, handle: pa.NativeFile, source: ParquetSource, group: int
) -> Iterator[pa.Table]:
    """The rows of a row group, as far as they can be read."""
    held: list[pa.RecordBatch] = []
    for batch in _decoded(file, handle, source, group):
        held.append(batch)
        if sum(b.nbytes for b in held) >= HELD or len(held) == TOGETHER:
            yield pa.Table.from_batches(held).combine_chunks()
            held = []
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def _decoded(
    file: pq.ParquetFile, handle: pa.NativeFile, source: ParquetSource, group: int
) -> Iterator[pa.RecordBatch]:
    """What can be read of the columns that can be of use."""
    names = [name for name in source.columns() if _of_use(file.schema_arrow.field(name).type)]
    # Threads cost more than they give.
    read = partial(file.iter_batches, row_groups=[group], columns=names, use_threads=False)
    try:
        # A row first: of a column that contradicts itself this is an error, and to ask for its
        # size the end of the process.
        next(read(1), None)
        yield from read(_rows_at_a_time(file, group, names, handle))
    except MemoryError:
        raise
    except (pa.ArrowException, OSError):
        return


def _rows_at_a_time(
    file: pq.ParquetFile, number: int, names: list[str], handle: pa.NativeFile
) -> int:
    """How many rows of a group to decode at a time, by what its columns take on average, and at
    most where every row may hold all of a dictionary. Only of columns that were opened."""
    size = dictionary = 1
    group = file.metadata.row_group(number)
    for index in range(group.num_columns):
        path = file.schema.column(index).path
        if path in names:
            column = group.column(index)
            size += max(0, column.total_uncompressed_size)
            if not set(column.encodings) <= _PLAIN | _DICTIONARY:
                return 1
            if column.physical_type == "BYTE_ARRAY" and set(column.encodings) & _DICTIONARY:
                dictionary += _dictionary_bytes(column, handle)
        elif path.startswith(tuple(f"{name}." for name in names)):
            return 1  # Arrow takes it for a part of the other
    return max(1, min(ROWS, HELD * group.num_rows // size, REPEATED // dictionary))


#: How the header of a dictionary page begins, in Thrift's compact protocol: type and bytes.
_DICTIONARY_PAGE = re.compile(rb"\x15\x04\x15([\x80-\xff]{0,4}[\x00-\x7f])")


def _dictionary_bytes(column: Any, handle: pa.NativeFile) -> int:
    """What a dictionary takes, from the header of its page (parquet.thrift, ``PageHeader``)."""
    start = column.dictionary_page_offset or column.data_page_offset
    found = _DICTIONARY_PAGE.match(handle.read_at(16, start))
    if found is None:
        return REPEATED
    digits = (byte & 0x7F for byte in found[1])
    return sum(digit << 7 * place for place, digit in enumerate(digits)) >> 1


def no_text(source: Fields, schema: pa.Schema) -> str:
    if _is_text(schema.field(source.text_field).type):
        return ""
    return f"column {short(source.text_field)} is not text"


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _of_use(kind: pa.DataType) -> bool:
    """Whether a key, URL or date can be of this type, or at least is soon read."""
    return _is_text(kind) or not (pa.types.is_nested(kind) or pa.types.is_fixed_size_binary(kind))


# Rows of a table ---------------------------------------------------------------------------------


def column_records(
    table: pa.Table, source: Fields, first: int, limit: int, meter: Meter
) -> Iterator[Record]:
    """Records of a table with a column of text and perhaps others; rows count from 1.

    A row with a value longer than ``limit`` is an error. A value that is no text, or that Python
    cannot have, is one too as a key, and none as URL or date.
    """
    number = first
    for batch in table.to_batches():
        for record in _batch_records(batch, source, limit):
            number += 1
            record.place = f"row {number}{record.place}"
            meter.rows += 1
            meter.bytes += record.raw_bytes
            yield record


def _batch_records(batch: pa.RecordBatch, source: Fields, limit: int) -> Iterator[Record]:
    """Its rows; no more than HELD bytes of values, or one row, are copied to Python at a time."""
    texts = batch.column(source.text_field)
    size = _bytes(texts)
    others = {n: batch.column(n) for n in batch.schema.names if n != source.text_field}
    sizes = [size, *(_bytes(values) for values in others.values() if _is_text(values.type))]
    long = np.any([lengths > limit for lengths in sizes], axis=0)
    unread = dict.fromkeys(source.columns(), UNREADABLE)  # columns that were left out
    for start, stop in _pieces(np.where(long, HELD + 1, np.sum(sizes, axis=0))):
        if long[start:stop].any():
            yield Record("", int(size[start]), error=TOO_LONG, raw=_beginning(texts[start], limit))
            continue
        # As bytes: parquet promises UTF-8 but nobody has checked it.
        raws = _text(texts[start:stop]).cast(pa.large_binary()).to_pylist()
        columns = [_values(values[start:stop]) for values in others.values()]
        for raw, *rest in zip(raws, *columns, strict=True):
            yield _record(raw, unread | dict(zip(others, rest, strict=True)), source)


def _record(raw: bytes | None, fields: dict[str, Any], source: Fields) -> Record:
    record = Record("", len(raw or b""), raw=raw or b"")
    if raw is None:
        record.error = f"field {short(source.text_field)} is null"
        return record
    decode(record)
    if record.error:
        return record
    fields[source.text_field], record.text, record.raw = record.text, "", raw
    return take(record, fields, source)


def _pieces(sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of rows of HELD bytes at most; a larger row stands alone. ``sizes``: (n,) bytes."""
    start = held = 0
    if sizes.sum() > HELD:
        for row, size in enumerate(sizes.tolist()):
            if row > start and held + size > HELD:
                yield start, row
                start, held = row, 0
            held += size
    yield start, len(sizes)


def _bytes(texts: pa.Array) -> np.ndarray:
    """(n,) int64: of each value of a column of text, 0 of null."""
    if pa.types.is_dictionary(texts.type):
        lengths = pc.binary_length(_text(texts.dictionary)).take(texts.indices)
    else:
        lengths = pc.binary_length(_text(texts))
    return lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _text(values: pa.Array) -> pa.Array:
    return values.cast(pa.large_string())


def _beginning(value: pa.Scalar, limit: int) -> bytes:
    """Of a text that is too long as much as of a line."""
    value = value.value if isinstance(value, pa.DictionaryScalar) else value
    return value.as_buffer()[: limit + 1].to_pybytes() if value.is_valid else b""


def _values(values: pa.Array) -> list[Any]:
    """Keys, URLs or dates as Python has them, UNREADABLE where it cannot."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = values.type
    if _is_text(kind):
        values = _text(values)
    elif pa.types.is_timestamp(kind):
        values = _to_the_second(values)
    elif not (pa.types.is_integer(kind) or pa.types.is_date(kind)):
        return [UNREADABLE if valid else None for valid in values.is_valid().to_pylist()]
    try:
        return values.to_pylist()  # type: ignore[no-any-return]
    except _NOT_IN_PYTHON:
        return [_value(value) for value in values]


#: No UTF-8; a time before the year 1 or after the year 9999.
_NOT_IN_PYTHON = (ValueError, OverflowError)


def _value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except _NOT_IN_PYTHON:
        return UNREADABLE


def _to_the_second(times: pa.Array) -> pa.Array:
    """Rounded down: Python has none of nanoseconds."""
    zone = "UTC" if times.type.tz else None
    unit = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[times.type.unit]
    ticks = times.cast(pa.int64()).fill_null(0).to_numpy()
    null = times.is_null().to_numpy(zero_copy_only=False)
    return pa.array(ticks // unit, pa.int64(), mask=null).cast(pa.timestamp("s", zone))
