"""Show the outcome of a policy in the pages of Prefect.

The flow run is completed whatever the outcome is, so its state does not tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prefect.artifacts import create_markdown_artifact
from prefect.context import FlowRunContext

from hallmark.flows.finding_trace import format_finding_name
from hallmark.reports.page.rendering import escape_markdown
from hallmark.tasks.audits.judging.policy_outcome import VERDICT_NAMES, judge_policy
from hallmark.tasks.contract import Artifact, BackgroundListener, Event, table_to_rows


def publish_policy_outcome(policy_verdicts: Artifact) -> None:
    """Write the artifact "policy" of the current flow run in Prefect; do nothing outside a flow."""
    if FlowRunContext.get() is None:
        return
    verdicts = table_to_rows(policy_verdicts["verdicts"].read())

    def publish(event: Event) -> None:
        create_markdown_artifact(
            verdicts_to_markdown(verdicts),
            key="policy",
            description=judge_policy(verdicts).describe(),
        )

    with BackgroundListener(publish, "Prefect's page for the policy") as listener:
        listener(Event("done", "policy", policy_verdicts))


def verdicts_to_markdown(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Format the outcome of a policy and its verdicts, the worst first, in Markdown."""
    order = [*VERDICT_NAMES]
    rows = sorted(verdicts, key=lambda row: order.index(row["verdict"]))
    lines = [
        f"# {judge_policy(verdicts).describe()}",
        "",
        "| rule | finding | verdict | distance | reason |",
        "|---|---|---|--:|---|",
    ]
    for row in rows:
        distance = "–" if row["distance"] is None else f"{row['distance']:.4g}"
        cells = (
            row["rule"],
            format_finding_name(row),
            VERDICT_NAMES[row["verdict"]],
            distance,
            row["reason"],
        )
        lines.append(f"| {' | '.join(map(escape_markdown, cells))} |")
    return "\n".join(lines)
