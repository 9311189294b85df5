"""Sample documents of a corpus by a hash of their ids, independently of their order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

import pyarrow.compute as pc

from hallmark.tasks.contract import Table


class SampledDocument(NamedTuple):
    """A document of a sample."""

    doc_id: bytes
    cluster: bytes
    """Cluster of near-duplicates that the document belongs to."""
    text: str


def sample_documents(
    documents: Table,
    split: str,
    count: int,
    min_tokens: int,
    hash_key: str,
    count_tokens: Callable[[str], int],
) -> list[SampledDocument]:
    """Sample documents of a split that were not planted and have at least `min_tokens` tokens.

    Only the sampled documents are held in memory, and only candidates for the sample are tokenized.

    Args:
        documents: Table with the columns doc_id, cluster, source, text and split.
        split: The split to sample from.
        count: Maximum number of documents.
        min_tokens: Minimum number of tokens. A token is assumed to have at least one byte.
        hash_key: Key of the hash; different keys give independent samples.
        count_tokens: Function that counts the tokens of a text.

    Returns:
        The documents with the smallest hashes, in the order of the hash.
    """
    if not count:
        return []
    heap: list[tuple[int, bytes, bytes, str]] = []  # Negated hashes: the largest hash is on top.
    hash_key_bytes = hash_key.encode()[:64]
    for batch in documents.iter_batches(["doc_id", "cluster", "source", "text", "split"]):
        is_eligible = pc.and_(
            pc.equal(batch["split"], split),
            pc.greater_equal(pc.binary_length(batch["text"]), min_tokens),
        )
        is_planted = pc.starts_with(batch["source"], "planted/")
        batch = batch.filter(pc.and_not(is_eligible, is_planted))
        for doc_id, cluster, text in zip(
            batch["doc_id"], batch["cluster"], batch["text"], strict=True
        ):
            digest = blake2b(doc_id.as_py(), digest_size=8, key=hash_key_bytes).digest()
            hash_rank = -int.from_bytes(digest, "big")
            is_candidate = len(heap) < count or hash_rank > heap[0][0]
            if is_candidate and count_tokens(text.as_py()) >= min_tokens:
                heapq.heappush(heap, (hash_rank, doc_id.as_py(), cluster.as_py(), text.as_py()))
                if len(heap) > count:
                    heapq.heappop(heap)
    return [
        SampledDocument(doc_id, cluster, text)
        for _, doc_id, cluster, text in sorted(heap, reverse=True)
    ]
