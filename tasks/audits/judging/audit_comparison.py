"""Compare the audits of several checkpoints, and judge which findings changed.

This is the one comparison behind ``hallmark compare``, the page of two runs, the page of a training
and the comparison with the previous release: which audits can be compared, which finding of a
metric is its main one, and whether a change is for the worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from hallmark.tasks.audits.audit_descriptions import ASSOCIATIONS
from hallmark.tasks.audits.judging.change_verdicts import ChangeVerdict
from hallmark.tasks.audits.judging.comparison import (
    AuditedCheckpoint,
    FindingComparison,
    PairedChange,
    compare_findings,
    explain_incomparability,
)
from hallmark.tasks.audits.judging.conclusions import withhold_conclusions_about_stereotypes
from hallmark.tasks.audits.judging.discoveries import compute_scaled_distance_beyond_null
from hallmark.tasks.audits.judging.findings import read_findings
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import Artifact, HallmarkError, Row

#: A change is significant if its corrected p is below this.
CHANGE_SIGNIFICANCE_LEVEL = 0.05

CheckpointT = TypeVar("CheckpointT", bound=AuditedCheckpoint)


@dataclass
class AuditComparison(Generic[CheckpointT]):
    """The findings of an audit at several checkpoints.

    Attributes:
        name: The name of the audit.
        checkpoints: The compared checkpoints.
        comparisons: The comparable findings.
        incomparable_reason: Why the audit cannot be compared; empty if it can.
        is_unreadable: Whether part of the store is damaged or out of reach.
        checkpoint_index_pairs: The compared pairs of checkpoints, for each change of a finding.
    """

    name: str
    checkpoints: Sequence[CheckpointT]
    comparisons: list[FindingComparison] = field(default_factory=list)
    incomparable_reason: str = ""
    is_unreadable: bool = False
    checkpoint_index_pairs: Sequence[tuple[int, int]] = ()

    @cached_property
    def artifacts(self) -> list[Artifact]:
        """Return the outputs of the audit at its checkpoints."""
        checkpoint_artifacts = [
            checkpoint.find_artifact(self.name, "audit") for checkpoint in self.checkpoints
        ]
        return [artifact for artifact in checkpoint_artifacts if artifact is not None]

    def judge(self, comparison: FindingComparison, pair_index: int = 0) -> ChangeVerdict:
        """Return the verdict on the change of a finding between a pair of checkpoints."""
        first_index, second_index = self.checkpoint_index_pairs[pair_index]
        findings = comparison.findings
        return judge_change(
            findings[first_index], findings[second_index], comparison.changes[pair_index]
        )


def compare_audits(
    checkpoints: Sequence[CheckpointT], *, along_training: bool = False
) -> list[AuditComparison[CheckpointT]]:
    """Compare each audit that at least one checkpoint has; record why others cannot be compared.

    Args:
        checkpoints: The checkpoints, in their order.
        along_training: Whether to compare the first checkpoint with an audit with the last one, and
            neighbours with each other. Otherwise all must have the audit, and each is compared with
            the first.
    """
    audits = []
    for audit_name in AUDIT_DESCRIPTIONS:
        try:
            audited_checkpoints = [
                checkpoint
                for checkpoint in checkpoints
                if checkpoint.find_artifact(audit_name, "audit")
            ]
        except HallmarkError as error:
            audits.append(_build_unreadable_comparison(audit_name, checkpoints, error))
            continue
        if not audited_checkpoints:
            continue
        audit = AuditComparison(
            audit_name, audited_checkpoints if along_training else list(checkpoints)
        )
        audits.append(audit)
        if along_training and len(audited_checkpoints) < 2:
            audit.incomparable_reason = (
                f"of the compared checkpoints, only {audited_checkpoints[0].name} has results for "
                "this audit"
            )
            continue
        audit.checkpoint_index_pairs = _list_index_pairs(len(audit.checkpoints), along_training)
        try:
            audit.incomparable_reason = explain_incomparability(audit_name, audit.checkpoints)
            if not audit.incomparable_reason:
                audit.comparisons = compare_audit_findings(
                    audit_name,
                    audit.artifacts,
                    [
                        checkpoint.find_artifact(ASSOCIATIONS, "audit")
                        for checkpoint in audit.checkpoints
                    ],
                    audit.checkpoint_index_pairs,
                )
        except HallmarkError as error:
            audits[-1] = _build_unreadable_comparison(audit_name, audit.checkpoints, error)
    return audits


def _build_unreadable_comparison(
    audit_name: str, checkpoints: Sequence[CheckpointT], error: HallmarkError
) -> AuditComparison[CheckpointT]:
    return AuditComparison(
        audit_name,
        checkpoints,
        incomparable_reason=f"cannot be read: {error}",
        is_unreadable=True,
    )


def _list_index_pairs(checkpoint_count: int, along_training: bool) -> list[tuple[int, int]]:
    last_index = checkpoint_count - 1
    if not along_training:
        return [(0, index) for index in range(1, checkpoint_count)]
    return [(0, last_index), *((i, i + 1) for i in range(last_index) if last_index > 1)]


def compare_audit_findings(
    audit_name: str,
    audits: Sequence[Artifact],
    associations: Sequence[Artifact | None],
    index_pairs: Sequence[tuple[int, int]],
) -> list[FindingComparison]:
    """Compare the findings of an audit at several checkpoints.

    As on model cards, no conclusion is drawn about stereotypes at a checkpoint that shows no
    planted association.

    Args:
        audit_name: The name of the audit.
        audits: Its artifacts.
        associations: For each of these, the audit of planted associations of the same checkpoint.
        index_pairs: The pairs of artifacts to compare.
    """
    comparisons = compare_findings(audits, index_pairs)
    if AUDIT_DESCRIPTIONS[audit_name].is_about_stereotypes:
        for index, artifact in enumerate(associations):
            if artifact is not None:
                findings = [comparison.findings[index] for comparison in comparisons]
                withhold_conclusions_about_stereotypes(
                    {audit_name: findings, ASSOCIATIONS: read_findings(artifact)}, [audit_name]
                )
    return comparisons


def select_headline_findings(comparisons: Sequence[FindingComparison]) -> list[FindingComparison]:
    """Return the main finding of each metric that has a worse direction.

    This is the overall finding, else the part that is worst at the last checkpoint. If no metric
    has a worse direction, the first finding is returned.
    """
    metrics = dict.fromkeys(entry.findings[-1]["metric"] for entry in comparisons)
    parts_by_metric = [select_directional_findings(comparisons, metric) for metric in metrics]
    selected = [
        find_overall_finding(entry)
        or max(entry, key=lambda comparison: build_harm_sort_key(comparison.findings[-1]))
        for entry in parts_by_metric
        if entry
    ]
    return selected or list(comparisons[:1])


def select_directional_findings(
    comparisons: Sequence[FindingComparison], metric: str
) -> list[FindingComparison]:
    """Return the findings of a metric that have a worse direction; baselines have none.

    Variants, such as findings about planted text, are returned only if the metric has no others.
    """
    last_findings = [(comparison, comparison.findings[-1]) for comparison in comparisons]
    directional_findings = [
        comparison
        for comparison, last_row in last_findings
        if last_row["worse_when"] and last_row["metric"] == metric
    ]
    return [
        comparison
        for comparison in directional_findings
        if not comparison.findings[-1].get("is_variant")
    ] or directional_findings


def find_overall_finding(comparisons: Sequence[FindingComparison]) -> FindingComparison | None:
    """Return the finding whose tags all others share: the others are its parts."""
    tag_sets = [comparison.findings[-1]["slice"].items() for comparison in comparisons]
    overall_findings = (
        comparison
        for comparison, finding_tags in zip(comparisons, tag_sets, strict=True)
        if all(finding_tags <= other_tags for other_tags in tag_sets)
    )
    return next(overall_findings, None)


def build_harm_sort_key(finding: Row) -> tuple[float, float]:
    """Return a key that sorts findings by harm beyond the null value, then by value."""
    value = finding["value"] or 0.0
    if finding["worse_when"] == "away_from_null":
        value = 0.0 if finding["null_value"] is None else value - finding["null_value"]
    return compute_scaled_distance_beyond_null(finding), compute_signed_harm(
        finding["worse_when"], value
    )


def compute_signed_harm(worse_when: str, amount: float) -> float:
    """Return an amount with the sign of harm: positive is worse."""
    return {"up": amount, "down": -amount, "away_from_null": abs(amount)}.get(worse_when, 0.0)


def judge_change(first_row: Row, second_row: Row, change: PairedChange | None) -> ChangeVerdict:
    """Return the verdict on the change of a finding.

    Args:
        first_row: The finding at the first checkpoint.
        second_row: The finding at the second checkpoint.
        change: The paired change; None if there is none.
    """
    if any(row.get("inconclusive_reason") for row in (first_row, second_row)):
        return "no conclusion"
    if change is None or change["p_corrected"] is None or change["value"] is None:
        return "not tested"
    if change["p_corrected"] >= CHANGE_SIGNIFICANCE_LEVEL:
        return "no change shown"
    if first_row["worse_when"] == "away_from_null":
        if any(
            row[column] is None
            for row in (first_row, second_row)
            for column in ("value", "null_value")
        ):
            return "changed"
        # The paired change and the change of all units may differ in sign.
        if (second_row["value"] - first_row["value"]) * change["value"] <= 0:
            return "changed"
        harm_change = abs(second_row["value"] - second_row["null_value"]) - abs(
            first_row["value"] - first_row["null_value"]
        )
    else:
        harm_change = compute_signed_harm(first_row["worse_when"], change["value"])
    return "worse" if harm_change > 0 else "better" if harm_change < 0 else "changed"


def is_unchanged(comparison: FindingComparison) -> bool:
    """Return whether a finding is equal everywhere, such as a baseline on the same text.

    It is if no pair of units differs or, without pairs, if all values are equal.
    """
    values = {row["value"] for row in comparison.findings}
    return all(
        len(values) == 1 if change is None else change["same"] for change in comparison.changes
    )
