"""List the tables of every stage, with the type, unit, kind and meaning of their columns."""

from __future__ import annotations

import textwrap

from hallmark.flows.commands.options import JsonOption, print_result
from hallmark.flows.table_listing import list_tables
from hallmark.tasks.contract import Row


def tables(stage: str | None = None, *, as_json: JsonOption = False) -> None:
    """List each stage's tables and their columns, with type, unit, kind and meaning.

    Parameters
    ----------
    stage
        List only the tables of this stage, such as deduplicate, or of a step of the pipeline, such
        as deduplicate_redacted or toxicity_build_requests.
    """
    print_result(list_tables(stage), as_json, render_tables)


def render_tables(rows: list[Row]) -> str:
    """Format the tables for a terminal."""
    lines: list[str] = []
    for row in rows:
        telemetry_note = (
            " (describes the machine; excluded from the content hash)"
            if row["is_telemetry"]
            else ""
        )
        lines += ["", f"{row['stage']}: {row['table']}{telemetry_note}"]
        lines += textwrap.wrap(row["meaning"], 110, initial_indent="  ", subsequent_indent="  ")
        for column in row["columns"]:
            kind = f"{column['kind']}, {column['type']}"
            unit = f" [{column['unit']}]" if column["unit"] else ""
            judged_by_note = f"; scored in {column['judged_by']}" if column["judged_by"] else ""
            lines += textwrap.wrap(
                f"  {column['name']:<22} {kind:<30} {column['meaning']}{unit}{judged_by_note}",
                110,
                subsequent_indent=" " * 56,
                drop_whitespace=True,
            )
    return "\n".join(lines).strip("\n")
