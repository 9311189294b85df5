"""Test that few files are open at a time, for any number of files and partitions."""

import os
import resource
import subprocess
import sys

from hallmark.tasks.contract import Session, Store, open_session
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.split import SplitConfig, split_corpus
from hallmark.tasks.training.pack import PackConfig, pack
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.tasks.corpus.test_input_independence import make_texts as texts

#: Files that a process may open in addition to its first ones; each table has more partitions.
MAX_OPEN_FILES = 40


def curate(folder):
    """Run the stages that shuffle across partitions, in this process."""
    open_now = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (open_now + MAX_OPEN_FILES, open_now + MAX_OPEN_FILES)
    )
    source = {"kind": "text", "name": "s", "path": f"{folder}/in"}
    with open_session(Session(Store(f"{folder}/store"))):
        ingested = ingest(IngestConfig(sources=[source], partition_bytes=3_000))
        deduplicated = deduplicate_near(
            deduplicate(ingested, {}, DeduplicateConfig()), {}, DeduplicateNearConfig()
        )
        split_documents = plant_canaries(
            split_corpus(deduplicated, SplitConfig()), PlantCanariesConfig()
        )
        tokenizer = train_tokenizer(split_documents, None, TokenizerConfig(vocab_size=300))
        packed = pack(split_documents, tokenizer, PackConfig(context=16))
    print(len(ingested["documents"].parts), packed["train"].row_count)


def test_stages_that_shuffle_do_not_open_a_file_per_partition(tmp_path):
    (tmp_path / "in").mkdir()
    for number, text in enumerate(texts()):
        (tmp_path / "in" / f"{number}.txt").write_text(text)
    command = f"from {__name__} import curate; curate({str(tmp_path)!r})"
    process = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    parts, rows = map(int, process.stdout.split())
    assert parts > MAX_OPEN_FILES and rows > 1000
