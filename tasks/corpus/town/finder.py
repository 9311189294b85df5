"""Compares the ledgers and signals of the corpus stages with the truth of a town."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow.compute as pc

from tasks.contract import Artifact
from tasks.corpus.people import LEAVING
from tasks.measures.personal.types import TYPES
from tasks.measures.statistics import wilson

Row = dict[str, Any]

#: What kind of copies a stage removes.
COPIES = {"deduplicate": "exact", "deduplicate_near": "near"}


def counted(hits: int, n: int) -> Row:
    low, high = wilson(hits, n) if n else (None, None)
    share = hits / n if n else None
    return {"hits": hits, "n": n, "share": share, "low": low, "high": high}


@dataclass
class Finder:
    """Compares the stages with the truth of one town."""

    source: str
    near: float  # similarity from which a near copy is to be found
    lengths: Sequence[int]  # characters at which rude documents are told apart
    truth: dict[bytes, Row]
    planted: list[Row]
    history: Mapping[str, Artifact]

    def __post_init__(self) -> None:
        names = ["doc_id", "source", "action", "reason", "matched", "digest"]
        self.ledgers: dict[str, list[Row]] = {}
        #: The documents that came to each stage.
        self.came: dict[str, set[bytes]] = {}
        there = set(self.truth)
        for label, artifact in self.history.items():
            self.came[label] = set(there)
            if artifact.stage == "ingest":  # weights, caps and lists of blocked documents
                rows = artifact["documents"].read(["doc_id", "source"])
                rows = rows.filter(pc.equal(rows["source"], self.source))
                there &= set(rows["doc_id"].to_pylist())
            elif "ledger" in artifact.tables:
                rows = artifact["ledger"].read(names)
                rows = rows.filter(pc.equal(rows["source"], self.source))
                self.ledgers[label] = rows.to_pylist()
                there -= {r["doc_id"] for r in self.ledgers[label] if r["action"] in LEAVING}

    def row(self, stage: str, what: str, measure: str, hits: int, n: int) -> Row:
        made = {"source": self.source, "stage": stage, "what": what, "measure": measure}
        return made | counted(hits, n)

    def found(self) -> Iterator[Row]:
        """Rows of the table ``recovered``, in the order of the stages."""
        for label, artifact in self.history.items():
            if artifact.stage in COPIES:
                yield from self.copies(label, COPIES[artifact.stage])
            signals = artifact["signals"].columns if "signals" in artifact.tables else {}
            if "language" in signals:
                yield from self.languages(label, artifact)
            if "identities" in signals:
                yield from self.peoples(label, artifact)
            if any(r["digest"] is not None for r in self.ledgers.get(label, ())):
                yield from self.masks(label)
            if artifact.stage == "select":
                rules = {
                    action: [
                        rule["name"]
                        for rule in _setting(artifact, "rules", ())
                        if rule["signal"] == "toxicity" and rule["action"] == action
                    ]
                    for action in ("remove", "tag")
                }
                if rules["remove"]:
                    yield from self.filter(label, self.removed(label, rules["remove"]))
                elif rules["tag"]:
                    yield from self.filter(label, self.tagged(artifact, rules["tag"]))

    # Duplicates ------------------------------------------------------------------------------

    def copies(self, label: str, kind: str) -> Iterator[Row]:
        """A pair is found where one of the two was removed for the other's sake. Pairs whose two
        documents came to the stage count."""
        gone = {r["doc_id"]: r["matched"] for r in self.ledgers[label] if r["action"] == "removed"}
        family = {i: row["copy_of"] or i for i, row in self.truth.items()}
        kinds = {row["copy_of"]: row["copy"] for row in self.truth.values() if row["copy"]}
        right = {i for i, twin in gone.items() if family[i] == family.get(twin)}
        pairs = [row for i, row in self.truth.items()
                 if row["copy"] == kind and {i, row["copy_of"]} <= self.came[label]]  # fmt: skip
        if not pairs and not gone:
            return

        def recall(what: str, chosen: Sequence[Row]) -> Row:
            hits = sum(bool({row["doc_id"], row["copy_of"]} & right) for row in chosen)
            return self.row(label, what, "recall", hits, len(chosen))

        if kind == "exact":
            yield recall("exact copies", pairs)
        else:
            chosen = [row for row in pairs if row["similarity"] >= self.near]
            yield recall(f"near copies, similarity from {self.near:g}", chosen)
            for low, high in pairwise((0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)):
                chosen = [row for row in pairs if low <= row["similarity"] < high]
                if chosen:
                    yield recall(f"near copies, similarity {low:g} to {min(high, 1):g}", chosen)
        hits = sum(kinds.get(family[i]) == kind for i in right)
        yield self.row(label, f"{kind} copies", "precision", hits, len(gone))

    # Language --------------------------------------------------------------------------------

    def languages(self, label: str, artifact: Artifact) -> Iterator[Row]:
        """All of the town's documents are in English."""
        said = artifact["signals"].read(["doc_id", "language"])
        known = dict(zip(said["doc_id"].to_pylist(), said["language"].to_pylist(), strict=True))
        here = [row for i, row in self.truth.items() if i in known]
        slices = {"English": here, "English, dialect": [row for row in here if row["dialect"]]}
        slices["English, shorter than 100 characters"] = [r for r in here if r["characters"] < 100]
        for what, rows in slices.items():
            hits = sum(known[row["doc_id"]] == "en" for row in rows)
            yield self.row(label, what, "recall", hits, len(rows))

    # People ----------------------------------------------------------------------------------

    def peoples(self, label: str, artifact: Artifact) -> Iterator[Row]:
        """The town's peoples, where the signal was made with their lexicon."""
        said = artifact["signals"].read(["doc_id", "identities"])
        known = zip(said["doc_id"].to_pylist(), said["identities"].to_pylist(), strict=True)
        named = {i: set(groups or ()) for i, groups in known if i in self.truth}
        groups = sorted({group for row in self.truth.values() for group in row["groups"]})
        if not set(groups) & {group for found in named.values() for group in found}:
            return
        for group in groups:
            there = {i for i in named if group in self.truth[i]["groups"]}
            found = {i for i, groups in named.items() if group in groups}
            for measure, among in (("recall", there), ("precision", found)):
                yield self.row(label, group, measure, len(there & found), len(among))

    # Personal data ---------------------------------------------------------------------------

    def masks(self, label: str) -> Iterator[Row]:
        """A span is found where the same value was masked, whole and as this type. Values are
        compared by their keyed hashes: places move where a stage before took out a stretch. Of a
        type nothing of which was planted or found nothing is told."""
        there = Counter((row["doc_id"], row["type"], row["digest"]) for row in self.planted
                        if row["doc_id"] in self.came[label])  # fmt: skip
        found = Counter((r["doc_id"], r["reason"], r["digest"]) for r in self.ledgers[label]
                        if r["digest"] is not None)  # fmt: skip
        both = there & found

        def total(spans: Counter[Any], kind: str) -> int:
            return sum(count for (_, type_, _), count in spans.items() if type_ == kind)

        for kind in sorted({kind for _, kind, _ in there | found}, key=TYPES.index):
            hits = total(both, kind)
            yield self.row(label, kind, "recall", hits, total(there, kind))
            yield self.row(label, kind, "precision", hits, total(found, kind))
        yield self.row(label, "all types", "recall", both.total(), there.total())
        yield self.row(label, "all types", "precision", both.total(), found.total())

    # Rude speech -----------------------------------------------------------------------------

    def removed(self, label: str, rules: Sequence[str]) -> set[bytes]:
        """Return the documents that rules removed, or would have, had no other rule done so."""
        return {
            row["doc_id"]
            for row in self.ledgers[label]
            if row["action"] in ("removed", "also") and row["reason"] in rules
        }

    def tagged(self, artifact: Artifact, rules: Sequence[str]) -> set[bytes]:
        """Return the documents that rules tagged."""
        rows = artifact["documents"].read(["doc_id", "source", "tags"])
        rows = rows.filter(pc.equal(rows["source"], self.source)).to_pylist()
        return {row["doc_id"] for row in rows if {*(row["tags"] or ())} & {*rules}}

    def filter(self, label: str, taken: set[bytes]) -> Iterator[Row]:
        """Yield what the rules over toxicity found: ``taken``, the documents they removed or
        tagged."""
        here = [row for i, row in self.truth.items() if i in self.came[label]]
        rude, civil = [r for r in here if r["rude"]], [r for r in here if not r["rude"]]

        def row(what: str, measure: str, among: Sequence[Row]) -> Row:
            hits = sum(r["doc_id"] in taken for r in among)
            return self.row(label, what, measure, hits, len(among))

        yield row("rude speech", "recall", rude)
        edges = (0, *sorted(self.lengths), 1 << 62)
        for low, high in pairwise(edges):
            some = [r for r in rude if low < r["characters"] <= high]
            until = f"over {low:,}" if high == edges[-1] else f"{low:,} to {high:,}"
            yield row(f"rude speech, {until} characters", "recall", some)
        hits = sum(r["doc_id"] in taken for r in rude)
        yield self.row(label, "rude speech", "precision", hits, len(taken & self.came[label]))
        yield row("no rude speech", "false alarms", civil)
        others = {"dialect": "dialect", "words that look rude": "lookalike",
                  "an unsafe passage": "unsafe", "a people of the town": "groups"}  # fmt: skip
        for what, name in others.items():
            yield row(f"no rude speech, {what}", "false alarms", [r for r in civil if r[name]])


def _setting(artifact: Artifact, name: str, default: Any) -> Any:
    return artifact.manifest["parts"]["config"].get(name, default)
