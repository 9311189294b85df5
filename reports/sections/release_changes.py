"""Say on the decision sheet what changed since the previous release.

The figures come from the ``changes`` table of the ``compare_with_previous`` stage, which computes
them as ``hallmark compare`` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hallmark.reports.page.document import (
    DefinitionEntry,
    InlineContent,
    InlineElement,
    ShortFigure,
)
from hallmark.reports.page.figures import (
    SHARE_DIFFERENCE,
    Figure,
    FigureBook,
    format_unit_suffix,
)
from hallmark.reports.sections.findings import Finding, Findings, get_audit_title, name_finding
from hallmark.tasks.audits.judging.change_verdicts import VERDICT_GROUPS, build_change_sort_key
from hallmark.tasks.contract import Artifact, Row, format_count, table_to_rows

#: Label of the stage, which is not imported: it would make the card depend on estimators.
COMPARISON = "compare_with_previous"

NO_EARLIER_RELEASE = "No earlier release has this name."

#: The largest number of audits that are named as not compared.
MAX_NAMED_AUDITS = 3


def build_changes_entry(
    book: FigureBook, comparison: Artifact | None, findings: Findings
) -> DefinitionEntry:
    """Build the line of the decision sheet about the previous release.

    Args:
        book: The figures of the card.
        comparison: The output of ``compare_with_previous``; None if there is no earlier release.
        findings: The findings of the card.
    """
    if comparison is None:
        return "Changes", [NO_EARLIER_RELEASE]
    settings = comparison.manifest["parts"]["config"]
    release_name = settings["previous_version"] or f"run {settings['previous_run']}"
    rows = table_to_rows(comparison["changes"].read())
    return f"Changes since {release_name}", describe_changes(book, rows, findings)


def describe_changes(book: FigureBook, rows: Sequence[Row], findings: Findings) -> InlineContent:
    """Say how many main findings got worse or better, and describe the most important change."""
    main_rows = [row for row in rows if row["is_main"]]
    compared_audits = {row["audit"] for row in main_rows}
    reason_by_audit = {
        row["audit"]: row["reason"] for row in rows if row["audit"] not in compared_audits
    }
    if not main_rows:
        return [f"Not compared: {_join_reasons(reason_by_audit)}."]
    content: list[InlineElement] = [f"Of {format_count(len(main_rows), 'main finding')}, "]
    content += _describe_counts(book, main_rows)
    content.append(".")
    if reason_by_audit:
        content.append(f" Not compared: {_list_audits([*reason_by_audit])}.")
    return [*content, *_describe_most_important_change(book, main_rows, findings)]


def _join_reasons(reason_by_audit: Mapping[str, str]) -> str:
    """Return why no audit is compared: the reason that all share, or the first ones by audit."""
    reasons = dict.fromkeys(reason_by_audit.values())
    if not reasons:
        return "the runs have no findings in common"
    if len(reasons) == 1:
        return next(iter(reasons))
    shown = [
        f"{get_audit_title(audit)} ({reason})"
        for audit, reason in [*reason_by_audit.items()][:MAX_NAMED_AUDITS]
    ]
    hidden = len(reason_by_audit) - len(shown)
    return "; ".join([*shown, *([f"{hidden} more"] if hidden else [])])


def _list_audits(audits: Sequence[str]) -> str:
    names = [*map(get_audit_title, audits[:MAX_NAMED_AUDITS])]
    hidden = len(audits) - len(names)
    return ", ".join(names) + (f" and {hidden} more" if hidden else "")


def _describe_counts(book: FigureBook, main_rows: Sequence[Row]) -> list[InlineElement]:
    """Return the number of main findings with each verdict, as figures."""
    content: list[InlineElement] = []
    for group in VERDICT_GROUPS:
        count = sum(row["verdict"] in group.verdicts for row in main_rows)
        if not count and group.verdicts not in (("worse",), ("better",)):
            continue
        figure = book.add_computed_figure(
            f"changes-{group.verdicts[0]}",
            f"number of main findings that {group.plural} since the previous release",
            "findings",
            (COMPARISON, "changes"),
            {"is_main": True, "verdict": [*group.verdicts]},
            aggregate="count",
        )
        separator = ", " if content else ""
        content += [separator, ShortFigure(figure), f" {group.format_predicate(count)}"]
    return content


def _describe_most_important_change(
    book: FigureBook, main_rows: Sequence[Row], findings: Findings
) -> list[InlineElement]:
    """Describe the change with the strongest evidence, for the worse if there is one."""
    row = next(
        (
            min(rows, key=_build_sort_key)
            for verdict in ("worse", "better", "changed")
            if (rows := [row for row in main_rows if row["verdict"] == verdict])
        ),
        None,
    )
    current = None if row is None else _find_finding(findings, row)
    if row is None or current is None:
        return []
    unit = current.row["unit"]
    change_unit = SHARE_DIFFERENCE if unit == "share" else unit
    change = _add_figure(
        book, row, "change", change_unit, low=row["low"], high=row["high"], n=row["n"]
    )
    previous = _add_figure(book, row, "previous_value", unit)
    name = f"{get_audit_title(row['audit'])}, {name_finding(current.row)}"
    interval = ""
    if change.low is not None and change.high is not None:
        interval = f"95 % interval {change.interval_or_dash}, "
    return [
        f" Most important change: {name} ({row['verdict']}), from ",
        ShortFigure(previous),
        " to ",
        ShortFigure(current.figure),
        f"{format_unit_suffix(unit, current.figure.value or 0.0)} (change ",
        ShortFigure(change),
        f", {interval}{format_count(row['n'], 'pair')}).",
    ]


def _build_sort_key(row: Row) -> tuple[bool, float, float]:
    change: Any = {"value": row["change"], **{key: row[key] for key in ("low", "high")}}
    return build_change_sort_key(row["verdict"], change | {"p_corrected": row["p_corrected"]})


def _find_finding(findings: Findings, row: Row) -> Finding | None:
    return next(
        (
            finding
            for finding in findings.by_audit.get(row["audit"], ())
            if finding.row["finding"] == row["finding"]
        ),
        None,
    )


def _add_figure(
    book: FigureBook, row: Row, value_column: str, unit: str, **figure_fields: Any
) -> Figure:
    return book.add_computed_figure(
        f"{value_column}-{row['audit']}-{row['metric']}",
        f"{value_column.replace('_', ' ')}: {row['metric']}",
        unit,
        (COMPARISON, "changes"),
        {"finding": row["finding"].hex()},
        aggregate="last",
        value_column=value_column,
        method=row["method"],
        **figure_fields,
    )
