"""List the tables of all stages with the meaning of their columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import cache

import pyarrow as pa

from hallmark.flows import curation
from hallmark.flows.audit_execution import map_step_labels_to_stage_names
from hallmark.flows.config import Config
from hallmark.flows.flow_registry import register_all_stages
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.contract import (
    STAGES,
    TELEMETRY,
    Row,
    Stage,
    UsageError,
    describe_columns,
    format_closest_name_hint,
    get_table_meaning,
)

#: Replaces the name of the stage for tables that every stage writes.
EVERY_STAGE = "every stage"


@cache  # a served process builds the site of every run
def list_tables(stage_name: str | None = None) -> list[Row]:
    """List one row for each table: stage, table, is_telemetry, meaning, columns.

    Args:
        stage_name: A stage, or a step of the pipeline that uses one; by default all stages.

    Returns:
        Stages with settings come first, in the order of the pipeline, then the others by name.
        ``is_telemetry`` marks tables that describe the machine and are not part of the content.

    Raises:
        UsageError: If there is no such stage.
    """
    register_all_stages()
    configured_names = [name for name in Config.model_fields if name in STAGES]
    configured_names += sorted(name for name in STAGES if name not in configured_names)
    stage_by_label = {
        stage_use.label: stage_use.name
        for stage_use in vars(curation).values()
        if isinstance(stage_use, Stage) and stage_use.label
    }
    known_names = [
        *configured_names,
        *(label for label in stage_by_label if label not in configured_names),
    ]
    stage_by_label |= map_step_labels_to_stage_names(PROBES)
    if stage_name is not None and stage_name not in (*known_names, *stage_by_label):
        suggestion = format_closest_name_hint(stage_name, (*known_names, *stage_by_label))
        raise UsageError(
            f"there is no stage {stage_name!r}{suggestion}; choose one of: {', '.join(known_names)}"
        )
    selected_names = (
        configured_names if stage_name is None else [stage_by_label.get(stage_name, stage_name)]
    )
    rows = [row for name in selected_names for row in _iter_stage_tables(STAGES[name])]
    return [*rows, _build_table_row(EVERY_STAGE, "telemetry", TELEMETRY, True)]


def _iter_stage_tables(stage: Stage) -> Iterator[Row]:
    for table_name, schema in stage.collect_table_schemas().items():
        if table_name != "telemetry":  # every stage has it, so it is listed once
            yield _build_table_row(
                stage.name, table_name, schema, table_name in stage.telemetry_tables
            )


def _build_table_row(
    stage_name: str, table_name: str, schema: pa.Schema, is_telemetry: bool
) -> Row:
    row = {
        "stage": stage_name,
        "table": table_name,
        "is_telemetry": is_telemetry,
        "meaning": get_table_meaning(schema),
    }
    return row | {"columns": [asdict(column) for column in describe_columns(schema)]}
