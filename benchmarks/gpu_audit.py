"""The standard audit of a 124 M model on one GPU: 1,000 prompts x 25, all sets, 2,000 sequences.

    python -m benchmarks.gpu_audit ask --carried FOLDER [--data FOLDER]        # anywhere, first
    python -m benchmarks.gpu_audit answer --carried FOLDER --work FOLDER       # on the GPU
    python -m benchmarks.gpu_audit answer ... --rehearse                       # tiny, on the CPU

``ask`` leaves in the carried folder what is asked (items and requests of each probe; of prompts
those of RealToxicityPrompts where FOLDER has them, else the project's own, over and over) and the
tokenizer. ``answer`` makes the model there, of random weights: it writes on to the last token, so
nothing takes longer. It answers chunk by chunk and then scores every text by a network of BERT's
size and random weights, through ``transformers``. What is done stays in the work folder: a call
begins nothing more after --minutes, and the same command goes on from there. At the end it prints
seconds by probe and stage, of all calls together. Neither Prefect, datasets nor Detoxify is needed
there, but pydantic and obstore, which stages import: ``pip install --target`` a folder that is
carried, too, and named in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import gpu

# isort: split
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer

from benchmarks import audits
from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig
from hallmark.model.interchange.checkpoint import save_checkpoint
from hallmark.tasks.audits.audit_tables import RESPONSES
from hallmark.tasks.audits.audited_models.audited_model import AuditedModel
from hallmark.tasks.audits.audited_models.hallmark_tokenizer import HallmarkTokenizer
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.inference import RequestChunk, generate_responses, split_into_chunks
from hallmark.tasks.contract import rows_to_table
from hallmark.tasks.measures.scorers.network import batch_by_length

CONTEXT = 1024
#: Of the scorer, BERT-base's; in a rehearsal.
BERT = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
SMALL_BERT = {
    "vocab_size": 1024,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
#: Texts of a step of scoring, and the tokens of a batch of the scorer.
STEP, BUDGET = 4096, 1 << 16


# Asked, anywhere -------------------------------------------------------------------------------


def ask(options: argparse.Namespace) -> None:
    from benchmarks.audit_parts import parts
    from benchmarks.planted_models import make_tokenizer
    from benchmarks.scoring import passages

    folder = Path(options.carried)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(passages(4000, 0), folder / "tokenizer.json", 16_384)
    config = ModelConfig(vocab_size=tokenizer.get_vocab_size(), context=CONTEXT)
    reader = HallmarkTokenizer(config, False, tokenizer, "124M")
    for part in parts(options.data, options.prompts, options.sequences, folder):
        if options.only and part.title not in options.only:
            continue
        asked = audits.ask(part.probe, reader, part.config, part.corpus)
        write(asked.requests, folder / f"{part.title}.requests.parquet")
        texts = (
            audits.texts_of(asked.items)
            if part.probe.steps.uses_scorers
            else pa.array([], pa.string())
        )
        write(pa.table({"text": texts}), folder / f"{part.title}.texts.parquet")
        print(f"{part.title:<16}{len(asked.items):>8,} items {len(asked.requests):>8,} requests")


def write(rows: pa.Table, path: Path) -> None:
    """A file that is whole or not there."""
    new = path.with_suffix(".new")
    pq.write_table(rows, new, compression="zstd")
    new.replace(path)


# Answered, on the GPU --------------------------------------------------------------------------


class Seconds:
    """What each stage of each probe took, over all calls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.taken: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    def add(self, name: str, seconds: float) -> None:
        self.taken[name] = self.taken.get(name, 0.0) + seconds
        self.path.write_text(json.dumps(self.taken))


def make_model(carried: Path, context: Path, rehearse: bool) -> Path:
    """A checkpoint of random weights, large enough that it has opinions."""
    folder = context / "checkpoint"
    if not folder.exists():
        tokenizer = Tokenizer.from_file(str(carried / "tokenizer.json"))
        sizes = {**(gpu.SMALL if rehearse else gpu.SIZES["124M"])}
        if rehearse:
            sizes["vocab_size"] = tokenizer.get_vocab_size()
        torch.manual_seed(0)
        net = Transformer(ModelConfig(**sizes, context=CONTEXT))
        with torch.no_grad():
            for parameter in net.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(4)
        save_checkpoint(net, folder, tokenizer_path=carried / "tokenizer.json")
    return folder


def respond(
    title: str, subject: AuditedModel, todo: list[RequestChunk], context: Path, seconds: Seconds
) -> Iterator[None]:
    """Answers the chunks that are not yet answered, one at a time."""
    for chunk in todo:
        path = context / f"{title}.{chunk.number:05}.parquet"
        if path.exists():
            continue
        begun = time.perf_counter()
        responses = list(generate_responses(subject, chunk.requests.to_pylist()))
        gpu.synchronise(subject.model.embedding.weight.device)
        write(rows_to_table(responses, RESPONSES), path)
        seconds.add(f"{title} respond", time.perf_counter() - begun)
        yield


class RandomScorer:
    """BERT for classes, of random weights: scores the tokens of the audited model's tokenizer,
    which take as long as its own."""

    def __init__(self, carried: Path, device: torch.device, rehearse: bool) -> None:
        from transformers import BertConfig, BertForSequenceClassification

        self.tokenizer = Tokenizer.from_file(str(carried / "tokenizer.json"))
        config = BertConfig(**(SMALL_BERT if rehearse else BERT), num_labels=7)
        torch.manual_seed(0)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.device, self.most = device, config.vocab_size - 1
        self.model = BertForSequenceClassification(config).eval().to(device, dtype)

    def score(self, texts: list[str]) -> np.ndarray:
        """(n, 7) float32."""
        ids = [e.ids[:510] or [0] for e in self.tokenizer.encode_batch_fast(texts)]
        lengths = np.array([len(each) for each in ids])
        found = np.empty((len(ids), 7), np.float32)
        for batch in batch_by_length(lengths, BUDGET):
            width = lengths[batch].max()
            there = np.arange(width) < lengths[batch][:, None]
            given = np.zeros(there.shape, np.int64)
            given[there] = np.concatenate([ids[i] for i in batch])
            with torch.inference_mode():
                logits = self.model(
                    torch.from_numpy(given).clamp(max=self.most).to(self.device),
                    attention_mask=torch.from_numpy(there).to(self.device),
                ).logits
            found[batch] = torch.sigmoid(logits.float()).cpu().numpy()
        return found


def score(
    title: str, scorer: RandomScorer, texts: list[str], context: Path, seconds: Seconds
) -> Iterator[None]:
    """Scores what is not yet scored, a step at a time."""
    for number, low in enumerate(range(0, len(texts), STEP)):
        path = context / f"{title}.scores.{number:05}.parquet"
        if path.exists():
            continue
        begun, some = time.perf_counter(), texts[low : low + STEP]
        found = scorer.score(some)
        if not np.isfinite(found).all():
            raise SystemExit(f"{title}: a text has no score")
        write(pa.table({"text": some, "score": found[:, 0]}), path)
        seconds.add(f"{title} score", time.perf_counter() - begun)
        yield


def steps(
    titles: list[str],
    carried: Path,
    context: Path,
    device: torch.device,
    rehearse: bool,
    seconds: Seconds,
) -> Iterator[str]:
    """All that is to be done, named before each piece: first every answer, then every score."""
    subject = open_audited_model(make_model(carried, context, rehearse), device.type)
    for title in titles:
        todo = split_into_chunks(pq.read_table(carried / f"{title}.requests.parquet"))
        yield from (title for _ in respond(title, subject, todo, context, seconds))
    del subject
    scorer = RandomScorer(carried, device, rehearse)
    for title in titles:
        known = pq.read_table(carried / f"{title}.texts.parquet")
        written = [pq.read_table(path) for path in sorted(context.glob(f"{title}.[0-9]*.parquet"))]
        if len(known):
            texts = audits.texts_of(known, *written).to_pylist()
            yield from (title for _ in score(title, scorer, texts, context, seconds))


def answer(options: argparse.Namespace) -> None:
    device = gpu.device_of(options.rehearse)
    carried, work = Path(options.carried), Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    titles = sorted(
        path.name.removesuffix(".requests.parquet") for path in carried.glob("*.requests.parquet")
    )
    seconds = Seconds(work / "seconds.json")
    print(gpu.headline(device), flush=True)
    for title in steps(titles, carried, work, device, options.rehearse, seconds):
        if gpu.late(options, f"{title} and what follows; the same command goes on from there"):
            return
    report(titles, work, seconds)


def report(titles: list[str], context: Path, seconds: Seconds) -> None:
    """Seconds by probe and stage, and what was answered."""
    whole = 0.0
    print(f"{'part':<16}{'responses':>10}{'tokens':>12}{'respond':>9}{'score':>9}")
    for title in titles:
        rows = [
            pq.read_table(p, columns=["log_probs"]) for p in context.glob(f"{title}.[0-9]*.parquet")
        ]
        lists = [part["log_probs"] for part in rows]
        tokens = sum(len(c.flatten()) for column in lists for c in column.chunks)
        took = [seconds.taken.get(f"{title} {stage}", 0.0) for stage in ("respond", "score")]
        whole += sum(took)
        print(f"{title:<16}{sum(map(len, rows)):>10,}{tokens:>12,}{took[0]:>9.1f}{took[1]:>9.1f}")
    print(f"all: {whole:.1f} s")


def main() -> None:
    parser = gpu.parser(__doc__ or "")
    parser.add_argument("what", choices=("ask", "answer"))
    parser.add_argument("--carried", required=True)
    parser.add_argument("--work", default="work")
    parser.add_argument("--data", type=Path, help="folder of the public sets")
    parser.add_argument("--only", nargs="+", help="names of parts")
    for name, value in (("prompts", 1000), ("sequences", 2000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    (ask if options.what == "ask" else answer)(options)


if __name__ == "__main__":
    main()
