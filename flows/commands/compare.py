"""Compare the findings of audited checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hallmark.flows.checkpoint_comparison import (
    compare_checkpoints,
    find_audited_checkpoints,
    find_trajectory_page,
)
from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.runs import open_store
from hallmark.reports.page.figures import format_number
from hallmark.reports.page.redaction import escape_invisible
from hallmark.reports.sections.checkpoint_comparison import describe_change
from hallmark.tasks.audits.slice_tags import name_slice

Report = dict[str, Any]


def compare(
    *checkpoints: str,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the findings of audited checkpoints with those of the first checkpoint named.

    Items that both checkpoints answered are compared in pairs.

    Parameters
    ----------
    checkpoints
        Two or more checkpoints, named as for the command audit, or runs that audited one; RUN@all
        compares every audited checkpoint of a training run.
    """
    opened_store = open_store(store, create=False)
    comparison = compare_checkpoints(find_audited_checkpoints(opened_store, checkpoints))
    chart_pages = [
        page
        for checkpoint in checkpoints
        if (page := find_trajectory_page(opened_store, checkpoint))
    ]
    print_result(
        comparison,
        as_json,
        lambda report: "\n".join([render_comparison(report), *_render_chart_links(chart_pages)]),
    )


def _render_chart_links(chart_pages: Sequence[Path]) -> list[str]:
    return ["", *(f"charts: {page}" for page in chart_pages)] if chart_pages else []


def render_comparison(report: Report) -> str:
    checkpoint_names = [escape_invisible(subject["name"]) for subject in report["checkpoints"]]
    first_name, *other_names = checkpoint_names
    lines = [f"compared with {first_name}:", *(f"    {name}" for name in other_names)]
    lines += [
        f"not compared: {audit}: {escape_invisible(reason)}"
        for audit, reason in report["incomparable"].items()
    ]
    audit = ""
    for row in report["rows"]:
        if row["audit"] != audit:
            audit = row["audit"]
            lines += ["", audit]
        slice_suffix = f"[{escape_invisible(name_slice(row['slice']))}]" if row["slice"] else ""
        formatted_values = [
            NOT_MEASURED if v is None else format_number(v, row["unit"]) for v in row["values"]
        ]
        finding_label = f"{row['metric']}{slice_suffix} ({row['title']})"
        lines.append(f"    {finding_label}  {'  '.join(formatted_values)}")
        named_differences = zip(other_names, row["differences"], strict=True)
        needs_names = len(checkpoint_names) > 2
        for name, difference in named_differences:
            if difference:
                prefix = f"{name}: " if needs_names else ""
                lines.append(f"        {prefix}{format_difference(difference, row['unit'])}")
    return "\n".join(lines)


NOT_MEASURED = "not measured"


def format_difference(difference: Report, unit: str) -> str:
    """Format a difference with its interval; differences of shares are in percentage points."""
    text = describe_change(difference, unit)
    return text if difference["value"] is None else f"difference {text}"
