"""Compare findings with those of the previous release, for the model card and rules of a policy.

The comparison is that of ``hallmark compare``: paired differences of the same units. From the
interval of a difference follows by how much the checkpoint may be worse than the previous one: the
figure that a rule "not worse than by x" reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import pyarrow as pa
from pydantic import Field

from hallmark.tasks.audits.audit_descriptions import ASSOCIATIONS
from hallmark.tasks.audits.judging.audit_comparison import (
    compare_audit_findings,
    judge_change,
    select_headline_findings,
)
from hallmark.tasks.audits.judging.comparison import FindingComparison
from hallmark.tasks.audits.judging.conclusions import explain_unjudgeable_interval
from hallmark.tasks.audits.judging.findings import read_findings
from hallmark.tasks.audits.judging.policy import INTERVAL_ENDS, extract_missing_reason
from hallmark.tasks.audits.registry import compute_descriptions_digest
from hallmark.tasks.audits.slice_tags import SLICE_TYPE
from hallmark.tasks.contract import (
    ID_TYPE,
    Artifact,
    StageConfig,
    StageContext,
    column,
    rows_to_table,
    stage,
    table_schema,
)

#: Null values that differ by less are equal.
NULL_VALUE_TOLERANCE = 1e-9

CHANGES = table_schema(
    "Paired difference between each finding and the same finding in the run that audited the "
    "previous release.",
    column("finding", ID_TYPE, "id", "finding hash, as in both runs' 'findings' tables"),
    column("audit", pa.string(), "label", "the audit"),
    column("metric", pa.string(), "label", "the metric"),
    column("slice", SLICE_TYPE, "label", "subset of the units (slice); empty for all units"),
    column("previous_run", pa.string(), "label", "the previous run"),
    column("previous_value", pa.float64(), "figure", "value of the finding in the previous run"),
    column(
        "change",
        pa.float64(),
        "figure",
        "value in this run minus value in the previous run, computed from units with a value in "
        "both runs; null if the finding was not compared",
    ),
    column("low", pa.float64(), "figure", "lower end of the confidence interval for the change"),
    column("high", pa.float64(), "figure", "upper end of the confidence interval for the change"),
    column(
        "p_corrected",
        pa.float64(),
        "figure",
        "p-value of the change, corrected for all findings in the audit (Holm 1979); null if it "
        "was not tested",
    ),
    column(
        "verdict",
        pa.string(),
        "label",
        "verdict on the change: worse, better, changed, no change shown, not tested or no "
        "conclusion; empty if the finding was not compared",
    ),
    column(
        "is_main",
        pa.bool_(),
        "label",
        "whether the finding is the main finding of its metric and was compared with the previous "
        "run",
    ),
    column("n", pa.int64(), "figure", "number of pairs"),
    column("clusters", pa.int64(), "figure", "number of independent clusters of pairs"),
    column(
        "missing",
        pa.int64(),
        "figure",
        "number of pairs that lack a value in one or both runs",
    ),
    column(
        "largest_worsening",
        pa.float64(),
        "figure",
        "largest change in the harmful direction within the interval (negative if the whole "
        "interval shows an improvement); if it is null, the 'reason' column explains why",
    ),
    column(
        "method", pa.string(), "project text", "short description of how the change was estimated"
    ),
    column(
        "reason",
        pa.string(),
        "project text",
        "reason why the largest worsening is missing; empty otherwise",
    ),
)


class PreviousComparisonConfig(StageConfig):
    """Comparison with the previous run, which the run fills in; not for a config file."""

    previous_run: str = Field(description="id of the previous run")
    previous_version: str = Field(
        "", description="version of the previous release; empty if it was not specified"
    )
    incomparable_reasons: dict[str, str] = Field(
        {},
        description="audits that cannot be compared: an object that maps audit names to reasons",
    )


@dataclass(frozen=True, kw_only=True)
class FindingChange:
    """One row of CHANGES."""

    finding: bytes
    audit: str
    metric: str
    slice: Mapping[str, str]
    previous_run: str
    previous_value: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    p_corrected: float | None = None
    verdict: str = ""
    is_main: bool = False
    n: int | None = None
    clusters: int | None = None
    missing: int | None = None
    largest_worsening: float | None = None
    method: str = ""
    reason: str = ""


@stage(
    name="compare_with_previous",
    tables={"changes": CHANGES},
    external_digests=compute_descriptions_digest,
    libraries=("numpy", "scipy"),
)
def compare_with_previous(
    audits: dict[str, Artifact],
    previous_audits: dict[str, Artifact],
    previous_associations: Artifact | None,
    config: PreviousComparisonConfig,
    context: StageContext,
) -> None:
    """Write the change of each finding from a previous run.

    Args:
        audits: The audits, by name.
        previous_audits: Those of the previous run that can be compared.
        previous_associations: The audit of planted associations of the previous run, which decides
            whether a conclusion may be drawn about stereotypes; None if it has none.
        config: The previous run, and the reasons why other audits cannot be compared.
        context: The context of the stage.
    """
    changes: list[FindingChange] = []
    for audit, artifact in audits.items():
        reason = config.incomparable_reasons.get(audit, "")
        comparisons = (
            []
            if reason
            else compare_audit_findings(
                audit,
                [previous_audits[audit], artifact],
                [previous_associations, audits.get(ASSOCIATIONS)],
                [(0, 1)],
            )
        )
        comparison_by_finding = {
            comparison.findings[1]["finding"]: comparison for comparison in comparisons
        }
        main_findings = {
            comparison.findings[1]["finding"]
            for comparison in select_headline_findings(comparisons)
        }
        changes += [
            build_finding_change(
                row,
                comparison_by_finding.get(row["finding"]),
                config.previous_run,
                reason,
                is_main=row["finding"] in main_findings,
            )
            for row in read_findings(artifact)
            if not row["control"]
        ]
    context.get_table_writer("changes").write(rows_to_table(changes, CHANGES))


def build_finding_change(
    finding: Mapping[str, Any],
    comparison: FindingComparison | None,
    previous_run: str,
    incomparable_reason: str = "",
    *,
    is_main: bool = False,
) -> FindingChange:
    """Build the change of a finding from the previous run.

    Args:
        finding: The finding, a row of FINDINGS.
        comparison: The same finding in the previous run and in this one, with its change; None if
            there is none.
        previous_run: The id of the previous run.
        incomparable_reason: Why the audit cannot be compared; empty if it can.
        is_main: Whether it is the main finding of its metric.
    """
    fields: dict[str, Any] = {
        name: finding[name] for name in ("finding", "audit", "metric", "slice")
    } | {"previous_run": previous_run}
    if incomparable_reason:
        return FindingChange(**fields, reason=incomparable_reason)
    if comparison is None:
        return FindingChange(**fields, reason="the previous run does not have this finding")
    previous_finding, (change,) = comparison.findings[0], comparison.changes
    fields |= {
        "previous_value": previous_finding["value"],
        "verdict": judge_change(previous_finding, comparison.findings[1], change),
        "is_main": is_main,
    }
    if previous_finding["value"] is None:
        reason = extract_missing_reason(previous_finding["method"])
        return FindingChange(**fields, reason=f"not measured in the previous run: {reason}")
    if previous_reason := explain_unjudgeable_interval(previous_finding):
        return FindingChange(
            **fields, reason=f"inconclusive in the previous run: {previous_reason}"
        )
    if change is None:
        return FindingChange(
            **fields,
            reason="there are no pairs because the value is not a mean over the same units in "
            "both runs",
        )
    fields |= {
        "change": change["value"],
        **{
            name: change[name]
            for name in ("low", "high", "p_corrected", "n", "clusters", "missing", "method")
        },
    }
    if change["value"] is None:
        return FindingChange(**fields, reason="no pair has a value in both runs")
    if change["low"] is None or change["high"] is None:
        return FindingChange(**fields, reason=f"the difference has {change['method']}")
    if finding["worse_when"] == "away_from_null" and not _has_same_null_value(
        finding, previous_finding
    ):
        return FindingChange(**fields, reason="the null value differs between the runs")
    return FindingChange(
        **fields,
        largest_worsening=compute_largest_worsening(
            finding["worse_when"], change["low"], change["high"], previous_finding
        ),
    )


def _has_same_null_value(finding: Mapping[str, Any], previous_finding: Mapping[str, Any]) -> bool:
    null_value, previous_null_value = finding["null_value"], previous_finding["null_value"]
    return (
        null_value is not None
        and previous_null_value is not None
        and math.isclose(null_value, previous_null_value, abs_tol=NULL_VALUE_TOLERANCE)
    )


def compute_largest_worsening(
    worse_when: str, low: float, high: float, previous_finding: Mapping[str, Any]
) -> float | None:
    """Compute the largest change in the harmful direction that the interval of a change contains.

    If a metric is worse away from its null value, the direction depends on the side on which the
    previous value is. The result is then the largest increase of the distance from the null value
    that the intervals of the change and of the previous value allow together.

    Args:
        worse_when: The harmful direction, as in FINDINGS.
        low: Lower end of the interval of the change.
        high: Upper end of the interval of the change.
        previous_finding: The previous finding, a row of FINDINGS.

    Returns:
        The change; None if the metric has no harmful direction.
    """
    if worse_when == "up":
        return high
    if worse_when == "down":
        return -low
    if worse_when != "away_from_null":
        return None
    previous_ends = [previous_finding[end] for end in INTERVAL_ENDS]
    if None in previous_ends:  # the distance cannot grow by more than the value changes
        return max(abs(low), abs(high))
    null_value = previous_finding["null_value"]
    # The increase is convex in the change and monotonic in the previous value.
    return float(
        max(
            abs(previous + change - null_value) - abs(previous - null_value)
            for previous, change in product(previous_ends, (low, high))
        )
    )
