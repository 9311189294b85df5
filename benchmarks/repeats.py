"""Measure the stage that finds repeated passages: speed, memory, and recall of planted passages.

    python -m benchmarks.repeats --data FOLDER [--megabytes 16 64] [--turns 3]

The text is that of ``benchmarks.duplicates`` without its planted copies. A passage of 300
characters of another document is planted in one document of twenty. Each size runs in its own
process: the stage ``find_repeats``, from parquet to parquet. Prints the median seconds, the
increase of peak memory for each byte of text, and the number of planted passages that occur more
than once after the repetitions were removed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.curation import read_texts
from benchmarks.duplicates import generate_documents, read_peak_memory, reset_peak_memory
from hallmark.tasks.contract import Event, Session, Store, count_utf8_bytes, open_session
from hallmark.tasks.corpus.find_repeats import RepeatsConfig, find_repeats
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.redact_spans import RedactSpansConfig, redact_spans

PASSAGE_CHARACTERS, MIN_REPEAT_BYTES = 300, 200
#: Planted passages that are searched in the result.
CHECKED_PASSAGES = 500


class Measurement(NamedTuple):
    """The result of one run of the stage."""

    text_bytes: int
    seconds: float
    added_memory_bytes: int
    """Peak memory minus the memory before the stage."""
    span_count: int
    planted_count: int
    repeated_count: int
    """Of the first CHECKED_PASSAGES, those that occur more than once after the removal."""


def write_text(folder: Path, megabytes: float, seed: int, path: Path) -> list[str]:
    """Write texts with planted passages as a parquet file, and return the passages.

    Args:
        folder: Folder of text corpora.
        megabytes: Size of the texts.
        seed: Seed of the passages and of replaced words.
        path: The parquet file.
    """
    corpus = [text.split() for text in read_texts(folder) if text.strip()]
    vocabulary = np.array(sorted({word for words in corpus for word in words}), object)
    rng = np.random.default_rng(seed)
    texts: list[str] = []
    size, source = 0, generate_documents(corpus, vocabulary, seed)
    while size < megabytes * 1e6:
        texts.append(" ".join(next(source)))
        size += len(texts[-1].encode())
    donors = [text for text in texts if len(text) > 2 * PASSAGE_CHARACTERS]
    passages = []
    for index in rng.choice(len(texts), len(texts) // 20, replace=False).tolist():
        donor = donors[int(rng.integers(len(donors)))]
        start = int(rng.integers(len(donor) - PASSAGE_CHARACTERS))
        passages.append(donor[start : start + PASSAGE_CHARACTERS])
        texts[index] += " " + passages[-1]
    pq.write_table(pa.table({"text": pa.array(texts, pa.large_string())}), path)
    return passages


def measure_stage(source: Path) -> Measurement:
    """Run the stage on a file of ``write_text``, whose passages are in a JSON file next to it."""
    seconds: dict[str, float] = {}

    def listen(event: Event) -> None:
        if event.kind == "done":
            seconds[event.label] = event.seconds

    source_config = {"kind": "parquet", "name": "corpus", "path": str(source)}
    with (
        tempfile.TemporaryDirectory(prefix="hallmark-repeats-") as store,
        open_session(Session(Store(Path(store)), listener=listen)),
    ):
        raw = ingest(IngestConfig.model_validate({"sources": [source_config]}))
        memory_before = reset_peak_memory()
        repeats = find_repeats(raw, {}, RepeatsConfig(enabled=True, min_bytes=MIN_REPEAT_BYTES))
        added_kib = read_peak_memory() - memory_before
        config = RedactSpansConfig(action="keep", actions_by_type={"REPEAT": "cut"})
        redacted = redact_spans(raw, {"repeats": repeats}, config)["documents"]
        remaining_text = "\n".join(redacted.read(["text"])["text"].to_pylist())
        passages = json.loads(source.with_suffix(".json").read_text())
        return Measurement(
            text_bytes=pc.sum(count_utf8_bytes(raw["documents"].read(["text"])["text"])).as_py(),
            seconds=seconds["find_repeats"],
            added_memory_bytes=added_kib * 1024,
            span_count=repeats["spans"].row_count,
            planted_count=len(passages),
            repeated_count=sum(
                remaining_text.count(passage) > 1 for passage in passages[:CHECKED_PASSAGES]
            ),
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of text corpora")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[16, 64], help="sizes")
    parser.add_argument("--turns", type=int, default=3, help="runs of each size")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure_stage(options.measure)))
        return
    with tempfile.TemporaryDirectory(prefix="hallmark-repeats-") as scratch:
        for size in options.megabytes:
            source = Path(scratch) / f"{size}.parquet"
            passages = write_text(options.data, size, 0, source)
            source.with_suffix(".json").write_text(json.dumps(passages))
            measurements = []
            for _ in range(options.turns):
                command = [sys.executable, "-m", "benchmarks.repeats", "--measure", str(source)]
                result = subprocess.run(command, capture_output=True, text=True, check=True)
                measurements.append(Measurement(*json.loads(result.stdout.splitlines()[-1])))
            seconds = statistics.median(measurement.seconds for measurement in measurements)
            last = measurements[-1]
            megabytes = last.text_bytes / 1e6
            print(
                f"{megabytes:.1f} MB: {seconds:.1f} s, {megabytes / seconds:.1f} MB/s, "
                f"{last.added_memory_bytes / last.text_bytes:.1f} bytes of memory per byte, "
                f"{last.span_count:,} spans; {last.repeated_count} of "
                f"{min(CHECKED_PASSAGES, last.planted_count)} planted passages occur more than "
                "once after the removal",
                flush=True,
            )


if __name__ == "__main__":
    main()
