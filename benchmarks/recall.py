"""Recall of near duplicates by Jaccard similarity, beside what MinHash-LSH promises.

    python -m benchmarks.recall --data FOLDER [--documents 65000] [--brute 5000] [--least 0.5]

Documents are those of ``benchmarks.duplicates``, with its planted copies. All pairs at --least or
above are found exactly, twice: over the first --brute documents by comparing every pair, over all
of them by a set join with prefix filtering (Chaudhuri, Ganti and Kaushik 2006; Bayardo, Ma and
Srikant 2007), which misses none; where both looked they must agree. Both work on sets of words in
plain Python and share no code with the project but the normalisation. Then for each bin of
similarity: pairs, the share of them whose sketches agree in a band, so that the stage compares
them, and the share that the formula promises, for both settings of bands and rows.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.duplicates import write_documents
from hallmark.tasks.corpus.copies.sketches import compute_band_hashes, compute_shingle_hashes
from hallmark.tasks.measures.normalised_words import normalise_texts

SHINGLE = 5
SETTINGS = ((14, 8), (32, 4))

Sets = list[frozenset[int]]
Pairs = dict[tuple[int, int], float]


def sets_of(texts: list[str]) -> Sets:
    """The shingles of each text, numbered from the rarest on."""
    spelled = [
        {tuple(w[i : i + SHINGLE]) for i in range(max(1, len(w) - SHINGLE + 1))}
        for w in (text.split(" ") for text in texts)
    ]
    counts = Counter(shingle for found in spelled for shingle in found)
    number = {shingle: n for n, (shingle, _) in enumerate(reversed(counts.most_common()))}
    return [frozenset(number[shingle] for shingle in found) for found in spelled]


def jaccard(left: frozenset[int], right: frozenset[int]) -> float:
    common = len(left & right)
    return common / (len(left) + len(right) - common)


def every_pair(sets: Sets, least: float) -> Pairs:
    found = {}
    for right in range(len(sets)):
        for left in range(right):
            small, large = sorted((len(sets[left]), len(sets[right])))
            if small >= least * large and (s := jaccard(sets[left], sets[right])) >= least:
                found[left, right] = s
    return found


def prefix_join(sets: Sets, least: float) -> Pairs:
    """Two sets at ``least`` or above share one of the rarest members of each: of m members the
    first m - ceil(least × m) + 1."""
    index: dict[int, list[int]] = defaultdict(list)
    found = {}
    for right, members in enumerate(sets):
        prefix = sorted(members)[: len(members) - math.ceil(least * len(members)) + 1]
        met = {left for member in prefix for left in index[member]}
        for left in met:
            if (s := jaccard(sets[left], members)) >= least:
                found[left, right] = s
        for member in prefix:
            index[member].append(right)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--documents", type=int, default=65_000)
    arguments.add_argument("--brute", type=int, default=5_000)
    arguments.add_argument("--least", type=float, default=0.5)
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="hallmark-recall-") as scratch:
        path = Path(scratch) / "documents.parquet"
        write_documents(given.data, given.documents, given.seed, path)
        texts = normalise_texts(pq.read_table(path)["text"].combine_chunks())
    # Exact copies go before near ones are looked for.
    texts = texts.filter(np.isin(np.arange(len(texts)), _first_of_each(texts.to_pylist())))
    sets = sets_of(texts.to_pylist())
    pairs = prefix_join(sets, given.least)
    brute = every_pair(sets[: given.brute], given.least)
    if brute != {pair: s for pair, s in pairs.items() if pair[1] < given.brute}:
        sys.exit("the set join and the comparison of every pair do not agree")
    print(f"{len(texts):,} different documents, {len(pairs):,} pairs from {given.least} on;")
    print(f"among the first {given.brute:,} every pair was compared: the same {len(brute):,}")
    hashes, offsets = compute_shingle_hashes(texts, SHINGLE)
    left, right = np.array(list(pairs)).T
    similarity = np.array(list(pairs.values()))
    print(
        f"{'similarity':<14}{'pairs':>8}"
        + "".join(f"{f'{b} x {r} found':>16}{'promised':>10}" for b, r in SETTINGS)
    )
    sketched = [compute_band_hashes(hashes, offsets, *setting, seed=1) for setting in SETTINGS]
    met = [(sketch[left] == sketch[right]).any(axis=1) for sketch in sketched]
    low = np.floor(similarity * 20 + 1e-9) / 20
    for edge in np.unique(low):
        here = low == edge
        line = f"{edge:.2f} to {edge + 0.05:.2f}".ljust(14) + f"{here.sum():>8,}"
        for (bands, rows), found in zip(SETTINGS, met, strict=True):
            promised = (1 - (1 - similarity[here] ** rows) ** bands).mean()
            line += f"{found[here].mean():>16.4f}{promised:>10.4f}"
        print(line)


def _first_of_each(texts: list[str]) -> list[int]:
    first: dict[str, int] = {}
    for place, text in enumerate(texts):
        first.setdefault(text, place)
    return list(first.values())


if __name__ == "__main__":
    main()
