"""Measure the error rates of the audits on synthetic corpora with sealed answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hallmark.flows.commands.flow_execution import call_flow_and_get_run, start_prefect_and_progress
from hallmark.flows.commands.options import (
    JsonOption,
    OverridesOption,
    StoreOption,
    WholeNumber,
    print_result,
)
from hallmark.reports.page.figures import SHARE_DIFFERENCE, format_number
from hallmark.tasks.contract import format_count

if TYPE_CHECKING:
    from hallmark.flows.runs import Run
    from hallmark.flows.study import TrialOutcome

Report = dict[str, Any]


def study(
    *,
    name: str = "study",
    trials_with_effects: WholeNumber | None = None,
    trials_without_effects: WholeNumber | None = None,
    parallel_trials: WholeNumber | None = None,
    overrides: OverridesOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure audit error rates on synthetic corpora with known effects; the list of effects stays
    sealed until the audits have ended.

    A trial is one such corpus, with a model that is trained on it and audited.

    Parameters
    ----------
    name
        The name of the study; an unfinished study of this name continues, with its settings
        unchanged.
    trials_with_effects
        Number of trials that contain effects; 40 by default.
    trials_without_effects
        Number of additional trials that contain no effects; 10 by default.
    parallel_trials
        Number of trials that run at the same time, one thread each; 2 by default.
    """
    from hallmark.flows.study_config import check_settings_unchanged, resolve_study_config_and_store

    options = {
        "name": name,
        "trials_with_effects": trials_with_effects,
        "trials_without_effects": trials_without_effects,
        "parallel_trials": parallel_trials,
    }
    study_config, opened_store = resolve_study_config_and_store(options, overrides or [], store)
    start_time = time.monotonic()

    def print_trial_outcome(trial_name: str, outcome: TrialOutcome) -> None:
        from hallmark.flows.console import stderr

        elapsed_seconds = time.monotonic() - start_time
        line = format_trial_outcome(trial_name, outcome)
        stderr.print(f"{line}, after {elapsed_seconds:,.0f} s", markup=False)

    with start_prefect_and_progress(lambda: check_settings_unchanged(study_config, opened_store)):
        from hallmark.flows import study
        from hallmark.flows.run_recording import frontend

        frontend.on_trial_outcome = print_trial_outcome
        print_study_start(study_config)
        run = call_flow_and_get_run(
            lambda: study.study(study_config.model_dump(mode="json"), opened_store.uri)
        )
    print_result(build_study_report(run), as_json, render_study)


def print_study_start(study_config: Any) -> None:
    """Announce how many trials will run, because each takes minutes."""
    from hallmark.flows.console import stderr

    stderr.print(
        f"running {format_count(count_trials(study_config), 'trial')} (synthetic corpora with "
        f"known effects), {study_config.parallel_trials} at a time; each trial prints one line "
        "when it ends"
    )


def count_trials(study_config: Any) -> int:
    trials: int = study_config.trials_with_effects + study_config.trials_without_effects
    return trials


def format_trial_outcome(trial_name: str, outcome: TrialOutcome) -> str:
    """Format which trial ended, and its run or its error."""
    result = f"failed: {outcome.error}" if outcome.run_id is None else f"run {outcome.run_id}"
    return f"{trial_name}: {result}"


def build_study_report(run: Run) -> Report:
    """Return the tables of the ``error_rates`` stage as lists of rows, with the id of the run."""
    error_rates = run["error_rates"]
    table_names = (
        "trials",
        "detection_rates",
        "false_alarm_rates",
        "interval_coverage",
        "smallest_detected",
        "attribution_precision",
        "removal_reductions",
    )
    return {
        "run": run.id,
        **{table_name: error_rates[table_name].read().to_pylist() for table_name in table_names},
    }


def render_study(report: Report) -> str:
    counted_trials = sum(row["is_counted"] for row in report["trials"])
    trial_count = len(report["trials"])
    lines = [f"trials included in the results: {counted_trials} of {trial_count}"]
    lines += [
        f"    {row['trial']}: {row['reason']}" for row in report["trials"] if not row["is_counted"]
    ]
    for title, table_name in (
        ("share of effects detected at each effect level", "detection_rates"),
        (
            "share of cases without an effect that raised a false alarm (expected: at most 5 %)",
            "false_alarm_rates",
        ),
        ("share of intervals that contain the true value (nominal 95 %)", "interval_coverage"),
        (
            "attribution precision: share of the top-ranked documents that were generated to "
            "support the attributed text",
            "attribution_precision",
        ),
    ):
        lines += ["", title]
        for row in report[table_name]:
            level_suffix = f" {row['effect_level']:.3g}" if "effect_level" in row else ""
            label = row["kind"] + level_suffix
            lines.append(f"    {label:<18} {format_rate(row)}, n = {row['n']:,}")
    if report["removal_reductions"]:
        lines += [
            "",
            "decrease in detected effects after retraining a model without the documents that "
            "attribution ranks highest (removed) or without randomly chosen documents (random)",
        ]
    for row in report["removal_reductions"]:
        label = f"{row['kind']} {row['arm']}"
        is_share = row["unit"] == "share"
        unit_suffix = "" if is_share or row["value"] is None else f" {row['unit']}"
        decrease = format_rate(row, SHARE_DIFFERENCE if is_share else row["unit"])
        lines.append(f"    {label:<21} {decrease}{unit_suffix}, n = {row['n']:,}")
    lines += [
        "",
        "smallest effect level at and above which effects are detected in at least 80 % of cases",
    ]
    kinds_with_effects = {row["kind"] for row in report["detection_rates"] if row["has_effect"]}
    for row in report["smallest_detected"]:
        level = "none" if row["effect_level"] is None else f"{row['effect_level']:.3g}"
        level = level if row["kind"] in kinds_with_effects else "no trial contains this effect"
        lines.append(f"    {row['kind']:<18} {level}")
    return "\n".join(lines)


def format_rate(row: Report, unit: str = "share") -> str:
    """Format a rate, by default as a percentage, with its interval, if it has one."""
    if row["value"] is None:
        return "not measured"
    value, low, high = (
        None if row[name] is None else format_number(row[name], unit)
        for name in ("value", "low", "high")
    )
    return f"{value}" if low is None else f"{value} ({low} to {high})"
