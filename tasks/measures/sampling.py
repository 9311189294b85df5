"""Documents drawn from a corpus by a hash of their ids: the same whatever the order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from hashlib import blake2b

import pyarrow.compute as pc

from tasks.contract import Table


def sample_documents(
    documents: Table, split: str, count: int, least: int, key: str, tokens: Callable[[str], int]
) -> list[tuple[bytes, str]]:
    """Ids and texts of ``count`` documents of a split, at most, that were not planted and have at
    least so many tokens, of which none is shorter than a byte; the first by a hash that ``key``
    names. Holds only those in memory, and counts the tokens of no others than might be chosen."""
    if not count:
        return []
    chosen: list[tuple[int, bytes, str]] = []  # a heap: the largest draw first
    name = key.encode()[:64]
    for batch in documents.batches(["doc_id", "source", "text", "split"]):
        inside = pc.and_(
            pc.equal(batch["split"], split),
            pc.greater_equal(pc.binary_length(batch["text"]), least),
        )
        planted = pc.starts_with(batch["source"], "planted/")
        batch = batch.filter(pc.and_not(inside, planted))
        for doc_id, text in zip(batch["doc_id"], batch["text"], strict=True):
            digest = blake2b(doc_id.as_py(), digest_size=8, key=name).digest()
            draw = -int.from_bytes(digest, "big")
            drawn = len(chosen) < count or draw > chosen[0][0]
            if drawn and tokens(text.as_py()) >= least:
                heapq.heappush(chosen, (draw, doc_id.as_py(), text.as_py()))
                if len(chosen) > count:
                    heapq.heappop(chosen)
    return [(doc_id, text) for _, doc_id, text in sorted(chosen, reverse=True)]
