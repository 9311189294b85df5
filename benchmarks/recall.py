"""Measure the recall of near duplicates by Jaccard similarity, and compare it with theory.

    python -m benchmarks.recall --data FOLDER [--documents 65000] [--brute 5000]
        [--min-similarity 0.5]

Documents are those of ``benchmarks.duplicates``, with its planted copies. All pairs with at least
--min-similarity are found exactly, by two methods: among the first --brute documents by comparing
every pair; among all documents by a set join with prefix filtering (Chaudhuri, Ganti and Kaushik
2006; Bayardo, Ma and Srikant 2007), which misses none. The two must agree. Both work on sets of
words in plain Python, and share no code with the project except the normalisation.

Prints for each bin of similarity the number of pairs, the share of them whose sketches agree in a
band, so that the stage compares them, and the share that the formula of MinHash-LSH predicts, for
two settings of bands and rows.
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

SHINGLE_WORDS = 5
#: (bands, rows per band)
SETTINGS = ((14, 8), (32, 4))

ShingleSet = frozenset[int]
#: Similarity by the indices of two sets.
SimilarityByPair = dict[tuple[int, int], float]


def number_shingles(texts: list[str]) -> list[ShingleSet]:
    """Return the shingles of each text as numbers, in which rarer shingles are smaller."""
    shingle_sets = [
        {tuple(words[i : i + SHINGLE_WORDS]) for i in range(max(1, len(words) - SHINGLE_WORDS + 1))}
        for words in (text.split(" ") for text in texts)
    ]
    counts = Counter(shingle for shingles in shingle_sets for shingle in shingles)
    numbers = {shingle: n for n, (shingle, _) in enumerate(reversed(counts.most_common()))}
    return [frozenset(numbers[shingle] for shingle in shingles) for shingles in shingle_sets]


def compute_jaccard(left: ShingleSet, right: ShingleSet) -> float:
    common = len(left & right)
    return common / (len(left) + len(right) - common)


def compare_every_pair(sets: list[ShingleSet], min_similarity: float) -> SimilarityByPair:
    """Find the pairs with at least this similarity by comparing every pair."""
    similarities = {}
    for right in range(len(sets)):
        for left in range(right):
            small, large = sorted((len(sets[left]), len(sets[right])))
            if small >= min_similarity * large:
                similarity = compute_jaccard(sets[left], sets[right])
                if similarity >= min_similarity:
                    similarities[left, right] = similarity
    return similarities


def join_by_prefixes(sets: list[ShingleSet], min_similarity: float) -> SimilarityByPair:
    """Find the pairs with at least this similarity by prefix filtering.

    Two such sets have a member in common that is in the prefix of both. The prefix of a set with m
    members is its m - ceil(min_similarity * m) + 1 rarest members.
    """
    indices_by_member: dict[int, list[int]] = defaultdict(list)
    similarities = {}
    for right, members in enumerate(sets):
        prefix = sorted(members)[: len(members) - math.ceil(min_similarity * len(members)) + 1]
        candidates = {left for member in prefix for left in indices_by_member[member]}
        for left in candidates:
            similarity = compute_jaccard(sets[left], members)
            if similarity >= min_similarity:
                similarities[left, right] = similarity
        for member in prefix:
            indices_by_member[member].append(right)
    return similarities


def list_first_occurrences(texts: list[str]) -> list[int]:
    """Return the index of the first occurrence of each distinct text."""
    first_index: dict[str, int] = {}
    for index, text in enumerate(texts):
        first_index.setdefault(text, index)
    return list(first_index.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of text corpora")
    parser.add_argument("--documents", type=int, default=65_000, help="number of documents")
    parser.add_argument(
        "--brute", type=int, default=5_000, help="documents of which every pair is compared"
    )
    parser.add_argument("--min-similarity", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hallmark-recall-") as scratch:
        path = Path(scratch) / "documents.parquet"
        write_documents(options.data, options.documents, options.seed, path)
        texts = normalise_texts(pq.read_table(path)["text"].combine_chunks())
    # Exact copies are removed before near duplicates are searched.
    first_occurrences = list_first_occurrences(texts.to_pylist())
    texts = texts.filter(np.isin(np.arange(len(texts)), first_occurrences))
    sets = number_shingles(texts.to_pylist())
    pairs = join_by_prefixes(sets, options.min_similarity)
    brute_force_pairs = compare_every_pair(sets[: options.brute], options.min_similarity)
    if brute_force_pairs != {pair: s for pair, s in pairs.items() if pair[1] < options.brute}:
        sys.exit("the set join and the comparison of every pair do not agree")
    print(
        f"{len(texts):,} distinct documents, {len(pairs):,} pairs with similarity "
        f"{options.min_similarity} or more"
    )
    print(
        f"comparing every pair of the first {options.brute:,} finds the same "
        f"{len(brute_force_pairs):,} pairs among them"
    )
    hashes, offsets = compute_shingle_hashes(texts, SHINGLE_WORDS)
    left, right = np.array(list(pairs)).T
    similarity = np.array(list(pairs.values()))
    print(
        f"{'similarity':<14}{'pairs':>8}"
        + "".join(f"{f'{b} x {r} found':>16}{'predicted':>11}" for b, r in SETTINGS)
    )
    sketches = [compute_band_hashes(hashes, offsets, *setting, seed=1) for setting in SETTINGS]
    agrees = [(sketch[left] == sketch[right]).any(axis=1) for sketch in sketches]
    bin_starts = np.floor(similarity * 20 + 1e-9) / 20
    for start in np.unique(bin_starts):
        in_bin = bin_starts == start
        line = f"{start:.2f} to {start + 0.05:.2f}".ljust(14) + f"{in_bin.sum():>8,}"
        for (bands, rows), is_found in zip(SETTINGS, agrees, strict=True):
            predicted = (1 - (1 - similarity[in_bin] ** rows) ** bands).mean()
            line += f"{is_found[in_bin].mean():>16.4f}{predicted:>11.4f}"
        print(line)


if __name__ == "__main__":
    main()
