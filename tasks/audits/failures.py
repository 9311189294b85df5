"""Record the audits and other parts of an examination that failed, so that the card says so.

A failed part is not in the store, so the next run tries it again.
"""

from __future__ import annotations

import pyarrow as pa
from pydantic import Field

from hallmark.tasks.contract import StageConfig, StageContext, column, stage, table_schema

FAILURES = table_schema(
    "Parts of the examination that failed, and the reasons.",
    column("audit", pa.string(), "label", "the audit, or another part of the examination"),
    column("reason", pa.string(), "project text", "what went wrong, and what to do"),
)


class FailuresConfig(StageConfig):
    """Failures of a run, which the run fills in; not for a config file."""

    audits: dict[str, str] = Field({}, description="reason of each failure, by audit")


@stage(name="failures", tables={"failures": FAILURES})
def record_failures(config: FailuresConfig, context: StageContext) -> None:
    failure_columns = {"audit": [*config.audits], "reason": [*config.audits.values()]}
    context.get_table_writer("failures").write(pa.table(failure_columns, schema=FAILURES))
