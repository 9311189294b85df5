"""datatrove's near deduplication: SOURCE.parquet KEPT.parquet TOKENIZER, in its own environment.

TOKENIZER: "english", as it comes (spaCy), or "whitespace".
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
    work = Path(tempfile.mkdtemp(prefix="opponent-"))
    entered = work / "in"
    entered.mkdir()
    table = pq.read_table(source, columns=["id", "text"])
    half = len(table) // 2
    for number, rows in enumerate((table[:half], table[half:])):  # a file a worker
        pq.write_table(rows, entered / f"{number}.parquet")
    config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)
    language = WhitespaceTokenizer() if tokenizer == "whitespace" else Languages.english
    reader = ParquetReader(str(entered))
    sign = MinhashDedupSignature(str(work / "signatures"), config=config, language=language)
    left = ParquetWriter(str(work / "out"))
    steps = [
        ([reader, sign], 2),
        ([MinhashDedupBuckets(str(work / "signatures"), str(work / "buckets"), config=config)], 14),
        ([MinhashDedupCluster(str(work / "buckets"), str(work / "remove"), config=config)], 1),
        ([reader, MinhashDedupFilter(str(work / "remove")), left], 2),
    ]
    begin = time.perf_counter()
    for number, (pipeline, tasks) in enumerate(steps):
        LocalPipelineExecutor(
            pipeline=pipeline,
            tasks=tasks,
            workers=min(tasks, 2),
            logging_dir=str(work / f"{number}"),
        ).run()
    seconds = time.perf_counter() - begin
    out = [pq.read_table(path, columns=["id"]) for path in sorted((work / "out").glob("*.parquet"))]
    with pq.ParquetWriter(kept, out[0].schema) as writer:
        for rows in out:
            writer.write_table(rows)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
