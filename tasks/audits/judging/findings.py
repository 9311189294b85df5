"""Findings: what an audit measured, one row a figure, each with the rows it was measured on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import pyarrow as pa

from hallmark.tasks.audits.audit_descriptions import SIGNIFICANCE_LEVEL
from hallmark.tasks.audits.judging.evidence_filters import build_row_filter
from hallmark.tasks.audits.judging.tags import format_slice_name
from hallmark.tasks.contract import column, table_schema
from hallmark.tasks.measures.estimates import Estimate
from hallmark.tasks.measures.multiple_testing import adjust_p_values_holm

FINDINGS = table_schema(
    "What the audit measured, one row a figure, each with the rows it was measured on.",
    column("audit", pa.string(), "label", "the audit"),
    column("metric", pa.string(), "label", "what was measured"),
    column("slice", pa.string(), "label", "empty for the whole, else which part: copies=64"),
    column(
        "tags",
        pa.string(),
        "label",
        "the same tag by tag, a JSON object; the tags part, kind and prompt_subset have no name in "
        "the slice",
    ),
    column(
        "value",
        pa.float64(),
        "figure",
        "the figure; null where it could not be measured: the method says why",
    ),
    column("low", pa.float64(), "figure", "lower end of the confidence interval, if there is one"),
    column("high", pa.float64(), "figure", "upper end"),
    column("confidence_level", pa.float64(), "figure", "level of the interval", unit="share"),
    column("n", pa.int64(), "figure", "units that were measured: prompts, pairs, canaries"),
    column(
        "clusters",
        pa.int64(),
        "figure",
        "units that share nothing with each other, which the interval is about; null: not said",
    ),
    column(
        "missing",
        pa.int64(),
        "figure",
        "units without a value, left out: the scorer failed, the model gave no number",
    ),
    column(
        "null_value",
        pa.float64(),
        "figure",
        "the value where there is nothing to find; null: there is none",
    ),
    column(
        "p",
        pa.float64(),
        "figure",
        "probability of a value at least as far from the null, if that holds",
    ),
    column(
        "p_corrected",
        pa.float64(),
        "figure",
        "p for all values of the audit that are compared with a null (Holm 1979)",
    ),
    column(
        "minimum_detectable_effect",
        pa.float64(),
        "figure",
        "smallest distance from the null that these units show with power 0.8",
    ),
    column("unit", pa.string(), "label", "unit of the value: share, bits, nats, score"),
    column("method", pa.string(), "project text", "the variant used, in a phrase"),
    column("precision", pa.string(), "label", "what the model computed in: fp32 or bf16"),
    column("scorer", pa.string(), "label", "name and digest, where a scorer took part"),
    column("control", pa.string(), "label", "positive or negative, empty for a measurement"),
    column("verdict", pa.string(), "label", "pass or fail of a control, else empty"),
    column(
        "control_target",
        pa.string(),
        "label",
        "what a control tests: instrument: the audit itself, whatever the model; scorer or "
        "baseline: what it measures with, without the model; model: whether this one is strong "
        "enough to be asked; empty: no control",
    ),
    column(
        "worse_when",
        pa.string(),
        "label",
        "which way is worse: up, down or away_from_null; empty: neither",
    ),
    column("evidence_table", pa.string(), "label", "the table that holds the evidence"),
    column(
        "evidence_filter",
        pa.string(),
        "label",
        "JSON object column: value (list of values, null, {ge: least, lt: bound}) that selects "
        "its rows",
    ),
    column(
        "evidence_order",
        pa.string(),
        "label",
        "the column by which its worst rows stand first, behind "
        "a minus sign where the largest are the worst; empty: none is worse",
    ),
)

#: Confidence level of every interval unless a finding says otherwise.
CONFIDENCE_LEVEL = 0.95

#: Below this p is written as a bound.
SMALLEST_P = 1e-300


def build_finding(
    audit: str,
    metric: str,
    value: float | None,
    *,
    unit: str,
    method: str,
    n: int,
    part: str = "",
    tags: Mapping[str, Any] | None = None,
    low: float | None = None,
    high: float | None = None,
    confidence_level: float = CONFIDENCE_LEVEL,
    scorer: str = "",
    control: Literal["", "positive", "negative"] = "",
    passed: bool | None = None,
    control_target: Literal["", "instrument", "scorer", "baseline", "model"] = "",
    worse_when: Literal["", "up", "down", "away_from_null"] = "",
    evidence_table: str = "values",
    evidence_filter: Mapping[str, Any] | None = None,
    evidence_order: str = "",
    clusters: int | None = None,
    missing: int | None = None,
    null_value: float | None = None,
    p: float | None = None,
    minimum_detectable_effect: float | None = None,
) -> dict[str, Any]:
    """One row of FINDINGS. NaN and None both mean "could not be measured" and become null.

    ``part`` and ``tags`` say which part it is about, and spell its slice: "passage, copies=64".
    ``passed``, the verdict of a control, and what it ``tests`` must be given for one, and only for
    one. Of a p, ``corrected`` says what it is worth among the others.
    """
    if not bool(control) == bool(control_target) == (passed is not None):
        raise ValueError(
            f"{audit}: {metric} needs a verdict, and what it tests, if, and only if, "
            f"it is a control"
        )
    value, low, high = _nan_to_none(value), _nan_to_none(low), _nan_to_none(high)
    tags = ({"part": part} if part else {}) | dict(tags or {})
    if low is None or high is None:
        low = high = None
    return {
        "audit": audit,
        "metric": metric,
        "slice": format_slice_name(tags),
        "tags": json.dumps(tags, ensure_ascii=False),
        "value": value,
        "low": low,
        "high": high,
        "confidence_level": None if low is None else confidence_level,
        "n": n,
        "clusters": clusters,
        "missing": missing,
        "null_value": _nan_to_none(null_value),
        "p": _nan_to_none(p),
        "p_corrected": None,
        "minimum_detectable_effect": _nan_to_none(minimum_detectable_effect),
        "unit": unit,
        "method": method,
        "scorer": scorer,
        "control": control,
        "verdict": "" if passed is None else "pass" if passed else "fail",
        "control_target": control_target,
        "worse_when": worse_when,
        "evidence_table": evidence_table,
        "evidence_filter": json.dumps(
            dict(evidence_filter or {}), ensure_ascii=False, sort_keys=True
        ),
        "evidence_order": evidence_order,
    }


def build_finding_from_estimate(
    audit: str,
    metric: str,
    estimate: Estimate,
    *,
    unit: str,
    method_prefix: str,
    **options: Any,
) -> dict[str, Any]:
    """One row of FINDINGS for an estimate; ``how`` stands before its own method."""
    return build_finding(
        audit,
        metric,
        estimate.value,
        low=estimate.low,
        high=estimate.high,
        n=estimate.n,
        unit=unit,
        clusters=estimate.clusters,
        missing=estimate.missing,
        null_value=estimate.null_value,
        p=estimate.p,
        minimum_detectable_effect=estimate.minimum_detectable_effect,
        method=f"{method_prefix}; {estimate.method}",
        **options,
    )


def correct_p_values(finding_rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one audit with their p corrected for all of them; controls have a verdict.

    A row with a ``null_name`` gets a method that says on which side of its null the value is: only
    here is the p known that tables show.
    """
    corrected_rows = [dict(row) for row in finding_rows]
    tested_rows = [row for row in corrected_rows if row["p"] is not None and not row["control"]]
    for row, p in zip(
        tested_rows, adjust_p_values_holm([row["p"] for row in tested_rows]), strict=True
    ):
        row["p_corrected"] = p
    for row in corrected_rows:
        if null_name := row.pop("null_name", ""):
            row["method"] += f"; {describe_difference(row, null_name)}"
    return corrected_rows


def describe_difference(finding_row: Mapping[str, Any], null_name: str) -> str:
    """Say on which side of its null a finding is, by its corrected p; ``name``: of the null."""
    p = finding_row["p_corrected"]
    if p is None:
        return f"the difference from {null_name} was not tested"
    if p >= SIGNIFICANCE_LEVEL:
        return f"no difference from {null_name} was found ({format_p_value(p)}, corrected)"
    direction = "higher" if finding_row["value"] > finding_row["null_value"] else "lower"
    return f"{direction} than {null_name} ({format_p_value(p)}, corrected)"


def format_p_value(p_value: float) -> str:
    """Write a p so that it is on the side of the limit of significance on which it is."""
    text = f"{p_value:.4g}"
    if p_value < SMALLEST_P:
        return f"p < {SMALLEST_P:g}"
    if p_value < SIGNIFICANCE_LEVEL <= float(text):
        return f"p < {SIGNIFICANCE_LEVEL:g}"
    return f"p = {text}"


def build_findings_table(
    finding_rows: Iterable[Mapping[str, Any]], precision: str = "fp32"
) -> pa.Table:
    """The rows of one audit as a table with the schema FINDINGS, their p corrected for all of
    them; ``precision`` of the model they are about."""
    rows_with_precision = [
        {**row, "precision": precision} for row in correct_p_values(finding_rows)
    ]
    return pa.Table.from_pylist(rows_with_precision, schema=FINDINGS)


def select_evidence(table: pa.Table, evidence_filter: str | Mapping[str, Any]) -> pa.Table:
    """The rows of ``table`` that a finding's ``where`` selects."""
    conditions: Mapping[str, Any] = (
        json.loads(evidence_filter) if isinstance(evidence_filter, str) else evidence_filter
    )
    row_filter = build_row_filter(table.schema, conditions)
    return table if row_filter is None else table.filter(row_filter)


def choose_evidence_order(value: float, null_value: float, column: str) -> str:
    """The order of evidence by a column whose mean lies on one side of a null: the furthest on that
    side first."""
    return column if value < null_value else f"-{column}"


def _nan_to_none(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
