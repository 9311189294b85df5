"""Remove near duplicates with rensa or datasketch, for ``benchmarks.duplicates``.

    python minhash_libraries.py SOURCE.parquet KEPT.parquet LIBRARY

It runs in its own environment. Neither library computes shingles or reads files; both are done here
in plain Python.
"""

import json
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

SHINGLE_WORDS, BANDS, ROWS_PER_BAND, THRESHOLD = 5, 14, 8, 0.8
PERMUTATIONS = BANDS * ROWS_PER_BAND


class Document(NamedTuple):
    document_id: str
    shingles: list[str]


def split_into_shingles(text: str) -> list[str]:
    words = text.lower().split()
    count = max(1, len(words) - SHINGLE_WORDS + 1)
    return [" ".join(words[start : start + SHINGLE_WORDS]) for start in range(count)]


def read_documents(source: str) -> Iterator[Document]:
    for batch in pq.ParquetFile(source).iter_batches(columns=["id", "text"]):
        for document_id, text in zip(
            batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True
        ):
            yield Document(document_id, split_into_shingles(text))


def deduplicate_with_rensa(source: str) -> list[str]:
    """Return the ids of the documents that rensa keeps."""
    from rensa import RMinHashDeduplicator

    deduplicator = RMinHashDeduplicator(
        threshold=THRESHOLD, num_perm=PERMUTATIONS, use_lsh=True, num_bands=BANDS
    )
    kept_ids: list[str] = []
    buffer: list[Document] = []

    def flush() -> None:
        is_kept = deduplicator.add_pairs(iter(buffer))
        kept_ids.extend(d.document_id for d, keep in zip(buffer, is_kept, strict=True) if keep)
        buffer.clear()

    for document in read_documents(source):
        buffer.append(document)
        if len(buffer) == 10_000:
            flush()
    flush()
    return kept_ids


def deduplicate_with_datasketch(source: str) -> list[str]:
    """Return the ids of the documents that datasketch keeps."""
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(num_perm=PERMUTATIONS, params=(BANDS, ROWS_PER_BAND))
    kept_ids = []
    for document in read_documents(source):
        sketch = MinHash(num_perm=PERMUTATIONS)
        sketch.update_batch([shingle.encode() for shingle in document.shingles])
        if not index.query(sketch):
            index.insert(document.document_id, sketch)
            kept_ids.append(document.document_id)
    return kept_ids


def main(source: str, kept: str, library: str) -> None:
    deduplicate = {"rensa": deduplicate_with_rensa, "datasketch": deduplicate_with_datasketch}
    start = time.perf_counter()
    kept_ids = deduplicate[library](source)
    pq.write_table(pa.table({"id": kept_ids}), kept)
    print(json.dumps({"seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main(*sys.argv[1:])
