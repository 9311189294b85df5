"""Draw the findings of an audit, as the audit declares, in the order in which tables show them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hallmark.reports.page import charts
from hallmark.reports.page.document import Block, Chart
from hallmark.reports.page.figures import slugify
from hallmark.reports.sections.findings import (
    GROUP_TAGS,
    Finding,
    build_natural_sort_key,
    select_group_and_most_significant_findings,
)
from hallmark.tasks.audits.audit_descriptions import ChartDescription
from hallmark.tasks.audits.judging.conclusions import remove_reason_lead
from hallmark.tasks.audits.slice_tags import SYSTEM_TITLES, label_part, name_slice

#: Part of the method of a finding whose p also compares it with small untrained models.
UNTRAINED_TEST = "prediction test against"

#: Largest number of lines of a chart, apart from findings about groups of people.
MAX_CHART_LINES = 30


def compute_effect(row: Mapping[str, Any], *, is_compared: bool = True) -> float:
    """Return how far a finding is from its value expected with no effect, in the harmful direction.

    Args:
        row: The row of the finding.
        is_compared: Whether to compare it with the value expected with no effect, if it has one.
            Otherwise the effect is the value itself.

    Returns:
        The distance in the unit of the finding; minus infinity if it has no value.
    """
    value, null_value = row["value"], row["null_value"]
    if value is None:
        return -math.inf
    if null_value is None or not is_compared:
        return float(-value if row["worse_when"] == "down" else value)
    difference = float(value - null_value)
    if row["worse_when"] == "up":
        return difference
    return -difference if row["worse_when"] == "down" else abs(difference)


def sort_findings(findings: Iterable[Finding], *, is_ordered: bool = False) -> list[Finding]:
    """Sort findings by effect, the most harmful first.

    If some have no value expected with no effect, all are sorted by value.

    Args:
        findings: The findings of a metric.
        is_ordered: Whether they have an order of their own, by their slices, which is then kept.
    """
    in_slice_order = sorted(
        findings, key=lambda finding: build_natural_sort_key(name_slice(finding.row["slice"]))
    )
    if is_ordered:
        return in_slice_order
    is_compared = all(
        row["null_value"] is not None for row, _ in in_slice_order if row["value"] is not None
    )
    return sorted(
        in_slice_order,
        key=lambda finding: -compute_effect(finding.row, is_compared=is_compared),
    )


def select_drawn_findings(
    findings: Iterable[Finding], description: ChartDescription
) -> list[Finding]:
    """Return the findings of a chart and of the table below it, in their order.

    Variants, such as those with planted text, are omitted unless there is nothing else.
    """
    matching = [
        finding
        for finding in findings
        if finding.row["metric"] == description.metric
        and not finding.row["control"]
        and description.tags.items() <= finding.row["slice"].items()
        and (not description.varying_tag or description.varying_tag in finding.row["slice"])
    ]
    main = [finding for finding in matching if not finding.row["is_variant"]] or matching
    if description.largest_tag:
        numbers = [float(row["slice"].get(description.largest_tag, 0)) for row, _ in main]
        main = [
            finding for finding, number in zip(main, numbers, strict=True) if number == max(numbers)
        ]
    if description.kind == "bars":
        finding_by_baseline = {name_slice(finding.row["slice"]): finding for finding in main}
        return [finding_by_baseline[name] for name in SYSTEM_TITLES if name in finding_by_baseline]
    return sort_findings(main, is_ordered=description.is_ordered)


def build_audit_chart(findings: Sequence[Finding], description: ChartDescription) -> list[Block]:
    """Build a chart that an audit declares; return nothing if no finding was measured."""
    if description.kind == "bars":
        return _build_bar_chart(findings, description)
    caption = description.caption
    tested_methods = [row["method"] for row, _ in findings if row["p"] is not None]
    compared_count = sum(UNTRAINED_TEST in method for method in tested_methods)
    if compared_count:
        subject = (
            "Each figure's p-value also accounts for a comparison"
            if compared_count == len(tested_methods)
            else (
                f"The p-values of {compared_count} of {len(tested_methods)} figures also account "
                "for a comparison"
            )
        )
        caption += (
            f" {subject} with small untrained models, because even these models can prefer one "
            "side when items share words."
        )
    return build_interval_chart(
        slugify(description.metric),
        findings,
        description.axis_label,
        caption,
        description.reference_value,
    )


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

    Args:
        chart_name: The name of the chart.
        findings: The findings, in the order of the rows.
        axis_label: Label of the horizontal axis.
        caption: What the chart shows.
        reference_value: Where a dashed line is drawn; without it, each row has a mark at its own
            value expected with no effect.
    """
    measured_findings = [finding for finding in findings if finding.figure.value is not None]
    if not measured_findings:
        return []
    if len(measured_findings) > MAX_CHART_LINES:
        drawn_findings = select_group_and_most_significant_findings(
            measured_findings, MAX_CHART_LINES
        )
        if len(drawn_findings) < len(measured_findings):
            caption += (
                f" The chart shows {len(drawn_findings)} of {len(measured_findings)} findings: "
                "those with the smallest p or the largest difference from the value expected "
                "with no effect. The table shows more findings."
            )
        measured_findings = drawn_findings
    reasons = {row["inconclusive_reason"] for row, _ in measured_findings}
    if all(reasons):
        caption += (
            " No conclusion can be drawn from these figures, because "
            f"{remove_reason_lead(min(reasons))}."
        )
    labels = build_part_labels([row["slice"] for row, _ in measured_findings])
    interval_bounds = [
        None if figure.low is None or figure.high is None else (figure.low, figure.high)
        for _, figure in measured_findings
    ]
    alt_text = [f"{axis_label[:1].upper()}{axis_label[1:]}: "]
    for label, (_, figure) in zip(labels, measured_findings, strict=True):
        alt_text += [label, f" {figure.short_text} ({figure.interval_or_dash}), "]
    alt_text[-1] = alt_text[-1].removesuffix(", ") + "."
    drawing = charts.IntervalChart(
        labels,
        [figure.value or 0 for _, figure in measured_findings],
        interval_bounds,
        axis_label,
        reference_value,
        null_values=(
            [row["null_value"] for row, _ in measured_findings] if reference_value is None else []
        ),
    )
    return [Chart(chart_name, drawing, alt_text, caption)]


def build_part_labels(slices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a short label for each part: the values of the tags in which the parts differ.

    A number gets the name of its tag, as in "copies: 64". A group of people that only some of the
    parts have is always named.
    """
    tag_names = dict.fromkeys(name for tags in slices for name in tags)
    varying_names = [
        name for name in tag_names if len({str(tags.get(name)) for tags in slices}) > 1
    ]
    group_names = [
        name
        for name in varying_names
        if name in GROUP_TAGS and not all(name in tags for tags in slices)
    ]
    for name in varying_names:
        labels = _join_tag_values(slices, list(dict.fromkeys([name, *group_names])))
        if len({*labels}) == len(labels):
            return labels
    labels = _join_tag_values(slices, varying_names or [*tag_names])
    if len({*labels}) == len(labels):
        return labels
    return [
        ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in tags.items()) or "all"
        for tags in slices
    ]


def _join_tag_values(slices: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    return [
        label_part({name: tags[name] for name in names if name in tags}) or "all" for tags in slices
    ]


def _build_bar_chart(findings: Sequence[Finding], description: ChartDescription) -> list[Block]:
    """Build a bar for the model and for each of its baselines."""
    figure_by_baseline = {name_slice(row["slice"]): figure for row, figure in findings}
    shown_figures = {
        baseline: figure_by_baseline[baseline]
        for baseline in SYSTEM_TITLES
        if baseline in figure_by_baseline and figure_by_baseline[baseline].value is not None
    }
    if not shown_figures:
        return []
    drawing = charts.BarChart(
        [SYSTEM_TITLES[baseline] for baseline in shown_figures],
        [figure.value or 0 for figure in shown_figures.values()],
        description.axis_label,
        highlight_first="model" in shown_figures,
    )
    values = ", ".join(
        f"{SYSTEM_TITLES[baseline]} {figure.short_text}"
        for baseline, figure in shown_figures.items()
    )
    title = description.axis_label[:1].upper() + description.axis_label[1:]
    caption = description.caption
    if "model" not in shown_figures:
        caption += " The model was not measured."
    elif len(shown_figures) == 1:
        caption += " No baseline was measured."
    return [Chart(slugify(description.metric), drawing, f"{title}: {values}.", caption)]
