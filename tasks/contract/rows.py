"""Convert rows to tables and tables to rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


#: A row of a table: value by column name.
Row = dict[str, Any]


def rows_to_table(rows: Sequence[DataclassInstance], schema: pa.Schema) -> pa.Table:
    """Convert dataclasses to a table; their fields are exactly the columns of the schema.

    Raises:
        TypeError: A column has no field, or a field has no column.
    """
    for row_class in {type(row) for row in rows}:
        field_names = {row_field.name for row_field in fields(row_class)}
        if missing_names := sorted({*schema.names} - field_names):
            raise TypeError(f"{row_class.__name__} has no field {', '.join(missing_names)}")
        if extra_names := sorted(field_names - {*schema.names}):
            raise TypeError(f"{row_class.__name__}.{extra_names[0]} is not a column of the table")
    columns = {
        column_field.name: pa.array(
            [getattr(row, column_field.name) for row in rows], column_field.type
        )
        for column_field in schema
    }
    return pa.table(columns, schema=schema)


def table_to_rows(table: pa.Table) -> list[Row]:
    """Convert a table to rows; the value of a map column is a dict."""
    rows: list[Row] = table.to_pylist(maps_as_pydicts="strict")
    return rows
