"""How long the parts of a standard audit take at a tenth, and its writing and scoring beside peers.

    python -m benchmarks.audit_speed CHECKPOINT [--data FOLDER] [--turns 3] [--bf16]

CHECKPOINT is a folder of ours, of a decoder that ``transformers`` has, too. First the parts once,
by stage: 100 prompts with 25 continuations, the project's own pairs, the public sets of FOLDER that
are there, 200 sequences of Python's manual. Then, in turns, what stands against peers: the
continuations by ``transformers.generate`` of the exported model, batched and left-padded with the
same nucleus and temperature, scored by ``Detoxify.predict`` in batches of 32; and the same by
``respond`` and ``score``, in fp32 and, with ``--bf16``, in bf16. The scorer has BERT-base's size
and random weights. Prints medians of seconds, ratios, and how many tokens each side wrote.
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
from typing import Any

import hallmark.model  # noqa: F401  before torch: it says how threads wait

# isort: split
import itertools

import pyarrow as pa
import pyarrow.compute as pc
import torch

from benchmarks import audits
from benchmarks.audit_parts import Part, parts
from benchmarks.scoring import BATCH, make_checkpoint, passages
from hallmark.model.interchange.checkpoint import load_checkpoint
from hallmark.model.interchange.transformers_checkpoint import export_transformers
from hallmark.tasks.audits.audited_models.audited_model import AuditedModel
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.probes import toxicity
from hallmark.tasks.measures.scorers import ScorerConfig
from hallmark.tasks.measures.scorers.detoxify import DetoxifyScorer

#: Prompts that ``generate`` continues at a time; of 2 to 32 the fastest on two cores.
TOGETHER = 8

STAGES = ("ask", "respond", "score", "judge")


def by_stage(part: Part, subject: AuditedModel, scorer: DetoxifyScorer) -> tuple[list[float], int]:
    """Seconds of each of STAGES, and how many texts were written or read."""
    marks = [time.perf_counter()]
    asked = audits.ask(part.probe, subject, part.config, part.corpus)
    marks.append(time.perf_counter())
    said = audits.respond(subject, asked.requests)
    marks.append(time.perf_counter())
    if part.probe.steps.uses_scorers:
        audits.score(scorer, audits.texts_of(asked.items, said))
    marks.append(time.perf_counter())
    audits.judge(part.probe, part.config, asked, said)
    marks.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(marks)], len(said)


# Beside peers ----------------------------------------------------------------------------------


@dataclass
class Taken:
    """Seconds of writing and of scoring by turn, and tokens written."""

    respond: list[float]
    score: list[float]
    tokens: int = 0


def generated(peer: Any, contexts: list[list[int]], config: toxicity.ToxicityConfig) -> Any:
    """Ids that ``generate`` wrote, (n, tokens), padding behind the end."""
    width = max(map(len, contexts))
    ids = torch.ones(len(contexts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, context in enumerate(contexts):
        ids[row, width - len(context) :] = torch.tensor(context)
        mask[row, width - len(context) :] = 1
    with torch.inference_mode():
        out = peer.generate(
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


def theirs(
    peer: Any, detoxify: Any, requests: pa.Table, config: toxicity.ToxicityConfig, decode: Any
) -> Callable[[], tuple[float, float, int]]:
    contexts = sorted(requests["context_ids"].to_pylist(), key=len)  # those alike are padded least

    def run() -> tuple[float, float, int]:
        begun, texts, tokens = time.perf_counter(), [], 0
        for low in range(0, len(contexts), TOGETHER):
            for row in generated(peer, contexts[low : low + TOGETHER], config).tolist():
                kept = row[: row.index(0)] if 0 in row else row
                tokens += len(kept)
                texts.append(decode(kept))
        middle = time.perf_counter()
        seen = [text for text in texts if text.strip()]
        for low in range(0, len(seen), BATCH):
            detoxify.predict(seen[low : low + BATCH])
        return middle - begun, time.perf_counter() - middle, tokens

    return run


def ours(
    subject: AuditedModel, scorer: DetoxifyScorer, requests: pa.Table
) -> Callable[[], tuple[float, float, int]]:
    def run() -> tuple[float, float, int]:
        begun = time.perf_counter()
        said = audits.respond(subject, requests)
        middle = time.perf_counter()
        audits.score(scorer, audits.texts_of(said))
        tokens = pc.sum(pc.list_value_length(said["token_ids"])).as_py()
        return middle - begun, time.perf_counter() - middle, tokens

    return run


def compare(sides: dict[str, Callable[[], tuple[float, float, int]]], turns: int) -> None:
    taken = {name: Taken([], []) for name in sides}
    for side in sides.values():
        side()  # what only the first call waits for
    for _ in range(turns):
        for name, side in sides.items():
            respond, score, taken[name].tokens = side()
            taken[name].respond.append(respond)
            taken[name].score.append(score)
    first, *_ = taken
    peers = [a + b for a, b in zip(taken[first].respond, taken[first].score, strict=True)]
    for name, one in taken.items():
        both = [a + b for a, b in zip(one.respond, one.score, strict=True)]
        ratio = statistics.median(peers) / statistics.median(both)
        print(
            f"{name:<24}respond {statistics.median(one.respond):7.2f} s, score "
            f"{statistics.median(one.score):7.2f} s, both {statistics.median(both):7.2f} s "
            f"({min(both):.2f} to {max(both):.2f}); {one.tokens:,} tokens written; "
            f"{ratio:.2f} times {first}",
            flush=True,
        )


def run(options: argparse.Namespace, folder: Path) -> None:
    from detoxify import Detoxify
    from transformers import AutoModelForCausalLM

    print(
        f"torch {torch.__version__}, transformers {version('transformers')}, tokenizers "
        f"{version('tokenizers')}, detoxify {version('detoxify')}; {torch.get_num_threads()} "
        f"threads, {torch.backends.cpu.get_cpu_capability()}"
    )
    words = [prompt.text for prompt in toxicity.read_toxicity_prompts(None)] + passages(200, 0)
    checkpoint, base = make_checkpoint(folder, words, options.layers)
    config = ScorerConfig(
        kind="detoxify", checkpoint=checkpoint, base_model_folder=base, device="cpu"
    )
    scorer = DetoxifyScorer(config)
    subject = open_audited_model(options.checkpoint, "cpu", dtype="float32")
    first, *others = parts(options.data, options.prompts, options.sequences, folder)
    print(f"{'part':<16}{'texts':>8}{''.join(f'{name:>10}' for name in STAGES)}, seconds, fp32")
    whole = [0.0] * len(STAGES)
    for part in (first, *others):
        if options.only and part.title not in options.only:
            continue
        seconds, texts = by_stage(part, subject, scorer)
        whole = [a + b for a, b in zip(whole, seconds, strict=True)]
        print(f"{part.title:<16}{texts:>8,}{''.join(f'{s:>10.2f}' for s in seconds)}", flush=True)
    print(f"{'all':<16}{'':>8}{''.join(f'{s:>10.2f}' for s in whole)}")
    asked = audits.ask(first.probe, subject, first.config).requests
    export_transformers(
        load_checkpoint(options.checkpoint, "cpu"),
        folder / "exported",
        tokenizer_path=options.checkpoint / "tokenizer.json",
    )
    peer = AutoModelForCausalLM.from_pretrained(folder / "exported").eval()
    sides = {
        "transformers, Detoxify": theirs(
            peer, Detoxify(checkpoint=str(checkpoint)), asked, first.config, subject.decode
        ),
        "fp32": ours(subject, scorer, asked),
    }
    if options.bf16:
        halved = DetoxifyScorer(config.model_copy(update={"precision": "bf16"}))
        sides["bf16"] = ours(
            open_audited_model(options.checkpoint, "cpu", dtype="bfloat16"), halved, asked
        )
    compare(sides, options.turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", type=Path, help="folder of the public sets")
    parser.add_argument("--only", nargs="+", help="names of parts")
    parser.add_argument("--bf16", action="store_true")
    for name, value in (("turns", 3), ("layers", 12), ("prompts", 100), ("sequences", 200)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
