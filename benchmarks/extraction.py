"""Compare the extraction of main content with trafilatura's: recall, precision and speed.

    python -m benchmarks.extraction --articles FOLDER --opponent FOLDER [--turns 5]

--articles is a checkout of scrapinghub/article-extraction-benchmark (MIT licence): 181 pages in
``html`` with their true article bodies in ``ground-truth.json``. --opponent is a folder for
trafilatura's environment, which is created if it is missing (from PyPI). Both tools work on one
core, in alternation, on decoded pages in memory.

The measures are those of that benchmark: texts are compared by the numbers of their sequences of
four words; recall and precision are means over pages, and F1 is computed from the two means. The
intervals are 95 % percentile bootstrap intervals over pages. "Resiliparse alone" keeps no lists
near the body and no elements with names of page parts, and does not estimate the cost of parsing.
Prints the same measures for the text of lists: of the sequences of words in ``ul`` elements of a
page, those that belong to the article are to be kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from hallmark.tasks.contract import read_library_versions
from hallmark.tasks.corpus.reading.web_pages import extract_page_text

TRAFILATURA_VERSION = "2.3.1"
SEQUENCE_WORDS = 4
BOOTSTRAP_SAMPLES = 2000


class ArticlePage(NamedTuple):
    """A page and the text of its article."""

    html: str
    article: str


class Agreement(NamedTuple):
    """Recall and precision on each page; NaN if the page or the text has nothing to compare."""

    recalls: np.ndarray
    precisions: np.ndarray


def read_articles(folder: Path) -> list[ArticlePage]:
    """Read the pages and true texts of a checkout of the benchmark."""
    truth = json.loads((folder / "ground-truth.json").read_text(encoding="utf-8"))
    pages = []
    for name, fields in sorted(truth.items()):
        with gzip.open(folder / "html" / f"{name}.html.gz", "rt", encoding="utf-8") as file:
            pages.append(ArticlePage(file.read(), fields.get("articleBody", "")))
    return pages


def count_sequences(text: str) -> Counter[tuple[str, ...]]:
    """Count the sequences of four words of a text; a shorter text is one sequence."""
    words = re.findall(r"\w+", text)
    last_start = max(1, len(words) - SEQUENCE_WORDS + 1)
    sequences = (tuple(words[start : start + SEQUENCE_WORDS]) for start in range(last_start))
    return Counter(sequence for sequence in sequences if sequence)


def compare_texts(extracted: Sequence[str], expected: Sequence[str]) -> Agreement:
    """Compare extracted texts with the true ones, page by page."""
    recalls, precisions = [], []
    for extracted_text, expected_text in zip(extracted, expected, strict=True):
        found, wanted = count_sequences(extracted_text), count_sequences(expected_text)
        common = (found & wanted).total()
        recalls.append(common / wanted.total() if wanted else np.nan)
        precisions.append(common / found.total() if found else np.nan)
    return Agreement(np.array(recalls), np.array(precisions))


def compare_lists(extracted: Sequence[str], pages: Sequence[ArticlePage]) -> Agreement:
    """Compare which sequences of the pages' lists are in the extracted and the true texts."""
    recalls, precisions = [], []
    for extracted_text, page in zip(extracted, pages, strict=True):
        body = HTMLTree.parse(page.html).body
        lists = body.query_selector_all("ul")[:] if body else ()
        in_lists = {sequence for each in lists for sequence in count_sequences(each.text or "")}
        found = in_lists & count_sequences(extracted_text).keys()
        wanted = in_lists & count_sequences(page.article).keys()
        recalls.append(len(found & wanted) / len(wanted) if wanted else np.nan)
        precisions.append(len(found & wanted) / len(found) if found else np.nan)
    return Agreement(np.array(recalls), np.array(precisions))


def format_mean(values: np.ndarray, seed: int = 0) -> str:
    """Format a mean over pages with its bootstrap interval and the number of pages."""
    values = values[~np.isnan(values)]
    indices = np.random.default_rng(seed).integers(
        len(values), size=(BOOTSTRAP_SAMPLES, len(values))
    )
    low, high = np.percentile(values[indices].mean(axis=1), [2.5, 97.5])
    return f"{values.mean():.3f} ({low:.3f}–{high:.3f}, n = {len(values)})"


def prepare_environment(folder: Path) -> Path:
    """Create an environment with trafilatura if it is missing, and return its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    packages = [f"trafilatura=={TRAFILATURA_VERSION}", "lxml_html_clean"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


class Comparison(NamedTuple):
    """The results of the tools."""

    texts_by_tool: dict[str, list[str]]
    seconds_by_tool: dict[str, list[float]]
    """Processor seconds of each turn."""
    trafilatura_version: str


def run_in_alternation(python: Path, pages: Sequence[ArticlePage], turns: int) -> Comparison:
    """Run the tools in alternation.

    Args:
        python: Interpreter of trafilatura's environment.
        pages: The pages.
        turns: Runs of each tool.
    """
    extractors = {
        "Hallmark": lambda html: extract_page_text(html, main_content=True),
        "Resiliparse alone": lambda html: extract_plain_text(
            html, preserve_formatting=True, main_content=True, alt_texts=False
        ),
        "Hallmark, main_content = false": lambda html: extract_page_text(html, main_content=False),
    }
    texts: dict[str, list[str]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in ("trafilatura", *extractors)}
    with tempfile.TemporaryDirectory() as scratch:
        pages_path, texts_path = Path(scratch) / "pages.jsonl", Path(scratch) / "texts.json"
        pages_path.write_text("".join(json.dumps(page.html) + "\n" for page in pages))
        script = Path(__file__).with_name("extraction_opponent.py")
        command = [str(python), str(script), str(pages_path), str(texts_path)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as trafilatura:
            assert trafilatura.stdin and trafilatura.stdout
            version = trafilatura.stdout.readline().strip()
            for _ in range(turns):
                trafilatura.stdin.write("go\n")
                trafilatura.stdin.flush()
                seconds["trafilatura"].append(float(trafilatura.stdout.readline()))
                for name, extract in extractors.items():
                    start = time.process_time()
                    texts[name] = [extract(page.html) for page in pages]
                    seconds[name].append(time.process_time() - start)
            trafilatura.stdin.close()
        texts = {"trafilatura": json.loads(texts_path.read_text()), **texts}
    return Comparison(texts, seconds, version)


def print_tables(comparison: Comparison, pages: Sequence[ArticlePage]) -> None:
    print("| | recall (95 % CI) | precision (95 % CI) | F1 | empty texts | seconds, median |")
    print("|---|---|---|--:|--:|---|")
    for name, texts in comparison.texts_by_tool.items():
        agreement = compare_texts(texts, [page.article for page in pages])
        recall, precision = np.nanmean(agreement.recalls), np.nanmean(agreement.precisions)
        seconds = comparison.seconds_by_tool[name]
        print(
            f"| {name} | {format_mean(agreement.recalls)} | {format_mean(agreement.precisions)} "
            f"| {2 * recall * precision / (recall + precision):.3f} "
            f"| {sum(not text.strip() for text in texts)} "
            f"| {statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f}) |"
        )
    print("\n| text in lists (`ul`) | recall (95 % CI) | precision (95 % CI) |")
    print("|---|---|---|")
    for name, texts in comparison.texts_by_tool.items():
        agreement = compare_lists(texts, pages)
        print(
            f"| {name} | {format_mean(agreement.recalls)} | {format_mean(agreement.precisions)} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--articles", type=Path, required=True, help="checkout of the benchmark")
    parser.add_argument(
        "--opponent", type=Path, required=True, help="folder of trafilatura's environment"
    )
    parser.add_argument("--turns", type=int, default=5, help="runs of each tool")
    options = parser.parse_args()
    pages = read_articles(options.articles)
    comparison = run_in_alternation(prepare_environment(options.opponent), pages, options.turns)
    megabytes = sum(len(page.html.encode()) for page in pages) / 1e6
    resiliparse_version = read_library_versions(["resiliparse"])["resiliparse"]
    print(
        f"{len(pages):,} pages, {megabytes:.1f} MB; trafilatura {comparison.trafilatura_version}; "
        f"resiliparse {resiliparse_version}; {options.turns} turns; processor seconds of one core\n"
    )
    print_tables(comparison, pages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
