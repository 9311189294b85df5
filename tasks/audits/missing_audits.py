"""Record the audits that failed and those that the user skipped, so that the card says so.

Other parts of a run can fail, too. A failed part is not in the store, so the next run
tries it again.
"""

from __future__ import annotations

import pyarrow as pa
from pydantic import Field

from hallmark.tasks.contract import StageConfig, StageContext, column, stage, table_schema

FAILED, SKIPPED_BY_USER = "failed", "skipped by the user"

MISSING_AUDITS = table_schema(
    "Audits and other parts of the run that produced no result.",
    column("audit", pa.string(), "label", "name of the audit or of another part of the run"),
    column("outcome", pa.string(), "label", f"{FAILED}, or {SKIPPED_BY_USER}"),
    column(
        "reason",
        pa.string(),
        "project text",
        "what went wrong and how to fix it; null if the audit was skipped",
    ),
)


class MissingAuditsConfig(StageConfig):
    """Audits without a result, which the run fills in; not for a config file."""

    failure_reasons: dict[str, str] = Field(
        {},
        description="failed audits: an object that maps audit names to reasons for failure",
    )
    skipped_audits: tuple[str, ...] = Field((), description="audits skipped by the user")


@stage(name="missing_audits", tables={"missing_audits": MISSING_AUDITS})
def record_missing_audits(config: MissingAuditsConfig, context: StageContext) -> None:
    rows = [
        {"audit": audit, "outcome": FAILED, "reason": reason}
        for audit, reason in config.failure_reasons.items()
    ]
    rows += [{"audit": audit, "outcome": SKIPPED_BY_USER} for audit in config.skipped_audits]
    context.get_table_writer("missing_audits").write(
        pa.Table.from_pylist(rows, schema=MISSING_AUDITS)
    )
