"""Measure the index of training text: time and memory to build it, and time to trace a text.

    python -m benchmarks.text_index [MEGABYTES]
    python -m benchmarks.text_index --store FOLDER

The first form writes documents with so many megabytes of text (1000), of words that are drawn with
the frequencies of Zipf's law from 50,000 invented ones; every tenth document quotes a passage of an
earlier one. It builds the index and traces texts of 500 characters, which consist of new words and
of passages of documents. The first round reads the index from the disk, the second from memory. The
occurrences of the rarest spans are compared with a search of the complete text.

The second form traces such texts in the newest trained model of a store, as the command does: with
redacted documents and the steps that read them, once the index is built.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hallmark.flows.checkpoint_resolution import resolve_checkpoint
from hallmark.flows.runs import open_store
from hallmark.flows.text_trace import TextTracer
from hallmark.tasks.audits.text_index import TextIndex, open_text_index
from hallmark.tasks.audits.training_spans import find_training_spans
from hallmark.tasks.contract import (
    DOCUMENTS,
    Session,
    StageConfig,
    StageContext,
    Store,
    TableWriters,
    fill_document_columns,
    hash_texts,
    hash_to_ids,
    open_session,
    stage,
)

VOCABULARY_SIZE, WORDS_PER_DOCUMENT, QUOTED_WORDS = 50_000, 300, 40
DOCUMENTS_PER_BATCH = 4096
QUERY_COUNT, QUERY_CHARACTERS = 50, 500
#: Number of texts of which spans are compared with a search of the complete text.
CHECKED_QUERIES = 5


class SyntheticConfig(StageConfig):
    """Settings of the synthetic documents."""

    megabytes: float


def iter_texts(megabytes: float) -> Iterator[list[str]]:
    """Yield batches of texts."""
    rng, written_bytes = np.random.default_rng(0), 0
    letters = np.array(list("aabcdeeefghiiklmnnooprrssttuvw"))
    lengths = rng.integers(2, 11, VOCABULARY_SIZE)
    vocabulary = ["".join(rng.choice(letters, length)) for length in lengths]
    shares = 1 / np.arange(1, VOCABULARY_SIZE + 1)
    cumulative_shares = np.cumsum(shares) / shares.sum()
    quoted: list[str] = []
    while written_bytes < megabytes * 1e6:
        draws = rng.random((DOCUMENTS_PER_BATCH, WORDS_PER_DOCUMENT))
        texts = []
        for number, word_numbers in enumerate(np.searchsorted(cumulative_shares, draws)):
            words = [vocabulary[word_number] for word_number in word_numbers.tolist()]
            if number % 10 == 0:
                words += quoted
                quoted = words[:QUOTED_WORDS]
            texts.append(" ".join(words))
            written_bytes += len(texts[-1])
            if written_bytes >= megabytes * 1e6:
                break
        yield texts


def write_part(megabytes: float, writers: TableWriters) -> None:
    document_count = 0
    for texts in iter_texts(megabytes):
        ids = hash_to_ids(str(document_count + number) for number in range(len(texts)))
        text_array = pa.array(texts, pa.large_string())
        columns: dict[str, Any] = {
            "doc_id": ids,
            "source": ["synthetic"] * len(texts),
            "cluster": ids,
            "text": text_array,
            "text_hash": hash_texts(text_array),
            "split": ["train"] * len(texts),
        }
        writers.get_table_writer("documents").write(
            pa.table(fill_document_columns(columns), schema=DOCUMENTS)
        )
        document_count += len(texts)


@stage(name="synthetic_documents", tables={"documents": DOCUMENTS})
def write_synthetic_documents(config: SyntheticConfig, context: StageContext) -> None:
    context.map_partitions(write_part, [config.megabytes])


def compose_queries(index: TextIndex, rng: np.random.Generator) -> list[str]:
    """Compose texts of two passages of documents and of new sentences."""
    queries = []
    for _ in range(QUERY_COUNT):
        passages = []
        for length in (180, 90):
            shard = index.shards[rng.integers(len(index.shards))]
            start = int(rng.integers(len(shard.text) - length))
            passages.append(shard.text[start : start + length].decode(errors="replace"))
        new_words = [f"zq{number}x" for number in rng.integers(0, 10**6, 30)]
        text = " ".join([*new_words[:10], passages[0], *new_words[10:15], passages[1]])
        queries.append(f"{text} {' '.join(new_words)}"[:QUERY_CHARACTERS])
    return queries


def drop_from_memory(folder: Path) -> None:
    """Ask the operating system to forget the content of files."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def count_by_scan(index: TextIndex, pattern: bytes) -> int:
    """Count occurrences, overlapping ones included, in the complete text."""
    count = 0
    for shard in index.shards:
        position = shard.text.find(pattern)
        while position >= 0:
            count, position = count + 1, shard.text.find(pattern, position + 1)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("megabytes", nargs="?", type=float, default=1000.0)
    parser.add_argument("--store", help="store with a trained model")
    options = parser.parse_args()
    if options.store:
        measure_trained_model(options.store)
        return
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store")
        with open_session(Session(store)):
            artifact = write_synthetic_documents(SyntheticConfig(megabytes=options.megabytes))
        measure_index(store, artifact)


def measure_trained_model(store_name: str) -> None:
    """Trace texts in the newest trained model of a store, and print the times."""
    resolved = resolve_checkpoint(open_store(store_name, create=False), "latest")
    tracer = TextTracer.from_checkpoint(resolved, redact=True)
    queries = compose_queries(tracer.index, np.random.default_rng(1))
    tracer.trace_text(queries[0])  # imports what redaction needs
    seconds, document_count = [], 0
    for query in queries:
        start = time.perf_counter()
        report = tracer.trace_text(query)
        seconds.append(time.perf_counter() - start)
        document_count += sum(len(span["documents"]) for span in report["spans"])
    print(
        f"{tracer.index.text_bytes / 1e6:,.1f} MB of text, {len(queries)} texts of "
        f"{QUERY_CHARACTERS} characters: median {1000 * statistics.median(seconds):.1f} ms, "
        f"maximum {1000 * max(seconds):.1f} ms; {document_count} redacted documents"
    )


def measure_index(store: Store, artifact: Any) -> None:
    """Build the index of the documents, trace texts, and print the results."""
    written_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    index = open_text_index(artifact["documents"])
    build_seconds = time.perf_counter() - start
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    disk_bytes = sum(
        path.stat().st_size for path in store.work_folder.glob("text_index-*/*") if path.is_file()
    )
    print(
        f"{index.text_bytes / 1e6:,.0f} MB of text, {index.document_count:,} documents, "
        f"{len(index.shards)} shards: built in {build_seconds:.0f} s; peak memory {peak_mib:,.0f} "
        f"MiB (before: {written_mib:,.0f} MiB), the mapped text included; "
        f"{disk_bytes / 1e9:.2f} GB of disk"
    )
    queries = compose_queries(index, np.random.default_rng(1))
    del index
    drop_from_memory(store.work_folder)
    start = time.perf_counter()
    index = open_text_index(artifact["documents"])
    print(f"opened in {1000 * (time.perf_counter() - start):.1f} ms")
    for round_name in ("from the disk", "from memory"):
        seconds, span_count = [], 0
        for query in queries:
            start = time.perf_counter()
            spans = find_training_spans(index, query)
            for span in spans[:10]:
                occurrences = index.iter_first_occurrences(
                    query[span.start : span.end].encode(), 560
                )
                next(occurrences)
            seconds.append(time.perf_counter() - start)
            span_count += len(spans)
        print(
            f"{len(queries)} texts of {QUERY_CHARACTERS} characters, {round_name}: median "
            f"{1000 * statistics.median(seconds):.1f} ms, maximum {1000 * max(seconds):.1f} ms; "
            f"{span_count} spans"
        )
    checked_count = equal_count = 0
    for query in queries[:CHECKED_QUERIES]:
        for span in find_training_spans(index, query)[:3]:
            checked_count += 1
            pattern = query[span.start : span.end].encode()
            equal_count += count_by_scan(index, pattern) == span.occurrences
    print(f"occurrences as in a search of the text: {equal_count} of {checked_count} spans")


if __name__ == "__main__":
    main()
