"""Seconds and memory of every corpus stage as a corpus grows, and on several mappers.

    python -m benchmarks.curation --data FOLDER [--times 1 10 1] [--workers 2] [--mapper processes]
    python -m benchmarks.curation --data FOLDER --books 50 500

FOLDER holds text corpora (jsonl, csv, parquet, txt, plain or packed). They are written as one jsonl
file a copy; each copy has its words replaced by others of the same corpus, chosen by a hash, so
that lengths in words, repetitions and near copies stay what they are, no document occurs twice, and
the larger corpus is of the same kind as the smaller one. Each size runs in a process of its own,
all stages behind one another in a fresh store; a size that is named more than once is run as often
and stands with its median, since a machine's speed drifts. Prints a table: seconds at each size,
their ratio over the ratio of the bytes, and the peak memory of the process and of its largest
worker. With ``--books`` it is so many documents of 5 MB instead, words of the corpus drawn by a
seed. No process may hold more than 256 files open, but on Ray.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import zstandard


def texts(folder: Path) -> Iterator[str]:
    """The documents of a folder of corpora: a paragraph, a row or a line each."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        name = path.name
        if name.endswith(".gz"):
            data, name = gzip.decompress(data), name[:-3]
        elif name.endswith(".zst"):
            data, name = zstandard.ZstdDecompressor().decompressobj().decompress(data), name[:-4]
        if name.endswith(".jsonl"):
            yield from (json.loads(line)["text"] for line in data.splitlines() if line.strip())
        elif name.endswith(".csv"):
            for row in csv.DictReader(io.StringIO(data.decode())):
                yield row["text"]
        elif name.endswith(".parquet"):
            yield from pq.read_table(path, columns=["text"])["text"].to_pylist()
        elif name.endswith(".txt"):
            yield from (t for t in data.decode().split("\n\n") if t.strip())


def write_copy(documents: list[str], vocabulary: list[str], number: int, path: Path) -> None:
    """One copy of the corpus, with other words."""
    chosen: dict[str, str] = {}

    def other(word: str) -> str:
        if word not in chosen:
            digest = hashlib.blake2b(f"{number} {word}".encode(), digest_size=8).digest()
            chosen[word] = vocabulary[int.from_bytes(digest, "big") % len(vocabulary)]
        return chosen[word]

    with path.open("w", encoding="utf-8") as file:
        for text in documents:
            text = " ".join(other(word) for word in text.split(" "))
            file.write(json.dumps({"text": text}) + "\n")


def write_books(vocabulary: list[str], count: int, folder: Path, size: int = 5_000_000) -> None:
    """Books of ``size`` bytes, one a file: words drawn by the book's number."""
    words = np.array([word.encode() for word in vocabulary if word], object)
    for number in range(count):
        drawn = np.random.default_rng(number).integers(len(words), size=size // 4)
        text = b" ".join(words[drawn])[:size].decode(errors="ignore")
        path = folder / f"book-{number}.jsonl"
        path.write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")


def measure(folder: Path, store: Path, workers: int, mapper: str, until: str) -> dict[str, Any]:
    """Run the corpus stages over the jsonl files of a folder; seconds by stage, and memory."""
    from hallmark.flows.config import load_config
    from hallmark.flows.curation import curate_corpus
    from hallmark.flows.training import train_model
    from hallmark.tasks.contract import (
        Event,
        LastStageReached,
        Session,
        Store,
        make_mapper,
        open_session,
    )

    if mapper == "processes":  # Ray's own servers hold more
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    source = {"kind": "jsonl", "name": "corpus", "path": str(folder)}
    config = load_config({"name": "growth", "ingest": {"sources": [source]}})
    seconds: dict[str, float] = {}
    rows: dict[str, int] = {}

    def listen(event: Event) -> None:
        if event.kind == "done":
            seconds[event.label] = event.seconds
            if event.artifact and "documents" in event.artifact.tables:
                rows[event.label] = event.artifact["documents"].row_count

    session = Session(Store(store), make_mapper(mapper, workers), listen, until or "pack")
    with open_session(session), suppress(LastStageReached):
        train_model(config, curate_corpus(config))
    peak = {
        "process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "worker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
    }
    return {"seconds": seconds, "peak_mb": peak, "documents": rows}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--times", type=int, nargs="+", default=[1, 10])
    arguments.add_argument("--books", type=int, nargs="+", default=[])
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--mapper", default="processes")
    arguments.add_argument("--until", default="")
    arguments.add_argument("--measure", nargs=2, type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.measure:
        found = measure(*given.measure, given.workers, given.mapper, given.until)
        print(json.dumps(found))
        return
    documents = [text for text in texts(given.data) if text.strip()]
    vocabulary = sorted({word for text in documents for word in text.split(" ")})
    # Of each size its bytes, and what was measured each time.
    sizes: dict[int, int] = {}
    results: dict[int, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="hallmark-growth-") as scratch:
        for turn, times in enumerate(given.books or given.times):
            folder = Path(scratch) / f"corpus-{times}"
            if times not in sizes:
                folder.mkdir()
                if given.books:
                    write_books(vocabulary, times, folder)
                else:
                    for number in range(times):
                        write_copy(documents, vocabulary, number, folder / f"copy-{number}.jsonl")
                sizes[times] = sum(path.stat().st_size for path in folder.iterdir())
            begin = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.curation", "--data", str(given.data)]
            command += ["--workers", str(given.workers), "--mapper", given.mapper]
            command += ["--until", given.until] if given.until else []
            command += ["--measure", str(folder), str(Path(scratch) / f"store-{turn}")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            found = json.loads(done.stdout)
            results.setdefault(times, []).append(found)
            many = times if given.books else len(documents) * times
            print(
                f"{many:,} documents, {sizes[times] / 1e6:.0f} MB: "
                f"{time.perf_counter() - begin:.1f} s in all, peak {found['peak_mb']} MiB",
                flush=True,
            )
    print_table(sizes, results)


def print_table(sizes: dict[int, int], results: dict[int, list[dict[str, Any]]]) -> None:
    """Median seconds of each stage by size; those of the last size over those of the first, over
    the ratio of their bytes."""
    print(f"{'stage':<20}" + "".join(f"{f'x{times}':>10}" for times in sizes) + f"{'growth':>10}")
    first, last = next(iter(sizes)), [*sizes][-1]
    for stage in results[first][0]["seconds"]:
        seconds = {
            times: statistics.median(one["seconds"].get(stage, math.nan) for one in found)
            for times, found in results.items()
        }
        growth = seconds[last] / seconds[first] / (sizes[last] / sizes[first])
        each = "".join(f"{seconds[times]:>9.1f}s" for times in sizes)
        print(f"{stage:<20}{each}{growth:>10.2f}")


if __name__ == "__main__":
    main()
