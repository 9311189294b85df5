"""Conditions: which rows of a table a figure rests on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_, ge, lt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def condition(schema: pa.Schema, where: Mapping[str, Any]) -> pc.Expression | None:
    """Which rows these conditions select, all of them together; None: every row.

    Each column has a value, a list of values that it may have, null, or {"ge": least, "lt": bound}.
    A binary column is compared with its hexadecimal digits. KeyError: no such column.
    """
    terms = [term for name, value in where.items() for term in _terms(schema, name, value)]
    return reduce(and_, terms) if terms else None


def place_of(row: Mapping[str, Any]) -> tuple[str, dict[str, Any], str]:
    """The table of its audit that holds the rows of a finding, what selects them, and their order:
    of one that rests on no rows, as counts of what was left out, its own. ValueError where what
    selects them is no JSON object."""
    if not row["table"]:
        return "findings", {name: row[name] for name in ("metric", "slice", "control")}, ""
    where = json.loads(row["where"] or "{}")
    if not isinstance(where, dict):
        raise ValueError("no JSON object")
    return row["table"], where, row["order"]


def ordered(rows: pa.Table, order: str) -> pa.Table:
    """The rows with the worst first, as a finding's ``order`` says; those without a value last."""
    if not order:
        return rows
    return rows.sort_by([(order.removeprefix("-"), _DIRECTION[order.startswith("-")])])


_DIRECTION = {True: "descending", False: "ascending"}


def _terms(schema: pa.Schema, name: str, value: Any) -> list[pc.Expression]:
    kind, cell = schema.field(name).type, pc.field(name)
    if isinstance(value, Mapping):
        compare = {"ge": ge, "lt": lt}
        return [compare[how](cell, pa.scalar(bound, kind)) for how, bound in value.items()]
    if value is None:
        return [cell.is_null()]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [cell.isin(pa.array([native(v, kind) for v in value], kind))]
    return [cell == pa.scalar(native(value, kind), kind)]


def native(value: Any, kind: pa.DataType) -> Any:
    """A value of a condition as the column has it."""
    is_bytes = pa.types.is_fixed_size_binary(kind) or pa.types.is_binary(kind)
    return bytes.fromhex(value) if is_bytes and isinstance(value, str) else value
