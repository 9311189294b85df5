"""Test ranking, equal rows and clusters of duplicates against plain Python in random cases."""

import random

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.contract import (
    ID_TYPE,
    ids_to_uint64_pairs,
)
from hallmark.tasks.corpus.copies.duplicates import (
    assign_clusters,
    build_ranking_columns,
    find_lowest_ranked_equal,
)
from hallmark.tasks.corpus.copies.earlier_corpora import is_in_sorted


def make_ids(numbers):
    """Make ids that often share one half, some with the highest bit set."""
    upper_halves = [0, 1, 1 << 63]
    columns = [
        upper_halves[n % 3].to_bytes(8, "big") + (n // 3).to_bytes(8, "big") for n in numbers
    ]
    return pa.array(columns, ID_TYPE)


def test_id_pairs_sort_like_the_bytes_for_any_chunks():
    rng = random.Random(1)
    ids = make_ids(rng.choices(range(60), k=50))
    chunks = pa.chunked_array([ids[3:9], ids[9:9], ids[9:31], ids[20:50]], ID_TYPE)
    pairs = [tuple(row) for row in ids_to_uint64_pairs(chunks).tolist()]
    expected = chunks.to_pylist()
    assert [a.to_bytes(8, "big") + b.to_bytes(8, "big") for a, b in pairs] == expected
    order = sorted(range(len(pairs)), key=pairs.__getitem__)
    assert [expected[i] for i in order] == sorted(expected)


@pytest.mark.parametrize("seed", range(20))
def test_the_lowest_ranked_of_equal_rows_is_found(seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 3, (20, 2), dtype=np.uint64)
    rank = rng.permutation(20)
    expected = [
        min((j for j in range(20) if (values[j] == row).all()), key=rank.__getitem__)
        for row in values
    ]
    assert find_lowest_ranked_equal(values, rank).tolist() == expected


def test_a_preferred_source_includes_its_parts():
    names = ["web", "docs/pip", "docs", "docsets", "docs/click"]
    columns = {"doc_id": make_ids(range(5)), "cluster": make_ids(range(5)), "source": names}
    batch = pa.record_batch({**columns, "text": pa.array(names, pa.large_string())})
    preferences = {
        preferred_sources: build_ranking_columns(batch, preferred_sources)["preference"].to_pylist()
        for preferred_sources in ((), ("docs",), ("docs/click", "docs", "web"))
    }
    assert [*preferences.values()] == [[0] * 5, [1, 0, 0, 1, 0], [2, 1, 1, 3, 0]]


@pytest.mark.parametrize("sorted_values", [[], [5], [0, 3, 9]])
def test_values_in_the_sorted_array_are_found(sorted_values):
    values = np.arange(-1, 11)
    is_found = is_in_sorted(values, np.array(sorted_values, np.int64))
    assert is_found.tolist() == [value in sorted_values for value in values.tolist()]


def join_one_by_one(earlier, documents, duplicate_of, pairs):
    """Return the clusters and whether they join earlier ones.

    Args:
        earlier: (incoming cluster, cluster) of earlier documents.
        documents: (doc_id, cluster) of new documents.
        duplicate_of: Positions of the documents kept instead, or -1; earlier documents count first.
    """
    m = len(earlier)
    groups = [{position} for position in range(m + len(documents))]

    def join(a, b):
        if b not in groups[a]:
            groups[a] |= groups[b]
            for position in groups[a]:
                groups[position] = groups[a]

    incoming_clusters = [incoming for incoming, _ in earlier] + [
        cluster for _, cluster in documents
    ]
    for position in range(m):
        join(position, next(p for p in range(m) if earlier[p][1] == earlier[position][1]))
    for position in range(m, len(groups)):
        join(position, incoming_clusters.index(incoming_clusters[position]))
        if duplicate_of[position - m] >= 0:
            join(position, duplicate_of[position - m])
    for first, second in pairs:
        join(first, second)
    names, joins = [], []
    for position in range(m, len(groups)):
        earlier_clusters = [earlier[p][1] for p in sorted(groups[position]) if p < m]
        kept_ids = [
            documents[p - m][0] for p in groups[position] if p >= m and duplicate_of[p - m] < 0
        ]
        names.append(earlier_clusters[0] if earlier_clusters else min(kept_ids))
        joins.append(len(set(earlier_clusters)) > 1)
    return names, joins


@pytest.mark.parametrize("m", [0, 6])
@pytest.mark.parametrize("seed", range(40))
def test_clusters_equal_those_of_joining_one_by_one(seed, m):
    rng = random.Random(seed)
    n = 8
    earlier = [tuple(make_ids(rng.choices(range(200, 206), k=2)).to_pylist()) for _ in range(m)]
    doc_ids = make_ids(rng.sample(range(100), n)).to_pylist()
    incoming_clusters = make_ids(rng.choices([*range(200, 206), *range(300, 320)], k=n)).to_pylist()
    documents = list(zip(doc_ids, incoming_clusters, strict=True))
    kept_positions = [position for position in range(n) if position == 0 or rng.random() < 0.6]
    kept_candidates = [*range(m), *(m + position for position in kept_positions)]
    duplicate_of = [
        -1 if position in kept_positions else rng.choice(kept_candidates) for position in range(n)
    ]
    pairs = [sorted(rng.sample(kept_candidates, 2)) for _ in range(2) if len(kept_candidates) > 1]
    names, joins = assign_clusters(
        pa.table(
            {"doc_id": pa.array(doc_ids, ID_TYPE), "cluster": pa.array(incoming_clusters, ID_TYPE)}
        ),
        pa.table(
            {
                name: pa.array([row[column] for row in earlier], ID_TYPE)
                for column, name in enumerate(("incoming_cluster", "cluster"))
            }
        ),
        np.array(duplicate_of),
        *np.array(pairs, np.int64).reshape(-1, 2).T,
    )
    assert (names.to_pylist(), joins.tolist()) == join_one_by_one(
        earlier, documents, duplicate_of, pairs
    )
