"""Read the tables of a card in a release, which may come from anybody, within stated limits.

A parquet file of a few kilobytes can expand to gigabytes: through compression, null values, or one
long text that many rows repeat. The footer is therefore checked before anything is read. Texts are
read as dictionaries, which store a repeated text once, and each repetition is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hallmark.tasks.contract import HallmarkError

#: Maximum size of a table in a release: more than 100 times the largest table of the demo, which
#: has 16,000 values and 0.4 MB.
MAX_TABLE_VALUES, MAX_TABLE_BYTES = 2_000_000, 64_000_000

#: Number of rows after which the values are counted.
BATCH_ROWS = 1_000


def read_released_table(paths: Sequence[Path], table_name: str) -> pa.Table:
    """Read the files of a table, with its texts as dictionaries.

    Args:
        paths: The parquet files, at least one.
        table_name: The name of the table, for errors.

    Raises:
        HallmarkError: The table is larger than that of any card, or has a column of a type that no
            card has.
        OSError: A file cannot be opened.
        pyarrow.ArrowException: A file is damaged.
    """
    _check_size(table_name, 0, sum(path.stat().st_size for path in paths))
    tables, value_count, byte_count = list[pa.Table](), 0, 0
    for path in paths:
        metadata = pq.read_metadata(path)
        row_groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        value_count += sum(map(_count_values, row_groups))
        stated_bytes = sum(row_group.total_byte_size for row_group in row_groups)
        _check_size(table_name, value_count, byte_count + stated_bytes)
        with pq.ParquetFile(
            path,
            metadata=metadata,
            read_dictionary=_list_text_columns(metadata),
            page_checksum_verification=True,
        ) as file:
            for column_type in file.schema_arrow.types:
                _check_type(table_name, column_type)
            batches = []
            for batch in file.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
                byte_count += sum(map(_count_bytes, batch.columns))
                _check_size(table_name, value_count, byte_count)
                batches.append(batch)
            tables.append(pa.Table.from_batches(batches, file.schema_arrow))
    return pa.concat_tables(tables)


def _check_size(table_name: str, value_count: int, byte_count: int) -> None:
    if value_count > MAX_TABLE_VALUES or byte_count > MAX_TABLE_BYTES:
        raise HallmarkError(
            f"the {table_name} table is larger than any card table: it has more than "
            f"{MAX_TABLE_VALUES:,} values or {MAX_TABLE_BYTES // 1_000_000} MB"
        )


def _count_values(row_group: pq.RowGroupMetaData) -> int:
    """Count the values that a footer states: those of each row, or more if a column has lists."""
    columns = [row_group.column(number) for number in range(row_group.num_columns)]
    row_value_count = int(row_group.num_rows) * max(1, len(columns))
    return max(row_value_count, sum(int(column.num_values) for column in columns))


def _list_text_columns(metadata: pq.FileMetaData) -> list[str]:
    columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def _check_type(table_name: str, data_type: pa.DataType) -> None:
    """Refuse types with values of any length that are not read as dictionaries.

    Raises:
        HallmarkError: The type is one of them, or contains one.
    """
    is_refused = (
        isinstance(data_type, pa.BaseExtensionType)
        or pa.types.is_fixed_size_binary(data_type)
        or pa.types.is_fixed_size_list(data_type)
    )
    if is_refused:
        raise HallmarkError(
            f"the {table_name} table has a column of type {data_type!s:.100}, which no card "
            "contains"
        )
    for number in range(data_type.num_fields):
        _check_type(table_name, data_type.field(number).type)


def _count_bytes(values: pa.Array) -> int:
    """Count the bytes of values, with those of each repeated text."""
    data_type = values.type
    if pa.types.is_dictionary(data_type):
        lengths = pc.binary_length(values.dictionary).cast(pa.int64())
        return pc.sum(lengths.take(values.indices)).as_py() or 0
    if pa.types.is_map(data_type):
        return _count_bytes(values.keys) + _count_bytes(values.items)
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return int(values.nbytes) + _count_bytes(values.flatten())
    if pa.types.is_struct(data_type):
        return sum(map(_count_bytes, values.flatten()))
    return int(values.nbytes)
