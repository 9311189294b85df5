"""The rules of Gopher, C4 and FineWeb beside datatrove's filters: verdicts and documents a second.

    python -m benchmarks.quality --opponent FOLDER [--data FOLDER] [--documents 20000] [--turns 5]

--opponent is a folder for datatrove's environment, which is made where it is missing (from PyPI).
Documents are those of --data (jsonl, csv, parquet, txt, plain or packed, see benchmarks.curation),
else of a seeded generator. Both sides work on one core, in turns, on documents held in memory, with
words that white space parts and sentences that a mark and white space part. Counted is processor
time, of datatrove its filters' ``filter`` on every document, each of which stops at the first rule
that fails, and nothing of its pipeline; of Hallmark all signals of the stage ``quality`` and all
rules of the three presets. Prints a table of times and one of verdicts; each document on which the
two differ has a cause or is counted as unexplained, in which case the exit code is 1.
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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.curation import texts as texts_of
from hallmark.tasks.contract import read_library_versions
from hallmark.tasks.corpus.quality import QualityConfig, compute_quality_table
from hallmark.tasks.corpus.quality_signals.c4 import CITATION_PATTERN
from hallmark.tasks.corpus.select import SelectConfig, SelectionRule

DATATROVE = "0.10.1"

#: Documents of one call, as a row group of a part has them.
ROWS, BYTES = 4096, 4 << 20

#: By datatrove's filter, the preset with the same rules.
FILTERS = {
    "Gopher quality": "gopher",
    "Gopher repetition": "gopher",
    "C4": "c4",
    "FineWeb": "fineweb",
    "FineWeb, with the paper's bound": "fineweb",
    "C4, citations taken out before": "c4",
}


def generated(count: int, seed: int = 0) -> list[str]:
    """Texts of words by Zipf's law, of which about half break some rule or come close to it."""
    draw = random.Random(seed)
    stop = ["the", "be", "to", "of", "and", "that", "have", "with"]
    words = stop + [
        "".join(draw.choices("etaoinshrdlucmfwyp", k=draw.randint(2, 11))) for _ in range(5000)
    ]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    odd = [
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
    found = []
    for _ in range(count):
        lines: list[str] = []
        strange = draw.random() ** 3
        for _ in range(draw.randint(1, 25)):
            chance = draw.random()
            if chance < strange * 0.6:
                lines.append(draw.choice(odd))
            elif chance < strange * 0.8 and lines:
                lines.append(draw.choice(lines))
            else:
                line = " ".join(draw.choices(words, weights, k=draw.randint(1, 30)))
                lines.append(line + draw.choice([".", ".", ".", "?", "", "...", '."']))
        found.append(draw.choice(["\n", "\n", "\n\n", "\r\n"]).join(lines))
    return found


def batches(documents: Sequence[str]) -> Iterator[pa.Array]:
    held, size = [], 0
    for text in documents:
        held.append(text)
        size += len(text.encode())
        if len(held) >= ROWS or size >= BYTES:
            yield pa.array(held, pa.large_string())
            held, size = [], 0
    if held:
        yield pa.array(held, pa.large_string())


def rules() -> dict[str, list[SelectionRule]]:
    """By filter; the rules of Gopher are told apart by their signals, of which eight are of words
    and lines and the others of what repeats."""
    presets = {preset: SelectConfig(presets=(preset,)).rules for preset in FILTERS.values()}
    found = {name: list(presets[preset]) for name, preset in FILTERS.items()}
    repeats = [r for r in presets["gopher"] if r.signal.startswith(("duplicate", "top"))]
    found["Gopher repetition"] = repeats
    found["Gopher quality"] = [rule for rule in presets["gopher"] if rule not in repeats]
    return found


def judged(columns: Sequence[pa.Array], by_filter: dict[str, list[SelectionRule]]) -> pa.Table:
    """All signals of the documents, and by filter the first rule that each breaks, null if none."""
    tables = []
    config = QualityConfig()
    for column in columns:
        rows = compute_quality_table(column, config).combine_chunks()
        for name, ours in by_filter.items():
            reason = pa.nulls(len(column), pa.string())
            for rule in reversed(ours):
                values = rows[rule.signal].combine_chunks()
                broken = pc.fill_null(rule.find_violations(values), rule.on_missing == "remove")
                reason = pc.if_else(broken, rule.name, reason)
            rows = rows.append_column(name, reason)
        tables.append(rows)
    return pa.concat_tables(tables)


def cause(name: str, text: str, row: dict[str, object], theirs: object) -> str:
    """Why the two differ on a document: what datatrove does otherwise, looked for in the text."""
    figure = row["duplicate_characters"]
    if name == "FineWeb" and theirs == "char_dup_ratio" and 0.01 < float(str(figure)) <= 0.1:
        return "its bound on duplicated characters is 0.01, the paper's is 0.1"
    if name == "C4" and re.search(CITATION_PATTERN.replace(r"\p{Nd}", r"\d"), text):
        return "it takes out citations only after it has looked for white space and counted words"
    if name == "Gopher repetition" and not text:
        return "an empty text: here a rule of its words removes it"
    if name == "Gopher repetition" and str(theirs).startswith("duplicated_"):
        words = text.split()
        for n in range(5, 11):
            grams = {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}
            if len({"".join(gram) for gram in grams}) < len(grams):
                return "it joins words without a space: other words of the same letters count"
    return "unexplained"


def environment(folder: Path) -> Path:
    """The interpreter of an environment that has datatrove and what its filters need."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    needs = [f"datatrove=={DATATROVE}", "numpy", "regex"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *needs], check=True)
    return python


def in_turns(
    python: Path, documents: Sequence[str], turns: int
) -> tuple[dict[str, list[float]], pa.Table, dict[str, list[object]], str]:
    """Seconds of both sides, our table, datatrove's reasons by filter (True: kept), its version."""
    by_filter, columns = rules(), list(batches(documents))
    judged(columns[:1], by_filter)  # tables of characters are made once
    with tempfile.TemporaryDirectory() as place:
        given, verdicts = Path(place) / "documents.jsonl", Path(place) / "verdicts.json"
        given.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        script = Path(__file__).with_name("quality_opponent.py")
        command = [str(python), str(script), str(given), str(verdicts)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
            assert other.stdin and other.stdout
            version = other.stdout.readline().strip()
            seconds: dict[str, list[float]] = {"datatrove": [], "Hallmark": []}
            for _ in range(turns):
                other.stdin.write("go\n")
                other.stdin.flush()
                seconds["datatrove"].append(float(other.stdout.readline()))
                start = time.process_time()
                ours = judged(columns, by_filter)
                seconds["Hallmark"].append(time.process_time() - start)
            other.stdin.close()
        return seconds, ours, json.loads(verdicts.read_text()), version


def show_times(seconds: dict[str, list[float]], documents: int) -> None:
    print("| | seconds, median | least to most | documents a second | ratio |")
    print("|---|---|---|---|---|")
    base = statistics.median(seconds["datatrove"])
    for side, found in seconds.items():
        middle = statistics.median(found)
        spread, rate = f"{min(found):.2f} to {max(found):.2f}", documents / middle
        print(f"| {side} | {middle:.2f} | {spread} | {rate:,.0f} | {base / middle:.1f} |")


def show_verdicts(documents: Sequence[str], ours: pa.Table, theirs: dict[str, list[object]]) -> int:
    """Returns how many differ without a cause."""
    print("\n| filter | both remove | both keep | only Hallmark | only datatrove | causes |")
    print("|---|---|---|---|---|---|")
    unexplained = 0
    rows = ours.to_pylist()
    for name, reasons in theirs.items():
        other = np.array([reason is not True for reason in reasons])
        own = ours[name].is_valid().to_numpy()
        causes = Counter(
            cause(name, documents[at], rows[at], reasons[at]) for at in np.flatnonzero(other != own)
        )
        unexplained += causes.get("unexplained", 0)
        counts = [other & own, ~other & ~own, own & ~other, other & ~own]
        cells = " | ".join(f"{int(count.sum()):,}" for count in counts)
        said = "; ".join(f"{number:,}: {why}" for why, number in causes.most_common())
        print(f"| {name} | {cells} | {said or 'none differs'} |")
    return unexplained


def show_reasons(ours: pa.Table, theirs: dict[str, list[object]]) -> None:
    print("\n| filter: datatrove's reason | Hallmark's first rule | documents |\n|---|---|---|")
    for name, reasons in theirs.items():
        other = ["kept" if reason is True else reason for reason in reasons]
        own = [reason or "kept" for reason in ours[name].to_pylist()]
        for (left, right), number in Counter(zip(other, own, strict=True)).most_common():
            print(f"| {name}: {left} | {right} | {number:,} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--opponent", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    documents = list(texts_of(options.data)) if options.data else generated(options.documents)
    python = environment(options.opponent)
    pa.set_cpu_count(1)
    seconds, ours, theirs, version = in_turns(python, documents, options.turns)
    size = sum(len(text.encode()) for text in documents) / 1e6
    libraries = ", ".join(
        f"{k} {v}" for k, v in read_library_versions(["numpy", "pyarrow"]).items()
    )
    print(
        f"{len(documents):,} documents, {size:.1f} MB; datatrove {version}; {libraries}; "
        f"{options.turns} turns; processor seconds of one core\n"
    )
    show_times(seconds, len(documents))
    unexplained = show_verdicts(documents, ours, theirs)
    show_reasons(ours, theirs)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
