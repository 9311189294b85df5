"""Check the figures of ``hallmark plan``: plan a run from two smaller ones, and measure it.

    python -m benchmarks.planner [--megabytes 750 1500 3000] [--workers 2] [--folder FOLDER]

Writes three corpora of generated text, runs each of them until the last stage before the training,
each in a process of its own with one store, and plans the third from the first two. Prints the
predicted and the measured seconds of each stage with their ratio, the same for processor seconds,
and the peak memory of the main process and of the workers.

Wall seconds depend on what else the machine does, processor seconds hardly. With ``--folder``,
corpora and store are kept, and existing ones are used again.

The text is that of the invented town. In each copy of it, longer words are replaced by others, so
that no document of a copy repeats one of another copy, and larger corpora are of the same kind as
smaller ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from hallmark.flows.forecast.corpus_estimates import count_packed_tokens
from hallmark.flows.forecast.scale_plan import LAST_CORPUS_STAGE, plan_run
from hallmark.flows.forecast.unit_costs import StageMeasurement, measure_stage
from hallmark.flows.runs import Run, open_run
from hallmark.tasks.corpus.town.documents import BLOCK_DOCUMENTS, TownRates, compose_block

#: The documents of a copy: this many blocks of the town.
BLOCKS_PER_COPY = 6

#: The words that are replaced; shorter ones show the language of a text.
REPLACED_WORD = re.compile(r"\b[a-z]{5,}\b")

CONFIG = """\
name = "planner"
workers = {workers}

[[ingest.sources]]
kind = "jsonl"
name = "generated"
path = {path}
"""


# Text -------------------------------------------------------------------------------------------


def write_corpus(folder: Path, size: float, texts: list[str]) -> None:
    """Write copies of texts as jsonl files until they have a number of bytes of text.

    Args:
        folder: The folder; it is complete once it exists.
        size: The bytes of text.
        texts: The texts of a copy.
    """
    if folder.exists():
        return
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    vocabulary = sorted({word for text in texts for word in REPLACED_WORD.findall(text)})
    written, number = 0, 0
    while written < size:
        with (unfinished / f"copy-{number:05d}.jsonl").open("w", encoding="utf-8") as file:
            replacements: dict[str, str] = {}
            for text in texts:
                text = replace_words(text, number, vocabulary, replacements)
                file.write(json.dumps({"text": text}) + "\n")
                written += len(text.encode())
                if written >= size:
                    break
        number += 1
    unfinished.rename(folder)


def replace_words(
    text: str, number: int, vocabulary: list[str], replacements: dict[str, str]
) -> str:
    """Replace the longer words of a text by others, which depend on the number of the copy.

    Args:
        text: The text.
        number: The number of the copy.
        vocabulary: The words that replace others.
        replacements: The replacements so far, which this function adds to.
    """

    def get_replacement(match: re.Match[str]) -> str:
        word = match[0]
        if word not in replacements:
            digest = hashlib.blake2b(f"{number} {word}".encode(), digest_size=8).digest()
            replacements[word] = vocabulary[int.from_bytes(digest, "big") % len(vocabulary)]
        return replacements[word]

    return REPLACED_WORD.sub(get_replacement, text)


def compose_texts() -> list[str]:
    """Compose the texts of a copy, with the exact copies and near-duplicates that the town has."""
    total = BLOCKS_PER_COPY * BLOCK_DOCUMENTS
    return [
        document.text
        for block in range(BLOCKS_PER_COPY)
        for document in compose_block(block, total, 0, TownRates())
    ]


# Runs -------------------------------------------------------------------------------------------


def execute_run(folder: Path, size: int, workers: int) -> Run:
    """Run the stages before the training on a corpus, in a process of its own.

    Args:
        folder: Folder of the corpora and of the store.
        size: The size of the corpus in megabytes.
        workers: Number of workers.
    """
    config = folder / f"planner-{size}.toml"
    config.write_text(
        CONFIG.format(workers=workers, path=json.dumps(f"{folder}/corpus-{size}/*.jsonl"))
    )
    command = [sys.executable, "-m", "hallmark.flows.cli", "run", str(config), "--json"]
    command += ["--until", LAST_CORPUS_STAGE, "--store", str(folder / "store")]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return open_run(json.loads(done.stdout)["run"], str(folder / "store"))


def count_training_tokens(run: Run) -> int:
    """Count the tokens of the train split."""
    packed = run[LAST_CORPUS_STAGE]
    return count_packed_tokens(packed, "train", packed.get_setting("context"))


def measure_stages(run: Run) -> dict[str, StageMeasurement]:
    """Read what a run measured of the stages that it computed, by label."""
    measurements = {
        label: measure_stage(run, label, run[label])
        for label, entry in run.stages.items()
        if not entry["cached"]
    }
    return {label: row for label, row in measurements.items() if row}


def print_comparison(
    planned_stages: list[dict], measurements: dict[str, StageMeasurement], run: Run
) -> None:
    """Print predicted and measured seconds of each stage that the run computed."""
    print(
        f"{'stage':<26}{'predicted':>11}{'measured':>11}{'ratio':>7}"
        f"{'processor s':>13}{'measured':>11}{'ratio':>7}  costs per"
    )
    totals = [0.0] * 4
    for stage in planned_stages:
        if stage["label"] not in measurements:
            continue
        measured = measurements[stage["label"]]
        figures = [
            stage["seconds"]["value"],
            run.stages[stage["label"]]["seconds"],
            stage["processor_seconds"]["value"],
            measured.costs["processor_seconds"],
        ]
        totals = [total + figure for total, figure in zip(totals, figures, strict=True)]
        print(format_row(stage["label"], figures) + f"  {stage['basis']}")
    print(format_row("all stages", totals))
    serial_seconds = sum(row.costs["serial_seconds"] for row in measurements.values())
    print(f"in one process: {serial_seconds:.1f} s, {serial_seconds / totals[1]:.1%} of the time")


def format_row(label: str, figures: list[float]) -> str:
    """Format predicted and measured seconds, then predicted and measured processor seconds."""
    wall, measured_wall, processor, measured_processor = figures
    return (
        f"{label:<26}{wall:>10.2f}s{measured_wall:>10.2f}s{divide(wall, measured_wall):>7.2f}"
        f"{processor:>12.2f}s{measured_processor:>10.2f}s"
        f"{divide(processor, measured_processor):>7.2f}"
    )


def divide(numerator: float, denominator: float) -> float:
    """Divide; a ratio to zero is not a number."""
    return numerator / denominator if denominator else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, nargs=3, default=[750, 1500, 3000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keep corpora and store in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hallmark-planner-") as scratch:
        folder = (options.folder or Path(scratch)).absolute()
        texts = compose_texts()
        for size in options.megabytes:
            write_corpus(folder / f"corpus-{size}", size * 1e6, texts)
        runs = [execute_run(folder, size, options.workers) for size in options.megabytes[:2]]
        tokens = [count_training_tokens(run) for run in runs]
        print(f"corpora of {options.megabytes} MB, {options.workers} workers")
        for run, size, count in zip(runs, options.megabytes, tokens, strict=False):
            seconds = sum(entry["seconds"] for entry in run.stages.values())
            print(f"{size} MB: {count:,} training tokens, {seconds:.1f} s")
        plan = plan_run(
            str(folder / f"planner-{options.megabytes[1]}.toml"),
            store=str(folder / "store"),
            tokens=tokens[1] * options.megabytes[2] / options.megabytes[1],
        )
        run = execute_run(folder, options.megabytes[2], options.workers)
        print(
            f"{options.megabytes[2]} MB: {count_training_tokens(run):,} training tokens, planned "
            f"{plan['tokens']:,.0f}"
        )
        measurements = measure_stages(run)
        print_comparison(plan["stages"], measurements, run)
        for name, values in (
            ("worker", [row.worker_memory_bytes for row in measurements.values()]),
            ("main process", [row.costs["main_memory_bytes"] for row in measurements.values()]),
        ):
            print(f"peak memory, {name}: {max(values) / 1e6:,.0f} MB")
        planned = plan["corpus"]
        print(
            f"planned: worker {planned['worker_memory_bytes'] / 1e6:,.0f} MB, main process "
            f"{planned['main_memory_bytes']['value'] / 1e6:,.0f} MB"
        )


if __name__ == "__main__":
    main()
