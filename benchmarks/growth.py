"""A corpus grown in steps beside one built at once.

    python -m benchmarks.growth --data FOLDER [--steps 3] [--workers 2]

FOLDER holds text corpora, as for ``benchmarks.curation``. Its documents are dealt out to the steps
by a hash; each step is a run that adds to the corpus of the one before, another run has them all.
Prints how many documents both corpora hold, and for each document that only one of them holds why
the other one has not: whether a twin stands there for it, and the true Jaccard similarity to it,
computed from the texts. Exits with 1 if a document left as a copy has no such twin.
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

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.curation import texts
from hallmark.flows.config import Config, load_config
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

Made = dict[str, Artifact]
LEFT = ("deduplicate", "select", "deduplicate_near", "deduplicate_redacted", "select_scored")
COPIES = ("exact duplicate", "near duplicate")


def built(config: Config, earlier: Sequence[Made], session: Session) -> Made:
    """The corpus stages of an addition, by label."""
    made: Made = {}
    session.listener = lambda event: event.artifact and made.update({event.label: event.artifact})
    with open_session(session):
        try:
            curate_corpus(config, earlier)
        except LastStageReached:
            return made
    raise AssertionError("the session ends at the stage plant_canaries")


def rows(additions: Sequence[Made], label: str, table: str, columns: list[str]) -> pa.Table:
    return Table(tuple(made[label] for made in additions), table).read(columns)


def similarity(one: str, other: str, length: int) -> float:
    hashes, offsets = compute_shingle_hashes(
        normalise_texts(pa.array([one, other], pa.large_string())), length
    )
    a, b = (set(hashes[i:j].tolist()) for i, j in pairwise(offsets))
    return len(a & b) / len(a | b)


class Side:
    """One of the two corpora, with what each of its stages says of a document."""

    def __init__(self, additions: Sequence[Made]) -> None:
        found = rows(additions, "plant_canaries", "documents", ["doc_id", "split", "text_hash"])
        self.kept = {row["doc_id"]: row for row in found.to_pylist()}
        raw = rows(additions, "ingest", "documents", ["doc_id", "text"])  # as near copies see it
        self.texts = dict(zip(*(c.to_pylist() for c in raw.columns), strict=True))
        self.why: dict[bytes, tuple[str, bytes | None]] = {}
        for label in LEFT:
            gone = rows(
                additions, label, "ledger", ["doc_id", "action", "reason", "matched_doc_id"]
            )
            for row in gone.filter(pc.equal(gone["action"], "removed")).to_pylist():
                self.why[row["doc_id"]] = (row["reason"], row["matched_doc_id"])

    def cause(self, doc_id: bytes, text: str, config: Config) -> str:
        """Why a document is not in this corpus."""
        reason, twin = self.why[doc_id]
        if reason not in COPIES or twin is None:
            return reason
        found = similarity(text, self.texts[twin], config.deduplicate_near.shingle_length)
        if reason == COPIES[1] and found < config.deduplicate_near.similarity_threshold:
            return f"NO TWIN: {reason} at {found:.3f}"
        while twin not in self.kept and self.why[twin][0] in COPIES and self.why[twin][1] != twin:
            twin = self.why[twin][1] or twin  # its twin is a copy of another one
        if twin in self.kept:
            return f"{reason} of one that stayed"
        return f"{reason} of one that left later: {self.why[twin][0]}"


def compare(grown: Side, once: Side, config: Config) -> Counter[str]:
    both = grown.kept.keys() & once.kept.keys()
    counts = Counter({"in both": len(both)})
    for doc_id in both:
        a, b = grown.kept[doc_id], once.kept[doc_id]
        counts["in both, on another side of the split"] += a["split"] != b["split"]
        counts["in both, with another text"] += a["text_hash"] != b["text_hash"]
    for name, here, there in (("grown", grown, once), ("at once", once, grown)):
        for doc_id in here.kept.keys() - there.kept.keys():
            cause = there.cause(doc_id, here.texts[doc_id], config)
            counts[f"only {name}; in the other: {cause}"] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dealt: list[list[str]] = [[] for _ in range(given.steps)]
        for number, text in enumerate(texts(given.data)):
            key = hashlib.blake2b(f"{number}".encode(), digest_size=8)
            step = int.from_bytes(key.digest(), "big") % given.steps
            dealt[step].append(json.dumps({"key": key.hexdigest(), "text": text}))

        def added(lines: list[str], name: str, earlier: Sequence[Made]) -> Made:
            (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
            source = {"kind": "jsonl", "name": "s", "path": str(folder / f"{name}.jsonl")}
            nonlocal config
            config = load_config(
                {"name": "growth", "ingest": {"sources": [source | {"key_field": "key"}]}}
            )
            mapper = make_mapper("processes", given.workers)
            start = time.perf_counter()
            made = built(
                config,
                earlier,
                Session(Store(folder / "store"), mapper, last_stage="plant_canaries"),
            )
            rows = made["plant_canaries"]["documents"].row_count
            print(f"{name}: {len(lines):,} in, {rows:,} stay, {time.perf_counter() - start:.1f} s")
            (search,) = made["deduplicate_near"]["search_summary"].read().to_pylist()
            print(f"   {search}")
            return made

        config: Config
        grown: list[Made] = []
        for number, lines in enumerate(dealt, 1):
            grown.append(added(lines, f"step {number}", grown))
        once = added([line for lines in dealt for line in lines], "at once", [])
        counts = compare(Side(grown), Side([once]), config)
    for what, count in sorted(counts.items()):
        print(f"{count:8,}  {what}")
    sys.exit(any("NO TWIN" in what for what in counts))


if __name__ == "__main__":
    main()
