"""Failures: what of an examination could not be made, so that the rest stands and the card says so.

What failed is no part of the store, so the next run tries again.
"""

from __future__ import annotations

import pyarrow as pa
from pydantic import Field

from hallmark.tasks.contract import StageConfig, StageContext, column, stage, table_schema

FAILURES = table_schema(
    "What could not be made, and why.",
    column("audit", pa.string(), "label", "the audit, or another part of the examination"),
    column("reason", pa.string(), "project text", "what went wrong, and what to do"),
)


class FailuresConfig(StageConfig):
    """Not for a config file: a run fills it."""

    audits: dict[str, str] = Field({}, description="why, by audit")


@stage(name="failures", tables={"failures": FAILURES})
def record_failures(config: FailuresConfig, context: StageContext) -> None:
    failure_columns = {"audit": [*config.audits], "reason": [*config.audits.values()]}
    context.get_table_writer("failures").write(pa.table(failure_columns, schema=FAILURES))
