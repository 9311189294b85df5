"""Near deduplication with rensa or datasketch: SOURCE.parquet KEPT.parquet LIBRARY, in an
environment of its own. What both lack, shingles and files, is done in plain Python.
"""

import json
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

WORDS, BANDS, ROWS, THRESHOLD = 5, 14, 8, 0.8


def shingles(text: str) -> list[str]:
    words = text.lower().split()
    return [" ".join(words[at : at + WORDS]) for at in range(max(1, len(words) - WORDS + 1))]


def documents(source: str) -> Iterator[tuple[str, list[str]]]:
    for batch in pq.ParquetFile(source).iter_batches(columns=["id", "text"]):
        for name, text in zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True):
            yield name, shingles(text)


def by_rensa(source: str) -> list[str]:
    from rensa import RMinHashDeduplicator

    found = RMinHashDeduplicator(
        threshold=THRESHOLD, num_perm=BANDS * ROWS, use_lsh=True, num_bands=BANDS
    )
    kept: list[str] = []
    held: list[tuple[str, list[str]]] = []

    def flush() -> None:
        stays = found.add_pairs(iter(held))
        kept.extend(name for (name, _), stay in zip(held, stays, strict=True) if stay)
        held.clear()

    for pair in documents(source):
        held.append(pair)
        if len(held) == 10_000:
            flush()
    flush()
    return kept


def by_datasketch(source: str) -> list[str]:
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
    kept = []
    for name, parts in documents(source):
        sketch = MinHash(num_perm=BANDS * ROWS)
        sketch.update_batch([part.encode() for part in parts])
        if not index.query(sketch):
            index.insert(name, sketch)
            kept.append(name)
    return kept


def main(source: str, kept: str, library: str) -> None:
    begin = time.perf_counter()
    names = {"rensa": by_rensa, "datasketch": by_datasketch}[library](source)
    pq.write_table(pa.table({"id": names}), kept)
    print(json.dumps({"seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main(*sys.argv[1:])
