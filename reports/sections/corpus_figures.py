"""Figures of a corpus, from its profile and the ledgers of its stages.

The datasheet and the model card share them, and the redactor that hides what the corpus planted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow.compute as pc

from hallmark.reports.page.figures import Figure, FigureBook
from hallmark.reports.page.planted_secrets import PlantedSecret
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.sections.row_selection import LimitedSelection
from hallmark.tasks.contract import Artifact
from hallmark.tasks.corpus.selection_rules import read_tagging_rule_names
from hallmark.tasks.measures.canaries import locate_record_identifiers
from hallmark.tasks.measures.toxicity_heads import TOXICITY_HEADS

PROFILE = "profile"

#: Label of the stage whose rules use scores.
SCORE_FILTER = "select_scored"

#: Tables of the corpus stages and the profile that cards are built from. Tables that contain the
#: names of input files are excluded.
CARD_TABLES = (
    "accounts",
    "canaries",
    "cascade",
    "composition",
    "detector_accuracy",
    "detection_rates",
    "documents",
    "duplicates",
    "errors",
    "evaluation_sets",
    "group_removals",
    "group_removals_by_reason",
    "group_sentences",
    "group_sentiment",
    "identities",
    "ledger",
    "ledger_summary",
    "lengths",
    "lexicon_accuracy",
    "lost_duplicate_clusters",
    "metadata_fields",
    "metadata_values",
    "missed_documents",
    "near_copy_recall",
    "occupation_shares",
    "occupations",
    "pairs",
    "personal_data",
    "property_shares",
    "published_rules",
    "regions",
    "removal_rates",
    "removed_examples",
    "search_summary",
    "signals",
    "sources",
    "spans",
    "stage_accounts",
    "swap_differences",
    "tag_counts",
    "threshold_rates",
    "toxicity",
    "toxicity_status",
)


class ToxicityAction(NamedTuple):
    """What a rule on a toxicity score does.

    Attributes:
        rule: The name of the rule.
        action: What it does to a document that meets it: "tag" or "remove".
        scorer_kind: The kind of the scorer that the rule reads.
    """

    rule: str
    action: str
    scorer_kind: str


@dataclass
class CorpusFigures:
    """Adds figures of one corpus to a book.

    Attributes:
        book: The figures of the card.
        stage_artifacts: The artifacts of the corpus stages by label, in the order they ran.
        max_rows: The largest number of rows of a table.
        redactor: Redacts values that the sources give for documents.
    """

    book: FigureBook
    stage_artifacts: dict[str, Artifact]
    max_rows: int
    redactor: Redactor = field(default_factory=Redactor)

    @property
    def profile(self) -> Artifact:
        return self.book.artifacts[PROFILE]

    def list_toxicity_removal_rules(self) -> list[str]:
        """Return the names of the rules that remove documents because of a toxicity score."""
        signal_tables = [
            artifact["signals"]
            for artifact in self.stage_artifacts.values()
            if artifact.stage == "score_toxicity"
        ]
        score_columns = {
            column.name
            for signals in signal_tables
            for column in signals.columns.values()
            if column.unit == "score"
        }
        config = (
            self.stage_artifacts[SCORE_FILTER].manifest["parts"]["config"]
            if SCORE_FILTER in self.stage_artifacts
            else {}
        )
        return [
            rule["name"]
            for rule in config.get("rules", ())
            if rule["signal"] in score_columns and rule["action"] != "tag"
        ]

    def list_toxicity_actions(self) -> list[ToxicityAction]:
        """Return what each rule on a toxicity score does, and its scorer."""
        scorer_kinds = [
            artifact.manifest["parts"]["config"]["scorer"]["kind"]
            for artifact in self.stage_artifacts.values()
            if artifact.stage == "score_toxicity"
        ]
        if not scorer_kinds or SCORE_FILTER not in self.stage_artifacts:
            return []
        return [
            ToxicityAction(rule["name"], rule["action"], scorer_kinds[-1])
            for rule in self.stage_artifacts[SCORE_FILTER]
            .manifest["parts"]["config"]
            .get("rules", ())
            if rule["signal"] in TOXICITY_HEADS
        ]

    def describe_toxicity_outcome(self) -> str:
        """Return what the toxicity rules do to documents: "removed", "tagged", or either."""
        actions = {rule.action for rule in self.list_toxicity_actions()}
        if not actions or len(actions) > 1:
            return "removed or tagged"
        return "tagged" if actions == {"tag"} else "removed"

    def describe_rule_outcome(self) -> str:
        """Return what the rules of all stages do: "removed", or "removed or tagged"."""
        has_tagging_rule = any(map(read_tagging_rule_names, self.stage_artifacts.values()))
        return "removed or tagged" if has_tagging_rule else "removed"

    def is_tagging_rule(self, stage: str, rule: str) -> bool:
        """Return whether a rule of a stage tags documents and keeps them."""
        return stage in self.stage_artifacts and rule in read_tagging_rule_names(
            self.stage_artifacts[stage]
        )

    def list_distinct_values(self, table: str, column: str) -> list[str]:
        """Return the distinct values of a text column, in order of first appearance."""
        values: list[str] = pc.unique(self.profile[table].read([column])[column]).to_pylist()
        return values

    def add_sum_figure(
        self, table: str, column: str, unit: str, label: str, **conditions: Any
    ) -> Figure:
        """Add the sum of ``column`` over the rows of a profile table that meet ``conditions``."""
        figure_id = "-".join([table, column, *(str(value) for value in conditions.values())])
        return self.book.add_computed_figure(
            figure_id, label, unit, (PROFILE, table), conditions, value_column=column
        )

    def redact_value(self, value: str) -> str:
        """Return a value that a source gives for documents as it may be shown, shortened."""
        return self.redactor.redact_by_kind(value, "label", max_characters=100)

    def select_heaviest_values_or_all_identities(
        self, table: str, column: str, weight_column: str
    ) -> LimitedSelection[str]:
        """Return the values of a column with the largest total weight.

        The row limit does not apply to the ``identities`` table: all groups of people are returned.
        """
        weight_rows = self.profile[table].read([column, weight_column])
        sums = weight_rows.group_by(column).aggregate([(weight_column, "sum")])
        ordered = sums.sort_by([(f"{weight_column}_sum", "descending"), (column, "ascending")])
        sorted_values = ordered[column].to_pylist()
        limit = len(sorted_values) if table == "identities" else self.max_rows
        note = (
            f"The table shows {limit} of {len(sorted_values):,} rows, largest first; the "
            f"profile's {table} table lists all of them."
        )
        return LimitedSelection(sorted_values[:limit], note if len(sorted_values) > limit else "")


def build_corpus_redactor(
    corpus_artifacts: dict[str, Artifact], toxicity_threshold: float
) -> Redactor:
    """Return a redactor for the secrets planted in this corpus and for personal data.

    Personal data is searched with the numbering plans of the regions that the corpus stages used.
    """
    regions = {
        row["region"]
        for artifact in corpus_artifacts.values()
        if "regions" in artifact.tables
        for row in artifact["regions"].read().to_pylist()
    }
    return Redactor(collect_planted_secrets(corpus_artifacts), toxicity_threshold, regions)


def collect_planted_secrets(corpus_artifacts: dict[str, Artifact]) -> list[PlantedSecret]:
    """Return the secrets of planted documents, with the text before and after each.

    Each identifier in the secret of a record is also returned as a secret. Passages have none:
    they are documents of the corpus, which are shown if they are harmless.
    """
    secrets: list[PlantedSecret] = []
    for artifact in corpus_artifacts.values():
        if "canaries" not in artifact.tables or artifact.stage != "plant_canaries":
            continue
        columns = ["kind", "text", "prompt", "secret"]
        for row in artifact["canaries"].read(columns).to_pylist():
            if (secret := row["secret"]) and row["kind"] != "passage":
                text_before, text_after = row["prompt"], row["text"][len(row["prompt"] + secret) :]
                secrets.append(PlantedSecret(secret, text_before, text_after))
                for _, start, end in (
                    locate_record_identifiers(secret) if row["kind"] == "record" else ()
                ):
                    text_after_identifier = text_after if end == len(secret) else ""
                    secrets.append(
                        PlantedSecret(
                            secret[start:end], text_before + secret[:start], text_after_identifier
                        )
                    )
    return secrets
