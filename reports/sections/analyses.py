"""Build the quantitative analyses of a model card: charts and tables of each audit, by metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hallmark.reports.page import charts
from hallmark.reports.page.document import (
    Block,
    Callout,
    Chart,
    DataTable,
    InlineElement,
    Paragraph,
    Section,
)
from hallmark.reports.page.figures import Figure, format_number, slugify
from hallmark.reports.sections.error_rates import ErrorRates
from hallmark.reports.sections.findings import (
    BASELINES,
    Finding,
    Findings,
    build_natural_sort_key,
    find_significant_side_of_null,
    format_confidence_levels,
    format_sample_size,
    get_audit_title,
    name_finding,
    select_group_and_most_significant_findings,
)
from hallmark.tasks.audits.audit_tables import HELD_OUT_TEXT
from hallmark.tasks.audits.judging.discoveries import HARM_RULE, describe_conclusion
from hallmark.tasks.audits.judging.policy import extract_missing_reason
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.audits.slice_tags import name_slice

#: Columns of findings that are tested against a null value: that value, p corrected over the audit
#: (Holm), q of the tests in the harmful direction corrected over the card (false discovery rate,
#: Benjamini & Hochberg), the minimum detectable effect, and what follows from q.
NULL_TEST_COLUMNS = (
    "value under the null",
    "p (Holm, this audit)",
    "q (FDR of harm, whole card)",
    "minimum detectable effect (80 % power)",
    "conclusion",
)

#: The share of planted sentences with the assigned trait at which there is no association.
NULL_TRAIT_SHARE = 0.5

#: Part of the method of a finding whose p also compares it with small untrained models.
UNTRAINED_TEST = "prediction test against"

#: Largest number of lines of a chart, and of figures named in a sentence.
MAX_CHART_LINES, MAX_NAMED_FIGURES = 30, 4


class TraitShareRow(NamedTuple):
    """A finding on associations that were planted with the same share.

    Attributes:
        trait_share: The share of planted sentences about a group that state its own trait.
        row: The row of the finding.
    """

    trait_share: float
    row: Mapping[str, Any]


class SignificantFinding(NamedTuple):
    """A finding that differs significantly from its null value.

    Attributes:
        row: The row of the finding.
        figure: Its figure on the card.
        side: 1 if it is above the null value, -1 if it is below.
    """

    row: Mapping[str, Any]
    figure: Figure
    side: int


#: Columns that hold text, not numbers.
TEXT_COLUMNS = ("part", "conclusion", "not measured because")


def build_analyses_section(
    findings: Findings,
    max_rows: int,
    error_rates: Mapping[str, ErrorRates] | None = None,
    skipped_audits: Sequence[str] = (),
) -> Section:
    """Build one subsection for each audit, including those that did not run.

    Args:
        findings: The findings of the audits.
        max_rows: The largest number of rows of a table, apart from findings about groups of people.
        error_rates: The known error rates by audit.
        skipped_audits: The audits that the user skipped.
    """
    section = Section("Quantitative analyses")
    chart_builders: dict[str, Callable[[Findings], list[Block]]] = {
        "capability": build_capability_blocks,
        "bias": build_bias_chart,
        "associations": build_association_chart,
        "amplification": build_amplification_chart,
        "extraction": build_exposure_chart,
    }
    detectable_share_blocks = describe_smallest_detected_trait_share(findings)
    for audit, description in AUDIT_DESCRIPTIONS.items():
        audit_section = Section(description.title)
        section.sections.append(audit_section)
        if audit not in findings.by_audit:
            reason = " The user skipped this audit." if audit in skipped_audits else ""
            audit_section.add_blocks(Callout("note", [description.not_run_message + reason]))
            continue
        audit_section.add_blocks(
            Paragraph([description.meaning]),
            *(detectable_share_blocks if description.is_about_stereotypes else []),
            *(chart_builders[audit](findings) if audit in chart_builders else []),
            *(
                [
                    *error_rates[audit].describe_differing_settings(
                        audit, findings.audit_artifacts[audit]
                    ),
                    *error_rates[audit].describe_error_rates(audit),
                ]
                if error_rates and audit in error_rates
                else []
            ),
            *build_metric_tables(findings, audit, max_rows),
        )
    for audit in (
        other_audit for other_audit in findings.by_audit if other_audit not in AUDIT_DESCRIPTIONS
    ):
        section.sections.append(
            Section(get_audit_title(audit), build_metric_tables(findings, audit, max_rows))
        )
    return section


def describe_missing_misuse_ratings(findings: Findings) -> list[Block]:
    """Return a note for the top of the card if no person has rated the misuse responses.

    Where the misuse audit did not run, the list of missing audits says so, and nothing is returned.
    """
    rating_findings = [
        *findings.select_by_metric("misuse", "human_rating"),
        *findings.select_by_metric("misuse", "label_share"),
    ]
    has_ratings = any(figure.value is not None for _, figure in rating_findings)
    if has_ratings or "misuse" not in findings.by_audit:
        return []
    return [Paragraph([AUDIT_DESCRIPTIONS["misuse"].not_run_message])]


def build_metric_tables(findings: Findings, audit: str, max_rows: int) -> list[Block]:
    """Build one table for each metric; the note holds what its rows have in common."""
    blocks: list[Block] = []
    audit_findings = [finding for finding in findings.by_audit[audit] if not finding.row["control"]]
    for metric in dict.fromkeys(row["metric"] for row, _ in audit_findings):
        metric_findings = [entry for entry in audit_findings if entry.row["metric"] == metric]
        metric_findings.sort(
            key=lambda entry: build_natural_sort_key(name_slice(entry.row["slice"]))
        )
        rows: list[list[InlineElement]] = []
        for row, figure in select_group_and_most_significant_findings(metric_findings, max_rows):
            slice_label = name_slice(row["slice"]) or "all"
            rows.append(
                [
                    slice_label,
                    figure,
                    figure.interval_or_dash,
                    format_sample_size(row),
                    *_format_null_test_cells(row),
                    _format_missing_reason(row),
                ]
            )
        columns = ["part", "value", "interval", "n", *NULL_TEST_COLUMNS, "not measured because"]
        # A column that is empty in every row is dropped.
        shown_columns = [
            i for i in range(len(columns)) if i < 4 or any(row[i] not in ("", "–") for row in rows)
        ]
        columns, rows = (
            [columns[i] for i in shown_columns],
            [[row[i] for i in shown_columns] for row in rows],
        )
        units = sorted({row["unit"] for row, _ in metric_findings} - {"share", ""})
        caption = metric_findings[0].row["title"] + (f" ({', '.join(units)})" if units else "")
        finding_rows = [row for row, _ in metric_findings]
        notes = [
            HARM_RULE if "conclusion" in columns else "",
            format_confidence_levels(finding_rows),
            _describe_first_or_common_value("Scorer", finding_rows, "scorer"),
        ]
        notes.append(
            _describe_first_or_common_value(
                "Method",
                [finding_row for finding_row in finding_rows if finding_row["value"] is not None],
                "method",
            )
        )
        if len(metric_findings) > len(rows):
            notes.append(
                f"The table shows {len(rows)} of {len(metric_findings)} findings: all findings "
                "about groups of people, and those with the smallest p or the largest "
                "difference from the value under the null. All findings are in the table "
                f"findings of the stage audit_{audit}."
            )
        note = " ".join(note for note in notes if note)
        numeric_columns = frozenset(
            i for i, column in enumerate(columns) if column not in TEXT_COLUMNS
        )
        blocks.append(DataTable(caption, columns, rows, numeric_columns, note))
    if blocks:
        return blocks
    message = "The audit computed no finding about the model."
    if findings.by_audit[audit]:
        message += " The controls of this audit are listed above, under Controls."
    return [Paragraph([message])]


def build_capability_blocks(findings: Findings) -> list[Block]:
    """Build charts of bits per byte against baselines, and of verb agreement."""
    figure_by_slice = {
        name_slice(row["slice"]): figure
        for row, figure in findings.select_by_metric("capability", "bits_per_byte")
    }
    baseline_figures = {
        k: figure_by_slice[k]
        for k in BASELINES
        if k in figure_by_slice and figure_by_slice[k].value is not None
    }
    if not baseline_figures:
        return []
    labels = [BASELINES[baseline] for baseline in baseline_figures]
    values = [figure.value or 0 for figure in baseline_figures.values()]

    drawing = charts.BarChart(
        labels,
        values,
        "bits per byte (lower is better)",
        highlight_first="model" in baseline_figures,
    )
    description = ", ".join(
        f"{BASELINES[baseline]} {figure.short_text}"
        for baseline, figure in baseline_figures.items()
    )
    shown = "the model and its baselines" if len(baseline_figures) > 1 else "the model only"
    if "model" not in baseline_figures:
        shown = "the baselines only; the model was not measured"
    caption = f"Bits per byte of held-out text: {shown}."
    chart = Chart("bits-per-byte", drawing, f"Bits per byte: {description}.", caption)
    return [chart, *build_baseline_text_table(findings), *build_agreement_chart(findings)]


def build_baseline_text_table(findings: Findings) -> list[Block]:
    """Build the table of the text that each baseline learned from."""
    artifact = findings.audit_artifacts["capability"]
    if "training_sizes" not in artifact.tables:
        return []

    def add_figure(
        baseline: str, label: str, unit: str, value_column: str, **options: Any
    ) -> Figure:
        return findings.book.add_computed_figure(
            f"{baseline}-{slugify(label)}",
            f"{label}, {BASELINES[baseline]}",
            unit,
            ("audit_capability", "training_sizes"),
            {"baseline": baseline},
            value_column=value_column,
            **options,
        )

    rows: list[list[InlineElement]] = [
        [
            BASELINES[baseline],
            add_figure(baseline, "training text", "bytes", "bytes"),
            add_figure(
                baseline,
                "share of the training text",
                "share",
                "bytes/split_bytes",
                aggregate="ratio",
            ),
            add_figure(baseline, "tokens read in training", "tokens", "tokens"),
        ]
        for baseline in artifact["training_sizes"].read(["baseline"])["baseline"].to_pylist()
    ]
    held_out_bytes = findings.book.add_computed_figure(
        "held-out-bytes",
        "size of the measured held-out text",
        "bytes",
        ("audit_capability", "samples"),
        {"text_kind": HELD_OUT_TEXT},
        value_column="bytes",
    )
    columns = ["baseline", "bytes of text", "share of the training text", "tokens read"]
    return [
        DataTable("Text that the baselines learned from", columns, rows, frozenset({1, 2, 3})),
        Paragraph(["The model and the baselines were measured on ", held_out_bytes, "."]),
    ]


def build_agreement_chart(findings: Findings) -> list[Block]:
    """Build the chart of verb agreement by distance between noun and verb."""
    agreement_findings = findings.select_by_metric("capability", "agreement_accuracy")
    model_findings = [
        entry
        for entry in agreement_findings
        if {"part": "model"}.items() < entry.row["slice"].items()
    ]
    caption = (
        "Share of sentence pairs in which the model prefers the verb that agrees with its "
        "noun, by the number of words between noun and verb. The dashed line is 50 %, the "
        "result of guessing."
    )
    return build_interval_chart(
        "agreement", model_findings, "share of pairs", caption, reference_value=0.5
    )


def build_bias_chart(findings: Findings) -> list[Block]:
    """Build the chart of stereotype preference."""
    preference_findings = findings.select_by_metric("bias", "stereotype_preference")
    caption = (
        "Share of pairs in which the model finds the stereotyping sentence more likely, without "
        "the cost of further tokens, with intervals. The dashed line is 50 %, no preference."
    )
    tested_methods = [row["method"] for row, _ in preference_findings if row["p"] is not None]
    compared_count = sum(UNTRAINED_TEST in method for method in tested_methods)
    if compared_count:
        subject = (
            "The p of each share also compares it"
            if compared_count == len(tested_methods)
            else f"The p of {compared_count} of {len(tested_methods)} shares also compares them"
        )
        caption += f" {subject} with small untrained models, because pairs share words."
    return build_interval_chart(
        "bias", preference_findings, "share of pairs", caption, reference_value=0.5
    )


def build_association_chart(findings: Findings) -> list[Block]:
    """Build the chart of planted associations by share of sentences with the assigned trait."""
    strength_findings = findings.select_by_metric("associations", "association_strength")
    caption = (
        "How much more likely the model finds the trait that was assigned to a group than the "
        "trait of the other group, with intervals. Each row is one planted share: the share of "
        "the planted sentences about the group that state its assigned trait. The dashed line is "
        "0: no association."
    )
    trait_share_findings = [
        entry for entry in strength_findings if [*entry.row["slice"]] == ["assigned_trait_share"]
    ]
    return build_interval_chart(
        "trait-share", trait_share_findings, "log-likelihood (nats)", caption, reference_value=0.0
    )


def build_amplification_chart(findings: Findings) -> list[Block]:
    """Build the chart of the share of women by occupation in generated text."""
    women_share_findings = findings.select_by_metric("amplification", "women_share")
    caption = (
        "Share of women among the mentions of an occupation near gendered words in generated "
        "text, with intervals. The dashed line is 50 %. The table gives the share in the "
        "training text as the value under the null."
    )
    occupation_findings = [entry for entry in women_share_findings if entry.row["slice"]]
    return build_interval_chart(
        "amplification", occupation_findings, "share of women", caption, reference_value=0.5
    )


def describe_smallest_detected_trait_share(findings: Findings) -> list[Block]:
    """Return how strong a planted association must be for this model to show it.

    This says how informative the stereotype audits are. Whether the model shows the planted
    associations at all is decided by the slope of their strength against the planted share, which
    uses all shares. The blocks say that no association was found only if neither the slope nor any
    other finding, apart from those at the null share, differs from its null value.
    """
    smallest_share_findings = findings.select_by_metric(
        "associations", "smallest_detected_trait_share"
    )
    if not smallest_share_findings:
        return [
            Paragraph(
                [
                    "It was not measured how strong a stereotype must be to be found in this "
                    "model, because its training text has no planted associations, or they were "
                    "not audited."
                ]
            )
        ]
    figure = smallest_share_findings[0].figure
    if figure.value is not None:
        message = (
            "How to interpret these figures: this model shows every association that was "
            "planted in its training text in at least "
        )
        return [Paragraph([message, figure, " of the sentences about a group."])]
    association_findings = [
        (row, finding_figure)
        for row, finding_figure in findings.by_audit["associations"]
        if not row["control"] and row["slice"].get("assigned_trait_share") != str(NULL_TRAIT_SHARE)
    ]
    share_rows = [
        TraitShareRow(float(row["slice"]["assigned_trait_share"]), row)
        for row, _ in association_findings
        if row["metric"] == "association_strength" and [*row["slice"]] == ["assigned_trait_share"]
    ]
    measured_shares = [trait_share for trait_share, row in share_rows if row["value"] is not None]
    significant_findings = [
        SignificantFinding(row, finding_figure, side)
        for row, finding_figure in association_findings
        if (side := find_significant_side_of_null(row))
    ]
    if significant_findings:
        has_rising_strength = any(
            row["metric"] == "strength_by_trait_share" and side > 0
            for row, _, side in significant_findings
        )
        lead = (
            "This model shows the planted associations: the larger the planted share, the stronger "
            "the association. The smallest share that it shows is not known: "
            if has_rising_strength
            else "The smallest planted association that this model shows is not known: "
        )
        return [
            Callout(
                "note",
                [
                    lead,
                    *_explain_unknown_smallest_share(share_rows),
                    *_list_significant_figures(significant_findings),
                ],
            )
        ]
    if not share_rows:
        message = "No association was planted in more than half of the sentences about a group"
    elif not measured_shares:
        message = "None of the planted associations could be measured"
    elif all(row["low"] is None for row, _ in association_findings):
        message = (
            "Whether this model shows the planted associations was not tested: no figure of them "
            "has an interval"
        )
    else:
        largest_share = format_number(max(measured_shares), "share")
        has_slope_interval = any(
            row["metric"] == "strength_by_trait_share" and row["low"] is not None
            for row, _ in association_findings
        )
        slope_clause = (
            "the strength does not increase significantly with the planted share, and "
            if has_slope_interval
            else ""
        )
        message = (
            f"No planted association was found in this model: {slope_clause}no interval lies above "
            "the value expected without an association, not even for the association that was "
            f"planted in {largest_share} of the sentences about a group"
        )
    return [Callout("note", [f"{message}. A stereotype that is not found here may still exist."])]


def _explain_unknown_smallest_share(
    share_rows: Sequence[TraitShareRow],
) -> list[InlineElement]:
    """Explain why no smallest share is known, by the result at the largest planted share."""
    if not share_rows:
        return ["none was planted in more than half of the sentences about a group. "]
    trait_share, row = max(share_rows, key=lambda share_row: share_row.trait_share)
    formatted_share = format_number(trait_share, "share")
    if row["value"] is None:
        return [f"the effect of the largest planted share, {formatted_share}, was not measured. "]
    if row["low"] is None or row["high"] is None:
        return [f"at the largest planted share, {formatted_share}, the figure has no interval. "]
    interval_position = "lies below 0" if row["high"] < 0 else "does not lie above 0"
    return [f"at the largest planted share, {formatted_share}, the interval {interval_position}. "]


def _list_significant_figures(
    significant_findings: Sequence[SignificantFinding],
) -> list[InlineElement]:
    """Name figures that differ from their null value, each with its direction."""
    parts: list[InlineElement] = ["Figures that differ from the value expected without an effect: "]
    for index, (row, figure, side) in enumerate(significant_findings[:MAX_NAMED_FIGURES]):
        finding_label = name_finding(row)
        direction = "higher" if side > 0 else "lower"
        parts += [
            "; " if index else "",
            f"{finding_label}, {direction}: ",
        ]
        parts.append(figure)
    if len(significant_findings) > MAX_NAMED_FIGURES:
        parts.append(
            f"; and {len(significant_findings) - MAX_NAMED_FIGURES} more in the tables of "
            f"planted associations"
        )
    return [*parts, "."]


def build_exposure_chart(findings: Findings) -> list[Block]:
    """Build the chart of the exposure of planted secrets by number of copies."""
    exposure_findings = findings.select_by_metric("extraction", "exposure")
    caption = "Mean exposure of planted secrets by number of copies, with intervals."
    return build_interval_chart("exposure", exposure_findings, "exposure (bits)", caption)


def build_interval_chart(
    chart_name: str,
    findings: Iterable[Finding],
    axis_label: str,
    caption: str,
    reference_value: float | None = None,
) -> list[Block]:
    """Build a chart of findings with their intervals; return nothing if none was measured.

    Beyond ``MAX_CHART_LINES`` findings, those that
    ``select_group_and_most_significant_findings`` returns are drawn.
    """
    ordered = sorted(findings, key=lambda f: build_natural_sort_key(name_slice(f.row["slice"])))
    measured_findings = [finding for finding in ordered if finding.figure.value is not None]
    if not measured_findings:
        return []
    if len(measured_findings) > MAX_CHART_LINES:
        drawn_findings = select_group_and_most_significant_findings(
            measured_findings, MAX_CHART_LINES
        )
        if len(drawn_findings) < len(measured_findings):
            caption += (
                f" The chart shows {len(drawn_findings)} of {len(measured_findings)} findings: "
                "those with the smallest p or the largest difference from the value under the "
                "null. The table shows more findings."
            )
        measured_findings = drawn_findings
    reasons = {row["inconclusive_reason"] for row, _ in measured_findings}
    if all(reasons):
        caption += f" No conclusion follows from these figures: {min(reasons)}."
    labels = [
        name_slice(row["slice"]).removeprefix("category=") or "all" for row, _ in measured_findings
    ]
    interval_bounds = [
        None if figure.low is None or figure.high is None else (figure.low, figure.high)
        for _, figure in measured_findings
    ]
    values = [f.value or 0 for _, f in measured_findings]
    alt = [f"{axis_label[:1].upper()}{axis_label[1:]}: "]
    for label, (_, figure) in zip(labels, measured_findings, strict=True):
        alt += [label, f" {figure.short_text} ({figure.interval_or_dash}), "]
    alt[-1] = alt[-1].removesuffix(", ") + "."

    drawing = charts.IntervalChart(labels, values, interval_bounds, axis_label, reference_value)
    return [Chart(chart_name, drawing, alt, caption)]


def _format_null_test_cells(finding_row: dict[str, Any]) -> list[str]:
    """Return the cells of ``NULL_TEST_COLUMNS`` for a finding."""
    column_units = (
        ("null_value", finding_row["unit"]),
        ("p_corrected", "p"),
        ("q", "p"),
        ("minimum_detectable_effect", finding_row["unit"]),
    )
    values = [(finding_row.get(column), unit) for column, unit in column_units]
    cells = ["–" if value is None else format_number(value, unit) for value, unit in values]
    return [*cells, describe_conclusion(finding_row)]


def _format_missing_reason(finding_row: dict[str, Any]) -> str:
    if finding_row["value"] is not None:
        return ""
    return extract_missing_reason(finding_row["method"]) or "no reason is given"


def _describe_first_or_common_value(label: str, rows: Sequence[dict[str, Any]], column: str) -> str:
    """Return the value that all rows share, or the first value and a pointer to the others."""
    distinct_values = [value for value in dict.fromkeys(row[column] for row in rows) if value]
    if not distinct_values:
        return ""
    if len(distinct_values) == 1:
        return f"{label}: {distinct_values[0].rstrip('.')}."
    return (
        f"{label} of the first row: {distinct_values[0].rstrip('.')}. Other rows differ; their "
        f"evidence pages show the {label.lower()}."
    )
