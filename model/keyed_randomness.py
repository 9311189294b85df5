"""Draw randomness that depends only on a key: the same key gives the same draws on any machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]


def make_generator(key: int, row: int = 0, position: int = 0) -> np.random.Generator:
    """Make a counter-based generator (Salmon et al. 2011) for one key, row and position.

    The generators are independent: the number of draws from one does not change another.
    """
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, row, position]))


def mix_bits(x: UInt64) -> UInt64:
    """Spread every bit by splitmix64's output function, a bijection (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def combine_into_key(*integers: int | UInt64) -> UInt64:
    """Combine several integers into one 64-bit key; their order matters, and arrays broadcast."""
    key = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for integer in integers:
            value = np.uint64(integer % 2**64) if isinstance(integer, int) else integer
            key = mix_bits(key * np.uint64(0x9E3779B97F4A7C15) + value + np.uint64(1))
    return key


def map_indices_by_permutation(indices: Int64, n: int, key: int | UInt64) -> Int64:
    """Map ``indices`` by the permutation of 0 ... n-1 that ``key`` determines.

    A balanced Feistel network of six rounds permutes 0 ... 4^k-1, for the smallest 4^k >= n.
    Applying it until the value is below n gives a permutation of 0 ... n-1 (Black & Rogaway 2002).
    This needs no table, and any index can be mapped on its own.

    Args:
        indices: integers below ``n``.
        n: size of the permuted range.
        key: seed of the permutation.
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    keys = [combine_into_key(key, i) for i in range(6)]
    result = indices.astype(np.uint64)
    pending = np.arange(len(result))
    while len(pending):
        x = result[pending]
        left_half, right_half = x >> shift, x & mask
        for round_key in keys:
            left_half, right_half = (
                right_half,
                left_half ^ (mix_bits(right_half ^ round_key) & mask),
            )
        x = (left_half << shift) | right_half
        result[pending] = x
        pending = pending[x >= np.uint64(n)]
    return result.astype(np.int64)
