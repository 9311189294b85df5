"""Compare two runs on one page: settings, findings of the audited checkpoints, and training data.

What changed comes first; findings that are equal in every pair, such as baselines, are hidden. The
changes are those of ``hallmark compare`` and of the page of a training: ``compare_audits`` computes
them, so a pair of checkpoints has the same numbers everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hallmark.reports.page.document import (
    Block,
    Callout,
    Code,
    DataTable,
    DefinitionEntry,
    DefinitionList,
    Document,
    InlineElement,
    Link,
    Paragraph,
    Section,
    redact_document,
)
from hallmark.reports.page.figures import Figure, FigureBook, format_number
from hallmark.reports.page.redaction import OFFENSIVE_TOXICITY
from hallmark.reports.page.rendering import get_template_environment
from hallmark.reports.sections.checkpoint_comparison import (
    build_exclusions_table,
    describe_verdict_counts,
    format_change,
    format_change_interval,
    format_p_value,
)
from hallmark.reports.sections.corpus_comparison import (
    CorpusComparison,
    build_corpus_comparison_section,
    compare_corpora,
)
from hallmark.reports.sections.corpus_figures import build_corpus_redactor
from hallmark.reports.sections.findings import get_audit_title, is_about_groups, name_finding
from hallmark.tasks.audits.judging.audit_comparison import (
    AuditComparison,
    compare_audits,
    is_unchanged,
    select_headline_findings,
)
from hallmark.tasks.audits.judging.change_verdicts import SHOWN_CHANGES, build_change_sort_key
from hallmark.tasks.audits.judging.comparison import AuditedCheckpoint, FindingComparison
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import Artifact, format_count

PAGE_TITLE, PAGE_KIND = "Comparison of two runs", "Comparison"
COMPARISON_PAGE = "comparison.html"

#: Keys of a config that change no result.
IGNORED_SETTINGS = ("store", "report_to", "reporters", "credentials", "retry")

#: The largest number of findings without a shown change in the table of an audit.
MAX_OTHER_FINDINGS = 30

VERDICT_NOTE = (
    "Rows are sorted by strength of evidence for a change, strongest first. Changes in shares are "
    "in percentage points. “Worse” means that the change is in the direction that the audit "
    "defines as worse, or away from the value expected with no effect. Both checkpoints received "
    "the same items, so their results are compared in pairs. The p-value is Holm-corrected for all "
    "findings of an audit. “No change shown” does not prove that there is none."
)


#: Returns where the rows of a value are shown, from the checkpoint, the audit and the figure; None
#: if they are shown nowhere.
FindingLinker = Callable[[AuditedCheckpoint, str, Figure], str | None]


@dataclass(frozen=True)
class ComparedRun:
    """One side of a comparison.

    Attributes:
        name: What the user compares, such as a checkpoint.
        run_id: The run with its results.
        config: The settings of the run.
        audits: The audits of its checkpoint; None if it was not audited.
        corpus_artifacts: The artifacts of the stages of its corpus, by label.
    """

    name: str
    run_id: str
    config: Mapping[str, Any]
    audits: AuditedCheckpoint | None = None
    corpus_artifacts: Mapping[str, Artifact] = field(default_factory=dict)


@dataclass(frozen=True)
class SettingDifference:
    """A setting that differs between two runs; a missing one is shown as "not set"."""

    setting: str
    before: str
    after: str


def list_setting_differences(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[SettingDifference]:
    """List the settings that differ between two configs, by name."""
    flat_configs = [_flatten_settings(config) for config in (before, after)]
    return [
        SettingDifference(name, *(config.get(name, "not set") for config in flat_configs))
        for name in sorted(flat_configs[0].keys() | flat_configs[1].keys())
        if flat_configs[0].get(name) != flat_configs[1].get(name)
        and name.partition(".")[0] not in IGNORED_SETTINGS
    ]


def _flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the settings by their full name, as JSON; those that are null are omitted."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if _is_list_of_named_settings(value):
            value = {str(item["name"]): {**item, "name": None} for item in value}
        if isinstance(value, Mapping):
            flat |= _flatten_settings(value, f"{prefix}{name}.")
        elif value is not None:
            flat[f"{prefix}{name}"] = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return flat


def _is_list_of_named_settings(value: Any) -> bool:
    """Return whether a value is a list of mappings with different names, such as rules."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        return False
    names = [item.get("name") for item in value]
    return bool(names) and None not in names and len({*map(str, names)}) == len(names)


@dataclass(frozen=True)
class _JudgedFinding:
    """A finding with the verdict on its change."""

    audit: AuditComparison[AuditedCheckpoint]
    comparison: FindingComparison
    is_main: bool
    link_finding: FindingLinker | None

    @property
    def verdict(self) -> str:
        return self.audit.judge(self.comparison)

    @property
    def sort_key(self) -> tuple[bool, float, float]:
        return build_change_sort_key(self.audit.judge(self.comparison), self.comparison.changes[0])

    def build_cells(self) -> list[InlineElement]:
        """Return verdict, values, change, interval, p and number of pairs."""
        unit, change = self.comparison.findings[0]["unit"], self.comparison.changes[0]
        values = [self._link_value(index) for index in (0, 1)]
        if change is None:
            return [self.verdict, *values, "not paired", "–", "–", "–"]
        return [
            self.verdict,
            *values,
            format_change(change["value"], unit),
            format_change_interval(change, unit),
            format_p_value(change["p_corrected"]),
            f"{change['n']:,}",
        ]

    def _link_value(self, side: int) -> InlineElement:
        """Return the value before (0) or after (1), linked to its rows if they are shown."""
        row, audit = self.comparison.findings[side], self.audit
        text = "not measured" if row["value"] is None else format_number(row["value"], row["unit"])
        if self.link_finding is None:
            return text
        label = f"audit_{audit.name}"
        figure = FigureBook({label: audit.artifacts[side]}).add_finding_figure(label, row)
        href = self.link_finding(audit.checkpoints[side], audit.name, figure)
        return text if href is None else Link(text, href)


_CHANGE_COLUMNS = ["verdict", "before", "after", "change", "95 % interval", "p, corrected", "pairs"]


@dataclass(frozen=True)
class RunComparison:
    """What differs between two runs.

    Attributes:
        before: The first run.
        after: The second run.
        audits: The comparisons of the audits; empty if one run has none.
        setting_differences: The settings that differ.
        corpus_tables: The compared tables of the training data.
        missing_corpus_tables: The titles of those that cannot be compared, with the reason.
    """

    before: ComparedRun
    after: ComparedRun
    audits: Sequence[AuditComparison[AuditedCheckpoint]]
    setting_differences: Sequence[SettingDifference]
    corpus_tables: Sequence[CorpusComparison]
    missing_corpus_tables: Sequence[tuple[str, str]]

    @classmethod
    def from_runs(cls, before: ComparedRun, after: ComparedRun) -> RunComparison:
        """Compare two runs."""
        audits: list[AuditComparison[AuditedCheckpoint]] = []
        if before.audits is not None and after.audits is not None:
            audits = compare_audits([before.audits, after.audits])
        return cls(
            before,
            after,
            audits,
            list_setting_differences(before.config, after.config),
            *compare_corpora(before.corpus_artifacts, after.corpus_artifacts),
        )

    @property
    def unaudited_run(self) -> ComparedRun | None:
        """The first run without audits; None if both have some."""
        return next((run for run in (self.before, self.after) if run.audits is None), None)


def compare_runs(before: ComparedRun, after: ComparedRun) -> Document:
    """Compare two runs, and return the redacted page."""
    return build_comparison_document(RunComparison.from_runs(before, after))


def build_comparison_document(
    comparison: RunComparison, link_finding: FindingLinker | None = None
) -> Document:
    """Build the page of a comparison.

    Args:
        comparison: The comparison.
        link_finding: Returns where the rows of a value are shown; None: values have no links.

    Returns:
        The redacted page: settings that differ, what changed, a section for each audit that can be
        compared, the training data, and what cannot be compared, with the reasons.
    """
    findings = _list_judged_findings(comparison.audits, link_finding)
    sides = {"Before": comparison.before, "After": comparison.after}
    redact = build_corpus_redactor(
        {
            f"{side}/{label}": artifact
            for side, run in sides.items()
            for label, artifact in run.corpus_artifacts.items()
        },
        OFFENSIVE_TOXICITY,
    ).redact_full_text
    lead: list[Block] = [
        DefinitionList([_describe_side(term, run) for term, run in sides.items()]),
        _build_settings_block(comparison.setting_differences),
        *_build_summary_blocks(comparison, findings),
        *_describe_corpus_differences(comparison.corpus_tables),
    ]
    sections = [
        section
        for audit in comparison.audits
        if (
            section := _build_audit_section(
                audit, [finding for finding in findings if finding.audit is audit]
            )
        )
    ]
    sections.append(build_corpus_comparison_section(comparison.corpus_tables))
    not_compared: list[Block] = []
    if comparison.audits:
        not_compared.append(build_exclusions_table(comparison.audits, redact))
    if comparison.missing_corpus_tables:
        rows: list[list[InlineElement]] = [
            [title, reason] for title, reason in comparison.missing_corpus_tables
        ]
        not_compared.append(DataTable("Training data not compared", ["figures", "why"], rows))
    if not_compared:
        sections.append(Section("Not compared", not_compared))
    return redact_document(Document(PAGE_TITLE, PAGE_KIND, lead, sections), redact)


def write_comparison_page(
    comparison: RunComparison, folder: Path, link_finding: FindingLinker | None = None
) -> Path:
    """Write the page of a comparison into a folder, and return its path."""
    path = folder / COMPARISON_PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    html = render_comparison_page(build_comparison_document(comparison, link_finding))
    path.write_text(html, encoding="utf-8")
    return path


def render_comparison_page(document: Document) -> str:
    """Render a comparison as an HTML page."""
    template = get_template_environment().get_template("comparison.html")
    return template.render(document=document)


def _describe_side(term: str, run: ComparedRun) -> DefinitionEntry:
    content: list[InlineElement] = [run.name]
    if run.run_id not in run.name or run.audits is not None:
        content += [", audited by run " if run.audits else ", run ", Code(run.run_id)]
    return term, content


def _list_judged_findings(
    audits: Sequence[AuditComparison[AuditedCheckpoint]], link_finding: FindingLinker | None
) -> list[_JudgedFinding]:
    """Return the findings of all audits, what changed first."""
    findings = []
    for audit in audits:
        headlines = select_headline_findings(audit.comparisons)
        findings += [
            _JudgedFinding(
                audit,
                comparison,
                any(comparison is other for other in headlines),
                link_finding,
            )
            for comparison in audit.comparisons
        ]
    return sorted(findings, key=lambda finding: finding.sort_key)


def _build_settings_block(differences: Sequence[SettingDifference]) -> Block:
    if not differences:
        return Paragraph(["The two runs have the same settings."])
    rows: list[list[InlineElement]] = [
        [row.setting, Code(row.before), Code(row.after)] for row in differences
    ]
    return DataTable("Settings that differ", ["setting", "before", "after"], rows)


def _build_summary_blocks(
    comparison: RunComparison, findings: Sequence[_JudgedFinding]
) -> list[Block]:
    """Say how many findings changed, and list those, the strongest evidence first."""
    if comparison.unaudited_run is not None:
        name = comparison.unaudited_run.name
        return [
            Callout("note", [f"Only training data is compared, because {name} was not audited."])
        ]
    if not findings:
        return [Callout("bad", ["No audits can be compared; the reasons are below."])]
    counts = describe_verdict_counts([finding.verdict for finding in findings if finding.is_main])
    refused = [get_audit_title(audit.name) for audit in comparison.audits if not audit.comparisons]
    refused_note = f" Not compared, for the reasons below: {', '.join(refused)}." if refused else ""
    blocks: list[Block] = [
        Callout("note", [f"{counts[:1].upper()}{counts[1:]}.{refused_note}"]),
        _build_changes_table(findings),
    ]
    if hidden := sum(is_unchanged(finding.comparison) for finding in findings):
        verbs = ("has", "is") if hidden == 1 else ("have", "are")
        blocks.append(
            Paragraph(
                [
                    f"{format_count(hidden, 'finding')} {verbs[0]} the same value before and "
                    f"after (for example, a baseline on the same text) and {verbs[1]} not shown."
                ]
            )
        )
    return blocks


def _describe_corpus_differences(tables: Sequence[CorpusComparison]) -> list[Block]:
    """Say which figures of the training data differ; nothing if none can be compared."""
    if not tables:
        return []
    titles = [table.title for table in tables if not table.is_equal]
    if not titles:
        return [Paragraph(["The training data does not differ."])]
    return [Paragraph([f"Training data that differs: {'; '.join(titles)}."])]


def _build_changes_table(findings: Sequence[_JudgedFinding]) -> Block:
    """Build the table of all findings with a shown change; groups of people are never cut."""
    changed = [finding for finding in findings if finding.verdict in SHOWN_CHANGES]
    if not changed:
        return Paragraph(["No finding shows a change."])
    rows: list[list[InlineElement]] = [
        [
            name_finding(finding.comparison.findings[0]),
            *finding.build_cells(),
            get_audit_title(finding.audit.name),
        ]
        for finding in changed
    ]
    columns = ["finding", *_CHANGE_COLUMNS, "audit"]
    return DataTable("What changed", columns, rows, frozenset(range(2, 8)), VERDICT_NOTE)


def _build_audit_section(
    audit: AuditComparison[AuditedCheckpoint], findings: Sequence[_JudgedFinding]
) -> Section | None:
    """Build the section of an audit; None if it has no finding to show.

    It shows what changed, the main findings, and all findings about groups of people; the others
    up to a limit.
    """
    different = [finding for finding in findings if not is_unchanged(finding.comparison)]
    if not different:
        return None
    shown = [
        finding
        for rank, finding in enumerate(different)
        if rank < MAX_OTHER_FINDINGS
        or finding.is_main
        or finding.verdict in SHOWN_CHANGES
        or is_about_groups(finding.comparison.findings[0])
    ]
    rows: list[list[InlineElement]] = [
        [name_finding(finding.comparison.findings[0]), *finding.build_cells()] for finding in shown
    ]
    scorers = sorted({finding.comparison.findings[0]["scorer"] for finding in shown} - {"", None})
    note = f"Scorer: {', '.join(scorers)}." if scorers else ""
    if len(shown) < len(different):
        note = f"The table shows {len(shown)} of {len(different)} findings. {note}".strip()
    table = DataTable(
        "Findings before and after",
        ["finding", *_CHANGE_COLUMNS],
        rows,
        frozenset(range(2, 8)),
        note,
    )
    return Section(
        get_audit_title(audit.name),
        [Paragraph([AUDIT_DESCRIPTIONS[audit.name].meaning]), table],
    )
