"""Test which items are compared, their similarities, and which are kept, against plain Python."""

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
    keep_best_pairs_and_mark_skipped,
    mark_removed_duplicates,
    pack_pairs,
    select_candidate_pairs,
    unpack_pairs,
)


def to_arrays(pairs):
    sorted_pairs = sorted(pairs, key=lambda pair: pair[::-1])
    first, second = zip(*sorted_pairs, strict=True) if sorted_pairs else ((), ())
    return np.array(first, np.int64), np.array(second, np.int64)


pair_sets = st.integers(1, 25).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.sets(
            st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))
            .filter(lambda pair: pair[0] != pair[1])
            .map(lambda pair: (min(pair), max(pair)))
        ),
    )
)


@given(pair_sets)
def test_items_are_removed_as_if_processed_in_order(item_count_and_pairs):
    n, pairs = item_count_and_pairs
    removed = set()
    for item in range(n):
        if any((other, item) in pairs and other not in removed for other in range(item)):
            removed.add(item)
    assert set(np.flatnonzero(mark_removed_duplicates(n, *to_arrays(pairs))).tolist()) == removed


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=30), min_size=2, max_size=12),
    st.integers(0, 3),
)
def test_similarities_are_jaccard_similarities_of_sets(sets, variant):
    """Repeated hashes count once; sets larger than a block are compared, too."""
    hash_values = np.random.default_rng(5).integers(0, 1 << 63, 41, dtype=np.uint64)
    hash_arrays = [hash_values[np.array(items)] for items in sets]
    if variant == 0:
        hash_arrays[0] = np.arange(100_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    pairs = list(combinations(range(len(hash_arrays)), 2)) * (400 if variant == 1 else 1)
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    set_sizes = np.array([len(items) for items in hash_arrays])

    def load_shingles(items):
        return np.concatenate([hash_arrays[i] for i in items]), set_sizes[items]

    as_sets = [set(items.tolist()) for items in hash_arrays]
    expected = [len(as_sets[a] & as_sets[b]) / len(as_sets[a] | as_sets[b]) for a, b in pairs]
    assert compute_jaccard(load_shingles, first, second, set_sizes).tolist() == expected


def make_bands(seed, n, bands, values):
    return np.random.default_rng(seed).integers(0, values, (n, bands), dtype=np.uint32)


@pytest.mark.parametrize("seed", range(6))
def test_without_a_limit_all_items_that_share_a_band_are_candidates(seed):
    bands = make_bands(seed, 60, 3, 20)
    active_items = np.flatnonzero(np.random.default_rng(seed).random(60) < 0.9)
    pairs, has_uncompared, shares_bucket = select_candidate_pairs(bands, active_items, 60)
    expected = [(a, b) for a, b in combinations(active_items, 2) if (bands[a] == bands[b]).any()]
    assert pairs.tolist() == pack_pairs(*to_arrays(expected)).tolist()
    assert not has_uncompared.any()
    assert set(np.flatnonzero(shares_bucket).tolist()) == {
        item for pair in expected for item in pair
    }


def test_bands_with_one_different_bit_do_not_agree():
    bands = np.array([0, *(1 << bit for bit in range(32))], np.uint32)[:, None]
    pairs, _, shares_bucket = select_candidate_pairs(bands, np.arange(33), 5)
    assert not len(pairs) and not shares_bucket.any()


@pytest.mark.parametrize("limit", [2, 7])
def test_dropping_pairs_early_gives_the_same_result(monkeypatch, limit):
    bands = make_bands(4, 200, 8, 6)
    expected = select_candidate_pairs(bands, np.arange(200), limit)
    monkeypatch.setattr(matching, "MAX_BUFFERED_PAIRS", 100)
    result = select_candidate_pairs(bands, np.arange(200), limit)
    assert [array.tolist() for array in result] == [array.tolist() for array in expected]


@pytest.mark.parametrize("limit", [1, 3, 10])
@pytest.mark.parametrize("values", [2, 6, 200])
def test_a_limit_bounds_the_candidates_and_marks_affected_items(limit, values):
    bands = make_bands(values, 300, 6, values)
    pairs, has_uncompared, shares_bucket = select_candidate_pairs(bands, np.arange(300), limit)
    first, second = unpack_pairs(pairs)
    assert (first < second).all()
    assert (bands[first] == bands[second]).any(axis=1).all()
    assert max(Counter(second.tolist()).values()) <= limit
    all_pairs = {(a, b) for a, b in combinations(range(300), 2) if (bands[a] == bands[b]).any()}
    skipped_items = {
        b for _, b in all_pairs - set(zip(first.tolist(), second.tolist(), strict=True))
    }
    assert skipped_items <= set(np.flatnonzero(has_uncompared).tolist())
    assert set(np.flatnonzero(shares_bucket).tolist()) == {i for pair in all_pairs for i in pair}
    items_with_candidates = {second for _, second in all_pairs}
    # The first item of its bucket is always included.
    assert set(second.tolist()) == items_with_candidates


@pytest.mark.parametrize("limit", [1, 4])
def test_kept_candidates_agree_in_most_bands(limit):
    bands = make_bands(3, 80, 8, 3)
    pairs = [(a, b) for a, b in combinations(range(80), 2) if (bands[a] == bands[b]).any()]
    has_uncompared = np.zeros(80, bool)
    kept_pairs = keep_best_pairs_and_mark_skipped(
        bands, pack_pairs(*to_arrays(pairs)), limit, has_uncompared
    )
    expected = []
    for item in range(80):
        ranked = sorted((-int((bands[a] == bands[b]).sum()), a) for a, b in pairs if b == item)
        assert has_uncompared[item] == (len(ranked) > limit)
        expected += [(a, item) for _, a in ranked[:limit]]
    assert kept_pairs.tolist() == pack_pairs(*to_arrays(expected)).tolist()
    first, second = unpack_pairs(kept_pairs)
    assert (
        count_agreeing_bands(bands, first, second).tolist()
        == (bands[first] == bands[second]).sum(1).tolist()
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_every_kept_item_was_compared_with_kept_items_before_it(seed, limit):
    """If a better candidate is removed, the next ones replace it."""
    rng = np.random.default_rng(seed)
    n = 40
    bands = make_bands(seed, n, 4, 12)
    similarity_matrix = np.triu(rng.random((n, n)).round(2), 1)
    compared = []

    def compute_similarities(first, second):
        compared.extend(zip(first.tolist(), second.tolist(), strict=True))
        return similarity_matrix[first, second]

    matches = find_duplicate_pairs(bands, compute_similarities, 0.7, 0.4, limit)
    assert len(compared) == len(set(compared)) == matches.compared_pairs
    pairs = [(a, b) for a, b in compared if similarity_matrix[a, b] >= 0.7]
    removed = mark_removed_duplicates(n, *to_arrays(pairs))
    assert matches.removed.tolist() == removed.tolist()
    kept_items = np.flatnonzero(~removed)
    required_pairs, _, _ = select_candidate_pairs(bands, kept_items, limit)
    assert set(zip(*(side.tolist() for side in unpack_pairs(required_pairs)), strict=True)) <= set(
        compared
    )
    similar_pairs = [(a, b) for a, b in compared if similarity_matrix[a, b] >= 0.4]
    assert [(a, b) for a, b in zip(matches.first, matches.second, strict=True)] == list(
        zip(*to_arrays(similar_pairs), strict=True)
    )
    assert matches.similarity.tolist() == [
        similarity_matrix[a, b] for a, b in zip(*to_arrays(similar_pairs), strict=True)
    ]


def test_the_next_candidate_is_compared_if_the_best_one_is_removed():
    """The last item's best candidate, the third item, is removed; then the first is compared."""
    bands = np.array([[1, 12, 14, 16], [10, 13, 15, 4], [11, 2, 3, 4], [1, 2, 3, 17]], np.uint32)
    copies = {(1, 2), (2, 3), (0, 3)}

    def compute_similarities(first, second):
        pairs = zip(first.tolist(), second.tolist(), strict=True)
        return np.array([0.9 if pair in copies else 0.1 for pair in pairs])

    matches = find_duplicate_pairs(bands, compute_similarities, 0.8, 0.5, 1)
    assert matches.removed.tolist() == [False, False, True, True]
    assert not matches.has_uncompared.any()
