"""Measure the audits themselves: their error rates on worlds with sealed answers."""

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
from hallmark.reports.page.figures import format_count, format_value

if TYPE_CHECKING:
    from hallmark.flows.runs import Run
    from hallmark.flows.study import WorldOutcome

Report = dict[str, Any]


def study(
    *,
    name: str = "study",
    worlds_with_effects: WholeNumber | None = None,
    worlds_without_effects: WholeNumber | None = None,
    parallel_worlds: WholeNumber | None = None,
    overrides: OverridesOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how often the audits are wrong, on invented worlds whose answers are sealed until the
    audits are done.

    Parameters
    ----------
    name
        Of the study. One of this name that is not done goes on; its settings stay as they are.
    worlds_with_effects
        How many, by default 40.
    worlds_without_effects
        How many more, by default 10.
    parallel_worlds
        How many run at a time, a thread each, by default 2.
    """
    from hallmark.flows.study_config import check_settings_unchanged, resolve_study_arguments

    options = {
        "name": name,
        "worlds_with_effects": worlds_with_effects,
        "worlds_without_effects": worlds_without_effects,
        "parallel_worlds": parallel_worlds,
    }
    study_config, opened_store = resolve_study_arguments(options, overrides or [], store)
    start_time = time.monotonic()
    reported_worlds: list[str] = []

    def print_world_outcome(world_number: str, outcome: WorldOutcome) -> None:
        from hallmark.flows.console import stderr

        reported_worlds.append(world_number)
        world_count, elapsed_seconds = (
            study_config.worlds_with_effects + study_config.worlds_without_effects,
            time.monotonic() - start_time,
        )
        outcome_text = (
            f"void: {outcome.error}" if outcome.run_id is None else f"run {outcome.run_id}"
        )
        stderr.print(
            f"{world_number} of {world_count}, after {elapsed_seconds:,.0f} s: {outcome_text}",
            markup=False,
        )

    with start_prefect_and_progress(lambda: check_settings_unchanged(study_config, opened_store)):
        from hallmark.flows import study
        from hallmark.flows.run_recording import frontend

        frontend.on_world_outcome = print_world_outcome
        print_study_start(study_config)
        run = call_flow_and_get_run(
            lambda: study.study(study_config.model_dump(mode="json"), opened_store.uri)
        )
    print_result(build_study_report(run), as_json, render_study)


def print_study_start(study_config: Any) -> None:
    """Say what is to come: a world takes minutes."""
    from hallmark.flows.console import stderr

    world_count = study_config.worlds_with_effects + study_config.worlds_without_effects
    stderr.print(
        f"{format_count(world_count, 'world')}, {study_config.parallel_worlds} at a time; each is "
        f"reported when it is done"
    )


def build_study_report(run: Run) -> Report:
    """What a study found, from its tables."""
    error_rates = run["error_rates"]
    table_names = (
        "worlds",
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
    counted_worlds = sum(row["is_counted"] for row in report["worlds"])
    world_count = len(report["worlds"])
    verb = "counts" if world_count == 1 else "count"
    lines = [f"{counted_worlds} of {format_count(world_count, 'world')} {verb}"]
    lines += [
        f"    {row['world']}: {row['reason']}" for row in report["worlds"] if not row["is_counted"]
    ]
    for title, table_name in (
        ("effects found, by dose", "detection_rates"),
        ("claimed where there is none (nominal 5 %)", "false_alarm_rates"),
        ("intervals that cover the true figure (nominal 95 %)", "interval_coverage"),
        ("documents named by attribution that were written for a text", "attribution_precision"),
    ):
        lines += ["", title]
        for row in report[table_name]:
            dose_suffix = f" {row['effect_level']:g}" if "effect_level" in row else ""
            lines.append(f"    {row['kind'] + dose_suffix:<18} {format_rate(row)}, n {row['n']:,}")
    if report["removal_reductions"]:
        lines += ["", "by how much figures fall without the documents that attribution names"]
    for row in report["removal_reductions"]:
        lines.append(f"    {row['kind'] + ' ' + row['arm']:<21} {format_rate(row)}, n {row['n']:,}")
    lines += ["", "smallest dose found, as all above it, in at least 80 % of cases"]
    kinds_with_effects = {row["kind"] for row in report["detection_rates"] if row["has_effect"]}
    for row in report["smallest_detected"]:
        level = "none" if row["effect_level"] is None else f"{row['effect_level']:g}"
        level = level if row["kind"] in kinds_with_effects else "there was no effect to find"
        lines.append(f"    {row['kind']:<18} {level}")
    return "\n".join(lines)


def format_rate(row: Report) -> str:
    if row["value"] is None:
        return "not measured"
    value, low, high = (
        None if row[name] is None else format_value(row[name], "share")
        for name in ("value", "low", "high")
    )
    return f"{value}" if low is None else f"{value} ({low} to {high})"
