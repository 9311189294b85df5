"""Find the run that audited the previous release, and compare the audits of a run with it.

``policy.previous`` names that run; rules with ``not_worse_than_previous_by`` refer to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hallmark.flows.checkpoint_comparison import CheckpointAudits, open_audit_run
from hallmark.flows.corpus import ArtifactsByLabel
from hallmark.flows.runs import Run, open_run
from hallmark.tasks.audits.judging.comparison import explain_incomparability, format_stage_label
from hallmark.tasks.audits.judging.policy import PolicyConfig
from hallmark.tasks.audits.judging.previous_comparison import (
    ASSOCIATIONS,
    PreviousComparisonConfig,
    compare_with_previous,
)
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import Artifact, Store, UsageError, get_current_session


@dataclass(frozen=True)
class CurrentAudits:
    """The audits of the run in progress, in the form that ``explain_incomparability`` compares."""

    artifacts: Mapping[str, Artifact]
    name: str = "this run"

    def find_artifact(self, audit: str, stage: str) -> Artifact | None:
        return self.artifacts.get(format_stage_label(audit, stage))


def pin_previous_run(store: Store, policy: PolicyConfig) -> PolicyConfig:
    """Replace the name of the previous run by its id, because "latest" changes.

    Raises:
        UsageError: If there is no such run, or it lacks an audit that a rule compares with it.
        HallmarkError: If its results are missing or damaged.
    """
    if policy.previous is None:
        return policy
    try:
        run = open_audit_run(store, policy.previous)
    except UsageError as error:
        raise UsageError(f"policy.previous: {error}") from error
    audits = [label.removeprefix("audit_") for label in run.stages if label.startswith("audit_")]
    if not audits:
        raise UsageError(
            f"policy.previous: run {run.id} has no audits; name a run that audited the previous "
            "release (hallmark runs lists all runs)"
        )
    for rule_name, rule in policy.rules.items():
        if not rule.is_about_previous:
            continue
        if rule.audit not in audits:
            raise UsageError(
                f"policy.rules.{rule_name}.audit: run {run.id}, which policy.previous names, has "
                f"no audit {rule.audit}; it has {', '.join(audits)}; audit that release again, and "
                "name the new run"
            )
        run[format_stage_label(rule.audit, "audit")]  # fails if it is missing or damaged
    return policy.model_copy(update={"previous": run.id})


def compare_audits_with_previous(
    policy: PolicyConfig,
    checkpoint: Artifact,
    audits: Mapping[str, Artifact],
    artifacts: ArtifactsByLabel,
) -> Artifact | None:
    """Compare the audits that rules compare with the previous run.

    Args:
        policy: The policy.
        checkpoint: The audited checkpoint.
        audits: Its audits by name.
        artifacts: The artifacts of all stages of these audits, by label.

    Returns:
        The output of ``compare_with_previous``; None if no previous run is named, or no rule
        compares any of these audits with it.
    """
    audit_names = dict.fromkeys(
        rule.audit
        for rule in policy.rules.values()
        if rule.is_about_previous and rule.audit in audits
    )
    if policy.previous is None or not audit_names:
        return None
    previous_run = open_run(policy.previous, get_current_session().store)
    previous_audits = CheckpointAudits(f"run {previous_run.id}", previous_run)
    current_audits = CurrentAudits(artifacts)
    reasons = {
        audit: _explain_incomparability_with_previous(
            audit, checkpoint, previous_audits, current_audits
        )
        for audit in audit_names
        # In a forecast, the outputs of stages may be unknown.
        if isinstance(audits[audit], Artifact)
    }
    comparable_audits = {
        audit: artifact
        for audit in audit_names
        if not reasons.get(audit) and (artifact := previous_audits.find_artifact(audit, "audit"))
    }
    return compare_with_previous(
        audits={audit: audits[audit] for audit in audit_names},
        previous_audits=comparable_audits,
        previous_associations=previous_audits.find_artifact(ASSOCIATIONS, "audit")
        if any(AUDIT_DESCRIPTIONS[audit].is_about_stereotypes for audit in comparable_audits)
        else None,
        config=PreviousComparisonConfig(
            previous_run=previous_run.id,
            incomparable_reasons={audit: reason for audit, reason in reasons.items() if reason},
        ),
    )


def _explain_incomparability_with_previous(
    audit: str,
    checkpoint: Artifact,
    previous_audits: CheckpointAudits,
    current_audits: CurrentAudits,
) -> str:
    if has_audited_checkpoint(previous_audits.audit_run, checkpoint):
        return "it audited this same checkpoint, so there is no difference to judge"
    return explain_incomparability(audit, [previous_audits, current_audits])


def has_audited_checkpoint(run: Run, checkpoint: Artifact) -> bool:
    """Return whether the model card of a run is about this checkpoint, or an equal copy of it."""
    if "model_card" not in run.stages:
        return False
    manifest = run["model_card"].manifest
    is_same_artifact: bool = manifest["lineage"]["checkpoint"] == checkpoint.name
    has_same_content: bool = manifest["parts"]["inputs"]["checkpoint"] == checkpoint.content_digest
    return is_same_artifact or has_same_content
