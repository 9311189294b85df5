"""How long it takes to find what a million tokens of responses have word for word from a corpus.

    python -m benchmarks.verbatim [MEGABYTES]

Rows of random tokens stand for a corpus of so many megabytes (100), at 3.5 bytes a token; responses
of 100 tokens are random, too, but for runs that are copied from rows: so what is to be found is
known, and of 50 tokens nothing else agrees by chance. Prints seconds, peak memory beyond the rows'
files, and whether what was found is what was copied.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from hallmark.tasks.audits.verbatim_matching import TokenWindowIndex

#: Tokens of a vocabulary, of a row and of a response; rows that are looked through together.
VOCABULARY, WIDTH, RESPONSE, STRETCH = 4096, 256, 100, 4096
VERBATIM, LEAST = 50, 8


def corpus(path: Path, megabytes: float, rng: np.random.Generator) -> np.ndarray:
    """Packed rows in a file, (n, WIDTH) int32, mapped."""
    rows = int(megabytes * 1e6 / 3.5 / WIDTH)
    found = np.lib.format.open_memmap(path, "w+", np.int32, (rows, WIDTH))
    for low in range(0, rows, STRETCH):
        some = found[low : low + STRETCH]
        some[:] = rng.integers(1, VOCABULARY, some.shape)
    found.flush()
    return np.load(path, mmap_mode="r")


def responses(
    rows: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Random texts, every third of which holds a run of 20 to 80 tokens from a row; and the length
    of that run."""
    texts = rng.integers(1, VOCABULARY, (count, RESPONSE)).astype(np.int32)
    copied = np.where(np.arange(count) % 3 == 0, rng.integers(20, 81, count), 0)
    for number in np.flatnonzero(copied):
        size = copied[number]
        row, place = rng.integers(len(rows)), rng.integers(WIDTH - size + 1)
        start = rng.integers(RESPONSE - size + 1)
        texts[number, start : start + size] = rows[row, place : place + size]
    return texts, copied


def main(megabytes: float) -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        rows = corpus(Path(folder) / "rows.npy", megabytes, rng)
        texts, copied = responses(rows, 1_000_000 // RESPONSE, rng)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begun = time.perf_counter()
        listed = texts.tolist()
        windows, reuse = TokenWindowIndex(listed, LEAST), TokenWindowIndex(listed, VERBATIM)
        longest, covered = np.zeros(len(texts), np.int64), np.zeros(texts.size, bool)
        for low in range(0, len(rows), STRETCH):
            some = np.array(rows[low : low + STRETCH])
            runs = windows.find_longest_runs(some)
            np.maximum.at(longest, runs.text_index, runs.length)
            reuse.mark_covered_tokens(some, covered)
        took = time.perf_counter() - begun
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    found = covered.reshape(len(texts), -1).sum(1)
    # A run may go on by chance for a token or two.
    right = (longest - copied >= 0) & (longest - copied <= 3)
    right |= copied == 0
    reused = np.where(copied >= VERBATIM, copied, 0)
    print(
        f"{megabytes:g} MB, {rows.size:,} tokens of corpus, {texts.size:,} of responses: "
        f"{took:.1f} s, {peak:.0f} MB more memory"
    )
    print(
        f"longest runs as copied: {right.sum():,} of {len(right):,}; tokens of verbatim reuse: "
        f"{found.sum():,} found, {reused.sum():,} copied"
    )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 100.0)
