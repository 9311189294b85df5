"""Estimate how a measure of one group differs from that of the other groups.

Differences of means have an interval. Wasserstein's distance compares whole distributions; it is
above 0 by chance alone, so it comes with its mean under the null and without an interval. Both are
compared with groups whose labels were permuted at random: with few blocks or skewed values,
permutations show the effect of chance more reliably than Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hallmark.tasks.measures.detectable_effects import POWER
from hallmark.tasks.measures.estimates import Estimate
from hallmark.tasks.measures.statistics import Float64, encode_names_as_integers

Int64 = NDArray[np.int64]

#: Maximum number of values of relabelled groups in memory.
MAX_RELABELLED_VALUES = 1 << 20

#: After MIN_RELABELLINGS, a group whose p is at least CLEAR_P gets no further relabellings.
MIN_RELABELLINGS, CLEAR_P = 999, 0.1


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

    Differences are studentised (Janssen 1997): p counts the relabelled groups with at least as
    large a ratio to the standard error, and the interval contains the differences that are not
    rejected.

    Without strata, each block counts once, with the mean of its values, because otherwise the few
    blocks with most values would dominate a group. The mean of many values varies less, so labels
    are permuted between means divided by their expected standard deviations.

    Args:
        values: (n,), NaN where missing.
        groups: (n,) names.
        blocks: (n,) names of independent units, each within one group; labels are permuted between
            blocks.
        strata: (n,) names of independent strata. If given, the differences are computed within
            strata and averaged, and labels are permuted only within strata.
        permutations: Number of relabellings.
        confidence_level: Of the intervals.
        seed: Of the relabellings.
        unit: Plural name of the blocks, for the description of the method.
    """
    grouped = _GroupedValues.from_labels(values, groups, blocks, strata, unit)
    estimates = dict(grouped.empty_estimates)
    if len(grouped.group_names) < 2:
        return estimates
    known_values, block_groups = grouped.values, grouped.block_groups
    statistics = grouped.build_statistics(known_values, block_groups)
    unchanged_order = np.arange(len(block_groups))[None]
    # (2, groups)
    observed = statistics.compute_group_differences_and_errors(unchanged_order)[:, 0]
    relabelled = np.concatenate(
        [
            statistics.compute_group_differences_and_errors(permutation)
            for permutation in grouped.draw_permutations(permutations, seed)
        ],
        axis=1,
    )  # (2, permutations, groups)
    independent_units = (
        len(block_groups) if grouped.block_strata is None else int(grouped.block_strata.max()) + 1
    )
    missing_count = sum(estimate.missing for estimate in grouped.empty_estimates.values())
    for code, name in enumerate(grouped.group_names):
        empty_estimate = replace(
            estimates[name],
            n=len(known_values),
            clusters=independent_units,
            missing=missing_count,
            null_value=0.0,
        )

        def relabel_after_shift(shift: float, group_code: int = code) -> Float64:
            """Return (2, n) differences of relabelled groups with this group's values shifted."""
            statistics = grouped.build_statistics(
                known_values + shift * (grouped.group_codes == group_code),
                (block_groups != group_code).astype(np.int64),
            )
            permutations_drawn = grouped.draw_permutations(
                min(permutations, MIN_RELABELLINGS), seed
            )
            return np.concatenate(
                [
                    statistics.compute_group_differences_and_errors(permutation)[..., 0]
                    for permutation in permutations_drawn
                ],
                axis=1,
            )

        estimates[name] = _test_difference(
            empty_estimate,
            observed[:, code],
            relabelled[..., code],
            relabel_after_shift,
            confidence_level,
            grouped.method,
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
    interval. Relabelling stops early for a group that is clearly like the others. Its p is then
    about CLEAR_P or more, so the stopping rule affects no small p (Besag & Clifford 1991).

    Args:
        values: (n,), NaN where missing.
        groups: (n,) names.
        blocks: (n,) names of independent units, each within one group.
        strata: (n,) names; if given, labels are permuted only within strata.
        permutations: Maximum number of relabellings.
        seed: Of the relabellings.
        unit: Plural name of the blocks, for the description of the method.
    """
    grouped = _GroupedValues.from_labels(values, groups, blocks, strata, unit)
    estimates = dict(grouped.empty_estimates)
    if len(grouped.group_names) < 2:
        return estimates
    known_values, group_codes = grouped.values, grouped.group_codes
    order = np.argsort(known_values, kind="stable")
    value_gaps, block_rows = np.diff(known_values[order]), grouped.block_codes[order]
    observed = [
        wasserstein_distance(known_values, group_codes == code)
        for code in range(len(grouped.group_names))
    ]
    relabelled_distances: list[Float64] = [np.empty(0) for _ in observed]
    for permutation in grouped.draw_permutations(permutations, seed):
        relabelled_groups = _relabel_blocks(permutation, grouped.block_groups)
        for code, distance in enumerate(observed):
            reached_count = int(
                (relabelled_distances[code] >= _lower_by_rounding_error(distance)).sum()
            )
            if len(relabelled_distances[code]) < MIN_RELABELLINGS or reached_count < CLEAR_P * len(
                relabelled_distances[code]
            ):
                relabelled_distances[code] = np.append(
                    relabelled_distances[code],
                    _areas_between_cdfs(relabelled_groups[:, block_rows] == code, value_gaps),
                )
    for code, name in enumerate(grouped.group_names):
        p = _permutation_p(relabelled_distances[code] >= _lower_by_rounding_error(observed[code]))
        estimates[name] = replace(
            estimates[name],
            value=observed[code],
            null_value=float(relabelled_distances[code].mean()),
            n=int((group_codes == code).sum()),
            clusters=int((grouped.block_groups == code).sum()),
            p=p,
            p_above_null=p,
            method=f"{len(relabelled_distances[code]):,} {grouped.method}",
        )
    return estimates


@dataclass(frozen=True)
class _GroupedValues:
    """Known values with their groups, blocks and strata as codes.

    Attributes:
        values: (n,) without NaN.
        group_names: Names in the order of their codes.
        group_codes: (n,).
        block_codes: (n,).
        block_groups: (blocks,) the group of each block.
        block_strata: (blocks,) the stratum of each block, or None.
        empty_estimates: For each group, the estimate that says that it has no values.
        method: Description of the relabelling, without the number of relabellings.
    """

    values: Float64
    group_names: list[str]
    group_codes: Int64
    block_codes: Int64
    block_groups: Int64
    block_strata: Int64 | None
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
        known_rows = np.flatnonzero(~np.isnan(array)).tolist()
        groups_of_missing = [
            name for name, value in zip(groups, np.isnan(array), strict=True) if value
        ]
        empty_estimates = {
            name: Estimate(
                np.nan, np.nan, np.nan, 0, 0, groups_of_missing.count(name), f"no {unit} to measure"
            )
            for name in dict.fromkeys(groups)
        }
        labels = [groups[i] for i in known_rows]
        group_codes, block_codes = (
            encode_names_as_integers(labels),
            encode_names_as_integers([(groups[i], blocks[i]) for i in known_rows]),
        )
        first_rows = np.unique(block_codes, return_index=True)[1]
        block_strata = (
            None
            if strata is None
            else encode_names_as_integers([strata[i] for i in known_rows])[first_rows]
        )
        strata_description = (
            f", within each of {block_strata.max() + 1} strata"
            if block_strata is not None and known_rows
            else ""
        )
        return cls(
            array[known_rows],
            [*dict.fromkeys(labels)],
            group_codes,
            block_codes,
            group_codes[first_rows],
            block_strata,
            empty_estimates,
            f"relabellings of {len(first_rows)} {unit}{strata_description}",
        )

    def build_statistics(
        self, values: Float64, block_groups: Int64
    ) -> _StratifiedBlocks | _BlockMeans:
        """Prepare the statistics of blocks that belong to the groups `block_groups`."""
        if self.block_strata is None:
            return _BlockMeans.from_values(values, self.block_codes, block_groups)
        centred_sums = np.bincount(self.block_codes, values - values.mean()).astype(np.float64)
        return _StratifiedBlocks(
            np.bincount(self.block_codes), centred_sums, self.block_strata, block_groups
        )

    def draw_permutations(self, permutations: int, seed: int) -> Iterator[Int64]:
        """Yield batches of permutations of the blocks, (rows, blocks), within strata if any."""
        rng = np.random.default_rng(seed)
        strata = (
            np.zeros(len(self.block_groups), np.int64)
            if self.block_strata is None
            else self.block_strata
        )
        block_order = np.argsort(strata, kind="stable")
        batch_size = max(1, min(MIN_RELABELLINGS, MAX_RELABELLED_VALUES // len(self.values)))
        for start in range(0, permutations, batch_size):
            batch_rows = min(batch_size, permutations - start)
            permutation = np.empty((batch_rows, len(strata)), np.int64)
            permutation[:, block_order] = np.argsort(
                strata + rng.random((batch_rows, len(strata))), axis=1
            )
            yield permutation


def _relabel_blocks(permutation: Int64, block_groups: Int64) -> Int64:
    """Return the group codes of the blocks after each permutation, (rows, blocks)."""
    relabelled = np.empty_like(permutation)
    np.put_along_axis(
        relabelled, permutation, np.broadcast_to(block_groups, permutation.shape), axis=1
    )
    return relabelled


def _test_difference(
    empty_estimate: Estimate,
    difference_and_error: Float64,
    relabelled_differences_and_errors: Float64,
    relabel_after_shift: Callable[[float], Float64],
    confidence_level: float,
    method: str,
) -> Estimate:
    """Compute interval, p and minimum detectable effect of a group's difference.

    Args:
        empty_estimate: Estimate with counts but without a value.
        difference_and_error: (2,) observed difference and standard error.
        relabelled_differences_and_errors: (2, n) the same for relabelled groups.
        relabel_after_shift: Compute such differences with a constant added to the group's values.
        confidence_level: Of the interval.
        method: Description of the relabelling, without their number.
    """
    value, standard_error = map(float, difference_and_error)
    estimate = replace(empty_estimate, value=value)
    if np.isnan(standard_error):
        return replace(
            estimate, method="no interval: one of the two groups has fewer than two units"
        )
    ratios = _divide_differences_by_errors(*relabelled_differences_and_errors)
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
    # If the observed difference is the most extreme one, an end is 0 up to rounding errors.
    low, high = (
        0.0 if abs(end) < 1e-9 * abs(value) else end
        for end in (value - upper_bound * standard_error, value - lower_bound * standard_error)
    )
    # With too few relabellings no effect is large enough for a p below 1 - confidence_level.
    extreme_p_values = (
        _permutation_p(ratios >= _lower_by_rounding_error(ratios.max())),
        _permutation_p(ratios <= -_lower_by_rounding_error(-ratios.min())),
    )
    detectable_effect = np.nan
    if 2 * max(extreme_p_values) < 1 - confidence_level:
        sign_flip = np.array([[-1], [1]])
        detectable_increase = _detectable_shift(
            relabelled_differences_and_errors, upper_bound, relabel_after_shift, confidence_level
        )
        detectable_decrease = _detectable_shift(
            relabelled_differences_and_errors * sign_flip,
            -lower_bound,
            lambda shift: relabel_after_shift(-shift) * sign_flip,
            confidence_level,
        )
        detectable_effect = max(detectable_increase, detectable_decrease)
    return replace(
        estimate,
        low=low,
        high=high,
        p=min(1.0, 2 * min(map(_permutation_p, reached_tails))),
        method=f"{len(ratios):,} {method}",
        minimum_detectable_effect=detectable_effect,
    )


def _divide_differences_by_errors(differences: Float64, errors: Float64) -> Float64:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(differences == 0, 0, differences / errors)


def _accepted_ratio_interval(ratios: Float64, confidence_level: float) -> tuple[float, float]:
    """Return the smallest and the largest ratio that the test does not reject."""
    excluded_count = max(1, math.ceil((1 - confidence_level) / 2 * (1 + len(ratios)) - 1e-9) - 1)
    low, high = np.sort(ratios)[[excluded_count - 1, -excluded_count]]
    return float(low), float(high)


def _detectable_shift(
    differences_and_errors: Float64,
    upper_bound: float,
    relabel_after_shift: Callable[[float], Float64],
    confidence_level: float,
) -> float:
    """Compute the shift of a group that the test finds too large in four of five relabellings.

    Relabelled groups contain some of the shifted values, which increases their standard errors and
    decreases their ratios; so the bound is recomputed after a first shift.
    """
    differences, errors = differences_and_errors
    first_shift = float(np.quantile(upper_bound * errors - differences, POWER))
    shifted_bound = _accepted_ratio_interval(
        _divide_differences_by_errors(*relabel_after_shift(first_shift)), confidence_level
    )[1]
    return (
        float(np.quantile(shifted_bound * errors - differences, POWER))
        if np.isfinite(shifted_bound)
        else first_shift
    )


def _permutation_p(has_reached: NDArray[np.bool_]) -> float:
    """Return the share of relabellings that reach the observed value, which is counted as one."""
    return float((1 + has_reached.sum()) / (1 + len(has_reached)))


def _lower_by_rounding_error(value: float) -> float:
    """Lower a threshold slightly, because sums in another order can differ in their last bits."""
    return value - 1e-12 * max(1.0, abs(value))


@dataclass(frozen=True)
class _BlockMeans:
    """Means of blocks, for differences without strata.

    Attributes:
        means: (blocks,) mean of each block minus the mean of all.
        standard_deviations: (blocks,) expected standard deviation of each mean.
        block_groups: (blocks,) group codes.
    """

    means: Float64
    standard_deviations: Float64
    block_groups: Int64

    @classmethod
    def from_values(cls, values: Float64, block_codes: Int64, block_groups: Int64) -> _BlockMeans:
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
        return cls(
            means - means.mean(),
            np.where(standard_deviations > 0, standard_deviations, 1.0),
            block_groups,
        )

    def compute_group_differences_and_errors(self, permutation: Int64) -> Float64:
        """Compute each group's mean minus that of the others, and its standard error (Welch 1947).

        Args:
            permutation: (rows, blocks), the block that takes the place of each block. Its mean is
                rescaled to the standard deviation expected at that place.

        Returns:
            (2, rows, groups); the error is NaN if either side has a single block.
        """
        group_sizes = np.bincount(self.block_groups)
        order = np.argsort(self.block_groups, kind="stable")
        starts = np.cumsum(group_sizes) - group_sizes
        standardised_means = (self.means / self.standard_deviations)[permutation]
        means = (standardised_means * self.standard_deviations)[:, order]
        square_sums = (means**2).sum(1)
        # (rows, groups). Squares are of deviations from the group's own mean: the difference of
        # sums of squares would be rounded differently for each order of the same values.
        group_means = np.add.reduceat(means, starts, axis=1) / group_sizes
        deviation_squares = np.add.reduceat(
            (means - np.repeat(group_means, group_sizes, axis=1)) ** 2, starts, axis=1
        )
        differences = np.empty((2, *group_means.shape))
        for code, count in enumerate(group_sizes):
            is_rest = np.arange(len(group_sizes)) != code
            rest_sizes, rest_means = group_sizes[is_rest], group_means[:, is_rest]
            rest_mean = (rest_means @ rest_sizes) / rest_sizes.sum()
            between_squares = (rest_means - rest_mean[:, None]) ** 2 @ rest_sizes
            rest_squares = deviation_squares[:, is_rest].sum(1) + between_squares
            sides = [(deviation_squares[:, code], count), (rest_squares, rest_sizes.sum())]
            error_variances = [
                np.where(squares < 1e-12 * square_sums, 0, squares)
                / (block_count - 1)
                / block_count
                if block_count > 1
                else np.full(len(square_sums), np.nan)
                for squares, block_count in sides
            ]
            differences[:, :, code] = (
                group_means[:, code] - rest_mean,
                np.sqrt(error_variances[0] + error_variances[1]),
            )
        return differences


@dataclass(frozen=True)
class _StratifiedBlocks:
    """Sums of blocks, for differences within strata.

    Attributes:
        counts: (blocks,) number of values.
        sums: (blocks,) sum of the values minus the mean of all.
        block_strata: (blocks,) stratum codes.
        block_groups: (blocks,) group codes.
    """

    counts: Int64
    sums: Float64
    block_strata: Int64
    block_groups: Int64

    def compute_group_differences_and_errors(self, permutation: Int64) -> Float64:
        """Compute the differences of all groups after each permutation of the blocks.

        Returns:
            (2, rows, groups) differences and standard errors.
        """
        relabelled = _relabel_blocks(permutation, self.block_groups)
        return np.stack(
            [
                self.compute_member_differences_and_errors(relabelled == code)
                for code in range(self.block_groups.max() + 1)
            ],
            2,
        )

    def compute_member_differences_and_errors(self, is_member: NDArray[np.bool_]) -> Float64:
        """Compute the mean of the member blocks minus that of the others, averaged over strata.

        Only strata with members and others count.

        Args:
            is_member: (rows, blocks).

        Returns:
            (2, rows) differences and standard errors over strata; NaN error if only one stratum
                counts.
        """
        order = np.argsort(self.block_strata, kind="stable")
        starts = np.unique(self.block_strata[order], return_index=True)[1]

        def sum_by_stratum(block_values: NDArray[Any]) -> NDArray[Any]:  # (rows, strata)
            return np.add.reduceat(block_values[:, order], starts, axis=1)

        counts, sums = sum_by_stratum(self.counts[None]), sum_by_stratum(self.sums[None])
        member_counts = sum_by_stratum(is_member * self.counts)
        member_sums = sum_by_stratum(is_member * self.sums)
        # Labels are permuted within strata, so the first row is valid for all rows.
        has_both = ((member_counts > 0) & (member_counts < counts))[0]
        member_counts, member_sums, counts, sums = (
            stratum_values[:, has_both]
            for stratum_values in (member_counts, member_sums, counts, sums)
        )
        if not has_both.any():
            return np.full((2, len(is_member)), np.nan)
        other_means = (sums - member_sums) / (counts - member_counts)
        stratum_differences = member_sums / member_counts - other_means
        value = stratum_differences.mean(1)
        standard_error = (
            np.sqrt(((stratum_differences - value[:, None]) ** 2).sum(1)) / has_both.sum()
        )
        return np.stack(
            [value, standard_error if has_both.sum() > 1 else np.full(len(value), np.nan)]
        )
