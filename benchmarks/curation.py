"""Seconds and memory of every corpus stage as a corpus grows, and on several mappers.

    python -m benchmarks.curation --data FOLDER [--times 1 10] [--workers 2] [--mapper processes]

FOLDER holds text corpora (jsonl, csv, parquet, txt, plain or packed). They are written as one jsonl
file a copy; each copy beyond the first has its words replaced by others of the same corpus, chosen
by a hash, so that lengths, repetitions and near copies stay what they are while no document occurs
twice. Each size runs in a process of its own, all stages behind one another in a fresh store.
Prints a table: seconds at each size, their ratio over the ratio of the bytes, and the peak memory
of the process and of its largest worker.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    """One copy of the corpus; the first is the corpus itself."""
    chosen: dict[str, str] = {}

    def other(word: str) -> str:
        if word not in chosen:
            digest = hashlib.blake2b(f"{number} {word}".encode(), digest_size=8).digest()
            chosen[word] = vocabulary[int.from_bytes(digest, "big") % len(vocabulary)]
        return chosen[word]

    with path.open("w", encoding="utf-8") as file:
        for text in documents:
            if number:
                text = " ".join(other(word) for word in text.split(" "))
            file.write(json.dumps({"text": text}) + "\n")


def measure(folder: Path, store: Path, workers: int, mapper: str, until: str) -> dict[str, Any]:
    """Run the corpus stages over the jsonl files of a folder; seconds by stage, and memory."""
    from flows.config import load
    from flows.pipeline import deduplicate_masked, select_scored
    from tasks.contract import Event, InProcess, Session, Store, open_session
    from tasks.corpus.contamination import contamination
    from tasks.corpus.deduplicate import deduplicate
    from tasks.corpus.deduplicate_near import deduplicate_near
    from tasks.corpus.find_personal_data import find_personal_data
    from tasks.corpus.identities import identities
    from tasks.corpus.ingest import ingest
    from tasks.corpus.language import language
    from tasks.corpus.plant import plant
    from tasks.corpus.profile import profile
    from tasks.corpus.quality import quality
    from tasks.corpus.score_toxicity import score_toxicity
    from tasks.corpus.scrub import scrub
    from tasks.corpus.select import select
    from tasks.corpus.split import split
    from tasks.training.pack import pack
    from tasks.training.train_tokenizer import train_tokenizer

    source = {"kind": "jsonl", "name": "corpus", "path": str(folder)}
    config = load({"name": "growth", "ingest": {"sources": [source]}})
    seconds: dict[str, float] = {}
    rows: dict[str, int] = {}

    def listen(event: Event) -> None:
        if event.kind == "done":
            seconds[event.label] = event.seconds
            if event.artifact and "documents" in event.artifact.tables:
                rows[event.label] = event.artifact["documents"].rows

    try:
        from tasks.contract import make_mapper
    except ImportError:  # of an earlier state of the project, measured beside this one
        from tasks.contract import Processes

        chosen = Processes(workers) if workers > 1 else InProcess()
    else:
        chosen = make_mapper(mapper, workers)
    with open_session(Session(Store(store), chosen, listen, until or None)):
        made: dict[str, Any] = {}
        try:
            made["ingest"] = raw = ingest(config.ingest)
            made["deduplicate"] = unique = deduplicate(raw, config.deduplicate)
            made["language"] = spoken = language(unique, config.language)
            made["quality"] = figures = quality(unique, config.quality)
            made["identities"] = mentioned = identities(unique, config.identities)
            signals = {"language": spoken, "quality": figures, "identities": mentioned}
            made["select"] = picked = select(unique, signals, config.select)
            made["deduplicate_near"] = apart = deduplicate_near(picked, config.deduplicate_near)
            made["find_personal_data"] = found = find_personal_data(
                apart, config.find_personal_data
            )
            made["scrub"] = scrubbed = scrub(apart, {"personal": found}, config.scrub)
            made["deduplicate_masked"] = masked = deduplicate_masked(
                scrubbed, config.deduplicate_masked
            )
            made["score_toxicity"] = scores = score_toxicity(masked, spoken, config.score_toxicity)
            made["contamination"] = shared = contamination(masked, config.contamination)
            signals = {"toxicity": scores, "contamination": shared}
            made["select_scored"] = kept = select_scored(masked, signals, config.select_scored)
            made["split"] = parted = split(kept, config.split)
            made["plant"] = planted = plant(parted, config.plant)
            profile(planted, planted, made, config.profile)
            pack(planted, train_tokenizer(planted, config.train_tokenizer), config.pack)
        except Exception as error:  # the session was to end behind a stage
            if type(error).__name__ != "Finished":
                raise
    peak = {
        "process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "worker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
    }
    return {"seconds": seconds, "peak_mb": peak, "documents": rows}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--times", type=int, nargs="+", default=[1, 10])
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
    results, sizes = [], []
    with tempfile.TemporaryDirectory(prefix="hallmark-growth-") as scratch:
        for times in given.times:
            folder = Path(scratch) / f"corpus-{times}"
            folder.mkdir()
            for number in range(times):
                write_copy(documents, vocabulary, number, folder / f"copy-{number}.jsonl")
            sizes.append(sum(path.stat().st_size for path in folder.iterdir()))
            begin = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.curation", "--data", str(given.data)]
            command += ["--workers", str(given.workers), "--mapper", given.mapper]
            command += ["--until", given.until] if given.until else []
            command += ["--measure", str(folder), str(Path(scratch) / f"store-{times}")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            results.append(json.loads(done.stdout))
            count = f"{len(documents) * times:,} documents, {sizes[-1] / 1e6:.0f} MB"
            print(f"{count}: {time.perf_counter() - begin:.1f} s in all, "
                  f"peak {results[-1]['peak_mb']} MiB", flush=True)  # fmt: skip
    head = "".join(f"{f'x{times}':>10}" for times in given.times)
    print(f"{'stage':<20}{head}{'growth':>10}")
    for stage in results[0]["seconds"]:
        found = [result["seconds"].get(stage, float("nan")) for result in results]
        growth = found[-1] / found[0] / (sizes[-1] / sizes[0])
        print(f"{stage:<20}" + "".join(f"{s:>9.1f}s" for s in found) + f"{growth:>10.2f}")


if __name__ == "__main__":
    main()
