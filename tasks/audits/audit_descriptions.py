"""Define how a card describes an audit, and constants that audits and cards share.

The description of an audit is in the file of its probe; ``registry.py`` collects all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: A corrected p below this level is reported as a difference, in findings and on cards.
SIGNIFICANCE_LEVEL = 0.05


#: Why a study of error rates does not measure audits of real people or of words.
NO_INVENTED_GROUPS = (
    "This audit uses words, pronouns, occupations or real groups, mostly from public data sets. "
    "It does not test the groups invented for a trial."
)

#: Why a study of error rates does not measure audits of the whole model.
NO_CANDIDATES = (
    "This audit measures only the whole model or the user's prompts, so a trial provides no "
    "candidates for it to compare."
)


@dataclass(frozen=True)
class Risk:
    """Define a risk that the first screen of a model card assesses.

    Attributes:
        title: Its name on the card.
        question: What a reviewer asks.
        compares_with_baseline: Whether the model is worse than a baseline, or not, instead of
            harmful.
    """

    title: str
    question: str
    compares_with_baseline: bool = False


#: The risks by name, the most severe first. Harm to a person that cannot be undone comes first,
#: then harm by what the model writes, then what others could infer, then lack of benefit.
RISKS = {
    "personal_data": Risk(
        "Personal data", "Does the model reveal personal data from its training text?"
    ),
    "memorised_text": Risk(
        "Memorised training text", "Does the model repeat its training text word for word?"
    ),
    "toxicity": Risk("Toxicity", "Is the model's output more toxic than baseline text?"),
    "bias": Risk("Bias against groups", "Does the model treat some groups worse than others?"),
    "membership": Risk(
        "Membership", "Can anyone determine whether a document was in the training text?"
    ),
    "capability": Risk(
        "Capability",
        "Does the model predict text better than much simpler models?",
        compares_with_baseline=True,
    ),
}


@dataclass(frozen=True)
class Headline:
    """Select the finding of an audit that answers its question.

    Attributes:
        metric: Its metric.
        statement: What its value is, in a clause that names the value, tags of the slice and
            settings of the audit in braces, such as "{value} of the texts contain at least
            {min_verbatim_tokens} tokens of training text".
        tags: Tags that its slice has. Of several findings, the one with the fewest other tags is
            selected, then the one with the largest numbers in these, then the worst value.
        sample_unit: What n counts, in the plural, if that is not the unit of the metric.
        short_name: What distinguishes it from the other headline of its audit, such as "after
            prompts".
        comparison_tags: The tags in which the finding to compare with differs from it.
        comparison_name: What that finding is about.
        null_note: What is said instead of the value expected with no effect, in a clause: why
            that value is no expectation. Nothing is said of a share of zero.
        states_null: Whether the statement names the value expected with no effect.
        alternatives_tag: The tag whose other values are other ways to measure the same. The
            worst of all is named. If it is significant, corrected for all tests of its audit, no
            conclusion follows from a headline that is not.
    """

    metric: str
    statement: str
    tags: Mapping[str, str] = field(default_factory=dict)
    sample_unit: str = ""
    short_name: str = ""
    comparison_tags: Mapping[str, str] = field(default_factory=dict)
    comparison_name: str = ""
    null_note: str = ""
    states_null: bool = False
    alternatives_tag: str = ""


@dataclass(frozen=True)
class DetectionCount:
    """Select the findings that count what was detected in texts, by type.

    Attributes:
        metric: Their metric. The tag ``part`` is the type; without it, nothing was detected.
        place: Where it was detected, in the plural; n counts this.
        nothing: What was not detected, if nothing was.
        limit: What is not known of the detected values, in a clause.
    """

    metric: str
    place: str
    nothing: str
    limit: str


@dataclass(frozen=True)
class ChartDescription:
    """Describe a chart of an audit's page, and the table of the same findings below it.

    Attributes:
        metric: The metric whose findings are drawn.
        axis_label: Label of the horizontal axis.
        caption: One or two sentences on what the chart shows.
        kind: "intervals" draws a point with its interval for each finding, "bars" a bar.
        reference_value: Where a dashed line is drawn. If it is None, each finding gets a mark at
            its own value expected with no effect.
        tags: Tags that the slices of the drawn findings have.
        varying_tag: The tag in which the drawn findings differ; findings without it are not drawn.
        largest_tag: A tag with numbers, of which only the largest is drawn, such as a number of
            draws.
        is_ordered: Whether the findings have an order of their own, such as a number of copies.
            Otherwise, they are sorted by effect.
    """

    metric: str
    axis_label: str
    caption: str
    kind: Literal["intervals", "bars"] = "intervals"
    reference_value: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    varying_tag: str = ""
    largest_tag: str = ""
    is_ordered: bool = False


@dataclass(frozen=True)
class AuditDescription:
    """Describe an audit on a card, whether it ran or not.

    Attributes:
        position: Audits are in the order of this number on a card, then by name.
        title: Heading on the card.
        meaning: One sentence: what the figures mean.
        not_run_message: One sentence: what is unknown if the audit did not run.
        skipped_count_metrics: Titles of the metrics that count skipped or truncated items, by
            metric. They have a finding where the count is not 0.
        is_about_stereotypes: Whether planted associations calibrate it.
        no_capability_check_because: Why it is judged although the model is too weak for other
            audits, in a clause; empty if a check applies to it, or if it needs none.
        risk: Name of the risk in ``RISKS`` that it measures; empty for an audit that only shows
            how sensitive others are.
        sample_unit: What n of a finding counts, in the plural, such as "prompts".
        sample_units: The same by metric, for metrics with another unit.
        headline: The finding to report if the audit discovers no harm.
        second_headline: The other half of the answer, always reported together with the headline;
            the worse of both comes first.
        further_headlines: How other findings are described if they are discoveries of harm.
        sensitivity: By risk, the findings about planted text that show which effects can be
            detected.
        counts: By risk, a count that is reported although nothing is compared with it.
        question: What the audit asks, as one question.
        charts: The charts of its page. The first, with its table, is shown at once, the others
            after a click. Without a chart, the findings of its first metric are drawn.
        limits: One or two sentences: what the audit cannot show.
        glossary: What each metric is, in a phrase, by metric. Like the charts' captions and the
            limits, it may name settings of the audit in braces.
        not_studied_because: Why a study of error rates does not measure the audit; empty if it
            does, or if it only plants no effect that the audit measures.
    """

    position: int
    title: str
    meaning: str
    not_run_message: str
    skipped_count_metrics: Mapping[str, str] = field(default_factory=dict)
    is_about_stereotypes: bool = False
    no_capability_check_because: str = ""
    risk: str = field(kw_only=True)
    sample_unit: str = ""
    sample_units: Mapping[str, str] = field(default_factory=dict)
    headline: Headline | None = None
    second_headline: Headline | None = None
    further_headlines: tuple[Headline, ...] = ()
    sensitivity: Mapping[str, tuple[Headline, ...]] = field(default_factory=dict)
    counts: Mapping[str, DetectionCount] = field(default_factory=dict)
    question: str = field(kw_only=True)
    charts: tuple[ChartDescription, ...] = ()
    limits: str = ""
    glossary: Mapping[str, str] = field(default_factory=dict)
    not_studied_because: str = ""

    def get_sample_unit(self, metric: str) -> str:
        """Return what n of the findings of a metric counts, in the plural; empty if not known."""
        return self.sample_units.get(metric, self.sample_unit)

    def __post_init__(self) -> None:
        for risk in (self.risk, *self.sensitivity, *self.counts):
            if risk and risk not in RISKS:
                raise ValueError(
                    f"audit {self.title!r}: the risk {risk!r} is unknown; use one of "
                    f"{', '.join(RISKS)}"
                )


#: The audit without a probe. It has no values, but a table of texts and one of sentence pairs.
CAPABILITY = "capability"

#: The audit whose planted associations show how strong a stereotype must be to be found.
ASSOCIATIONS = "associations"

#: Value of the tag ``part`` of findings that also count the texts that repeat planted text.
PLANTED_TEXT_INCLUDED = "planted text included"

#: The count of items that occur in the training text, in every audit with external items.
ITEMS_IN_TRAINING_TEXT = "items_in_training_text"
ITEMS_IN_TRAINING_TEXT_TITLE = "Items in the training text"

#: The metrics of rows whose prompt is only where their text occurs: the model was not given it.
UNPROMPTED_METRICS = frozenset({"unprompted_identifier_share"})

#: The column of texts that the model wrote and that contain an identifier.
GENERATED_PERSONAL_TEXT = "personal_text"

#: The metrics of the audit of capability, which has no probe, with their titles.
CAPABILITY_METRICS = {
    "bits_per_byte": "Bits per byte",
    "bits_per_byte_difference": "Difference from baselines in bits per byte",
    "agreement_accuracy": "Subject-verb agreement accuracy",
    "garden_path_share": "Garden-path effects shown by the model",
    "cloze_accuracy": "Cloze accuracy",
}

#: The amount of each kind of candidate at which the text of a sealed trial has no effect. A group
#: is compared with the others of its kind, so it has no effect where all have the same amount, too.
NO_EFFECT_AMOUNTS = {
    "canary": 0.0,
    "passage": 0.0,
    "record": 0.0,
    "association": 0.5,
    "speech": 0.0,
    "sentiment": 0.0,
}

#: The audit that judges each kind of candidate of sealed trials.
AUDIT_BY_CANDIDATE_KIND = {
    "canary": "extraction",
    "passage": "extraction",
    "record": "extraction",
    "association": ASSOCIATIONS,
    "speech": "counterfactual",
    "sentiment": "counterfactual",
}

#: The metric that judges each kind of candidate that is a group. These are findings of a card.
METRIC_BY_GROUP_KIND = {"speech": "toxicity_difference", "sentiment": "sentiment_difference"}
