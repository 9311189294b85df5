"""Findings: what an audit measured, one row a figure, each with the rows it was measured on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

FINDINGS = pa.schema(
    [
        ("audit", pa.string()),
        ("metric", pa.string()),
        ("slice", pa.string()),  # "" for the whole; "copies=64", "category:age" for a part
        ("value", pa.float64()),  # null: it could not be measured, ``method`` says why
        ("low", pa.float64()),  # ends of the confidence interval; null where there is none
        ("high", pa.float64()),
        ("level", pa.float64()),  # of the interval
        ("n", pa.int64()),  # units that were measured: prompts, pairs, canaries ...
        ("unit", pa.string()),  # "share", "bits", "nats", "score" ...
        ("method", pa.string()),  # the variant used, in a phrase
        ("scorer", pa.string()),  # name and digest, where a scorer took part
        ("control", pa.string()),  # "positive", "negative", or "" for a measurement
        ("verdict", pa.string()),  # "pass" or "fail" of a control, else ""
        ("table", pa.string()),  # where the evidence is
        ("where", pa.string()),  # JSON object column: value (or list of values) that selects it
    ]
)

#: Confidence level of every interval unless a finding says otherwise.
LEVEL = 0.95


def finding(
    audit: str,
    metric: str,
    value: float | None,
    *,
    unit: str,
    method: str,
    n: int,
    slice: str = "",
    low: float | None = None,
    high: float | None = None,
    level: float = LEVEL,
    scorer: str = "",
    control: Literal["", "positive", "negative"] = "",
    passed: bool | None = None,
    table: str = "samples",
    where: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One row of FINDINGS. NaN and None both mean "could not be measured" and become null.

    ``passed`` is the verdict of a control and must be given for one, and only for one.
    """
    if bool(control) != (passed is not None):
        raise ValueError(f"{audit}: {metric} needs a verdict if, and only if, it is a control")
    value, low, high = _number(value), _number(low), _number(high)
    if low is None or high is None:
        low = high = None
    return {
        "audit": audit,
        "metric": metric,
        "slice": slice,
        "value": value,
        "low": low,
        "high": high,
        "level": None if low is None else level,
        "n": n,
        "unit": unit,
        "method": method,
        "scorer": scorer,
        "control": control,
        "verdict": "" if passed is None else "pass" if passed else "fail",
        "table": table,
        "where": json.dumps(dict(where or {}), ensure_ascii=False, sort_keys=True),
    }


def findings_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """The rows as a table with the schema FINDINGS."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=FINDINGS)


def evidence(table: pa.Table, where: str | Mapping[str, Any]) -> pa.Table:
    """The rows of ``table`` that a finding's ``where`` selects.

    A list of values means any of them; null selects null. A binary column is compared with
    its hexadecimal digits.
    """
    conditions: Mapping[str, Any] = json.loads(where) if isinstance(where, str) else where
    keep = pa.array(np.ones(len(table), dtype=bool))
    for name, value in conditions.items():
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        kind = table.schema.field(name).type
        if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
            values = [None if v is None else bytes.fromhex(v) for v in values]
        wanted = pa.array(values, type=kind)
        keep = pc.and_(keep, pc.is_in(table[name], value_set=wanted))
    return table.filter(keep)


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
