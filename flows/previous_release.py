"""Find the run that audited the previous release, and compare the audits of a run with it.

``policy.previous`` names that run. Without it, the newest earlier release of a model of the same
name is taken. The model card says what changed; rules with ``not_worse_than_previous_by`` judge it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hallmark.flows.checkpoint_comparison import CheckpointAudits, open_audit_run
from hallmark.flows.config import Config
from hallmark.flows.corpus import ArtifactsByLabel
from hallmark.flows.runs import Run, open_run
from hallmark.reports.review.released_versions import find_release_before, read_released_versions
from hallmark.tasks.audits.audit_descriptions import ASSOCIATIONS
from hallmark.tasks.audits.judging.comparison import explain_incomparability, format_stage_label
from hallmark.tasks.audits.judging.policy import PolicyConfig
from hallmark.tasks.audits.judging.previous_comparison import (
    PreviousComparisonConfig,
    compare_with_previous,
)
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    Store,
    UsageError,
    get_current_session,
)


@dataclass(frozen=True)
class CurrentAudits:
    """The audits of the run in progress, in the form that ``explain_incomparability`` compares."""

    artifacts: Mapping[str, Artifact]
    name: str = "this run"

    def find_artifact(self, audit: str, stage: str) -> Artifact | None:
        return self.artifacts.get(format_stage_label(audit, stage))


@dataclass(frozen=True)
class PreviousRelease:
    """A release with which a checkpoint is compared.

    Attributes:
        run_id: The run that audited it.
        version: Its stated version; empty if there is none.
    """

    run_id: str
    version: str


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
            f"policy.previous: run {run.id} has no audits; choose a run that audited the previous "
            "release (to list all runs: hallmark runs)"
        )
    for rule_name, rule in policy.rules.items():
        if not rule.is_about_previous:
            continue
        if rule.audit not in audits:
            raise UsageError(
                f"policy.rules.{rule_name}.audit: run {run.id}, which policy.previous specifies, "
                f"has no audit {rule.audit}; it has {', '.join(audits)}; audit that release again, "
                "and specify the new run"
            )
        run[format_stage_label(rule.audit, "audit")]  # fails if it is missing or damaged
    return policy.model_copy(update={"previous": run.id})


def find_previous_release(config: Config, checkpoint: Artifact) -> PreviousRelease | None:
    """Find the release with which a checkpoint is compared.

    Returns:
        The run that ``policy.previous`` names; otherwise the newest earlier release of a model of
        this name in the store; None if there is none.
    """
    store = get_current_session().store
    if config.policy.previous is not None:
        run = open_run(config.policy.previous, store)
        return PreviousRelease(run.id, str(run.get_settings("model_card").get("version") or ""))
    # In a forecast, the checkpoint may be unknown.
    checkpoint_digest = checkpoint.content_digest if isinstance(checkpoint, Artifact) else None
    released = find_release_before(
        read_released_versions(store), config.model_card.title or config.name, checkpoint_digest
    )
    return None if released is None else PreviousRelease(released.run, released.version)


def compare_audits_with_previous(
    previous_release: PreviousRelease | None,
    checkpoint: Artifact,
    audits: Mapping[str, Artifact],
    artifacts: ArtifactsByLabel,
) -> Artifact | None:
    """Compare the audits with those of the previous release.

    Args:
        previous_release: The previous release; None if there is none.
        checkpoint: The audited checkpoint.
        audits: Its audits by name.
        artifacts: The artifacts of all stages of these audits, by label.

    Returns:
        The output of ``compare_with_previous``; None if there is no previous release.
    """
    if previous_release is None:
        return None
    reasons: dict[str, str] = {}
    comparable_audits: dict[str, Artifact] = {}
    previous_associations = None
    try:
        previous_run = open_run(previous_release.run_id, get_current_session().store)
        previous_audits = CheckpointAudits(f"run {previous_run.id}", previous_run)
    except HallmarkError:
        reasons = dict.fromkeys(
            audits,
            f"the run {previous_release.run_id} of that release is missing or damaged",
        )
        previous_audits = None
    if previous_audits is not None:
        current_audits = CurrentAudits(artifacts)
        for audit, artifact in audits.items():
            if not isinstance(artifact, Artifact):  # in a forecast, it may be unknown
                continue
            reason = _explain_incomparability_with_previous(
                audit, checkpoint, previous_audits, current_audits
            )
            previous_artifact = None if reason else previous_audits.find_artifact(audit, "audit")
            if previous_artifact is None:
                reasons[audit] = reason
            else:
                comparable_audits[audit] = previous_artifact
        if any(AUDIT_DESCRIPTIONS[audit].is_about_stereotypes for audit in comparable_audits):
            previous_associations = previous_audits.find_artifact(ASSOCIATIONS, "audit")
    return compare_with_previous(
        audits=dict(audits),
        previous_audits=comparable_audits,
        previous_associations=previous_associations,
        config=PreviousComparisonConfig(
            previous_run=previous_release.run_id,
            previous_version=previous_release.version,
            incomparable_reasons=reasons,
        ),
    )


def _explain_incomparability_with_previous(
    audit: str,
    checkpoint: Artifact,
    previous_audits: CheckpointAudits,
    current_audits: CurrentAudits,
) -> str:
    """Explain why an audit cannot be compared with the previous release; empty if it can."""
    try:
        if has_audited_checkpoint(previous_audits.audit_run, checkpoint):
            return "both runs audited the same checkpoint, so there is no difference to evaluate"
        for needed_audit in {
            audit,
            *([ASSOCIATIONS] if AUDIT_DESCRIPTIONS[audit].is_about_stereotypes else []),
        }:
            if artifact := previous_audits.find_artifact(needed_audit, "audit"):
                get_current_session().check_artifact_file_sizes([artifact])
        return explain_incomparability(audit, [previous_audits, current_audits])
    except HallmarkError as error:
        return f"the previous run's results cannot be read: {error}"


def has_audited_checkpoint(run: Run, checkpoint: Artifact) -> bool:
    """Return whether the model card of a run is about this checkpoint, or an equal copy of it."""
    if "model_card" not in run.stages:
        return False
    model_card = run["model_card"]
    content_digest = model_card.get_input_digest("checkpoint")
    return (
        model_card.get_input_name("checkpoint") == checkpoint.name
        or content_digest == checkpoint.content_digest
    )
