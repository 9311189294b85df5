"""Who comes first, who is the same, which cluster: against plain Python over small random cases."""

import random

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.contract import ID_TYPE
from hallmark.tasks.corpus.copies.duplicates import (
    assign_clusters,
    build_ranking_columns,
    find_lowest_ranked_equal,
    ids_to_uint64_pairs,
)
from hallmark.tasks.corpus.copies.earlier_corpora import is_in_sorted


def ids_of(numbers):
    """Ids of which many share one half, some with the sign bit set."""
    halved = [0, 1, 1 << 63]
    columns = [halved[n % 3].to_bytes(8, "big") + (n // 3).to_bytes(8, "big") for n in numbers]
    return pa.array(columns, ID_TYPE)


def test_halves_sort_as_the_bytes_do_wherever_the_column_is_cut():
    chance = random.Random(1)
    whole = ids_of(chance.choices(range(60), k=50))
    pieces = pa.chunked_array([whole[3:9], whole[9:9], whole[9:31], whole[20:50]], ID_TYPE)
    found = [tuple(row) for row in ids_to_uint64_pairs(pieces).tolist()]
    expected = pieces.to_pylist()
    assert [a.to_bytes(8, "big") + b.to_bytes(8, "big") for a, b in found] == expected
    order = sorted(range(len(found)), key=found.__getitem__)
    assert [expected[i] for i in order] == sorted(expected)


@pytest.mark.parametrize("seed", range(20))
def test_the_first_of_equals_is_the_one_of_the_lowest_rank(seed):
    chance = np.random.default_rng(seed)
    values = chance.integers(0, 3, (20, 2), dtype=np.uint64)
    rank = chance.permutation(20)
    expected = [
        min((j for j in range(20) if (values[j] == row).all()), key=rank.__getitem__)
        for row in values
    ]
    assert find_lowest_ranked_equal(values, rank).tolist() == expected


def test_with_a_source_its_parts_are_preferred():
    names = ["web", "docs/pip", "docs", "docsets", "docs/click"]
    columns = {"doc_id": ids_of(range(5)), "cluster": ids_of(range(5)), "source": names}
    batch = pa.record_batch({**columns, "text": pa.array(names, pa.large_string())})
    found = {
        prefer: build_ranking_columns(batch, prefer)["preference"].to_pylist()
        for prefer in ((), ("docs",), ("docs/click", "docs", "web"))
    }
    assert [*found.values()] == [[0] * 5, [1, 0, 0, 1, 0], [2, 1, 1, 3, 0]]


@pytest.mark.parametrize("known", [[], [5], [0, 3, 9]])
def test_what_is_among_the_known_is_found(known):
    values = np.arange(-1, 11)
    found = is_in_sorted(values, np.array(known, np.int64))
    assert found.tolist() == [value in known for value in values.tolist()]


def expected_clusters(before, known, twin, pairs):
    """before: (entered, cluster); known: (doc_id, cluster); places count the earlier ones first."""
    m = len(before)
    group = [{place} for place in range(m + len(known))]

    def join(a, b):
        if b not in group[a]:
            group[a] |= group[b]
            for place in group[a]:
                group[place] = group[a]

    came = [entered for entered, _ in before] + [cluster for _, cluster in known]
    for place in range(m):
        join(place, next(p for p in range(m) if before[p][1] == before[place][1]))
    for place in range(m, len(group)):
        join(place, came.index(came[place]))
        if twin[place - m] >= 0:
            join(place, twin[place - m])
    for left, right in pairs:
        join(left, right)
    names, joins = [], []
    for place in range(m, len(group)):
        homes = [before[p][1] for p in sorted(group[place]) if p < m]
        kept = [known[p - m][0] for p in group[place] if p >= m and twin[p - m] < 0]
        names.append(homes[0] if homes else min(kept))
        joins.append(len(set(homes)) > 1)
    return names, joins


@pytest.mark.parametrize("m", [0, 6])
@pytest.mark.parametrize("seed", range(40))
def test_clusters_are_those_of_joining_one_by_one(seed, m):
    chance = random.Random(seed)
    n = 8
    before = [tuple(ids_of(chance.choices(range(200, 206), k=2)).to_pylist()) for _ in range(m)]
    doc_ids = ids_of(chance.sample(range(100), n)).to_pylist()
    came = ids_of(chance.choices([*range(200, 206), *range(300, 320)], k=n)).to_pylist()
    known = list(zip(doc_ids, came, strict=True))
    kept = [place for place in range(n) if place == 0 or chance.random() < 0.6]
    stays = [*range(m), *(m + place for place in kept)]
    twin = [-1 if place in kept else chance.choice(stays) for place in range(n)]
    pairs = [sorted(chance.sample(stays, 2)) for _ in range(2) if len(stays) > 1]
    names, joins = assign_clusters(
        pa.table({"doc_id": pa.array(doc_ids, ID_TYPE), "cluster": pa.array(came, ID_TYPE)}),
        pa.table(
            {
                name: pa.array([row[at] for row in before], ID_TYPE)
                for at, name in enumerate(("incoming_cluster", "cluster"))
            }
        ),
        np.array(twin),
        *np.array(pairs, np.int64).reshape(-1, 2).T,
    )
    assert (names.to_pylist(), joins.tolist()) == expected_clusters(before, known, twin, pairs)
