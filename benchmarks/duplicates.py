"""Near duplicates, this project's stage beside others: seconds, recall, memory.

    python -m benchmarks.duplicates --data FOLDER [--documents 65000] [--turns 3]
        [--sides hallmark datatrove datatrove-plain rensa datasketch] [--environments FOLDER]
    python -m benchmarks.duplicates --data FOLDER --memory 100000 1000000
    python -m benchmarks.duplicates --crowd 100000

FOLDER holds text corpora, as for ``benchmarks.curation``. Every side reads one parquet file of ids
and texts with 5-word shingles and 14 × 8 minima on two processes, and writes the documents it
keeps; its seconds are those of that work, without starting Python and without imports. Sides other
than this project's run in environments of their own, made in the folder of --environments.

**The law of the copies.** Beyond what repeats in the corpora themselves: of the documents wanted
70 % are real ones (beyond one pass through the corpora, with words replaced by others, by a hash),
10 % exact copies, and 20 % near copies, in which a share of the words is replaced that is uniform
in 0 to 0.1. Recall is over planted pairs by their true Jaccard similarity (words after NFKC, lower
case and white space): a pair counts as found if not both of it stay.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.curation import texts
from hallmark.tasks.contract import Event, ProcessMapper, Session, Store, hash_to_ids, open_session
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.measures.normalised_words import normalise_texts

SHINGLE, BANDS, ROWS, THRESHOLD = 5, 14, 8, 0.8
OTHERS = Path(__file__).parent / "opponents"

DATATROVE = ["datatrove[processing]==0.10.1", "spacy==3.8.18", "pyarrow==26.0.1"]

#: What each side's environment is made of, its script, and that script's last argument.
SIDES = {
    "datatrove": (DATATROVE, "datatrove_minhash", "english"),
    "datatrove-plain": (DATATROVE, "datatrove_minhash", "whitespace"),
    "rensa": (["rensa==0.5.0", "pyarrow==26.0.1"], "minhash_libraries", "rensa"),
    "datasketch": (["datasketch==2.0.0", "pyarrow==26.0.1"], "minhash_libraries", "datasketch"),
}


# Documents ---------------------------------------------------------------------------------------


def real(base: list[list[str]], vocabulary: np.ndarray, seed: int) -> Iterator[list[str]]:
    """The documents as words, then the same with other words, without end."""
    yield from base
    code = {word: number for number, word in enumerate(vocabulary)}
    coded = [np.array([code[word] for word in words], np.int64) for words in base]
    while True:
        seed += 1
        other = np.random.default_rng(seed).permutation(len(vocabulary))
        for words in coded:
            yield vocabulary[other[words]].tolist()


def write_documents(folder: Path, count: int, seed: int, path: Path) -> None:
    """Columns id, text, origin (the id it was copied from, or its own)."""
    base = [text.split() for text in texts(folder) if text.strip()]
    vocabulary = np.array(sorted({word for words in base for word in words}), object)
    chance = np.random.default_rng(seed)
    source = real(base, vocabulary, seed)
    originals = [next(source) for _ in range(round(0.7 * count))]
    rows = [(" ".join(words), number) for number, words in enumerate(originals)]
    for _ in range(round(0.1 * count)):
        origin = int(chance.integers(len(originals)))
        rows.append((" ".join(originals[origin]), origin))
    while len(rows) < count:
        origin = int(chance.integers(len(originals)))
        words = list(originals[origin])
        replaced = np.flatnonzero(chance.random(len(words)) < chance.uniform(0, 0.1))
        for place, word in zip(
            replaced, chance.integers(len(vocabulary), size=len(replaced)), strict=True
        ):
            words[place] = vocabulary[word]
        rows.append((" ".join(words), origin))
    order = chance.permutation(len(rows))
    names = np.empty(len(rows), np.int64)
    names[order] = np.arange(len(rows))
    table = pa.table(
        {
            "id": [f"{number:09d}" for number in range(len(rows))],
            "text": pa.array([rows[at][0] for at in order], pa.large_string()),
            "origin": [f"{names[rows[at][1]]:09d}" for at in order],
        }
    )
    pq.write_table(table, path)


def write_crowd(count: int, seed: int, path: Path, alike: bool) -> None:
    """Documents of 60 words: of one template, so that all pairs are near 0.6, or unrelated."""
    chance = np.random.default_rng(seed)
    template = chance.integers(1 << 40, size=60)
    rows = []
    for _ in range(count):
        words = chance.integers(1 << 40, size=60)
        if alike:  # a block of 8 of the 60 words differs: 44 of 68 shingles, or 0.65, are shared
            start = int(chance.integers(0, 52))
            own = words[:7]
            words = template.copy()
            words[start : start + 7] = own
        rows.append(" ".join(f"w{word:x}" for word in words))
    names = [f"{number:09d}" for number in range(count)]
    pq.write_table(
        pa.table({"id": names, "text": pa.array(rows, pa.large_string()), "origin": names}), path
    )


# This project's side -----------------------------------------------------------------------------


def hallmark(source: Path, kept: Path, workers: int) -> dict[str, Any]:
    """Seconds of the stage, memory, and rows of ``pairs``; the ids kept as a parquet file."""
    seconds: dict[str, float] = {}

    def listen(event: Event) -> None:
        if event.kind == "done":
            seconds[event.label] = event.seconds

    entered = {"kind": "parquet", "name": "corpus", "path": str(source), "key_field": "id"}
    config = IngestConfig.model_validate({"sources": [entered]})
    with (
        tempfile.TemporaryDirectory(prefix="hallmark-duplicates-") as store,
        open_session(Session(Store(Path(store)), ProcessMapper(workers), listen)),
    ):
        raw = ingest(config)
        before = forget_peak()
        with held() as own:
            made = deduplicate_near(raw, {}, DeduplicateNearConfig(bands=BANDS, rows_per_band=ROWS))
        after = peak()
        write_kept(source, made["documents"].read(["doc_id"])["doc_id"].combine_chunks(), kept)
        pairs = made["pairs"].row_count
        search = made["search_summary"].read().to_pylist()[0]
    return {
        "seconds": round(seconds["deduplicate_near"], 2),
        "before": before,
        "peak": after,
        "own before": own[0],
        "own peak": max(own),
        "samples": len(own),
        "pairs": pairs,
        "search": search,
    }


def write_kept(source: Path, wanted: pa.Array, kept: Path) -> None:
    """The ids in the file of the documents with these doc_ids."""
    names = pq.read_table(source, columns=["id"])["id"].combine_chunks()
    doc_ids = hash_to_ids(
        f"corpus\0key\0{name}" for name in names.to_pylist()
    )  # as ingest gives them
    kept_here = names.filter(pc.is_in(doc_ids, value_set=wanted))
    assert len(kept_here) == len(wanted)
    pq.write_table(pa.table({"id": kept_here}), kept)


def forget_peak() -> int:
    """Memory of this process now, in KiB; its peak counts from here (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """Peak memory of this process, in KiB, the mapped files that stand in memory among it, which
    the kernel may drop at any time."""
    return status("VmHWM")


def status(name: str) -> int:
    """What this process has of something now, in KiB (Linux)."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])


@contextmanager
def held(seconds: float = 0.02) -> Iterator[list[int]]:
    """What this process itself holds (RssAnon: no mapped files), in KiB: at first, then again and
    again, and at last. What comes and goes between two looks is not seen."""
    found, over = [status("RssAnon")], threading.Event()

    def look() -> None:
        while not over.wait(seconds):
            found.append(status("RssAnon"))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        over.set()
        watcher.join()
        found.append(status("RssAnon"))


# Judging -----------------------------------------------------------------------------------------


def judge(source: Path, kept: Path) -> dict[str, Any]:
    """Recall by bins of true similarity, and what was removed without reason."""
    table = pq.read_table(source)
    names, origins = table["id"].to_pylist(), table["origin"].to_pylist()
    stays = set(pq.read_table(kept)["id"].to_pylist())
    plain = dict(
        zip(names, normalise_texts(table["text"].combine_chunks()).to_pylist(), strict=True)
    )
    bins: dict[float, list[bool]] = {}
    for name, origin in zip(names, origins, strict=True):
        if name != origin:
            similarity = true_similarity(plain[name], plain[origin])
            low = round(math.floor(similarity * 20 + 1e-9) / 20, 2)
            bins.setdefault(low, []).append(not (name in stays and origin in stays))
    return {
        "kept": len(stays),
        "recall": {low: [sum(found), len(found)] for low, found in sorted(bins.items())},
    }


def true_similarity(left: str, right: str) -> float:
    a, b = (shingle_set(text.split(" ")) for text in (left, right))
    return len(a & b) / len(a | b)


def shingle_set(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[at : at + SHINGLE]) for at in range(max(1, len(words) - SHINGLE + 1))}


# Running -----------------------------------------------------------------------------------------


def environment(folder: Path, side: str) -> Path:
    """The interpreter of a side's environment, made where it is not yet."""
    script = SIDES[side][1]
    python = folder / script / "bin" / "python"
    key = folder / script / "packages.json"
    wanted = sorted(p for s in SIDES.values() if s[1] == script for p in s[0])
    if not key.exists() or json.loads(key.read_text()) != wanted:
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
        key.write_text(json.dumps(wanted))
    return python


def run_side(side: str, source: Path, kept: Path, environments: Path) -> dict[str, Any]:
    """One turn of a side, in a process of its own."""
    if side == "hallmark":
        command = [sys.executable, "-m", "benchmarks.duplicates", "--side", source, kept]
    else:
        _, script, last = SIDES[side]
        python = environment(environments, side)
        command = [python, OTHERS / f"{script}.py", source, kept, last]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{side}: {done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(source: Path, sides: list[str], turns: int, environments: Path, folder: Path) -> None:
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for side in sides:
        if side != "hallmark":
            environment(environments, side)
    for turn in range(turns):
        for side in sides:
            results[side].append(run_side(side, source, folder / f"{side}.parquet", environments))
            print(f"turn {turn + 1}, {side}: {results[side][-1]}", flush=True)
    rows = pq.ParquetFile(source).metadata.num_rows
    ours = statistics.median(r["seconds"] for r in results[sides[0]])
    print(f"{'side':<18}{'median s':>10}{'documents/s':>13}{'ratio':>8}{'kept':>10}")
    for side in sides:
        seconds = statistics.median(r["seconds"] for r in results[side])
        judged = judge(source, folder / f"{side}.parquet")
        print(
            f"{side:<18}{seconds:>10.1f}{rows / seconds:>13,.0f}{seconds / ours:>8.2f}"
            f"{judged['kept']:>10,}"
        )
        shown = {low: f"{found}/{n}" for low, (found, n) in judged["recall"].items() if low >= 0.6}
        print(f"    planted pairs found by similarity: {shown}")


def grow(folder: Path, sizes: list[int], data: Path, seed: int) -> None:
    """Peak memory of the stage's own process at several sizes, and its slope: what it holds itself,
    and with the pages of files that it maps (spilled shingles, mostly)."""
    found = []
    for size in sizes:
        source = folder / f"{size}.parquet"
        write_documents(data, size, seed, source)
        found.append(run_side("hallmark", source, folder / "kept.parquet", folder))
        print(f"{size:,} documents: {found[-1]}", flush=True)
    for what, last, first in (
        ("held by the process itself (RssAnon, every 20 ms)", "own peak", "own before"),
        ("with mapped pages, which the kernel may drop (VmHWM)", "peak", "before"),
    ):
        over = [turn[last] - turn[first] for turn in found]
        grown = (over[-1] - over[0]) * 1024 / (sizes[-1] - sizes[0])
        print(f"{grown:.0f} bytes a document {what}")


def crowd(folder: Path, count: int, seed: int) -> None:
    """A crowd beside as many unrelated documents."""
    seconds = {}
    for name, alike in (("unrelated", False), ("crowd", True)):
        source = folder / f"{name}.parquet"
        write_crowd(count, seed, source, alike)
        turns = [run_side("hallmark", source, folder / "kept.parquet", folder) for _ in range(3)]
        seconds[name] = statistics.median(turn["seconds"] for turn in turns)
        print(f"{name}: {turns}", flush=True)
    print(f"crowd / unrelated: {seconds['crowd'] / seconds['unrelated']:.2f}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--data", type=Path)
    arguments.add_argument("--documents", type=int, default=65_000)
    arguments.add_argument("--turns", type=int, default=3)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--sides", nargs="+", default=["hallmark", *SIDES])
    arguments.add_argument("--environments", type=Path, default=Path("environments"))
    arguments.add_argument("--memory", nargs="+", type=int)
    arguments.add_argument("--crowd", type=int)
    arguments.add_argument("--side", nargs=2, type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.side:
        print(json.dumps(hallmark(*given.side, workers=2)))
        return
    print(f"Python {platform.python_version()}, numpy {np.__version__}, pyarrow {pa.__version__}")
    with tempfile.TemporaryDirectory(prefix="hallmark-duplicates-") as scratch:
        folder = Path(scratch)
        if given.crowd:
            crowd(folder, given.crowd, given.seed)
        elif given.memory:
            grow(folder, given.memory, given.data, given.seed)
        else:
            source = folder / "documents.parquet"
            write_documents(given.data, given.documents, given.seed, source)
            print(f"{given.documents:,} documents, {source.stat().st_size / 1e6:.1f} MB packed")
            compare(source, given.sides, given.turns, given.environments.absolute(), folder)


if __name__ == "__main__":
    main()
