"""Time the standard audit of a 124 M model on one GPU: 1,000 prompts x 25, all sets, 2,000 windows.

    python -m benchmarks.gpu_audit ask --requests FOLDER [--data FOLDER]       # first, anywhere
    python -m benchmarks.gpu_audit answer --requests FOLDER --work FOLDER      # on the GPU
    python -m benchmarks.gpu_audit answer ... --rehearse                       # tiny, on the CPU

``ask`` writes the requests and the texts of each probe and the tokenizer into the folder of
--requests, which is then copied to the machine with the GPU. Prompts are those of
RealToxicityPrompts if --data has them, else the built-in ones, repeated.

``answer`` creates a model with random weights, which generates up to the last allowed token, so
that no other model takes longer. It answers the requests chunk by chunk, then scores all texts with
a network of BERT's size and random weights, through ``transformers``. Results are kept in the
folder of --work: after --minutes no further chunk is started, and the same command continues. At
the end it prints seconds for each probe and stage, summed over all calls.

On the machine with the GPU neither Prefect, datasets nor Detoxify is needed, but pydantic and
obstore, which stages import: install them with ``pip install --target`` into a folder that is
copied, too, and named in PYTHONPATH.
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
from hallmark.tasks.audits.inference import (
    RequestChunk,
    generate_responses,
    group_distinct_requests_into_chunks,
)
from hallmark.tasks.contract import rows_to_table
from hallmark.tasks.measures.scorers.network import batch_by_length

CONTEXT = 1024
#: Size of the scorer: that of BERT-base, and that of a rehearsal.
BERT_SIZE = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
REHEARSAL_BERT_SIZE = {
    "vocab_size": 1024,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
TEXTS_PER_CHUNK = 4096
TOKENS_PER_BATCH = 1 << 16


# Building requests, anywhere -------------------------------------------------------------------


def write_requests(options: argparse.Namespace) -> None:
    """Write the requests, the texts and the tokenizer that ``answer`` reads."""
    from benchmarks.audit_parts import build_audit_parts
    from benchmarks.planted_models import train_tokenizer
    from benchmarks.scoring import sample_manual_passages

    folder = options.requests
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(
        sample_manual_passages(4000, 0), folder / "tokenizer.json", vocab_size=16_384
    )
    config = ModelConfig(vocab_size=tokenizer.get_vocab_size(), context=CONTEXT)
    audited_tokenizer = HallmarkTokenizer(config, False, tokenizer, "124M")
    parts = build_audit_parts(
        options.data,
        prompt_count=options.prompts,
        sequence_count=options.sequences,
        scratch_folder=folder,
    )
    for part in parts:
        if options.only and part.title not in options.only:
            continue
        built = audits.build_probe_requests(part.probe, audited_tokenizer, part.config, part.corpus)
        write_table_atomically(built.requests, folder / f"{part.title}.requests.parquet")
        texts = (
            audits.select_texts_to_score(built.items)
            if part.probe.steps.uses_scorers
            else pa.array([], pa.string())
        )
        write_table_atomically(pa.table({"text": texts}), folder / f"{part.title}.texts.parquet")
        print(f"{part.title:<16}{len(built.items):>8,} items {len(built.requests):>8,} requests")


def write_table_atomically(table: pa.Table, path: Path) -> None:
    """Write a parquet file that is either complete or absent."""
    new_path = path.with_suffix(".new")
    pq.write_table(table, new_path, compression="zstd")
    new_path.replace(path)


# Answering, on the GPU -------------------------------------------------------------------------


class StageTimes:
    """Seconds of each stage of each probe, summed over all calls and kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.path.write_text(json.dumps(self.seconds))


def write_random_model(requests_folder: Path, work_folder: Path, *, rehearse: bool) -> Path:
    """Write a checkpoint with random weights, so large that its preferences are clear.

    Returns:
        The checkpoint folder. An existing one is kept.
    """
    folder = work_folder / "checkpoint"
    if not folder.exists():
        tokenizer_path = requests_folder / "tokenizer.json"
        sizes = {**(gpu.REHEARSAL_SIZE if rehearse else gpu.SIZES["124M"])}
        if rehearse:
            sizes["vocab_size"] = Tokenizer.from_file(str(tokenizer_path)).get_vocab_size()
        torch.manual_seed(0)
        model = Transformer(ModelConfig(**sizes, context=CONTEXT))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(4)
        save_checkpoint(model, folder, tokenizer_path=tokenizer_path)
    return folder


def answer_chunks(
    title: str,
    model: AuditedModel,
    chunks: list[RequestChunk],
    work_folder: Path,
    times: StageTimes,
) -> Iterator[None]:
    """Answer the chunks of a part that have no answers yet, and yield after each."""
    for chunk in chunks:
        path = work_folder / f"{title}.{chunk.number:05}.parquet"
        if path.exists():
            continue
        start = time.perf_counter()
        responses = list(generate_responses(model, chunk.requests.to_pylist()))
        gpu.synchronise(model.model.embedding.weight.device)
        write_table_atomically(rows_to_table(responses, RESPONSES), path)
        times.add(f"{title} respond", time.perf_counter() - start)
        yield


class RandomScorer:
    """A BERT classifier with random weights.

    It reads the tokens of the audited model's tokenizer, which takes as long as its own would.
    """

    def __init__(self, tokenizer_path: Path, device: torch.device, *, rehearse: bool) -> None:
        from transformers import BertConfig, BertForSequenceClassification

        self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        config = BertConfig(**(REHEARSAL_BERT_SIZE if rehearse else BERT_SIZE), num_labels=7)
        torch.manual_seed(0)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.device, self.max_id = device, config.vocab_size - 1
        self.model = BertForSequenceClassification(config).eval().to(device, dtype)

    def score(self, texts: list[str]) -> np.ndarray:
        """Score texts; returns (n, 7) float32."""
        ids = [e.ids[:510] or [0] for e in self.tokenizer.encode_batch_fast(texts)]
        lengths = np.array([len(text_ids) for text_ids in ids])
        scores = np.empty((len(ids), 7), np.float32)
        for batch in batch_by_length(lengths, TOKENS_PER_BATCH):
            width = lengths[batch].max()
            mask = np.arange(width) < lengths[batch][:, None]
            padded = np.zeros(mask.shape, np.int64)
            padded[mask] = np.concatenate([ids[i] for i in batch])
            with torch.inference_mode():
                logits = self.model(
                    torch.from_numpy(padded).clamp(max=self.max_id).to(self.device),
                    attention_mask=torch.from_numpy(mask).to(self.device),
                ).logits
            scores[batch] = torch.sigmoid(logits.float()).cpu().numpy()
        return scores


def score_chunks(
    title: str, scorer: RandomScorer, texts: list[str], work_folder: Path, times: StageTimes
) -> Iterator[None]:
    """Score the chunks of texts that have no scores yet, and yield after each."""
    for number, low in enumerate(range(0, len(texts), TEXTS_PER_CHUNK)):
        path = work_folder / f"{title}.scores.{number:05}.parquet"
        if path.exists():
            continue
        start, chunk = time.perf_counter(), texts[low : low + TEXTS_PER_CHUNK]
        scores = scorer.score(chunk)
        if not np.isfinite(scores).all():
            raise SystemExit(f"{title}: a text has no score")
        write_table_atomically(pa.table({"text": chunk, "score": scores[:, 0]}), path)
        times.add(f"{title} score", time.perf_counter() - start)
        yield


def process_parts(
    titles: list[str],
    requests_folder: Path,
    work_folder: Path,
    device: torch.device,
    times: StageTimes,
    *,
    rehearse: bool,
) -> Iterator[str]:
    """Answer all requests, then score all texts; yield the part's title after each chunk."""
    checkpoint = write_random_model(requests_folder, work_folder, rehearse=rehearse)
    model = open_audited_model(checkpoint, device.type)
    for title in titles:
        chunks = group_distinct_requests_into_chunks(
            pq.read_table(requests_folder / f"{title}.requests.parquet")
        )
        yield from (title for _ in answer_chunks(title, model, chunks, work_folder, times))
    del model
    scorer = RandomScorer(requests_folder / "tokenizer.json", device, rehearse=rehearse)
    for title in titles:
        item_texts = pq.read_table(requests_folder / f"{title}.texts.parquet")
        responses = [
            pq.read_table(path) for path in sorted(work_folder.glob(f"{title}.[0-9]*.parquet"))
        ]
        if len(item_texts):
            texts = audits.select_texts_to_score(item_texts, *responses).to_pylist()
            yield from (title for _ in score_chunks(title, scorer, texts, work_folder, times))


def answer_requests(options: argparse.Namespace) -> None:
    """Answer and score as much as the minutes allow; print the times when all is done."""
    device = gpu.choose_device(use_cpu=options.rehearse)
    requests_folder, work_folder = options.requests, options.work
    work_folder.mkdir(parents=True, exist_ok=True)
    titles = sorted(
        path.name.removesuffix(".requests.parquet")
        for path in requests_folder.glob("*.requests.parquet")
    )
    times = StageTimes(work_folder / "seconds.json")
    print(gpu.describe_environment(device), flush=True)
    for title in process_parts(
        titles, requests_folder, work_folder, device, times, rehearse=options.rehearse
    ):
        remaining = f"{title} and the parts after it; run the same command again to continue"
        if gpu.is_time_over(options, remaining):
            return
    print_times(titles, work_folder, times)


def print_times(titles: list[str], work_folder: Path, times: StageTimes) -> None:
    """Print responses, tokens and seconds of each part."""
    total_seconds = 0.0
    print(f"{'part':<16}{'responses':>10}{'tokens':>12}{'respond':>9}{'score':>9}")
    for title in titles:
        tables = [
            pq.read_table(path, columns=["log_probs"])
            for path in work_folder.glob(f"{title}.[0-9]*.parquet")
        ]
        columns = [table["log_probs"] for table in tables]
        token_count = sum(len(c.flatten()) for column in columns for c in column.chunks)
        respond, score = (
            times.seconds.get(f"{title} {stage}", 0.0) for stage in ("respond", "score")
        )
        total_seconds += respond + score
        response_count = sum(map(len, tables))
        print(f"{title:<16}{response_count:>10,}{token_count:>12,}{respond:>9.1f}{score:>9.1f}")
    print(f"total: {total_seconds:.1f} s")


def main() -> None:
    parser = gpu.build_parser(__doc__ or "")
    parser.add_argument("step", choices=("ask", "answer"))
    parser.add_argument(
        "--requests", type=Path, required=True, help="folder that ask writes and answer reads"
    )
    parser.add_argument("--work", type=Path, default=Path("work"), help="folder of the results")
    parser.add_argument("--data", type=Path, help="folder of the public sets")
    parser.add_argument("--only", nargs="+", help="names of the parts to ask; default: all")
    for name, value, description in (
        ("prompts", 1000, "prompts of the toxicity part"),
        ("sequences", 2000, "sequences of the extraction part"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=description)
    options = parser.parse_args()
    (write_requests if options.step == "ask" else answer_requests)(options)


if __name__ == "__main__":
    main()
