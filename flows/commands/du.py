"""Show what uses the space of a store."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.runs import open_store
from hallmark.flows.store_garbage import measure_usage
from hallmark.tasks.contract import format_count


def du(*, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show how a store's space is used: artifacts by stage, runs, shared artifacts, other folders,
    and what gc can remove.
    """
    print_result(asdict(measure_usage(open_store(store, create=False))), as_json, render_usage)


def render_usage(fields: dict[str, Any]) -> str:
    """Format the usage for a terminal."""
    lines = [f"store {fields['store']}: {_format_size(fields)}", "", "artifacts by stage"]
    lines += [
        f"{row['bytes'] / 1e6:>12,.1f} MB  {row['stage']:<34} "
        f"{format_count(row['artifacts'], 'artifact')}, {format_count(row['files'], 'file')}"
        for row in fields["stages"]
    ]
    lines += ["", "other folders"]
    lines += [
        f"{row['bytes'] / 1e6:>12,.1f} MB  {row['name']:<34} {format_count(row['files'], 'file')}"
        for row in fields["folders"]
    ]
    lines += ["", "artifacts by run"]
    lines += [
        f"{row['bytes'] / 1e6:>12,.1f} MB  {row['run']:<34} {row['own_bytes'] / 1e6:,.1f} MB not "
        "used by other runs"
        for row in fields["runs"]
    ]
    lines += [
        "",
        f"{fields['shared_bytes'] / 1e6:>12,.1f} MB  shared by several runs",
        f"{fields['reclaimable_bytes'] / 1e6:>12,.1f} MB  can be removed with: hallmark gc",
    ]
    problems = fields["problems"]
    if problems:
        lines.append(
            f"{format_count(len(problems), 'damaged run or artifact', 'damaged runs or artifacts')}"
            " not counted; for details, run: hallmark gc"
        )
    return "\n".join(lines)


def _format_size(fields: dict[str, Any]) -> str:
    return f"{format_count(fields['files'], 'file')}, {fields['bytes'] / 1e6:,.1f} MB"
