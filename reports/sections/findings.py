"""Read the findings of audits for a card, and build its tables of controls and main results.

The order, selection and significance of findings that other sections show are decided here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hallmark.reports.artifact_lookup import find_training_trace
from hallmark.reports.page.document import DataTable, InlineElement
from hallmark.reports.page.figures import Figure, FigureBook, slugify
from hallmark.tasks.audits.audit_descriptions import SIGNIFICANCE_LEVEL
from hallmark.tasks.audits.judging.discoveries import (
    find_harmful_side,
    is_harmful,
    is_judged_by_interval,
    read_card_findings,
)
from hallmark.tasks.audits.judging.measures import NULL_INTERVAL_NOTE
from hallmark.tasks.audits.judging.policy_outcome import VERDICT_NAMES
from hallmark.tasks.audits.judging.scorer_controls import (
    SCORER_CONTROL_RULE,
    name_text_kind,
    remove_repeated_scorer_controls,
)
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.audits.slice_tags import (
    CONDITION_TITLES,
    LEXICON_GROUP_TAGS,
    label_part,
)
from hallmark.tasks.contract import Artifact

#: The page of a card with the controls of all audits.
CONTROLS_PAGE = "controls"


class Finding(NamedTuple):
    """A finding of an audit on a card.

    Attributes:
        row: Its row of the ``findings`` table.
        figure: Its value as a figure of the card.
    """

    row: dict[str, Any]
    figure: Figure


def select_tested_findings(ranked_findings: Sequence[Finding]) -> list[Finding]:
    """Return the ranked findings that decide about harm: those with a p, or judged by the interval.

    A part of a metric that has a p elsewhere is not tested if it has none itself, for example
    because it has too few units. A part that is a discovery is always returned.
    """
    tested_metrics = {
        (row["audit"], row["metric"]) for row, _ in ranked_findings if row["p"] is not None
    }
    return [
        finding
        for finding in ranked_findings
        if finding.row["p"] is not None
        or is_harmful(finding.row)
        or (
            is_judged_by_interval(finding.row)
            and (finding.row["audit"], finding.row["metric"]) not in tested_metrics
        )
    ]


def get_audit_title(audit: str) -> str:
    """Return the title of an audit; of an audit that no longer exists, its name."""
    return AUDIT_DESCRIPTIONS[audit].title if audit in AUDIT_DESCRIPTIONS else audit


def get_audit_page(audit: str) -> str:
    """Return the name of the page of an audit."""
    return f"audit-{slugify(audit)}"


def name_finding(finding_row: Mapping[str, Any]) -> str:
    """Name a finding by the title of its metric and its slice, in words."""
    return ", ".join(filter(None, (finding_row["title"], label_part(finding_row["slice"]))))


def fill_names(text: str, words: Mapping[str, Any]) -> str:
    """Replace names in braces by their words; a name without words stays."""
    for name, value in words.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def build_natural_sort_key(text: str) -> list[tuple[float, str]]:
    """Return a key that sorts "copies 8" before "copies 16" and "share 0.75" before "share 0.9"."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(part), "") if part[:1].isdecimal() else (-1.0, part) for part in parts]


#: Tags of findings about groups of people, or about kinds of groups.
GROUP_TAGS = frozenset(
    {
        "bias_type",
        "category",
        "domain",
        "gender",
        "group_name",
        "mentioned_group",
        "pronoun",
        "test",
    }
)


def has_lowest_possible_null(row: Mapping[str, Any]) -> bool:
    """Return whether a finding is compared with a share of 0, which is not what chance gives.

    A difference of shares can be negative, so 0 is not its lowest value.
    """
    return bool(
        row["p"] is None
        and row["unit"] == "share"
        and row["null_value"] == 0
        and not row["null_name"]
        and all(row[name] is None or row[name] >= 0 for name in ("value", "low"))
    )


def is_about_groups(row: Mapping[str, Any]) -> bool:
    """Return whether a finding is about groups of people; no row limit applies to these."""
    return any(names_group(tag, value) for tag, value in dict(row["slice"]).items())


def names_group(tag: str, value: str) -> bool:
    """Return whether a tag is about a group of people, by its name or by a group as its value.

    A kind of prompts may be a group from a word list of the user, as in "town:Ildriths".
    """
    return tag in GROUP_TAGS or (tag in LEXICON_GROUP_TAGS and ":" in value)


def list_measured_groups(finding_rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Name the groups of people, or kinds of groups, that findings are about, in words.

    Groups of the same kind are listed together, such as "gender: men, women".
    """
    groups_by_kind: dict[str, set[str]] = {}
    for row in finding_rows:
        if row["is_variant"]:  # it repeats another finding, or is not about people
            continue
        tags = {tag: value for tag, value in dict(row["slice"]).items() if names_group(tag, value)}
        kind = label_part({"domain": tags.pop("domain")}) if "domain" in tags else ""
        if tags:
            groups_by_kind.setdefault(kind, set()).add(label_part(tags))
    return [
        f"{kind}: {', '.join(sorted(groups))}" if kind else "; ".join(sorted(groups))
        for kind, groups in sorted(groups_by_kind.items())
    ]


def list_conditions(finding_rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Name the conditions, other than groups of people, in which findings differ, in words."""
    tags = {tag for row in finding_rows for tag in dict(row["slice"])}
    return [title for tag, title in CONDITION_TITLES.items() if tag in tags]


def select_group_and_most_significant_findings(
    findings: Sequence[Finding], limit_of_others: int
) -> list[Finding]:
    """Select the findings that a table or a chart has room for, in their given order.

    Findings about groups of people are always selected, so that the groups shown do not depend on
    their names, and so are discoveries of harm. The others are limited to the ``limit_of_others``
    with the smallest corrected p; ties go to the largest difference from the null value.
    """

    def significance_key(index: int) -> tuple[float, float]:
        row, figure = findings[index]
        p, null = row.get("p_corrected"), row.get("null_value")
        difference = None if figure.value is None else abs(figure.value - (null or 0.0))
        return (2.0 if p is None else p, math.inf if difference is None else -difference)

    group_indices = {
        index for index, (row, _) in enumerate(findings) if is_about_groups(row) or is_harmful(row)
    }
    other_indices = sorted({*range(len(findings))} - group_indices, key=significance_key)
    return [
        findings[index] for index in sorted(group_indices.union(other_indices[:limit_of_others]))
    ]


def find_significant_side_of_null(finding_row: Mapping[str, Any]) -> int:
    """Return whether a finding is significantly above (1) or below (-1) its null value, else 0.

    A finding with a test in the harmful direction follows the rule of the card. For others, such as
    those on planted associations, the corrected p that tables show decides; without a test, the
    interval does.
    """
    if finding_row["inconclusive_reason"]:
        return 0
    if finding_row["p_harm"] is not None:
        return find_harmful_side(finding_row)
    p = finding_row["p_corrected"]
    if p is None:
        return find_side_of_interval(finding_row)
    value, null = finding_row["value"], finding_row["null_value"]
    if value is None or null is None or p >= SIGNIFICANCE_LEVEL:
        return 0
    return int(value > null) - int(value < null)


def find_side_of_interval(finding_row: Mapping[str, Any]) -> int:
    """Return whether the interval of a finding is above (1) or below (-1) its null value, else 0.

    Intervals are not corrected for the number of tests, so this does not mean significance.
    """
    value, null, low, high = (
        finding_row[column] for column in ("value", "null_value", "low", "high")
    )
    if None in (value, null, low, high) or finding_row["inconclusive_reason"]:
        return 0
    return int(low > null) - int(high < null)


#: The setting of the search for training text that definitions of metrics may name.
MIN_SPAN_SETTING = "min_span_tokens"


@dataclass
class Findings:
    """All findings of all audits, added to the book in the order of the card.

    The rows are those of ``read_card_findings``, with the column q.
    Audits that use the same scorer repeat its controls; only the first of equal ones is added.

    Attributes:
        book: The figures of the card.
        audit_artifacts: The outputs of the audits by name, such as "bias".
        by_audit: By audit, its findings as rows with their figures.
    """

    book: FigureBook
    audit_artifacts: Mapping[str, Artifact]
    by_audit: dict[str, list[Finding]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        ordered = [
            audit_name for audit_name in AUDIT_DESCRIPTIONS if audit_name in self.audit_artifacts
        ]
        ordered += [
            audit_name
            for audit_name in self.audit_artifacts
            if audit_name not in AUDIT_DESCRIPTIONS
        ]
        rows_by_audit = read_card_findings({name: self.audit_artifacts[name] for name in ordered})
        for audit_name, rows in remove_repeated_scorer_controls(rows_by_audit).items():
            audit_findings = [
                Finding(row, self.book.add_finding_figure(f"audit_{audit_name}", row))
                for row in rows
            ]
            self.by_audit[audit_name] = audit_findings

    def select_by_metric(self, audit: str, metric: str) -> list[Finding]:
        """Return the findings of a metric, without controls."""
        return [
            finding
            for finding in self.by_audit.get(audit, [])
            if finding.row["metric"] == metric and not finding.row["control"]
        ]

    def get_metric_title(self, audit: str, metric: str) -> str:
        """Return the title of a metric; its name if the audit has no finding of it."""
        titles = (
            row["title"] for row, _ in self.by_audit.get(audit, []) if row["metric"] == metric
        )
        return next(titles, metric)

    def list_scorer_controls(self, audit: str) -> list[dict[str, Any]]:
        """Return the controls of the scorers of an audit.

        The controls of a scorer of several audits are among the findings of the first one.
        """
        scorers = {row["scorer"] or "" for row, _ in self.by_audit[audit]}
        return [
            row
            for audit_findings in self.by_audit.values()
            for row, _ in audit_findings
            if row["control_target"] == "scorer"
            and any(row["scorer"] in scorer for scorer in scorers)
        ]

    def get_settings(self, audit: str) -> Mapping[str, Any]:
        """Return the settings that an audit ran with; nothing if its artifact is not known."""
        artifact = self.audit_artifacts.get(audit)
        settings: Mapping[str, Any] = (
            {} if artifact is None else artifact.manifest["parts"]["config"]
        )
        return settings

    def get_metric_definition(self, audit: str, metric: str) -> str:
        """Return what a metric is, in a phrase; empty if the audit does not declare it."""
        description = AUDIT_DESCRIPTIONS.get(audit)
        definition = "" if description is None else description.glossary.get(metric, "")
        words = dict(self.get_settings(audit))
        if f"{{{MIN_SPAN_SETTING}}}" in definition:  # it is in another artifact, which takes time
            words = {MIN_SPAN_SETTING: self._get_min_span(audit)} | words
        return fill_names(definition, words)

    def _get_min_span(self, audit: str) -> str:
        """Return the smallest number of tokens that the search for training text records."""
        artifact = self.audit_artifacts.get(audit)
        trace = None if artifact is None else find_training_trace(artifact)
        config = {} if trace is None else trace.manifest["parts"]["config"]
        return str(config.get(MIN_SPAN_SETTING, "a minimum number of"))

    def build_controls_table(self, audits: Sequence[str] | None = None) -> DataTable:
        """Build the table of controls, except those of scorers, with their verdicts.

        Args:
            audits: The audits of the controls; by default all.
        """
        rows: list[list[InlineElement]] = []
        for audit in self.by_audit if audits is None else audits:
            for row, figure in self.by_audit[audit]:
                if row["control"] and row["control_target"] != "scorer":
                    control_label = name_finding(row)
                    rows.append(
                        [
                            get_audit_title(audit),
                            control_label,
                            row["control"],
                            row["control_target"],
                            VERDICT_NAMES[row["verdict"]],
                            figure,
                            figure.interval_or_dash,
                            describe_control_interval(row),
                            format_sample_size(row),
                        ]
                    )
        columns = [
            "audit",
            "control",
            "kind",
            "tests",
            "verdict",
            "value",
            "interval",
            "meaning of the interval",
            "n",
        ]
        note = (
            "A positive control must be detected, and a negative control must not. Each control's "
            "evidence page describes what the control requires. A range expected with no effect "
            "does not depend on the value. Other tables may show an interval with a different "
            "confidence level for the same value."
        )
        return DataTable("Controls", columns, rows, frozenset({5, 6, 8}), note)

    def build_scorer_controls_table(self) -> DataTable:
        """Build the table of what each scorer flags, by kind of text."""
        rows: list[list[InlineElement]] = [
            [
                row["scorer"].split(" (")[0],
                name_text_kind(row["slice"]),
                "yes" if row["control"] == "positive" else "no",
                VERDICT_NAMES[row["verdict"]],
                figure,
                figure.interval_or_dash,
                format_sample_size(row),
            ]
            for audit_findings in self.by_audit.values()
            for row, figure in audit_findings
            if row["control_target"] == "scorer"
        ]
        columns = ["scorer", "kind of text", "must flag", "verdict", "flagged", "interval", "n"]
        note = (
            "The “flagged” column shows the share of texts that the scorer flags as toxic, or as "
            "negative if it scores sentiment or regard. The texts were created for this test. "
            f"{SCORER_CONTROL_RULE}"
        )
        return DataTable("What the scorers detect", columns, rows, frozenset({4, 5, 6}), note)

    def select_headlines(self, audit: str) -> list[Finding]:
        """Return the findings of an audit to show first.

        For each metric with a worse direction, the overall finding is selected, else the findings
        of all parts. Without such metrics, the first metric is used.
        """
        measured_findings = [
            finding
            for finding in self.by_audit[audit]
            if not finding.row["control"] and finding.figure.value is not None
        ]
        directional_findings = [
            finding for finding in measured_findings if finding.row["worse_when"]
        ]
        metrics = list(
            dict.fromkeys(row["metric"] for row, _ in directional_findings or measured_findings[:1])
        )
        selected: list[Finding] = []
        for metric in metrics:
            metric_findings = [
                finding
                for finding in directional_findings or measured_findings
                if finding.row["metric"] == metric
            ]
            tag_sets = [row["slice"].items() for row, _ in metric_findings]
            overall_findings = [
                candidate
                for candidate, candidate_tags in zip(metric_findings, tag_sets, strict=True)
                if all(candidate_tags <= other_tags for other_tags in tag_sets)
            ]
            selected += overall_findings[:1] or metric_findings
        return selected


def format_sample_size(finding_row: dict[str, Any]) -> str:
    return "–" if finding_row["n"] is None else f"{finding_row['n']:,}"


def describe_control_interval(row: Mapping[str, Any]) -> str:
    """Return the level of the interval of a control, and what the interval contains."""
    if row["low"] is None or row["confidence_level"] is None:
        return "–"
    kind = (
        "range expected with no effect"
        if NULL_INTERVAL_NOTE in row["method"]
        else "confidence interval"
    )
    return f"{100 * row['confidence_level']:g} % {kind}"


def format_confidence_levels(finding_rows: Sequence[dict[str, Any]]) -> str:
    confidence_levels = sorted(
        {row["confidence_level"] for row in finding_rows if row["confidence_level"] is not None}
    )
    if not confidence_levels:
        return ""
    levels = " or ".join(f"{100 * level:g} %" for level in confidence_levels)
    return f"Confidence level: {levels}, not corrected for the number of tests."
