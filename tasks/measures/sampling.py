"""Documents drawn from a corpus by a hash of their ids: the same whatever the order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from hashlib import blake2b

import pyarrow.compute as pc

from hallmark.tasks.contract import Table


def sample_documents(
    documents: Table,
    split: str,
    count: int,
    min_tokens: int,
    hash_key: str,
    count_tokens: Callable[[str], int],
) -> list[tuple[bytes, str]]:
    """Ids and texts of ``count`` documents of a split, at most, that were not planted and have at
    least so many tokens, of which none is shorter than a byte; the first by a hash that ``key``
    names. Holds only those in memory, and counts the tokens of no others than might be chosen."""
    if not count:
        return []
    heap: list[tuple[int, bytes, str]] = []  # a heap: the largest draw first
    hash_key_bytes = hash_key.encode()[:64]
    for batch in documents.iter_batches(["doc_id", "source", "text", "split"]):
        is_eligible = pc.and_(
            pc.equal(batch["split"], split),
            pc.greater_equal(pc.binary_length(batch["text"]), min_tokens),
        )
        is_planted = pc.starts_with(batch["source"], "planted/")
        batch = batch.filter(pc.and_not(is_eligible, is_planted))
        for doc_id, text in zip(batch["doc_id"], batch["text"], strict=True):
            digest = blake2b(doc_id.as_py(), digest_size=8, key=hash_key_bytes).digest()
            hash_rank = -int.from_bytes(digest, "big")
            is_candidate = len(heap) < count or hash_rank > heap[0][0]
            if is_candidate and count_tokens(text.as_py()) >= min_tokens:
                heapq.heappush(heap, (hash_rank, doc_id.as_py(), text.as_py()))
                if len(heap) > count:
                    heapq.heappop(heap)
    return [(doc_id, text) for _, doc_id, text in sorted(heap, reverse=True)]
