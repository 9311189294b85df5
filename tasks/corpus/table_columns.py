"""Define the type of table rows, and make usual columns: labels, counts and other figures."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from hallmark.tasks.contract import column

#: A row of a declared table: its values by column.
Row = dict[str, Any]


def make_label_column(name: str, meaning: str) -> pa.Field:
    return column(name, pa.string(), "label", meaning)


def make_count_column(name: str, meaning: str, unit: str = "documents") -> pa.Field:
    return column(name, pa.int64(), "figure", meaning, unit=unit)


def make_float_column(name: str, meaning: str, unit: str = "") -> pa.Field:
    return column(name, pa.float64(), "figure", meaning, unit=unit)


def make_share_column(name: str, meaning: str) -> pa.Field:
    return make_float_column(name, meaning, "share")
