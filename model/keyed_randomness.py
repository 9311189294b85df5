"""Randomness that depends on nothing but its key: the same key, the same draws, on any machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]


def make_generator(key: int, row: int = 0, position: int = 0) -> np.random.Generator:
    """A counter-based generator (Salmon et al. 2011) of its own for each key, and for each place of
    a row: how much is drawn for one moves no other."""
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, row, position]))


def mix_bits(x: UInt64) -> UInt64:
    """splitmix64's output function (Steele et al. 2014): a bijection that spreads every bit."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def combine_into_key(*integers: int | UInt64) -> UInt64:
    """One 64-bit key from several integers, order counting; arrays broadcast."""
    key = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for integer in integers:
            value = np.uint64(integer % 2**64) if isinstance(integer, int) else integer
            key = mix_bits(key * np.uint64(0x9E3779B97F4A7C15) + value + np.uint64(1))
    return key


def permute_indices(indices: Int64, n: int, key: int | UInt64) -> Int64:
    """The image of ``index`` (all below n) under the permutation of 0 ... n-1 that ``key`` names.

    A balanced Feistel network of six rounds over the smallest 4^k >= n is a bijection there;
    walking its cycle until the value is below n makes it one of 0 ... n-1 (Black, Rogaway 2002).
    It costs no memory, and any position can be asked for on its own.
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
