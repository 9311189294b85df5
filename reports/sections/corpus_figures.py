"""Figures of a corpus, computed from its profile and the ledgers of its stages: for both cards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from reports.page.figures import Book, Figure
from reports.page.masking import Masker
from reports.page.planted import PlantedSecret
from tasks.contract import Artifact
from tasks.corpus.rules import tagging_rules
from tasks.corpus.toxicity.actions import explain_action
from tasks.measures.canaries import identifiers
from tasks.measures.heads import HEADS

PROFILE = "profile"

#: The label of the stage whose rules look at scores.
FILTER = "select_scored"

#: Tables of the corpus stages, the profile among them, that cards are made from: all but those
#: that tell the names of input files.
READ = (
    "accounts", "cascade", "composition", "detection", "documents", "duplicates", "errors",
    "examples", "flow", "identities", "ledger", "lengths", "lexicon", "lost", "occupations",
    "pairs", "personal_data", "plants", "published_rules", "rates", "reasons", "recovered",
    "regions", "search", "signals", "sources", "spans", "swaps", "tagged", "thresholds", "toxicity",
    "toxicity_status",
)  # fmt: skip


@dataclass
class CorpusFigures:
    """``history``: the artifacts of the corpus stages by label, in the order they ran."""

    book: Book
    history: dict[str, Artifact]
    lines_shown: int  # of a table

    @property
    def profile(self) -> Artifact:
        return self.book.artifacts[PROFILE]

    def toxicity_rules(self) -> list[str]:
        """The rules that remove documents for a score of a toxicity scorer, by name."""
        scores = [a["signals"] for a in self.history.values() if a.stage == "score_toxicity"]
        heads = {c.name for signals in scores for c in signals.columns.values()
                 if c.unit == "score"}  # fmt: skip
        config = self.history[FILTER].manifest["parts"]["config"] if FILTER in self.history else {}
        return [rule["name"] for rule in config.get("rules", ())
                if rule["signal"] in heads and rule["action"] != "tag"]  # fmt: skip

    def toxicity_actions(self) -> list[tuple[str, str, str]]:
        """Return name, action and reason of the action of each rule over a toxicity score."""
        kinds = [
            artifact.manifest["parts"]["config"]["scorer"]["kind"]
            for artifact in self.history.values()
            if artifact.stage == "score_toxicity"
        ]
        if not kinds or FILTER not in self.history:
            return []
        return [
            (rule["name"], rule["action"], explain_action(rule["action"], kinds[-1]))
            for rule in self.history[FILTER].manifest["parts"]["config"].get("rules", ())
            if rule["signal"] in HEADS
        ]

    def is_tagging(self, stage: str, rule: str) -> bool:
        """Say whether a rule of a stage tags documents and keeps them."""
        return stage in self.history and rule in tagging_rules(self.history[stage])

    def values(self, table: str, column: str) -> list[Any]:
        """The different values of a column of the profile, in the order of their first rows."""
        return pc.unique(self.profile[table].read([column])[column]).to_pylist()

    def sum(self, table: str, column: str, unit: str, label: str, **where: Any) -> Figure:
        name = "-".join([table, column, *(str(value) for value in where.values())])
        return self.book.figure(name, label, unit, (PROFILE, table), where, column=column)

    def few(self, table: str, column: str, weigh: str) -> tuple[list[Any], str]:
        """Return the heaviest values of a column, and a note on how many are not shown.

        Of the groups of people in the table ``identities`` all are returned.
        """
        data = self.profile[table].read([column, weigh])
        sums = data.group_by(column).aggregate([(weigh, "sum")])
        ordered = sums.sort_by([(f"{weigh}_sum", "descending"), (column, "ascending")])
        found = ordered[column].to_pylist()
        limit = len(found) if table == "identities" else self.lines_shown
        note = f"The {limit} largest of {len(found):,}; all are in the table {table}."
        return found[:limit], note if len(found) > limit else ""


def masker_of(history: dict[str, Artifact], threshold: float) -> Masker:
    """Masks what this corpus planted, and looks for personal data where the corpus stages did."""
    regions = {
        row["region"]
        for artifact in history.values()
        if "regions" in artifact.tables
        for row in artifact["regions"].read().to_pylist()
    }
    return Masker(planted_secrets(history), threshold, regions)


def planted_secrets(history: dict[str, Artifact]) -> list[PlantedSecret]:
    """Return the secrets of planted documents, which no page shows, with the text around them.

    The identifiers in the secret of a record are also secrets of their own.
    """
    found: list[PlantedSecret] = []
    for artifact in history.values():
        if "plants" not in artifact.tables or artifact.stage != "plant":
            continue
        columns = ["kind", "text", "prompt", "secret"]
        for row in artifact["plants"].read(columns).to_pylist():
            if secret := row["secret"]:
                before, after = row["prompt"], row["text"][len(row["prompt"] + secret) :]
                found.append(PlantedSecret(secret, before, after))
                for _, start, end in identifiers(secret) if row["kind"] == "record" else ():
                    rest = after if end == len(secret) else ""
                    found.append(PlantedSecret(secret[start:end], before + secret[:start], rest))
    return found
