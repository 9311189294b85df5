"""List the runs of a store: what each executed, how it ended and whether it passed its policy."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from cyclopts import Parameter

from hallmark.flows.checkpoint_versions import shorten_version_name
from hallmark.flows.commands.options import (
    JsonOption,
    StoreOption,
    format_single_line,
    print_result,
)
from hallmark.flows.run_order import list_run_ids
from hallmark.flows.run_progress import read_run_progress
from hallmark.flows.runs import TRIAL_FLOW, Run, open_store, read_all_runs
from hallmark.tasks.audits.judging.policy_outcome import PolicyOutcome, judge_policy
from hallmark.tasks.contract import HallmarkError, Row, map_store_reads

FlowName = Literal["pipeline", "audit", "finetune", "prove", "study", "trial"]
RunStatus = Literal["completed", "failed", "running", "cancelled", "interrupted"]

#: The largest numbers of characters of a cell of the list and of the reason for the end of a run.
MAX_CELL_CHARACTERS, MAX_REASON_CHARACTERS = 300, 1000

#: The fields of run.json with which each row of the list begins.
RECORD_FIELDS = ("run", "flow", "config_name", "checkpoint", "started", "ended", "error")


def runs(
    *,
    flow: FlowName | None = None,
    config: str | None = None,
    status: RunStatus | None = None,
    policy_failed: Annotated[bool, Parameter(negative="")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the runs in a store, newest last, with each run's outcome and policy verdict.

    Parameters
    ----------
    flow
        Only runs of this flow; the trials of studies are listed only with "--flow trial".
    config
        Only runs of the config with this name.
    status
        Only runs with this status.
    policy_failed
        Only runs that failed their policy, or are not shown to pass it.
    """
    rows = list_runs(store, flow, config, status, policy_failed)
    has_runs = bool(rows) or bool(list_run_ids(open_store(store, create=False)))
    print_result(rows, as_json, render_run_list if has_runs else _render_empty_store)


def list_runs(
    store: str | None = None,
    flow: FlowName | None = None,
    config_name: str | None = None,
    status: RunStatus | None = None,
    only_policy_failed: bool = False,
) -> list[Row]:
    """List runs as JSON values, oldest first.

    Returns:
        Rows with the fields of ``RECORD_FIELDS`` and the ``status``; the number of ``stages`` and
        of ``computed_stages``, which the run did not take from the store; the verdict of its
        ``policy`` and its ``failed_rules``, ``not_shown_rules`` and ``passed_rules``, None if the
        verdicts cannot be read; ``failed_audits``, None if they cannot be read; and
        ``training_arm``, see ``_get_training_arm``.
    """
    opened_store = open_store(store, create=False)
    all_store_runs = read_all_runs(opened_store, include_trials=flow == TRIAL_FLOW)
    selected_runs = [
        run
        for run in all_store_runs
        if flow in (None, run.flow) and config_name in (None, run.record["config_name"])
    ]
    rows = [
        row
        for row in map_store_reads(opened_store, build_run_row, selected_runs)
        if status in (None, row["status"])
    ]
    return [row for row in rows if row["policy"] in ("fail", "not_shown") or not only_policy_failed]


def build_run_row(run: Run) -> Row:
    """Build the row of a run, see ``list_runs``."""
    stages = run.record["stages"]
    computed_count = sum(not entry["cached"] for entry in stages)
    record = run.current_record
    return {field: record[field] for field in (*RECORD_FIELDS, "status")} | {
        "stages": len(stages),
        "computed_stages": computed_count,
        **read_policy_fields(run),
        "failed_audits": read_failed_audits(run),
        "current_stage": describe_current_stage(run),
        "training_arm": _get_training_arm(run),
    }


def read_policy_fields(run: Run) -> Row:
    """Read the outcome of the policy of a run as fields of a JSON row; all None if unreadable."""
    try:
        return judge_policy(run.list_verdicts()).to_json_fields()
    except HallmarkError:  # the artifact is missing or damaged; ``hallmark status`` reports it
        return dict.fromkeys(PolicyOutcome().to_json_fields())


def describe_current_stage(run: Run) -> str:
    """Name the stage that a running run executes, with its progress; empty if it is not known."""
    progress = read_run_progress(run.store, run.id) if run.status == "running" else None
    if progress is None or not progress.label or progress.label in run.stages:
        return ""
    if not progress.completed:
        # Without a count, the description says what the stage waits for.
        return ", ".join(
            filter(None, (progress.label, format_single_line(progress.description, 80)))
        )
    total = f" of {progress.total:,}" if progress.total else ""
    return f"{progress.label}, {progress.completed:,}{total}"


def read_failed_audits(run: Run) -> list[str] | None:
    """Read which audits of a run failed; None if unreadable."""
    try:
        return [*run.read_failure_reason_by_audit()]
    except HallmarkError:
        return None


def _get_training_arm(run: Run) -> str:
    """Return which arm of an experiment a run trained.

    Returns:
        The arm that a command such as mitigate recorded ("control arm of mitigate"). Otherwise
        "documents" if the selected documents were removed, "control" if random ones were, "" if the
        run excluded nothing or is not a training.
    """
    if run.experiment_arm is not None:
        return run.experiment_arm
    exclusion_config = run.get_settings("leave_out")
    has_exclusions = (
        exclusion_config.get("doc_ids_file") is not None
        or exclusion_config.get("toxicity_threshold") is not None
    )
    if run.flow != "pipeline" or not has_exclusions:
        return ""
    return "control" if exclusion_config.get("random_control") else "documents"


def render_run_list(rows: list[Row]) -> str:
    """Format the list for a terminal."""
    if not rows:
        return "no run matches"
    header = ("run", "flow", "config", "started", "duration", "stages computed", "outcome")
    cells = [header, *(_format_run_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def _render_empty_store(_: list[Row]) -> str:
    return "the store has no runs; start one with: hallmark run CONFIG"


def _format_run_cells(row: Row) -> tuple[str, ...]:
    description = row["flow"]
    if row["checkpoint"]:
        description += f" of {shorten_version_name(row['checkpoint'])}"
    arm = row["training_arm"]
    description += {"": "", "documents": ", documents removed"}.get(arm, f", {arm}")
    start_time, duration = format_start_and_duration(row)
    computed_stages = f"{row['computed_stages']} of {row['stages']}"
    cells = row["run"], description, row["config_name"], start_time, duration, computed_stages
    return (*(format_single_line(cell, MAX_CELL_CHARACTERS) for cell in cells), format_outcome(row))


def format_outcome(row: Row) -> str:
    """Format how a run ended: its status, error, failed audits and policy verdict.

    For a running run, name the stage that it executes.
    """
    outcome = f"{row['status']}: {row['error']}" if row["error"] else row["status"]
    outcome = format_single_line(outcome, MAX_REASON_CHARACTERS)
    if row["current_stage"]:
        outcome += f": {row['current_stage']}"
    names_by_heading = {
        "failed audits": row["failed_audits"],
        "policy failed": row["failed_rules"],
        "policy not shown to pass": row["not_shown_rules"],
        "policy passed": row["passed_rules"] if row["policy"] == "pass" else None,
    }
    for heading, names in names_by_heading.items():
        if names:
            shown = (format_single_line(name, MAX_CELL_CHARACTERS) for name in names)
            outcome += f", {heading}: {', '.join(shown)}"
    return outcome


def format_start_and_duration(row: Row) -> tuple[str, str]:
    """Format the start and the duration of a run; "" for what its record does not contain."""
    try:
        started = datetime.fromisoformat(row["started"] or "")
    except ValueError:
        return "", ""
    start_text = f"{started:%Y-%m-%d %H:%M}"
    try:
        elapsed = datetime.fromisoformat(row["ended"] or "") - started
    except (ValueError, TypeError):  # TypeError: only one of the two has a time zone
        return start_text, ""
    return start_text, f"{elapsed.total_seconds():,.0f} s"
