"""List the findings of a run's audits, with the largest risks first."""

from __future__ import annotations

from collections.abc import Iterable

from hallmark.flows.checkpoint_comparison import open_audit_run
from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.finding_trace import format_finding_name
from hallmark.flows.runs import Run, open_store
from hallmark.reports.page.figures import format_number, format_unit_suffix
from hallmark.reports.page.redaction import escape_invisible
from hallmark.tasks.audits.judging.discoveries import (
    compute_harm_rank,
    describe_conclusion,
    read_card_findings,
)
from hallmark.tasks.audits.judging.policy_outcome import VERDICT_NAMES, judge_policy
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import (
    Row,
    UsageError,
    format_closest_name_hint,
)

#: The columns of a finding that each row of the list repeats.
FINDING_FIELDS = (
    "audit",
    "metric",
    "slice",
    "value",
    "low",
    "high",
    "confidence_level",
    "unit",
    "n",
    "null_value",
    "p_corrected",
    "p_harm",
    "q",
    "worse_when",
    "is_variant",
    "inconclusive_reason",
)


def findings(
    run: str = "latest",
    *,
    audit: str | None = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a run's findings, largest risk first, with conclusions, verdicts and the values expected
    under the null hypothesis.

    Parameters
    ----------
    run
        A run id, the start of one, or "latest": the newest run that audited the newest trained
        model.
    audit
        Only findings of this audit, such as bias.
    """
    if audit is not None and audit not in AUDIT_DESCRIPTIONS:
        raise UsageError(
            f"--audit: there is no audit {audit!r:.80}"
            f"{format_closest_name_hint(audit, AUDIT_DESCRIPTIONS)}; choose from "
            f"{', '.join(AUDIT_DESCRIPTIONS)}"
        )
    audit_run = open_audit_run(open_store(store, create=False), run, audit)
    print_result(list_findings(audit_run, audit), as_json, render_findings)


def list_findings(run: Run, audit: str | None = None) -> list[Row]:
    """List the findings of a run in the order of their risk.

    The first screen of the model card uses the same order for the largest finding of each metric.
    Findings whose risk cannot be ranked follow in the order of the card. Controls are not listed.

    Args:
        run: A run with audits.
        audit: Only findings of this audit.

    Returns:
        Rows with ``finding``, the name that the command trace takes; ``title``, the metric in
        words; the ``FINDING_FIELDS``; ``conclusion``, what follows from the finding; the verdict of
        the ``policy`` on the finding, None if no rule is about it; and ``failed_rules``,
        ``not_shown_rules`` and ``passed_rules``.

    Raises:
        UsageError: If the run has no audits, or not this one.
    """
    audits = [name for name in AUDIT_DESCRIPTIONS if f"audit_{name}" in run.stages]
    if not audits:
        raise UsageError(
            f"run {run.id} has no audits and therefore no findings; choose an audited run (to list "
            "all runs: hallmark runs), or audit a model with: hallmark audit CHECKPOINT"
        )
    if audit is not None and audit not in audits:
        raise UsageError(f"run {run.id} has no {audit!r} audit; its audits: {', '.join(audits)}")
    finding_rows = [
        row
        for name, rows in read_card_findings(
            {name: run[f"audit_{name}"] for name in audits}
        ).items()
        if audit in (None, name)
        for row in rows
        if not row["control"]
    ]
    verdicts: dict[str, list[Row]] = {}
    for verdict in run.list_verdicts():
        verdicts.setdefault(format_finding_name(verdict), []).append(verdict)
    return [_build_finding_row(row, verdicts) for row in sort_by_risk(finding_rows)]


def sort_by_risk(findings: Iterable[Row]) -> list[Row]:
    """Sort findings of ``read_card_findings`` by their harm beyond the null value.

    Harmful findings whose unit has no known range come next, then all others; each in their order.
    """
    return sorted(findings, key=compute_harm_rank, reverse=True)


def _build_finding_row(finding: Row, verdicts_by_finding: dict[str, list[Row]]) -> Row:
    name = format_finding_name(finding)
    return {
        "finding": name,
        "title": finding["title"],
        **{field: finding[field] for field in FINDING_FIELDS},
        "conclusion": describe_conclusion(finding),
        **judge_policy(verdicts_by_finding.get(name, [])).to_json_fields(),
    }


def render_findings(rows: list[Row]) -> str:
    """Format the list for a terminal."""
    header = ("value", "interval", "n", "null value", "conclusion", "policy", "finding")
    cells = [header, *(_format_finding_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def _format_finding_cells(row: Row) -> tuple[str, ...]:
    value, low, high, null_value = (
        "" if row[column] is None else format_number(row[column], row["unit"])
        for column in ("value", "low", "high", "null_value")
    )
    return (
        f"{value}{format_unit_suffix(row['unit'], row['value'])}" if value else "not measured",
        f"{low} to {high}" if low else "",
        f"{row['n']:,}",
        null_value,
        row["conclusion"].partition(":")[0],
        VERDICT_NAMES.get(row["policy"], ""),
        escape_invisible(row["finding"]),
    )
