"""Build the pages of the audits of a model card, from what each audit declares.

A page has the question of the audit, its answer, one chart with its table, examples, the method and
the limits. All other figures are on the page, too, and shown after a click.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hallmark.reports.page.document import (
    RISK_STATE_NAMES,
    Block,
    BulletList,
    Callout,
    DataTable,
    Details,
    InlineContent,
    InlineElement,
    Link,
    Paragraph,
    Section,
    ShortFigure,
)
from hallmark.reports.page.figures import UNNAMED_UNITS, Figure, format_number, slugify
from hallmark.reports.sections.audit_charts import (
    build_audit_chart,
    build_part_labels,
    select_drawn_findings,
    sort_findings,
)
from hallmark.reports.sections.card_summary import (
    collect_controls,
    count_control_results,
    describe_scorer_limits,
    list_titles_of_weak_audits_with_passed_controls,
)
from hallmark.reports.sections.decision_sheet import (
    NOT_MEASURED_LINK,
    STATE_ORDER,
    describe_audit_result,
    describe_finding_conclusion,
)
from hallmark.reports.sections.error_rates import ErrorRates
from hallmark.reports.sections.findings import (
    CONTROLS_PAGE,
    Finding,
    Findings,
    fill_names,
    format_confidence_levels,
    format_sample_size,
    get_audit_page,
    get_audit_title,
    has_lowest_possible_null,
    select_group_and_most_significant_findings,
)
from hallmark.reports.sections.planted_associations import describe_smallest_detected_trait_share
from hallmark.tasks.audits.audit_descriptions import RISKS, AuditDescription, ChartDescription
from hallmark.tasks.audits.audit_tables import HELD_OUT_TEXT
from hallmark.tasks.audits.judging.conclusions import remove_reason_lead
from hallmark.tasks.audits.judging.discoveries import (
    CORRECTION_NOTE,
    HARM_RULE,
    INTERVAL_RULE,
    describe_conclusion,
    is_judged_by_interval,
    is_ranked,
)
from hallmark.tasks.audits.judging.findings import AuditControl
from hallmark.tasks.audits.judging.policy import extract_missing_reason
from hallmark.tasks.audits.judging.scorer_controls import (
    collect_scorer_limits,
    remove_scorer_limits,
)
from hallmark.tasks.audits.judging.training_exposure import parse_mean_times_read
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.audits.slice_tags import SYSTEM_TITLES, label_part
from hallmark.tasks.contract import format_count

#: Largest number of examples on the page of an audit, and of its figures in the table of all
#: audits.
MAX_EXAMPLES, MAX_MAIN_FIGURES = 3, 5

#: Columns of findings that are tested against a null value: that value, p corrected over the audit
#: (Holm), q of the tests in the harmful direction corrected over the card (false discovery rate,
#: Benjamini & Hochberg), the minimum detectable effect, and what follows from q.
NULL_TEST_COLUMNS = (
    "value expected with no effect",
    "p (Holm, this audit)",
    "q (FDR, all tests for harm on this card)",
    "minimum detectable effect (80 % power)",
    "conclusion",
)

#: The column of findings about planted copies: a checkpoint may have read fewer than were planted.
TIMES_READ_COLUMN = "times read (mean)"
TIMES_READ_NOTE = (
    "A copy is treated as read if the training run had read it completely by this step."
)

#: Of tables with figures that have a p but do not decide about harm.
NOT_RANKED_NOTE = (
    "A figure marked “not ranked” answers the same question as another figure in a different way, "
    "or concerns planted text. Such a figure is not used as a test for harm, whatever its p-value."
)

#: Columns that hold text, not numbers.
TEXT_COLUMNS = ("part", "conclusion", "not measured because")


def build_analyses_section(
    findings: Findings,
    max_rows: int,
    error_rates: Mapping[str, ErrorRates] | None = None,
) -> Section:
    """Build a page for each audit that ran, and link to the list of those that did not.

    Args:
        findings: The findings of the audits.
        max_rows: The largest number of rows of a table, apart from findings about groups of people.
        error_rates: The known error rates by audit.
    """
    section = Section("Quantitative analyses")
    section.sections = [
        build_audit_page(findings, audit, max_rows, (error_rates or {}).get(audit))
        for audit in findings.by_audit
    ]
    if any(row["control"] for rows in findings.by_audit.values() for row, _ in rows):
        section.sections.append(build_controls_page(findings))
    missing_count = sum(audit not in findings.by_audit for audit in AUDIT_DESCRIPTIONS)
    if missing_count:
        audits = format_count(missing_count, "audit")
        section.add_blocks(Paragraph([f"{audits} did not run; see “", NOT_MEASURED_LINK, "”."]))
    return section


def build_summary_table(findings: Findings) -> DataTable | Paragraph:
    """Build the table of the main figures of every audit, or say that there is none.

    The main figures are the first ones of the main chart of the audit, beginning with those that
    are compared with a null value.
    """
    rows: list[list[InlineElement]] = []
    shown_rows: list[dict[str, Any]] = []
    is_cut = False
    for audit in findings.by_audit:
        main_findings = _select_main_findings(findings, audit)
        for finding in main_findings[:MAX_MAIN_FIGURES]:
            row, figure = finding
            shown_rows.append(row)
            part = label_part(row["slice"])
            rows.append(
                [
                    f"{get_audit_title(audit)}: {', '.join(filter(None, (row['title'], part)))}",
                    figure,
                    row["unit"],
                    figure.interval_or_dash,
                    format_sample_size(row),
                    describe_finding_conclusion(finding, findings) or "–",
                    figure.scorer or "–",
                ]
            )
        if len(main_findings) > MAX_MAIN_FIGURES:
            is_cut = True
    if not rows:
        message = "No audit produced a finding about the model."
        return Paragraph([message if findings.by_audit else "No audit ran."])
    columns = ["measure", "value", "unit", "interval", "n", "conclusion", "scorer"]
    explanation = "The Metrics page explains each measure and its unit."
    cut_note = (
        f"At most {MAX_MAIN_FIGURES} figures per audit are shown; the audit page shows the rest."
        if is_cut
        else ""
    )
    note = " ".join(filter(None, [format_confidence_levels(shown_rows), explanation, cut_note]))
    return DataTable("Capability and harm at a glance", columns, rows, frozenset({1, 3, 4}), note)


def _select_main_findings(findings: Findings, audit: str) -> list[Finding]:
    """Return the measured findings of the main chart of an audit; if it has none, its headlines.

    Findings that are compared with a null value come first: a chart may start with its baselines.
    """
    audit_findings = findings.by_audit[audit]
    description = AUDIT_DESCRIPTIONS.get(audit)
    for chart in [] if description is None else description.charts:
        drawn_findings = [
            finding
            for finding in select_drawn_findings(audit_findings, chart)
            if finding.figure.value is not None
        ]
        if drawn_findings:
            return sorted(drawn_findings, key=lambda finding: not is_ranked(finding.row))
    return findings.select_headlines(audit)


def build_controls_page(findings: Findings) -> Section:
    """Build the page of the controls of all audits and of their scorers."""
    counts = count_control_results(collect_controls(findings))
    answer = (
        "Controls have known answers and test the audits, their baselines, the model and the "
        "scorers."
    )
    summary = f"{answer} {counts[:1].upper()}{counts[1:]}."
    section = Section("Controls", [Paragraph([summary])], page=CONTROLS_PAGE, answer=[answer])
    if weak_audits := list_titles_of_weak_audits_with_passed_controls(findings):
        section.add_blocks(
            Paragraph(
                [
                    "A conclusion about stereotypes also requires that the model shows the "
                    "associations planted in its training text. This model does not show them, so "
                    "no conclusion can be drawn from these audits, even though the model passed "
                    f"their controls: {', '.join(weak_audits)}."
                ]
            )
        )
    targets = {row["control_target"] for _, row in collect_controls(findings)}
    if targets - {"scorer"}:
        section.add_blocks(findings.build_controls_table())
    if "scorer" in targets:
        section.add_blocks(findings.build_scorer_controls_table())
    return section


def build_audit_page(
    findings: Findings, audit: str, max_rows: int, error_rates: ErrorRates | None = None
) -> Section:
    """Build the page of an audit that ran, from what the audit declares.

    Args:
        findings: The findings of all audits.
        audit: The name of the audit.
        max_rows: The largest number of rows of a table, apart from findings about groups of people.
        error_rates: How often the audit is wrong, if a study measured it.
    """
    description = AUDIT_DESCRIPTIONS.get(audit)
    result = describe_audit_result(audit, findings)
    audit_findings = [entry for entry in findings.by_audit[audit] if not entry.row["control"]]
    page_charts = [
        replace(chart, caption=fill_names(chart.caption, findings.get_settings(audit)))
        for chart in list_page_charts(audit_findings, description)
    ]
    # The card has the page "Metrics" with all definitions; the page of an audit defines its own.
    answer = describe_audit_result(audit, findings, is_brief=True).content
    section = Section(get_audit_title(audit), page=get_audit_page(audit), answer=answer)
    if description is not None and description.question:
        section.add_blocks(Paragraph([description.question]))
    section.add_blocks(Callout("bad" if result.state == "found" else "note", result.content))
    section.add_blocks(*_build_related_audits(findings, audit))
    main_findings: list[Finding] = []
    for chart in page_charts[:1]:
        main_findings = select_drawn_findings(audit_findings, chart)
        section.add_blocks(
            *build_audit_chart(main_findings, chart),
            build_metric_table(findings, audit, main_findings, max_rows, is_main=True),
        )
    if not audit_findings:
        message = "The audit produced no findings about the model."
        if findings.by_audit[audit]:
            message += " Its controls are below."
        section.add_blocks(Paragraph([message]))
    section.sections = [
        *_build_examples_section(main_findings),
        _build_method_section(findings, audit, audit_findings, page_charts, max_rows),
        _build_limits_section(findings, audit, error_rates),
    ]
    folded_blocks = [
        *_build_folded_metrics(findings, audit, page_charts, main_findings, max_rows),
        *_build_folded_controls(findings, audit),
    ]
    if folded_blocks:
        section.sections.append(Section("Further figures", folded_blocks))
    return section


def _build_related_audits(findings: Findings, audit: str) -> list[Block]:
    """Link the other audits of the same risk, those that show harm first.

    The decision sheet links one page for each risk, so its reader finds the others here.
    """
    description = AUDIT_DESCRIPTIONS.get(audit)
    if description is None or not description.risk:
        return []
    results = [
        (name, describe_audit_result(name, findings).state)
        for name in findings.by_audit
        if name != audit
        and name in AUDIT_DESCRIPTIONS
        and AUDIT_DESCRIPTIONS[name].risk == description.risk
    ]
    if not results:
        return []
    content: list[InlineElement] = [f"Other audits of “{RISKS[description.risk].title}”: "]
    for number, (name, state) in enumerate(
        sorted(results, key=lambda result: STATE_ORDER.index(result[1]))
    ):
        link = Link(get_audit_title(name), f"{get_audit_page(name)}.html")
        content += [", "] * (number > 0) + [link, f" ({RISK_STATE_NAMES[state]})"]
    return [Paragraph([*content, "."])]


def list_page_charts(
    audit_findings: Sequence[Finding], description: AuditDescription | None
) -> list[ChartDescription]:
    """Return the charts of an audit's page, the main one first.

    Declared charts without a finding are omitted. Without any, the findings of one metric are
    drawn: of the first with a harmful direction, else of the first.
    """
    declared = [] if description is None else description.charts
    charts_with_findings = [
        chart for chart in declared if select_drawn_findings(audit_findings, chart)
    ]
    if charts_with_findings or not audit_findings:
        return charts_with_findings
    row = next((row for row, _ in audit_findings if row["worse_when"]), audit_findings[0].row)
    unit = "" if row["unit"] in UNNAMED_UNITS else f" ({row['unit']})"
    return [
        ChartDescription(row["metric"], f"{row['title']}{unit}", f"{row['title']}, with intervals.")
    ]


def _build_folded_metrics(
    findings: Findings,
    audit: str,
    page_charts: Sequence[ChartDescription],
    main_findings: Sequence[Finding],
    max_rows: int,
) -> list[Block]:
    """Build what the main table does not show: other metrics, and variants of the main one."""
    blocks: list[Block] = []
    shown_ids = {finding.figure.id for finding in main_findings}
    audit_findings = [entry for entry in findings.by_audit[audit] if not entry.row["control"]]
    chart_by_metric = {chart.metric: chart for chart in page_charts[1:]}
    for metric in dict.fromkeys(row["metric"] for row, _ in audit_findings):
        metric_findings = [entry for entry in audit_findings if entry.row["metric"] == metric]
        hidden_findings = [entry for entry in metric_findings if entry.figure.id not in shown_ids]
        if not hidden_findings:
            continue
        title = hidden_findings[0].row["title"]
        has_main_findings = len(hidden_findings) < len(metric_findings)
        details: list[Block] = []
        if metric in chart_by_metric:
            chart = chart_by_metric[metric]
            details += build_audit_chart(select_drawn_findings(metric_findings, chart), chart)
        if not has_main_findings and (definition := findings.get_metric_definition(audit, metric)):
            details.append(Paragraph([f"{title}: {definition}."]))
        details.append(build_metric_table(findings, audit, hidden_findings, max_rows))
        blocks.append(
            Details(f"{title}: all other figures" if has_main_findings else title, details)
        )
    artifact = findings.audit_artifacts.get(audit)
    if artifact is not None and "training_sizes" in artifact.tables:
        blocks.append(
            Details("Text used to train the baselines", build_baseline_text_table(findings, audit))
        )
    return blocks


def _build_folded_controls(findings: Findings, audit: str) -> list[Block]:
    controls = [row for row, _ in findings.by_audit[audit] if row["control"]]
    if all(row["control_target"] == "scorer" for row in controls):
        return []
    return [Details("Controls for this audit", [findings.build_controls_table([audit])])]


def _build_examples_section(main_findings: Sequence[Finding]) -> list[Section]:
    """Link the cases behind the first findings of the main table."""
    measured = [finding for finding in main_findings if finding.figure.value is not None]
    # Baselines are no examples, if anything is compared with a value expected with no effect.
    examples = [finding for finding in measured if is_ranked(finding.row)] or measured
    if not examples:
        return []
    labels = build_part_labels([row["slice"] for row, _ in main_findings])
    label_by_id = dict(zip((figure.id for _, figure in main_findings), labels, strict=True))
    items: list[InlineContent] = [
        [ShortFigure(figure), f" ({label_by_id[figure.id]})"]
        for _, figure in examples[:MAX_EXAMPLES]
    ]
    lead = "Each number links to the cases it was computed from."
    return [Section("Examples", [Paragraph([lead]), BulletList(items)])]


def _build_method_section(
    findings: Findings,
    audit: str,
    audit_findings: Sequence[Finding],
    page_charts: Sequence[ChartDescription],
    max_rows: int,
) -> Section:
    """Build the section on how the audit measures."""
    description = AUDIT_DESCRIPTIONS.get(audit)
    blocks: list[Block] = []
    if description is not None:
        blocks.append(Paragraph([description.meaning]))
    for chart in page_charts[:1]:
        if definition := findings.get_metric_definition(audit, chart.metric):
            title = findings.get_metric_title(audit, chart.metric)
            blocks.append(Paragraph([f"{title}: {definition}."]))
    rows = [row for row, _ in audit_findings]
    if any(describe_conclusion(row) for row in rows):
        blocks.append(Paragraph([HARM_RULE]))
    if any(map(is_judged_by_interval, rows)):
        blocks.append(Paragraph([INTERVAL_RULE]))
    if levels := format_confidence_levels(rows):
        if any(row["p_corrected"] is not None for row in rows):
            levels = f"{levels} {CORRECTION_NOTE}"
        blocks.append(Paragraph([levels]))
    scorer_controls = findings.list_scorer_controls(audit)
    method_rows: list[list[InlineElement]] = []
    for metric, first in select_first_findings(findings, audit, max_rows).items():
        methods = {
            remove_scorer_limits(row["method"], scorer_controls)
            for row in rows
            if row["metric"] == metric
        }
        method_rows.append(
            [
                first.row["title"],
                remove_scorer_limits(first.row["method"], scorer_controls),
                first.row["scorer"] or "–",
                f"{len(methods)}",
            ]
        )
    if method_rows:
        columns = ["metric", "method used for the first figure", "scorer", "number of methods"]
        note = "Each figure's evidence page describes how the figure was measured."
        if collect_scorer_limits(scorer_controls):
            note += " The Limits section lists what the scorers often miss."
        table = DataTable(
            "How each metric was measured", columns, method_rows, frozenset({3}), note
        )
        blocks.append(Details("Methods in full", [table]))
    return Section("Method", blocks)


def select_first_findings(findings: Findings, audit: str, max_rows: int) -> dict[str, Finding]:
    """Return the first figure of each metric on the page of an audit, by metric.

    It is the first one with a value in the first table of the metric: the method of a figure
    without a value is the reason why it has none.

    Args:
        findings: The findings of all audits.
        audit: The name of the audit.
        max_rows: The largest number of rows of a table, apart from findings about groups of people.
    """
    audit_findings = [entry for entry in findings.by_audit[audit] if not entry.row["control"]]
    main_findings: list[Finding] = []
    for chart in list_page_charts(audit_findings, AUDIT_DESCRIPTIONS.get(audit))[:1]:
        main_findings = select_drawn_findings(audit_findings, chart)
    first_findings: dict[str, Finding] = {}
    for metric in dict.fromkeys(row["metric"] for row, _ in audit_findings):
        is_main = any(row["metric"] == metric for row, _ in main_findings)
        shown_findings = _select_table_findings(
            main_findings if is_main else findings.select_by_metric(audit, metric),
            max_rows,
            is_main=is_main,
        )
        first_findings[metric] = next(
            (entry for entry in shown_findings if entry.row["value"] is not None),
            shown_findings[0],
        )
    return first_findings


def _select_table_findings(
    metric_findings: Sequence[Finding], max_rows: int, *, is_main: bool
) -> list[Finding]:
    """Return the findings of a table of one metric, in the order of its rows."""
    if not is_main:
        metric_findings = sort_findings(metric_findings, is_ordered=True)
    return select_group_and_most_significant_findings(metric_findings, max_rows)


def _build_limits_section(
    findings: Findings, audit: str, error_rates: ErrorRates | None
) -> Section:
    """Build the section on what the audit cannot show and how often it is wrong."""
    description = AUDIT_DESCRIPTIONS.get(audit)
    items: list[InlineContent] = []
    if description is not None and description.limits:
        items.append([fill_names(description.limits, findings.get_settings(audit))])
    scorer_controls = [AuditControl(audit, row) for row in findings.list_scorer_controls(audit)]
    for limits in describe_scorer_limits(scorer_controls):
        items.append([f"{limits[:1].upper()}{limits[1:]}."])
    reasons = dict.fromkeys(
        row["inconclusive_reason"]
        for row, _ in findings.by_audit[audit]
        if row["inconclusive_reason"] and not row["is_variant"]
    )
    items += [
        [f"Some figures do not support any conclusion, because {remove_reason_lead(reason)}."]
        for reason in reasons
    ]
    section = Section("Limits", [BulletList(items)] if items else [])
    if description is not None and description.is_about_stereotypes:
        section.add_blocks(*describe_smallest_detected_trait_share(findings))
    if error_rates is not None:
        section.add_blocks(
            *error_rates.describe_differing_settings(audit, findings.audit_artifacts[audit]),
            *error_rates.describe_error_rates(audit),
        )
    if not section.blocks:
        section.add_blocks(Paragraph(["No limits are documented for this audit."]))
    return section


def build_metric_table(
    findings: Findings,
    audit: str,
    metric_findings: Sequence[Finding],
    max_rows: int,
    *,
    is_main: bool = False,
) -> DataTable:
    """Build the table of findings of one metric.

    Args:
        findings: The findings of all audits.
        audit: The name of the audit.
        metric_findings: The findings of the table.
        max_rows: The largest number of rows, apart from findings about groups of people.
        is_main: Whether it is the table below the main chart: the rows keep their order and have
            the labels of the chart. Otherwise they are sorted by their parts, in full.
    """
    selected_findings = _select_table_findings(metric_findings, max_rows, is_main=is_main)
    slices = [row["slice"] for row, _ in selected_findings]
    labels = (
        build_part_labels(slices) if is_main else [label_part(tags) or "all" for tags in slices]
    )
    rows: list[list[InlineElement]] = []
    for slice_label, finding in zip(labels, selected_findings, strict=True):
        row, figure = finding
        rows.append(
            [
                slice_label,
                figure,
                figure.interval_or_dash,
                format_sample_size(row),
                _format_mean_times_read(row),
                *_format_null_test_cells(row),
                describe_finding_conclusion(finding, findings),
                _format_missing_reason(row),
            ]
        )
    columns = [
        "part",
        "value",
        "interval",
        "n",
        TIMES_READ_COLUMN,
        *NULL_TEST_COLUMNS,
        "not measured because",
    ]
    baselines = {row["null_name"] for row, _ in metric_findings if row["null_value"] is not None}
    if len(baselines) == 1 and (baseline := baselines.pop()):
        columns[columns.index(NULL_TEST_COLUMNS[0])] = f"baseline: {baseline}"
    compared_rows = [row for row, _ in metric_findings if row["null_value"] is not None]
    if compared_rows and all(map(has_lowest_possible_null, compared_rows)):
        columns[columns.index(NULL_TEST_COLUMNS[0])] = "lowest possible value"
    # A column that is empty in every row is dropped.
    shown_columns = [
        i for i in range(len(columns)) if i < 4 or any(row[i] not in ("", "–") for row in rows)
    ]
    columns, rows = (
        [columns[i] for i in shown_columns],
        [[row[i] for i in shown_columns] for row in rows],
    )
    caption = metric_findings[0].row["title"]
    units = sorted({row["unit"] for row, _ in metric_findings} - UNNAMED_UNITS)
    # A title such as "Texts with planted text" names its unit.
    if units and not re.search(rf"\b{re.escape(units[0])}\b", caption.lower()):
        caption += f" ({', '.join(units)})"
    finding_rows = [row for row, _ in metric_findings]
    notes = [_describe_first_or_common_value("Scorer", finding_rows, "scorer")]
    if len(metric_findings) > len(rows):
        notes.append(
            f"The table shows {len(rows)} of {len(metric_findings)} findings: all findings about "
            "groups of people, and those with the smallest p or the largest difference from the "
            f"value expected with no effect. The audit_{audit} stage's findings table lists all "
            "findings."
        )
    if TIMES_READ_COLUMN in columns:
        notes.append(TIMES_READ_NOTE)
    if any(row["is_variant"] and row["p_corrected"] is not None for row, _ in selected_findings):
        notes.append(NOT_RANKED_NOTE)
    note = " ".join(note for note in notes if note)
    numeric_columns = frozenset(i for i, column in enumerate(columns) if column not in TEXT_COLUMNS)
    return DataTable(caption, columns, rows, numeric_columns, note)


def _format_mean_times_read(row: Mapping[str, Any]) -> str:
    """Return how often training read the texts of a finding about planted copies, on average.

    A checkpoint may have read fewer copies than were planted.
    """
    if not str(dict(row["slice"]).get("copies", "")).isdigit():
        return "–"
    mean = parse_mean_times_read(row["method"])
    return "–" if mean is None else f"{mean:.1f}"


def build_baseline_text_table(findings: Findings, audit: str) -> list[Block]:
    """Build the table of the text that each baseline of an audit learned from."""
    artifact = findings.audit_artifacts[audit]

    def add_figure(
        baseline: str, label: str, unit: str, value_column: str, **options: Any
    ) -> Figure:
        return findings.book.add_computed_figure(
            f"{baseline}-{slugify(label)}",
            f"{label}, {SYSTEM_TITLES[baseline]}",
            unit,
            (f"audit_{audit}", "training_sizes"),
            {"baseline": baseline},
            value_column=value_column,
            **options,
        )

    rows: list[list[InlineElement]] = [
        [
            SYSTEM_TITLES[baseline],
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
        (f"audit_{audit}", "samples"),
        {"text_kind": HELD_OUT_TEXT},
        value_column="bytes",
    )
    columns = ["baseline", "bytes of text", "share of the training text", "tokens read"]
    sizes = artifact["training_sizes"].read().to_pylist()
    note = (
        "These baselines would predict held-out text better if they were trained on all of the "
        "training text."
        if any(size["bytes"] < size["split_bytes"] for size in sizes)
        else ""
    )
    return [
        DataTable("Text used to train the baselines", columns, rows, frozenset({1, 2, 3}), note),
        Paragraph(["The model and the baselines were measured on ", held_out_bytes, "."]),
    ]


def _format_null_test_cells(finding_row: dict[str, Any]) -> list[str]:
    """Return the cells of ``NULL_TEST_COLUMNS`` for a finding, without the conclusion."""
    column_units = (
        ("null_value", finding_row["unit"]),
        ("p_corrected", "p"),
        ("q", "p"),
        ("minimum_detectable_effect", finding_row["unit"]),
    )
    values = [(finding_row.get(column), unit) for column, unit in column_units]
    return ["–" if value is None else format_number(value, unit) for value, unit in values]


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
        f"{label} in the first row: {distinct_values[0].rstrip('.')}. Other rows differ; see "
        f"their evidence pages for the {label.lower()}."
    )
