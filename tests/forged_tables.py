"""Forge tables: valid files with other rows, whose size and times are those of the originals."""

import os
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hallmark.tasks.contract import Table


def forge_table(table: Table, column: str, value: Any) -> None:
    """Give all rows of a table one value, without changing sizes, times or the manifest."""
    for part in table.parts:
        path = part.path
        stat, rows = path.stat(), pq.read_table(path)
        index = rows.schema.get_field_index(column)
        values = pa.array([value] * len(rows), rows.schema.field(index).type)
        rows = rows.set_column(index, rows.schema.field(index), values)
        pq.write_table(
            rows,
            path,
            compression="zstd",
            compression_level=19,
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
        )
        content = path.read_bytes()
        footer_size = int.from_bytes(content[-8:-4], "little") + 8
        padding = bytes(stat.st_size - len(content))
        path.write_bytes(content[:-footer_size] + padding + content[-footer_size:])
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert path.stat().st_size == stat.st_size
    assert table.read([column])[column].to_pylist() == [value] * table.row_count
