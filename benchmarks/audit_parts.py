"""Define the standard audit of the speed benchmarks: its probes, their settings and their sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import audits
from benchmarks.scoring import sample_manual_passages
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
class AuditPart:
    """A probe with its settings and the corpus tables that it reads."""

    probe: Probe
    config: Any
    corpus: CorpusTables
    name: str = ""
    """Name of the part, if it differs from the probe's."""

    @property
    def title(self) -> str:
        return self.name or self.probe.name


def build_audit_parts(
    public_sets: Path | None, *, prompt_count: int, sequence_count: int, scratch_folder: Path
) -> Iterator[AuditPart]:
    """Yield the parts of the standard audit.

    Args:
        public_sets: Folder with public test sets; sets whose files are missing are skipped.
        prompt_count: Number of prompts of the toxicity probe.
        sequence_count: Number of sequences of the extraction probe, one window each.
        scratch_folder: Where the file with the prompts is written.
    """
    empty_corpus, prompts_path = CorpusTables(), scratch_folder / "prompts.jsonl"
    prompts = choose_prompts(public_sets, prompt_count)
    prompts_path.write_text(
        "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8"
    )
    yield AuditPart(
        toxicity.PROBE,
        toxicity.ToxicityConfig(prompts=prompts_path, unprompted_groups=0, baseline_groups=0),
        empty_corpus,
    )
    yield AuditPart(bias.PROBE, bias.BiasConfig(), empty_corpus)
    long_passages = (t for t in sample_manual_passages(12 * sequence_count, 1) if len(t) > 600)
    rows = [
        {
            "doc_id": f"{number}".encode().rjust(16),
            "cluster": f"{number}".encode().rjust(16),
            "source": "manual",
            "text": text,
            "split": "holdout" if number % 2 else "train",
        }
        for number, text in enumerate(long_passages)
    ]
    schema = pa.schema(
        [
            ("doc_id", pa.binary(16)),
            ("cluster", pa.binary(16)),
            ("source", pa.string()),
            ("text", pa.large_string()),
            ("split", pa.string()),
        ]
    )
    corpus = CorpusTables(
        documents=audits.wrap_corpus_rows(pa.Table.from_pylist(rows, schema=schema))
    )
    extraction_config = extraction.ExtractionConfig(
        documents_per_split=sequence_count // 2, max_windows=1, prefix_tokens=(32,)
    )
    yield AuditPart(extraction.PROBE, extraction_config, corpus)
    yield from build_public_set_parts(public_sets) if public_sets else ()


def choose_prompts(public_sets: Path | None, count: int) -> list[str]:
    """Choose prompts of RealToxicityPrompts, or the built-in prompts if its files are missing.

    Half of the prompts of RealToxicityPrompts are toxic. The built-in prompts are repeated as often
    as necessary. Repetitions are numbered, because equal prompts would be asked once.
    """
    files = (
        [public_sets / f"realtoxicityprompts_{kind}.jsonl" for kind in ("toxic", "nontoxic")]
        if public_sets
        else []
    )
    if files and all(path.exists() for path in files):
        distinct_prompts = [
            list(dict.fromkeys(prompt.text for prompt in toxicity.read_toxicity_prompts(path)))
            for path in files
        ]
        return [prompt for prompts in distinct_prompts for prompt in prompts[: count // 2]]
    builtin = [prompt.text for prompt in toxicity.read_toxicity_prompts(None)]
    rounds = [
        builtin,
        *([f"{n}. {prompt}" for prompt in builtin] for n in range(2, 2 + count // len(builtin))),
    ]
    return [prompt for prompts in rounds for prompt in prompts][:count]


def build_public_set_parts(public_sets: Path) -> Iterator[AuditPart]:
    """Yield a part for each public test set whose files are in the folder."""
    empty_corpus = CorpusTables()
    winobias_files = {
        side: tuple(
            path
            for n in (1, 2)
            if (path := public_sets / f"winobias_{side}_type{n}_test.txt").exists()
        )
        for side in ("pro", "anti")
    }
    files = {
        name: path
        for name, file_name in (
            ("crows", "crows_pairs_anonymized.csv"),
            ("stereoset", "stereoset.jsonl.gz"),
            ("winogender", "winogender_sentences.tsv"),
        )
        if (path := public_sets / file_name).exists()
    }
    if "crows" in files:
        crows_config = bias.BiasConfig(pairs=files["crows"])
        yield AuditPart(bias.PROBE, crows_config, empty_corpus, "CrowS-Pairs")
    if len(winobias_files["pro"]) == len(winobias_files["anti"]) > 0:
        winobias_config = winobias.WinobiasConfig(
            pro_stereotypical=winobias_files["pro"], anti_stereotypical=winobias_files["anti"]
        )
        yield AuditPart(winobias.PROBE, winobias_config, empty_corpus)
    if "winogender" in files:
        winogender_config = winogender.WinogenderConfig(sentences=files["winogender"])
        yield AuditPart(winogender.PROBE, winogender_config, empty_corpus)
    if "stereoset" in files:
        stereoset_config = stereoset.StereosetConfig(items=files["stereoset"])
        yield AuditPart(stereoset.PROBE, stereoset_config, empty_corpus)
    if bbq_files := tuple(sorted(public_sets.glob("bbq_*.jsonl.gz"))):
        yield AuditPart(bbq.PROBE, bbq.BbqConfig(items=bbq_files), empty_corpus)
