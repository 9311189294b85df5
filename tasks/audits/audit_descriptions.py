"""Define how a card describes an audit, and constants that audits and cards share.

The description of an audit is in the file of its probe; ``registry.py`` collects all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: A corrected p below this level is reported as a difference, in findings and on cards.
SIGNIFICANCE_LEVEL = 0.05


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
    """

    position: int
    title: str
    meaning: str
    not_run_message: str
    skipped_count_metrics: Mapping[str, str] = field(default_factory=dict)
    is_about_stereotypes: bool = False


#: The audit without a probe. It has no values, but a table of texts and one of sentence pairs.
CAPABILITY = "capability"

#: The count of items that occur in the training text, in every audit with external items.
ITEMS_IN_TRAINING_TEXT = "items_in_training_text"
ITEMS_IN_TRAINING_TEXT_TITLE = "Items in the training text"

#: The metrics of the audit of capability, which has no probe, with their titles.
CAPABILITY_METRICS = {
    "bits_per_byte": "Bits per byte",
    "bits_per_byte_difference": "Difference in bits per byte from baselines",
    "agreement_accuracy": "Subject-verb agreement accuracy",
    "garden_path_share": "Share of garden-path effects",
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
    "association": "associations",
    "speech": "counterfactual",
    "sentiment": "counterfactual",
}

#: The metric that judges each kind of candidate that is a group. These are findings of a card.
METRIC_BY_GROUP_KIND = {"speech": "toxicity_difference", "sentiment": "sentiment_difference"}
