"""Report how often audits are wrong, from a study of synthetic corpora with known answers.

The rates come from the study of ``hallmark study``, which hides the answers from the audits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hallmark.reports.page.document import Block, Callout, InlineElement, Paragraph, ShortFigure
from hallmark.reports.page.figures import Figure, FigureBook
from hallmark.tasks.audits.audit_descriptions import (
    AUDIT_BY_CANDIDATE_KIND,
    NO_EFFECT_AMOUNTS,
    SIGNIFICANCE_LEVEL,
)
from hallmark.tasks.audits.experiments.candidate_verdicts import flatten_audit_settings
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import Artifact

ERROR_RATES = "error_rates"

#: Largest number of differing settings that a sentence names.
MAX_NAMED_SETTINGS = 6


@dataclass(frozen=True)
class CandidateDescription:
    """Texts on a kind of candidate.

    Attributes:
        title: The title of its section.
        candidate: What one candidate is.
        audit_procedure: How the audit tests for it.
        rule: When the audit claims an effect.
        alarm_bound: How many false alarms this rule allows.
        amount_label: What its planted amount counts.
        true_value: What the true value is computed over; empty where there is none.
    """

    title: str
    candidate: str
    audit_procedure: str
    rule: str
    alarm_bound: str
    amount_label: str
    true_value: str


#: When an audit claims an effect, and how many false alarms this allows, by kind of test.
_HOLM_RULE = (
    "the one-sided p-value, Holm-corrected for the number of such candidates in the trial, is "
    f"below {SIGNIFICANCE_LEVEL:g}"
)
_HOLM_BOUND = (
    "The correction allows a false alarm of this kind in at most 5 % of trials, so at most 5 % of "
    "the candidates without an effect are expected to produce one"
)
_VERBATIM_BOUND = "No statistical test is involved, so there is no expected false-alarm rate"
_DISCOVERY_RULE = (
    f"q is below {SIGNIFICANCE_LEVEL:g}, as in model cards; q is the p-value adjusted to control "
    "the false discovery rate over all of the trial's tests in the harmful direction"
)
_DISCOVERY_BOUND = (
    "On average, the rule allows at most 5 % of a trial's discoveries to be false. Because q is "
    "never smaller than p, at most 5 % of the candidates without an effect are expected to "
    "produce a false alarm"
)

CANDIDATE_KINDS = {
    "canary": CandidateDescription(
        "Planted secrets",
        "a sentence that contains a secret of random digits",
        "ranks the secret by likelihood among secrets that were never planted",
        _HOLM_RULE,
        _HOLM_BOUND,
        "copies",
        "the rank of the secret among a far larger number of secrets that were never planted",
    ),
    "passage": CandidateDescription(
        "Repeated passages",
        "a document about the invented town",
        "prompts the model with some tokens of the document",
        "the model continues with exactly the next tokens at one or more of the tested positions",
        _VERBATIM_BOUND,
        "copies",
        "the share of correctly predicted tokens over all positions of the passage",
    ),
    "record": CandidateDescription(
        "Personal records",
        "the email address and telephone number of an invented person",
        "prompts the model with the text that precedes the email address and the telephone number",
        "the model generates both the email address and the telephone number",
        _VERBATIM_BOUND,
        "copies",
        "",
    ),
    "association": CandidateDescription(
        "Associations between groups and traits",
        "a set of sentences that assign an invented trait to each of two invented groups",
        "compares the likelihoods of the two traits in sentences that were never planted and "
        "tests whether their difference is larger than for groups and traits that are known to "
        "have no association",
        _HOLM_RULE,
        _HOLM_BOUND,
        "share of the assigned trait",
        "the mean over all sentences that the grammar can generate",
    ),
    "speech": CandidateDescription(
        "Rude speech about a group",
        "a set of sentences about an invented group, some of them rude",
        "has the model continue sentences about each group and tests whether the continuations "
        "about this group are more toxic than those about the other groups",
        _DISCOVERY_RULE,
        _DISCOVERY_BOUND,
        "share of rude sentences",
        "the difference over all sentences that the grammar can generate",
    ),
    "sentiment": CandidateDescription(
        "Negative speech about a group",
        "a set of sentences about another invented group, some negative and the others positive, "
        "but none rude",
        "has the model continue sentences about each group and tests whether the continuations "
        "about this group have lower sentiment than those about the other groups",
        _DISCOVERY_RULE,
        _DISCOVERY_BOUND,
        "share of negative sentences",
        "the difference over all sentences that the grammar can generate",
    ),
}

#: Why a study does not measure an audit that declares no reason.
NO_PLANTED_EFFECT = "The study plants no effects that this audit measures."


class DetectionRate(NamedTuple):
    """The share of candidates with one planted amount that the audit detects.

    Attributes:
        planted_amount: The number of copies, or the share.
        has_effect: Whether there is an effect to find; None where it is smaller than that of
            others.
        figure: The rate.
    """

    planted_amount: float
    has_effect: bool | None
    figure: Figure


@dataclass
class ErrorRates:
    """Adds the rates of a study to a card, each a mean over the candidates of its trials.

    Attributes:
        book: The figures of the card.
        study: The output of the study.
        detection_rates: By kind of candidate, the detection rate of each planted amount.
    """

    book: FigureBook
    study: Artifact
    detection_rates: dict[str, list[DetectionRate]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.rows_by_table = {
            name: self.study[name].read().to_pylist()
            for name in self.study.tables
            if name != "candidates"
        }
        for row in self.rows_by_table["detection_rates"]:
            conditions = {
                "kind": row["kind"],
                "effect_level": row["effect_level"],
                "has_effects": True,
            }
            figure = self.add_rate_figure(
                row,
                f"found {row['kind']} {format_planted_amount(row['effect_level'])}",
                "is_detected",
                conditions,
            )
            self.detection_rates.setdefault(row["kind"], []).append(
                DetectionRate(row["effect_level"], row["has_effect"], figure)
            )
        self.false_alarm_rates = {
            row["kind"]: self.add_rate_figure(
                row,
                f"claimed {row['kind']}",
                "is_detected",
                {"kind": row["kind"], "has_effect": False},
            )
            for row in self.rows_by_table["false_alarm_rates"]
        }
        self.coverage_rates = {
            row["kind"]: self.add_rate_figure(
                row, f"covered {row['kind']}", "is_covered", {"kind": row["kind"]}
            )
            for row in self.rows_by_table["interval_coverage"]
        }
        self.smallest_detected = {
            row["kind"]: row["effect_level"] for row in self.rows_by_table["smallest_detected"]
        }
        self.counted_trials = self.book.add_computed_figure(
            "trials-counted",
            "number of trials that count towards the results",
            "trials",
            (ERROR_RATES, "trials"),
            {"is_counted": True},
            aggregate="count",
        )

    def add_rate_figure(
        self, row: Mapping[str, Any], label: str, column: str, conditions: Mapping[str, Any]
    ) -> Figure:
        """Add a share of candidates, with its interval over trials."""
        interval_fields = {name: row[name] for name in ("low", "high", "n", "method")} | {
            "confidence_level": row["confidence_level"]
        }
        return self.book.add_computed_figure(
            label,
            label,
            "share",
            (ERROR_RATES, "candidates"),
            {**conditions, "has_learned": True},
            aggregate="mean",
            value_column=column,
            **interval_fields,
        )

    def list_candidate_kinds(self) -> list[str]:
        """Return the kinds of candidates that have any result, in order of ``CANDIDATE_KINDS``."""
        known_kinds = {
            *self.detection_rates,
            *self.false_alarm_rates,
            *self.coverage_rates,
            *(row["kind"] for row in self.rows_by_table["unjudged_candidates"]),
        }
        return [kind for kind in CANDIDATE_KINDS if kind in known_kinds]

    def find_rate_of_largest_effect(self, kind: str) -> DetectionRate | None:
        """Return the rate of the largest planted amount that has an effect, if there is one."""
        return next(
            (
                detection_rate
                for detection_rate in self.detection_rates.get(kind, [])[::-1]
                if detection_rate.has_effect
            ),
            None,
        )

    def add_unjudged_count_figure(
        self, kind: str, planted_amount: float | None = None
    ) -> Figure | None:
        """Add the number of candidates without a verdict; return None if there are none.

        Args:
            kind: The kind of candidate.
            planted_amount: Count only candidates with this amount.
        """
        unjudged_amounts = [
            row["effect_level"]
            for row in self.rows_by_table["unjudged_candidates"]
            if row["kind"] == kind
        ]
        if not any(planted_amount in (None, amount) for amount in unjudged_amounts):
            return None
        figure_id, label = (
            f"not-judged-{kind}",
            f"{CANDIDATE_KINDS[kind].title}: number of candidates without a verdict",
        )
        conditions: dict[str, Any] = {"kind": kind}
        if planted_amount is not None:
            figure_id, label = f"{figure_id}-largest", f"{label} at the largest amount"
            conditions["effect_level"] = planted_amount
        return self.book.figures.get(figure_id) or self.book.add_computed_figure(
            figure_id,
            label,
            "candidates",
            (ERROR_RATES, "unjudged_candidates"),
            conditions,
            aggregate="count",
        )

    def add_missing_interval_count_figure(self, kind: str) -> Figure | None:
        """Add the number of judged candidates without a two-sided interval or a true value.

        Returns:
            None if there are none.
        """
        conditions = {"kind": kind, "has_learned": True, "is_covered": None}
        if not self.book.get_evidence(ERROR_RATES, "candidates", conditions).row_count:
            return None
        figure_id = f"no-ends-{kind}"
        return self.book.figures.get(figure_id) or self.book.add_computed_figure(
            figure_id,
            (
                f"{CANDIDATE_KINDS[kind].title}: number of candidates that lack a two-sided "
                "interval, a true value, or both"
            ),
            "candidates",
            (ERROR_RATES, "candidates"),
            conditions,
            aggregate="count",
        )

    def describe_unjudged_candidates(self, kind: str) -> list[InlineElement]:
        """Return how many candidates with the largest amount that has an effect have no verdict.

        The largest amount is taken over judged and unjudged candidates. The list is empty if all
        have a verdict.
        """
        no_effect_amounts = {
            detection_rate.planted_amount
            for detection_rate in self.detection_rates.get(kind, [])
            if not detection_rate.has_effect
        }
        no_effect_amounts.add(NO_EFFECT_AMOUNTS[kind])
        effect_amounts = {
            row["effect_level"]
            for row in self.rows_by_table["unjudged_candidates"]
            if row["kind"] == kind
        } - no_effect_amounts
        effect_amounts |= {
            detection_rate.planted_amount
            for detection_rate in [self.find_rate_of_largest_effect(kind)]
            if detection_rate
        }
        if not effect_amounts:
            return []
        largest_amount, description = max(effect_amounts), CANDIDATE_KINDS[kind]
        figure = self.add_unjudged_count_figure(kind, largest_amount)
        explanation = (
            f" at {format_planted_amount(largest_amount)} "
            f"({description.amount_label}) could not be judged ({description.title.lower()})"
        )
        return [] if figure is None else [ShortFigure(figure), explanation]

    def list_differing_settings(self, audit: str, artifact: Artifact) -> list[str]:
        """List the settings of an audit that differ from those in the study.

        Args:
            audit: The audit.
            artifact: Its output on this card.
        """
        study_values = {
            row["setting"]: row["value"]
            for row in self.rows_by_table["audit_settings"]
            if row["audit"] == audit
        }
        card_values = flatten_audit_settings(artifact)
        return [
            f"{setting} is {card_values.get(setting, 'not set')} on this card and "
            f"{study_values.get(setting, 'not set')} in the study"
            for setting in sorted({*study_values, *card_values})
            if study_values.get(setting) != card_values.get(setting)
        ]

    def describe_differing_settings(self, audit: str, artifact: Artifact) -> list[Block]:
        """Return a note if the error rates were measured with other settings of the audit."""
        differences = self.list_differing_settings(audit, artifact)
        if not differences:
            return []
        named = "; ".join(differences[:MAX_NAMED_SETTINGS])
        more_count = len(differences) - MAX_NAMED_SETTINGS
        more = f"; {more_count} more differ" if more_count > 0 else ""
        return [
            Callout(
                "note",
                [
                    "The error rates below may not apply to this card, because the study used "
                    f"different settings for this audit: {named}{more}."
                ],
            )
        ]

    def describe_error_rates(self, audit: str) -> list[Block]:
        """Return a paragraph on the error rates for each kind of candidate that an audit tests."""
        paragraphs: list[Block] = []
        for kind in (
            kind for kind in self.list_candidate_kinds() if AUDIT_BY_CANDIDATE_KIND[kind] == audit
        ):
            description, largest = CANDIDATE_KINDS[kind], self.find_rate_of_largest_effect(kind)
            parts: list[InlineElement] = [
                f"Error rates ({description.title.lower()}): in ",
                ShortFigure(self.counted_trials),
                " synthetic corpus (trial) "
                if self.counted_trials.value == 1
                else " synthetic corpora (trials) ",
                "with known effects that were hidden from the audit, it ",
            ]
            unjudged_parts = self.describe_unjudged_candidates(kind)
            if largest is None:
                parts += [
                    "reached no verdict on any candidate with a true effect"
                    if unjudged_parts
                    else "had no effect to find"
                ]
            else:
                parts += [
                    "found ",
                    *format_rate_with_interval(largest.figure),
                    " of the candidates (possible effects) at "
                    f"{format_planted_amount(largest.planted_amount)} ({description.amount_label})",
                ]
                smallest_amount = self.smallest_detected[kind]
                for detection_rate in self.detection_rates[kind]:
                    if (
                        detection_rate.planted_amount == smallest_amount
                        and smallest_amount < largest.planted_amount
                    ):
                        parts += [
                            ", ",
                            *format_rate_with_interval(detection_rate.figure),
                            f" of those at {smallest_amount:g}",
                        ]
            if unjudged_parts:
                parts += [", while ", *unjudged_parts]
            if kind in self.false_alarm_rates:
                parts += [
                    ", and reported an effect for ",
                    *format_rate_with_interval(self.false_alarm_rates[kind]),
                    " of those without one",
                ]
            if kind in self.coverage_rates:
                parts += [
                    "; its 95 % intervals covered the true value in ",
                    *format_rate_with_interval(self.coverage_rates[kind]),
                ]
                if incomparable_count := self.add_missing_interval_count_figure(kind):
                    parts += [
                        ", not counting ",
                        ShortFigure(incomparable_count),
                        " candidates that lack a two-sided interval, a known true value, or both",
                    ]
            paragraphs.append(
                Paragraph(
                    [
                        *parts,
                        ". The models trained on these corpora are small; error rates for other "
                        "models and text may differ.",
                    ]
                )
            )
        return paragraphs


def format_planted_amount(planted_amount: float) -> str:
    """Format copies as whole numbers and shares with three digits."""
    return (
        f"{planted_amount:,.0f}"
        if planted_amount == int(planted_amount)
        else f"{planted_amount:.3g}"
    )


def format_rate_with_interval(figure: Figure) -> list[InlineElement]:
    """Return a rate with its interval, where it has one."""
    return [ShortFigure(figure), "" if figure.low is None else f" ({figure.interval_or_dash})"]


def describe_missing_error_rates(
    studies: Mapping[str, Artifact], audits: Iterable[str]
) -> list[list[InlineElement]]:
    """Return what a card says of audits whose error rates are not known.

    Args:
        studies: The known error rates by audit.
        audits: The audits of the card.
    """
    if not studies:
        return [
            [
                "The error rates of these audits are not known, because this store has no study "
                "of their current versions. To measure them, run hallmark study."
            ]
        ]
    unknown_titles = [
        AUDIT_DESCRIPTIONS[audit].title
        for audit in audits
        if audit in AUDIT_DESCRIPTIONS and audit not in studies
    ]
    if not unknown_titles:
        return []
    return [[f"The error rates of these audits are not known: {', '.join(unknown_titles)}."]]


def describe_measured_audits(kinds: Iterable[str]) -> str:
    """Return a sentence that names the audits that a study measured, out of all audits.

    Args:
        kinds: The kinds of candidates that have any result.
    """
    kinds_by_audit = group_kinds_by_audit(kinds)
    measured = [
        f"{description.title} ({', '.join(CANDIDATE_KINDS[kind].title for kind in measured_kinds)})"
        for audit, description in AUDIT_DESCRIPTIONS.items()
        if (measured_kinds := kinds_by_audit.get(audit))
    ]
    return (
        f"The study measured {len(measured)} of {len(AUDIT_DESCRIPTIONS)} audits: "
        f"{'; '.join(measured)}. The error rates of the other audits are not known."
    )


def group_kinds_by_audit(kinds: Iterable[str]) -> dict[str, list[str]]:
    """Group kinds of candidates by the audit that judges them."""
    kinds_by_audit: dict[str, list[str]] = {}
    for kind in kinds:
        kinds_by_audit.setdefault(AUDIT_BY_CANDIDATE_KIND[kind], []).append(kind)
    return kinds_by_audit


def group_unmeasured_audits_by_reason(kinds: Iterable[str]) -> dict[str, list[str]]:
    """Group the titles of the audits that a study did not measure by the reason.

    Args:
        kinds: The kinds of candidates that have any result.
    """
    measured_audits = group_kinds_by_audit(kinds)
    titles_by_reason: dict[str, list[str]] = {}
    for audit, description in AUDIT_DESCRIPTIONS.items():
        if audit not in measured_audits:
            reason = (
                "No candidate of this study could be judged."
                if audit in AUDIT_BY_CANDIDATE_KIND.values()
                else description.not_studied_because or NO_PLANTED_EFFECT
            )
            titles_by_reason.setdefault(reason, []).append(description.title)
    return titles_by_reason


__all__ = [
    "CANDIDATE_KINDS",
    "ERROR_RATES",
    "DetectionRate",
    "ErrorRates",
    "describe_measured_audits",
    "describe_missing_error_rates",
    "format_rate_with_interval",
    "group_unmeasured_audits_by_reason",
]
