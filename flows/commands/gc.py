"""Remove what no run, review or release of a store needs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.runs import open_store
from hallmark.flows.store_garbage import (
    DEFAULT_UNFINISHED_HOURS,
    KIND_DESCRIPTIONS,
    GarbageReport,
    collect_garbage,
)
from hallmark.tasks.contract import UsageError, format_count

#: Number of problems that a terminal shows.
MAX_SHOWN_PROBLEMS = 20


def gc(
    *,
    delete: Annotated[bool, Parameter(negative="")] = False,
    unfinished_hours: float = DEFAULT_UNFINISHED_HOURS,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove what no run, review or release needs: artifacts, unfinished files of dead processes,
    and caches.

    Without --delete, this changes nothing. While a run uses the store, its artifacts are kept.
    Ends with exit code 1 if a run or an artifact is damaged, because what it needs is unknown.

    Parameters
    ----------
    delete
        Remove what is listed.
    unfinished_hours
        Keep the work of an interrupted stage until this many hours after its last write, so that a
        run can continue from it. The states of a training are kept as long as its packed corpus.
    """
    if not unfinished_hours >= 0:
        raise UsageError(
            f"--unfinished-hours is {unfinished_hours:g}, but must be a non-negative number"
        )
    report = collect_garbage(
        open_store(store, create=False), delete=delete, unfinished_hours=unfinished_hours
    )
    print_result(build_report_fields(report), as_json, render_garbage)
    if report.problems:
        raise SystemExit(1)


def build_report_fields(report: GarbageReport) -> dict[str, Any]:
    """Return the report as JSON fields, without the keys of single objects."""
    return {
        "store": report.store,
        "is_deleted": report.is_deleted,
        "in_use_by": report.in_use_by,
        "problems": report.problems,
        "files": sum(item.files for item in report.garbage),
        "bytes": report.byte_count,
        "garbage": [
            {key: value for key, value in asdict(item).items() if key not in ("keys", "path")}
            for item in report.garbage
        ],
    }


def render_garbage(fields: dict[str, Any]) -> str:
    """Format the report for a terminal."""
    lines = []
    for kind, description in KIND_DESCRIPTIONS.items():
        items = [item for item in fields["garbage"] if item["kind"] == kind]
        if items:
            files = format_count(sum(item["files"] for item in items), "file")
            byte_count = sum(item["bytes"] for item in items)
            lines.append(f"{byte_count / 1e6:>12,.1f} MB  {description}: {len(items):,} ({files})")
    total = f"{format_count(fields['files'], 'file')}, {fields['bytes'] / 1e6:,.1f} MB"
    if fields["is_deleted"]:
        lines.append(f"{total} removed from {fields['store']}")
    elif fields["garbage"]:
        lines.append(
            f"{total} can be removed from {fields['store']}; nothing was changed; use --delete to "
            "remove them or --json to list them"
        )
    else:
        lines.append(f"nothing can be removed from {fields['store']}")
    if fields["in_use_by"]:
        lines.append(
            f"{fields['in_use_by']} is using the store, so all committed artifacts and caches are "
            "kept"
        )
    problems = fields["problems"]
    if problems:
        lines.append(
            "all committed artifacts are kept, because damaged runs and artifacts may still need "
            "them:"
        )
        lines += problems[:MAX_SHOWN_PROBLEMS]
        if len(problems) > MAX_SHOWN_PROBLEMS:
            lines.append(f"and {len(problems) - MAX_SHOWN_PROBLEMS} more; --json lists all")
    return "\n".join(lines)
