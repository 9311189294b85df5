"""Find near-duplicates: choose which items to compare, compare them, and decide which are kept.

These are pure functions over arrays in order of rank: item 0 would be kept before all others.
Callers decide the ranking and what happens to removed items. The first items may be resolved: they
are always kept and not compared with one another.

Candidates are items that agree in a band of MinHash-LSH. A bucket with more than
``max_candidates_per_item`` + 1 items is split by the next band, repeatedly, as in an LSH forest
(Bawa, Condie and Ganesan 2005), because items that agree in more bands are more similar. An item is
compared with the ``max_candidates_per_item`` candidates that agree with it in most bands. So in a
crowd of slightly similar items the number of comparisons per item is bounded, and they are spent on
the likeliest copies. The items for which this limit skipped candidates are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hallmark.tasks.measures.normalised_words import mix_hashes

UInt32Array = NDArray[np.uint32]
UInt64Array = NDArray[np.uint64]
Int64Array = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: The most bands by which a bucket is split.
MAX_SPLIT_DEPTH = 8

NO_PAIRS = np.empty(0, np.uint64)

#: Pairs in memory before those that will not be compared are dropped.
MAX_BUFFERED_PAIRS = 1 << 21


@dataclass
class NearDuplicateMatches:
    """Hold the result of a search; pairs (first < second) are ordered by second, then first."""

    first: Int64Array  # (m,)
    second: Int64Array  # (m,)
    similarity: NDArray[np.float64]  # (m,) at or above min_similarity
    removed: BoolArray  # (n,) whether a kept item matches it at or above the threshold
    compared_pairs: int  # pairs whose similarity was computed
    has_uncompared: BoolArray  # (n,) kept items for which the limit skipped candidates


def find_duplicate_pairs(
    band_hashes: UInt32Array,
    compute_similarities: Callable[[Int64Array, Int64Array], NDArray[np.float64]],
    removal_threshold: float,
    min_returned_similarity: float,
    max_candidates_per_item: int,
    leading_kept_count: int = 0,
) -> NearDuplicateMatches:
    """Compare candidates and decide which items are kept.

    Repeats until every kept item was compared with its best candidates among the kept items before
    it.

    Args:
        band_hashes: (n, bands).
        compute_similarities: Maps the first and second items of pairs, (m,) each, to similarities.
        removal_threshold: Similarity at or above which the second item is removed.
        min_returned_similarity: Least similarity of the pairs that are returned.
        max_candidates_per_item: Most candidates to compare an item with.
        leading_kept_count: Number of first items that are kept and not compared with one another.
    """
    n = len(band_hashes)
    compared_pairs = NO_PAIRS  # in the form of pack_pairs
    first, second = np.empty(0, np.int64), np.empty(0, np.int64)
    similarity = np.empty(0)
    removed, is_candidate = np.zeros(n, bool), np.ones(n, bool)
    while True:
        active_items = np.flatnonzero(is_candidate & ~removed)
        candidates = select_candidate_pairs(
            band_hashes, active_items, max_candidates_per_item, leading_kept_count
        )
        new_pairs = np.setdiff1d(candidates.packed_pairs, compared_pairs, assume_unique=True)
        if not len(new_pairs):
            break
        # Buckets only shrink: an item without a match now never has one.
        if not len(compared_pairs):
            is_candidate = candidates.shares_band
        pair_similarities = compute_similarities(*unpack_pairs(new_pairs))
        is_similar = pair_similarities >= min_returned_similarity
        similar_pairs = unpack_pairs(new_pairs[is_similar])
        first = np.append(first, similar_pairs.first)
        second = np.append(second, similar_pairs.second)
        similarity = np.append(similarity, pair_similarities[is_similar])
        compared_pairs = merge_unique_pairs([compared_pairs, new_pairs])
        is_duplicate = similarity >= removal_threshold
        removed = mark_removed_duplicates(n, first[is_duplicate], second[is_duplicate])
    order = np.lexsort((first, second))
    return NearDuplicateMatches(
        first[order],
        second[order],
        similarity[order],
        removed,
        len(compared_pairs),
        candidates.has_uncompared & ~removed,
    )


def mark_removed_duplicates(item_count: int, first: Int64Array, second: Int64Array) -> BoolArray:
    """Mark the removed items, (n,): in order, each copy of a kept item is removed.

    Args:
        item_count: n.
        first: (m,) first items of the pairs of copies.
        second: (m,) second items; first < second.
    """
    removed = np.zeros(item_count, bool)
    while len(first):
        is_undecided = np.zeros(item_count, bool)
        is_undecided[second] = True
        # These first items are kept: no earlier item can remove them any more.
        removed[second[~is_undecided[first]]] = True
        is_pending = ~(removed[first] | removed[second])
        first, second = first[is_pending], second[is_pending]
    return removed


def merge_unique_pairs(pair_arrays: list[UInt64Array]) -> UInt64Array:
    """Return all distinct pairs, sorted; five times as fast as ``np.unique``, which hashes."""
    merged_pairs = np.concatenate([NO_PAIRS, *pair_arrays])
    merged_pairs.sort()
    unique_pairs: UInt64Array = merged_pairs[
        np.append(True, merged_pairs[1:] != merged_pairs[:-1])[: len(merged_pairs)]
    ]
    return unique_pairs


# Candidates --------------------------------------------------------------------------------------


def pack_pairs(first: Int64Array, second: Int64Array) -> UInt64Array:
    """Pack each pair in one number that sorts by second, then first."""
    return (second.astype(np.uint64) << np.uint64(32)) | first.astype(np.uint64)


class PairItems(NamedTuple):
    """Hold the items of m pairs; first < second."""

    first: Int64Array
    """Shape (m,)."""
    second: Int64Array
    """Shape (m,)."""


def unpack_pairs(pairs: UInt64Array) -> PairItems:
    """Return the items of the pairs that ``pack_pairs`` packed."""
    first_bits = pairs & np.uint64(0xFFFFFFFF)
    return PairItems(first_bits.astype(np.int64), (pairs >> np.uint64(32)).astype(np.int64))


class CandidatePairs(NamedTuple):
    """Hold the pairs to compare, and what is known of the n items."""

    packed_pairs: UInt64Array
    """Distinct pairs, packed by ``pack_pairs``, in ascending order."""
    has_uncompared: BoolArray
    """Whether candidates of the item were skipped because of the limit per item; shape (n,)."""
    shares_band: BoolArray
    """Whether the item shares a band hash with any other item, selected or not; shape (n,)."""


def select_candidate_pairs(
    band_hashes: UInt32Array,
    active_items: Int64Array,
    max_candidates_per_item: int,
    leading_kept_count: int = 0,
) -> CandidatePairs:
    """Select the pairs to compare.

    Args:
        active_items: The items to consider, ascending.
        leading_kept_count: Number of first items, which are never the second item of a pair.
    """
    has_uncompared = np.zeros(len(band_hashes), bool)
    shares_band = np.zeros(len(band_hashes), bool)
    pair_buffers: list[UInt64Array] = []
    buffered_count = 0
    for band in range(band_hashes.shape[1]):
        for pairs in generate_band_pairs_and_mark_items(
            band_hashes,
            band,
            active_items,
            max_candidates_per_item,
            has_uncompared,
            shares_band,
            leading_kept_count,
        ):
            pair_buffers.append(pairs)
            buffered_count += len(pairs)
        if buffered_count > MAX_BUFFERED_PAIRS:
            pair_buffers = [
                keep_best_pairs_and_mark_skipped(
                    band_hashes,
                    merge_unique_pairs(pair_buffers),
                    max_candidates_per_item,
                    has_uncompared,
                )
            ]
            buffered_count = len(pair_buffers[0])
    selected_pairs = keep_best_pairs_and_mark_skipped(
        band_hashes, merge_unique_pairs(pair_buffers), max_candidates_per_item, has_uncompared
    )
    has_uncompared[:leading_kept_count] = False
    return CandidatePairs(selected_pairs, has_uncompared, shares_band)


def generate_band_pairs_and_mark_items(
    band_hashes: UInt32Array,
    band: int,
    active_items: Int64Array,
    max_candidates_per_item: int,
    has_uncompared: BoolArray,
    shares_band: BoolArray,
    leading_kept_count: int,
) -> Iterator[UInt64Array]:
    """Yield pairs that agree in a band.

    A small bucket gives all its pairs. A crowded one gives each member with the first one, and is
    split by further bands. Marks items with skipped candidates in ``has_uncompared``, and items
    that share a bucket in ``shares_bucket``.
    """
    members, bucket_keys = active_items, band_hashes[active_items, band].astype(np.uint64)
    max_depth = min(MAX_SPLIT_DEPTH, band_hashes.shape[1])
    for depth in range(1, max_depth + 1):
        buckets = group_into_buckets(members, bucket_keys, leading_kept_count)
        members = buckets.items
        if not len(members):
            return
        shares_band[members] = True
        is_crowded = buckets.bucket_sizes > max_candidates_per_item + 1
        is_split = is_crowded & (depth < max_depth)
        yield pair_with_bucket_leaders(
            members,
            buckets.positions,
            np.where(
                members < leading_kept_count, 0, np.where(is_split, 1, max_candidates_per_item)
            ),
        )
        has_uncompared[members[is_crowded]] = True
        members, bucket_keys = members[is_split], buckets.bucket_keys[is_split]
        next_hashes = band_hashes[members, (band + depth) % band_hashes.shape[1]].astype(np.uint64)
        bucket_keys = mix_hashes(mix_hashes(bucket_keys, np.uint64(0)), next_hashes) >> np.uint64(
            32
        )


class BucketMembers(NamedTuple):
    """Hold the m items that share a bucket with another; those of one bucket are adjacent."""

    items: Int64Array
    """Shape (m,)."""
    bucket_keys: UInt64Array
    """32-bit key of the bucket that contains the item; shape (m,)."""
    positions: Int64Array
    """Position of the item within the bucket; shape (m,)."""
    bucket_sizes: Int64Array
    """Number of items in the bucket that contains the item; shape (m,)."""


def group_into_buckets(
    members: Int64Array, bucket_keys: UInt64Array, leading_kept_count: int = 0
) -> BucketMembers:
    """Group members with equal 32-bit keys, keeping their order.

    Members without a partner, and buckets with only resolved members, are omitted.
    """
    sort_keys = bucket_keys << np.uint64(32)
    sort_keys |= members.astype(np.uint64)
    sort_keys.sort()
    bucket_keys = sort_keys >> np.uint64(32)
    # Most members are alone; the rest of the function handles only the others.
    equals_next = bucket_keys[1:] == bucket_keys[:-1]
    is_shared = np.append(equals_next, False)[: len(sort_keys)]
    is_shared[1:] |= equals_next
    sort_keys, bucket_keys = sort_keys[is_shared], bucket_keys[is_shared]
    starts = np.flatnonzero(np.append(True, bucket_keys[1:] != bucket_keys[:-1])[: len(sort_keys)])
    bucket_sizes = np.diff(np.append(starts, len(sort_keys)))
    sizes_by_member = np.repeat(bucket_sizes, bucket_sizes)
    positions = np.arange(len(sort_keys)) - np.repeat(starts, bucket_sizes)
    members = unpack_pairs(sort_keys).first
    if leading_kept_count:
        has_unresolved = np.repeat(
            members[starts + bucket_sizes - 1] >= leading_kept_count, bucket_sizes
        )
        members = members[has_unresolved]
        bucket_keys = bucket_keys[has_unresolved]
        positions = positions[has_unresolved]
        sizes_by_member = sizes_by_member[has_unresolved]
    return BucketMembers(members, bucket_keys, positions, sizes_by_member)


def pair_with_bucket_leaders(
    members: Int64Array, positions_in_bucket: Int64Array, max_leaders_per_member: Int64Array
) -> UInt64Array:
    """Pair each member with the first members of its bucket that precede it, at most so many."""
    pair_counts = np.minimum(positions_in_bucket, max_leaders_per_member)
    owners = np.repeat(np.arange(len(members)), pair_counts)  # (pairs,)
    leader_positions = np.arange(len(owners)) - np.repeat(
        np.cumsum(pair_counts) - pair_counts, pair_counts
    )
    return pack_pairs(
        members[owners - positions_in_bucket[owners] + leader_positions], members[owners]
    )


def keep_best_pairs_and_mark_skipped(
    band_hashes: UInt32Array,
    pairs: UInt64Array,
    max_candidates_per_item: int,
    has_uncompared: BoolArray,
) -> UInt64Array:
    """Keep, for each second item, the ``max_candidates_per_item`` pairs that agree in most bands.

    Ties go to the smaller first item. Pairs are distinct and ascending before and after.
    """
    first, second = unpack_pairs(pairs)
    starts_item = np.append(True, second[1:] != second[:-1])[: len(second)]
    pair_counts = np.diff(np.append(np.flatnonzero(starts_item), len(second)))
    exceeds_limit = np.repeat(pair_counts > max_candidates_per_item, pair_counts)
    if not exceeds_limit.any():
        return pairs
    has_uncompared[second[exceeds_limit]] = True
    first, second, crowded_pairs = first[exceeds_limit], second[exceeds_limit], pairs[exceeds_limit]
    order = np.lexsort((first, -count_agreeing_bands(band_hashes, first, second), second))
    pair_counts = pair_counts[pair_counts > max_candidates_per_item]
    ranks = np.arange(len(order)) - np.repeat(np.cumsum(pair_counts) - pair_counts, pair_counts)
    return np.sort(
        np.concatenate(
            [pairs[~exceeds_limit], crowded_pairs[order[ranks < max_candidates_per_item]]]
        )
    )


def count_agreeing_bands(
    band_hashes: UInt32Array, first: Int64Array, second: Int64Array
) -> NDArray[np.int16]:
    """Count the bands in which each pair agrees, (m,)."""
    counts = np.empty(len(first), np.int16)
    for start in range(0, len(first), 1 << 14):
        block = slice(start, start + (1 << 14))
        counts[block] = (band_hashes[first[block]] == band_hashes[second[block]]).sum(axis=1)
    return counts


# Similarity --------------------------------------------------------------------------------------

#: Hashes compared at a time, few enough for the processor's cache.
HASHES_PER_BLOCK = 1 << 16


class ItemShingles(NamedTuple):
    """Hold the shingle hashes of k items, concatenated."""

    hashes: UInt64Array
    """The hashes of the first item, then those of the second item, and so on, with duplicates."""
    counts: Int64Array
    """Number of hashes of each item; shape (k,)."""


def compute_jaccard(
    load_shingles: Callable[[Int64Array], ItemShingles],
    first: Int64Array,
    second: Int64Array,
    set_sizes: Int64Array,
) -> NDArray[np.float64]:
    """Compute |A ∩ B| / |A ∪ B| of pairs of shingle sets, (m,).

    Args:
        load_shingles: Returns the hashes of items.
        set_sizes: (n,) number of hashes of each item.
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
        shingles = load_shingles(np.concatenate([first[block], second[block]]))
        similarities[block] = _compute_jaccard_by_pair(shingles)
        start = stop
    return similarities


def _compute_jaccard_by_pair(first_then_second_shingles: ItemShingles) -> NDArray[np.float64]:
    """Compute the Jaccard similarity of m pairs.

    All hashes are sorted at once. The number of the pair is above the bits of the hash and the side
    (first or second item) below them, so that common hashes become neighbours.

    Args:
        first_then_second_shingles: Hashes of the m first items, then of the m second items.
    """
    hashes, sizes = first_then_second_shingles
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
