"""Build the section "Not measured" of a model card: everything without a result, in one list.

The first screen names the audits and links here; other sections link here, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from hallmark.reports.page.document import DataTable, InlineElement, Paragraph, Section
from hallmark.reports.sections.card_summary import list_item_notes
from hallmark.reports.sections.decision_sheet import NOT_MEASURED_TITLE, AuditCoverage
from hallmark.reports.sections.findings import Findings, get_audit_title
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS, REQUIRED_SETTINGS


def build_missing_results_section(findings: Findings, coverage: AuditCoverage) -> Section:
    """Build the tables of audits without a result or a conclusion, and of missing figures.

    Args:
        findings: The findings of the audits.
        coverage: The audits without a figure.
    """
    section = Section(NOT_MEASURED_TITLE)
    rows: list[list[InlineElement]] = [
        [get_audit_title(audit), reason, _get_open_question(audit, findings)]
        for audit, reason in _iterate_missing_audits(coverage)
    ]
    if rows:
        columns = ["audit", "reason", "not known"]
        section.add_blocks(DataTable("Audits without a result or conclusion", columns, rows))
    if part_rows := _build_partly_measured_rows(findings, coverage):
        columns = ["audit", "figures not measured", "items skipped or flagged"]
        caption = "Missing figures and items in audits with a result"
        section.add_blocks(DataTable(caption, columns, part_rows, frozenset({1})))
    for part, reason in coverage.failed_parts.items():
        section.add_blocks(Paragraph([f"{part} failed: {reason.rstrip('.')}."]))
    if not section.blocks:
        section.add_blocks(Paragraph(["Every audit produced a result, and no figure is missing."]))
    return section


def _iterate_missing_audits(coverage: AuditCoverage) -> Iterator[tuple[str, str]]:
    """Yield the audits without a result or a conclusion, each with the reason."""
    for audit, reason in coverage.failed.items():
        yield audit, f"failed: {reason.rstrip('.')}"
    for audit in coverage.skipped:
        yield audit, "the user skipped this audit"
    for audit, reason in coverage.empty.items():
        yield audit, f"measured nothing: {reason.rstrip('.')}"
    for audit in coverage.without_data:
        settings = " and ".join(f"audit_{audit}.{name}" for name in REQUIRED_SETTINGS[audit])
        yield audit, f"no data was provided; set {settings}"
    for audit in coverage.without_corpus:
        yield audit, "the training corpus is not known"
    yield from coverage.inconclusive.items()
    for audit, reason in coverage.untested.items():
        yield audit, f"no conclusion: {reason}"
    for audit in coverage.contradicted:
        yield audit, "no conclusion: another score is significant"


def _build_partly_measured_rows(
    findings: Findings, coverage: AuditCoverage
) -> list[list[InlineElement]]:
    """Build a row for each audit with missing figures, or with skipped or flagged items."""
    part_rows: list[list[InlineElement]] = []
    for audit, audit_findings in findings.by_audit.items():
        rows = [row for row, _ in audit_findings if not row["control"]]
        missing_count = sum(row["value"] is None for row in rows)
        notes = list_item_notes(audit, rows)
        if audit not in coverage.empty and (missing_count or notes):
            counts = f"{missing_count} of {len(rows)}" if missing_count else "–"
            part_rows.append([get_audit_title(audit), counts, "; ".join(notes) or "–"])
    return part_rows


def _get_open_question(audit: str, findings: Findings) -> str:
    """Return what is not known: for an audit without findings its message, else its question."""
    if audit not in AUDIT_DESCRIPTIONS:
        return "–"
    description = AUDIT_DESCRIPTIONS[audit]
    return description.question if audit in findings.by_audit else description.not_run_message
