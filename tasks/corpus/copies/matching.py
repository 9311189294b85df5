"""Near copies among many: who is compared with whom, how alike they are, and who stays.

Pure functions over arrays in the order of rank: item 0 is the one that would be kept before all
others. What ranks and what is done with the verdict is decided elsewhere. A number of items at the
front may be settled: they stay whatever, and are not compared with one another.

Candidates are the items that agree in a band of MinHash-LSH. A bucket of more than ``limit`` items
is split by the next band, and again, as in an LSH forest (Bawa, Condie and Ganesan 2005): what
agrees in more bands is more alike. Of its candidates an item is compared with the ``limit`` that
agree with it in most bands. So a crowd, in which all are a little alike, costs a bounded number of
comparisons each, and those are spent where copies would be; for how many items such a limit left
candidates uncompared is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.measures.words import mix

UInt32 = NDArray[np.uint32]
UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Bands that a bucket is split by at the most.
DEPTH = 8

NONE = np.empty(0, np.uint64)

#: Pairs held before those are dropped that will not be compared.
HELD = 1 << 21


@dataclass
class Matches:
    """What a search found; pairs of items (left < right) in the order of right, then left."""

    left: Int64  # (m,)
    right: Int64  # (m,)
    similarity: NDArray[np.float64]  # (m,) at the least asked for, or above
    gone: Bools  # (n,) whether one that stays matches it at the threshold or above
    compared: int  # pairs whose similarity was computed
    limited: Bools  # (n,) of those that stay: whether a limit left candidates uncompared


def match(
    bands: UInt32,
    similarities: Callable[[Int64, Int64], NDArray[np.float64]],
    threshold: float,
    least: float,
    limit: int,
    settled: int = 0,
) -> Matches:
    """Compare candidates and settle who stays, until every item that stays was compared with its
    best candidates among those that stay before it.

    bands: (n, bands) hashes of bands; similarities: of pairs (left, right), (m,) each; settled: the
    number of items at the front that stay, and of which no two are compared.
    """
    n = len(bands)
    done = NONE  # pairs compared, see packed()
    left, right = np.empty(0, np.int64), np.empty(0, np.int64)
    similarity = np.empty(0)
    gone, looked_at = np.zeros(n, bool), np.ones(n, bool)
    while True:
        alive = np.flatnonzero(looked_at & ~gone)
        met, limited, agreeing = candidates(bands, alive, limit, settled)
        met = np.setdiff1d(met, done, assume_unique=True)
        if not len(met):
            break
        if not len(done):  # buckets only shrink: what agrees with nothing now never does
            looked_at = agreeing
        found = similarities(*unpacked(met))
        alike = found >= least
        more_left, more_right = unpacked(met[alike])
        left, right = np.append(left, more_left), np.append(right, more_right)
        similarity = np.append(similarity, found[alike])
        done = distinct([done, met])
        copies = similarity >= threshold
        gone = settle(n, left[copies], right[copies])
    order = np.lexsort((left, right))
    return Matches(left[order], right[order], similarity[order], gone, len(done), limited & ~gone)


def settle(n: int, left: Int64, right: Int64) -> Bools:
    """Who goes, (n,), where items are taken in their order and each goes that is a copy of one that
    stayed. The pairs of copies: (m,) each, left < right."""
    gone = np.zeros(n, bool)
    while len(left):
        open_still = np.zeros(n, bool)
        open_still[right] = True
        gone[right[~open_still[left]]] = True  # nothing before these lefts can still take them
        pending = ~(gone[left] | gone[right])
        left, right = left[pending], right[pending]
    return gone


def distinct(pairs: list[UInt64]) -> UInt64:
    """All of them, each once, ascending. (``np.unique`` hashes, which takes five times as long.)"""
    found = np.concatenate([NONE, *pairs])
    found.sort()
    return found[np.append(True, found[1:] != found[:-1])[: len(found)]]


# Candidates --------------------------------------------------------------------------------------


def packed(left: Int64, right: Int64) -> UInt64:
    """A pair as one number, in the order of right, then left."""
    return (right.astype(np.uint64) << np.uint64(32)) | left.astype(np.uint64)


def unpacked(pairs: UInt64) -> tuple[Int64, Int64]:
    low = pairs & np.uint64(0xFFFFFFFF)
    return low.astype(np.int64), (pairs >> np.uint64(32)).astype(np.int64)


def candidates(
    bands: UInt32, alive: Int64, limit: int, settled: int = 0
) -> tuple[UInt64, Bools, Bools]:
    """The pairs to compare, distinct and ascending; for which items some were left out, (n,); and
    which agree with another in a band, (n,), also where no pair of theirs is to be compared.

    alive: the items that are looked at, ascending; of the first ``settled`` items none is the right
    one of a pair.
    """
    limited, agreeing = np.zeros(len(bands), bool), np.zeros(len(bands), bool)
    chosen: list[UInt64] = []
    held = 0
    for band in range(bands.shape[1]):
        for pairs in offers(bands, band, alive, limit, limited, agreeing, settled):
            chosen.append(pairs)
            held += len(pairs)
        if held > HELD:
            chosen = [best(bands, distinct(chosen), limit, limited)]
            held = len(chosen[0])
    found = best(bands, distinct(chosen), limit, limited)
    limited[:settled] = False
    return found, limited, agreeing


def offers(
    bands: UInt32,
    band: int,
    alive: Int64,
    limit: int,
    limited: Bools,
    agreeing: Bools,
    settled: int,
) -> Iterator[UInt64]:
    """Pairs that agree in a band: all of a small bucket; of a crowded one each with the first, and
    what its parts offer that agree in further bands, too. Marks for which items some are left out
    (``limited``), and which share a bucket (``agreeing``)."""
    members, value = alive, bands[alive, band].astype(np.uint64)
    deepest = min(DEPTH, bands.shape[1])
    for depth in range(1, deepest + 1):
        members, value, place, size = buckets(members, value, settled)
        if not len(members):
            return
        agreeing[members] = True
        crowded = size > limit + 1
        split = crowded & (depth < deepest)
        yield leaders(members, place, np.where(members < settled, 0, np.where(split, 1, limit)))
        limited[members[crowded]] = True
        members, value = members[split], value[split]
        following = bands[members, (band + depth) % bands.shape[1]].astype(np.uint64)
        value = mix(mix(value, np.uint64(0)), following) >> np.uint64(32)


def buckets(members: Int64, value: UInt64, settled: int = 0) -> tuple[Int64, UInt64, Int64, Int64]:
    """Members of equal values (of 32 bits) side by side, in their order; those alone are left out,
    and those among settled ones alone.

    Returns members, their values, their places in their bucket, and the sizes of their buckets.
    """
    keys = value << np.uint64(32)
    keys |= members.astype(np.uint64)
    keys.sort()
    value = keys >> np.uint64(32)
    same = value[1:] == value[:-1]  # most are alone: what follows is for the others
    shared = np.append(same, False)[: len(keys)]
    shared[1:] |= same
    keys, value = keys[shared], value[shared]
    starts = np.flatnonzero(np.append(True, value[1:] != value[:-1])[: len(keys)])
    sizes = np.diff(np.append(starts, len(keys)))
    size = np.repeat(sizes, sizes)
    place = np.arange(len(keys)) - np.repeat(starts, sizes)
    members = unpacked(keys)[0]
    if settled:
        new = np.repeat(members[starts + sizes - 1] >= settled, sizes)
        members, value, place, size = members[new], value[new], place[new], size[new]
    return members, value, place, size


def leaders(members: Int64, place: Int64, most: Int64) -> UInt64:
    """Each member of a bucket with the first ``most`` of it that come before itself."""
    count = np.minimum(place, most)
    owner = np.repeat(np.arange(len(members)), count)  # (pairs,)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    return packed(members[owner - place[owner] + number], members[owner])


def best(bands: UInt32, pairs: UInt64, limit: int, limited: Bools) -> UInt64:
    """Of each item's pairs, as its right, the ``limit`` that agree in most bands; then the first
    ones. Pairs are distinct and ascending, before and after."""
    left, right = unpacked(pairs)
    new = np.append(True, right[1:] != right[:-1])[: len(right)]
    sizes = np.diff(np.append(np.flatnonzero(new), len(right)))
    many = np.repeat(sizes > limit, sizes)
    if not many.any():
        return pairs
    limited[right[many]] = True
    left, right, heavy = left[many], right[many], pairs[many]
    order = np.lexsort((left, -agreements(bands, left, right), right))
    sizes = sizes[sizes > limit]
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(np.concatenate([pairs[~many], heavy[order[place < limit]]]))


def agreements(bands: UInt32, left: Int64, right: Int64) -> NDArray[np.int16]:
    """In how many bands each pair agrees, (m,)."""
    found = np.empty(len(left), np.int16)
    for start in range(0, len(left), 1 << 14):
        here = slice(start, start + (1 << 14))
        found[here] = (bands[left[here]] == bands[right[here]]).sum(axis=1)
    return found


# Similarity --------------------------------------------------------------------------------------

#: Hashes compared at a time, so that they stay in the processor's cache.
BLOCK = 1 << 16


def jaccard(
    shingles: Callable[[Int64], tuple[UInt64, Int64]], left: Int64, right: Int64, sizes: Int64
) -> NDArray[np.float64]:
    """|A ∩ B| / |A ∪ B| of pairs of sets of shingles, (m,).

    ``shingles`` of items: their hashes behind one another, copies among them, and the number of
    each; sizes: (n,) the numbers of all.
    """
    ends = np.cumsum(sizes[left] + sizes[right])
    found = np.empty(len(left))
    start = 0
    while start < len(left):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + BLOCK, side="right")))
        stop = min(stop, start + BLOCK)
        here = slice(start, stop)
        found[here] = _jaccard(*shingles(np.concatenate([left[here], right[here]])))
        start = stop
    return found


def _jaccard(hashes: UInt64, sizes: Int64) -> NDArray[np.float64]:
    """Of m pairs: the sizes of m lefts, then of m rights, (2 m,), and their hashes in that order.

    All are sorted at once: the number of the pair stands above the bits of the hash and the side
    below them, so that what is common stands side by side.
    """
    count = len(sizes) // 2
    bits = np.uint64(max(1, (count - 1).bit_length()))
    pair = np.repeat(np.tile(np.arange(count, dtype=np.uint64), 2), sizes)
    side = np.repeat(np.arange(2, dtype=np.uint64), [sizes[:count].sum(), sizes[count:].sum()])
    above = np.uint64(64) - bits
    keys = (pair << above) | (hashes >> bits & ~np.uint64(1)) | side
    keys.sort()
    keys = keys[np.append(True, keys[1:] != keys[:-1])]
    common = keys[1:][(keys[1:] ^ keys[:-1]) == 1]
    both = np.bincount((common >> above).astype(np.int64), minlength=count)
    total = np.bincount((keys >> above).astype(np.int64), minlength=count)
    return both / (total - both)
