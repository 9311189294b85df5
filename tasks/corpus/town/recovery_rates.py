"""Compare the ledgers and signals of the corpus stages with the truth about a town."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow.compute as pc

from hallmark.tasks.contract import Artifact, Row
from hallmark.tasks.corpus.group_effects import REMOVING_ACTIONS
from hallmark.tasks.measures.personal.types import PERSONAL_DATA_TYPES
from hallmark.tasks.measures.statistics import wilson_interval

#: The kind of copies that a stage removes.
COPY_KIND_BY_STAGE = {"deduplicate": "exact", "deduplicate_near": "near"}


def compute_share_with_interval(hits: int, n: int) -> Row:
    """Compute hits / n with its Wilson interval; None for n = 0."""
    low, high = wilson_interval(hits, n) if n else (None, None)
    share = hits / n if n else None
    return {"hits": hits, "n": n, "share": share, "low": low, "high": high}


@dataclass
class RecoveryEvaluator:
    """Evaluate the stages of a run against the truth about one town."""

    source_name: str
    near_threshold: float  # similarity from which near-duplicates should be found
    length_bounds: Sequence[int]  # characters; limits of the length classes of rude documents
    truth_by_id: dict[bytes, Row]
    planted_spans: list[Row]
    history: Mapping[str, Artifact]

    def __post_init__(self) -> None:
        ledger_columns = ["doc_id", "source", "action", "reason", "matched_doc_id", "span_hash"]
        self.ledger_by_stage: dict[str, list[Row]] = {}
        #: The documents that reached each stage.
        self.arrived_by_stage: dict[str, set[bytes]] = {}
        present_ids = set(self.truth_by_id)
        for stage_label, artifact in self.history.items():
            self.arrived_by_stage[stage_label] = set(present_ids)
            if artifact.stage == "ingest":  # shares, limits and block lists remove documents
                rows = artifact["documents"].read(["doc_id", "source"])
                rows = rows.filter(pc.equal(rows["source"], self.source_name))
                present_ids &= set(rows["doc_id"].to_pylist())
            elif "ledger" in artifact.tables:
                rows = artifact["ledger"].read(ledger_columns)
                rows = rows.filter(pc.equal(rows["source"], self.source_name))
                self.ledger_by_stage[stage_label] = rows.to_pylist()
                present_ids -= {
                    r["doc_id"]
                    for r in self.ledger_by_stage[stage_label]
                    if r["action"] in REMOVING_ACTIONS
                }

    def build_row(self, stage: str, target: str, measure: str, hits: int, n: int) -> Row:
        """Build a row of the ``detection_rates`` table."""
        identifying_fields = {
            "source": self.source_name,
            "stage": stage,
            "target": target,
            "measure": measure,
        }
        return identifying_fields | compute_share_with_interval(hits, n)

    def evaluate_all_stages(self) -> Iterator[Row]:
        """Yield the rows of the ``detection_rates`` table in the order of the stages."""
        for stage_label, artifact in self.history.items():
            if artifact.stage in COPY_KIND_BY_STAGE:
                yield from self.evaluate_copy_removal(
                    stage_label, COPY_KIND_BY_STAGE[artifact.stage]
                )
            signals = artifact["signals"].columns if "signals" in artifact.tables else {}
            if "language" in signals:
                yield from self.evaluate_language_labels(stage_label, artifact)
            if "identities" in signals:
                yield from self.evaluate_people_mentions(stage_label, artifact)
            if any(r["span_hash"] is not None for r in self.ledger_by_stage.get(stage_label, ())):
                yield from self.evaluate_redactions(stage_label)
            flagged_ids = self.find_flagged_ids(stage_label)
            if flagged_ids is not None:
                yield from self.evaluate_toxicity_rules(stage_label, flagged_ids)

    def list_missed_documents(self) -> Iterator[Row]:
        """Yield the rows of the ``missed_documents`` table, those with most rude speech first."""
        for stage_label in self.history:
            flagged_ids = self.find_flagged_ids(stage_label)
            if flagged_ids is None:
                continue
            missed_rows = [
                self.truth_by_id[i]
                for i in self.arrived_by_stage[stage_label] - flagged_ids
                if self.truth_by_id[i]["rude_sentences"]
            ]
            for row in sorted(missed_rows, key=lambda r: (-r["rude_sentences"], r["doc_id"])):
                names = ("doc_id", "source", "rude_sentences", "characters")
                yield {"stage": stage_label} | {name: row[name] for name in names}

    # Duplicates ------------------------------------------------------------------------------

    def evaluate_copy_removal(self, stage_label: str, copy_kind: str) -> Iterator[Row]:
        """Yield recall and precision of the removal of copies.

        A pair is detected if one of its documents was removed as a copy of the other. Only pairs
        whose documents both reached the stage count.
        """
        matched_by_id = {
            r["doc_id"]: r["matched_doc_id"]
            for r in self.ledger_by_stage[stage_label]
            if r["action"] == "removed"
        }
        original_ids = {i: row["original_doc_id"] or i for i, row in self.truth_by_id.items()}
        kind_by_original = {
            row["original_doc_id"]: row["copy_kind"]
            for row in self.truth_by_id.values()
            if row["copy_kind"]
        }
        correct_ids = {
            i
            for i, matched_id in matched_by_id.items()
            if original_ids[i] == original_ids.get(matched_id)
        }
        pairs = [
            row
            for i, row in self.truth_by_id.items()
            if row["copy_kind"] == copy_kind
            and {i, row["original_doc_id"]} <= self.arrived_by_stage[stage_label]
        ]
        if not pairs and not matched_by_id:
            return

        def build_recall_row(target: str, selected_pairs: Sequence[Row]) -> Row:
            hits = sum(
                bool({row["doc_id"], row["original_doc_id"]} & correct_ids)
                for row in selected_pairs
            )
            return self.build_row(stage_label, target, "recall", hits, len(selected_pairs))

        if copy_kind == "exact":
            yield build_recall_row("exact copies", pairs)
        else:
            selected_pairs = [row for row in pairs if row["similarity"] >= self.near_threshold]
            yield build_recall_row(
                f"near copies, similarity at least {self.near_threshold:g}", selected_pairs
            )
            for low, high in pairwise((0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)):
                selected_pairs = [row for row in pairs if low <= row["similarity"] < high]
                if selected_pairs:
                    yield build_recall_row(
                        f"near copies, similarity {low:g} to {min(high, 1):g}", selected_pairs
                    )
        hits = sum(kind_by_original.get(original_ids[i]) == copy_kind for i in correct_ids)
        yield self.build_row(
            stage_label, f"{copy_kind} copies", "precision", hits, len(matched_by_id)
        )

    # Language --------------------------------------------------------------------------------

    def evaluate_language_labels(self, stage_label: str, artifact: Artifact) -> Iterator[Row]:
        """Yield the recall of English; all documents of the town are in English."""
        signals = artifact["signals"].read(["doc_id", "language"])
        language_by_id = dict(
            zip(signals["doc_id"].to_pylist(), signals["language"].to_pylist(), strict=True)
        )
        documents = [row for i, row in self.truth_by_id.items() if i in language_by_id]
        slices = {
            "English": documents,
            "English, dialect": [row for row in documents if row["has_dialect"]],
        }
        slices["English, shorter than 100 characters"] = [
            r for r in documents if r["characters"] < 100
        ]
        for target, rows in slices.items():
            hits = sum(language_by_id[row["doc_id"]] == "en" for row in rows)
            yield self.build_row(stage_label, target, "recall", hits, len(rows))

    # People ----------------------------------------------------------------------------------

    def evaluate_people_mentions(self, stage_label: str, artifact: Artifact) -> Iterator[Row]:
        """Yield recall and precision for the town's peoples, if the signal used their lexicon."""
        signals = artifact["signals"].read(["doc_id", "identities"])
        groups_of_documents = zip(
            signals["doc_id"].to_pylist(), signals["identities"].to_pylist(), strict=True
        )
        groups_by_id = {
            i: set(groups or ()) for i, groups in groups_of_documents if i in self.truth_by_id
        }
        groups = sorted(
            {group for row in self.truth_by_id.values() for group in row["mentioned_groups"]}
        )
        if not set(groups) & {group for detected in groups_by_id.values() for group in detected}:
            return
        for group in groups:
            true_ids = {i for i in groups_by_id if group in self.truth_by_id[i]["mentioned_groups"]}
            detected = {i for i, groups in groups_by_id.items() if group in groups}
            for measure, relevant_ids in (("recall", true_ids), ("precision", detected)):
                yield self.build_row(
                    stage_label, group, measure, len(true_ids & detected), len(relevant_ids)
                )

    # Personal data ---------------------------------------------------------------------------

    def evaluate_redactions(self, stage_label: str) -> Iterator[Row]:
        """Yield recall and precision of the redactions by type.

        A span is detected if the same value was redacted completely and as this type. Values are
        compared by their keyed hashes, because positions change if an earlier stage removed a
        passage. Types that were neither planted nor redacted have no row.
        """
        planted_counts = Counter(
            (row["doc_id"], row["type"], row["span_hash"])
            for row in self.planted_spans
            if row["doc_id"] in self.arrived_by_stage[stage_label]
        )
        redacted_counts = Counter(
            (r["doc_id"], r["reason"], r["span_hash"])
            for r in self.ledger_by_stage[stage_label]
            if r["span_hash"] is not None
        )
        matched_counts = planted_counts & redacted_counts

        def count_spans_of_type(spans: Counter[Any], data_type: str) -> int:
            return sum(
                count for (_, span_type, _), count in spans.items() if span_type == data_type
            )

        for data_type in sorted(
            {data_type for _, data_type, _ in planted_counts | redacted_counts},
            key=PERSONAL_DATA_TYPES.index,
        ):
            hits = count_spans_of_type(matched_counts, data_type)
            yield self.build_row(
                stage_label,
                data_type,
                "recall",
                hits,
                count_spans_of_type(planted_counts, data_type),
            )
            yield self.build_row(
                stage_label,
                data_type,
                "precision",
                hits,
                count_spans_of_type(redacted_counts, data_type),
            )
        yield self.build_row(
            stage_label, "all types", "recall", matched_counts.total(), planted_counts.total()
        )
        yield self.build_row(
            stage_label, "all types", "precision", matched_counts.total(), redacted_counts.total()
        )

    # Rude speech -----------------------------------------------------------------------------

    def find_flagged_ids(self, stage_label: str) -> set[bytes] | None:
        """Return the documents that the toxicity rules of a stage removed, or else tagged.

        Returns:
            None if the stage has no such rule.
        """
        artifact = self.history[stage_label]
        if artifact.stage != "select":
            return None
        rules = {
            action: [
                rule["name"]
                for rule in _get_stage_setting(artifact, "rules", ())
                if rule["signal"] == "toxicity" and rule["action"] == action
            ]
            for action in ("remove", "tag")
        }
        if rules["remove"]:
            return self.find_removed_ids(stage_label, rules["remove"])
        return self.find_tagged_ids(artifact, rules["tag"]) if rules["tag"] else None

    def find_removed_ids(self, stage_label: str, rule_names: Sequence[str]) -> set[bytes]:
        """Return the documents that these rules removed, or would have removed on their own."""
        return {
            row["doc_id"]
            for row in self.ledger_by_stage[stage_label]
            if row["action"] in ("removed", "additional_reason") and row["reason"] in rule_names
        }

    def find_tagged_ids(self, artifact: Artifact, rule_names: Sequence[str]) -> set[bytes]:
        """Return the documents that these rules tagged."""
        rows = artifact["documents"].read(["doc_id", "source", "tags"])
        rows = rows.filter(pc.equal(rows["source"], self.source_name)).to_pylist()
        return {row["doc_id"] for row in rows if {*(row["tags"] or ())} & {*rule_names}}

    def evaluate_toxicity_rules(self, stage_label: str, flagged_ids: set[bytes]) -> Iterator[Row]:
        """Yield recall, precision and false alarms of the toxicity rules.

        Args:
            flagged_ids: The documents that the rules removed or tagged.
        """
        documents = [
            row for i, row in self.truth_by_id.items() if i in self.arrived_by_stage[stage_label]
        ]
        rude_documents = [r for r in documents if r["rude_sentences"]]
        civil_documents = [r for r in documents if not r["rude_sentences"]]

        def build_rule_row(target: str, measure: str, relevant_rows: Sequence[Row]) -> Row:
            hits = sum(r["doc_id"] in flagged_ids for r in relevant_rows)
            return self.build_row(stage_label, target, measure, hits, len(relevant_rows))

        yield build_rule_row("rude speech", "recall", rude_documents)
        length_edges = (0, *sorted(self.length_bounds), 1 << 62)
        for low, high in pairwise(length_edges):
            in_range = [r for r in rude_documents if low < r["characters"] <= high]
            length_text = f"over {low:,}" if high == length_edges[-1] else f"{low:,} to {high:,}"
            yield build_rule_row(f"rude speech, {length_text} characters", "recall", in_range)
        for disguise in sorted({r["disguise"] for r in rude_documents} - {""}):
            disguised = [r for r in rude_documents if r["disguise"] == disguise]
            yield build_rule_row(f"rude speech, {disguise}", "recall", disguised)
        hits = sum(r["doc_id"] in flagged_ids for r in rude_documents)
        yield self.build_row(
            stage_label,
            "rude speech",
            "precision",
            hits,
            len(flagged_ids & self.arrived_by_stage[stage_label]),
        )
        yield build_rule_row("no rude speech", "false alarms", civil_documents)
        benign_features = {
            "dialect": "has_dialect",
            "words that look rude": "has_rude_lookalike",
            "an unsafe passage": "has_unsafe_passage",
            "a mention of the town's peoples": "mentioned_groups",
        }
        for target, feature in benign_features.items():
            yield build_rule_row(
                f"no rude speech, {target}",
                "false alarms",
                [r for r in civil_documents if r[feature]],
            )


def _get_stage_setting(artifact: Artifact, name: str, default: Any) -> Any:
    return artifact.manifest["parts"]["config"].get(name, default)
