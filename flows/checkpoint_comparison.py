"""Find the audits of checkpoints and compare their findings in pairs with the first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hallmark.flows.checkpoint_resolution import resolve_checkpoint
from hallmark.flows.notices import log_which_run_is_latest
from hallmark.flows.runs import (
    Run,
    get_site_folder,
    open_run,
    read_all_runs,
    read_latest_candidates,
)
from hallmark.reports.trajectory import AuditedTraining, get_trajectory_path
from hallmark.tasks.audits.judging.comparison import (
    FindingComparison,
    compare_findings,
    explain_incomparability,
    format_stage_label,
)
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import Artifact, HallmarkError, Row, Store, UsageError

#: After the name of a run, it means all checkpoints of the run's training.
ALL_CHECKPOINTS_SUFFIX = "@all"


@dataclass(frozen=True)
class CheckpointAudits:
    """A checkpoint, the newest run that audited it, and earlier ones, newest first."""

    name: str
    audit_run: Run
    earlier_runs: Sequence[Run] = ()

    def find_audit_run(self, audit: str) -> Run | None:
        """Return the newest run with this audit, or None."""
        runs = (self.audit_run, *self.earlier_runs)
        return next((run for run in runs if format_stage_label(audit, "audit") in run.stages), None)

    def find_artifact(self, audit: str, stage: str) -> Artifact | None:
        """Return the artifact of a stage of this audit from the newest run with the audit."""
        run = self.find_audit_run(audit)
        return (
            run[format_stage_label(audit, stage)]
            if run and format_stage_label(audit, stage) in run.stages
            else None
        )


def find_audited_checkpoints(
    store: Store, checkpoint_names: Sequence[str]
) -> list[CheckpointAudits]:
    """Find the named checkpoints and the runs that audited them.

    Args:
        store: The store of the runs.
        checkpoint_names: Checkpoints, runs that audited one, or RUN@all, which means all audited
            checkpoints of a training.

    Raises:
        UsageError: If one was never audited, or if there are fewer than two.
    """
    audited_checkpoints: list[CheckpointAudits] = []
    if not checkpoint_names:
        raise UsageError("there is nothing to compare: name two checkpoints, or RUN@all")
    for name in checkpoint_names:
        if name.endswith(ALL_CHECKPOINTS_SUFFIX):
            candidates = [
                find_checkpoint_audits(store, checkpoint)
                for checkpoint in list_checkpoint_names(store, name)
            ]
            audited_checkpoints += [
                checkpoint_audits
                for checkpoint_audits in candidates
                if checkpoint_audits is not None
            ]
            if not any(candidates):
                raise UsageError(
                    f"{name}: no checkpoint of this run has been audited yet; run: hallmark audit "
                    f"{name}"
                )
        else:
            checkpoint_audits = find_checkpoint_audits(store, name)
            if checkpoint_audits is None:
                raise UsageError(
                    f"{name} has not been audited in this store yet; run: hallmark audit {name}"
                )
            audited_checkpoints.append(checkpoint_audits)
    if len(audited_checkpoints) < 2:
        raise UsageError(
            f"{' '.join(checkpoint_names)}: only one of the checkpoints has been audited; name a "
            "second audited checkpoint, or first audit another checkpoint of the same training "
            "run: hallmark audit RUN@STEP"
        )
    return audited_checkpoints


def list_checkpoint_names(store: Store, training_name: str) -> list[str]:
    """List the checkpoints of a training, named RUN@all, as RUN@STEP.

    Raises:
        UsageError: If the run trained no model.
    """
    training_run = open_run(
        training_name.removesuffix(ALL_CHECKPOINTS_SUFFIX), store, stage="pretrain"
    )
    if "pretrain" not in training_run.stages:
        raise UsageError(
            f"{training_name}: run {training_run.id} trained no model; name a run that did "
            "(hallmark runs lists all runs)"
        )
    steps = training_run["pretrain"]["checkpoints"].read(["step"])["step"].to_pylist()
    return [f"{training_run.id}@{step}" for step in steps]


def find_checkpoint_audits(store: Store, checkpoint_name: str) -> CheckpointAudits | None:
    """Find the runs that audited a checkpoint; only that run if the name is that of an audit run.

    Returns:
        None if no run audited the checkpoint.
    """
    runs = read_all_runs(store)
    matching_runs = [run for run in runs if run.id.startswith(checkpoint_name)]
    if len(matching_runs) == 1 and matching_runs[0].flow == "audit":
        return CheckpointAudits(str(matching_runs[0].record["checkpoint"]), matching_runs[0])
    resolved = resolve_checkpoint(store, checkpoint_name)  # refuses unknown and ambiguous names
    audit_runs = group_runs_by_audited_artifact_name(runs).get(resolved.checkpoint.name)
    return CheckpointAudits(resolved.name, audit_runs[0], audit_runs[1:]) if audit_runs else None


def open_audit_run(store: Store, run_name: str, audit: str | None = None) -> Run:
    """Open a run whose findings a command reads.

    Args:
        store: The store of the runs.
        run_name: A run id, or "latest": the newest run that audited the newest trained model, or,
            in a store without a trained model, the newest that audited any.
        audit: With "latest", the audit that the run must have; None for any.

    Raises:
        UsageError: If there is no such run.
    """
    if run_name != "latest":
        return open_run(run_name, store)
    runs = read_latest_candidates(store)[::-1]
    trained_run = next((run for run in runs if "pretrain" in run.stages), None)
    audit_run = next(
        (
            run
            for run in runs
            if _has_audit(run, audit)
            and (trained_run is None or _has_audited_model_of(trained_run, run))
        ),
        None,
    )
    if audit_run is None:
        subject, checkpoint = (
            (f"run {trained_run.id}, the newest that trained a model,", trained_run.id)
            if trained_run
            else (f"the store {store.uri}", "CHECKPOINT")
        )
        only = f" --only {audit}" if audit else ""
        raise UsageError(
            f"{subject} has no audit{f' {audit}' if audit else ''} yet; run: hallmark audit "
            f"{checkpoint}{only}; or name an audited run (hallmark runs lists all runs)"
        )
    model = "the newest trained model" if trained_run else "a model"
    log_which_run_is_latest(audit_run.id, f"the newest that audited {model}")
    return audit_run


def _has_audit(run: Run, audit: str | None) -> bool:
    """Return whether a run has this audit, or any."""
    return any(
        label == f"audit_{audit}" or (audit is None and label.startswith("audit_"))
        for label in run.stages
    )


def _has_audited_model_of(trained_run: Run, audit_run: Run) -> bool:
    """Return whether a run audited the last checkpoint of a training."""
    training_artifact = trained_run.stages["pretrain"]["artifact"]
    if "pretrain" in audit_run.stages:
        return bool(audit_run.stages["pretrain"]["artifact"] == training_artifact)
    try:
        checkpoint_names = trained_run["pretrain"]["checkpoints"].read(["artifact"])["artifact"]
        audited_name = audit_run.audited_checkpoint
        if os.path.isabs(audited_name):  # a folder outside the store
            return False
        audited_checkpoint = resolve_checkpoint(audit_run.store, audited_name).checkpoint
    except HallmarkError:  # an artifact is missing
        return False
    return bool(audited_checkpoint.name == checkpoint_names[-1].as_py())


def group_runs_by_audited_artifact_name(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group the runs that audited a checkpoint by its artifact name, newest first.

    Runs whose model card is missing are skipped.
    """
    runs_by_checkpoint: dict[str, list[Run]] = {}
    for run in reversed(runs):
        with suppress(HallmarkError):
            if "model_card" in run.stages:
                checkpoint = run["model_card"].manifest["lineage"]["checkpoint"]
                runs_by_checkpoint.setdefault(checkpoint, []).append(run)
    return runs_by_checkpoint


def find_trajectory_page(store: Store, training_name: str) -> Path | None:
    """Find the page of the site about all checkpoints of a training, named RUN@all.

    Returns:
        None if the page does not exist yet, or for any other name.
    """
    if not training_name.endswith(ALL_CHECKPOINTS_SUFFIX):
        return None
    training_run = open_run(
        training_name.removesuffix(ALL_CHECKPOINTS_SUFFIX), store, stage="pretrain"
    )
    artifact_name = training_run.stages["pretrain"]["artifact"]
    first_run = next(
        run
        for run in read_all_runs(store)
        if run.stages.get("pretrain", {}).get("artifact") == artifact_name
    )
    page = get_site_folder(store) / get_trajectory_path(first_run.id)
    return page if page.exists() else None


def find_trainings_with_several_audits(runs: Sequence[Run]) -> list[AuditedTraining]:
    """Find the trainings with several audited checkpoints among all runs, oldest first."""
    runs_by_checkpoint = group_runs_by_audited_artifact_name(runs)
    runs_by_training: dict[str, list[Run]] = {}
    for run in runs:
        if "pretrain" in run.stages:
            runs_by_training.setdefault(run.stages["pretrain"]["artifact"], []).append(run)
    audited_trainings = []
    for training_runs in runs_by_training.values():
        with suppress(HallmarkError):  # its artifact is missing
            checkpoint_rows = (
                training_runs[0]["pretrain"]["checkpoints"].read(["step", "artifact"]).to_pylist()
            )
            audit_runs_by_step = {
                row["step"]: tuple(run.id for run in runs_by_checkpoint[row["artifact"]])
                for row in checkpoint_rows
                if row["artifact"] in runs_by_checkpoint
            }
            if len(audit_runs_by_step) > 1:
                involved_run_ids = {run.id for run in training_runs}.union(
                    *audit_runs_by_step.values()
                )
                audited_trainings.append(
                    AuditedTraining(
                        training_runs[0].id, frozenset(involved_run_ids), audit_runs_by_step
                    )
                )
    return audited_trainings


def compare_checkpoints(checkpoints: Sequence[CheckpointAudits]) -> Row:
    """Compare the findings of checkpoints with those of the first.

    Differences are estimated over the items that both checkpoints were asked.

    Returns:
        ``checkpoints`` (name and run), ``rows`` (one for each finding, with the values of all
        checkpoints and the differences from the first) and ``incomparable`` (the reason by audit).

    Raises:
        HallmarkError: If no audit can be compared; names the reasons.
    """
    finding_rows: list[Row] = []
    refusal_reasons: dict[str, str] = {}
    index_pairs = [(0, other_index) for other_index in range(1, len(checkpoints))]
    for audit in AUDIT_DESCRIPTIONS:
        audit_artifacts = [checkpoint.find_artifact(audit, "audit") for checkpoint in checkpoints]
        if not any(audit_artifacts):
            continue
        reason = explain_incomparability(audit, checkpoints)
        if reason:
            refusal_reasons[audit] = reason
        else:
            comparisons = compare_findings(
                [artifact for artifact in audit_artifacts if artifact], index_pairs
            )
            finding_rows += [_build_comparison_row(audit, comparison) for comparison in comparisons]
            if not comparisons:
                refusal_reasons[audit] = "the checkpoints have no finding in common"
    if not finding_rows:
        joined_reasons = "; ".join(
            f"{audit}: {reason}" for audit, reason in refusal_reasons.items()
        )
        raise HallmarkError(
            "nothing can be compared: "
            f"{joined_reasons or 'no audit ran on any of these checkpoints'}"
        )
    return {
        "checkpoints": [
            {"name": checkpoint.name, "run": checkpoint.audit_run.id} for checkpoint in checkpoints
        ],
        "incomparable": refusal_reasons,
        "rows": finding_rows,
    }


def _build_comparison_row(audit: str, comparison: FindingComparison) -> Row:
    shared_fields = ("metric", "title", "slice", "unit", "scorer", "worse_when")
    return {
        "audit": audit,
        **{field_name: comparison.findings[0][field_name] for field_name in shared_fields},
        "values": [row["value"] for row in comparison.findings],
        "ends": [(row["low"], row["high"]) for row in comparison.findings],
        "differences": comparison.changes,
    }
