"""Compare a corpus that was built in several additions with the same corpus built at once.

    python -m benchmarks.growth --data FOLDER [--steps 3] [--workers 2]

FOLDER holds text corpora, as for ``benchmarks.curation``. A hash assigns its documents to the
steps. Each step is a run that adds to the corpus of the previous one; another run builds the corpus
from all documents at once.

Prints the number of documents in both corpora, and for each document that is in only one of them
why the other corpus does not contain it. For a removed duplicate, the similarity to the document
that it duplicates is computed from the texts. Exits with 1 if this similarity is too low.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.curation import read_texts
from hallmark.flows.config import Config, load_config
from hallmark.flows.corpus import Corpus
from hallmark.flows.curation import curate_corpus
from hallmark.tasks.contract import (
    Artifact,
    LastStageReached,
    Session,
    Store,
    Table,
    make_mapper,
    open_session,
)
from hallmark.tasks.corpus.copies.sketches import compute_shingle_hashes
from hallmark.tasks.measures.normalised_words import normalise_texts

#: The artifacts of a run by the label of their stage.
ArtifactByLabel = dict[str, Artifact]
REMOVING_STAGES = (
    "deduplicate",
    "select",
    "deduplicate_near",
    "deduplicate_redacted",
    "select_scored",
)
NEAR_DUPLICATE = "near duplicate"
DUPLICATE_REASONS = ("exact duplicate", NEAR_DUPLICATE)
NOT_SIMILAR = "NOT SIMILAR"


def build_addition(
    config: Config, earlier: Sequence[ArtifactByLabel], session: Session
) -> ArtifactByLabel:
    """Run the corpus stages of an addition to earlier ones."""
    artifacts: ArtifactByLabel = {}
    session.listener = lambda event: (
        event.artifact and artifacts.update({event.label: event.artifact})
    )
    with open_session(session):
        try:
            curate_corpus(config, Corpus(tuple(earlier)))
        except LastStageReached:
            return artifacts
    raise AssertionError("the session ends at the stage plant_canaries")


def read_rows(
    additions: Sequence[ArtifactByLabel], label: str, table: str, columns: list[str]
) -> pa.Table:
    """Read a table of a stage from all additions."""
    return Table(tuple(artifacts[label] for artifacts in additions), table).read(columns)


def compute_similarity(left: str, right: str, shingle_length: int) -> float:
    """Compute the Jaccard similarity of the shingles of two texts."""
    hashes, offsets = compute_shingle_hashes(
        normalise_texts(pa.array([left, right], pa.large_string())), shingle_length
    )
    a, b = (set(hashes[i:j].tolist()) for i, j in pairwise(offsets))
    return len(a & b) / len(a | b)


class Removal(NamedTuple):
    """Why a document was removed."""

    reason: str
    duplicate_of: bytes | None
    """Id of the document that it duplicates, if it is a duplicate."""


class BuiltCorpus:
    """One of the two corpora, with the removals of its stages."""

    def __init__(self, additions: Sequence[ArtifactByLabel]) -> None:
        documents = read_rows(
            additions, "plant_canaries", "documents", ["doc_id", "split", "text_hash"]
        )
        self.kept = {row["doc_id"]: row for row in documents.to_pylist()}
        # Near duplicates are found in the texts of this stage.
        raw = read_rows(additions, "ingest", "documents", ["doc_id", "text"])
        self.texts = dict(zip(*(c.to_pylist() for c in raw.columns), strict=True))
        self.removals: dict[bytes, Removal] = {}
        for label in REMOVING_STAGES:
            ledger = read_rows(
                additions, label, "ledger", ["doc_id", "action", "reason", "matched_doc_id"]
            )
            for row in ledger.filter(pc.equal(ledger["action"], "removed")).to_pylist():
                self.removals[row["doc_id"]] = Removal(row["reason"], row["matched_doc_id"])

    def explain_removal(self, doc_id: bytes, text: str, config: Config) -> str:
        """Explain why a document is not in this corpus."""
        reason, duplicate_of = self.removals[doc_id]
        if reason not in DUPLICATE_REASONS or duplicate_of is None:
            return reason
        near_config = config.deduplicate_near
        similarity = compute_similarity(text, self.texts[duplicate_of], near_config.shingle_length)
        if reason == NEAR_DUPLICATE and similarity < near_config.similarity_threshold:
            return f"{NOT_SIMILAR}: {reason} with similarity {similarity:.3f}"
        last = self.find_last_duplicate(duplicate_of)
        if last in self.kept:
            return f"{reason} of a document that was kept"
        return f"{reason} of a document that was removed later: {self.removals[last].reason}"

    def find_last_duplicate(self, doc_id: bytes) -> bytes:
        """Follow the chain of duplicates from a document to one that is not itself a duplicate."""
        while doc_id not in self.kept:
            removal = self.removals[doc_id]
            if removal.reason not in DUPLICATE_REASONS or removal.duplicate_of in (None, doc_id):
                break
            doc_id = removal.duplicate_of
        return doc_id


def compare_corpora(grown: BuiltCorpus, at_once: BuiltCorpus, config: Config) -> Counter[str]:
    """Count the documents by the corpora that contain them, and by the reason of a removal."""
    common_ids = grown.kept.keys() & at_once.kept.keys()
    counts = Counter({"in both": len(common_ids)})
    for doc_id in common_ids:
        a, b = grown.kept[doc_id], at_once.kept[doc_id]
        counts["in both, in another split"] += a["split"] != b["split"]
        counts["in both, with another text"] += a["text_hash"] != b["text_hash"]
    for name, containing, missing in (("grown", grown, at_once), ("at once", at_once, grown)):
        for doc_id in containing.kept.keys() - missing.kept.keys():
            explanation = missing.explain_removal(doc_id, containing.texts[doc_id], config)
            counts[f"only {name}; removed from the other: {explanation}"] += 1
    return counts


def load_growth_config(path: Path) -> Config:
    source = {"kind": "jsonl", "name": "s", "path": str(path), "key_field": "key"}
    return load_config({"name": "growth", "ingest": {"sources": [source]}})


def assign_documents_to_steps(folder: Path, step_count: int) -> list[list[str]]:
    """Return the documents of each step as lines of JSON with a key and a text."""
    lines_by_step: list[list[str]] = [[] for _ in range(step_count)]
    for number, text in enumerate(read_texts(folder)):
        key = hashlib.blake2b(f"{number}".encode(), digest_size=8)
        step = int.from_bytes(key.digest(), "big") % step_count
        lines_by_step[step].append(json.dumps({"key": key.hexdigest(), "text": text}))
    return lines_by_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of text corpora")
    parser.add_argument("--steps", type=int, default=3, help="number of additions")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        lines_by_step = assign_documents_to_steps(options.data, options.steps)

        def add_documents(
            lines: list[str], name: str, earlier: Sequence[ArtifactByLabel]
        ) -> ArtifactByLabel:
            path = folder / f"{name}.jsonl"
            path.write_text("\n".join(lines), encoding="utf-8")
            mapper = make_mapper("processes", options.workers)
            session = Session(Store(folder / "store"), mapper, last_stage="plant_canaries")
            start = time.perf_counter()
            artifacts = build_addition(load_growth_config(path), earlier, session)
            seconds = time.perf_counter() - start
            kept_count = artifacts["plant_canaries"]["documents"].row_count
            print(f"{name}: {len(lines):,} documents, {kept_count:,} kept, {seconds:.1f} s")
            (search,) = artifacts["deduplicate_near"]["search_summary"].read().to_pylist()
            print(f"   {search}")
            return artifacts

        additions: list[ArtifactByLabel] = []
        for number, lines in enumerate(lines_by_step, 1):
            additions.append(add_documents(lines, f"step {number}", additions))
        all_lines = [line for lines in lines_by_step for line in lines]
        at_once = add_documents(all_lines, "at once", [])
        config = load_growth_config(folder / "at once.jsonl")
        counts = compare_corpora(BuiltCorpus(additions), BuiltCorpus([at_once]), config)
    for outcome, count in sorted(counts.items()):
        print(f"{count:8,}  {outcome}")
    sys.exit(any(NOT_SIMILAR in outcome for outcome in counts))


if __name__ == "__main__":
    main()
