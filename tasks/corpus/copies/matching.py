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

from hallmark.tasks.measures.normalised_words import mix_hashes

UInt32Array = NDArray[np.uint32]
UInt64Array = NDArray[np.uint64]
Int64Array = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: Bands that a bucket is split by at the most.
MAX_SPLIT_DEPTH = 8

NO_PAIRS = np.empty(0, np.uint64)

#: Pairs held before those are dropped that will not be compared.
MAX_BUFFERED_PAIRS = 1 << 21


@dataclass
class NearDuplicateMatches:
    """What a search found; pairs of items (left < right) in the order of right, then left."""

    first: Int64Array  # (m,)
    second: Int64Array  # (m,)
    similarity: NDArray[np.float64]  # (m,) at the least asked for, or above
    removed: BoolArray  # (n,) whether one that stays matches it at the threshold or above
    compared_pairs: int  # pairs whose similarity was computed
    has_uncompared: BoolArray  # (n,) of those that stay: whether a limit left candidates uncompared


def find_duplicate_pairs(
    band_hashes: UInt32Array,
    compute_similarities: Callable[[Int64Array, Int64Array], NDArray[np.float64]],
    threshold: float,
    min_similarity: float,
    candidate_limit: int,
    resolved_count: int = 0,
) -> NearDuplicateMatches:
    """Compare candidates and settle who stays, until every item that stays was compared with its
    best candidates among those that stay before it.

    bands: (n, bands) hashes of bands; similarities: of pairs (left, right), (m,) each; settled: the
    number of items at the front that stay, and of which no two are compared.
    """
    n = len(band_hashes)
    compared_pairs = NO_PAIRS  # pairs compared, see packed()
    first, second = np.empty(0, np.int64), np.empty(0, np.int64)
    similarity = np.empty(0)
    removed, is_candidate = np.zeros(n, bool), np.ones(n, bool)
    while True:
        active_items = np.flatnonzero(is_candidate & ~removed)
        new_pairs, has_uncompared, shares_bucket = select_candidate_pairs(
            band_hashes, active_items, candidate_limit, resolved_count
        )
        new_pairs = np.setdiff1d(new_pairs, compared_pairs, assume_unique=True)
        if not len(new_pairs):
            break
        if not len(compared_pairs):  # buckets only shrink: what agrees with nothing now never does
            is_candidate = shares_bucket
        pair_similarities = compute_similarities(*unpack_pairs(new_pairs))
        is_similar = pair_similarities >= min_similarity
        new_first, new_second = unpack_pairs(new_pairs[is_similar])
        first, second = np.append(first, new_first), np.append(second, new_second)
        similarity = np.append(similarity, pair_similarities[is_similar])
        compared_pairs = merge_unique_pairs([compared_pairs, new_pairs])
        is_duplicate = similarity >= threshold
        removed = mark_removed_duplicates(n, first[is_duplicate], second[is_duplicate])
    order = np.lexsort((first, second))
    return NearDuplicateMatches(
        first[order],
        second[order],
        similarity[order],
        removed,
        len(compared_pairs),
        has_uncompared & ~removed,
    )


def mark_removed_duplicates(item_count: int, first: Int64Array, second: Int64Array) -> BoolArray:
    """Who goes, (n,), where items are taken in their order and each goes that is a copy of one that
    stayed. The pairs of copies: (m,) each, left < right."""
    removed = np.zeros(item_count, bool)
    while len(first):
        is_undecided = np.zeros(item_count, bool)
        is_undecided[second] = True
        removed[second[~is_undecided[first]]] = (
            True  # nothing before these lefts can still take them
        )
        is_pending = ~(removed[first] | removed[second])
        first, second = first[is_pending], second[is_pending]
    return removed


def merge_unique_pairs(pair_arrays: list[UInt64Array]) -> UInt64Array:
    """All of them, each once, ascending. (``np.unique`` hashes, which takes five times as long.)"""
    merged_pairs = np.concatenate([NO_PAIRS, *pair_arrays])
    merged_pairs.sort()
    return merged_pairs[np.append(True, merged_pairs[1:] != merged_pairs[:-1])[: len(merged_pairs)]]


# Candidates --------------------------------------------------------------------------------------


def pack_pairs(first: Int64Array, second: Int64Array) -> UInt64Array:
    """A pair as one number, in the order of right, then left."""
    return (second.astype(np.uint64) << np.uint64(32)) | first.astype(np.uint64)


def unpack_pairs(pairs: UInt64Array) -> tuple[Int64Array, Int64Array]:
    first_bits = pairs & np.uint64(0xFFFFFFFF)
    return first_bits.astype(np.int64), (pairs >> np.uint64(32)).astype(np.int64)


def select_candidate_pairs(
    band_hashes: UInt32Array,
    active_items: Int64Array,
    candidate_limit: int,
    resolved_count: int = 0,
) -> tuple[UInt64Array, BoolArray, BoolArray]:
    """The pairs to compare, distinct and ascending; for which items some were left out, (n,); and
    which agree with another in a band, (n,), also where no pair of theirs is to be compared.

    alive: the items that are looked at, ascending; of the first ``settled`` items none is the right
    one of a pair.
    """
    has_uncompared, shares_bucket = (
        np.zeros(len(band_hashes), bool),
        np.zeros(len(band_hashes), bool),
    )
    pair_buffers: list[UInt64Array] = []
    buffered_count = 0
    for band in range(band_hashes.shape[1]):
        for pairs in generate_band_pairs(
            band_hashes,
            band,
            active_items,
            candidate_limit,
            has_uncompared,
            shares_bucket,
            resolved_count,
        ):
            pair_buffers.append(pairs)
            buffered_count += len(pairs)
        if buffered_count > MAX_BUFFERED_PAIRS:
            pair_buffers = [
                keep_best_pairs(
                    band_hashes, merge_unique_pairs(pair_buffers), candidate_limit, has_uncompared
                )
            ]
            buffered_count = len(pair_buffers[0])
    selected_pairs = keep_best_pairs(
        band_hashes, merge_unique_pairs(pair_buffers), candidate_limit, has_uncompared
    )
    has_uncompared[:resolved_count] = False
    return selected_pairs, has_uncompared, shares_bucket


def generate_band_pairs(
    band_hashes: UInt32Array,
    band: int,
    active_items: Int64Array,
    candidate_limit: int,
    has_uncompared: BoolArray,
    shares_bucket: BoolArray,
    resolved_count: int,
) -> Iterator[UInt64Array]:
    """Pairs that agree in a band: all of a small bucket; of a crowded one each with the first, and
    what its parts offer that agree in further bands, too. Marks for which items some are left out
    (``limited``), and which share a bucket (``agreeing``)."""
    members, bucket_keys = active_items, band_hashes[active_items, band].astype(np.uint64)
    max_depth = min(MAX_SPLIT_DEPTH, band_hashes.shape[1])
    for depth in range(1, max_depth + 1):
        members, bucket_keys, positions, bucket_sizes = group_into_buckets(
            members, bucket_keys, resolved_count
        )
        if not len(members):
            return
        shares_bucket[members] = True
        is_crowded = bucket_sizes > candidate_limit + 1
        is_split = is_crowded & (depth < max_depth)
        yield pair_with_bucket_leaders(
            members,
            positions,
            np.where(members < resolved_count, 0, np.where(is_split, 1, candidate_limit)),
        )
        has_uncompared[members[is_crowded]] = True
        members, bucket_keys = members[is_split], bucket_keys[is_split]
        next_hashes = band_hashes[members, (band + depth) % band_hashes.shape[1]].astype(np.uint64)
        bucket_keys = mix_hashes(mix_hashes(bucket_keys, np.uint64(0)), next_hashes) >> np.uint64(
            32
        )


def group_into_buckets(
    members: Int64Array, bucket_keys: UInt64Array, resolved_count: int = 0
) -> tuple[Int64Array, UInt64Array, Int64Array, Int64Array]:
    """Members of equal values (of 32 bits) side by side, in their order; those alone are left out,
    and those among settled ones alone.

    Returns members, their values, their places in their bucket, and the sizes of their buckets.
    """
    sort_keys = bucket_keys << np.uint64(32)
    sort_keys |= members.astype(np.uint64)
    sort_keys.sort()
    bucket_keys = sort_keys >> np.uint64(32)
    equals_next = (
        bucket_keys[1:] == bucket_keys[:-1]
    )  # most are alone: what follows is for the others
    is_shared = np.append(equals_next, False)[: len(sort_keys)]
    is_shared[1:] |= equals_next
    sort_keys, bucket_keys = sort_keys[is_shared], bucket_keys[is_shared]
    starts = np.flatnonzero(np.append(True, bucket_keys[1:] != bucket_keys[:-1])[: len(sort_keys)])
    bucket_sizes = np.diff(np.append(starts, len(sort_keys)))
    sizes_by_member = np.repeat(bucket_sizes, bucket_sizes)
    positions = np.arange(len(sort_keys)) - np.repeat(starts, bucket_sizes)
    members = unpack_pairs(sort_keys)[0]
    if resolved_count:
        has_unresolved = np.repeat(
            members[starts + bucket_sizes - 1] >= resolved_count, bucket_sizes
        )
        members, bucket_keys, positions, sizes_by_member = (
            members[has_unresolved],
            bucket_keys[has_unresolved],
            positions[has_unresolved],
            sizes_by_member[has_unresolved],
        )
    return members, bucket_keys, positions, sizes_by_member


def pair_with_bucket_leaders(
    members: Int64Array, positions: Int64Array, max_leaders: Int64Array
) -> UInt64Array:
    """Each member of a bucket with the first ``most`` of it that come before itself."""
    pair_counts = np.minimum(positions, max_leaders)
    owners = np.repeat(np.arange(len(members)), pair_counts)  # (pairs,)
    leader_positions = np.arange(len(owners)) - np.repeat(
        np.cumsum(pair_counts) - pair_counts, pair_counts
    )
    return pack_pairs(members[owners - positions[owners] + leader_positions], members[owners])


def keep_best_pairs(
    band_hashes: UInt32Array, pairs: UInt64Array, candidate_limit: int, has_uncompared: BoolArray
) -> UInt64Array:
    """Of each item's pairs, as its right, the ``limit`` that agree in most bands; then the first
    ones. Pairs are distinct and ascending, before and after."""
    first, second = unpack_pairs(pairs)
    starts_item = np.append(True, second[1:] != second[:-1])[: len(second)]
    pair_counts = np.diff(np.append(np.flatnonzero(starts_item), len(second)))
    exceeds_limit = np.repeat(pair_counts > candidate_limit, pair_counts)
    if not exceeds_limit.any():
        return pairs
    has_uncompared[second[exceeds_limit]] = True
    first, second, crowded_pairs = first[exceeds_limit], second[exceeds_limit], pairs[exceeds_limit]
    order = np.lexsort((first, -count_agreeing_bands(band_hashes, first, second), second))
    pair_counts = pair_counts[pair_counts > candidate_limit]
    ranks = np.arange(len(order)) - np.repeat(np.cumsum(pair_counts) - pair_counts, pair_counts)
    return np.sort(
        np.concatenate([pairs[~exceeds_limit], crowded_pairs[order[ranks < candidate_limit]]])
    )


def count_agreeing_bands(
    band_hashes: UInt32Array, first: Int64Array, second: Int64Array
) -> NDArray[np.int16]:
    """In how many bands each pair agrees, (m,)."""
    counts = np.empty(len(first), np.int16)
    for start in range(0, len(first), 1 << 14):
        block = slice(start, start + (1 << 14))
        counts[block] = (band_hashes[first[block]] == band_hashes[second[block]]).sum(axis=1)
    return counts


# Similarity --------------------------------------------------------------------------------------

#: Hashes compared at a time, so that they stay in the processor's cache.
HASHES_PER_BLOCK = 1 << 16


def compute_jaccard(
    load_shingles: Callable[[Int64Array], tuple[UInt64Array, Int64Array]],
    first: Int64Array,
    second: Int64Array,
    set_sizes: Int64Array,
) -> NDArray[np.float64]:
    """|A ∩ B| / |A ∪ B| of pairs of sets of shingles, (m,).

    ``shingles`` of items: their hashes behind one another, copies among them, and the number of
    each; sizes: (n,) the numbers of all.
    """
    hash_ends = np.cumsum(set_sizes[first] + set_sizes[second])
    similarities = np.empty(len(first))
    start = 0
    while start < len(first):
        hash_offset = hash_ends[start - 1] if start else 0
        stop = max(
            start + 1, int(np.searchsorted(hash_ends, hash_offset + HASHES_PER_BLOCK, side="right"))
        )
        stop = min(stop, start + HASHES_PER_BLOCK)
        block = slice(start, stop)
        similarities[block] = _compute_block_jaccard(
            *load_shingles(np.concatenate([first[block], second[block]]))
        )
        start = stop
    return similarities


def _compute_block_jaccard(hashes: UInt64Array, sizes: Int64Array) -> NDArray[np.float64]:
    """Of m pairs: the sizes of m lefts, then of m rights, (2 m,), and their hashes in that order.

    All are sorted at once: the number of the pair stands above the bits of the hash and the side
    below them, so that what is common stands side by side.
    """
    pair_count = len(sizes) // 2
    pair_bits = np.uint64(max(1, (pair_count - 1).bit_length()))
    pair_numbers = np.repeat(np.tile(np.arange(pair_count, dtype=np.uint64), 2), sizes)
    side_bits = np.repeat(
        np.arange(2, dtype=np.uint64), [sizes[:pair_count].sum(), sizes[pair_count:].sum()]
    )
    pair_shift = np.uint64(64) - pair_bits
    keys = (pair_numbers << pair_shift) | (hashes >> pair_bits & ~np.uint64(1)) | side_bits
    keys.sort()
    keys = keys[np.append(True, keys[1:] != keys[:-1])]
    common_keys = keys[1:][(keys[1:] ^ keys[:-1]) == 1]
    intersection_sizes = np.bincount(
        (common_keys >> pair_shift).astype(np.int64), minlength=pair_count
    )
    summed_sizes = np.bincount((keys >> pair_shift).astype(np.int64), minlength=pair_count)
    return intersection_sizes / (summed_sizes - intersection_sizes)
