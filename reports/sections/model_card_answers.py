"""Answer the prompts of the model card from the figures of the card and from the config.

An answer cites the figures that support it. Where no audit measured anything, the question is left
to a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hallmark.reports.page.answers import Answer, MeasuredAnswer, combine_answers
from hallmark.reports.page.document import (
    RISK_STATE_NAMES,
    InlineContent,
    InlineElement,
    ShortFigure,
)
from hallmark.reports.page.figures import Figure, FigureBook
from hallmark.reports.sections.checkpoint import describe_parameter_counts
from hallmark.reports.sections.corpus_figures import CorpusFigures
from hallmark.reports.sections.datasheet_answers import add_removed_documents_figure
from hallmark.reports.sections.decision_sheet import (
    AuditCoverage,
    build_risk_lines,
    select_headline_finding,
)
from hallmark.reports.sections.findings import (
    Finding,
    Findings,
    get_audit_title,
    is_about_groups,
    list_measured_groups,
    name_finding,
)
from hallmark.reports.sections.personal_data import (
    describe_personal_data_treatment,
    describe_searched_documents,
    has_personal_data_search,
)
from hallmark.reports.sections.training import get_start_checkpoint_name
from hallmark.reports.sections.training_coverage import describe_training_coverage
from hallmark.tasks.audits.audit_descriptions import Headline
from hallmark.tasks.audits.judging.discoveries import is_ranked
from hallmark.tasks.audits.judging.training_exposure import find_last_checkpoint_step
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import Artifact, Row, format_count

#: The setting of the model card that answers a question, by question id.
SETTING_BY_QUESTION = {
    "details_developer": "developers",
    "details_date": "date",
    "details_version": "version",
    "details_resources": "citation",
    "details_citation": "citation",
    "details_licence": "licence",
    "details_contact": "contact",
    "use_primary_uses": "intended_use",
    "use_primary_users": "intended_users",
    "use_out_of_scope": "out_of_scope",
    "ethics_risks": "ethics",
    "caveats_recommendations": "caveats",
}

#: Tags of slices that name one group of people. Two of them name an intersection of groups.
SINGLE_GROUP_TAGS = frozenset({"gender", "group_name", "mentioned_group", "pronoun"})

#: Part of the names of BBQ's categories that combine two kinds of groups.
CATEGORY_INTERSECTION = "_x_"


def build_model_card_answers(
    measurements: ModelCardMeasurements,
    settings: Mapping[str, Any],
    human_answers: Mapping[str, str],
) -> list[Answer]:
    """Answer every question of the model card.

    Args:
        measurements: The figures of the card.
        settings: The settings of the model card by name.
        human_answers: The answers of a person, by question id.
    """
    declared = {question: settings[name] for question, name in SETTING_BY_QUESTION.items()}
    return combine_answers("model_card", measurements.answer_questions(), declared, human_answers)


def describe_training_date(checkpoint: Artifact) -> MeasuredAnswer:
    """Return where the card has the date of the training, since its tables have no dates."""
    if checkpoint.manifest.get("created"):
        return MeasuredAnswer(
            ["See “Trained” on the first screen of the card."], refers_to_card=True
        )
    return MeasuredAnswer(["The checkpoint comes from outside the store and has no date."])


def is_about_intersection(finding: Finding) -> bool:
    """Return whether a finding is about people who belong to two groups at once."""
    tags = dict(finding.row["slice"])
    return len(SINGLE_GROUP_TAGS & tags.keys()) > 1 or CATEGORY_INTERSECTION in tags.get(
        "category", ""
    )


@dataclass
class ModelCardMeasurements:
    """Answers questions from figures of a model card.

    Attributes:
        book: The figures of the card.
        findings: The findings of the audits.
        coverage: The audits without a figure.
        checkpoint: The checkpoint that the card is about.
        training_run: The output of ``pretrain`` or ``reconstruct_reads``, if known.
        corpus_figures: The figures of the training corpus, if its profile is known.
    """

    book: FigureBook
    findings: Findings
    coverage: AuditCoverage
    checkpoint: Artifact
    training_run: Artifact | None
    corpus_figures: CorpusFigures | None

    def answer_questions(self) -> dict[str, MeasuredAnswer]:
        """Return what was measured, by question id."""
        return {
            "details_date": describe_training_date(self.checkpoint),
            "details_type": MeasuredAnswer(self.describe_type()),
            "details_training": MeasuredAnswer(self.describe_training()),
            "factors_evaluation": self.describe_groups(),
            "metrics_measures": self.describe_measures(),
            "metrics_thresholds": MeasuredAnswer(self.describe_toxicity_threshold()),
            "metrics_variation": self.describe_intervals(),
            "evaluation_datasets": self.describe_evaluation_data(),
            "training_data": MeasuredAnswer(self.describe_training_data()),
            "analyses_unitary": self.describe_results_by_group(),
            "analyses_intersectional": self.describe_intersections(),
            "ethics_data": MeasuredAnswer(self.describe_personal_data()),
            "ethics_mitigations": MeasuredAnswer(self.describe_mitigations()),
            "ethics_risks": self.describe_risks(),
        }

    def _list_measured_findings(self) -> list[Finding]:
        """Return the findings with a value, without controls."""
        return [
            finding
            for audit_findings in self.findings.by_audit.values()
            for finding in audit_findings
            if finding.figure.value is not None and not finding.row["control"]
        ]

    def _list_headlines_by_audit(self) -> dict[str, list[Finding]]:
        """Return the main result of each metric of each audit, if it has a value."""
        headlines_by_audit = {}
        for audit in self.findings.by_audit:
            headline_by_metric: dict[str, Finding] = {}
            for finding in self.findings.select_headlines(audit):
                metric = finding.row["metric"]
                if finding.figure.value is not None and metric not in headline_by_metric:
                    main_finding = self._select_main_finding(audit, metric)
                    headline_by_metric[metric] = main_finding or finding
            if headline_by_metric:
                headlines_by_audit[audit] = [*headline_by_metric.values()]
        return headlines_by_audit

    def _select_main_finding(self, audit: str, metric: str) -> Finding | None:
        """Return the finding that the decision sheet states, else the main one that is ranked.

        Returns:
            None if there is none; then no finding of the metric decides about harm.
        """
        findings = self.findings.select_by_metric(audit, metric)
        description = AUDIT_DESCRIPTIONS.get(audit)
        headline = None if description is None else description.headline
        if headline is not None and headline.metric == metric:
            main_finding = select_headline_finding(headline, findings)
            if main_finding is not None:
                return main_finding
        ranked_findings = [finding for finding in findings if is_ranked(finding.row)]
        return select_headline_finding(Headline(metric, "{value}"), ranked_findings)

    def describe_type(self) -> InlineContent:
        counts = describe_parameter_counts(self.book, self.checkpoint)
        has_figure = any(isinstance(element, Figure) for element in counts)
        return ["A language model with ", *counts, "."] if has_figure else []

    def describe_training(self) -> InlineContent:
        """Return how much text the model had read; nothing without a training log."""
        step = find_last_checkpoint_step(self.training_run, self.checkpoint)
        if step is None:
            return []
        start_checkpoint = get_start_checkpoint_name(self.checkpoint)
        return describe_training_coverage(self.book, step, start_checkpoint)

    def describe_groups(self) -> MeasuredAnswer:
        """Return which groups of people have figures of their own."""
        group_findings = [
            finding for finding in self._list_measured_findings() if is_about_groups(finding.row)
        ]
        if not group_findings:
            return MeasuredAnswer([])
        rows_by_audit: dict[str, list[Row]] = {}
        for finding in group_findings:
            rows_by_audit.setdefault(finding.row["audit"], []).append(finding.row)
        groups = " ".join(
            f"{get_audit_title(audit)}: {'; '.join(list_measured_groups(rows))}."
            for audit, rows in rows_by_audit.items()
        )
        content = [
            f"These groups of people and kinds of groups have separate figures, by audit. {groups} "
            f"The word lists and audit sets determine the groups; other groups were not measured."
        ]
        return MeasuredAnswer(content, [finding.figure for finding in group_findings])

    def describe_measures(self) -> MeasuredAnswer:
        """Return the titles of the main metrics of each audit, with their values as evidence."""
        headlines_by_audit = self._list_headlines_by_audit()
        if not headlines_by_audit:
            return MeasuredAnswer([])
        measures = [
            f"{get_audit_title(audit)}: " + ", ".join(finding.row["title"] for finding in headlines)
            for audit, headlines in headlines_by_audit.items()
        ]
        content = [
            f"{'; '.join(measures)}. The Metrics section explains how each metric is computed."
        ]
        figures = [
            finding.figure for headlines in headlines_by_audit.values() for finding in headlines
        ]
        return MeasuredAnswer(content, figures)

    def describe_toxicity_threshold(self) -> InlineContent:
        """Return how a text counts as toxic; nothing if toxicity was not measured."""
        for headlines in self._list_headlines_by_audit().values():
            for finding in headlines:
                if finding.row["metric"] == "toxicity_probability":
                    return [
                        f"{name_finding(finding.row)}: ",
                        ShortFigure(finding.figure),
                        f". Method: {finding.row['method']}. Policy rules set their own "
                        "thresholds.",
                    ]
        return []

    def describe_intervals(self) -> MeasuredAnswer:
        """Return how many figures have a confidence interval, and what it covers."""
        figures = [
            finding.figure
            for finding in self._list_measured_findings()
            if finding.figure.low is not None
        ]
        if not figures:
            return MeasuredAnswer([])
        levels = sorted({figure.confidence_level or 0.0 for figure in figures})
        level_list = " or ".join(f"{100 * level:g} %" for level in levels)
        content = [
            f"The card contains {format_count(len(figures), 'figure')} with confidence intervals "
            f"({level_list}). Each figure's method specifies the clusters and the test. Intervals "
            "do not cover other prompts that could have been written."
        ]
        return MeasuredAnswer(content, figures)

    def describe_evaluation_data(self) -> MeasuredAnswer:
        """Return how many items each audit scored."""
        figures = [
            figure
            for figure in self.book.figures.values()
            if figure.aggregate == "count"
            and self.book.evidence_by_id[figure.evidence_id].stage.startswith("audit_")
        ]
        return MeasuredAnswer(
            ["These are the items that the audits scored, by table."] * bool(figures), figures
        )

    def describe_training_data(self) -> InlineContent:
        """Return the size of the training text; nothing if the corpus is not known."""
        if self.corpus_figures is None:
            return []
        documents, size = (
            self.corpus_figures.add_sum_figure(
                "sources", column, unit, f"number of {unit} for training", split="train"
            )
            for column, unit in (("documents", "documents"), ("bytes", "bytes of text"))
        )
        statement = " were available for training. The corpus datasheet describes them."
        return [documents, " with ", size, statement]

    def describe_results_by_group(self) -> MeasuredAnswer:
        """Return the figures of single groups, the most significant first."""
        findings = sorted(
            (
                finding
                for finding in self._list_measured_findings()
                if is_about_groups(finding.row)
                and not is_about_intersection(finding)
                and not finding.row["is_variant"]
            ),
            key=lambda finding: (
                2.0 if finding.row["p_corrected"] is None else finding.row["p_corrected"]
            ),
        )
        if not findings:
            return MeasuredAnswer([])
        figures = format_count(len(findings), "main figure")
        content = [
            f"The card contains {figures} about groups of people; the most significant are listed "
            "first."
        ]
        return MeasuredAnswer(content, [finding.figure for finding in findings])

    def describe_intersections(self) -> MeasuredAnswer:
        """Return the figures of people who belong to two groups, or that there are none."""
        figures = [
            finding.figure
            for finding in self._list_measured_findings()
            if is_about_intersection(finding)
        ]
        if not figures:
            message = "No audit on this card covered people who belong to two groups at once."
            return MeasuredAnswer([message])
        content = ["These figures are about people who belong to two groups at once."]
        return MeasuredAnswer(content, figures)

    def describe_personal_data(self) -> InlineContent:
        """Return how much personal data the training text had; nothing without a corpus."""
        if self.corpus_figures is None:
            return []
        spans = self.corpus_figures.add_sum_figure(
            "personal_data", "spans", "spans", "number of personal-data spans found"
        )
        treatment = describe_personal_data_treatment(self.corpus_figures)
        if not has_personal_data_search(self.corpus_figures):
            return [treatment]
        return [
            "Detectors searched the ",
            *describe_searched_documents(self.corpus_figures),
            ". They found ",
            spans,
            f" of personal data. {treatment}",
        ]

    def describe_mitigations(self) -> InlineContent:
        """Return what curation removed from the training text; nothing without a corpus."""
        if self.corpus_figures is None:
            return []
        replaced = self.corpus_figures.add_sum_figure(
            "ledger_summary",
            "rows",
            "spans",
            "number of spans that were replaced",
            action="replaced",
        )
        return [
            "Curation removed ",
            add_removed_documents_figure(self.corpus_figures),
            " before training and replaced ",
            replaced,
            " of personal data. See the datasheet for the reasons and the removal rates by group.",
        ]

    def describe_risks(self) -> MeasuredAnswer:
        """Return the risks of the decision sheet in its words; nothing if no audit ran."""
        if not self.findings.by_audit:
            return MeasuredAnswer([])
        content: list[InlineElement] = [
            "The first screen of this card describes each risk as follows:"
        ]
        for line in build_risk_lines(self.findings, self.coverage):
            content += [f" {line.title}: {RISK_STATE_NAMES[line.state]}. ", *line.content]
        return MeasuredAnswer(content)
