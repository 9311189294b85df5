"""Estimate how a measure of one group differs from that of the other groups.

Differences of means have an interval. Wasserstein's distance compares whole distributions; it is
above 0 by chance alone, so it comes with its mean under the null and without an interval. Both are
compared with groups whose labels were permuted at random: with few blocks or skewed values,
permutations show the effect of chance more reliably than Student's t.

Results depend neither on the order of rows nor on names: blocks are numbered by their values, and
relabelled groups are drawn from this numbering.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hallmark.tasks.measures.detectable_effects import POWER
from hallmark.tasks.measures.estimates import Estimate
from hallmark.tasks.measures.statistics import Float64

Int64 = NDArray[np.int64]

#: Statistics of relabelled groups.
Statistics = TypeVar("Statistics")

#: Maximum number of values of relabelled groups in memory.
MAX_RELABELLED_VALUES = 1 << 20

#: After MIN_RELABELLINGS, a group whose p is at least CLEAR_P gets no further ones; for the ends of
#: an interval, twice as many are needed.
MIN_RELABELLINGS, CLEAR_P = 999, 0.1

#: A group of which fewer than MIN_REACHED relabellings reach the observed value gets this many
#: times as many of them.
MIN_REACHED, SMALL_P_FACTOR = 10, 3


def wasserstein_distance(values: ArrayLike, in_group: ArrayLike) -> float:
    """Compute Wasserstein-1 between a group's values and all others, in the unit of the values.

    It is the area between their distribution functions; NaN if either side is empty.
    """
    array, is_member = np.asarray(values, np.float64), np.asarray(in_group, bool)
    if is_member.all() or not is_member.any():
        return np.nan
    order = np.argsort(array, kind="stable")
    return float(_areas_between_cdfs(is_member[order][None], np.diff(array[order]))[0])


def _areas_between_cdfs(is_member: NDArray[np.bool_], gaps: Float64) -> Float64:
    """Compute the area between the distribution functions of members and others, for each row.

    Args:
        is_member: (rows, n), in the order of the sorted values.
        gaps: (n - 1,) differences between consecutive values.
    """
    member_counts = np.cumsum(is_member, axis=1)[:, :-1]
    member_totals, n = is_member.sum(1, keepdims=True), is_member.shape[1]
    cdf_differences = member_counts * (1 / member_totals + 1 / (n - member_totals)) - np.arange(
        1, n
    ) / (n - member_totals)
    areas: Float64 = np.abs(cdf_differences, out=cdf_differences) @ gaps
    return areas


def estimate_group_differences(
    values: ArrayLike,
    groups: Sequence[str],
    blocks: Sequence[Any],
    strata: Sequence[Any] | None = None,
    *,
    permutations: int = 9999,
    confidence_level: float = 0.95,
    seed: int = 0,
    unit: str = "items",
) -> dict[str, Estimate]:
    """Estimate, for each group, its mean minus that of all other groups.

    Two tests are made, of which the larger p and the wider interval count. Relabelling allows for
    skewed values: p counts the relabelled groups with at least as large a ratio to the standard
    error, and the interval contains the differences that are not rejected (Janssen 1997). If the
    few blocks of a group vary more than those of the others, relabelling finds too much; Welch's t
    (1947) allows for this, or Student's t over strata.

    Without strata, each block counts once, with the mean of its values, because otherwise the few
    blocks with most values would dominate a group. The mean of many values varies less, so labels
    are permuted between means divided by their expected standard deviations.

    Relabelling stops early for a group that is clearly like the others. Its p is then about CLEAR_P
    or more, so the stopping rule affects no small p (Besag & Clifford 1991).

    Args:
        values: (n,), NaN where missing.
        groups: (n,) names.
        blocks: (n,) names of independent units, each within one group; labels are permuted between
            blocks.
        strata: (n,) names of independent strata. If given, the differences are computed within
            strata and averaged, and labels are permuted only within strata.
        permutations: Number of relabellings; fewer for a group that is clearly like the others, and
            SMALL_P_FACTOR times as many for a group whose p is very small.
        confidence_level: Of the intervals.
        seed: Of the relabellings.
        unit: Plural name of the blocks, for the description of the method.
    """
    grouped = _GroupedValues.from_labels(values, groups, blocks, strata, unit)
    estimates = dict(grouped.empty_estimates)
    if len(grouped.group_names) < 2:
        return estimates
    group_codes = range(len(grouped.group_names))
    statistics = [grouped.build_statistics(code) for code in group_codes]
    observed = [statistic.compute_observed() for statistic in statistics]

    def has_enough(code: int, relabelled: list[_Contrasts]) -> bool:
        """Return whether the observed ratio is reached often enough to know its p."""
        ratio = observed[code].compute_ratios()[0]
        if not np.isfinite(ratio):
            return True
        ratios = np.concatenate([contrasts.compute_ratios() for contrasts in relabelled])
        reached_count = int(min((ratios >= ratio).sum(), (ratios <= ratio).sum()))
        is_clear = len(ratios) >= 2 * MIN_RELABELLINGS and 2 * reached_count >= CLEAR_P * len(
            ratios
        )
        return is_clear or (len(ratios) >= permutations and reached_count >= MIN_REACHED)

    relabelled = _relabel_groups(
        grouped.draw_permutations(permutations, seed, SMALL_P_FACTOR),
        [statistic.compute_relabelled for statistic in statistics],
        has_enough,
    )
    independent_units = len(grouped.block_groups)
    if grouped.block_strata is not None:
        independent_units = int(grouped.block_strata.max()) + 1
    missing_count = sum(estimate.missing for estimate in grouped.empty_estimates.values())
    t_name = "Welch's t" if grouped.block_strata is None else "Student's t across strata"
    for code, name in enumerate(grouped.group_names):
        estimates[name] = _test_difference(
            replace(
                estimates[name],
                n=len(grouped.values),
                clusters=independent_units,
                missing=missing_count,
                null_value=0.0,
            ),
            observed[code],
            _Contrasts.concatenate(relabelled[code]),
            confidence_level,
            f"{grouped.method}, and {t_name}; the larger p and the wider interval are reported",
        )
        relabelling_count = grouped.count_relabellings(code)
        if not np.isnan(estimates[name].low) and 2 / relabelling_count >= 1 - confidence_level:
            reason = (
                f"no interval: only {relabelling_count} different relabellings are possible, too "
                f"few for a p below {1 - confidence_level:.2g}"
            )
            estimates[name] = replace(
                estimates[name],
                low=np.nan,
                high=np.nan,
                minimum_detectable_effect=np.nan,
                method=f"{reason}; {estimates[name].method}",
            )
    return estimates


def estimate_wasserstein_distances(
    values: ArrayLike,
    groups: Sequence[str],
    blocks: Sequence[Any],
    strata: Sequence[Any] | None = None,
    *,
    permutations: int = 9999,
    seed: int = 0,
    unit: str = "items",
) -> dict[str, Estimate]:
    """Estimate, for each group, Wasserstein-1 between its values and those of all other groups.

    p and the null value come from relabelling, as in `estimate_group_differences`; there is no
    interval.

    Args:
        values: (n,), NaN where missing.
        groups: (n,) names.
        blocks: (n,) names of independent units, each within one group.
        strata: (n,) names; if given, labels are permuted only within strata.
        permutations: Maximum number of relabellings; SMALL_P_FACTOR times as many for a group
            whose p is very small.
        seed: Of the relabellings.
        unit: Plural name of the blocks, for the description of the method.
    """
    grouped = _GroupedValues.from_labels(values, groups, blocks, strata, unit)
    estimates = dict(grouped.empty_estimates)
    if len(grouped.group_names) < 2:
        return estimates
    known_values = grouped.values
    order = np.argsort(known_values, kind="stable")
    value_gaps, block_rows = np.diff(known_values[order]), grouped.block_codes[order]
    row_groups = grouped.block_groups[grouped.block_codes]
    group_codes = range(len(grouped.group_names))
    observed = [wasserstein_distance(known_values, row_groups == code) for code in group_codes]
    member_places = [grouped.list_member_places(code) for code in group_codes]

    def compute_distances(permutation: Int64, code: int) -> Float64:
        is_member = np.zeros(permutation.shape, bool)
        np.put_along_axis(is_member, permutation[:, member_places[code]], True, axis=1)
        return _areas_between_cdfs(is_member[:, block_rows], value_gaps)

    def has_enough(code: int, relabelled: list[Float64]) -> bool:
        """Return whether the observed distance is reached often enough to know its p."""
        distances = np.concatenate(relabelled)
        reached_count = int((distances >= _lower_by_rounding_error(observed[code])).sum())
        is_clear = len(distances) >= MIN_RELABELLINGS and reached_count >= CLEAR_P * len(distances)
        return is_clear or (len(distances) >= permutations and reached_count >= MIN_REACHED)

    relabelled = _relabel_groups(
        grouped.draw_permutations(permutations, seed, SMALL_P_FACTOR),
        [partial(compute_distances, code=code) for code in group_codes],
        has_enough,
    )
    for code, name in enumerate(grouped.group_names):
        distances = np.concatenate(relabelled[code])
        p = _permutation_p(distances >= _lower_by_rounding_error(observed[code]))
        estimates[name] = replace(
            estimates[name],
            value=observed[code],
            null_value=float(distances.mean()),
            n=int((row_groups == code).sum()),
            clusters=int((grouped.block_groups == code).sum()),
            p=p,
            p_above_null=p,
            method=f"{len(distances):,} {grouped.method}",
        )
    return estimates


def _relabel_groups(
    permutations: Iterator[Int64],
    compute_by_group: Sequence[Callable[[Int64], Statistics]],
    has_enough: Callable[[int, list[Statistics]], bool],
) -> list[list[Statistics]]:
    """Compute statistics of relabelled groups, for each group until it has enough of them.

    Args:
        permutations: Batches of permutations of the blocks.
        compute_by_group: Computes the statistics of a group after each permutation of a batch.
        has_enough: Called with the number of a group and its results so far.

    Returns:
        For each group, the results of the batches.
    """
    results: list[list[Statistics]] = [[] for _ in compute_by_group]
    remaining = set(range(len(compute_by_group)))
    for permutation in permutations:
        for code in sorted(remaining):
            results[code].append(compute_by_group[code](permutation))
            if has_enough(code, results[code]):
                remaining.remove(code)
        if not remaining:
            break
    return results


@dataclass(frozen=True)
class _GroupedValues:
    """Known values with their groups, blocks and strata as codes.

    Blocks are numbered by their values, stratum by stratum, and strata by the values of their
    blocks. Where these are equal, the order has no effect on results.

    Attributes:
        values: (n,) without NaN, in ascending order.
        group_names: Names in the order of their codes.
        block_codes: (n,).
        block_groups: (blocks,) the group of each block.
        block_strata: (blocks,) the stratum of each block in ascending order, or None.
        stratum_kinds: (strata,) a number that strata with the same values share, ascending.
        empty_estimates: For each group, the estimate that says that it has no values.
        method: Description of the relabelling, without the number of relabellings.
    """

    values: Float64
    group_names: list[str]
    block_codes: Int64
    block_groups: Int64
    block_strata: Int64 | None
    stratum_kinds: Int64
    empty_estimates: dict[str, Estimate]
    method: str

    @classmethod
    def from_labels(
        cls,
        values: ArrayLike,
        groups: Sequence[str],
        blocks: Sequence[Any],
        strata: Sequence[Any] | None,
        unit: str,
    ) -> _GroupedValues:
        array = np.asarray(values, np.float64)
        order = np.argsort(array, kind="stable")
        known_rows = order[~np.isnan(array[order])].tolist()
        groups_of_missing = [
            name for name, value in zip(groups, np.isnan(array), strict=True) if value
        ]
        empty_estimates = {
            name: Estimate(
                np.nan, np.nan, np.nan, 0, 0, groups_of_missing.count(name), f"no {unit} to measure"
            )
            for name in dict.fromkeys(groups)
        }
        group_names = [*dict.fromkeys(groups[row] for row in sorted(known_rows))]
        rows_by_block: dict[tuple[Any, ...], list[int]] = {}
        for row in known_rows:
            stratum = None if strata is None else strata[row]
            rows_by_block.setdefault((stratum, groups[row], blocks[row]), []).append(row)
        blocks_by_stratum: dict[Any, list[tuple[list[float], tuple[Any, ...]]]] = {}
        for block, rows in rows_by_block.items():
            blocks_by_stratum.setdefault(block[0], []).append((array[rows].tolist(), block))
        sorted_strata = sorted(
            (
                sorted(stratum_blocks, key=lambda block: block[0])
                for stratum_blocks in blocks_by_stratum.values()
            ),
            key=lambda stratum_blocks: [block_values for block_values, _ in stratum_blocks],
        )
        stratum_values = [[block[0] for block in stratum] for stratum in sorted_strata]
        has_new_kind = [a != b for a, b in pairwise(stratum_values)]
        block_names = [name for stratum in sorted_strata for _, name in stratum]
        block_numbers = {name: number for number, name in enumerate(block_names)}
        group_numbers = {name: number for number, name in enumerate(group_names)}
        code_by_row = {
            row: block_numbers[name] for name, rows in rows_by_block.items() for row in rows
        }
        strata_description = (
            f", within each of {len(sorted_strata)} strata"
            if strata is not None and known_rows
            else ""
        )
        return cls(
            array[known_rows],
            group_names,
            np.array([code_by_row[row] for row in known_rows], np.int64),
            np.array([group_numbers[name[1]] for name in block_names], np.int64),
            None
            if strata is None
            else np.repeat(np.arange(len(sorted_strata)), [*map(len, sorted_strata)]),
            np.cumsum([0, *has_new_kind], dtype=np.int64),
            empty_estimates,
            f"relabellings of {len(block_names)} {unit}{strata_description}",
        )

    def count_relabellings(self, group_code: int) -> int:
        """Count the different ways to give the labels of a group to blocks."""
        is_member = self.block_groups == group_code
        strata = np.zeros_like(self.block_groups)
        if self.block_strata is not None:
            strata = self.block_strata
        counts = zip(
            np.bincount(strata).tolist(),
            np.bincount(strata, is_member).astype(int).tolist(),
            strict=True,
        )
        return math.prod(math.comb(n, member_count) for n, member_count in counts)

    def list_member_places(self, group_code: int) -> Int64:
        """List the places of blocks that a group has after a permutation, in ascending order.

        They are the first ones of each stratum, as many as the group has blocks there. Strata with
        the same values are interchangeable; of these the first have the fewest.
        """
        is_member = self.block_groups == group_code
        if self.block_strata is None:
            return np.arange(is_member.sum())
        member_counts = np.bincount(self.block_strata, is_member).astype(np.int64)
        sorted_counts = member_counts[np.lexsort([member_counts, self.stratum_kinds])]
        starts = np.searchsorted(self.block_strata, np.arange(len(member_counts)))
        return np.concatenate(
            [start + np.arange(n) for start, n in zip(starts, sorted_counts, strict=True)]
        )

    def build_statistics(self, group_code: int) -> _StratifiedBlocks | _BlockMeans:
        """Prepare the contrasts of a group."""
        is_member = self.block_groups == group_code
        if self.block_strata is None:
            return _BlockMeans.from_values(self.values, self.block_codes, is_member)
        return _StratifiedBlocks(
            np.bincount(self.block_codes),
            np.bincount(self.block_codes, self.values - self.values.mean()).astype(np.float64),
            self.block_strata,
            np.flatnonzero(is_member),
            self.list_member_places(group_code),
        )

    def draw_permutations(self, permutations: int, seed: int, factor: int = 1) -> Iterator[Int64]:
        """Yield batches of permutations of the blocks, (rows, blocks), within strata if any.

        Args:
            permutations: Number of permutations, after which a batch ends.
            seed: Of the permutations.
            factor: How many times as many permutations are drawn in all.
        """
        rng = np.random.default_rng(seed)
        block_count = len(self.block_groups)
        stratum_ends = np.array([block_count])
        if self.block_strata is not None:
            stratum_ends = np.cumsum(np.bincount(self.block_strata))
        batch_size = max(1, min(MIN_RELABELLINGS, MAX_RELABELLED_VALUES // len(self.values)))
        drawn_count = 0
        while drawn_count < factor * permutations:
            stage_end = permutations if drawn_count < permutations else factor * permutations
            row_count = min(batch_size, stage_end - drawn_count)
            drawn_count += row_count
            permutation = np.tile(np.arange(block_count), (row_count, 1))
            start = 0
            for end in stratum_ends.tolist():
                permutation[:, start:end] = rng.permuted(permutation[:, start:end], axis=1)
                start = end
            yield permutation


class _Contrasts(NamedTuple):
    """Differences of a group from the others, (n,) each."""

    differences: Float64
    errors: Float64
    """Standard errors."""
    degrees_of_freedom: Float64
    """Of Student's t, for the errors."""

    @classmethod
    def concatenate(cls, batches: Sequence[_Contrasts]) -> _Contrasts:
        return cls(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))

    def compute_ratios(self) -> Float64:
        """Divide differences by errors."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.differences == 0, 0, self.differences / self.errors)

    def change_sign(self) -> _Contrasts:
        return self._replace(differences=-self.differences)


def _test_difference(
    empty_estimate: Estimate,
    observed: _Contrasts,
    relabelled: _Contrasts,
    confidence_level: float,
    method: str,
) -> Estimate:
    """Compute interval, p and minimum detectable effect of a group's difference.

    Args:
        empty_estimate: Estimate with counts but without a value.
        observed: The observed difference, of length 1.
        relabelled: The differences of relabelled groups.
        confidence_level: Of the interval.
        method: Description of the tests, without the number of relabellings.
    """
    from scipy.special import stdtr, stdtrit

    value, standard_error, degrees_of_freedom = (float(array[0]) for array in observed)
    estimate = replace(empty_estimate, value=value)
    if np.isnan(standard_error):
        return replace(
            estimate, method="no interval: one of the two groups has fewer than two units"
        )
    ratios = relabelled.compute_ratios()
    lower_bound, upper_bound = _accepted_ratio_interval(ratios, confidence_level)
    if (
        standard_error < 1e-12 * max(1.0, abs(value))
        or not np.isfinite([lower_bound, upper_bound]).all()
    ):
        return replace(estimate, method="no interval: the values do not vary")
    ratios = np.clip(
        ratios, -1e300, 1e300
    )  # Relabelled groups without spread have infinite ratios.
    reached_tails = (
        ratios >= _lower_by_rounding_error(value / standard_error),
        -ratios >= _lower_by_rounding_error(-value / standard_error),
    )
    t_bound = float(stdtrit(degrees_of_freedom, (1 + confidence_level) / 2))
    # If the observed difference is the most extreme one, an end is 0 up to rounding errors.
    low, high = (
        0.0 if abs(end) < 1e-9 * abs(value) else end
        for end in (
            value - max(upper_bound, t_bound) * standard_error,
            value - min(lower_bound, -t_bound) * standard_error,
        )
    )
    # With too few relabellings no effect is large enough for a p below 1 - confidence_level.
    extreme_p_values = (
        _permutation_p(ratios >= _lower_by_rounding_error(ratios.max())),
        _permutation_p(ratios <= -_lower_by_rounding_error(-ratios.min())),
    )
    detectable_effect = np.nan
    if 2 * max(extreme_p_values) < 1 - confidence_level:
        detectable_increase, detectable_decrease = (
            _detectable_shift(contrasts, bound, confidence_level)
            for contrasts, bound in (
                (relabelled, upper_bound),
                (relabelled.change_sign(), -lower_bound),
            )
        )
        detectable_effect = max(detectable_increase, detectable_decrease)
    return replace(
        estimate,
        low=low,
        high=high,
        p=max(
            min(1.0, 2 * min(map(_permutation_p, reached_tails))),
            float(2 * stdtr(degrees_of_freedom, -abs(value) / standard_error)),
        ),
        method=f"{len(ratios):,} {method}",
        minimum_detectable_effect=detectable_effect,
    )


def _accepted_ratio_interval(ratios: Float64, confidence_level: float) -> tuple[float, float]:
    """Return the smallest and the largest ratio that the test by relabelling does not reject."""
    excluded_count = max(1, math.ceil((1 - confidence_level) / 2 * (1 + len(ratios)) - 1e-9) - 1)
    low, high = np.sort(ratios)[[excluded_count - 1, -excluded_count]]
    return float(low), float(high)


def _detectable_shift(relabelled: _Contrasts, upper_bound: float, confidence_level: float) -> float:
    """Compute the shift of a group that both tests find too large in four of five relabellings."""
    from scipy.special import stdtrit

    t_bounds = stdtrit(relabelled.degrees_of_freedom, (1 + confidence_level) / 2)
    shifts = np.maximum(upper_bound, t_bounds) * relabelled.errors - relabelled.differences
    return float(np.quantile(shifts, POWER))


def _permutation_p(has_reached: NDArray[np.bool_]) -> float:
    """Return the share of relabellings that reach the observed value, which is counted as one."""
    return float((1 + has_reached.sum()) / (1 + len(has_reached)))


def _lower_by_rounding_error(value: float) -> float:
    """Lower a threshold slightly, because sums in another order can differ in their last bits."""
    return value - 1e-12 * max(1.0, abs(value))


@dataclass(frozen=True)
class _BlockMeans:
    """Means of blocks, for the difference of a group without strata.

    Attributes:
        means: (blocks,) mean of each block minus the mean of all, in ascending order.
        standard_deviations: (blocks,) expected standard deviation of each mean.
        member_rows: (members,) rows of the group's blocks.
    """

    means: Float64
    standard_deviations: Float64
    member_rows: Int64

    @classmethod
    def from_values(
        cls, values: Float64, block_codes: Int64, is_member: NDArray[np.bool_]
    ) -> _BlockMeans:
        """Compute the means of blocks and their expected standard deviations.

        A mean varies with the variance between blocks plus the variance within blocks divided by
        its number of values. These components are estimated by analysis of variance (Searle 1992,
        section 3.6).
        """
        counts = np.bincount(block_codes)
        n, block_count = len(values), len(counts)
        means = np.bincount(block_codes, values) / counts
        within_variance = float(((values - means[block_codes]) ** 2).sum()) / max(
            1, n - block_count
        )
        between_sum = (
            float((counts * (means - values.mean()) ** 2).sum())
            - (block_count - 1) * within_variance
        )
        between_variance = (
            max(0.0, between_sum / (n - float((counts**2).sum()) / n)) if block_count > 1 else 0.0
        )
        standard_deviations = np.sqrt(between_variance + within_variance / counts)
        order = np.lexsort([counts, means])
        return cls(
            (means - means.mean())[order],
            np.where(standard_deviations > 0, standard_deviations, 1.0)[order],
            np.flatnonzero(is_member[order]),
        )

    def compute_observed(self) -> _Contrasts:
        """Compute the observed difference, of length 1."""
        others = np.delete(np.arange(len(self.means)), self.member_rows)
        return self._compare(self.means[None, self.member_rows], self.means[None, others])

    def compute_relabelled(self, permutation: Int64) -> _Contrasts:
        """Compute the difference after each permutation.

        Args:
            permutation: (rows, blocks), the block that takes each place; the first places are those
                of the group. A mean is rescaled to the standard deviation expected at its place.
        """
        member_count = len(self.member_rows)
        place_deviations = np.concatenate(
            [
                np.sort(self.standard_deviations[self.member_rows]),
                np.sort(np.delete(self.standard_deviations, self.member_rows)),
            ]
        )
        means = (self.means / self.standard_deviations)[permutation] * place_deviations
        return self._compare(means[:, :member_count], means[:, member_count:])

    @staticmethod
    def _compare(members: Float64, others: Float64) -> _Contrasts:
        """Compare the means of rows of members and others (Welch 1947).

        Errors are NaN if either side has a single block.
        """
        square_sums = (members**2).sum(1) + (others**2).sum(1)
        side_means, side_variances, side_degrees = [], [], []
        for side in (members, others):
            count = side.shape[1]
            side_mean = side.mean(1)
            squares = ((side - side_mean[:, None]) ** 2).sum(1)
            squares = np.where(squares < 1e-12 * square_sums, 0, squares)
            side_means.append(side_mean)
            side_degrees.append(max(1, count - 1))
            side_variances.append(
                squares / (count - 1) / count if count > 1 else np.full(len(side), np.nan)
            )
        variances = side_variances[0] + side_variances[1]
        with np.errstate(divide="ignore", invalid="ignore"):
            degrees_of_freedom = variances**2 / (
                side_variances[0] ** 2 / side_degrees[0] + side_variances[1] ** 2 / side_degrees[1]
            )
        return _Contrasts(
            side_means[0] - side_means[1],
            np.sqrt(variances),
            np.where(variances > 0, degrees_of_freedom, min(side_degrees)),
        )


@dataclass(frozen=True)
class _StratifiedBlocks:
    """Sums of blocks, for the difference of a group within strata.

    Attributes:
        counts: (blocks,) number of values.
        sums: (blocks,) sum of the values minus the mean of all.
        block_strata: (blocks,) stratum codes, in ascending order.
        member_rows: (members,) rows of the group's blocks.
        member_places: (members,) places of the group's blocks after a permutation.
    """

    counts: Int64
    sums: Float64
    block_strata: Int64
    member_rows: Int64
    member_places: Int64

    def compute_observed(self) -> _Contrasts:
        """Compute the observed difference, of length 1."""
        return self._compare(np.arange(len(self.sums))[None], self.member_rows)

    def compute_relabelled(self, permutation: Int64) -> _Contrasts:
        """Compute the difference after each permutation.

        Args:
            permutation: (rows, blocks), the block that takes each place.
        """
        return self._compare(permutation, self.member_places)

    def _compare(self, permutation: Int64, member_places: Int64) -> _Contrasts:
        """Compute the mean of blocks at some places minus that of the others, averaged over strata.

        Only strata with members and others count; errors are NaN if only one stratum counts.
        """
        stratum_count = int(self.block_strata[-1]) + 1
        place_strata = self.block_strata[member_places]
        member_counts = np.bincount(place_strata, minlength=stratum_count)
        block_counts = np.bincount(self.block_strata)
        used_strata = np.flatnonzero((member_counts > 0) & (member_counts < block_counts))
        row_count, used_count = len(permutation), len(used_strata)
        degrees_of_freedom = np.full(row_count, max(1.0, used_count - 1))
        if not used_count:
            nan = np.full(row_count, np.nan)
            return _Contrasts(nan, nan, degrees_of_freedom)
        is_in_stratum = (place_strata[:, None] == used_strata).astype(np.float64)
        member_blocks = permutation[:, member_places]
        value_counts = self.counts[member_blocks] @ is_in_stratum  # (rows, strata)
        member_sums = self.sums[member_blocks] @ is_in_stratum
        all_counts, all_sums = (
            np.bincount(self.block_strata, block_values)[used_strata]
            for block_values in (self.counts, self.sums)
        )
        other_means = (all_sums - member_sums) / (all_counts - value_counts)
        stratum_differences = member_sums / value_counts - other_means
        differences = stratum_differences.mean(1)
        squares = ((stratum_differences - differences[:, None]) ** 2).sum(1)
        errors = np.full(row_count, np.nan)
        if used_count > 1:
            errors = np.sqrt(squares / used_count / (used_count - 1))
        return _Contrasts(differences, errors, degrees_of_freedom)
