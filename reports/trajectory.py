"""Write the page of a training run with audited checkpoints: how each finding changed.

``<folder>/trajectory.html`` has a chart and a table for each main finding; ``<folder>/rows/`` has
the pairs of each change.

The page is a view of the store, not a card: checkpoints may be audited long after the run.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hallmark.reports.page import charts
from hallmark.reports.page.document import (
    Callout,
    Chart,
    DataTable,
    DefinitionList,
    Document,
    InlineElement,
    Link,
    Paragraph,
    Section,
    redact_document,
)
from hallmark.reports.page.figures import (
    UNNAMED_UNITS,
    Evidence,
    Figure,
    FigureBook,
    format_number,
    slugify,
)
from hallmark.reports.page.redaction import OFFENSIVE_TOXICITY, Redactor
from hallmark.reports.page.rendering import (
    FigureLinker,
    get_evidence_path,
    get_template_environment,
)
from hallmark.reports.page.table_cells import value_to_cell
from hallmark.reports.sections.checkpoint_comparison import (
    TrainingCheckpoint,
    build_exclusions_table,
    describe_change,
    explain_part_selection,
    format_change,
    format_change_interval,
    format_change_unit_suffix,
    format_p_value,
)
from hallmark.reports.sections.corpus_figures import build_corpus_redactor
from hallmark.reports.sections.findings import (
    format_confidence_levels,
    get_audit_title,
    is_about_groups,
    name_finding,
)
from hallmark.tasks.audits.audit_descriptions import CAPABILITY
from hallmark.tasks.audits.judging.audit_comparison import (
    AuditComparison,
    compare_audits,
    compute_signed_harm,
    select_directional_findings,
    select_headline_findings,
)
from hallmark.tasks.audits.judging.comparison import FindingComparison
from hallmark.tasks.audits.judging.comparison_units import (
    AREA_UNIT,
    AuditUnits,
    average_values_by_item,
)
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import Artifact, HallmarkError, Row

TRAJECTORY_FOLDER, TRAJECTORY_PAGE = "trajectory", "trajectory.html"

PAGE_TITLE = "Findings during training"

TrainingAuditComparison = AuditComparison[TrainingCheckpoint]

#: Largest number of rows in a table of other findings, and on a page of pairs.
MAX_OTHER_FINDINGS, MAX_PAIRS = 30, 100

METHOD_NOTE = (
    "An audit uses the same inputs for all checkpoints of a training run, so their results "
    "are compared in pairs: prompt by prompt, secret by secret, document by document. A paired "
    "comparison shows changes that two separate intervals would hide. The p-value of a change is "
    "Holm-corrected for all changes of its audit on this page: all findings and all pairs of "
    "checkpoints. Intervals describe chance variation among these inputs, not among other inputs "
    "or other training runs."
)

SUMMARY_NOTE = (
    "“First” and “last” refer to the first and last checkpoints at which the audit ran. Changes "
    "in shares are in percentage points. “Worse” means that the change is in the direction that "
    "the audit defines as worse, or away from the value expected with no effect. “No change "
    "shown” does not prove that there is none. “Not tested” means that there are no paired units, "
    "or too few of them for a test. “No conclusion” means that no conclusion can be drawn from "
    "the finding at the first or last checkpoint, for example because the model is too weak for "
    "the audit."
)


def get_trajectory_path(run_id: str) -> Path:
    """Return the path within the site of the trajectory page of a run."""
    return Path("runs") / run_id / TRAJECTORY_FOLDER / TRAJECTORY_PAGE


@dataclass(frozen=True)
class AuditedTraining:
    """A training run and the runs that audited its checkpoints.

    Attributes:
        first_run_id: The first run that trained it.
        run_ids: All runs whose pages link to its page.
        audit_runs_by_step: For each step, the runs that audited its checkpoint, newest first.
    """

    first_run_id: str
    run_ids: frozenset[str]
    audit_runs_by_step: Mapping[int, Sequence[str]]


class TrajectoryWriter:
    """Writes the trajectory page into a folder of the site, two levels below the runs."""

    def __init__(
        self,
        checkpoints: Sequence[TrainingCheckpoint],
        training_artifacts: Mapping[str, Artifact],
        trajectory_folder: Path,
        link_figure: FigureLinker = get_evidence_path,
    ) -> None:
        self.checkpoints, self.trajectory_folder = checkpoints, trajectory_folder
        self.link_figure = link_figure
        self.redactor = build_corpus_redactor(dict(training_artifacts), OFFENSIVE_TOXICITY)
        self.redact = self.redactor.redact_full_text
        self.evidence_ids_by_run = {
            run: _list_evidence_ids(artifacts)
            for checkpoint in checkpoints
            for run, artifacts in checkpoint.artifacts_by_run.items()
        }
        self.figure_books: dict[tuple[str, int], FigureBook] = {}
        self.audit_units: dict[tuple[str, int], AuditUnits] = {}
        self.is_complete = True  # whether every artifact could be read

    def build_document(self, run_id: str) -> Document:
        """Build the page: a summary, a section per comparable audit, and what was not compared."""
        audits = compare_audits(self.checkpoints, along_training=True)
        self.is_complete = not any(audit.is_unreadable for audit in audits)
        comparable_audits = [audit for audit in audits if audit.comparisons]
        sections = [self.build_audit_section(audit) for audit in comparable_audits]
        sections.append(Section("Not compared", [build_exclusions_table(audits, self.redact)]))
        checkpoint_links: list[InlineElement] = []
        for checkpoint in self.checkpoints:
            checkpoint_links += [", " if checkpoint_links else "", self.link_model_card(checkpoint)]
        lead: list[Any] = [
            DefinitionList([("Training", [f"run {run_id}"]), ("Audited at", checkpoint_links)])
        ]
        if comparable_audits:
            lead += [self.build_headline_changes_table(comparable_audits), Paragraph([METHOD_NOTE])]
        else:
            lead.append(Callout("bad", ["Nothing can be compared; the reasons are below."]))
        return Document(PAGE_TITLE, "Trajectory", lead, sections)

    def link_model_card(self, checkpoint: TrainingCheckpoint) -> InlineElement:
        """Return the name of a checkpoint, linked to the model card of its newest audit, if any."""
        newest_run = next(iter(checkpoint.artifacts_by_run))
        if not self.evidence_ids_by_run[newest_run]:
            return checkpoint.name
        return Link(checkpoint.name, f"{get_model_card_path(newest_run)}/model_card.html")

    def build_headline_changes_table(self, audits: Sequence[TrainingAuditComparison]) -> DataTable:
        """Build the table of main findings at the first and the last checkpoint."""
        rows: list[list[InlineElement]] = []
        for audit in audits:
            for comparison in select_headline_findings(audit.comparisons):
                end_values = [
                    self.link_finding_value(audit, comparison, index) for index in (0, -1)
                ]
                rows.append(
                    [
                        self.format_finding_name(comparison),
                        audit.judge(comparison),
                        *end_values,
                        *self.format_change_cells(audit, comparison, 0),
                        get_audit_title(audit.name),
                    ]
                )
        columns = [
            "finding",
            "verdict",
            "first",
            "last",
            "change",
            "95 % interval",
            "p, corrected",
            "audit",
        ]
        caption = "From the first checkpoint to the last"
        return DataTable(caption, columns, rows, frozenset({2, 3, 4, 5, 6}), SUMMARY_NOTE)

    def build_audit_section(self, audit: TrainingAuditComparison) -> Section:
        """Build the section of an audit: its main findings, then its other paired findings."""
        headline_comparisons = select_headline_findings(audit.comparisons)
        section = Section(
            get_audit_title(audit.name), [Paragraph([AUDIT_DESCRIPTIONS[audit.name].meaning])]
        )
        if len(audit.checkpoints) < len(self.checkpoints):
            checkpoint_names = ", ".join(checkpoint.name for checkpoint in audit.checkpoints)
            section.add_blocks(Paragraph([f"This audit ran at {checkpoint_names}."]))
        section.sections = [
            self.build_finding_section(audit, comparison) for comparison in headline_comparisons
        ]
        other_comparisons = [
            candidate
            for candidate in audit.comparisons
            if candidate not in headline_comparisons and candidate.changes[0] is not None
        ]
        if other_comparisons:
            section.sections.append(self.build_other_findings_section(audit, other_comparisons))
        return section

    def build_finding_section(
        self, audit: TrainingAuditComparison, comparison: FindingComparison
    ) -> Section:
        """Build the section of a finding: its change, a chart, and tables of values and changes."""
        first_finding, last_finding, unit = (
            comparison.findings[0],
            comparison.findings[-1],
            comparison.findings[0]["unit"],
        )
        section = Section(self.format_finding_name(comparison))
        change = comparison.changes[0]
        end_names = audit.checkpoints[0].name, audit.checkpoints[-1].name
        content: list[InlineElement] = [
            "From ",
            self.link_finding_value(audit, comparison, 0),
            f" at {end_names[0]} to ",
            self.link_finding_value(audit, comparison, -1),
            f" at {end_names[1]}: ",
        ]
        if change is None:
            content.append(explain_missing_change(comparison))
        else:
            content += [
                self.link_change_to_pairs_page(describe_change(change, unit), audit, comparison, 0),
                f": {audit.judge(comparison)}.",
            ]
        section.add_blocks(Paragraph(content))
        metric_comparisons = select_directional_findings(audit.comparisons, last_finding["metric"])
        if explanation := explain_part_selection(comparison, metric_comparisons, end_names[1]):
            section.add_blocks(Paragraph([explanation]))
        chart_name = slugify(f"{audit.name} {first_finding['metric']}")
        if first_finding["slice"]:  # its name may be sensitive, or invalid as a file name
            chart_name += (
                f"-{hashlib.sha256(name_slice(first_finding['slice']).encode()).hexdigest()[:10]}"
            )
        figures = [
            self.add_finding_figure(audit, comparison, checkpoint_index)
            for checkpoint_index in range(len(comparison.findings))
        ]
        drawing = charts.TrajectoryChart(
            [checkpoint.step for checkpoint in audit.checkpoints],
            [figure.value for figure in figures],
            [
                None if figure.low is None or figure.high is None else (figure.low, figure.high)
                for figure in figures
            ],
            [row["null_value"] for row in comparison.findings],
            self.redact(first_finding["title"]) + ("" if unit in UNNAMED_UNITS else f" ({unit})"),
            unit == "share",
        )
        alt_values = ", ".join(
            f"{checkpoint.name} {figure.short_text} ({figure.interval_or_dash})"
            for checkpoint, figure in zip(audit.checkpoints, figures, strict=True)
        )
        caption = describe_trajectory_chart(
            self.format_finding_name(comparison),
            figures,
            [row["null_value"] for row in comparison.findings],
        )
        section.add_blocks(
            Chart(
                chart_name,
                drawing,
                f"{self.format_finding_name(comparison)}: {alt_values}.",
                caption,
            )
        )
        section.add_blocks(self.build_steps_table(audit, comparison, figures))
        if change is not None:
            section.add_blocks(self.build_changes_table(audit, comparison))
        return section

    def build_steps_table(
        self,
        audit: TrainingAuditComparison,
        comparison: FindingComparison,
        figures: Sequence[Figure],
    ) -> DataTable:
        """Build the table of the values in a chart."""
        rows: list[list[InlineElement]] = []
        for checkpoint_index, (row, figure) in enumerate(
            zip(comparison.findings, figures, strict=True)
        ):
            null_text = (
                "–" if row["null_value"] is None else format_number(row["null_value"], row["unit"])
            )
            missing_reason = (
                "" if row["value"] is not None else self.redact(row["method"] or "no reason given")
            )
            rows.append(
                [
                    f"{audit.checkpoints[checkpoint_index].step:,}",
                    self.link_finding_value(audit, comparison, checkpoint_index),
                    figure.interval_or_dash,
                    "–" if row["n"] is None else f"{row['n']:,}",
                    null_text,
                    format_p_value(row["p_corrected"]),
                    missing_reason,
                ]
            )
        columns = [
            "step",
            "value",
            "interval",
            "n",
            "value expected with no effect",
            "p, corrected",
            "not measured because",
        ]
        column_indices = [
            column_index
            for column_index in range(len(columns))
            if column_index < 4 or any(row[column_index] not in ("", "–") for row in rows)
        ]
        unit = comparison.findings[0]["unit"]
        caption = "At each checkpoint" + (f" ({unit})" if unit not in ("share", "") else "")
        scorer = comparison.findings[0]["scorer"]
        note = f"Scorer: {self.redact(scorer)}. " * bool(scorer) + format_confidence_levels(
            comparison.findings
        )
        return DataTable(
            caption,
            [columns[column_index] for column_index in column_indices],
            [[row[column_index] for column_index in column_indices] for row in rows],
            frozenset(
                position
                for position, column_index in enumerate(column_indices)
                if 0 < column_index < 6
            ),
            note,
        )

    def build_changes_table(
        self, audit: TrainingAuditComparison, comparison: FindingComparison
    ) -> DataTable:
        """Build the table of paired changes: first to last checkpoint, then between neighbours."""
        rows: list[list[InlineElement]] = []
        for pair_index, (first_index, second_index) in enumerate(audit.checkpoint_index_pairs):
            change = comparison.changes[pair_index]
            steps = (
                f"{audit.checkpoints[first_index].step:,} → "
                f"{audit.checkpoints[second_index].step:,}"
            )
            pair_count = "–" if change is None else f"{change['n']:,}"
            rows.append(
                [steps, *self.format_change_cells(audit, comparison, pair_index), pair_count]
            )
        columns = ["steps", "change", "95 % interval", "p, corrected", "pairs"]
        caption = f"Paired change{format_change_unit_suffix(comparison.findings[0]['unit'])}"
        return DataTable(caption, columns, rows, frozenset(range(1, 5)))

    def build_other_findings_section(
        self, audit: TrainingAuditComparison, comparisons: Sequence[FindingComparison]
    ) -> Section:
        """Build the table of other paired findings, by p value of their change."""

        def get_change_p_value(comparison: FindingComparison) -> float:
            change = comparison.changes[0]
            return 2.0 if change is None or change["p"] is None else float(change["p"])

        rows: list[list[InlineElement]] = []
        sorted_comparisons = sorted(comparisons, key=get_change_p_value)
        for comparison in (
            candidate
            for rank, candidate in enumerate(sorted_comparisons)
            if rank < MAX_OTHER_FINDINGS or is_about_groups(candidate.findings[0])
        ):
            end_values = [self.link_finding_value(audit, comparison, index) for index in (0, -1)]
            rows.append(
                [
                    self.format_finding_name(comparison),
                    *end_values,
                    *self.format_change_cells(audit, comparison, 0),
                ]
            )
        first_name, last_name = audit.checkpoints[0].name, audit.checkpoints[-1].name
        columns = ["finding", first_name, last_name, "change", "95 % interval", "p, corrected"]
        note = (
            "Rows are sorted by strength of evidence for a change; changes in shares are in "
            "percentage points."
        )
        if len(comparisons) > len(rows):
            checkpoint_arguments = " ".join(
                f"RUN@{audit.checkpoints[index].step}" for index in (0, -1)
            )
            note += (
                f" The table shows {len(rows)} of {len(comparisons)} findings; to see all of "
                f"them, run hallmark compare {checkpoint_arguments}."
            )
        findings_table = DataTable("First and last", columns, rows, frozenset(range(1, 6)), note)
        return Section("Other findings from this audit", [findings_table])

    # Figures and their rows ------------------------------------------------------------------

    def format_finding_name(self, comparison: FindingComparison) -> str:
        """Return the redacted name of a finding: its metric and its slice."""
        return self.redact(name_finding(comparison.findings[0]))

    def add_finding_figure(
        self,
        audit: TrainingAuditComparison,
        comparison: FindingComparison,
        checkpoint_index: int,
    ) -> Figure:
        return self.get_figure_book(audit, checkpoint_index).add_finding_figure(
            f"audit_{audit.name}", comparison.findings[checkpoint_index]
        )

    def get_unit_evidence(
        self,
        audit: TrainingAuditComparison,
        comparison: FindingComparison,
        checkpoint_index: int,
    ) -> Evidence:
        """Return the units over which a finding is a mean."""
        key = audit.name, checkpoint_index
        if key not in self.audit_units:
            self.audit_units[key] = AuditUnits(audit.artifacts[checkpoint_index])
        value_filter = self.audit_units[key].build_value_filter(
            comparison.findings[checkpoint_index]
        )
        assert value_filter is not None
        return self.get_figure_book(audit, checkpoint_index).get_evidence(
            f"audit_{audit.name}", "values", value_filter
        )

    def get_figure_book(self, audit: TrainingAuditComparison, checkpoint_index: int) -> FigureBook:
        """Return the book for an audit at a checkpoint; each checkpoint has a separate book."""
        key = audit.name, audit.checkpoints[checkpoint_index].step  # -1 is also the last index
        if key not in self.figure_books:
            self.figure_books[key] = FigureBook(
                {f"audit_{audit.name}": audit.artifacts[checkpoint_index]}
            )
        return self.figure_books[key]

    def link_finding_value(
        self,
        audit: TrainingAuditComparison,
        comparison: FindingComparison,
        checkpoint_index: int,
    ) -> InlineElement:
        """Return a value, linked to its rows on the model card of the checkpoint if it has them."""
        figure, run = (
            self.add_finding_figure(audit, comparison, checkpoint_index),
            audit.checkpoints[checkpoint_index].find_newest_run(audit.name),
        )
        if run is None or figure.evidence_id not in self.evidence_ids_by_run[run]:
            return figure.short_text
        return Link(figure.short_text, f"{get_model_card_path(run)}/{self.link_figure(figure)}")

    def format_change_cells(
        self,
        audit: TrainingAuditComparison,
        comparison: FindingComparison,
        pair_index: int,
    ) -> list[InlineElement]:
        """Return the table cells of a change: value, interval and p."""
        change, unit = comparison.changes[pair_index], comparison.findings[0]["unit"]
        if change is None:
            return ["not paired", "–", "–"]
        text = format_change(change["value"], unit)
        value = self.link_change_to_pairs_page(text, audit, comparison, pair_index)
        return [value, format_change_interval(change, unit), format_p_value(change["p_corrected"])]

    def link_change_to_pairs_page(
        self,
        text: str,
        audit: TrainingAuditComparison,
        comparison: FindingComparison,
        pair_index: int,
    ) -> InlineElement:
        """Return a change, linked to a page of its pairs, which is written if a table has them."""
        if audit.name == CAPABILITY or comparison.findings[0]["unit"] == AREA_UNIT:
            return text
        return Link(text, self.write_pairs_page(audit, comparison, pair_index))

    def write_pairs_page(
        self,
        audit: TrainingAuditComparison,
        comparison: FindingComparison,
        pair_index: int,
    ) -> str:
        """Write the page of the pairs of a change, unless it exists, and return its path."""
        first_index, second_index = audit.checkpoint_index_pairs[pair_index]
        row, change = comparison.findings[0], comparison.changes[pair_index]
        assert change is not None
        compared_steps = [audit.checkpoints[i].step for i in (first_index, second_index)]
        page_key = f"{audit.name}#{row['metric']}#{name_slice(row['slice'])}#{compared_steps}"
        page = (
            f"rows/{slugify(audit.name)}-{hashlib.sha256(page_key.encode()).hexdigest()[:10]}.html"
        )
        if (self.trajectory_folder / page).exists():
            return page
        side_evidence = [
            self.get_unit_evidence(audit, comparison, checkpoint_index)
            for checkpoint_index in (first_index, second_index)
        ]
        first_units, second_units = (
            {
                unit_row["item"]: unit_row
                for unit_row in average_values_by_item(side.read_selected_rows()).to_pylist()
            }
            for side in side_evidence
        )
        matched_units = [
            (first_unit, second_units[item])
            for item, first_unit in first_units.items()
            if item in second_units
        ]
        matched_units.sort(key=lambda pair: _build_harm_sort_key(row["worse_when"], *pair))
        column_names = [
            column_name
            for column_name in ("item", "cluster", "text")
            if column_name in side_evidence[0].schema.names
        ]
        columns = [
            side_evidence[0].get_column_description(column_name) for column_name in column_names
        ]
        table_rows = [
            (
                [
                    value_to_cell(
                        column,
                        first_row[column.name],
                        first_row.get(column.judged_by),
                        self.redactor,
                    )
                    for column in columns
                ],
                [
                    _format_number(first_row["value"]),
                    _format_number(second_row["value"]),
                    _format_number(_compute_pair_change(first_row, second_row)),
                ],
            )
            for first_row, second_row in matched_units[:MAX_PAIRS]
        ]
        html = (
            get_template_environment()
            .get_template("site_pairs.html")
            .render(
                title=f"{self.format_finding_name(comparison)}: "
                f"{audit.checkpoints[first_index].name} to {audit.checkpoints[second_index].name}",
                said=f"Change: {describe_change(change, row['unit'])}.",
                how=self.redact(change["method"]),
                sides=[
                    (
                        audit.checkpoints[checkpoint_index].name,
                        side,
                        self.redact(side.conditions_json),
                        self.redact(side.format_python_code()),
                    )
                    for checkpoint_index, side in zip(
                        (first_index, second_index), side_evidence, strict=True
                    )
                ],
                columns=columns,
                rows=table_rows,
                shown=len(table_rows),
                total=len(matched_units),
                worse=row["worse_when"] in ("up", "down"),
            )
        )
        path = self.trajectory_folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
        return page


def explain_missing_change(comparison: FindingComparison) -> str:
    """Return the end of a sentence on a finding without a paired change."""
    if all(row["value"] is None for row in comparison.findings):
        return "it was not measured at any of these checkpoints."
    return "not paired, because it is not a mean over the same units at each checkpoint."


def describe_trajectory_chart(
    finding_name: str, figures: Sequence[Figure], null_values: Sequence[float | None]
) -> str:
    """Return the caption of a chart.

    It mentions intervals and the null line only if they are drawn.
    """
    has_interval = any(None not in (figure.value, figure.low, figure.high) for figure in figures)
    interval_note = ", with intervals." if has_interval else "; no interval is available."
    has_null_line = sum(null_value is not None for null_value in null_values) > 1
    null_note = " The dashed line is the value expected with no effect." if has_null_line else ""
    return f"{finding_name} by training step{interval_note}{null_note}"


def _compute_pair_change(first_row: Row, second_row: Row) -> float | None:
    """Return the value of the second row minus that of the first; None if one is missing."""
    first_value, second_value = first_row["value"], second_row["value"]
    return None if None in (first_value, second_value) else second_value - first_value


def _build_harm_sort_key(
    worse_when: str, first_row: Row, second_row: Row
) -> tuple[bool, float, str]:
    """Return a key that sorts pairs: largest harmful change first, missing values last."""
    change = _compute_pair_change(first_row, second_row)
    if change is None:
        return True, 0.0, str(first_row["item"])
    return (
        False,
        -compute_signed_harm(worse_when, change) if worse_when else -abs(change),
        str(first_row["item"]),
    )


def _format_number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


def _list_evidence_ids(run_artifacts: Mapping[str, Artifact | None]) -> set[str]:
    """Return the selections of rows of a run's model card; none where the card is missing."""
    card = run_artifacts.get("model_card")
    return set() if card is None else set(card["evidence"].read(["id"])["id"].to_pylist())


def get_model_card_path(run_id: str) -> str:
    """Return the path of the model card of a run, relative to a trajectory page."""
    return f"../../{quote(run_id)}/model_card"


def build_trajectory(
    run_id: str,
    checkpoints: Sequence[TrainingCheckpoint],
    training_artifacts: Mapping[str, Artifact],
    trajectory_folder: Path,
    link_figure: FigureLinker = get_evidence_path,
) -> tuple[Document, bool]:
    """Build the redacted trajectory of a training run, and write the pages of its pairs.

    Args:
        run_id: The id of the run.
        checkpoints: The audited checkpoints.
        training_artifacts: The artifacts of the run by label, for redaction.
        trajectory_folder: The folder that receives the pages of pairs.
        link_figure: Returns where the link of a figure leads, from a page of its card.

    Returns:
        The document, and whether every artifact could be read.
    """
    try:
        writer = TrajectoryWriter(checkpoints, training_artifacts, trajectory_folder, link_figure)
        document = redact_document(writer.build_document(run_id), writer.redact)
        return document, writer.is_complete
    except (HallmarkError, LookupError, TypeError, ValueError, AttributeError) as error:
        # One damaged artifact must not prevent all other pages.
        message = Redactor().redact_full_text(
            f"{error}" if isinstance(error, HallmarkError) else f"{error!r}"
        )
        error_callout = Callout("bad", [f"The checkpoints could not be compared: {message}"])
        return Document(PAGE_TITLE, "Trajectory", [error_callout], []), False


def write_trajectory_and_report_completeness(
    run_id: str,
    checkpoints: Sequence[TrainingCheckpoint],
    training_artifacts: Mapping[str, Artifact],
    run_folder: Path,
) -> bool:
    """Write the trajectory page of a training run and return whether every artifact could be read.

    Args:
        run_id: The id of the run.
        checkpoints: The audited checkpoints.
        training_artifacts: The artifacts of the run by label, for redaction.
        run_folder: The folder of the run in the site.
    """
    trajectory_folder = run_folder / TRAJECTORY_FOLDER
    shutil.rmtree(trajectory_folder, ignore_errors=True)
    trajectory_folder.mkdir(parents=True, exist_ok=True)
    document, is_complete = build_trajectory(
        run_id, checkpoints, training_artifacts, trajectory_folder
    )
    html = (
        get_template_environment()
        .get_template("site_trajectory.html")
        .render(document=document, run=run_id)
    )
    (trajectory_folder / TRAJECTORY_PAGE).write_text(html, encoding="utf-8")
    return is_complete
