"""Time the search for passages that a million tokens of responses copy verbatim from a corpus.

    python -m benchmarks.verbatim [MEGABYTES]

The corpus consists of rows of random tokens of so many megabytes (100), at 3.5 bytes per token.
Responses have 100 tokens; they are random, too, except for runs that are copied from rows. The
result is therefore known: runs of 50 tokens do not agree by chance. Prints seconds, peak memory
in addition to the file of the rows, and whether the copied runs were found.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hallmark.tasks.audits.verbatim_matching import TokenWindowIndex

VOCABULARY_SIZE, ROW_TOKENS, RESPONSE_TOKENS = 4096, 256, 100
#: Rows that are searched together.
ROWS_PER_CHUNK = 4096
#: Length of runs that count as verbatim reuse, and of the shortest runs that are found.
VERBATIM_TOKENS, MIN_RUN_TOKENS = 50, 8


def write_corpus(path: Path, megabytes: float, rng: np.random.Generator) -> np.ndarray:
    """Write rows of random tokens; returns them as a memory map, (n, ROW_TOKENS) int32."""
    row_count = int(megabytes * 1e6 / 3.5 / ROW_TOKENS)
    rows = np.lib.format.open_memmap(path, "w+", np.int32, (row_count, ROW_TOKENS))
    for low in range(0, row_count, ROWS_PER_CHUNK):
        chunk = rows[low : low + ROWS_PER_CHUNK]
        chunk[:] = rng.integers(1, VOCABULARY_SIZE, chunk.shape)
    rows.flush()
    return np.load(path, mmap_mode="r")


class Responses(NamedTuple):
    """Random texts, some of which contain a copied run."""

    token_ids: np.ndarray
    """(n, RESPONSE_TOKENS) int32."""
    copied_tokens: np.ndarray
    """Length of the copied run of each, (n,); 0 if there is none."""


def generate_responses(rows: np.ndarray, count: int, rng: np.random.Generator) -> Responses:
    """Generate responses, every third of which contains 20 to 80 consecutive tokens of a row."""
    token_ids = rng.integers(1, VOCABULARY_SIZE, (count, RESPONSE_TOKENS)).astype(np.int32)
    copied_tokens = np.where(np.arange(count) % 3 == 0, rng.integers(20, 81, count), 0)
    for number in np.flatnonzero(copied_tokens):
        size = copied_tokens[number]
        row, row_start = rng.integers(len(rows)), rng.integers(ROW_TOKENS - size + 1)
        start = rng.integers(RESPONSE_TOKENS - size + 1)
        token_ids[number, start : start + size] = rows[row, row_start : row_start + size]
    return Responses(token_ids, copied_tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("megabytes", nargs="?", type=float, default=100.0)
    megabytes = parser.parse_args().megabytes
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        rows = write_corpus(Path(folder) / "rows.npy", megabytes, rng)
        token_ids, copied_tokens = generate_responses(rows, 1_000_000 // RESPONSE_TOKENS, rng)
        memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        texts = token_ids.tolist()
        run_index = TokenWindowIndex(texts, MIN_RUN_TOKENS)
        reuse_index = TokenWindowIndex(texts, VERBATIM_TOKENS)
        longest_runs = np.zeros(len(token_ids), np.int64)
        is_reused = np.zeros(token_ids.size, bool)
        for low in range(0, len(rows), ROWS_PER_CHUNK):
            chunk = np.array(rows[low : low + ROWS_PER_CHUNK])
            runs = run_index.find_longest_runs(chunk)
            np.maximum.at(longest_runs, runs.text_index, runs.length)
            reuse_index.mark_text_tokens_found_in_rows(chunk, is_reused)
        seconds = time.perf_counter() - start
        added_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before) / 1024
    reused_tokens = is_reused.reshape(len(token_ids), -1).sum(1)
    # By chance a run may be longer by a few tokens than what was copied.
    excess = longest_runs - copied_tokens
    is_right = ((excess >= 0) & (excess <= 3)) | (copied_tokens == 0)
    expected_reuse = np.where(copied_tokens >= VERBATIM_TOKENS, copied_tokens, 0)
    print(
        f"{megabytes:g} MB, {rows.size:,} tokens of corpus, {token_ids.size:,} of responses: "
        f"{seconds:.1f} s, {added_mib:.0f} MB of additional memory"
    )
    print(
        f"longest runs as copied: {is_right.sum():,} of {len(is_right):,}; tokens of verbatim "
        f"reuse: {reused_tokens.sum():,} found, {expected_reuse.sum():,} copied"
    )


if __name__ == "__main__":
    main()
