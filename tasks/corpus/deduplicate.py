"""Deduplicate: of texts that are the same, one stays.

Texts are compared after NFKC normalisation, lower-casing and collapsing of white space. What is
alike, but not the same, is the work of ``deduplicate_near.py``.

Memory: about 120 bytes a document.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tasks.contract import DOCUMENTS, ID, LEDGER, Part, Table, Tables, Work, ids, stage, together
from tasks.corpus.duplicates import (
    STANDING,
    KeeperConfig,
    Verdict,
    by_rank,
    clusters,
    first_of_equals,
    halves,
    rulings,
    standing,
    write_part,
)
from tasks.measures.words import normalise


class DeduplicateConfig(KeeperConfig):
    """Which of the copies stays."""


#: With the hash of the normalised text.
SKETCHES = pa.schema([*STANDING, pa.field("exact", ID)])


def sketch(part: Part, config: DeduplicateConfig, out: Tables) -> None:
    """What must be known of each document of a part to judge it."""
    for batch in part.batches(["doc_id", "cluster", "source", "text"]):
        texts = normalise(batch["text"]).cast(pa.large_binary())
        columns = {**standing(batch, config.prefer), "exact": ids(texts.to_pylist())}
        out.spill("sketches", SKETCHES).write(columns)


def judge(known: pa.Table) -> Verdict:
    """known: SKETCHES of all documents."""
    place = np.arange(len(known))
    rank = np.empty(len(known), np.int64)
    rank[by_rank(known)] = place
    first = first_of_equals(halves(known["exact"]), rank)
    twin = np.where(first == place, -1, first)
    none = np.empty(0, np.int64)
    return Verdict(twin, np.ones(len(twin)), clusters(known, twin, none, none))


@stage(
    tables={"documents": DOCUMENTS, "ledger": LEDGER},
    libraries=["numpy", "scipy"],
    determinism="exact",
)
def deduplicate(documents: Table, config: DeduplicateConfig, work: Work) -> None:
    """Hash the documents part by part, judge them together, write what stays part by part."""
    parts = documents.parts
    known = together(work.map(sketch, parts, config), "sketches", SKETCHES)
    work.parts(write_part, rulings(parts, known["doc_id"], judge(known)), "exact duplicate", 1.0)
