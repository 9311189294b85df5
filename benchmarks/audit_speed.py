"""Measure the speed of a standard audit at a tenth of its size, and compare it with other tools.

    python -m benchmarks.audit_speed CHECKPOINT [--data FOLDER] [--turns 3] [--bf16]

CHECKPOINT is a checkpoint folder of a decoder that ``transformers`` supports, too.

First, every part of the audit runs once, and the seconds of each stage are printed: 100 prompts
with 25 continuations each, the built-in sentence pairs, the public sets whose files are in FOLDER,
and 200 sequences of Python's manual.

Then generation and scoring are compared with other tools, in alternation. The other tools are
``transformers.generate`` with the exported model (batched, left-padded, with the same nucleus and
temperature) and ``Detoxify.predict`` in batches of 32. Hallmark runs in fp32 and, with ``--bf16``,
also in bf16. The scorer has the size of BERT-base and random weights. Prints median seconds,
ratios, and the number of generated tokens.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import hallmark.model  # noqa: F401  before torch: it sets how threads wait

# isort: split
import itertools

import pyarrow as pa
import pyarrow.compute as pc
import torch

from benchmarks import audits
from benchmarks.audit_parts import AuditPart, build_audit_parts
from benchmarks.scoring import BATCH_SIZE, sample_manual_passages, write_random_checkpoint
from hallmark.model.interchange.checkpoint import load_checkpoint
from hallmark.model.interchange.transformers_checkpoint import export_transformers
from hallmark.tasks.audits.audited_models.audited_model import AuditedModel
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.probes import toxicity
from hallmark.tasks.measures.scorers import ScorerConfig
from hallmark.tasks.measures.scorers.detoxify import DetoxifyScorer

#: Prompts in a batch of ``transformers.generate``: the fastest of 2 to 32 on two cores.
PROMPTS_PER_BATCH = 8

STAGES = ("ask", "respond", "score", "judge")


class PartTimes(NamedTuple):
    """The result of one part of the audit."""

    seconds: list[float]
    """Seconds of each stage, in the order of STAGES."""
    response_count: int
    """Number of responses of the model."""


def time_audit_part(part: AuditPart, model: AuditedModel, scorer: DetoxifyScorer) -> PartTimes:
    """Run one part of the audit and time its stages."""
    timestamps = [time.perf_counter()]
    probe_requests = audits.build_probe_requests(part.probe, model, part.config, part.corpus)
    timestamps.append(time.perf_counter())
    responses = audits.generate_response_table(model, probe_requests.requests)
    timestamps.append(time.perf_counter())
    if part.probe.steps.uses_scorers:
        texts = audits.select_texts_to_score(probe_requests.items, responses)
        audits.score_texts(scorer, texts)
    timestamps.append(time.perf_counter())
    audits.compute_findings(part.probe, part.config, probe_requests, responses)
    timestamps.append(time.perf_counter())
    return PartTimes([end - start for start, end in itertools.pairwise(timestamps)], len(responses))


# Comparison with other tools -------------------------------------------------------------------


class Turn(NamedTuple):
    """One run of generation and scoring."""

    generation_seconds: float
    scoring_seconds: float
    token_count: int
    """Number of generated tokens."""


@dataclass
class ImplementationTimes:
    """The runs of one implementation: a value for each turn."""

    generation_seconds: list[float]
    scoring_seconds: list[float]
    token_count: int = 0
    """Generated tokens of the last turn."""

    def sum_seconds(self) -> list[float]:
        """Return the seconds of generation and scoring together, for each turn."""
        return [a + b for a, b in zip(self.generation_seconds, self.scoring_seconds, strict=True)]


def generate_with_transformers(
    model: Any, contexts: list[list[int]], config: toxicity.ToxicityConfig
) -> torch.Tensor:
    """Continue a batch of contexts with ``transformers.generate``.

    Returns:
        Ids of the continuations, (n, tokens), padded after the end token.
    """
    width = max(map(len, contexts))
    ids = torch.ones(len(contexts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, context in enumerate(contexts):
        ids[row, width - len(context) :] = torch.tensor(context)
        mask[row, width - len(context) :] = 1
    with torch.inference_mode():
        out: torch.Tensor = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=config.max_new_tokens,
            do_sample=True,
            top_k=0,
            top_p=config.top_p,
            temperature=config.temperature,
            use_cache=True,
            pad_token_id=1,
            eos_token_id=0,
            num_return_sequences=config.continuations_per_prompt,
        )
    return out[:, width:]


def build_peer_turn(
    model: Any,
    detoxify: Any,
    requests: pa.Table,
    config: toxicity.ToxicityConfig,
    decode: Callable[[list[int]], str],
) -> Callable[[], Turn]:
    """Build a function that runs one turn of ``transformers`` and Detoxify."""
    # Contexts of similar length need the least padding.
    contexts = sorted(requests["context_ids"].to_pylist(), key=len)

    def run_turn() -> Turn:
        start, texts, token_count = time.perf_counter(), [], 0
        for low in range(0, len(contexts), PROMPTS_PER_BATCH):
            batch = contexts[low : low + PROMPTS_PER_BATCH]
            for row in generate_with_transformers(model, batch, config).tolist():
                continuation = row[: row.index(0)] if 0 in row else row
                token_count += len(continuation)
                texts.append(decode(continuation))
        middle = time.perf_counter()
        scored_texts = [text for text in texts if text.strip()]
        for low in range(0, len(scored_texts), BATCH_SIZE):
            detoxify.predict(scored_texts[low : low + BATCH_SIZE])
        return Turn(middle - start, time.perf_counter() - middle, token_count)

    return run_turn


def build_hallmark_turn(
    model: AuditedModel, scorer: DetoxifyScorer, requests: pa.Table
) -> Callable[[], Turn]:
    """Build a function that runs one turn of Hallmark."""

    def run_turn() -> Turn:
        start = time.perf_counter()
        responses = audits.generate_response_table(model, requests)
        middle = time.perf_counter()
        audits.score_texts(scorer, audits.select_texts_to_score(responses))
        token_count = pc.sum(pc.list_value_length(responses["token_ids"])).as_py()
        return Turn(middle - start, time.perf_counter() - middle, token_count)

    return run_turn


def compare_implementations(implementations: dict[str, Callable[[], Turn]], turns: int) -> None:
    """Run the implementations in alternation, and print their times relative to the first."""
    times = {name: ImplementationTimes([], []) for name in implementations}
    for run_turn in implementations.values():
        run_turn()  # warm up
    for _ in range(turns):
        for name, run_turn in implementations.items():
            turn = run_turn()
            times[name].generation_seconds.append(turn.generation_seconds)
            times[name].scoring_seconds.append(turn.scoring_seconds)
            times[name].token_count = turn.token_count
    baseline, *_ = times
    baseline_seconds = statistics.median(times[baseline].sum_seconds())
    for name, tool_times in times.items():
        total = tool_times.sum_seconds()
        ratio = baseline_seconds / statistics.median(total)
        print(
            f"{name:<24}respond {statistics.median(tool_times.generation_seconds):7.2f} s, score "
            f"{statistics.median(tool_times.scoring_seconds):7.2f} s, total "
            f"{statistics.median(total):7.2f} s ({min(total):.2f} to {max(total):.2f}); "
            f"{tool_times.token_count:,} tokens generated; {ratio:.2f} times as fast as {baseline}",
            flush=True,
        )


def run_benchmark(options: argparse.Namespace, folder: Path) -> None:
    """Time the parts of the audit, then compare with other tools."""
    from detoxify import Detoxify
    from transformers import AutoModelForCausalLM

    print(
        f"torch {torch.__version__}, transformers {version('transformers')}, tokenizers "
        f"{version('tokenizers')}, detoxify {version('detoxify')}; {torch.get_num_threads()} "
        f"threads, {torch.backends.cpu.get_cpu_capability()}"
    )
    builtin_prompts = [prompt.text for prompt in toxicity.read_toxicity_prompts(None)]
    texts = builtin_prompts + sample_manual_passages(200, 0)
    checkpoint, base_folder = write_random_checkpoint(folder, texts, options.layers)
    config = ScorerConfig(
        kind="detoxify", checkpoint=checkpoint, base_model_folder=base_folder, device="cpu"
    )
    scorer = DetoxifyScorer(config)
    model = open_audited_model(options.checkpoint, "cpu", dtype="float32")
    toxicity_part, *other_parts = build_audit_parts(
        options.data,
        prompt_count=options.prompts,
        sequence_count=options.sequences,
        scratch_folder=folder,
    )
    print(f"{'part':<16}{'texts':>8}{''.join(f'{name:>10}' for name in STAGES)}, seconds, fp32")
    total_seconds = [0.0] * len(STAGES)
    for part in (toxicity_part, *other_parts):
        if options.only and part.title not in options.only:
            continue
        times = time_audit_part(part, model, scorer)
        total_seconds = [a + b for a, b in zip(total_seconds, times.seconds, strict=True)]
        cells = "".join(f"{seconds:>10.2f}" for seconds in times.seconds)
        print(f"{part.title:<16}{times.response_count:>8,}{cells}", flush=True)
    print(f"{'total':<16}{'':>8}{''.join(f'{seconds:>10.2f}' for seconds in total_seconds)}")
    requests = audits.build_probe_requests(
        toxicity_part.probe, model, toxicity_part.config
    ).requests
    export_transformers(
        load_checkpoint(options.checkpoint, "cpu"),
        folder / "exported",
        tokenizer_path=options.checkpoint / "tokenizer.json",
    )
    peer = AutoModelForCausalLM.from_pretrained(folder / "exported").eval()
    detoxify = Detoxify(checkpoint=str(checkpoint))
    implementations = {
        "transformers, Detoxify": build_peer_turn(
            peer, detoxify, requests, toxicity_part.config, model.decode
        ),
        "fp32": build_hallmark_turn(model, scorer, requests),
    }
    if options.bf16:
        bf16_scorer = DetoxifyScorer(config.model_copy(update={"precision": "bf16"}))
        bf16_model = open_audited_model(options.checkpoint, "cpu", dtype="bfloat16")
        implementations["bf16"] = build_hallmark_turn(bf16_model, bf16_scorer, requests)
    compare_implementations(implementations, options.turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="checkpoint folder of a decoder")
    parser.add_argument("--data", type=Path, help="folder of the public sets")
    parser.add_argument("--only", nargs="+", help="names of the parts to run; default: all")
    parser.add_argument("--bf16", action="store_true", help="also measure Hallmark in bf16")
    for name, value, description in (
        ("turns", 3, "runs of each implementation"),
        ("layers", 12, "layers of the scorer"),
        ("prompts", 100, "prompts of the toxicity part"),
        ("sequences", 200, "sequences of the extraction part"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=description)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_benchmark(options, Path(folder))


if __name__ == "__main__":
    main()
