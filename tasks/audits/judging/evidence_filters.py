"""Filter and sort the rows of a table that a finding is based on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

#: Conditions on the columns of a table, as ``build_row_filter`` takes them.
RowConditions = Mapping[str, Any]


class EvidenceLocation(NamedTuple):
    """Say where the rows of a finding are.

    Attributes:
        table_name: Table of the audit that holds the rows.
        conditions: Conditions that select the rows.
        row_order: Column that sorts the worst rows first, as ``sort_worst_first`` takes it.
    """

    table_name: str
    conditions: dict[str, Any]
    row_order: str


def build_row_filter(schema: pa.Schema, conditions: RowConditions) -> pc.Expression | None:
    """Build the filter of the rows that meet all conditions; None: every row.

    A condition on a column is a value, a list of allowed values, null, or {"ge": minimum, "lt":
    exclusive maximum}. Binary columns are compared by their hexadecimal digits.

    Raises:
        KeyError: There is no such column.
    """
    terms = [
        term
        for name, value in conditions.items()
        for term in _build_filter_terms(schema.field(name).type, pc.field(name), value)
    ]
    return reduce(pc.and_kleene, terms) if terms else None


def select_rows(table: pa.Table, conditions: RowConditions) -> pa.Table:
    """Return the rows of a table that meet all conditions, as ``build_row_filter`` takes them.

    This is several times faster than to filter a small table by an expression.

    Raises:
        KeyError: There is no such column.
    """
    terms = [
        term
        for name, value in conditions.items()
        for term in _build_filter_terms(table.schema.field(name).type, table[name], value)
    ]
    return table.filter(reduce(pc.and_kleene, terms)) if terms else table


def locate_evidence(finding: Mapping[str, Any]) -> EvidenceLocation:
    """Locate the rows that a finding is based on.

    A finding that is based on no rows, such as a count of skipped items, is its own evidence.

    Raises:
        ValueError: The filter is no JSON object.
    """
    if not finding["evidence_table"]:
        return EvidenceLocation("findings", {"finding": finding["finding"].hex()}, "")
    conditions = json.loads(finding["evidence_filter"] or "{}")
    if not isinstance(conditions, dict):
        raise ValueError("the evidence filter is not a JSON object")
    return EvidenceLocation(finding["evidence_table"], conditions, finding["evidence_order"])


def sort_worst_first(rows: pa.Table, evidence_order: str, max_rows: int | None = None) -> pa.Table:
    """Sort rows by the ``evidence_order`` of a finding, rows without a value last.

    Args:
        rows: The rows.
        evidence_order: Column that sorts the rows, with "-" in front: the largest value first.
        max_rows: How many of the first rows are returned; None: all.
    """
    if not evidence_order:
        return rows[:max_rows]
    direction = _SORT_DIRECTIONS[evidence_order.startswith("-")]
    sort_keys = [(evidence_order.removeprefix("-"), direction)]
    return rows.take(pc.sort_indices(rows, sort_keys=sort_keys)[:max_rows])


_SORT_DIRECTIONS = {True: "descending", False: "ascending"}


def _build_filter_terms(
    data_type: pa.DataType, column: pc.Expression | pa.ChunkedArray, value: Any
) -> list[Any]:
    """Return the terms of a condition: expressions or masks, like the column."""
    if isinstance(value, Mapping):
        comparisons = {"ge": pc.greater_equal, "lt": pc.less}
        return [
            comparisons[operator_name](column, pa.scalar(bound, data_type))
            for operator_name, bound in value.items()
        ]
    if value is None:
        return [pc.is_null(column)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        allowed_values = [decode_hex_if_binary(item, data_type) for item in value]
        return [pc.is_in(column, value_set=pa.array(allowed_values, data_type))]
    return [pc.equal(column, pa.scalar(decode_hex_if_binary(value, data_type), data_type))]


def decode_hex_if_binary(value: Any, data_type: pa.DataType) -> Any:
    """Decode hexadecimal digits if the column of a condition is binary; return others unchanged."""
    is_bytes = pa.types.is_fixed_size_binary(data_type) or pa.types.is_binary(data_type)
    return bytes.fromhex(value) if is_bytes and isinstance(value, str) else value
