"""Measure time and memory of every corpus stage for corpora of several sizes.

    python -m benchmarks.curation --data FOLDER [--copies 1 10 1] [--workers 2] [--mapper processes]
    python -m benchmarks.curation --data FOLDER --books 50 500

FOLDER holds text corpora (jsonl, csv, parquet, txt, plain or compressed). A corpus of n copies is
written as n jsonl files. In each copy every word is replaced by another word of the corpus, chosen
by a hash, so that lengths in words, repetitions and near duplicates are preserved, no document
occurs twice, and larger corpora are of the same kind as smaller ones. With ``--books`` the corpora
are documents of 5 MB instead: random words of the corpus.

Each size runs in its own process, all stages in a new store. A size that is given more than once
runs as often, and its median counts, because the speed of a machine varies. Prints a table: seconds
at each size, growth (the ratio of seconds divided by the ratio of bytes), and the peak memory of
the process and of its largest worker. No process may open more than 256 files, except with Ray.
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
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import zstandard

BOOK_BYTES = 5_000_000


class Measurement(NamedTuple):
    """What one run of the stages needed."""

    seconds_by_stage: dict[str, float]
    peak_mib_by_process: dict[str, int]
    """Peak memory of the "process" and of its largest "worker"."""
    document_count_by_stage: dict[str, int]


def read_texts(folder: Path) -> Iterator[str]:
    """Yield the documents of a folder of corpora: a paragraph, a row or a line each."""
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
    """Write a copy of the corpus in which words are replaced by other words.

    Args:
        documents: The documents of the corpus.
        vocabulary: The words that replace others.
        number: Number of the copy, which decides the replacements.
        path: The jsonl file.
    """
    replacements: dict[str, str] = {}

    def replace_word(word: str) -> str:
        if word not in replacements:
            digest = hashlib.blake2b(f"{number} {word}".encode(), digest_size=8).digest()
            replacements[word] = vocabulary[int.from_bytes(digest, "big") % len(vocabulary)]
        return replacements[word]

    with path.open("w", encoding="utf-8") as file:
        for text in documents:
            text = " ".join(replace_word(word) for word in text.split(" "))
            file.write(json.dumps({"text": text}) + "\n")


def write_books(vocabulary: list[str], count: int, folder: Path) -> None:
    """Write documents of BOOK_BYTES bytes, one file each: random words, seeded by the number."""
    words = np.array([word.encode() for word in vocabulary if word], object)
    for number in range(count):
        indices = np.random.default_rng(number).integers(len(words), size=BOOK_BYTES // 4)
        text = b" ".join(words[indices])[:BOOK_BYTES].decode(errors="ignore")
        path = folder / f"book-{number}.jsonl"
        path.write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")


def measure_stages(
    corpus: Path, store: Path, *, workers: int, mapper: str, last_stage: str
) -> Measurement:
    """Run the corpus stages on the jsonl files of a folder.

    Args:
        corpus: The folder.
        store: Folder of the new store.
        workers: Number of workers.
        mapper: "processes" or "ray".
        last_stage: Label of the last stage that runs.
    """
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

    if mapper == "processes":  # Ray's servers open more files
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    source = {"kind": "jsonl", "name": "corpus", "path": str(corpus)}
    config = load_config({"name": "growth", "ingest": {"sources": [source]}})
    seconds: dict[str, float] = {}
    document_counts: dict[str, int] = {}

    def listen(event: Event) -> None:
        if event.kind == "done":
            seconds[event.label] = event.seconds
            if event.artifact and "documents" in event.artifact.tables:
                document_counts[event.label] = event.artifact["documents"].row_count

    session = Session(Store(store), make_mapper(mapper, workers), listen, last_stage)
    with open_session(session), suppress(LastStageReached):
        train_model(config, curate_corpus(config))
    peaks = {
        "process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "worker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
    }
    return Measurement(seconds, peaks, document_counts)


def measure_in_new_process(options: argparse.Namespace, corpus: Path, store: Path) -> Measurement:
    """Run ``measure_stages`` in a separate process."""
    command = [sys.executable, "-m", "benchmarks.curation", "--data", str(options.data)]
    command += ["--workers", str(options.workers), "--mapper", options.mapper]
    command += ["--until", options.until, "--measure", str(corpus), str(store)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(result.stderr)
    return Measurement(*json.loads(result.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of text corpora")
    parser.add_argument(
        "--copies", type=int, nargs="+", default=[1, 10], help="sizes, in copies of the corpus"
    )
    parser.add_argument(
        "--books", type=int, nargs="+", default=[], help="sizes, in documents of 5 MB"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--mapper", default="processes", help="processes or ray")
    parser.add_argument("--until", default="pack", help="last stage that runs")
    parser.add_argument("--measure", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measurement = measure_stages(
            *options.measure,
            workers=options.workers,
            mapper=options.mapper,
            last_stage=options.until,
        )
        print(json.dumps(measurement))
        return
    documents = [text for text in read_texts(options.data) if text.strip()]
    vocabulary = sorted({word for text in documents for word in text.split(" ")})
    bytes_by_size: dict[int, int] = {}
    measurements_by_size: dict[int, list[Measurement]] = {}
    with tempfile.TemporaryDirectory(prefix="hallmark-growth-") as scratch:
        for turn, size in enumerate(options.books or options.copies):
            corpus = Path(scratch) / f"corpus-{size}"
            if size not in bytes_by_size:
                corpus.mkdir()
                if options.books:
                    write_books(vocabulary, size, corpus)
                else:
                    for number in range(size):
                        write_copy(documents, vocabulary, number, corpus / f"copy-{number}.jsonl")
                bytes_by_size[size] = sum(path.stat().st_size for path in corpus.iterdir())
            start = time.perf_counter()
            measurement = measure_in_new_process(options, corpus, Path(scratch) / f"store-{turn}")
            measurements_by_size.setdefault(size, []).append(measurement)
            document_count = size if options.books else len(documents) * size
            print(
                f"{document_count:,} documents, {bytes_by_size[size] / 1e6:.0f} MB: "
                f"{time.perf_counter() - start:.1f} s in total, peak "
                f"{measurement.peak_mib_by_process} MiB",
                flush=True,
            )
    print_table(bytes_by_size, measurements_by_size)


def print_table(
    bytes_by_size: dict[int, int], measurements_by_size: dict[int, list[Measurement]]
) -> None:
    """Print the median seconds of each stage by size, and its growth.

    The growth is the ratio of the seconds at the last and the first size, divided by the ratio of
    their bytes.
    """
    header = "".join(f"{f'x{size}':>10}" for size in bytes_by_size)
    print(f"{'stage':<20}{header}{'growth':>10}")
    first, last = next(iter(bytes_by_size)), [*bytes_by_size][-1]
    for stage in measurements_by_size[first][0].seconds_by_stage:
        seconds = {
            size: statistics.median(m.seconds_by_stage.get(stage, math.nan) for m in measurements)
            for size, measurements in measurements_by_size.items()
        }
        byte_ratio = bytes_by_size[last] / bytes_by_size[first]
        growth = seconds[last] / seconds[first] / byte_ratio
        cells = "".join(f"{seconds[size]:>9.1f}s" for size in bytes_by_size)
        print(f"{stage:<20}{cells}{growth:>10.2f}")


if __name__ == "__main__":
    main()
