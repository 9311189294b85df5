"""Readers of columns: parquet files, and what all readers of columns share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.corpus.reading.readers import TOO_LONG, Record, decode, missing, short, take
from tasks.corpus.reading.sources import Fields, FileSource
from tasks.corpus.reading.streams import Meter, unchanged

BATCH = 512  # rows decoded at a time


class ParquetSource(FileSource, Fields):
    """Parquet with a column of text."""

    kind: Literal["parquet"]


def read_parquet(path: Path, source: ParquetSource, limit: int, meter: Meter) -> Iterator[Record]:
    """Rows of a parquet file; raw bytes are those of the text values.

    The rows of a group that could not be read are one error, which stands for as many records.
    Its bytes are the stored (compressed) size of the group's text; if the damage came behind
    rows that were read, the share of the others, by their number. Page checksums are verified
    where the writer stored them.
    """
    with pa.OSFile(str(path)) as handle:
        size = handle.size()
        yield from _parquet_records(handle, source, limit, meter)
    unchanged(path, size, path.stat().st_size)


def _parquet_records(
    handle: pa.NativeFile, source: ParquetSource, limit: int, meter: Meter
) -> Iterator[Record]:
    error = "the file is empty" if handle.size() == 0 else ""
    if not error:
        try:
            file = pq.ParquetFile(handle, page_checksum_verification=True)
            names = [field.name for field in file.schema_arrow]
            error = missing(source, names) or no_text(source, file.schema_arrow)
        except MemoryError:  # an ArrowException too, and no fault of the file
            raise
        except (pa.ArrowException, OSError):
            error = "not a whole parquet file"
    if error:
        meter.rows += 1
        meter.bytes += handle.size()
        yield Record("whole file", handle.size(), error=error)
        return
    row = 0
    for group in range(file.num_row_groups):
        end = row + file.metadata.row_group(group).num_rows
        for table in _tables(file, source, group):
            yield from column_records(table, source, row, limit, meter)
            row += len(table)
        if row < end:
            yield _unread(file, source, group, row, end, meter)
        row = end


def _tables(file: pq.ParquetFile, source: ParquetSource, group: int) -> Iterator[pa.Table]:
    """The rows of a row group, as far as they can be read."""
    try:
        for batch in file.iter_batches(BATCH, row_groups=[group], columns=source.columns()):
            yield pa.Table.from_batches([batch])
    except MemoryError:
        raise
    except (pa.ArrowException, OSError):
        return


def _unread(
    file: pq.ParquetFile, source: ParquetSource, group: int, row: int, end: int, meter: Meter
) -> Record:
    """One error for the rows of a group from ``row`` on."""
    whole = file.metadata.row_group(group).num_rows
    size = _stored_size(file, group, source.text_field) * (end - row) // whole
    meter.rows += end - row
    meter.bytes += size
    place = f"rows {row + 1} to {end}"
    return Record(place, size, error="a damaged row group", records=end - row)


def _stored_size(file: pq.ParquetFile, group: int, name: str) -> int:
    index = [c.path for c in map(file.schema.column, range(len(file.schema)))].index(name)
    return file.metadata.row_group(group).column(index).total_compressed_size


def no_text(source: Fields, schema: pa.Schema) -> str:
    kind = schema.field(source.text_field).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return ""
    return f"column {short(source.text_field)} is not text"


def column_records(
    table: pa.Table, source: Fields, first: int, limit: int, meter: Meter
) -> Iterator[Record]:
    """Records of a table with a column of text and perhaps others; rows count from 1."""
    # As bytes: parquet promises UTF-8 but nobody has checked it.
    texts = table[source.text_field].cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
    others = [name for name in source.columns() if name != source.text_field]
    values = [_plain(table[name]).to_pylist() for name in others]
    for number, (raw, *rest) in enumerate(zip(texts, *values, strict=True), start=first + 1):
        size = len(raw or b"")
        meter.rows += 1
        meter.bytes += size
        record = Record(f"row {number}", size, raw=raw or b"")
        if raw is None:
            record.error = f"field {short(source.text_field)} is null"
        elif size > limit:
            record.error = TOO_LONG
        else:
            decode(record)
            if not record.error:
                fields: dict[str, Any] = dict(zip(others, rest, strict=True))
                take(record, {**fields, source.text_field: record.text}, source)
        yield record


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times to the second: Python has none of nanoseconds."""
    if pa.types.is_timestamp(values.type):
        zone = "UTC" if values.type.tz else None
        values = values.cast(pa.timestamp(values.type.unit, zone))
        return pc.floor_temporal(values, unit="second").cast(pa.timestamp("s", zone))
    return values
