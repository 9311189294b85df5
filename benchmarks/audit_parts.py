"""The standard audit in parts: which probes ask a model, about what, in which numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import audits
from benchmarks.scoring import passages
from hallmark.tasks.audits.probe import CorpusTables, Probe
from hallmark.tasks.audits.probes import (
    bbq,
    bias,
    extraction,
    stereoset,
    toxicity,
    winobias,
    winogender,
)


@dataclass(frozen=True)
class Part:
    """A probe and how it is set."""

    probe: Probe
    config: Any
    corpus: CorpusTables
    name: str = ""

    @property
    def title(self) -> str:
        return self.name or self.probe.name


def parts(data: Path | None, prompts: int, sequences: int, folder: Path) -> Iterator[Part]:
    """The standard audit: so many prompts, written down in ``folder``, and so many sequences, one
    window each; the public sets whose files are in ``data``."""
    none, path = CorpusTables(), folder / "prompts.jsonl"
    texts = prompts_of(data, prompts)
    path.write_text("".join(json.dumps({"prompt": t}) + "\n" for t in texts), encoding="utf-8")
    yield Part(
        toxicity.PROBE,
        toxicity.ToxicityConfig(prompts=path, unprompted_groups=0, baseline_groups=0),
        none,
    )
    yield Part(bias.PROBE, bias.BiasConfig(), none)
    rows = [
        {
            "doc_id": f"{number}".encode().rjust(16),
            "source": "manual",
            "text": text,
            "split": "holdout" if number % 2 else "train",
        }
        for number, text in enumerate(t for t in passages(12 * sequences, 1) if len(t) > 600)
    ]
    schema = pa.schema(
        [
            ("doc_id", pa.binary(16)),
            ("source", pa.string()),
            ("text", pa.large_string()),
            ("split", pa.string()),
        ]
    )
    known = CorpusTables(documents=audits.held(pa.Table.from_pylist(rows, schema=schema)))
    sampled = extraction.ExtractionConfig(
        documents_per_split=sequences // 2, max_windows=1, prefix_tokens=(32,)
    )
    yield Part(extraction.PROBE, sampled, known)
    yield from public(data) if data else ()


def prompts_of(data: Path | None, count: int) -> list[str]:
    """Half toxic prompts and half others of RealToxicityPrompts, where they are; else the project's
    own, which are numbered from the second time on: equal ones would be asked once."""
    files = (
        [data / f"realtoxicityprompts_{kind}.jsonl" for kind in ("toxic", "nontoxic")]
        if data
        else []
    )
    if files and all(path.exists() for path in files):
        each = [
            list(dict.fromkeys(prompt.text for prompt in toxicity.read_toxicity_prompts(path)))
            for path in files
        ]
        return [text for texts in each for text in texts[: count // 2]]
    own = [prompt.text for prompt in toxicity.read_toxicity_prompts(None)]
    rounds = [own, *([f"{n}. {text}" for text in own] for n in range(2, 2 + count // len(own)))]
    return [text for texts in rounds for text in texts][:count]


def public(data: Path) -> Iterator[Part]:
    """Those whose files are in the folder."""
    none = CorpusTables()
    sides = {
        side: tuple(
            path for n in (1, 2) if (path := data / f"winobias_{side}_type{n}_test.txt").exists()
        )
        for side in ("pro", "anti")
    }
    files = {
        name: path
        for name, file in (
            ("crows", "crows_pairs_anonymized.csv"),
            ("stereoset", "stereoset.jsonl.gz"),
            ("sentences", "winogender_sentences.tsv"),
        )
        if (path := data / file).exists()
    }
    if "crows" in files:
        yield Part(bias.PROBE, bias.BiasConfig(pairs=files["crows"]), none, "CrowS-Pairs")
    if len(sides["pro"]) == len(sides["anti"]) > 0:
        pronouns = winobias.WinobiasConfig(
            pro_stereotypical=sides["pro"], anti_stereotypical=sides["anti"]
        )
        yield Part(winobias.PROBE, pronouns, none)
    if "sentences" in files:
        asked = winogender.WinogenderConfig(sentences=files["sentences"])
        yield Part(winogender.PROBE, asked, none)
    if "stereoset" in files:
        asked_of = stereoset.StereosetConfig(items=files["stereoset"])
        yield Part(stereoset.PROBE, asked_of, none)
    if questions := tuple(sorted(data.glob("bbq_*.jsonl.gz"))):
        yield Part(bbq.PROBE, bbq.BbqConfig(items=questions), none)
