"""Find the audits of checkpoints and compare their findings in pairs with the first."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from hallmark.flows.checkpoint_resolution import resolve_checkpoint
from hallmark.flows.checkpoint_versions import CheckpointVersion, shorten_version_name
from hallmark.flows.notices import log_which_run_is_latest
from hallmark.flows.runs import (
    Run,
    get_site_folder,
    iter_latest_candidates,
    open_run,
    read_all_runs,
)
from hallmark.reports.artifact_lookup import find_artifact_by_name
from hallmark.reports.page.figures import Figure
from hallmark.reports.run_comparison import ComparedRun, FindingLinker, RunComparison
from hallmark.reports.sections.corpus_comparison import COMPARED_STAGES
from hallmark.reports.sections.corpus_figures import PROFILE
from hallmark.reports.trajectory import AuditedTraining, get_trajectory_path
from hallmark.tasks.audits.judging.audit_comparison import (
    AuditComparison,
    compare_audits,
    is_unchanged,
    select_headline_findings,
)
from hallmark.tasks.audits.judging.change_verdicts import ChangeVerdict, build_change_sort_key
from hallmark.tasks.audits.judging.comparison import (
    AuditedCheckpoint,
    FindingComparison,
    format_stage_label,
)
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
        raise UsageError("nothing to compare; specify two checkpoints, or RUN@all")
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
            audited_checkpoints.append(_find_checkpoint_audits_or_fail(store, name))
    if len(audited_checkpoints) < 2:
        raise UsageError(
            f"{' '.join(checkpoint_names)}: only one of the checkpoints has been audited; specify "
            "a second audited checkpoint, or first audit another checkpoint of the same training "
            "run: hallmark audit RUN@STEP"
        )
    distinct_checkpoints = {
        checkpoint.audit_run.id: checkpoint for checkpoint in reversed(audited_checkpoints)
    }
    if len(distinct_checkpoints) < 2:
        raise _build_same_run_error(checkpoint_names, audited_checkpoints[0].audit_run.id)
    return list(reversed(distinct_checkpoints.values()))


def _find_checkpoint_audits_or_fail(store: Store, checkpoint_name: str) -> CheckpointAudits:
    checkpoint_audits = find_checkpoint_audits(store, checkpoint_name)
    if checkpoint_audits is None:
        raise UsageError(
            f"{checkpoint_name} has not been audited in this store yet; run: hallmark audit "
            f"{checkpoint_name}"
        )
    return checkpoint_audits


def _build_same_run_error(names: Sequence[str], run_id: str) -> UsageError:
    return UsageError(
        f"{' and '.join(names)} refer to the same audit, in run {run_id}, so there is nothing to "
        "compare (only the newest audit of each checkpoint is used); specify two different "
        "checkpoints, or two audit runs (to list all runs: hallmark runs)"
    )


def find_compared_runs(store: Store, first_name: str, second_name: str) -> list[ComparedRun]:
    """Find two runs to compare, with the audits of their checkpoints and their corpora.

    Args:
        store: The store of the runs.
        first_name: A checkpoint, a run that audited one, or a run that only built a corpus.
        second_name: As the first.

    Raises:
        UsageError: If one does not exist or has nothing to compare, or if both are the same run.
    """
    runs = [_find_compared_run(store, name) for name in (first_name, second_name)]
    if runs[0].run_id == runs[1].run_id:
        raise _build_same_run_error([first_name, second_name], runs[0].run_id)
    return runs


def _find_compared_run(store: Store, name: str) -> ComparedRun:
    named_runs = [run for run in read_all_runs(store) if name and run.id.startswith(name)]
    named_run = named_runs[0] if len(named_runs) == 1 else None
    trained_nothing = named_run is not None and not {"pretrain", "finetune"} & {*named_run.stages}
    if named_run and named_run.flow != "audit" and trained_nothing:
        if PROFILE not in named_run.stages:
            raise UsageError(
                f"{name}: run {named_run.id} has neither an audited model nor a datasheet; choose "
                "another run (to list all runs: hallmark runs)"
            )
        return _build_compared_run(f"corpus of run {named_run.id}", named_run, None)
    audits = find_checkpoint_audits(store, name)
    if audits is None and named_run and PROFILE in named_run.stages:
        return _build_compared_run(f"corpus of run {named_run.id}", named_run, None)
    if audits is None:
        audits = _find_checkpoint_audits_or_fail(store, name)
    return _build_compared_run(audits.name, audits.audit_run, audits)


def _build_compared_run(name: str, run: Run, audits: CheckpointAudits | None) -> ComparedRun:
    artifact_names: dict[str, str] = {
        label: run.stages[label]["artifact"] for label in COMPARED_STAGES if label in run.stages
    }
    for card_label in ("datasheet", "model_card"):
        if card_label in run.stages:
            with suppress(HallmarkError):  # it is missing
                artifact_names |= run[card_label].get_input_names_by_key("corpus_artifacts")
    artifacts = {
        label: find_artifact_by_name(run.store, artifact_name)
        for label, artifact_name in artifact_names.items()
    }
    return ComparedRun(
        name,
        run.id,
        run.record["config"],
        audits,
        {label: artifact for label, artifact in artifacts.items() if artifact is not None},
    )


def list_checkpoint_names(store: Store, training_name: str) -> list[str]:
    """List the checkpoints of a training, named RUN@all, as RUN@STEP.

    Raises:
        UsageError: If the run trained no model.
    """
    training_run = open_run(
        training_name.removesuffix(ALL_CHECKPOINTS_SUFFIX), store, stage="pretrain"
    )
    checkpoint_rows = training_run.list_committed_checkpoints()
    if not checkpoint_rows or "finetune" in training_run.stages:
        raise UsageError(
            f"{training_name}: run {training_run.id} did not train a model; choose a run that did "
            "(to list all runs: hallmark runs)"
        )
    return [f"{training_run.id}@{row['step']}" for row in checkpoint_rows]


def find_checkpoint_audits(store: Store, checkpoint_name: str) -> CheckpointAudits | None:
    """Find the runs that audited a checkpoint; only that run if the name is that of an audit run.

    Returns:
        None if no run audited the checkpoint.
    """
    runs = read_all_runs(store)
    matching_runs = [run for run in runs if run.id.startswith(checkpoint_name)]
    if len(matching_runs) == 1 and matching_runs[0].flow == "audit":
        name = shorten_version_name(str(matching_runs[0].record["checkpoint"]))
        return CheckpointAudits(name, matching_runs[0])
    if version := CheckpointVersion.parse(checkpoint_name):
        return _find_version_audits(runs, version)
    resolved = resolve_checkpoint(store, checkpoint_name)  # refuses unknown and ambiguous names
    audit_runs = group_runs_by_audited_artifact_name(runs).get(resolved.checkpoint.name)
    return CheckpointAudits(resolved.name, audit_runs[0], audit_runs[1:]) if audit_runs else None


def _find_version_audits(
    runs: Sequence[Run], version: CheckpointVersion
) -> CheckpointAudits | None:
    """Find the runs that audited a version of a folder or a URI, which may have been replaced.

    Raises:
        UsageError: If the given digits belong to several versions.
    """
    runs_by_name = {
        name: audit_runs
        for name, audit_runs in group_runs_by_audited_artifact_name(runs).items()
        if version.is_of_artifact(name)
    }
    if len(runs_by_name) > 1:
        raise UsageError(
            f"{version.name}: several audited checkpoints have digests with this prefix: "
            f"{', '.join(runs_by_name)}; specify more digits"
        )
    for audit_runs in runs_by_name.values():
        return CheckpointAudits(version.short_name, audit_runs[0], audit_runs[1:])
    return None


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
    runs = iter_latest_candidates(store)
    newest_runs: list[Run] = []
    trained_run = None
    for run in runs:
        newest_runs.append(run)
        if "pretrain" in run.stages:
            trained_run = run
            break
    audit_run = next(
        (
            run
            for run in chain(newest_runs, runs)
            if _has_audit(run, audit)
            and (trained_run is None or _has_audited_model_of(trained_run, run))
        ),
        None,
    )
    if audit_run is None:
        subject, checkpoint = (
            (f"run {trained_run.id}, the newest run that trained a model,", trained_run.id)
            if trained_run
            else (f"the store {store.uri}", "CHECKPOINT")
        )
        only = f" --only {audit}" if audit else ""
        raise UsageError(
            f"{subject} has no audit{f' {audit}' if audit else ''} yet; run: hallmark audit "
            f"{checkpoint}{only}; or choose an audited run (to list all runs: hallmark runs)"
        )
    model = "the newest trained model" if trained_run else "a model"
    log_which_run_is_latest(audit_run.id, f"the newest run that audited {model}")
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
        if os.path.isabs(audited_name) or CheckpointVersion.parse(audited_name):
            # It is outside the store.
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
                checkpoint = run["model_card"].get_input_name("checkpoint")
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
        ``checkpoints`` (name and run); ``rows``, one for each finding, with the values of all
        checkpoints, the differences from the first and their verdicts, what changed first;
        ``incomparable`` (the reason by audit); and ``unreadable``, the audits whose tables are
        missing or damaged.

    Raises:
        HallmarkError: If no audit can be compared; names the reasons.
    """
    return _report_audits(
        compare_audits(checkpoints),
        [(checkpoint.name, checkpoint.audit_run.id) for checkpoint in checkpoints],
    )


def _report_audits(
    audits: Sequence[AuditComparison[Any]], checkpoints: Sequence[tuple[str, str]]
) -> Row:
    """Return compared audits as a report; ``checkpoints`` are their names and runs."""
    refusal_reasons: dict[str, str] = {}
    sortable_rows: list[tuple[Any, Row]] = []
    for audit in audits:
        if audit.incomparable_reason:
            refusal_reasons[audit.name] = audit.incomparable_reason
        elif not audit.comparisons:
            refusal_reasons[audit.name] = "the checkpoints have no findings in common"
        headlines = select_headline_findings(audit.comparisons)
        for comparison in audit.comparisons:
            verdicts = [audit.judge(comparison, index) for index in range(len(comparison.changes))]
            row = _build_comparison_row(audit.name, comparison, verdicts)
            row["is_main"] = any(comparison is headline for headline in headlines)
            sort_key = min(map(build_change_sort_key, verdicts, comparison.changes))
            sortable_rows.append((sort_key, row))
    if not sortable_rows:
        joined_reasons = "; ".join(
            f"{audit}: {reason}" for audit, reason in refusal_reasons.items()
        )
        raise HallmarkError(
            "nothing can be compared: "
            f"{joined_reasons or 'no audit ran on any of these checkpoints'}"
        )
    return {
        "checkpoints": [{"name": name, "run": run_id} for name, run_id in checkpoints],
        "incomparable": refusal_reasons,
        "unreadable": [audit.name for audit in audits if audit.is_unreadable],
        "rows": [row for _, row in sorted(sortable_rows, key=lambda entry: entry[0])],
    }


def report_run_comparison(comparison: RunComparison) -> Row:
    """Return the comparison of two runs as a report.

    Returns:
        The comparison of ``compare_checkpoints``, without rows if one has no audits; ``settings``
        that differ; ``training_data``, the tables of figures that differ; and
        ``training_data_not_compared``, the reason by table.

    Raises:
        HallmarkError: If both are audited and no audit can be compared; names the reasons.
    """
    checkpoints = [(run.name, run.run_id) for run in (comparison.before, comparison.after)]
    report: Row = {
        "checkpoints": [{"name": name, "run": run_id} for name, run_id in checkpoints],
        "incomparable": {},
        "unreadable": [],
        "rows": [],
    }
    if comparison.unaudited_run is None:
        report = _report_audits(comparison.audits, checkpoints)
    return report | {
        "settings": [asdict(difference) for difference in comparison.setting_differences],
        "training_data": [
            {
                "title": table.title,
                "unit": table.unit,
                "rows": [
                    asdict(figure) | {"difference": figure.difference}
                    for figure in table.figures
                    if not figure.is_equal
                ],
            }
            for table in comparison.corpus_tables
            if not table.is_equal
        ],
        "training_data_not_compared": dict(comparison.missing_corpus_tables),
    }


def build_finding_linker(get_href: Callable[[str, Figure], str | None]) -> FindingLinker:
    """Return a function that links values to the pages of their rows.

    Args:
        get_href: Returns the address of the rows of a figure of the model card of a run; None if
            there is no such page.
    """

    @functools.cache
    def list_evidence_ids(run: Run) -> frozenset[str]:
        with suppress(HallmarkError):
            return frozenset(run["model_card"]["evidence"].read(["id"])["id"].to_pylist())
        return frozenset()

    def link_finding(checkpoint: AuditedCheckpoint, audit: str, figure: Figure) -> str | None:
        assert isinstance(checkpoint, CheckpointAudits)
        run = checkpoint.find_audit_run(audit)
        if run is None or figure.evidence_id not in list_evidence_ids(run):
            return None
        return get_href(run.id, figure)

    return link_finding


def _build_comparison_row(
    audit: str, comparison: FindingComparison, verdicts: Sequence[ChangeVerdict]
) -> Row:
    shared_fields = ("metric", "title", "slice", "unit", "scorer", "worse_when")
    return {
        "audit": audit,
        **{field_name: comparison.findings[0][field_name] for field_name in shared_fields},
        "values": [row["value"] for row in comparison.findings],
        "ends": [(row["low"], row["high"]) for row in comparison.findings],
        "differences": comparison.changes,
        "verdicts": verdicts,
        "is_unchanged": is_unchanged(comparison),
    }
