"""Keyed permutations: complete, random access, and uniform over keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.model.keyed_randomness import map_indices_by_permutation


@given(n=st.integers(1, 700), key=st.integers(0, 2**64 - 1))
@settings(max_examples=50, deadline=None)
def test_permute_indices_is_a_permutation_for_every_size_and_key(n, key):
    assert sorted(map_indices_by_permutation(np.arange(n), n, key)) == list(range(n))


def test_any_part_of_a_permutation_can_be_computed_alone():
    permutation = map_indices_by_permutation(np.arange(1000), 1000, 5)
    assert (
        map_indices_by_permutation(np.array([3, 999, 3]), 1000, 5) == permutation[[3, 999, 3]]
    ).all()


def test_every_position_of_every_index_is_equally_likely_over_keys():
    n, keys = 7, 3000
    counts = np.zeros((n, n))
    for key in range(keys):
        counts[np.arange(n), map_indices_by_permutation(np.arange(n), n, key)] += 1
    expected = keys / n
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 68  # 36 degrees of freedom, p = 0.001
