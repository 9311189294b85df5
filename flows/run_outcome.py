"""How a run ended: its failed audits and its policy, for the exit code and for Prefect.

A run whose policy is not met, or in which an audit failed, is complete: every result is stored. In
Prefect its flow run ends as *Failed* all the same, so that an automation on that state notices it.
The event ``hallmark.run.ended`` and the artifact ``run-outcome`` say why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from prefect.artifacts import create_markdown_artifact
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.states import Failed

from hallmark.flows.finding_trace import format_finding_name
from hallmark.flows.runs import Run, is_same_store, resolve_store_uri
from hallmark.reports.exports.exported_card import load_exported_card
from hallmark.reports.exports.hugging_face import format_decision_sheet
from hallmark.reports.page.rendering import escape_markdown
from hallmark.reports.run_summary import read_decision_status
from hallmark.tasks.audits.judging.policy_outcome import VERDICT_NAMES, judge_policy
from hallmark.tasks.audits.registry import SKIPPED_COUNT_METRICS
from hallmark.tasks.contract import (
    BackgroundListener,
    Event,
    HallmarkError,
    PolicyViolationError,
)

#: The event that each run of the flows ``pipeline`` and ``audit`` emits at its end.
RUN_ENDED_EVENT = "hallmark.run.ended"

#: Seconds that the end of a run waits for Prefect's server to accept its outcome.
PUBLISH_TIMEOUT = 10.0


def conclude_flow(run: Run) -> str:
    """Publish the outcome of a run, and return the final value of its flow.

    Returns:
        The id of the run; or a failed state, whose data is the error of ``check_audits_and_policy``
        and whose message is its sentence.

    Raises:
        HallmarkError: The same error, if the function of the flow is called outside of Prefect.
    """
    publish_outcome(run)
    try:
        check_audits_and_policy(run)
    except HallmarkError as error:
        if FlowRunContext.get() is None:
            raise
        # Prefect takes a returned state as the final state of the flow run.
        return Failed(message=str(error), data=error)  # type: ignore[return-value]
    return run.id


def publish_outcome(run: Run) -> None:
    """Emit the event ``hallmark.run.ended`` and write the artifact ``run-outcome`` in Prefect.

    Do nothing outside a flow. A server that does not answer costs a warning.
    """
    if FlowRunContext.get() is None:
        return

    def publish(event: Event) -> None:
        fields = build_outcome_fields(run)
        create_markdown_artifact(
            outcome_to_markdown(run), key="run-outcome", description=fields["outcome"]
        )
        emit_event(
            RUN_ENDED_EVENT,
            resource={
                "prefect.resource.id": f"hallmark.run.{run.id}",
                "prefect.resource.name": run.id,
                "hallmark.verdict": fields["verdict"],
                "hallmark.config": run.record["config_name"],
            },
            payload=fields,
        )

    with BackgroundListener(
        publish, "Prefect's outcome page", drain_timeout=PUBLISH_TIMEOUT
    ) as listener:
        listener(Event("done", "run-outcome"))


def read_run_verdict(run: Run) -> str:
    """Read the verdict on a run.

    Returns:
        "pass", "fail" or "not_shown" of the policy, "audit_failed" if it passed or there is none
        and an audit failed, else "none".
    """
    verdict = judge_policy(run.list_verdicts()).verdict or "none"
    has_passed = verdict in ("pass", "none")
    return "audit_failed" if has_passed and run.read_failure_reason_by_audit() else verdict


def build_outcome_fields(run: Run) -> dict[str, Any]:
    """Return how a run ended as JSON values, for an event.

    Returns:
        ``verdict`` as of ``read_run_verdict``. ``outcome``: one sentence. ``policy`` and the names
        of its rules by verdict; ``failed_audits``; ``status`` and ``explanation`` of the model
        card; ``store``, ``checkpoint`` and ``page`` of the run.
    """
    decision = read_decision_status(run["model_card"]) if "model_card" in run.stages else None
    return {
        "run": run.id,
        "verdict": read_run_verdict(run),
        "outcome": describe_outcome(run),
        **judge_policy(run.list_verdicts()).to_json_fields(),
        "failed_audits": [*run.read_failure_reason_by_audit()],
        "status": decision.status if decision else None,
        "explanation": decision.explanation if decision else None,
        "checkpoint": run.audited_checkpoint or None,
        "store": run.store.uri,
        "page": str(run.page) if run.page else None,
    }


def describe_outcome(run: Run) -> str:
    """Say in one sentence what the policy decided and which audits failed."""
    policy = judge_policy(run.list_verdicts())
    parts = [policy.describe() if policy.verdict else "no policy is configured"]
    if failed_audits := run.read_failure_reason_by_audit():
        parts.append(f"failed audits: {', '.join(failed_audits)}")
    return "; ".join(parts)


def outcome_to_markdown(run: Run) -> str:
    """Format the outcome of a run, its key findings and where its cards are, in Markdown."""
    lines = [f"# {escape_markdown(describe_outcome(run))}", ""]
    for audit, reason in run.read_failure_reason_by_audit().items():
        lines += [f"The audit {escape_markdown(audit)} failed: {escape_markdown(reason)}", ""]
    if "model_card" in run.stages:
        sheet = load_exported_card(run.store, run["model_card"]).decision_sheet
        if sheet is not None:
            lines += ["\n\n".join(format_decision_sheet(sheet)), ""]
    if verdicts := run.list_verdicts():
        lines += [verdicts_to_markdown(verdicts), ""]
    lines.append(f"Run `{run.id}` in the store `{run.store.uri}`.")
    if run.page:
        lines.append(f"Its page: `{run.page}`")
    return "\n".join(lines)


def verdicts_to_markdown(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Format the verdicts of a policy, the worst first, as a table in Markdown."""
    order = [*VERDICT_NAMES]
    rows = sorted(verdicts, key=lambda row: order.index(row["verdict"]))
    lines = ["| rule | finding | verdict | distance | reason |", "|---|---|---|--:|---|"]
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


def _format_failed_audits(reason_by_audit: Mapping[str, str]) -> str:
    """Name all audits that failed, those with the same reason together."""
    audits_by_reason: dict[str, list[str]] = {}
    for audit, reason in reason_by_audit.items():
        audits_by_reason.setdefault(reason, []).append(audit)
    failures = "; ".join(
        f"{', '.join(audits)} failed: {reason}" for reason, audits in audits_by_reason.items()
    )
    these_audits = "this audit" if len(reason_by_audit) == 1 else "these audits"
    return (
        f"{failures}; all other results were written, and the model card lists {these_audits}; fix "
        f"the cause, then run the command again to repeat {these_audits}"
    )


def check_audits_and_policy(run: Run) -> None:
    """Check that all audits of a run worked and that its findings pass the policy.

    Raises:
        PolicyViolationError: If a rule of the policy failed or is not shown to hold.
        HallmarkError: If an audit failed, but the policy passed or there is none.
    """

    reason_by_audit = run.read_failure_reason_by_audit()
    failure_text = _format_failed_audits(reason_by_audit) if reason_by_audit else ""
    verdicts = run.list_verdicts()
    policy = judge_policy(verdicts)
    if policy.verdict in (None, "pass"):
        if failure_text:
            raise HallmarkError(failure_text)
        return
    failed_rows = [row for row in verdicts if row["verdict"] == "fail"]
    # A rule that failed is not listed again for its findings that could not be judged.
    not_shown_rows = [
        row
        for row in verdicts
        if row["verdict"] == "not_shown" and row["rule"] in policy.not_shown_rules
    ]
    descriptions = [
        f"{VERDICT_NAMES[verdict]}: {_describe_verdicts(rows)}"
        for verdict, rows in (("fail", failed_rows), ("not_shown", not_shown_rows))
        if rows
    ]
    store_option = (
        ""
        if is_same_store(run.store.uri, resolve_store_uri())
        else f" --store {quote(run.store.uri)}"
    )
    traceable_rows = [
        row
        for row in (*failed_rows, *not_shown_rows)
        if row["value"] is not None
        and row["metric"] not in SKIPPED_COUNT_METRICS.get(row["audit"], ())
    ]
    trace_hints = [
        f"hallmark trace {run.id} {quote(format_finding_name(row))}{store_option} shows its rows; "
        for row in traceable_rows[:1]
    ]
    raise PolicyViolationError(
        f"{policy.describe()}; {'; '.join(descriptions)}; {''.join(trace_hints)}all verdicts are "
        f"on the model card and in the verdicts table of run {run.id}"
        + (f"; {failure_text}" if failure_text else "")
    )


def _describe_verdicts(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Name the rules of the first three verdicts, each with its finding and the reason."""

    descriptions = [
        f"{row['rule']} ({format_finding_name(row)}: {row['reason']})" for row in verdicts[:3]
    ]
    remainder = (
        f", and {len(verdicts) - len(descriptions)} more"
        if len(verdicts) > len(descriptions)
        else ""
    )
    return "; ".join(descriptions) + remainder
