"""Repeated stretches: speed, memory and what is found of planted ones.

    python -m benchmarks.repeats --data FOLDER [--megabytes 16 64] [--turns 3]

The text is that of ``benchmarks.duplicates`` without its planted copies; into one document of
twenty a stretch of 300 characters of another is planted. Each size runs in a process of its own,
the stage ``find_repeats`` from parquet to parquet. Prints the median of its seconds, its peak
memory above what the process had before, for each byte of text, and how many planted stretches
stand twice once what was found is cut.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.curation import texts
from benchmarks.duplicates import forget_peak, peak, real
from hallmark.tasks.contract import Event, Session, Store, count_utf8_bytes, open_session
from hallmark.tasks.corpus.find_repeats import RepeatsConfig, find_repeats
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.redact_spans import RedactSpansConfig, redact_spans

LENGTH, LEAST = 300, 200


def write_text(folder: Path, megabytes: float, seed: int, path: Path) -> list[str]:
    """One column of texts; the planted stretches are returned."""
    base = [text.split() for text in texts(folder) if text.strip()]
    vocabulary = np.array(sorted({word for words in base for word in words}), object)
    chance = np.random.default_rng(seed)
    rows: list[str] = []
    size, source = 0, real(base, vocabulary, seed)
    while size < megabytes * 1e6:
        rows.append(" ".join(next(source)))
        size += len(rows[-1].encode())
    donors = [row for row in rows if len(row) > 2 * LENGTH]
    planted = []
    for place in chance.choice(len(rows), len(rows) // 20, replace=False).tolist():
        donor = donors[int(chance.integers(len(donors)))]
        start = int(chance.integers(len(donor) - LENGTH))
        planted.append(donor[start : start + LENGTH])
        rows[place] += " " + planted[-1]
    pq.write_table(pa.table({"text": pa.array(rows, pa.large_string())}), path)
    return planted


def measure(source: Path) -> dict[str, Any]:
    seconds: dict[str, float] = {}

    def listen(event: Event) -> None:
        if event.kind == "done":
            seconds[event.label] = event.seconds

    entered = {"kind": "parquet", "name": "corpus", "path": str(source)}
    with (
        tempfile.TemporaryDirectory(prefix="hallmark-repeats-") as store,
        open_session(Session(Store(Path(store)), listener=listen)),
    ):
        raw = ingest(IngestConfig.model_validate({"sources": [entered]}))
        before = forget_peak()
        found = find_repeats(raw, {}, RepeatsConfig(enabled=True, min_bytes=LEAST))
        grown = peak() - before
        cut = RedactSpansConfig(action="keep", actions_by_type={"REPEAT": "cut"})
        left = (
            redact_spans(raw, {"repeats": found}, cut)["documents"]
            .read(["text"])["text"]
            .to_pylist()
        )
        planted = json.loads(source.with_suffix(".json").read_text())
        whole = "\n".join(left)
        return {
            "bytes": pc.sum(count_utf8_bytes(raw["documents"].read(["text"])["text"])).as_py(),
            "seconds": seconds["find_repeats"],
            "memory": grown * 1024,
            "spans": found["spans"].row_count,
            "planted": len(planted),
            "twice": sum(whole.count(stretch) > 1 for stretch in planted[:500]),
        }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--data", type=Path)
    arguments.add_argument("--megabytes", type=float, nargs="+", default=[16, 64])
    arguments.add_argument("--turns", type=int, default=3)
    arguments.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure)))
        return
    with tempfile.TemporaryDirectory(prefix="hallmark-repeats-") as scratch:
        for size in given.megabytes:
            source = Path(scratch) / f"{size}.parquet"
            planted = write_text(given.data, size, 0, source)
            source.with_suffix(".json").write_text(json.dumps(planted))
            turns = []
            for _ in range(given.turns):
                command = [sys.executable, "-m", "benchmarks.repeats", "--measure", str(source)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                turns.append(json.loads(done.stdout.splitlines()[-1]))
            seconds = statistics.median(turn["seconds"] for turn in turns)
            last = turns[-1]
            print(
                f"{last['bytes'] / 1e6:.1f} MB: {seconds:.1f} s, "
                f"{last['bytes'] / 1e6 / seconds:.1f} MB/s, "
                f"{last['memory'] / last['bytes']:.1f} bytes of memory a byte, "
                f"{last['spans']:,} spans; of {min(500, last['planted'])} planted stretches "
                f"{last['twice']} stand twice after the cut",
                flush=True,
            )


if __name__ == "__main__":
    main()
