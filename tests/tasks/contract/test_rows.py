"""Test that rows become a table only if their fields are its columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from hallmark.tasks.contract import column, rows_to_table, table_schema, table_to_rows

SCHEMA = table_schema(
    "Rows.",
    column("name", pa.string(), "label", "its name"),
    column("slice", pa.map_(pa.string(), pa.string()), "label", "its slice"),
    column("value", pa.float64(), "figure", "its value"),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    value: float | None = None
    slice: Mapping[str, str] = field(default_factory=dict)


def test_rows_survive_conversion_to_table():
    rows = [Row(name="a", value=1, slice={"k": "v"}), Row(name="b")]
    table = rows_to_table(rows, SCHEMA)
    assert table.schema == SCHEMA
    assert table_to_rows(table) == [
        {"name": "a", "slice": {"k": "v"}, "value": 1.0},
        {"name": "b", "slice": {}, "value": None},
    ]
    assert rows_to_table([], SCHEMA) == SCHEMA.empty_table()


def test_missing_or_extra_field_is_refused():
    @dataclass(frozen=True)
    class Short:
        name: str
        value: float

    @dataclass(frozen=True, kw_only=True)
    class Long(Row):
        unit: str = ""

    with pytest.raises(TypeError, match="Short has no field slice"):
        rows_to_table([Short("a", 1.0)], SCHEMA)
    with pytest.raises(TypeError, match=r"Long\.unit is not a column of the table"):
        rows_to_table([Long(name="a")], SCHEMA)
    with pytest.raises(TypeError, match="Short has no field"):
        rows_to_table([Row(name="a"), Short("a", 1.0)], SCHEMA)
