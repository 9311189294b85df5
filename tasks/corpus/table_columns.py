"""Make the usual columns of tables: labels, counts and other figures."""

from __future__ import annotations

import pyarrow as pa

from hallmark.tasks.contract import column


def make_label_column(name: str, meaning: str) -> pa.Field:
    return column(name, pa.string(), "label", meaning)


def make_count_column(name: str, meaning: str, unit: str = "documents") -> pa.Field:
    return column(name, pa.int64(), "figure", meaning, unit=unit)


def make_float_column(name: str, meaning: str, unit: str = "") -> pa.Field:
    return column(name, pa.float64(), "figure", meaning, unit=unit)


def make_share_column(name: str, meaning: str) -> pa.Field:
    return make_float_column(name, meaning, "share")
