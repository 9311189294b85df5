"""However many files and parts a corpus has, few of them are open at a time."""

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
from tests.tasks.corpus.test_order import texts

#: Files that a process may open beside those it began with; each table has more parts.
FEW = 40


def curate(folder):
    """The stages that shuffle across parts, in this process."""
    open_now = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + FEW, open_now + FEW))
    source = {"kind": "text", "name": "s", "path": f"{folder}/in"}
    with open_session(Session(Store(f"{folder}/store"))):
        read = ingest(IngestConfig(sources=[source], partition_bytes=3_000))
        apart = deduplicate_near(
            deduplicate(read, {}, DeduplicateConfig()), {}, DeduplicateNearConfig()
        )
        parted = plant_canaries(split_corpus(apart, SplitConfig()), PlantCanariesConfig())
        tokenizer = train_tokenizer(parted, None, TokenizerConfig(vocab_size=300))
        packed = pack(parted, tokenizer, PackConfig(context=16))
    print(len(read["documents"].parts), packed["train"].row_count)


def test_no_stage_that_shuffles_holds_a_file_open_for_each_part(tmp_path):
    (tmp_path / "in").mkdir()
    for number, text in enumerate(texts()):
        (tmp_path / "in" / f"{number}.txt").write_text(text)
    command = f"from {__name__} import curate; curate({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    parts, rows = map(int, done.stdout.split())
    assert parts > FEW and rows > 1000
