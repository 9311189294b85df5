"""Compare the rules of Gopher, C4 and FineWeb with datatrove's filters: verdicts and speed.

    python -m benchmarks.quality --opponent FOLDER [--data FOLDER] [--documents 20000] [--turns 5]

--opponent is a folder for datatrove's environment, which is created if it is missing (from PyPI).
Documents are those of --data (jsonl, csv, parquet, txt, plain or compressed, see
benchmarks.curation), or generated from a seed. Both tools work on one core, in alternation, on
documents in memory. Both separate words by white space, and sentences by a mark and white space.

The time is processor time. For datatrove it is that of its filters' ``filter`` on every document,
which stops at the first rule that fails, without its pipeline; for Hallmark that of all signals of
the stage ``quality`` and all rules of the three presets. Prints a table of times and one of
verdicts. For each document on which the two differ, the cause is searched in the text. Exits with 1
if a difference is unexplained.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.curation import read_texts
from hallmark.tasks.contract import read_library_versions
from hallmark.tasks.corpus.quality import QualityConfig, compute_quality_table
from hallmark.tasks.corpus.quality_signals.c4 import CITATION_PATTERN
from hallmark.tasks.corpus.select import SelectConfig, SelectionRule

DATATROVE_VERSION = "0.10.1"

#: Limits of a batch of documents: those of a row group in a stage.
MAX_BATCH_ROWS, MAX_BATCH_BYTES = 4096, 4 << 20

#: For each filter of datatrove, the preset that has the same rules.
PRESET_BY_FILTER = {
    "Gopher quality": "gopher",
    "Gopher repetition": "gopher",
    "C4": "c4",
    "FineWeb": "fineweb",
    "FineWeb, with the paper's limit": "fineweb",
    "C4, without citations": "c4",
}


def generate_documents(count: int, seed: int = 0) -> list[str]:
    """Generate texts with words from Zipf's law; about half violate a rule, or nearly do."""
    rng = random.Random(seed)
    stop_words = ["the", "be", "to", "of", "and", "that", "have", "with"]
    words = stop_words + [
        "".join(rng.choices("etaoinshrdlucmfwyp", k=rng.randint(2, 11))) for _ in range(5000)
    ]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    unusual_lines = [
        "Menu",
        "- item",
        "• point",
        "and so on...",
        "#tag #tag",
        "{ x: 1 }",
        "Read more.",
        "42 7",
        "This site uses cookies for all of you.",
        "Lorem ipsum dolor sit amet.",
        "Please enable JavaScript in your browser.",
        "The river is long.[12]",
        "It is late. [3]",
        "",
        "中文。",
    ]
    documents = []
    for _ in range(count):
        lines: list[str] = []
        unusual_share = rng.random() ** 3
        for _ in range(rng.randint(1, 25)):
            number = rng.random()
            if number < unusual_share * 0.6:
                lines.append(rng.choice(unusual_lines))
            elif number < unusual_share * 0.8 and lines:
                lines.append(rng.choice(lines))
            else:
                line = " ".join(rng.choices(words, weights, k=rng.randint(1, 30)))
                lines.append(line + rng.choice([".", ".", ".", "?", "", "...", '."']))
        documents.append(rng.choice(["\n", "\n", "\n\n", "\r\n"]).join(lines))
    return documents


def split_into_batches(documents: Sequence[str]) -> Iterator[pa.Array]:
    """Yield documents in batches of limited rows and bytes."""
    batch, size = [], 0
    for text in documents:
        batch.append(text)
        size += len(text.encode())
        if len(batch) >= MAX_BATCH_ROWS or size >= MAX_BATCH_BYTES:
            yield pa.array(batch, pa.large_string())
            batch, size = [], 0
    if batch:
        yield pa.array(batch, pa.large_string())


def build_rules_by_filter() -> dict[str, list[SelectionRule]]:
    """Build the rules that correspond to each of datatrove's filters.

    The preset of Gopher belongs to two filters: one for repetitions, one for words and lines.
    """
    presets = {
        preset: SelectConfig(presets=(preset,)).rules for preset in PRESET_BY_FILTER.values()
    }
    rules_by_filter = {name: list(presets[preset]) for name, preset in PRESET_BY_FILTER.items()}
    gopher = presets["gopher"]
    repetition = [rule for rule in gopher if rule.signal.startswith(("duplicate", "top"))]
    rules_by_filter["Gopher repetition"] = repetition
    rules_by_filter["Gopher quality"] = [rule for rule in gopher if rule not in repetition]
    return rules_by_filter


def apply_rules(
    batches: Sequence[pa.Array], rules_by_filter: dict[str, list[SelectionRule]]
) -> pa.Table:
    """Compute all signals of documents, and the first rule of each filter that they violate.

    Returns:
        One row for each document, with a column for each signal and one for each filter; the latter
        is null if no rule is violated.
    """
    tables = []
    config = QualityConfig()
    for batch in batches:
        table = compute_quality_table(batch, config).combine_chunks()
        for name, rules in rules_by_filter.items():
            reason = pa.nulls(len(batch), pa.string())
            for rule in reversed(rules):
                values = table[rule.signal].combine_chunks()
                violated = pc.fill_null(rule.find_violations(values), rule.on_missing == "remove")
                reason = pc.if_else(violated, rule.name, reason)
            table = table.append_column(name, reason)
        tables.append(table)
    return pa.concat_tables(tables)


#: datatrove's verdict on a document: True if it is kept, else the reason for the removal.
Verdict = bool | str


def explain_difference(
    filter_name: str, text: str, row: dict[str, object], datatrove_verdict: Verdict
) -> str:
    """Explain why the verdicts on a document differ, or return "unexplained".

    Args:
        filter_name: Name of the filter.
        text: The document.
        row: Its row in the table of ``apply_rules``.
        datatrove_verdict: datatrove's verdict.
    """
    duplicate_share = float(str(row["duplicate_characters"]))
    if (
        filter_name == "FineWeb"
        and datatrove_verdict == "char_dup_ratio"
        and 0.01 < duplicate_share <= 0.1
    ):
        return "datatrove's limit for duplicated characters is 0.01, the paper's is 0.1"
    if filter_name == "C4" and re.search(CITATION_PATTERN.replace(r"\p{Nd}", r"\d"), text):
        return "datatrove removes citations only after it has counted white space and words"
    if filter_name == "Gopher repetition" and not text:
        return "the text is empty, which Hallmark removes by a rule for words"
    if filter_name == "Gopher repetition" and str(datatrove_verdict).startswith("duplicated_"):
        words = text.split()
        for n in range(5, 11):
            ngrams = {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}
            if len({"".join(ngram) for ngram in ngrams}) < len(ngrams):
                return "datatrove joins words without a space, so that different n-grams are equal"
    return "unexplained"


def prepare_environment(folder: Path) -> Path:
    """Create an environment with datatrove if it is missing, and return its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    packages = [f"datatrove=={DATATROVE_VERSION}", "numpy", "regex"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


class Comparison(NamedTuple):
    """The results of both tools."""

    seconds_by_tool: dict[str, list[float]]
    """Processor seconds of each turn."""
    hallmark_table: pa.Table
    """The table of ``apply_rules``."""
    datatrove_verdicts: dict[str, list[Verdict]]
    """For each filter, the verdict on each document."""
    datatrove_version: str


def run_in_alternation(python: Path, documents: Sequence[str], turns: int) -> Comparison:
    """Run both tools in alternation.

    Args:
        python: Interpreter of datatrove's environment.
        documents: The documents.
        turns: Runs of each tool.
    """
    rules_by_filter, batches = build_rules_by_filter(), list(split_into_batches(documents))
    apply_rules(batches[:1], rules_by_filter)  # warm up: the first call builds character tables
    with tempfile.TemporaryDirectory() as scratch:
        documents_path = Path(scratch) / "documents.jsonl"
        verdicts_path = Path(scratch) / "verdicts.json"
        documents_path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        script = Path(__file__).with_name("quality_opponent.py")
        command = [str(python), str(script), str(documents_path), str(verdicts_path)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as datatrove:
            assert datatrove.stdin and datatrove.stdout
            version = datatrove.stdout.readline().strip()
            seconds: dict[str, list[float]] = {"datatrove": [], "Hallmark": []}
            for _ in range(turns):
                datatrove.stdin.write("go\n")
                datatrove.stdin.flush()
                seconds["datatrove"].append(float(datatrove.stdout.readline()))
                start = time.process_time()
                table = apply_rules(batches, rules_by_filter)
                seconds["Hallmark"].append(time.process_time() - start)
            datatrove.stdin.close()
        return Comparison(seconds, table, json.loads(verdicts_path.read_text()), version)


def print_times(seconds_by_tool: dict[str, list[float]], document_count: int) -> None:
    print("| | seconds, median | minimum to maximum | documents per second | speed-up |")
    print("|---|---|---|---|---|")
    datatrove_seconds = statistics.median(seconds_by_tool["datatrove"])
    for tool, seconds in seconds_by_tool.items():
        median = statistics.median(seconds)
        spread, speed = f"{min(seconds):.2f} to {max(seconds):.2f}", document_count / median
        speed_up = datatrove_seconds / median
        print(f"| {tool} | {median:.2f} | {spread} | {speed:,.0f} | {speed_up:.1f} |")


def print_verdicts(documents: Sequence[str], comparison: Comparison) -> int:
    """Print for each filter how many documents each tool removes.

    Returns:
        The number of documents with different verdicts for no known cause.
    """
    print("\n| filter | both remove | both keep | only Hallmark | only datatrove | causes |")
    print("|---|---|---|---|---|---|")
    unexplained_count = 0
    rows = comparison.hallmark_table.to_pylist()
    for name, verdicts in comparison.datatrove_verdicts.items():
        datatrove_removes = np.array([verdict is not True for verdict in verdicts])
        hallmark_removes = comparison.hallmark_table[name].is_valid().to_numpy()
        causes = Counter(
            explain_difference(name, documents[index], rows[index], verdicts[index])
            for index in np.flatnonzero(datatrove_removes != hallmark_removes)
        )
        unexplained_count += causes.get("unexplained", 0)
        counts = [
            datatrove_removes & hallmark_removes,
            ~datatrove_removes & ~hallmark_removes,
            hallmark_removes & ~datatrove_removes,
            datatrove_removes & ~hallmark_removes,
        ]
        cells = " | ".join(f"{int(count.sum()):,}" for count in counts)
        cause_texts = "; ".join(f"{count:,}: {cause}" for cause, count in causes.most_common())
        print(f"| {name} | {cells} | {cause_texts or 'no differences'} |")
    return unexplained_count


def print_reasons(comparison: Comparison) -> None:
    """Print how often each reason of datatrove occurs with each rule of Hallmark."""
    print("\n| filter: datatrove's reason | Hallmark's first rule | documents |\n|---|---|---|")
    for name, verdicts in comparison.datatrove_verdicts.items():
        reasons = ["kept" if verdict is True else verdict for verdict in verdicts]
        rules = [rule or "kept" for rule in comparison.hallmark_table[name].to_pylist()]
        for (reason, rule), count in Counter(zip(reasons, rules, strict=True)).most_common():
            print(f"| {name}: {reason} | {rule} | {count:,} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--opponent", type=Path, required=True, help="folder of datatrove's environment"
    )
    parser.add_argument("--data", type=Path, help="folder of text corpora")
    parser.add_argument(
        "--documents", type=int, default=20_000, help="generated documents, without --data"
    )
    parser.add_argument("--turns", type=int, default=5, help="runs of each tool")
    options = parser.parse_args()
    documents = (
        list(read_texts(options.data)) if options.data else generate_documents(options.documents)
    )
    python = prepare_environment(options.opponent)
    pa.set_cpu_count(1)
    comparison = run_in_alternation(python, documents, options.turns)
    megabytes = sum(len(text.encode()) for text in documents) / 1e6
    libraries = ", ".join(
        f"{name} {version}" for name, version in read_library_versions(["numpy", "pyarrow"]).items()
    )
    print(
        f"{len(documents):,} documents, {megabytes:.1f} MB; datatrove "
        f"{comparison.datatrove_version}; {libraries}; {options.turns} turns; processor seconds of "
        "one core\n"
    )
    print_times(comparison.seconds_by_tool, len(documents))
    unexplained_count = print_verdicts(documents, comparison)
    print_reasons(comparison)
    return 1 if unexplained_count else 0


if __name__ == "__main__":
    sys.exit(main())
