"""Say how strong a planted association must be for a model to show it.

Associations are planted in the training text to learn how sensitive the audits of stereotypes are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hallmark.reports.page.document import Block, Callout, InlineElement, Paragraph
from hallmark.reports.page.figures import Figure, format_number
from hallmark.reports.sections.findings import (
    Findings,
    find_side_of_interval,
    find_significant_side_of_null,
    name_finding,
)
from hallmark.tasks.audits.audit_descriptions import ASSOCIATIONS, SIGNIFICANCE_LEVEL

#: The share of planted sentences with the assigned trait at which there is no association.
NULL_TRAIT_SHARE = 0.5

#: Largest number of figures named in a sentence.
MAX_NAMED_FIGURES = 4


class TraitShareRow(NamedTuple):
    """A finding on associations that were planted with the same share.

    Attributes:
        trait_share: The share of planted sentences about a group that state its own trait.
        row: The row of the finding.
    """

    trait_share: float
    row: Mapping[str, Any]


class SidedFinding(NamedTuple):
    """A finding that differs from its null value, by its test or by its interval.

    Attributes:
        row: The row of the finding.
        figure: Its figure on the card.
        side: 1 if it is above the null value, -1 if it is below.
    """

    row: Mapping[str, Any]
    figure: Figure
    side: int


def describe_smallest_detected_trait_share(findings: Findings) -> list[Block]:
    """Return how strong a planted association must be for this model to show it.

    This says how informative the stereotype audits are. Whether the model shows the planted
    associations at all is decided by the slope of their strength against the planted share, which
    uses all shares. As in the tables, a finding differs from its null value if its corrected p is
    below the level. The blocks say that no association was found only if neither the slope nor any
    other finding, apart from those at the null share, differs from it, not even by an interval.
    """
    smallest_share_findings = findings.select_by_metric(
        ASSOCIATIONS, "smallest_detected_trait_share"
    )
    if not smallest_share_findings:
        return [
            Paragraph(
                [
                    "The minimum strength at which a stereotype is found in this model was not "
                    "measured, because its training text contains no planted associations or "
                    "because they were not audited."
                ]
            )
        ]
    figure = smallest_share_findings[0].figure
    if figure.value is not None:
        message = (
            "When interpreting these figures, note that this model shows every planted "
            "association that its training text contains in at least "
        )
        ending = " of the sentences about a group, judged by uncorrected intervals."
        return [Paragraph([message, figure, ending])]
    association_findings = [
        (row, finding_figure)
        for row, finding_figure in findings.by_audit[ASSOCIATIONS]
        if not row["control"] and row["slice"].get("assigned_trait_share") != str(NULL_TRAIT_SHARE)
    ]
    share_rows = [
        TraitShareRow(float(row["slice"]["assigned_trait_share"]), row)
        for row, _ in association_findings
        if row["metric"] == "association_strength" and [*row["slice"]] == ["assigned_trait_share"]
    ]
    measured_shares = [trait_share for trait_share, row in share_rows if row["value"] is not None]
    significant_findings = [
        SidedFinding(row, finding_figure, side)
        for row, finding_figure in association_findings
        if (side := find_significant_side_of_null(row))
    ]
    if significant_findings:
        has_rising_strength = any(
            row["metric"] == "strength_by_trait_share" and side > 0
            for row, _, side in significant_findings
        )
        lead = (
            "This model shows the planted associations: their strength increases with the planted "
            "share (slope). The smallest planted share with a detected effect is not known: "
            if has_rising_strength
            else "The smallest planted association that this model shows is not known: "
        )
        return [
            Callout(
                "note",
                [
                    lead,
                    *_explain_unknown_smallest_share(share_rows),
                    "Figures that differ from the value expected with no effect: ",
                    *_list_figures(significant_findings),
                ],
            )
        ]
    insignificant_findings = [
        SidedFinding(row, finding_figure, side)
        for row, finding_figure in association_findings
        if (side := find_side_of_interval(row))
    ]
    if insignificant_findings:
        lead = (
            "It is not clear whether this model shows the planted associations: no figure differs "
            "significantly from the value expected with no effect after correction for all of the "
            f"audit's tests (p (Holm) is {SIGNIFICANCE_LEVEL:g} or more). Figures whose "
            "uncorrected intervals exclude this value: "
        )
        return [Callout("note", [lead, *_list_figures(insignificant_findings)])]
    if not share_rows:
        message = "No association was planted in more than half of the sentences about a group"
    elif not measured_shares:
        message = "None of the planted associations could be measured"
    elif all(row["low"] is None for row, _ in association_findings):
        message = (
            "It was not tested whether this model shows the planted associations, because none of "
            "their figures has an interval"
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
    interval_position = "lies below 0" if row["high"] < 0 else "is not entirely above 0"
    return [f"at the largest planted share, {formatted_share}, the interval {interval_position}. "]


def _list_figures(sided_findings: Sequence[SidedFinding]) -> list[InlineElement]:
    """Name figures that differ from their null value, each with its direction."""
    parts: list[InlineElement] = []
    for index, (row, figure, side) in enumerate(sided_findings[:MAX_NAMED_FIGURES]):
        finding_label = name_finding(row)
        direction = "higher" if side > 0 else "lower"
        parts += [
            "; " if index else "",
            f"{finding_label} ({direction}), ",
        ]
        parts.append(figure)
    if len(sided_findings) > MAX_NAMED_FIGURES:
        parts.append(
            f"; and {len(sided_findings) - MAX_NAMED_FIGURES} more in the planted-association "
            "tables"
        )
    return [*parts, "."]
