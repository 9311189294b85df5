"""Compare two runs, checkpoints or datasheets, or the checkpoints of a training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hallmark.flows.checkpoint_comparison import (
    ALL_CHECKPOINTS_SUFFIX,
    build_finding_linker,
    compare_checkpoints,
    find_audited_checkpoints,
    find_compared_runs,
    find_trajectory_page,
    report_run_comparison,
)
from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.output_folders import resolve_output_folder
from hallmark.flows.runs import get_site_folder, open_store
from hallmark.reports.page.figures import Figure, format_number
from hallmark.reports.page.redaction import escape_invisible
from hallmark.reports.run_comparison import FindingLinker, RunComparison, write_comparison_page
from hallmark.reports.sections.checkpoint_comparison import (
    describe_change,
    describe_verdict_counts,
)
from hallmark.reports.sections.corpus_comparison import (
    ComparedFigure,
    format_compared_figure,
)
from hallmark.tasks.audits.judging.change_verdicts import SHOWN_CHANGES
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import HallmarkError, Store, UsageError, format_count

Report = dict[str, Any]

NOT_MEASURED = "not measured"


def compare(
    *checkpoints: str,
    output: str | None = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs, checkpoints or datasheets, or all audited checkpoints of a training run.

    Changes are listed first. Findings are compared item by item, over the items that both
    checkpoints answered. If there are more than two checkpoints, each is compared with the first;
    if there are two, settings and training data are compared, too.

    Ends with exit code 1 if nothing can be compared or if the tables of an audit are damaged.

    Parameters
    ----------
    checkpoints
        Two or more checkpoints, specified as for the command audit, or runs that audited one, or
        runs that built a corpus; RUN@all compares every audited checkpoint of a training run.
    output
        Folder for the page that compares two runs, comparison.html.
    """
    opened_store = open_store(store, create=False)
    folder = None if output is None else resolve_output_folder(output, "comparison")
    is_pair = len(checkpoints) == 2 and not any(
        name.endswith(ALL_CHECKPOINTS_SUFFIX) for name in checkpoints
    )
    page = None
    if is_pair:
        run_comparison = RunComparison.from_runs(*find_compared_runs(opened_store, *checkpoints))
        if folder is not None:
            page = write_comparison_page(
                run_comparison, folder, _build_site_linker(opened_store, folder)
            )
        comparison = report_run_comparison(run_comparison)
    elif folder is not None:
        raise UsageError(
            "--output requires exactly two runs or checkpoints; to write a page about all "
            "checkpoints of a training run, use hallmark export-site"
        )
    else:
        comparison = compare_checkpoints(find_audited_checkpoints(opened_store, checkpoints))
    chart_pages = [
        chart_page
        for checkpoint in checkpoints
        if (chart_page := find_trajectory_page(opened_store, checkpoint))
    ]
    links = [f"page: {page}"] if page else []
    links += [f"charts: {chart_page}" for chart_page in chart_pages]
    print_result(
        comparison,
        as_json,
        lambda report: "\n".join([render_comparison(report), *([""] if links else []), *links]),
    )
    if comparison["unreadable"]:
        raise HallmarkError(
            f"these audits' tables cannot be read: {', '.join(comparison['unreadable'])}; "
            "run hallmark verify to find damaged files, then rerun the audits"
        )


def _build_site_linker(store: Store, folder: Path) -> FindingLinker:
    """Return a function that links values to their rows in the site of the store, if it has them.

    Args:
        store: The store.
        folder: The folder of the page; links are relative to it.
    """

    def get_href(run_id: str, figure: Figure) -> str | None:
        page_path, _, anchor = figure.page_path.partition("#")
        path = get_site_folder(store) / "runs" / run_id / "model_card" / page_path
        return f"{quote(os.path.relpath(path, folder))}#{anchor}" if path.exists() else None

    return build_finding_linker(get_href)


def render_comparison(report: Report) -> str:
    """Format a comparison: settings, a summary, what changed, the rest, and the training data."""
    checkpoint_names = [escape_invisible(subject["name"]) for subject in report["checkpoints"]]
    first_name, *other_names = checkpoint_names
    lines = [f"compared with {first_name}:", *(f"    {name}" for name in other_names)]
    lines += _render_setting_differences(report.get("settings", ()))
    lines += [
        f"{audit} was not compared: {escape_invisible(reason)}"
        for audit, reason in report["incomparable"].items()
    ]
    lines += _render_findings(report["rows"], other_names)
    for table in report.get("training_data", ()):
        lines += _render_corpus_table(table)
    lines += [
        f"{title}: not compared, because {escape_invisible(reason)}"
        for title, reason in report.get("training_data_not_compared", {}).items()
    ]
    return "\n".join(lines)


def _render_setting_differences(settings: Sequence[Report]) -> list[str]:
    if not settings:
        return []
    lines = [
        f"    {escape_invisible(row['setting'])}: {escape_invisible(row['before'])} and "
        f"{escape_invisible(row['after'])}"
        for row in settings
    ]
    return ["settings that differ:", *lines]


def _render_findings(rows: Sequence[Report], other_names: Sequence[str]) -> list[str]:
    """Format what changed, then the other findings; those that are equal are only counted."""
    if not rows:
        return []
    lines = []
    needs_names = len(other_names) > 1
    for index, name in enumerate(other_names):
        counts = describe_verdict_counts([row["verdicts"][index] for row in rows if row["is_main"]])
        lines.append(f"{name}: {counts}" if needs_names else counts)
    changed, unchanged, equal_count = [], [], 0
    for row in rows:
        if any(verdict in SHOWN_CHANGES for verdict in row["verdicts"]):
            changed.append(row)
        elif row["is_unchanged"]:
            equal_count += 1
        else:
            unchanged.append(row)
    for heading, group in (("what changed", changed), ("other findings", unchanged)):
        if group:
            lines += ["", heading]
        for row in group:
            lines += _render_finding(row, other_names)
    if equal_count:
        lines += [
            "",
            f"{format_count(equal_count, 'finding')} {'has' if equal_count == 1 else 'have'} the "
            "same value for every checkpoint (for example, a baseline evaluated on the same "
            "text); --json lists all findings",
        ]
    return lines


def _render_finding(row: Report, other_names: Sequence[str]) -> list[str]:
    slice_suffix = f"[{escape_invisible(name_slice(row['slice']))}]" if row["slice"] else ""
    formatted_values = [
        NOT_MEASURED if v is None else format_number(v, row["unit"]) for v in row["values"]
    ]
    finding_label = f"{row['audit']}.{row['metric']}{slice_suffix} ({row['title']})"
    lines = [f"    {finding_label}  {'  '.join(formatted_values)}"]
    for name, difference, verdict in zip(
        other_names, row["differences"], row["verdicts"], strict=True
    ):
        if difference:
            prefix = f"{name}: " if len(other_names) > 1 else ""
            text = format_difference(difference, row["unit"])
            lines.append(f"        {prefix}{text}: {verdict}")
    return lines


def format_difference(difference: Report, unit: str) -> str:
    """Format a difference with its interval; differences of shares are in percentage points."""
    text = describe_change(difference, unit)
    return text if difference["value"] is None else f"difference {text}"


def _render_corpus_table(table: Report) -> list[str]:
    """Format the figures of the training data that differ, the largest difference first."""
    lines = ["", f"{table['title']} ({table['unit']}: before, after, difference)"]
    for row in table["rows"]:
        figure = ComparedFigure(
            tuple(row["name"]), row["before"], row["after"], row["low"], row["high"]
        )
        before, after, difference, interval = format_compared_figure(figure, table["unit"])
        points = " points" if table["unit"] == "share" and figure.difference is not None else ""
        interval_text = "" if figure.low is None else f" ({interval})"
        name = escape_invisible(", ".join(filter(None, row["name"])))
        lines.append(f"    {name}  {before}  {after}  {difference}{points}{interval_text}")
    return lines
