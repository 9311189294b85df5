"""Compare Hallmark's stage for near duplicates with other tools: time, recall, memory.

    python -m benchmarks.duplicates --data FOLDER [--documents 65000] [--turns 3]
        [--sides hallmark datatrove datatrove-plain rensa datasketch] [--environments FOLDER]
    python -m benchmarks.duplicates --data FOLDER --memory 100000 1000000
    python -m benchmarks.duplicates --shared-template 100000

FOLDER holds text corpora, as for ``benchmarks.curation``. Every tool reads one parquet file of ids
and texts, uses 5-word shingles and 14 x 8 minima on two processes, and writes the documents that it
keeps. Its seconds exclude the start of Python and imports. The other tools run in environments of
their own, which are created in the folder of --environments.

``--memory`` measures the memory of Hallmark's stage at several numbers of documents.
``--shared-template`` compares its time for documents that are all similar to each other with that
for as many unrelated documents.

**Planted copies.** 70 % of the documents are real ones (after one pass through the corpora, with
words replaced by other words), 10 % are exact copies of them, and 20 % are near-duplicates, in
which a share of the words is replaced that is uniform between 0 and 0.1. Recall is computed over
planted pairs by their true Jaccard similarity (words after NFKC, in lower case, separated by white
space). A pair counts as found if at most one of its documents is kept.
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
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.curation import read_texts
from hallmark.tasks.contract import Event, ProcessMapper, Session, Store, hash_to_ids, open_session
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.measures.normalised_words import normalise_texts

SHINGLE_WORDS, BANDS, ROWS_PER_BAND = 5, 14, 8
SCRIPTS = Path(__file__).parent / "opponents"

DATATROVE = ["datatrove[processing]==0.10.1", "spacy==3.8.18", "pyarrow==26.0.1"]


class OtherTool(NamedTuple):
    """A tool that runs in its own environment."""

    packages: list[str]
    script: str
    """Name of its script in SCRIPTS, and of its environment."""
    argument: str
    """Last argument of the script."""


OTHER_TOOLS = {
    "datatrove": OtherTool(DATATROVE, "datatrove_minhash", "english"),
    "datatrove-plain": OtherTool(DATATROVE, "datatrove_minhash", "whitespace"),
    "rensa": OtherTool(["rensa==0.5.0", "pyarrow==26.0.1"], "minhash_libraries", "rensa"),
    "datasketch": OtherTool(
        ["datasketch==2.0.0", "pyarrow==26.0.1"], "minhash_libraries", "datasketch"
    ),
}


# Documents ---------------------------------------------------------------------------------------


def generate_documents(
    corpus: list[list[str]], vocabulary: np.ndarray, seed: int
) -> Iterator[list[str]]:
    """Yield documents as lists of words without end: the corpus, then the same with other words.

    Args:
        corpus: The words of each document.
        vocabulary: All words of the corpus.
        seed: Seed of the replacements.
    """
    yield from corpus
    number_by_word = {word: number for number, word in enumerate(vocabulary)}
    numbered = [np.array([number_by_word[word] for word in words], np.int64) for words in corpus]
    while True:
        seed += 1
        permutation = np.random.default_rng(seed).permutation(len(vocabulary))
        for numbers in numbered:
            yield vocabulary[permutation[numbers]].tolist()


def write_documents(folder: Path, count: int, seed: int, path: Path) -> None:
    """Write documents with planted copies as a parquet file.

    The columns are id, text, and origin: the id of the document that was copied, or the own id.

    Args:
        folder: Folder of text corpora.
        count: Number of documents.
        seed: Seed of the copies and of the order.
        path: The parquet file.
    """
    corpus = [text.split() for text in read_texts(folder) if text.strip()]
    vocabulary = np.array(sorted({word for words in corpus for word in words}), object)
    rng = np.random.default_rng(seed)
    source = generate_documents(corpus, vocabulary, seed)
    originals = [next(source) for _ in range(round(0.7 * count))]
    rows = [(" ".join(words), number) for number, words in enumerate(originals)]
    for _ in range(round(0.1 * count)):
        origin = int(rng.integers(len(originals)))
        rows.append((" ".join(originals[origin]), origin))
    while len(rows) < count:
        origin = int(rng.integers(len(originals)))
        words = list(originals[origin])
        replaced = np.flatnonzero(rng.random(len(words)) < rng.uniform(0, 0.1))
        for position, word in zip(
            replaced, rng.integers(len(vocabulary), size=len(replaced)), strict=True
        ):
            words[position] = vocabulary[word]
        rows.append((" ".join(words), origin))
    order = rng.permutation(len(rows))
    ids = np.empty(len(rows), np.int64)
    ids[order] = np.arange(len(rows))
    table = pa.table(
        {
            "id": [f"{number:09d}" for number in range(len(rows))],
            "text": pa.array([rows[index][0] for index in order], pa.large_string()),
            "origin": [f"{ids[rows[index][1]]:09d}" for index in order],
        }
    )
    pq.write_table(table, path)


def write_template_documents(count: int, seed: int, path: Path, *, shared_template: bool) -> None:
    """Write documents of 60 words: similar to each other, or unrelated.

    Args:
        count: Number of documents.
        seed: Seed of the words.
        path: The parquet file.
        shared_template: Whether all documents come from one template, so that every pair has a
            similarity near 0.6.
    """
    rng = np.random.default_rng(seed)
    template = rng.integers(1 << 40, size=60)
    rows = []
    for _ in range(count):
        words = rng.integers(1 << 40, size=60)
        if shared_template:  # 7 of 60 words in a row differ: 44 of 68 shingles (0.65) are shared
            start = int(rng.integers(0, 52))
            replacement = words[:7]
            words = template.copy()
            words[start : start + 7] = replacement
        rows.append(" ".join(f"w{word:x}" for word in words))
    ids = [f"{number:09d}" for number in range(count)]
    pq.write_table(
        pa.table({"id": ids, "text": pa.array(rows, pa.large_string()), "origin": ids}), path
    )


# Hallmark's stage --------------------------------------------------------------------------------


def run_hallmark(source: Path, kept: Path, workers: int) -> dict[str, Any]:
    """Run the stage, and write the ids of the documents that it keeps.

    Args:
        source: Parquet file of the documents.
        kept: Parquet file that gets the ids.
        workers: Number of workers.

    Returns:
        Seconds of the stage, memory in KiB, and numbers of the search.
    """
    seconds: dict[str, float] = {}

    def listen(event: Event) -> None:
        if event.kind == "done":
            seconds[event.label] = event.seconds

    source_config = {"kind": "parquet", "name": "corpus", "path": str(source), "key_field": "id"}
    config = IngestConfig.model_validate({"sources": [source_config]})
    with (
        tempfile.TemporaryDirectory(prefix="hallmark-duplicates-") as store,
        open_session(Session(Store(Path(store)), ProcessMapper(workers), listen)),
    ):
        raw = ingest(config)
        peak_before = reset_peak_memory()
        with sample_anonymous_memory() as samples:
            deduplicated = deduplicate_near(
                raw, {}, DeduplicateNearConfig(bands=BANDS, rows_per_band=ROWS_PER_BAND)
            )
        peak_after = read_peak_memory()
        kept_doc_ids = deduplicated["documents"].read(["doc_id"])["doc_id"].combine_chunks()
        write_kept_ids(source, kept_doc_ids, kept)
        pair_count = deduplicated["pairs"].row_count
        search = deduplicated["search_summary"].read().to_pylist()[0]
    return {
        "seconds": round(seconds["deduplicate_near"], 2),
        "peak before": peak_before,
        "peak": peak_after,
        "anonymous before": samples[0],
        "anonymous peak": max(samples),
        "samples": len(samples),
        "pairs": pair_count,
        "search": search,
    }


def write_kept_ids(source: Path, kept_doc_ids: pa.Array, kept: Path) -> None:
    """Write the ids, in the file of documents, that belong to these doc_ids."""
    ids = pq.read_table(source, columns=["id"])["id"].combine_chunks()
    # The stage ingest computes doc_ids in this way.
    doc_ids = hash_to_ids(f"corpus\0key\0{document_id}" for document_id in ids.to_pylist())
    kept_ids = ids.filter(pc.is_in(doc_ids, value_set=kept_doc_ids))
    assert len(kept_ids) == len(kept_doc_ids)
    pq.write_table(pa.table({"id": kept_ids}), kept)


def reset_peak_memory() -> int:
    """Reset the peak memory of this process to its current memory, and return it in KiB (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    return read_peak_memory()


def read_peak_memory() -> int:
    """Return the peak memory of this process in KiB.

    It includes the pages of mapped files, which the kernel may drop at any time.
    """
    return read_process_status("VmHWM")


def read_process_status(field: str) -> int:
    """Return a field of /proc/self/status in KiB (Linux)."""
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0])


@contextmanager
def sample_anonymous_memory(interval_seconds: float = 0.02) -> Iterator[list[int]]:
    """Sample the process's memory without mapped files (RssAnon) while the context is open.

    Memory that is allocated and freed between two samples is not seen.

    Yields:
        The samples in KiB, which are complete when the context is closed.
    """
    samples, is_over = [read_process_status("RssAnon")], threading.Event()

    def sample() -> None:
        while not is_over.wait(interval_seconds):
            samples.append(read_process_status("RssAnon"))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()
        samples.append(read_process_status("RssAnon"))


# Recall ------------------------------------------------------------------------------------------


class FoundPairs(NamedTuple):
    """How many planted pairs of one bin of similarity were found."""

    found_count: int
    planted_count: int


class Recall(NamedTuple):
    """The result of one tool."""

    kept_count: int
    """Number of documents kept."""
    pairs_by_similarity: dict[float, FoundPairs]
    """For each bin of width 0.05, by its lower end."""


def compute_recall(source: Path, kept: Path) -> Recall:
    """Compute the recall of planted pairs by their true similarity."""
    table = pq.read_table(source)
    ids, origins = table["id"].to_pylist(), table["origin"].to_pylist()
    kept_ids = set(pq.read_table(kept)["id"].to_pylist())
    normalised = dict(
        zip(ids, normalise_texts(table["text"].combine_chunks()).to_pylist(), strict=True)
    )
    is_found_by_bin: dict[float, list[bool]] = {}
    for document_id, origin in zip(ids, origins, strict=True):
        if document_id != origin:
            similarity = compute_similarity(normalised[document_id], normalised[origin])
            low = round(math.floor(similarity * 20 + 1e-9) / 20, 2)
            is_found = not (document_id in kept_ids and origin in kept_ids)
            is_found_by_bin.setdefault(low, []).append(is_found)
    return Recall(
        len(kept_ids),
        {
            low: FoundPairs(sum(is_found), len(is_found))
            for low, is_found in sorted(is_found_by_bin.items())
        },
    )


def compute_similarity(left: str, right: str) -> float:
    """Compute the Jaccard similarity of the shingles of two normalised texts."""
    a, b = (collect_shingles(text.split(" ")) for text in (left, right))
    return len(a & b) / len(a | b)


def collect_shingles(words: list[str]) -> set[tuple[str, ...]]:
    count = max(1, len(words) - SHINGLE_WORDS + 1)
    return {tuple(words[start : start + SHINGLE_WORDS]) for start in range(count)}


# Running -----------------------------------------------------------------------------------------


def prepare_environment(folder: Path, tool: str) -> Path:
    """Create a tool's environment if it is missing or outdated, and return its interpreter."""
    script = OTHER_TOOLS[tool].script
    python = folder / script / "bin" / "python"
    packages_file = folder / script / "packages.json"
    packages = sorted(
        package
        for other_tool in OTHER_TOOLS.values()
        if other_tool.script == script
        for package in other_tool.packages
    )
    if not packages_file.exists() or json.loads(packages_file.read_text()) != packages:
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        packages_file.write_text(json.dumps(packages))
    return python


def run_tool(tool: str, source: Path, kept: Path, environments: Path) -> dict[str, Any]:
    """Run a tool once, in a separate process.

    Returns:
        What the tool reports as JSON, with at least "seconds".
    """
    if tool == "hallmark":
        command = [sys.executable, "-m", "benchmarks.duplicates", "--run-hallmark", source, kept]
    else:
        python = prepare_environment(environments, tool)
        script = SCRIPTS / f"{OTHER_TOOLS[tool].script}.py"
        command = [python, script, source, kept, OTHER_TOOLS[tool].argument]
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{tool}: {result.stderr[-3000:]}")
    return dict(json.loads(result.stdout.splitlines()[-1]))


def compare_tools(
    source: Path, tools: list[str], turns: int, environments: Path, scratch_folder: Path
) -> None:
    """Run the tools in alternation, and print their times and recalls."""
    reports: dict[str, list[dict[str, Any]]] = {tool: [] for tool in tools}
    for tool in tools:
        if tool != "hallmark":
            prepare_environment(environments, tool)
    for turn in range(turns):
        for tool in tools:
            kept = scratch_folder / f"{tool}.parquet"
            reports[tool].append(run_tool(tool, source, kept, environments))
            print(f"turn {turn + 1}, {tool}: {reports[tool][-1]}", flush=True)
    document_count = pq.ParquetFile(source).metadata.num_rows
    first_seconds = statistics.median(report["seconds"] for report in reports[tools[0]])
    print(f"{'tool':<18}{'median s':>10}{'documents/s':>13}{'ratio':>8}{'kept':>10}")
    for tool in tools:
        seconds = statistics.median(report["seconds"] for report in reports[tool])
        recall = compute_recall(source, scratch_folder / f"{tool}.parquet")
        print(
            f"{tool:<18}{seconds:>10.1f}{document_count / seconds:>13,.0f}"
            f"{seconds / first_seconds:>8.2f}{recall.kept_count:>10,}"
        )
        similar_pairs = {
            low: f"{pairs.found_count}/{pairs.planted_count}"
            for low, pairs in recall.pairs_by_similarity.items()
            if low >= 0.6
        }
        print(f"    planted pairs found, by similarity: {similar_pairs}")


def measure_memory_growth(
    scratch_folder: Path, document_counts: list[int], data: Path, seed: int
) -> None:
    """Print the peak memory of the stage's main process at several sizes, and the increase.

    With one size, only the peak is printed.
    """
    reports = []
    for count in document_counts:
        source = scratch_folder / f"{count}.parquet"
        write_documents(data, count, seed, source)
        kept = scratch_folder / "kept.parquet"
        reports.append(run_tool("hallmark", source, kept, scratch_folder))
        print(f"{count:,} documents: {reports[-1]}", flush=True)
    for description, peak_key, before_key in (
        (
            "memory of the process itself (RssAnon, every 20 ms)",
            "anonymous peak",
            "anonymous before",
        ),
        ("with mapped pages, which the kernel may drop (VmHWM)", "peak", "peak before"),
    ):
        increases = [report[peak_key] - report[before_key] for report in reports]
        print(
            f"peak of {max(report[peak_key] for report in reports) / 1024:,.0f} MiB: {description}"
        )
        if len(reports) == 1:
            continue
        added_documents = document_counts[-1] - document_counts[0]
        bytes_per_document = (increases[-1] - increases[0]) * 1024 / added_documents
        print(f"{bytes_per_document:.0f} bytes per document: {description}")


def compare_template_documents(scratch_folder: Path, count: int, seed: int) -> None:
    """Print the stage's time for similar documents, and for as many unrelated ones."""
    seconds = {}
    for name, shared_template in (("unrelated", False), ("shared template", True)):
        source = scratch_folder / f"{name}.parquet"
        write_template_documents(count, seed, source, shared_template=shared_template)
        kept = scratch_folder / "kept.parquet"
        reports = [run_tool("hallmark", source, kept, scratch_folder) for _ in range(3)]
        seconds[name] = statistics.median(report["seconds"] for report in reports)
        print(f"{name}: {reports}", flush=True)
    ratio = seconds["shared template"] / seconds["unrelated"]
    print(f"shared template / unrelated: {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of text corpora")
    parser.add_argument("--documents", type=int, default=65_000, help="number of documents")
    parser.add_argument("--turns", type=int, default=3, help="runs of each tool")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sides", nargs="+", default=["hallmark", *OTHER_TOOLS], help="tools to compare"
    )
    parser.add_argument(
        "--environments",
        type=Path,
        default=Path("environments"),
        help="folder of the other tools' environments",
    )
    parser.add_argument(
        "--memory", nargs="+", type=int, help="measure memory at these numbers of documents"
    )
    parser.add_argument(
        "--shared-template", type=int, help="compare this many similar and unrelated documents"
    )
    parser.add_argument("--run-hallmark", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run_hallmark:
        print(json.dumps(run_hallmark(*options.run_hallmark, workers=2)))
        return
    print(f"Python {platform.python_version()}, numpy {np.__version__}, pyarrow {pa.__version__}")
    with tempfile.TemporaryDirectory(prefix="hallmark-duplicates-") as scratch:
        folder = Path(scratch)
        if options.shared_template:
            compare_template_documents(folder, options.shared_template, options.seed)
        elif options.memory:
            measure_memory_growth(folder, options.memory, options.data, options.seed)
        else:
            source = folder / "documents.parquet"
            write_documents(options.data, options.documents, options.seed, source)
            print(
                f"{options.documents:,} documents, {source.stat().st_size / 1e6:.1f} MB compressed"
            )
            environments = options.environments.absolute()
            compare_tools(source, options.sides, options.turns, environments, folder)


if __name__ == "__main__":
    main()
