"""Remove near duplicates with datatrove, for ``benchmarks.duplicates``.

    python datatrove_minhash.py SOURCE.parquet KEPT.parquet TOKENIZER

It runs in its own environment. TOKENIZER is "english", datatrove's default (spaCy), or
"whitespace".
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
)
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter
from datatrove.utils.typeshelper import Languages
from datatrove.utils.word_tokenizers import WhitespaceTokenizer


def main(source: str, kept: str, tokenizer: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="opponent-"))
    input_folder = folder / "in"
    input_folder.mkdir()
    table = pq.read_table(source, columns=["id", "text"])
    half = len(table) // 2
    for number, rows in enumerate((table[:half], table[half:])):  # one file for each worker
        pq.write_table(rows, input_folder / f"{number}.parquet")
    config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)
    language = WhitespaceTokenizer() if tokenizer == "whitespace" else Languages.english
    signatures, buckets, removed = (str(folder / n) for n in ("signatures", "buckets", "remove"))
    reader = ParquetReader(str(input_folder))
    steps = [
        ([reader, MinhashDedupSignature(signatures, config=config, language=language)], 2),
        ([MinhashDedupBuckets(signatures, buckets, config=config)], 14),
        ([MinhashDedupCluster(buckets, removed, config=config)], 1),
        ([reader, MinhashDedupFilter(removed), ParquetWriter(str(folder / "out"))], 2),
    ]
    start = time.perf_counter()
    for number, (pipeline, tasks) in enumerate(steps):
        LocalPipelineExecutor(
            pipeline=pipeline,
            tasks=tasks,
            workers=min(tasks, 2),
            logging_dir=str(folder / f"{number}"),
        ).run()
    seconds = time.perf_counter() - start
    tables = [
        pq.read_table(path, columns=["id"]) for path in sorted((folder / "out").glob("*.parquet"))
    ]
    with pq.ParquetWriter(kept, tables[0].schema) as writer:
        for rows in tables:
            writer.write_table(rows)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
