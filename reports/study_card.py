"""Build the card of a study: how often the audits are wrong, on corpora with known answers.

The study hides the answers until the audits have judged every candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from hallmark.reports.page.card_tables import (
    CARD_TABLE_SCHEMAS,
    CardContent,
    write_card_tables,
)
from hallmark.reports.page.charts import IntervalChart
from hallmark.reports.page.document import (
    Block,
    BulletList,
    Callout,
    Chart,
    DataTable,
    Document,
    InlineContent,
    InlineElement,
    Paragraph,
    Section,
    ShortFigure,
)
from hallmark.reports.page.figures import (
    SHARE_DIFFERENCE,
    Figure,
    FigureBook,
    format_number,
)
from hallmark.reports.page.redaction import REDACTION_LIBRARIES, Redactor
from hallmark.reports.sections.error_rates import (
    CANDIDATE_KINDS,
    ERROR_RATES,
    ErrorRates,
    describe_measured_audits,
    format_planted_amount,
    format_rate_with_interval,
    group_unmeasured_audits_by_reason,
)
from hallmark.tasks.audits.registry import compute_descriptions_digest
from hallmark.tasks.contract import Artifact, StageConfig, StageContext, stage

#: The required detection rate at the largest planted amount, and the valid range of coverage.
MIN_DETECTION_RATE, VALID_COVERAGE_RANGE = 0.95, (0.92, 0.98)

#: With fewer trials, results are called weak. With fewer intervals, coverage is judged by its own
#: interval.
MIN_TRIALS, MIN_INTERVALS = 10, 400


class StudyCardConfig(StageConfig):
    """Settings of the card of a study."""

    title: str = Field("How often the audits are wrong", description="card title")


#: Whether candidates with a planted amount have an effect.
EFFECT_LABELS = {True: "yes", False: "no", None: "less than in other groups"}


@dataclass
class StudyCardBuilder:
    """Builds the sections of the card and adds their figures to the book.

    Attributes:
        book: The figures of the card.
        error_rates: The rates of the study.
        config: The settings.
    """

    book: FigureBook
    error_rates: ErrorRates
    config: StudyCardConfig

    def __post_init__(self) -> None:
        self.trial_count = self.book.add_computed_figure(
            "trials", "number of trials", "trials", (ERROR_RATES, "trials"), aggregate="count"
        )

    # First screen --------------------------------------------------------------------------

    def build_lead(self) -> list[Block]:
        """Build the first screen: three verdicts and a summary table."""
        if not self.error_rates.counted_trials.value:
            return [
                Callout(
                    "bad",
                    [
                        "No trial could be counted, so nothing was measured. Trials created: ",
                        ShortFigure(self.trial_count),
                        ".",
                    ],
                )
            ]
        return [
            Paragraph(
                [
                    "Each trial has a synthetic corpus with known effects: documents about an "
                    "invented town. A model was trained on each corpus, and the usual audits "
                    "judged every candidate (a possible effect) before the answer key was opened. "
                    "Trials that count towards the results: ",
                    ShortFigure(self.error_rates.counted_trials),
                    " of ",
                    ShortFigure(self.trial_count),
                    f". {describe_measured_audits(self.error_rates.list_candidate_kinds())}",
                ]
            ),
            self.build_detection_callout(),
            self.build_false_alarm_callout(),
            self.build_coverage_callout(),
            self.build_summary_table(),
        ]

    def build_detection_callout(self) -> Callout:
        """Build the verdict on detection at the largest planted amounts."""
        has_judged_effects = any(
            map(
                self.error_rates.find_rate_of_largest_effect,
                self.error_rates.list_candidate_kinds(),
            )
        )
        unjudged_statements = [
            unjudged_statement
            for kind in self.error_rates.list_candidate_kinds()
            if (unjudged_statement := self.error_rates.describe_unjudged_candidates(kind))
        ]
        if not has_judged_effects and not unjudged_statements:
            return Callout(
                "note",
                ["Detection: no trial that counts towards the results has a planted effect."],
            )
        effect_label = (
            "the largest effect on which it reached a verdict"
            if unjudged_statements
            else "its largest effect"
        )
        success_text = (
            f"every audit with a planted effect detects {effect_label} in at least 95 % of cases"
        )
        if not has_judged_effects:
            success_text = "no audit reached a verdict on a candidate with an effect"
        return self.build_verdict_callout(
            "Detection", self.list_low_detection_rates(), [success_text], unjudged_statements
        )

    def build_false_alarm_callout(self) -> Callout:
        """Build the verdict on false alarms."""
        if not any(
            figure.value is not None for figure in self.error_rates.false_alarm_rates.values()
        ):
            return Callout(
                "note",
                ["False alarms: no audit reached a verdict on a candidate without an effect."],
            )
        return self.build_verdict_callout(
            "False alarms",
            self.list_high_false_alarm_rates(),
            self.describe_highest_false_alarm_rate(),
        )

    def build_coverage_callout(self) -> Callout:
        """Build the verdict on the coverage of intervals."""
        if not any(figure.value is not None for figure in self.error_rates.coverage_rates.values()):
            return Callout("note", ["Intervals: no interval can be compared with a true value."])
        return self.build_verdict_callout(
            "Intervals", self.list_invalid_coverages(), [self.describe_valid_coverage()]
        )

    def build_verdict_callout(
        self,
        topic: str,
        problems: list[InlineContent],
        success_content: InlineContent,
        unjudged_statements: Sequence[InlineContent] = (),
    ) -> Callout:
        """Build a callout that lists problems, or states success.

        Args:
            topic: The topic, at the start of the sentence.
            problems: The problems; empty if there are none.
            success_content: The statement without problems.
            unjudged_statements: Statements on candidates without a verdict, which prevent success.
        """
        has_few_trials = not problems and (self.error_rates.counted_trials.value or 0) < MIN_TRIALS
        statements: list[InlineContent] = [*(problems or [success_content]), *unjudged_statements]
        content: list[InlineElement] = [f"{topic}: "]
        for index, statement in enumerate(statements):
            content += ["; " if index else "", *statement]
        content.append("; results from so few trials are weak evidence." if has_few_trials else ".")
        return Callout(
            "bad" if problems else "note" if has_few_trials or unjudged_statements else "good",
            content,
        )

    def list_low_detection_rates(self) -> list[InlineContent]:
        """Return the audits that detect their largest effect too rarely, and by how much."""
        problems: list[InlineContent] = []
        for kind in self.error_rates.list_candidate_kinds():
            largest_effect = self.error_rates.find_rate_of_largest_effect(kind)
            if (
                largest_effect
                and largest_effect.figure.value is not None
                and largest_effect.figure.value < MIN_DETECTION_RATE
            ):
                shortfall = format_number(
                    MIN_DETECTION_RATE - largest_effect.figure.value, SHARE_DIFFERENCE
                )
                effect_label = (
                    f"{CANDIDATE_KINDS[kind].title} at "
                    f"{format_planted_amount(largest_effect.planted_amount)} "
                    f"({CANDIDATE_KINDS[kind].amount_label})"
                )
                problems.append(
                    [
                        f"{effect_label}: found in ",
                        *format_rate_with_interval(largest_effect.figure),
                        f", {shortfall} less than the required "
                        f"{format_number(MIN_DETECTION_RATE, 'share')}, so the audit is too weak "
                        "for this effect with these settings",
                    ]
                )
        return problems

    def list_high_false_alarm_rates(self) -> list[InlineContent]:
        """Return the kinds of candidates whose rate of false alarms is shown to exceed 5 %."""
        return [
            [f"{CANDIDATE_KINDS[kind].title}: false alarms in ", *format_rate_with_interval(figure)]
            for kind, figure in self.error_rates.false_alarm_rates.items()
            if figure.low is not None and figure.low > 0.05
        ]

    def describe_highest_false_alarm_rate(self) -> InlineContent:
        """Return that no false alarm rate is known to exceed 5 %, and which rate is the highest."""
        content: list[InlineElement] = [
            "no audit has been shown to produce false alarms for more than 5 % of the candidates "
            "without an effect"
        ]
        measured_rates = {
            measured_kind: measured_figure
            for measured_kind, measured_figure in self.error_rates.false_alarm_rates.items()
            if measured_figure.value is not None
        }
        if measured_rates:
            highest_kind = max(measured_rates, key=lambda kind: measured_rates[kind].value or 0.0)
            figure = measured_rates[highest_kind]
            content += [
                "; the highest rate is ",
                *format_rate_with_interval(figure),
                f", {CANDIDATE_KINDS[highest_kind].title}",
            ]
        return content

    def list_invalid_coverages(self) -> list[InlineContent]:
        """Return the kinds of candidates whose intervals are too narrow or too wide."""
        low, high = VALID_COVERAGE_RANGE
        problems: list[InlineContent] = []
        for kind, figure in self.error_rates.coverage_rates.items():
            # With few intervals, the interval of the coverage must be outside the valid range.
            has_few_intervals = (figure.n or 0) < MIN_INTERVALS
            upper_rate, lower_rate = (
                (figure.high, figure.low) if has_few_intervals else (figure.value, figure.value)
            )
            if (
                upper_rate is None
                or lower_rate is None
                or (upper_rate >= low and lower_rate <= high)
            ):
                continue
            problem = (
                "cover the true value too rarely"
                if upper_rate < low
                else "cover the true value too often"
            )
            problems.append(
                [
                    f"{CANDIDATE_KINDS[kind].title}: the intervals {problem}, in ",
                    ShortFigure(figure),
                    f" of {figure.n or 0:,} ({figure.interval_or_dash})",
                ]
            )
        return problems

    def describe_valid_coverage(self) -> str:
        """Return the statement used if no coverage is invalid."""
        has_few_intervals = any(
            (figure.n or 0) < MIN_INTERVALS for figure in self.error_rates.coverage_rates.values()
        )
        if has_few_intervals:
            return (
                "no candidate type is shown to have intervals that cover the true value in "
                "fewer than 92 % or more than 98 % of cases"
            )
        return "the 95 % intervals cover the true value in 92 to 98 % of cases"

    def build_summary_table(self) -> DataTable:
        rows: list[list[InlineElement]] = []
        for kind in self.error_rates.list_candidate_kinds():
            largest_effect, smallest_amount = (
                self.error_rates.find_rate_of_largest_effect(kind),
                self.error_rates.smallest_detected.get(kind),
            )
            largest_effect_cells: list[InlineElement] = (
                [format_planted_amount(largest_effect.planted_amount), largest_effect.figure]
                if largest_effect
                else ["–", "–"]
            )
            smallest_text = (
                "none" if smallest_amount is None else format_planted_amount(smallest_amount)
            )
            rows.append(
                [
                    CANDIDATE_KINDS[kind].title,
                    *largest_effect_cells,
                    smallest_text if largest_effect else "–",
                    self.error_rates.false_alarm_rates.get(kind, "–"),
                    self.error_rates.coverage_rates.get(kind, "–"),
                ]
            )
        columns = [
            "candidates",
            "largest amount",
            "found at the largest amount",
            "smallest amount at and above which at least 80 % of candidates are found",
            "false alarms",
            "interval coverage",
        ]
        note = (
            "All candidates in a trial are tested on the same model, so intervals treat trials, "
            "not candidates, as independent. The largest amount is the largest planted amount "
            "that has an effect. Coverage counts only two-sided intervals. "
            f"{self.describe_detection_rules()}"
        )
        return DataTable("Summary", columns, rows, frozenset({1, 2, 3, 4, 5}), note)

    def describe_detection_rules(self) -> str:
        """Return the rule that decides for each kind of candidate, each rule once."""
        titles_by_rule: dict[str, list[str]] = {}
        for kind in self.error_rates.list_candidate_kinds():
            description = CANDIDATE_KINDS[kind]
            titles_by_rule.setdefault(description.rule, []).append(description.title.lower())
        rules = "; if ".join(
            f"{rule} ({', '.join(titles)})" for rule, titles in titles_by_rule.items()
        )
        return (
            f"Rule: a candidate is found if {rules}. A false alarm is a candidate without an "
            "effect that is found by the same rule."
        )

    # Sections ------------------------------------------------------------------------------

    def build_kind_section(self, kind: str) -> Section:
        """Build the section of a kind of candidate: detection, false alarms and coverage."""
        description = CANDIDATE_KINDS[kind]
        section = Section(description.title)
        section.add_blocks(
            Paragraph(
                [
                    f"A candidate is {description.candidate}. The audit "
                    f"{description.audit_procedure}. The candidate is found if {description.rule}."
                ]
            )
        )
        if kind in self.error_rates.detection_rates:
            section.add_blocks(*self.build_detection_blocks(kind))
        if unjudged_count := self.error_rates.add_unjudged_count_figure(kind):
            section.add_blocks(
                Callout(
                    "bad",
                    [
                        "Not judged: ",
                        ShortFigure(unjudged_count),
                        " candidates, because the model returned no number, there was no position "
                        "to test, or no conclusion can be drawn from the audit. They are not "
                        "included in any rate.",
                    ],
                )
            )
        if kind in self.error_rates.false_alarm_rates:
            figure = self.error_rates.false_alarm_rates[kind]
            level_note = (
                f"; the {100 * (figure.confidence_level or 0):.4g} % interval is simultaneous for "
                "all candidate types"
            )
            section.add_blocks(
                Paragraph(
                    [
                        "False alarms among candidates without an effect: ",
                        figure,
                        level_note * (figure.low is not None),
                        f". {description.alarm_bound}.",
                    ]
                )
            )
        coverage_content: InlineContent = [
            "None of this audit's intervals can be compared with a true value."
        ]
        if kind in self.error_rates.coverage_rates:
            coverage_content = [
                "This audit's 95 % intervals cover the true value, which is "
                f"{description.true_value}, in ",
                self.error_rates.coverage_rates[kind],
                " of cases.",
            ]
            if incomparable_count := self.error_rates.add_missing_interval_count_figure(kind):
                coverage_content += [
                    " Not counted: ",
                    ShortFigure(incomparable_count),
                    " candidates, which lack a two-sided interval or a known true value.",
                ]
        section.add_blocks(Paragraph(coverage_content))
        return section

    def build_detection_blocks(self, kind: str) -> list[Block]:
        """Build chart and table of the detection rate by planted amount."""
        description, detection_rates = CANDIDATE_KINDS[kind], self.error_rates.detection_rates[kind]
        measured_rates = [
            (format_planted_amount(rate.planted_amount), rate.figure, rate.figure.value)
            for rate in detection_rates
            if rate.figure.value is not None
        ]
        interval_bounds = [
            None if figure.low is None or figure.high is None else (figure.low, figure.high)
            for _, figure, _ in measured_rates
        ]
        labels = [label for label, _, _ in measured_rates]
        values = [value for _, _, value in measured_rates]
        interval_note = "error bars show 95 % intervals with trials as units, and " * any(
            interval_bounds
        )
        alt_values = ", ".join(
            f"{label}: {format_number(value, 'share')}"
            for label, value in zip(labels, values, strict=True)
        )
        table_rows: list[list[InlineElement]] = [
            [
                format_planted_amount(rate.planted_amount),
                EFFECT_LABELS[rate.has_effect],
                rate.figure,
                rate.figure.interval_or_dash,
                f"{rate.figure.n:,}",
            ]
            for rate in detection_rates
        ]
        columns = [
            description.amount_label,
            "has an effect?",
            "found",
            "interval",
            "candidates",
        ]
        return [
            Chart(
                f"found-{kind}",
                IntervalChart(labels, values, interval_bounds, "share found", MIN_DETECTION_RATE),
                f"Share of candidates found, by {description.amount_label}: "
                f"{alt_values or 'not measured'}",
                f"Share of candidates found, by {description.amount_label}; {interval_note}the "
                "line is at 95 %",
            ),
            DataTable(
                f"Share of candidates found, by {description.amount_label}",
                columns,
                table_rows,
                frozenset({2, 3, 4}),
            ),
        ]

    def build_attribution_section(self) -> Section:
        """Build the section on attribution.

        It shows how often the named documents were written for the text, and what happened to
        findings when models were trained without them.
        """
        section = Section("Attribution to training documents")
        section.add_blocks(
            Paragraph(
                [
                    "Attribution without gradients lists the documents that share rare words and "
                    "word sequences with a text. A listed document is correct if it was written "
                    "for that text. The number of listed documents that are checked equals the "
                    "number of correct documents, up to the limit per text."
                ]
            )
        )
        rows: list[list[InlineElement]] = []
        for row in self.error_rates.rows_by_table["attribution_precision"]:
            figure = self.add_stored_figure(row, "attribution_precision", {"kind": row["kind"]})
            rows.append(
                [
                    CANDIDATE_KINDS[row["kind"]].title,
                    figure,
                    figure.interval_or_dash,
                    f"{row['n']:,}",
                ]
            )
        columns = ["candidates", "correct", "interval", "texts"]
        section.add_blocks(
            DataTable("Correct listed documents", columns, rows, frozenset({1, 2, 3}))
        )
        if not self.error_rates.rows_by_table["removal_reductions"]:
            message = "No model was retrained without the listed documents."
            if self.error_rates.study.manifest["lineage"].get("retrained_verdicts"):
                message = (
                    "No figure from a model retrained without the listed documents can be "
                    "compared with the original model's figure."
                )
            section.add_blocks(Paragraph([message]))
            return section
        arm_titles = {
            "removed": "without the documents",
            "random": "without an equal number of randomly chosen documents",
            "difference": "difference",
        }
        rows = []
        for row in self.error_rates.rows_by_table["removal_reductions"]:
            conditions = {"kind": row["kind"], "arm": row["arm"]}
            unit = SHARE_DIFFERENCE if row["unit"] == "share" else row["unit"]
            figure = self.add_stored_figure(row, "removal_reductions", conditions, unit)
            row_label = f"{CANDIDATE_KINDS[row['kind']].title}, {arm_titles[row['arm']]}"
            rows.append([row_label, figure, row["unit"], figure.interval_or_dash, f"{row['n']:,}"])
        section.add_blocks(
            DataTable(
                "Decrease in measured values after retraining",
                ["figure", "decrease", "unit", "interval", "candidates"],
                rows,
                frozenset({1, 3, 4}),
                "The table contains only candidates that were found. A decrease is the figure "
                "before retraining minus the figure after it.",
            )
        )
        return section

    def add_stored_figure(
        self,
        stored_row: Mapping[str, Any],
        table_name: str,
        conditions: Mapping[str, str],
        unit: str = "share",
    ) -> Figure:
        """Add a figure that a table of the study stores."""
        label = " ".join([table_name, *conditions.values()])
        figure_fields = {name: stored_row[name] for name in ("low", "high", "n", "method")}
        figure_fields["confidence_level"] = stored_row["confidence_level"]
        return self.book.add_computed_figure(
            label,
            label,
            unit,
            (ERROR_RATES, table_name),
            conditions,
            aggregate="last",
            value_column="value",
            **figure_fields,
        )

    def build_excluded_trials_section(self) -> Section:
        """Build the table of trials that do not count, with the reasons."""
        section = Section("Excluded trials")
        rows: list[list[InlineElement]] = [
            [row["trial"], row["reason"]]
            for row in self.error_rates.rows_by_table["trials"]
            if not row["is_counted"]
        ]
        message = (
            "Every trial counts."
            if self.error_rates.rows_by_table["trials"]
            else "No trial was created."
        )
        message_blocks: Sequence[Block] = [Paragraph([message])]
        section.add_blocks(
            *(
                [DataTable("Reasons for exclusion", ["trial", "reason"], rows)]
                if rows
                else message_blocks
            )
        )
        return section

    def build_unmeasured_audits_section(self) -> Section:
        """Build the table of audits that the study did not measure, with the reasons."""
        section = Section("Audits that were not measured")
        titles_by_reason = group_unmeasured_audits_by_reason(
            self.error_rates.list_candidate_kinds()
        )
        rows: list[list[InlineElement]] = [
            [", ".join(titles), reason] for reason, titles in titles_by_reason.items()
        ]
        section.add_blocks(DataTable("Reasons", ["audits", "reason"], rows))
        return section

    def build_caveats_section(self) -> Section:
        items: list[InlineContent] = [
            [
                "The corpora are invented, and the models are small (by default half a million "
                "parameters and a megabyte of text), so rates on larger models and other text may "
                "differ."
            ],
            [
                "Detection depends on how often the model read a text, and therefore on training "
                "length. The run's page shows the study settings."
            ],
            [
                "The true value that an interval should contain is the value of the same model "
                "over all items. Coverage is therefore judged against the model, and detection "
                "against the text. A false alarm may be a property of the model: by chance, a "
                "model may treat two groups differently even if its training text does not."
            ],
        ]
        return Section("Caveats", [BulletList(items)])

    def build_document(self) -> Document:
        kind_sections = [
            self.build_kind_section(kind) for kind in self.error_rates.list_candidate_kinds()
        ]
        return Document(
            self.config.title,
            "Study",
            self.build_lead(),
            [
                *kind_sections,
                self.build_attribution_section(),
                self.build_excluded_trials_section(),
                self.build_unmeasured_audits_section(),
                self.build_caveats_section(),
            ],
        )


def label_study_inputs(inputs: Mapping[str, Any]) -> dict[str, Artifact]:
    """Return the inputs that have rows for figures, by the label that figures name."""
    return {ERROR_RATES: inputs["error_rates"]}


def compose_study_card(
    inputs: Mapping[str, Any], config: StudyCardConfig, redactor: Redactor
) -> CardContent:
    """Compose the card; ``inputs`` are those of the stage, by name."""
    book = FigureBook(label_study_inputs(inputs))
    builder = StudyCardBuilder(book, ErrorRates(book, inputs["error_rates"]), config)
    return CardContent("study_card", builder.build_document(), book, {}, redactor)


@stage(
    name="study_card",
    tables=CARD_TABLE_SCHEMAS,
    external_digests=compute_descriptions_digest,
    libraries=REDACTION_LIBRARIES,
)
def build_study_card(error_rates: Artifact, config: StudyCardConfig, context: StageContext) -> None:
    """Build the card as a stage; ``error_rates`` is the output of the ``error_rates`` stage."""
    content = compose_study_card({"error_rates": error_rates}, config, Redactor())
    write_card_tables(content, context)
