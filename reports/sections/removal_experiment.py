"""Build the page of a removal experiment.

For each case the page shows the finding, its source documents, the results of each arm and the
criteria. It ends with the effect of the removal on held-out loss and the list of arms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hallmark.reports.page import charts
from hallmark.reports.page.document import (
    Block,
    BulletList,
    Callout,
    Chart,
    Code,
    DataTable,
    Document,
    InlineContent,
    InlineElement,
    Paragraph,
    Section,
    ShortFigure,
    build_unique_slug_by_name,
)
from hallmark.reports.page.figures import (
    SHARE_DIFFERENCE,
    Figure,
    FigureBook,
    format_number,
    slugify,
)
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.sections.remaining_effect import describe_remaining_effect
from hallmark.reports.sections.training_arms import (
    ARM_NAMES,
    build_heldout_loss_section,
    build_training_arms_section,
    describe_random_arm,
    describe_seed_arms,
    explain_unknown_noise,
)
from hallmark.tasks.audits.experiments.arm_comparison import (
    BASE,
    RANDOM,
    REMOVED,
    compute_signed_distance_from_zero,
)
from hallmark.tasks.audits.experiments.source_documents import MAX_WORST_ROWS
from hallmark.tasks.contract import Row, format_count

METHOD_NOTE = (
    "All arms are trained from scratch on the same rows in the same order. Padding replaces "
    "omitted documents, so an arm differs from the base only in these documents. All arms are "
    "audited in the same way; a change is the mean of paired differences over the same units. "
)

NULL_UNIT_LABELS = {
    "memorised": "never planted",
    "association": "planted at 50 %",
    "other": "no effect",
}

#: The units with which the units of a case are compared, in a sentence.
NULL_UNIT_DESCRIPTIONS = {
    "memorised": "texts that were never planted",
    "association": "associations with a planted share of 50 %",
    "other": "units without an effect",
}


#: Effects that are levels, not differences, and the prefix of criteria on levels.
LEVEL_EFFECTS, MEAN_CRITERION_PREFIX = ("mean", "null_mean", "null_region"), "mean after removal"


def replace_unit_of_share_difference(row: Row) -> Row:
    """Return a row of ``effects`` or ``criteria`` with the unit it is written in.

    Differences of shares are written in percentage points.
    """
    is_level = (
        row["effect"] in LEVEL_EFFECTS
        if "effect" in row
        else row["criterion"].startswith(MEAN_CRITERION_PREFIX)
    )
    return row if is_level or row["unit"] != "share" else {**row, "unit": SHARE_DIFFERENCE}


@dataclass
class RemovalCase:
    """A case of the removal experiment, with its rows of the tables of ``compare_arms``.

    Attributes:
        name: The name of the case.
        figure_prefix: The unique prefix of its figures and the name of its chart.
        case_rows: Its rows of ``cases``.
        effect_rows: Its rows of ``effects`` by effect and arm.
        criteria: Its rows of ``criteria``.
    """

    name: str
    figure_prefix: str
    case_rows: Sequence[Row]
    effect_rows: Mapping[tuple[str, str], Row]
    criteria: Sequence[Row]

    @property
    def kind(self) -> str:
        return str(self.case_rows[0]["kind"])

    @property
    def unit(self) -> str:
        return str(
            next((row["unit"] for key, row in self.effect_rows.items() if key[0] == "mean"), "")
        )

    @property
    def unit_suffix(self) -> str:
        """Return the unit as written after a number; empty for shares and values without a unit."""
        return "" if self.unit in ("", "share") else f" {self.unit}"

    @property
    def null_label(self) -> str:
        """Return the heading of the column of units without an effect."""
        return NULL_UNIT_LABELS[self.kind]

    @property
    def null_units_phrase(self) -> str:
        """Return the units without an effect, as a sentence names them."""
        return NULL_UNIT_DESCRIPTIONS[self.kind]

    def get_effect(self, effect: str, arm: str) -> Row | None:
        return self.effect_rows.get((effect, arm))


@dataclass
class RemovalReport:
    """Builds the page of a removal experiment and adds its figures to the book.

    Attributes:
        book: The figures of the page; its artifacts include ``compare_arms`` and
            ``find_source_documents``.
        redactor: Redacts names of cases and sources.
        title: The title of the run.
        max_rows: The largest number of rows of a table.
    """

    book: FigureBook
    redactor: Redactor
    title: str
    max_rows: int

    def read_comparison_rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table of ``compare_arms``."""
        rows: list[dict[str, Any]] = self.book.artifacts["compare_arms"][table].read().to_pylist()
        return rows

    def read_cases(self) -> list[RemovalCase]:
        cases, effects, criteria = (
            self.read_comparison_rows(name) for name in ("cases", "effects", "criteria")
        )
        case_names = list(dict.fromkeys(row["case_name"] for row in cases))
        figure_prefixes = build_unique_slug_by_name(
            [self.redactor.redact_full_text(name) for name in case_names], case_names
        )
        return [
            RemovalCase(
                name,
                figure_prefixes[name],
                [row for row in cases if row["case_name"] == name],
                {
                    (row["effect"], row["arm"]): replace_unit_of_share_difference(row)
                    for row in effects
                    if row["case_name"] == name
                },
                [
                    replace_unit_of_share_difference(row)
                    for row in criteria
                    if row["case_name"] == name
                ],
            )
            for name in case_names
        ]

    # Figures ---------------------------------------------------------------------------------

    def add_mean_figure(self, case: RemovalCase, arm: str, role: str = "unit") -> InlineElement:
        """Add the mean over the units of an arm, with the units as evidence."""
        row = case.get_effect("mean" if role == "unit" else "null_mean", arm)
        if row is None:
            return "–"
        conditions = {"case_name": case.name, "role": role, "arm": arm}
        figure_id = slugify(f"{case.figure_prefix} {role} {arm}")
        existing = self.book.figures.get(figure_id)
        figure = existing or self.book.add_computed_figure(
            figure_id,
            f"{case.name}, {role}, {arm}",
            row["unit"],
            ("compare_arms", "units"),
            conditions,
            aggregate="mean",
            value_column="value",
            low=row["low"],
            high=row["high"],
            confidence_level=row["confidence_level"],
            n=row["n"],
            method=row["method"],
        )
        return ShortFigure(figure)

    def add_effect_figure(self, case: RemovalCase, effect: str, arm: str) -> InlineElement:
        """Add an effect that compares arms or kinds of units, with these units as evidence."""
        row = case.get_effect(effect, arm)
        if row is None:
            return "–"
        compared_arms = {
            "change_from_base": [BASE, arm],
            "random_minus_removed": [REMOVED, RANDOM],
        }.get(effect, [arm])
        roles = (
            ["unit"]
            if effect in ("change_from_base", "random_minus_removed")
            else ["unit", "null_unit"]
        )
        conditions = {"case_name": case.name, "role": roles, "arm": compared_arms}
        evidence = self.book.get_evidence("compare_arms", "units", conditions, row_order="item")
        figure = Figure(
            f"{case.figure_prefix} {effect} {arm}",
            f"{case.name}: {effect.replace('_', ' ')}, {arm}",
            row["value"],
            row["unit"],
            evidence.id,
            "",
            "finding",
            low=row["low"],
            high=row["high"],
            confidence_level=row["confidence_level"],
            n=row["n"],
            method=row["method"],
        )
        figure_id = slugify(figure.id)
        return ShortFigure(
            self.book.figures.get(figure_id) or self.book.add_under_unique_id(figure)
        )

    def format_interval(self, row: Row | None) -> str:
        if row is None or row["low"] is None:
            return "–"
        return (
            f"{format_number(row['low'], row['unit'])} to {format_number(row['high'], row['unit'])}"
        )

    def add_source_document_count_figure(self, case: RemovalCase, *, only_removed: bool) -> Figure:
        """Add the number of source documents of a case, or of those that were removed."""
        qualifier = "removed" if only_removed else "that are sources"
        conditions: dict[str, Any] = {"case_name": case.name} | (
            {"is_removed": True} if only_removed else {}
        )
        return self.book.add_computed_figure(
            f"{case.name} documents {qualifier}",
            f"{case.name}: documents {qualifier}",
            "documents",
            ("find_source_documents", "source_documents"),
            conditions,
            aggregate="distinct",
            value_column="doc_id",
        )

    # Overview --------------------------------------------------------------------------------

    def build_overview_blocks(self, cases: Sequence[RemovalCase]) -> list[Block]:
        """Build the callout on the criteria, the summary table and the verdict of each case."""
        indexed_criteria = [(case, index) for case in cases for index in range(len(case.criteria))]
        if not indexed_criteria:
            message = (
                "There are no criteria to check, because nothing was removed or no finding is "
                "expected to disappear after a removal."
            )
            return [Callout("note", [message]), *self.build_verdict_blocks(cases, [])]
        passed = [
            1 for case, index in indexed_criteria if case.criteria[index]["verdict"] == "pass"
        ]
        passed_summary = (
            f"{len(passed)} of {format_count(len(indexed_criteria), 'criterion', 'criteria')} "
            f"{'is' if len(indexed_criteria) == 1 else 'are'} met"
        )
        missed_criteria: list[InlineContent] = []
        for case, index in indexed_criteria:
            criterion = case.criteria[index]
            if criterion["verdict"] != "pass":
                status = "Not met" if criterion["verdict"] else "Not known"
                lead = f"{status}: {case.name}, {criterion['criterion']}: "
                missed_criteria.append(
                    [
                        lead,
                        ShortFigure(self.add_criterion_figure(case, index)),
                        f" (must be {self.format_bound(criterion)}).",
                    ]
                )
        verdict = Callout(
            "good" if len(passed) == len(indexed_criteria) else "bad", [f"{passed_summary}."]
        )
        return [verdict, *self.build_verdict_blocks(cases, missed_criteria)]

    def build_verdict_blocks(
        self, cases: Sequence[RemovalCase], missed_criteria: Sequence[InlineContent]
    ) -> list[Block]:
        bullets = BulletList([*map(self.describe_case_verdict, cases), *missed_criteria])
        method_note = (
            f"{METHOD_NOTE}{describe_random_arm(self.book)}{describe_seed_arms(self.book)}".strip()
        )
        return [self.build_summary_table(cases), bullets, Paragraph([method_note])]

    def build_summary_table(self, cases: Sequence[RemovalCase]) -> DataTable:
        """Build the table of the mean of each arm by case."""
        rows: list[list[InlineElement]] = []
        for case in cases:
            rows.append(
                [
                    f"{case.name}{case.unit_suffix and f',{case.unit_suffix}'}",
                    ShortFigure(self.add_source_document_count_figure(case, only_removed=True)),
                    self.add_mean_figure(case, BASE),
                    self.add_mean_figure(case, REMOVED),
                    self.add_mean_figure(case, RANDOM),
                    self.add_mean_figure(case, REMOVED, "null_unit"),
                    self.add_effect_figure(case, "change_from_base", REMOVED),
                ]
            )
        columns = [
            "finding",
            "documents removed",
            ARM_NAMES[BASE],
            ARM_NAMES[REMOVED],
            ARM_NAMES[RANDOM],
            "units without an effect",
            "change",
        ]
        note = (
            "Values are means over the units of each finding in each arm. Units without an effect "
            "are texts that were never planted, or associations with a planted share of 50 %; "
            "their mean is taken from the arm without the documents. The change is the mean "
            "paired difference of the units: the arm without the documents minus the arm with all "
            "documents. See the finding's section for its interval."
        )
        return DataTable(
            "Findings before and after the removal", columns, rows, frozenset(range(1, 7)), note
        )

    def describe_case_verdict(self, case: RemovalCase) -> InlineContent:
        """Return a sentence on whether the finding of a case disappeared and what remains of it."""
        case_name = case.name
        if case.case_rows[0]["reason"]:
            return [f"{case_name}: nothing was removed, because {case.case_rows[0]['reason']}."]
        change, remaining_effect = (
            case.get_effect("change_from_base", REMOVED),
            case.get_effect("effect_after", REMOVED),
        )
        if change is None or change["value"] is None:
            return [f"{case_name}: the effect of the removal could not be measured."]
        if change["verdict"] == "within noise":
            seed_noise = format_number(change["seed_noise"], change["unit"])
            return [
                f"{case_name} was not shown to disappear: its change of ",
                self.add_effect_figure(case, "change_from_base", REMOVED),
                f" ({self.format_interval(change)}) is not larger than the difference between "
                f"training runs with different seeds, {seed_noise}, or is too uncertain.",
            ]
        if remaining_effect is None or remaining_effect["value"] is None:
            change_interval = f" ({self.format_interval(change)})."
            nearest_bound = compute_signed_distance_from_zero(change["low"], change["high"])
            is_shown = nearest_bound is not None and nearest_bound > 0
            outcome = (
                "changed by" if is_shown else "was not shown to change; its measured change is"
            )
            return [
                f"{case_name} {outcome} ",
                self.add_effect_figure(case, "change_from_base", REMOVED),
                change_interval,
            ]
        if change["low"] is not None and change["low"] > 0:
            return [
                f"{case_name} did not disappear: it rose by ",
                self.add_effect_figure(case, "change_from_base", REMOVED),
                f" ({self.format_interval(change)}).",
            ]
        if change["high"] is None or change["high"] >= 0:
            uncertainty = "has no interval" if change["high"] is None else "may be zero"
            return [
                f"{case_name} was not shown to disappear: its change of ",
                self.add_effect_figure(case, "change_from_base", REMOVED),
                f" ({self.format_interval(change)}) {uncertainty}.",
            ]
        base_effect = case.get_effect("effect_before", BASE)
        base_value = None if base_effect is None else base_effect["value"]
        if base_effect is None or base_value is None or base_value <= 0:
            comparison_note = (
                "although, before the removal, it was not above the value for "
                f"{case.null_units_phrase}."
            )
            if base_value is None:
                comparison_note = (
                    f"but its difference from the value for {case.null_units_phrase} was not "
                    "measured."
                )
            return [
                f"{case_name} changed by ",
                self.add_effect_figure(case, "change_from_base", REMOVED),
                f", {comparison_note}",
            ]
        description = describe_remaining_effect(
            remaining_effect, base_effect, case.criteria, case.null_units_phrase
        )
        comparison = (
            f"{case.unit_suffix} above the value for {case.null_units_phrase}; after the removal, "
            "the difference is "
        )
        effect_parts = [
            self.add_effect_figure(case, "effect_before", BASE),
            comparison,
            self.add_effect_figure(case, "effect_after", REMOVED),
        ]
        return [
            f"{case_name} {description.verb}: before the removal, it was ",
            *effect_parts,
            f" ({self.format_interval(remaining_effect)}){description.sentence_end}.",
        ]

    # Sections --------------------------------------------------------------------------------

    def build_case_section(self, case: RemovalCase) -> Section:
        section = Section(case.name)
        finding_parts: InlineContent = ["Findings: "]
        for index, row in enumerate(case.case_rows):
            finding_parts = [*finding_parts, ", " if index else "", Code(row["finding"])]
        section.add_blocks(Paragraph([*finding_parts, "."]))
        if case.case_rows[0]["reason"]:
            section.add_blocks(
                Callout("note", [f"Nothing was removed: {case.case_rows[0]['reason']}."])
            )
        else:
            section.add_blocks(
                Paragraph(self.describe_source_documents(case)),
                self.build_source_document_table(case),
            )
        value_rows = [row for (effect, _), row in case.effect_rows.items() if effect == "mean"]
        if all(row["value"] is None for row in value_rows):
            section.add_blocks(Callout("bad", ["No units were measured for this finding."]))
            return section
        section.add_blocks(self.build_arm_chart(case), self.build_arm_table(case))
        changes_table = self.build_changes_table(case)
        section.add_blocks(changes_table)
        if case.criteria:
            section.add_blocks(self.build_criteria_table(case))
        return section

    def describe_source_documents(self, case: RemovalCase) -> InlineContent:
        """Return sentences on which source documents of the finding were removed."""
        if case.kind == "association":
            return [
                "Training documents that mention either group with its own trait or with the "
                "other group's trait: ",
                ShortFigure(self.add_source_document_count_figure(case, only_removed=False)),
                ". Documents with the more frequent trait were removed at random until both "
                "traits were equally frequent for each group.",
            ]
        removed_count = ShortFigure(self.add_source_document_count_figure(case, only_removed=True))
        is_complete = case.case_rows[0]["removed_documents"] == case.case_rows[0]["documents"]
        if case.kind == "memorised" and not is_complete:
            return [
                "Source documents for the finding: ",
                ShortFigure(self.add_source_document_count_figure(case, only_removed=False)),
                ". Only some were removed: ",
                removed_count,
                ".",
            ]
        subject = "All source documents for the finding"
        if case.kind == "other":
            subject = (
                "The training documents listed in the finding's rows (if none are listed, the "
                f"source documents of its {MAX_WORST_ROWS} worst rows)"
            )
        return [
            f"{subject} were removed: ",
            removed_count,
            ".",
        ]

    def build_source_document_table(self, case: RemovalCase) -> DataTable:
        """Build the table of the source documents by source and by the group trait they state."""
        table = self.book.artifacts["find_source_documents"]["source_documents"].read(
            ["case_name", "source", "stated_trait"]
        )
        combinations = (
            table.group_by(table.column_names).aggregate([]).sort_by("source").to_pylist()
        )
        rows: list[list[InlineElement]] = []
        for combination in (
            combination for combination in combinations if combination["case_name"] == case.name
        ):
            document_count, removed_count = (
                self.book.add_computed_figure(
                    f"{case.name} {combination['source']} {combination['stated_trait']} "
                    f"{len(removal_condition)}",
                    f"{case.name}: documents from {combination['source']}",
                    "documents",
                    ("find_source_documents", "source_documents"),
                    combination | removal_condition,
                    aggregate="distinct",
                    value_column="doc_id",
                )
                for removal_condition in ({}, {"is_removed": True})
            )
            trait_label = {"": "–", "assigned": "its own", "other": "the other group's"}[
                combination["stated_trait"]
            ]
            source = self.redactor.redact_by_kind(combination["source"], "label")
            rows.append(
                [source, trait_label, ShortFigure(document_count), ShortFigure(removed_count)]
            )
        columns = ["source", "group's trait", "documents", "removed"]
        return DataTable("Source documents", columns, rows, frozenset({2, 3}))

    def build_arm_chart(self, case: RemovalCase) -> Chart:
        """Build the chart of the mean of each arm, with the null value as a dashed line."""
        labelled_effects = [
            (self.format_arm_name(arm), row)
            for (effect, arm), row in case.effect_rows.items()
            if effect == "mean" and row["value"] is not None
        ]
        null_effect = case.get_effect("null_mean", REMOVED)
        null_value = None if null_effect is None else null_effect["value"]
        if null_effect is not None and null_value is not None:
            labelled_effects.append((case.null_label, null_effect))

        drawing = charts.IntervalChart(
            [name for name, _ in labelled_effects],
            [row["value"] for _, row in labelled_effects],
            [
                None if row["low"] is None else (row["low"], row["high"])
                for _, row in labelled_effects
            ],
            case.unit,
            null_value,
        )
        alt = "; ".join(
            f"{name} {format_number(row['value'], case.unit)} ({self.format_interval(row)})"
            for name, row in labelled_effects
        )
        has_interval = any(row["low"] is not None for _, row in labelled_effects)
        caption = "Mean of each arm, with its interval."
        if not has_interval:
            caption = "Mean of each arm; no interval is available."
        if null_value is not None:
            caption += (
                f" The dashed line is the mean of {case.null_units_phrase}, in the "
                f"“{ARM_NAMES[REMOVED]}” arm."
            )
        return Chart(case.figure_prefix, drawing, f"{case.name}: {alt}.", caption)

    def format_arm_name(self, arm: str) -> str:
        return ARM_NAMES.get(arm, f"all documents, {arm}")

    def build_arm_table(self, case: RemovalCase) -> DataTable:
        """Build the table of the mean of each arm, with the mean of its units without an effect."""
        rows: list[list[InlineElement]] = []
        arms = [arm for effect, arm in case.effect_rows if effect == "mean"]
        for arm in arms:
            value, null_effect = case.get_effect("mean", arm), case.get_effect("null_mean", arm)
            assert value is not None
            unit_count = (
                f"{value['n']:,}"
                if value["clusters"] in (None, value["n"])
                else (f"{value['n']:,} in {value['clusters']:,}")
            )
            rows.append(
                [
                    self.format_arm_name(arm),
                    self.add_mean_figure(case, arm),
                    self.format_interval(value),
                    unit_count,
                    self.add_mean_figure(case, arm, "null_unit"),
                    self.format_interval(null_effect),
                ]
            )
        columns = ["arm", "value", "95 % interval", "n", case.null_label, "95 % interval"]
        note = ""
        null_region = case.get_effect("null_region", REMOVED)
        if null_region is not None:
            note = (
                f"The 99 % null region of the mean in the “{ARM_NAMES[REMOVED]}” arm is "
                f"{self.format_interval(null_region)}: {null_region['method']}."
            )
        if case.kind == "association":
            note = (
                "n shows the number of sentences and the number of group pairs (“120 in 4” means "
                "120 sentences in 4 pairs); the interval is computed over these pairs."
            )
        return DataTable("Each arm", columns, rows, frozenset(range(1, 6)), note)

    def build_changes_table(self, case: RemovalCase) -> DataTable:
        """Build the table of paired changes between arms."""
        rows: list[list[InlineElement]] = []
        for (effect, arm), row in case.effect_rows.items():
            if effect in ("change_from_base", "random_minus_removed"):
                change_label = (
                    f"{self.format_arm_name(arm)} minus {ARM_NAMES[BASE]}"
                    if effect == "change_from_base"
                    else (f"{ARM_NAMES[RANDOM]} minus {ARM_NAMES[REMOVED]}")
                )
                rows.append(
                    [
                        change_label,
                        self.add_effect_figure(case, effect, arm),
                        self.format_interval(row),
                        f"{row['n']:,}",
                        row["verdict"] or "–",
                    ]
                )
        noise_row = next(
            (
                effect_row
                for effect_row in case.effect_rows.values()
                if effect_row["seed_noise"] is not None
            ),
            None,
        )
        note = "Paired by unit. "
        if noise_row is None:
            note += explain_unknown_noise(self.book)
        else:
            note += (
                "Noise: training runs with different seeds differ by at most "
                f"{format_number(noise_row['seed_noise'], noise_row['unit'])}."
            )
        columns = ["change", "value", "95 % interval", "pairs", "beyond the noise?"]
        return DataTable("Paired changes", columns, rows, frozenset({1, 2, 3}), note)

    def add_criterion_figure(self, case: RemovalCase, index: int) -> Figure:
        """Add the value that a criterion tests."""
        criterion = case.criteria[index]
        figure_id = slugify(f"{case.figure_prefix} line {index}")
        return self.book.figures.get(figure_id) or self.book.add_computed_figure(
            figure_id,
            f"{case.name}: {criterion['criterion']}",
            criterion["unit"],
            ("compare_arms", "criteria"),
            {"case_name": case.name, "criterion": criterion["criterion"]},
            aggregate="last",
            value_column="value",
        )

    def format_bound(self, criterion: Row) -> str:
        formatted_bound = (
            "not known"
            if criterion["bound"] is None
            else format_number(criterion["bound"], criterion["unit"])
        )
        return f"{criterion['comparison']} {formatted_bound}"

    def build_criteria_table(self, case: RemovalCase) -> DataTable:
        """Build the table of criteria with their verdicts."""
        rows: list[list[InlineElement]] = [
            [
                criterion["criterion"],
                ShortFigure(self.add_criterion_figure(case, index)),
                self.format_bound(criterion),
                criterion["verdict"] or "not known",
            ]
            for index, criterion in enumerate(case.criteria)
        ]
        columns = ["criterion", "value", "must be", "verdict"]
        return DataTable("Criteria", columns, rows, frozenset({1}))

    def build_document(self) -> Document:
        cases = self.read_cases()
        sections = [self.build_case_section(case) for case in cases]
        section_arguments = self.book, self.redactor, self.max_rows
        title = f"{self.title}: findings without their source documents"
        return Document(
            title,
            "Removal experiment",
            self.build_overview_blocks(cases),
            [
                *sections,
                build_heldout_loss_section(*section_arguments),
                build_training_arms_section(*section_arguments),
            ],
        )
