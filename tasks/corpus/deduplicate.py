"""Deduplicate: exact and near copies out, one kept of each, and what is alike kept together.

Texts are compared after NFKC normalisation, lower-casing and collapsing of white space.
**Exact** duplicates agree completely then. **Near** duplicates share shingles, stretches of
``shingle_words`` words (Broder 1997): the Jaccard similarity of two sets of shingles is the
share of all their shingles that both have. A text with fewer words is one shingle by itself.
In scripts that leave no space between words every character counts as a word.

Candidates come from MinHash-LSH: ``bands`` × ``rows`` minima of each set; two documents meet
if all rows of any band agree, which at similarity s happens with probability
1 - (1 - s^rows)^bands: with 32 × 4, 0.87 at 0.5, 0.99 at 0.6, 1 - 5e-8 at 0.8. Every candidate
is then verified by its true Jaccard similarity: MinHash decides only which pairs are looked at.

**Who stays** depends on content alone, not on order or shards: from the longest document to
the shortest (then by doc_id), each is removed if one that was kept matches it at ``threshold``
or above. So the twin in the ledger is always in the corpus, at the similarity written there.

**Clusters**, by which the split is made, are the connected components of kept documents over
verified pairs at ``cluster_threshold`` or above, and carry on the clusters that came in. A chain
a - b - c may join a and c that are less alike; it grows through kept documents and verified
pairs only, never through candidates or through documents that were removed.

Memory: 8 × ``bands`` + 100 bytes a document, and 8 bytes for each distinct shingle of the
documents that share a band with another one.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from tasks.contract import (
    DOCUMENTS,
    ID,
    LEDGER,
    Part,
    Shard,
    StageConfig,
    Table,
    Tables,
    Work,
    column,
    ids,
    ledger_rows,
    stage,
    table,
    utf8_bytes,
)


class DeduplicateConfig(StageConfig):
    """What counts as a copy."""

    near: bool = Field(True, description="also look for near duplicates, not for exact ones alone")
    threshold: float = Field(
        0.8, gt=0, le=1, description="Jaccard similarity from which a document is removed"
    )
    cluster_threshold: float = Field(
        0.5, gt=0, le=1, description="similarity from which documents stay on one side of the split"
    )
    shingle_words: int = Field(5, ge=1, le=50, description="words in a shingle")
    bands: int = Field(32, ge=1, le=512, description="bands of MinHash-LSH")
    rows: int = Field(4, ge=1, le=64, description="minima in a band")
    seed: int = Field(1, ge=0, lt=1 << 32, description="seed of the MinHash permutations")
    bucket_limit: int = Field(
        200,
        ge=1,
        description="of the kept documents that agree in a band, how many (the longest) a document "
        "is compared with; bounds the work where a great many are alike, but not alike enough",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.cluster_threshold > self.threshold:
            raise ValueError("cluster_threshold must not be above threshold")
        return self


PAIRS = table(
    "Verified pairs of near copies, from cluster_threshold on.",
    column("left", ID, "id", "the one that comes first in priority; it was kept"),
    column("right", ID, "id", "the other"),
    column("similarity", pa.float64(), "figure", "Jaccard similarity of their shingles",
           unit="share"),
)  # fmt: skip

#: What a shard hands to the merge, a row a document.
SKETCHES = pa.schema(
    [
        ("doc_id", ID),
        ("cluster", ID),
        ("exact", ID),  # hash of the normalised text
        ("bytes", pa.int64()),
        ("bands", pa.list_(pa.uint64())),  # a hash a band; empty without near
        ("shingles", pa.list_(pa.uint64())),  # distinct, ascending
    ]
)

NO_SPACES = r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}])"


# Sketches: pure functions over Arrow batches -----------------------------------------------------


def normalise(texts: pa.Array) -> pa.Array:
    """NFKC, lower case, one space for any white space, none at the ends."""
    plain = pc.utf8_lower(pc.utf8_normalize(texts, "NFKC"))
    words = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(plain))
    return pc.binary_join(words, pa.scalar(" ", pa.large_string()))


def shingles(texts: pa.Array, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Distinct 64-bit shingle hashes of normalised texts.

    Returns (hashes, offsets): those of text i are ``hashes[offsets[i]:offsets[i + 1]]``,
    ascending; no text is without any.
    """
    if pc.any(pc.match_substring_regex(texts, NO_SPACES)).as_py():
        texts = normalise(pc.replace_substring_regex(texts, NO_SPACES, r" \1 "))
    words = pc.utf8_split_whitespace(texts)
    offsets = words.offsets.to_numpy().astype(np.int64)  # (n + 1,)
    hashes = _word_hashes(words.values)[offsets[0] : offsets[-1]]  # (words,)
    offsets -= offsets[0]
    counts = np.diff(offsets)
    # Shingle i begins at word i; those that would run over the end of their text are left out,
    # but for the first of a short text, which ends where the text does.
    text = np.repeat(np.arange(len(counts)), counts)  # (words,)
    left = offsets[1:][text] - np.arange(len(hashes))  # words from here to the end of the text
    whole = left >= np.minimum(length, counts[text])
    mixed = np.zeros(len(hashes), np.uint64)
    for step in range(length):
        inside = left > step
        word = np.zeros(len(hashes), np.uint64)
        word[inside] = hashes[np.flatnonzero(inside) + step]
        mixed = _mix(mixed, word)
    return _distinct(mixed[whole], text[whole], len(counts))


def _word_hashes(words: pa.Array) -> np.ndarray:
    """One uint64 a word; equal words are hashed once."""
    known = words.dictionary_encode()
    digests = [
        hashlib.blake2b(w.encode(), digest_size=8).digest() for w in known.dictionary.to_pylist()
    ]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)[known.indices.to_numpy()]


def _mix(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Fold one array of uint64 into another; the order of folding counts."""
    mixed = (left ^ right) * np.uint64(0x9E3779B97F4A7C15)  # wraps
    return mixed ^ (mixed >> np.uint64(32))


def _distinct(hashes: np.ndarray, text: np.ndarray, texts: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((hashes, text))
    hashes, text = hashes[order], text[order]
    first = np.ones(len(hashes), bool)
    first[1:] = (hashes[1:] != hashes[:-1]) | (text[1:] != text[:-1])
    counts = np.bincount(text[first], minlength=texts)
    return hashes[first], np.concatenate([[0], np.cumsum(counts)])


def band_hashes(hashes: np.ndarray, offsets: np.ndarray, config: DeduplicateConfig) -> np.ndarray:
    """(n, bands) uint64: one hash for the ``rows`` minima of each band."""
    import rensa

    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
        hashes, offsets.astype(np.uint64), config.bands * config.rows, config.seed
    )
    minima = np.array(matrix.to_rows(), np.uint64).reshape(-1, config.bands, config.rows)
    bands = np.zeros(minima.shape[:2], np.uint64)
    for row in range(config.rows):
        bands = _mix(bands, minima[:, :, row])
    return bands


def sketch(shard: Shard, config: DeduplicateConfig, out: Tables) -> None:
    """Shard function: what the merge must know of each document."""
    for batch in shard.batches(["doc_id", "cluster", "text"]):
        texts = normalise(batch["text"])
        n = len(texts)
        none = pa.array([[]] * n, pa.list_(pa.uint64()))
        columns = {"bands": none, "shingles": none}
        if config.near:
            hashes, offsets = shingles(texts, config.shingle_words)
            bands = band_hashes(hashes, offsets, config)
            columns["shingles"] = _lists(hashes, offsets)
            columns["bands"] = _lists(bands.ravel(), np.arange(n + 1) * config.bands)
        out.table("sketches").write(
            {
                "doc_id": batch["doc_id"],
                "cluster": batch["cluster"],
                "exact": ids(texts.cast(pa.large_binary()).to_pylist()),
                "bytes": utf8_bytes(batch["text"]),
                **columns,
            }
        )


def _lists(values: np.ndarray, offsets: np.ndarray) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))


# The merge: who stays ----------------------------------------------------------------------------


@dataclass
class Verdict:
    """For each document, by its place in the input."""

    twin: np.ndarray  # the kept document it matches, -1 if it is kept itself
    similarity: np.ndarray  # to the twin; 1 of kept documents
    exact: np.ndarray  # its normalised text is the twin's
    pairs: list[tuple[int, int, float]]  # verified, see PAIRS


def halves(column: pa.ChunkedArray) -> np.ndarray:
    """16-byte ids as (n, 2) uint64 that sort as the bytes do."""
    buffer = b"".join(column.to_pylist())
    return np.frombuffer(buffer, ">u8").astype(np.uint64).reshape(-1, 2)


def groups(values: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """For each row of values the place of the equal row with the lowest rank.

    values: (n, 2) uint64; rank: (n,) distinct integers.
    """
    order = np.lexsort((rank, values[:, 1], values[:, 0]))
    ordered = values[order]
    new = np.ones(len(order), bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    head = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    first = np.empty(len(order), np.int64)
    first[order] = order[head]
    return first


def priorities(doc_ids: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Rank of each document: the longest first, then the smallest doc_id."""
    order = np.lexsort((doc_ids[:, 1], doc_ids[:, 0], -sizes))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank


def judge(sketches: pa.Table, parts: list[Part], config: DeduplicateConfig) -> Verdict:
    """Who stays. ``sketches`` without the shingles, which are read from ``parts`` at need."""
    rank = priorities(halves(sketches["doc_id"]), sketches["bytes"].to_numpy())
    first = groups(halves(sketches["exact"]), rank)
    place = np.arange(len(rank))
    verdict = Verdict(
        np.where(first == place, -1, first), np.ones(len(rank)), np.ones(len(rank), bool), []
    )
    if config.near:
        alone = np.flatnonzero(first == place)
        chunks = [chunk.flatten().to_numpy() for chunk in sketches["bands"].chunks]
        bands = np.concatenate([np.empty(0, np.uint64), *chunks]).reshape(-1, config.bands)
        buckets = shared_buckets(bands, alone)
        _judge_near(buckets, load_shingles(parts, set(buckets)), rank, config, verdict)
        # Copies of a document that turned out to be a near copy itself go with it.
        lost = (first != place) & (verdict.twin[first] >= 0)
        for name in ("twin", "similarity", "exact"):
            values = getattr(verdict, name)
            values[lost] = values[first[lost]]
    return verdict


def shared_buckets(bands: np.ndarray, members: np.ndarray) -> dict[int, list[int]]:
    """For each member that shares a band with another: the numbers of the shared buckets.

    bands: (n, bands) uint64; a bucket is a band and a hash in it.
    """
    found: dict[int, list[int]] = defaultdict(list)
    start = 0
    for band in range(bands.shape[1]):
        _, bucket, counts = np.unique(bands[members, band], return_inverse=True, return_counts=True)
        shared = counts[bucket] > 1
        for member, number in zip(members[shared].tolist(), bucket[shared].tolist(), strict=True):
            found[member].append(start + number)
        start += len(counts)
    return dict(found)


def load_shingles(parts: list[Part], wanted: set[int]) -> dict[int, np.ndarray]:
    """The shingles of the documents at these places in the input."""
    found: dict[int, np.ndarray] = {}
    start = 0
    for part in parts:
        for batch in part.batches("sketches", ["shingles"]):
            column = batch["shingles"]
            offsets, values = column.offsets.to_numpy(), column.values.to_numpy()
            for row in range(len(batch)):
                if start + row in wanted:
                    found[start + row] = values[offsets[row] : offsets[row + 1]].copy()
            start += len(batch)
    return found


def _judge_near(
    buckets: dict[int, list[int]],
    sets: dict[int, np.ndarray],
    rank: np.ndarray,
    config: DeduplicateConfig,
    verdict: Verdict,
) -> None:
    kept: dict[int, list[int]] = defaultdict(list)  # bucket -> kept documents, best first
    for document in sorted(buckets, key=lambda place: rank[place]):
        met = {other for bucket in buckets[document] for other in kept[bucket]}
        best, twin = 0.0, -1
        for other in sorted(met, key=lambda place: rank[place]):
            similarity = jaccard(sets[other], sets[document], config.cluster_threshold)
            if similarity >= config.cluster_threshold:
                verdict.pairs.append((other, document, similarity))
            if similarity > best:
                best, twin = similarity, other
        if best >= config.threshold:
            verdict.twin[document], verdict.similarity[document] = twin, best
            verdict.exact[document] = False
            continue
        for bucket in buckets[document]:
            if len(kept[bucket]) < config.bucket_limit:
                kept[bucket].append(document)


def jaccard(left: np.ndarray, right: np.ndarray, least: float = 0.0) -> float:
    """|A ∩ B| / |A ∪ B| of two ascending arrays of distinct hashes.

    0 without a closer look where the sizes alone keep it below ``least``.
    """
    if min(len(left), len(right)) < least * max(len(left), len(right)):
        return 0.0
    both = np.concatenate([left, right])
    both.sort(kind="stable")  # two ascending runs: a merge
    common = int(np.count_nonzero(both[1:] == both[:-1]))
    return common / (len(both) - common)


def clusters(sketches: pa.Table, verdict: Verdict) -> pa.Array:
    """The cluster of each document: the smallest doc_id among the kept ones joined with it."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    doc_ids = halves(sketches["doc_id"])
    n = len(doc_ids)
    place = np.arange(n)
    gone = np.flatnonzero(verdict.twin >= 0)
    alike = np.array([p[:2] for p in verdict.pairs if verdict.twin[p[1]] < 0], np.int64).reshape(
        -1, 2
    )
    left = np.concatenate([place, gone, alike[:, 0]])
    right = np.concatenate(
        [groups(halves(sketches["cluster"]), place), verdict.twin[gone], alike[:, 1]]
    )
    graph = coo_array((np.ones(len(left), np.int8), (left, right)), shape=(n, n))
    _, label = connected_components(graph, directed=False)
    rank = np.empty(n, np.int64)  # kept documents first, then by doc_id
    rank[np.lexsort((doc_ids[:, 1], doc_ids[:, 0], verdict.twin >= 0))] = place
    labels = np.stack([label, np.zeros(n)], axis=1).astype(np.uint64)
    return sketches["doc_id"].combine_chunks().take(pa.array(groups(labels, rank)))


# The stage ---------------------------------------------------------------------------------------


@stage(
    tables={"documents": DOCUMENTS, "ledger": LEDGER, "pairs": PAIRS},
    libraries=["rensa", "numpy", "scipy"],
    determinism="exact",
)
def deduplicate(documents: Table, config: DeduplicateConfig, work: Work) -> None:
    """Sketch the documents shard by shard, judge them together, write what stays."""
    parts = work.map(sketch, documents.shards(), config, schemas={"sketches": SKETCHES})
    columns = ["doc_id", "cluster", "exact", "bytes", "bands"]
    schema = pa.schema([SKETCHES.field(name) for name in columns])
    batches = [batch for part in parts for batch in part.batches("sketches", columns)]
    sketches = pa.Table.from_batches(batches, schema)
    verdict = judge(sketches, parts, config)
    cluster = clusters(sketches, verdict)
    doc_ids = sketches["doc_id"].combine_chunks()
    start = 0
    for batch in documents.batches(DOCUMENTS.names):
        stop = start + len(batch)
        _write(batch, verdict, slice(start, stop), doc_ids, cluster[start:stop], config, work)
        start = stop
    left, right, similarity = zip(*verdict.pairs, strict=True) if verdict.pairs else ((), (), ())
    work.table("pairs").write(
        {
            "left": doc_ids.take(pa.array(left, pa.int64())),
            "right": doc_ids.take(pa.array(right, pa.int64())),
            "similarity": similarity,
        }
    )


def _write(
    batch: pa.RecordBatch,
    verdict: Verdict,
    rows: slice,
    doc_ids: pa.Array,
    cluster: pa.Array,
    config: DeduplicateConfig,
    work: Work,
) -> None:
    """Send the documents of a batch, which stand at ``rows`` of the input, to their tables."""
    twin, exact, similarity = verdict.twin[rows], verdict.exact[rows], verdict.similarity[rows]
    gone = twin >= 0
    columns = {name: batch[name] for name in DOCUMENTS.names} | {"cluster": cluster}
    work.table("documents").write(pa.table(columns).filter(pa.array(~gone)))
    out = batch.filter(pa.array(gone))
    work.table("ledger").write(
        ledger_rows(
            "removed",
            np.where(exact[gone], "exact duplicate", "near duplicate").tolist(),
            out["doc_id"],
            out["source"],
            utf8_bytes(out["text"]),
            score=similarity[gone].tolist(),
            threshold=np.where(exact[gone], 1.0, config.threshold).tolist(),
            matched=doc_ids.take(pa.array(twin[gone])),
        )
    )
