"""How much of a source is taken: a share of its documents, or so many of them, by a hash of their
ids: whichever file, order or worker they come from, and the same ones as a source grows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.corpus.reading.blocking import BlockConfig, blocked
from tasks.corpus.reading.records import Run, halves
from tasks.corpus.reading.sources import Source

BLOCKED = "blocked document"
WEIGHT, CAP = "left out by weight", "left out by cap"


@dataclass(frozen=True)
class Quotas:
    """Of each source that is limited, the hash from which on its documents are left out."""

    weights: Mapping[str, int]
    caps: Mapping[str, int]
    block: BlockConfig
    purged: frozenset[bytes] = frozenset()  # from the store

    def reasons(self, rows: pa.Table) -> pa.Array:
        """Why each record is removed, "" if it is kept, with what can only be said of an id."""
        reasons = rows["reason"].combine_chunks()
        reasons = pc.if_else(
            pa.array(denied(rows["identity"], self.block, self.purged)), BLOCKED, reasons
        )
        hashes = halves(rows["identity"])[:, 1]
        for limits, reason in ((self.weights, WEIGHT), (self.caps, CAP)):
            for name, limit in limits.items():
                over = pa.array(hashes >= limit)
                here = pc.and_(pc.equal(rows["source"].combine_chunks(), name), over)
                reasons = pc.if_else(pc.and_(here, pc.equal(reasons, "")), reason, reasons)
        return reasons


def is_blocked(reasons: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether a record is on any list: of it neither text is kept nor a hash, for that of a short
    text can be guessed."""
    return pc.starts_with(reasons, "blocked ")


def denied(ids: pa.ChunkedArray, block: BlockConfig, purged: frozenset[bytes]) -> np.ndarray:
    """Which of these ids are on the block list, or were purged from the store."""
    documents = blocked(block).documents | purged
    if not documents:
        return np.zeros(len(ids), bool)
    return np.array([doc_id in documents for doc_id in ids.to_pylist()], bool)


def settle(
    runs: list[tuple[Run, np.ndarray | None]],
    sources: Mapping[str, Source],
    block: BlockConfig,
    purged: frozenset[bytes] = frozenset(),
) -> tuple[Quotas, int]:
    """The quotas, and the bytes of text that are kept under them.

    runs: each with which of its records are the first of their ids; None: all.
    """
    weights = {n: int(s.weight * 2**64) for n, s in sources.items() if s.weight < 1}
    size = 0
    hashes: dict[str, list[np.ndarray]] = defaultdict(list)  # of sources with a cap
    sizes: dict[str, list[np.ndarray]] = defaultdict(list)
    for run, own in runs:
        known = run.columns(["source", "reason", "bytes"])
        name = known["source"][0].as_py()  # all of a run are of one source
        kept = pc.equal(known["reason"], "").to_numpy()
        kept &= True if own is None else own
        number = known["bytes"].to_numpy()
        if blocked(block).documents or purged or name in weights or sources[name].cap:
            ids = run.columns(["identity"])["identity"]
            kept &= ~denied(ids, block, purged)
            low = halves(ids)[:, 1]
            if name in weights:
                kept &= low < weights[name]
            if sources[name].cap:
                hashes[name].append(low[kept])
                sizes[name].append(number[kept])
                continue
        size += int(number[kept].sum())
    caps = {}
    for name, found in hashes.items():
        low, number, cap = np.concatenate(found), np.concatenate(sizes[name]), sources[name].cap
        if cap and len(low) > cap:
            caps[name] = int(np.partition(low, cap)[cap])
            number = number[low < caps[name]]
        size += int(number.sum())
    return Quotas(weights, caps, block, purged), size
