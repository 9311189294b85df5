"""Every table of every stage: its columns, what they hold, in which unit, of what kind."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from typing import Any

import pyarrow as pa

from flows.commands.shared import Json, show
from flows.mistakes import closest
from tasks.audits.catalogue import PROBES
from tasks.contract import STAGES, TELEMETRY, Stage, UsageError, described, meaning

Row = dict[str, Any]

#: Stands where a table is left by all stages alike.
EVERY = "every stage"


def tables(stage: str | None = None, *, json_: Json = False) -> None:
    """List every table of every stage: its columns with type, unit, kind and meaning.

    Parameters
    ----------
    stage
        Only the tables of this stage, such as deduplicate, or of its use under another name, such
        as deduplicate_masked or toxicity_ask.
    """
    show(list_tables(stage), json_, render)


@cache  # a served process builds the site of every run
def list_tables(stage: str | None = None) -> list[Row]:
    """A row a table (stage, table, telemetry, meaning, columns), in the order of the pipeline,
    behind it those of stages that have no settings of their own, by name.

    ``telemetry``: whether it depends on the machine, and is no part of the content. UsageError for
    a stage that there is not.
    """
    from flows import pipeline, studying  # register every stage
    from flows.config import Config
    from flows.examining import names_of

    order = [name for name in Config.model_fields if name in STAGES]
    order += sorted(name for name in STAGES if name not in order)  # not as they were imported
    places = [*vars(pipeline).values(), *vars(studying).values()]
    uses = {used.label: used.name for used in places if isinstance(used, Stage) and used.label}
    names = [*order, *(label for label in uses if label not in order)]
    uses |= names_of(PROBES)
    if stage is not None and stage not in (*names, *uses):
        meant = closest(stage, (*names, *uses))
        raise UsageError(f"there is no stage {stage!r}{meant}; choose one of: {', '.join(names)}")
    chosen = order if stage is None else [uses.get(stage, stage)]
    found = [row for name in chosen for row in _of(STAGES[name])]
    return [*found, _row(EVERY, "telemetry", TELEMETRY, True)]


def _of(stage: Stage) -> Iterator[Row]:
    for name, schema in stage.schemas().items():
        if name != "telemetry":  # said once, for every stage
            yield _row(stage.name, name, schema, name in stage.telemetry)


def _row(stage: str, name: str, schema: pa.Schema, telemetry: bool) -> Row:
    row = {"stage": stage, "table": name, "telemetry": telemetry, "meaning": meaning(schema)}
    return row | {"columns": [asdict(column) for column in described(schema)]}


def render(rows: list[Row]) -> str:
    """The tables as text for a terminal."""
    lines: list[str] = []
    for row in rows:
        apart = " (of the machine, no part of the content)" if row["telemetry"] else ""
        lines += ["", f"{row['stage']}: {row['table']}{apart}"]
        lines += textwrap.wrap(row["meaning"], 110, initial_indent="  ", subsequent_indent="  ")
        for column in row["columns"]:
            kind = f"{column['kind']}, {column['type']}"
            unit = f" [{column['unit']}]" if column["unit"] else ""
            judged = f"; judged by {column['judged_by']}" if column["judged_by"] else ""
            lines += textwrap.wrap(
                f"  {column['name']:<22} {kind:<30} {column['meaning']}{unit}{judged}", 110,
                subsequent_indent=" " * 56, drop_whitespace=True,
            )  # fmt: skip
    return "\n".join(lines).strip("\n")
