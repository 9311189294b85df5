"""Describe how findings changed between checkpoints: in words, in numbers, and why they did not.

``hallmark.tasks.audits.judging.audit_comparison`` computes the changes and judges them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hallmark.reports.page.document import DataTable, InlineElement, Paragraph
from hallmark.reports.page.figures import UNNAMED_UNITS, format_number
from hallmark.reports.sections.findings import get_audit_title
from hallmark.tasks.audits.judging.audit_comparison import (
    AuditComparison,
    find_overall_finding,
    select_directional_findings,
)
from hallmark.tasks.audits.judging.change_verdicts import (
    SHOWN_CHANGES,
    UNCHANGED,
    VERDICT_GROUPS,
)
from hallmark.tasks.audits.judging.comparison import (
    FindingComparison,
    format_stage_label,
    read_findings_by_id,
)
from hallmark.tasks.audits.judging.discoveries import is_ranked
from hallmark.tasks.audits.judging.selection import correct_interval_for_choice
from hallmark.tasks.audits.slice_tags import label_part
from hallmark.tasks.contract import Artifact, Row, format_count

#: Tables show p below this as "< 0.0001".
MIN_DISPLAYED_P = 1e-4

WORST_PART_TEMPLATE = (
    "This is the most harmful of {parts} findings of this metric at {last}. Findings whose "
    "interval does not contain the value expected with no effect are ranked by the end of the "
    "interval closer to that value, and all others by their value"
)
CORRECTED_INTERVAL_TEMPLATE = (
    ". At {last}, its {level:g} % interval, corrected for this choice, is {low} to {high}"
)
SELECTION_CAVEAT = ". Some of its change may be due to this selection"
P_CORRECTION_NOTE = ". Its p-value is corrected for all of these findings"

#: Below this, p is shown as a bound.
MIN_EXACT_P = 1e-300


@dataclass(frozen=True)
class TrainingCheckpoint:
    """A checkpoint of a training run, and the outputs of the runs that audited it.

    Attributes:
        step: The training step.
        artifacts_by_run: By run, newest first, and by label, the artifacts.
    """

    step: int
    artifacts_by_run: Mapping[str, Mapping[str, Artifact | None]]

    @property
    def name(self) -> str:
        return f"step {self.step:,}"

    def find_newest_run(self, audit: str) -> str | None:
        """Return the newest run that completed an audit; None if there is none."""
        audit_label = format_stage_label(audit, "audit")
        return next(
            (run for run, artifacts in self.artifacts_by_run.items() if artifacts.get(audit_label)),
            None,
        )

    def find_artifact(self, audit: str, stage: str) -> Artifact | None:
        """Return the artifact of a stage of an audit, from the newest run that has the audit."""
        run = self.find_newest_run(audit)
        return (
            None
            if run is None
            else self.artifacts_by_run[run].get(format_stage_label(audit, stage))
        )


def explain_part_selection(
    comparison: FindingComparison,
    metric_parts: Sequence[FindingComparison],
    last_checkpoint_name: str,
) -> str:
    """Return why this part of several is shown.

    The text is empty if the finding is the overall one, has no worse direction, or was not
    measured.
    """
    last_row = comparison.findings[-1]
    if (
        not last_row["worse_when"]
        or find_overall_finding(metric_parts) is comparison
        or last_row["value"] is None
    ):
        return ""
    change = comparison.changes[0]
    caveat = _describe_corrected_interval(
        last_row, sum(is_ranked(part.findings[-1]) for part in metric_parts), last_checkpoint_name
    )
    if change is not None:
        caveat += SELECTION_CAVEAT
    if change is not None and change["p_corrected"] is not None:
        caveat += P_CORRECTION_NOTE
    return (
        f"{WORST_PART_TEMPLATE.format(parts=len(metric_parts), last=last_checkpoint_name)}{caveat}."
    )


def _describe_corrected_interval(finding: Row, part_count: int, last_checkpoint_name: str) -> str:
    """Return a sentence with the interval that is corrected for the choice of the worst part."""
    interval = correct_interval_for_choice(finding, max(1, part_count))
    if interval is None:
        return ""
    low, high = (format_number(end, finding["unit"]) for end in interval)
    return CORRECTED_INTERVAL_TEMPLATE.format(
        last=last_checkpoint_name,
        level=100 * (finding["confidence_level"] or 0.95),
        low=low,
        high=high,
    )


def format_change(value: float | None, unit: str) -> str:
    """Format a change without the percent sign; shares are in percentage points."""
    return "–" if value is None else format_number(value, unit).replace(" %", "")


def format_change_interval(change: Mapping[str, Any], unit: str) -> str:
    """Format the interval of a change."""
    bounds = change["low"], change["high"]
    return "–" if None in bounds else " to ".join(format_change(bound, unit) for bound in bounds)


def format_p_value(p_value: float | None) -> str:
    """Format a p value; "–" if it is missing or NaN."""
    if p_value is None or math.isnan(p_value):
        return "–"
    return f"< {MIN_DISPLAYED_P:g}" if p_value < MIN_DISPLAYED_P else format_number(p_value, "p")


def format_change_unit_suffix(unit: str) -> str:
    """Return the unit of a change, as written after the word for it."""
    return " (points)" if unit == "share" else f" ({unit})" if unit not in UNNAMED_UNITS else ""


def describe_change(change: Mapping[str, Any], unit: str) -> str:
    """Describe a change in words, as ``hallmark compare`` prints it."""
    if change["value"] is None:
        return "no pair has two measured values"
    description = f"{format_change(change['value'], unit)}{' points' if unit == 'share' else ''}"
    if change["low"] is not None:
        description += f" ({format_change_interval(change, unit)})"
    if (p_corrected := change["p_corrected"]) is not None:
        description += (
            f", corrected p = {p_corrected:.3g}"
            if p_corrected > MIN_EXACT_P
            else f", corrected p < {MIN_EXACT_P:g}"
        )
    description += f", {change['n']} pair{'' if change['n'] == 1 else 's'}"
    if change["clusters"] < change["n"]:
        description += f" in {format_count(change['clusters'], 'cluster')}"
    return description


def describe_verdict_counts(verdicts: Sequence[str]) -> str:
    """Say how many of the main findings got worse, got better, or show no change."""
    if not verdicts:
        return "there are no main findings"
    counts = [
        (group, sum(verdict in group.verdicts for verdict in verdicts)) for group in VERDICT_GROUPS
    ]
    parts = [
        f"{count} {group.format_predicate(count)}"
        for group, count in counts
        if count and not (group is UNCHANGED and count == len(verdicts))
    ]
    if not any(verdict in SHOWN_CHANGES for verdict in verdicts):
        parts.insert(0, "none shows a change")
    return f"of {format_count(len(verdicts), 'main finding')}, {', '.join(parts)}"


def _explain_missing_pairs(comparison: FindingComparison, audit: AuditComparison[Any]) -> str:
    """Return why a finding has no paired change."""
    if all(row["value"] is None for row in comparison.findings):
        return "not measured at any checkpoint"
    if not comparison.findings[-1]["worse_when"] and select_directional_findings(
        audit.comparisons, comparison.findings[-1]["metric"]
    ):
        return "compared by value only, because the baselines are measured on the same text"
    return "compared by value only, because it is not a mean over the same units at each checkpoint"


def build_exclusions_table(
    audits: Sequence[AuditComparison[Any]], redact: Callable[[str], str]
) -> DataTable | Paragraph:
    """Build the table of findings that are not compared, or not in pairs, with the reasons."""
    rows: list[list[InlineElement]] = []
    for audit in audits:
        audit_title = get_audit_title(audit.name)
        if audit.incomparable_reason:
            rows.append([audit_title, "all findings", redact(audit.incomparable_reason)])
            continue
        findings_by_checkpoint = [read_findings_by_id(artifact) for artifact in audit.artifacts]
        rows_by_id: dict[bytes, Row] = {}
        for checkpoint_findings in findings_by_checkpoint:
            rows_by_id = checkpoint_findings | rows_by_id
        titles = {row["metric"]: row["title"] for row in rows_by_id.values()}
        missing_parts: dict[tuple[str, str], list[str]] = {}
        for finding_id, finding_row in rows_by_id.items():
            missing_checkpoints = [
                checkpoint.name
                for checkpoint, checkpoint_findings in zip(
                    audit.checkpoints, findings_by_checkpoint, strict=True
                )
                if finding_id not in checkpoint_findings
            ]
            if missing_checkpoints:
                key = (finding_row["metric"], ", ".join(missing_checkpoints))
                missing_parts.setdefault(key, []).append(label_part(finding_row["slice"]))
        for (metric, checkpoint_names), part_labels in missing_parts.items():
            part_label = (
                f", {part_labels[0]}" if len(part_labels) == 1 else f", {len(part_labels)} parts"
            )
            finding_label = titles[metric] + (part_label if any(part_labels) else "")
            rows.append([audit_title, redact(finding_label), f"not found at {checkpoint_names}"])
        finding_counts = Counter(
            comparison.findings[0]["metric"] for comparison in audit.comparisons
        )
        unpaired_by_reason: dict[str, Counter[str]] = {}
        for comparison in audit.comparisons:
            if comparison.changes[0] is None:
                unpaired_by_reason.setdefault(_explain_missing_pairs(comparison, audit), Counter())[
                    comparison.findings[0]["metric"]
                ] += 1
        for reason, unpaired_counts in unpaired_by_reason.items():
            metric_texts = [
                f"{titles[metric]}, {count} of {finding_counts[metric]} findings"
                if count < finding_counts[metric]
                else titles[metric]
                for metric, count in unpaired_counts.items()
            ]
            rows.append([audit_title, redact("; ".join(metric_texts)), reason])
    if not audits:
        return Paragraph(["The store contains no audits of these checkpoints."])
    if not rows and not any(audit.comparisons for audit in audits):
        return Paragraph(["The audits of these checkpoints produced no findings."])
    if not rows:
        return Paragraph(
            ["Every finding was computed at every checkpoint, so all comparisons are paired."]
        )
    return DataTable(
        "Findings not compared, or compared without pairing", ["audit", "findings", "why"], rows
    )
