"""Who is compared with whom, how alike they are, who stays: against plain Python."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.corpus.copies import matching
from hallmark.tasks.corpus.copies.matching import (
    compute_jaccard,
    count_agreeing_bands,
    find_duplicate_pairs,
    keep_best_pairs,
    mark_removed_duplicates,
    pack_pairs,
    select_candidate_pairs,
)
from hallmark.tasks.corpus.copies.matching import unpack_pairs as parted


def arrays(pairs):
    found = sorted(pairs, key=lambda pair: pair[::-1])
    left, right = zip(*found, strict=True) if found else ((), ())
    return np.array(left, np.int64), np.array(right, np.int64)


edges = st.integers(1, 25).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.sets(
            st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))
            .filter(lambda pair: pair[0] != pair[1])
            .map(lambda pair: (min(pair), max(pair)))
        ),
    )
)


@given(edges)
def test_who_goes_is_what_taking_them_in_turn_gives(given):
    n, pairs = given
    gone = set()
    for item in range(n):
        if any((other, item) in pairs and other not in gone for other in range(item)):
            gone.add(item)
    assert set(np.flatnonzero(mark_removed_duplicates(n, *arrays(pairs))).tolist()) == gone


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=30), min_size=2, max_size=12),
    st.integers(0, 3),
)
def test_similarities_are_those_of_the_sets(sets, far):
    """Copies among the hashes count once; a set longer than a block is compared as well."""
    spread = np.random.default_rng(5).integers(0, 1 << 63, 41, dtype=np.uint64)
    held = [spread[np.array(items)] for items in sets]
    if far == 0:
        held[0] = np.arange(100_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    pairs = list(combinations(range(len(held)), 2)) * (400 if far == 1 else 1)
    left, right = (np.array(side) for side in zip(*pairs, strict=True))
    sizes = np.array([len(items) for items in held])

    def shelf(items):
        return np.concatenate([held[i] for i in items]), sizes[items]

    as_sets = [set(items.tolist()) for items in held]
    expected = [len(as_sets[a] & as_sets[b]) / len(as_sets[a] | as_sets[b]) for a, b in pairs]
    assert compute_jaccard(shelf, left, right, sizes).tolist() == expected


def table_of(seed, n, bands, values):
    return np.random.default_rng(seed).integers(0, values, (n, bands), dtype=np.uint32)


@pytest.mark.parametrize("seed", range(6))
def test_without_limits_all_that_agree_in_a_band_are_candidates(seed):
    bands = table_of(seed, 60, 3, 20)
    alive = np.flatnonzero(np.random.default_rng(seed).random(60) < 0.9)
    found, limited, agreeing = select_candidate_pairs(bands, alive, 60)
    expected = [(a, b) for a, b in combinations(alive, 2) if (bands[a] == bands[b]).any()]
    assert found.tolist() == pack_pairs(*arrays(expected)).tolist()
    assert not limited.any()
    assert set(np.flatnonzero(agreeing).tolist()) == {item for pair in expected for item in pair}


def test_bands_agree_in_all_their_bits_or_not_at_all():
    bands = np.array([0, *(1 << bit for bit in range(32))], np.uint32)[:, None]
    found, _, agreeing = select_candidate_pairs(bands, np.arange(33), 5)
    assert not len(found) and not agreeing.any()


@pytest.mark.parametrize("limit", [2, 7])
def test_pairs_that_are_dropped_early_would_be_dropped_at_the_end(monkeypatch, limit):
    bands = table_of(4, 200, 8, 6)
    at_the_end = select_candidate_pairs(bands, np.arange(200), limit)
    monkeypatch.setattr(matching, "MAX_BUFFERED_PAIRS", 100)
    early = select_candidate_pairs(bands, np.arange(200), limit)
    assert [found.tolist() for found in early] == [found.tolist() for found in at_the_end]


@pytest.mark.parametrize("limit", [1, 3, 10])
@pytest.mark.parametrize("values", [2, 6, 200])
def test_a_limit_bounds_the_candidates_and_says_whom_it_touched(limit, values):
    bands = table_of(values, 300, 6, values)
    found, limited, agreeing = select_candidate_pairs(bands, np.arange(300), limit)
    left, right = parted(found)
    assert (left < right).all()
    assert (bands[left] == bands[right]).any(axis=1).all()
    assert max(Counter(right.tolist()).values()) <= limit
    all_of_them = {(a, b) for a, b in combinations(range(300), 2) if (bands[a] == bands[b]).any()}
    left_out = {b for _, b in all_of_them - set(zip(left.tolist(), right.tolist(), strict=True))}
    assert left_out <= set(np.flatnonzero(limited).tolist())
    assert set(np.flatnonzero(agreeing).tolist()) == {i for pair in all_of_them for i in pair}
    has_one = {right for _, right in all_of_them}
    assert set(right.tolist()) == has_one  # the first of its bucket is always among them


@pytest.mark.parametrize("limit", [1, 4])
def test_the_candidates_taken_agree_in_most_bands(limit):
    bands = table_of(3, 80, 8, 3)
    pairs = [(a, b) for a, b in combinations(range(80), 2) if (bands[a] == bands[b]).any()]
    limited = np.zeros(80, bool)
    found = keep_best_pairs(bands, pack_pairs(*arrays(pairs)), limit, limited)
    expected = []
    for item in range(80):
        ranked = sorted((-int((bands[a] == bands[b]).sum()), a) for a, b in pairs if b == item)
        assert limited[item] == (len(ranked) > limit)
        expected += [(a, item) for _, a in ranked[:limit]]
    assert found.tolist() == pack_pairs(*arrays(expected)).tolist()
    left, right = parted(found)
    assert (
        count_agreeing_bands(bands, left, right).tolist()
        == (bands[left] == bands[right]).sum(1).tolist()
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_whoever_stays_was_compared_with_those_that_stay_before_it(seed, limit):
    """Where a better candidate goes itself, the next ones take its place."""
    chance = np.random.default_rng(seed)
    n = 40
    bands = table_of(seed, n, 4, 12)
    alike = np.triu(chance.random((n, n)).round(2), 1)
    asked = []

    def similarities(left, right):
        asked.extend(zip(left.tolist(), right.tolist(), strict=True))
        return alike[left, right]

    found = find_duplicate_pairs(bands, similarities, 0.7, 0.4, limit)
    assert len(asked) == len(set(asked)) == found.compared_pairs
    pairs = [(a, b) for a, b in asked if alike[a, b] >= 0.7]
    gone = mark_removed_duplicates(n, *arrays(pairs))
    assert found.removed.tolist() == gone.tolist()
    stay = np.flatnonzero(~gone)
    due, _, _ = select_candidate_pairs(bands, stay, limit)
    assert set(zip(*(side.tolist() for side in parted(due)), strict=True)) <= set(asked)
    kept = [(a, b) for a, b in asked if alike[a, b] >= 0.4]
    assert [(a, b) for a, b in zip(found.first, found.second, strict=True)] == list(
        zip(*arrays(kept), strict=True)
    )
    assert found.similarity.tolist() == [alike[a, b] for a, b in zip(*arrays(kept), strict=True)]


def test_an_item_that_is_in_nobodys_best_is_compared_where_the_best_left():
    """With a limit of 1 the last item's best is the third, which goes; the first is next."""
    bands = np.array([[1, 12, 14, 16], [10, 13, 15, 4], [11, 2, 3, 4], [1, 2, 3, 17]], np.uint32)
    copies = {(1, 2), (2, 3), (0, 3)}

    def similarities(left, right):
        pairs = zip(left.tolist(), right.tolist(), strict=True)
        return np.array([0.9 if pair in copies else 0.1 for pair in pairs])

    found = find_duplicate_pairs(bands, similarities, 0.8, 0.5, 1)
    assert found.removed.tolist() == [False, False, True, True]
    assert not found.has_uncompared.any()
