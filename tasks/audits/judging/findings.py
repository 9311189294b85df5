"""Define findings, the results of an audit: one row per figure, with the rows it is based on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from hallmark.tasks.audits.audit_tables import hash_json_values
from hallmark.tasks.audits.judging.evidence_filters import RowConditions, select_rows
from hallmark.tasks.audits.judging.harm import Direction, compute_harm_p
from hallmark.tasks.audits.slice_tags import SLICE_TYPE, tags_to_slice
from hallmark.tasks.contract import (
    ID_TYPE,
    Artifact,
    Row,
    column,
    rows_to_table,
    table_schema,
    table_to_rows,
)
from hallmark.tasks.measures.estimates import Estimate
from hallmark.tasks.measures.multiple_testing import adjust_p_values_holm

FINDINGS = table_schema(
    "Audit results, one row per estimated value, with a filter that selects the rows used for the "
    "value.",
    column(
        "finding",
        ID_TYPE,
        "id",
        "hash of the audit, metric, slice and control type; identical for the same finding in "
        "different runs",
    ),
    column("audit", pa.string(), "label", "the audit"),
    column("metric", pa.string(), "label", "metric name, as used in policies and commands"),
    column("title", pa.string(), "label", "metric title, as shown on cards"),
    column(
        "slice",
        SLICE_TYPE,
        "label",
        "subset of the units (slice), as name-value pairs, such as copies: 64; empty for all units",
    ),
    column(
        "value",
        pa.float64(),
        "figure",
        "estimated value; null if it could not be measured (see the 'method' column for the "
        "reason)",
    ),
    column("low", pa.float64(), "figure", "lower end of the confidence interval, if there is one"),
    column("high", pa.float64(), "figure", "upper end of the confidence interval"),
    column("confidence_level", pa.float64(), "figure", "level of the interval", unit="share"),
    column(
        "n", pa.int64(), "figure", "number of measured units, such as prompts, pairs or canaries"
    ),
    column(
        "clusters",
        pa.int64(),
        "figure",
        "number of independent clusters of units used to compute the interval; null if it was not "
        "recorded",
    ),
    column(
        "missing",
        pa.int64(),
        "figure",
        "number of units omitted because a scorer failed or the model returned no number",
    ),
    column(
        "null_value",
        pa.float64(),
        "figure",
        "value expected if there is no effect (null value); null if there is no such value",
    ),
    column(
        "null_name",
        pa.string(),
        "label",
        "name of the null value if the finding tests whether the estimated value is higher than "
        "the null value (see the 'method' column for the test); otherwise empty",
    ),
    column(
        "p",
        pa.float64(),
        "figure",
        "p-value: probability of a value at least this far from the null value if there is no "
        "effect",
    ),
    column(
        "p_corrected",
        pa.float64(),
        "figure",
        "p-value corrected for all tests in the audit (Holm 1979)",
    ),
    column(
        "p_harm",
        pa.float64(),
        "figure",
        "one-sided p-value in the harmful direction (see worse_when; two-sided if both directions "
        "are harmful), used to compute the false discovery rate of a card; null for controls, for "
        "variants, and for findings without a harmful direction, a test or a conclusion",
    ),
    column(
        "inconclusive_reason",
        pa.string(),
        "project text",
        "reason why no conclusion can be drawn from the finding; empty if a conclusion can be "
        "drawn",
    ),
    column(
        "is_variant",
        pa.bool_(),
        "label",
        "whether the finding answers the same question as another finding in a different way, or "
        "measures text planted to test the audit; such a finding is reported but not ranked",
    ),
    column(
        "minimum_detectable_effect",
        pa.float64(),
        "figure",
        "minimum detectable effect: smallest distance from the null value that a test on the "
        "units can detect with power 0.8",
    ),
    column("unit", pa.string(), "label", "unit, such as share, bits, nats or score"),
    column(
        "method", pa.string(), "project text", "short description of how the value was measured"
    ),
    column("precision", pa.string(), "label", "model precision: fp32, bf16 or fp16"),
    column("scorer", pa.string(), "label", "name and digest of the scorer, if one was used"),
    column(
        "control",
        pa.string(),
        "label",
        "type of control: positive (the effect is known to exist) or negative (there "
        "is no effect); empty for a measurement",
    ),
    column(
        "verdict",
        pa.string(),
        "label",
        "control outcome: pass, fail, or not_shown (the interval of a scorer control contains the "
        "required share, or a model control has no interval); empty for a measurement",
    ),
    column(
        "control_target",
        pa.string(),
        "label",
        "target of the control: instrument (the audit itself, for any model), scorer or baseline "
        "(a part of the audit, without the model), or model (whether the model is capable enough "
        "for the audit); empty for a measurement",
    ),
    column(
        "worse_when",
        pa.string(),
        "label",
        "direction in which values become worse: up, down or away_from_null; empty if no direction "
        "is worse",
    ),
    column("evidence_table", pa.string(), "label", "table that contains the evidence"),
    column(
        "evidence_filter",
        pa.string(),
        "label",
        "JSON object that selects the rows of evidence; it maps a column to a value, a "
        "list of values, null, or {ge: minimum, lt: exclusive maximum}",
    ),
    column(
        "evidence_order",
        pa.string(),
        "label",
        "column used to sort the rows, worst first, preceded by a minus sign if the largest values "
        "are the worst; empty if the rows are not sorted",
    ),
)


#: The values of the columns of the same name.
ControlKind = Literal["", "positive", "negative"]
ControlTarget = Literal["", "instrument", "scorer", "baseline", "model"]

#: Confidence level of every interval, unless a finding says otherwise.
CONFIDENCE_LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row of FINDINGS. A figure that could not be measured is None.

    ``title``, ``precision`` and ``p_corrected`` are set when the table of an audit is built.
    """

    audit: str
    metric: str
    value: float | None
    unit: str
    method: str
    n: int
    slice: Mapping[str, str] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    confidence_level: float | None = None
    clusters: int | None = None
    missing: int | None = None
    null_value: float | None = None
    null_name: str = ""
    p: float | None = None
    p_harm: float | None = None
    inconclusive_reason: str = ""
    is_variant: bool = False
    minimum_detectable_effect: float | None = None
    scorer: str = ""
    control: ControlKind = ""
    control_target: ControlTarget = ""
    verdict: Literal["", "pass", "fail", "not_shown"] = ""
    worse_when: Direction = ""
    evidence_table: str = ""
    evidence_filter: str = "{}"
    evidence_order: str = ""
    title: str = ""
    precision: str = ""
    p_corrected: float | None = None
    finding: bytes = field(init=False)

    def __post_init__(self) -> None:
        finding_id = hash_json_values(self.audit, self.metric, dict(self.slice), self.control)
        object.__setattr__(self, "finding", finding_id)


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
    control: ControlKind = "",
    passed: bool | None = None,
    control_target: ControlTarget = "",
    worse_when: Direction = "",
    evidence_table: str = "values",
    evidence_filter: RowConditions | None = None,
    evidence_order: str = "",
    clusters: int | None = None,
    missing: int | None = None,
    null_value: float | None = None,
    null_name: str = "",
    p: float | None = None,
    p_above_null: float = math.nan,
    is_variant: bool = False,
    inconclusive_reason: str = "",
    minimum_detectable_effect: float | None = None,
) -> Finding:
    """Build a finding; NaN and None mean "could not be measured" and become None.

    Args:
        audit: The audit.
        metric: The metric.
        value: The figure.
        unit: Its unit.
        method: The method, in a phrase.
        n: Number of measured units.
        part: First tag of the slice, shown without its name.
        tags: Further tags: ``part`` and ``tags`` give a slice such as "passage, copies=64".
        low: Lower end of the interval; if either end is missing, there is no interval.
        high: Upper end of the interval.
        confidence_level: Level of the interval.
        scorer: Name and digest of the scorer.
        control: Kind of a control.
        passed: Verdict of a control; required for a control, else None.
        control_target: What the control tests; required for a control, else empty.
        worse_when: Which direction is worse.
        evidence_table: Table that holds the evidence.
        evidence_filter: Filter of its rows.
        evidence_order: Order of its rows.
        clusters: Number of independent clusters.
        missing: Number of units without a value.
        null_value: The value if there is nothing to find.
        null_name: Name of the null value, if p is one-sided: is the value higher?
        p: Uncorrected p; ``correct_p_values`` corrects it.
        p_above_null: Exact one-sided p of a value above the null value; NaN: half of p.
        is_variant: Whether it is reported but not ranked.
        inconclusive_reason: Why no conclusion may be drawn from it, which then has no p; for a
            control of the model's capability, why none may be drawn from the findings that it
            governs.
        minimum_detectable_effect: Smallest detectable distance from the null value.

    Raises:
        ValueError: Only some of control, control_target and passed are given.
    """
    if not bool(control) == bool(control_target) == (passed is not None):
        raise ValueError(
            f"{audit}: {metric} must have either all of 'control', 'control_target' and "
            "'passed', or none of them"
        )
    low, high, null_value = _nan_to_none(low), _nan_to_none(high), _nan_to_none(null_value)
    if low is None or high is None:
        low = high = None
    if inconclusive_reason and not control:
        p = None
    p_harm = math.nan
    if not (control or is_variant or p is None or value is None or null_value is None):
        p_harm = compute_harm_p(p, value, null_value, worse_when, p_above_null)
    return Finding(
        audit=audit,
        metric=metric,
        slice=tags_to_slice(({"part": part} if part else {}) | dict(tags or {})),
        value=_nan_to_none(value),
        low=low,
        high=high,
        confidence_level=None if low is None else confidence_level,
        n=n,
        clusters=clusters,
        missing=missing,
        null_value=null_value,
        null_name="" if null_value is None else null_name,
        p=_nan_to_none(p),
        p_harm=_nan_to_none(p_harm),
        is_variant=is_variant,
        inconclusive_reason=inconclusive_reason,
        minimum_detectable_effect=_nan_to_none(minimum_detectable_effect),
        unit=unit,
        method=method,
        scorer=scorer,
        control=control,
        verdict="" if passed is None else "pass" if passed else "fail",
        control_target=control_target,
        worse_when=worse_when,
        evidence_table=evidence_table,
        evidence_filter=json.dumps(dict(evidence_filter or {}), ensure_ascii=False, sort_keys=True),
        evidence_order=evidence_order,
    )


def build_finding_from_estimate(
    audit: str,
    metric: str,
    estimate: Estimate,
    *,
    unit: str,
    method_prefix: str,
    **options: Any,
) -> Finding:
    """Build a finding from an estimate; the method is the prefix and the estimate's."""
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
        p_above_null=estimate.p_above_null,
        minimum_detectable_effect=estimate.minimum_detectable_effect,
        method=f"{method_prefix}; {estimate.method}",
        **options,
    )


def correct_p_values(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of one audit with p corrected for all its tests, except controls.

    The method of a finding with a ``null_name``, whose p is one-sided, says whether it is higher
    than its null value.
    """
    findings = list(findings)
    p_by_index = {
        index: finding.p
        for index, finding in enumerate(findings)
        if finding.p is not None and not finding.control
    }
    corrected_values = adjust_p_values_holm([*p_by_index.values()])
    corrected_by_index = dict(zip(p_by_index, corrected_values, strict=True))
    corrected_findings = [
        replace(finding, p_corrected=corrected_by_index.get(index))
        for index, finding in enumerate(findings)
    ]
    return [
        replace(finding, method=f"{finding.method}; {describe_side_of_null(finding)}")
        if finding.null_name
        else finding
        for finding in corrected_findings
    ]


def describe_side_of_null(finding: Finding) -> str:
    """Say whether a finding is higher than its null value, with its one-sided p.

    Whether the difference counts as a discovery depends on all audits of a card, so it is not said
    here.
    """
    null_name = finding.null_name
    if finding.value is None or finding.null_value is None or finding.p is None:
        return f"it was not tested whether the value is higher than {null_name}"
    side = "higher" if finding.value > finding.null_value else "not higher"
    return f"{side} than {null_name} (one-sided p = {finding.p:.4g}, uncorrected)"


def build_findings_table(
    findings: Iterable[Finding], title_by_metric: Mapping[str, str], precision: str = "fp32"
) -> pa.Table:
    """Build the table FINDINGS of one audit, with corrected p and the precision of the model.

    Args:
        findings: The findings.
        title_by_metric: The title of each of their metrics.
        precision: Precision of the model.
    """
    complete_findings = [
        replace(finding, title=title_by_metric[finding.metric], precision=precision)
        for finding in correct_p_values(findings)
    ]
    return rows_to_table(complete_findings, FINDINGS)


class AuditControl(NamedTuple):
    """Hold a control of an audit.

    Attributes:
        audit: Name of the audit.
        row: Its row of FINDINGS, at least the columns control, control_target and verdict.
    """

    audit: str
    row: Mapping[str, Any]


def read_findings(audit: Artifact) -> list[Row]:
    """Read the rows of the findings of an audit."""
    return table_to_rows(audit["findings"].read())


def select_evidence(table: pa.Table, evidence_filter: str | RowConditions) -> pa.Table:
    """Select the rows of a table by the ``evidence_filter`` of a finding."""
    conditions: RowConditions = (
        json.loads(evidence_filter) if isinstance(evidence_filter, str) else evidence_filter
    )
    return select_rows(table, conditions)


def choose_evidence_order(value: float, null_value: float, column: str) -> str:
    """Return the order of evidence that shows first the rows furthest on the value's side."""
    return column if value < null_value else f"-{column}"


def _nan_to_none(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
