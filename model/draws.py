"""Randomness that depends on nothing but its key: the same key, the same draws, on any machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]


def generator(key: int, row: int = 0, place: int = 0) -> np.random.Generator:
    """A counter-based generator (Salmon et al. 2011) of its own for each key, and for each place of
    a row: how much is drawn for one moves no other."""
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, row, place]))


def mix(x: UInt64) -> UInt64:
    """splitmix64's output function (Steele et al. 2014): a bijection that spreads every bit."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def combine(*parts: int | UInt64) -> UInt64:
    """One 64-bit key from several integers, order counting; arrays broadcast."""
    key = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            value = np.uint64(part % 2**64) if isinstance(part, int) else part
            key = mix(key * np.uint64(0x9E3779B97F4A7C15) + value + np.uint64(1))
    return key


def permute(index: Int64, n: int, key: int | UInt64) -> Int64:
    """The image of ``index`` (all below n) under the permutation of 0 ... n-1 that ``key`` names.

    A balanced Feistel network of six rounds over the smallest 4^k >= n is a bijection there;
    walking its cycle until the value is below n makes it one of 0 ... n-1 (Black, Rogaway 2002).
    It costs no memory, and any position can be asked for on its own.
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    keys = [combine(key, i) for i in range(6)]
    result = index.astype(np.uint64)
    pending = np.arange(len(result))
    while len(pending):
        x = result[pending]
        left, right = x >> shift, x & mask
        for round_key in keys:
            left, right = right, left ^ (mix(right ^ round_key) & mask)
        x = (left << shift) | right
        result[pending] = x
        pending = pending[x >= np.uint64(n)]
    return result.astype(np.int64)
