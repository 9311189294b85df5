"""How far two lists of values lie apart, in standard deviations of all of them: the d of WEAT
(Caliskan et al. 2017), with its permutation p."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hallmark.tasks.measures.detectable_effects import POWER
from hallmark.tasks.measures.estimates import Estimate
from hallmark.tasks.measures.statistics import Float64

#: So many ways to part the values are all tried.
MAX_EXACT_PERMUTATIONS = 100_000


def estimate_weat_effect_size(
    values: ArrayLike,
    in_first_list: ArrayLike,
    *,
    confidence_level: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
    unit: str = "items",
) -> Estimate:
    """d of those in the ``first`` list, (n,) bool, and the others, null 0.

    p is one-sided: the share of all ways to part the values into lists of these sizes whose d is at
    least as large; ``smallest`` is what such a test at 1 - level finds with power 0.8.

    The interval takes values for draws of two normal distributions of one spread: then d is a
    function of a noncentral t. Simulated, 95 % ones cover 93 to 97 % of the time for these, and
    whatever the distribution where there is nothing to find; for skewed lists of unlike spread that
    lie far apart 70 % only. A bootstrap of 8 and 8 covers 90 % even where there is nothing to find.
    """
    from scipy.special import nctdtrinc, stdtrit

    known_values, is_first = np.asarray(values, np.float64), np.asarray(in_first_list, bool)
    is_known = ~np.isnan(known_values)
    missing, known_values, is_first = (
        int((~is_known).sum()),
        known_values[is_known],
        is_first[is_known],
    )
    n, m = len(known_values), int(is_first.sum())

    def not_measured(reason: str) -> Estimate:
        return Estimate(np.nan, np.nan, np.nan, n, n, missing, f"not measured: {reason}", 0.0)

    if min(m, n - m) < 2:
        return not_measured(f"fewer than two {unit} in a list")
    effect_size = standardised_mean_difference(known_values, is_first)
    if np.isnan(effect_size):
        return not_measured(f"all {unit} have the same value")
    scale, degrees_of_freedom = (n / (m * (n - m))) ** 0.5, n - 2

    def effect_size_of_t(t_statistic: float) -> float:
        """d of lists of these sizes whose means are so many standard errors apart."""
        return float(t_statistic * scale * np.sqrt((n - 1) / (degrees_of_freedom + t_statistic**2)))

    detectable_effect = effect_size_of_t(
        float(stdtrit(degrees_of_freedom, confidence_level) + stdtrit(degrees_of_freedom, POWER))
    )
    p, method = permutation_test_p(known_values, is_first, draws, seed)
    means = known_values[is_first].mean(), known_values[~is_first].mean()
    within_squares = ((known_values - np.where(is_first, *means)) ** 2).sum()
    standard_error = float(np.sqrt(within_squares / degrees_of_freedom)) * scale
    low, high = np.nan, np.nan
    if standard_error > 1e-9 * abs(means[0] - means[1]):
        t_statistic = float(means[0] - means[1]) / standard_error
        tails = (1 + confidence_level) / 2, (1 - confidence_level) / 2
        low, high = (
            effect_size_of_t(float(nctdtrinc(degrees_of_freedom, tail, t_statistic)))
            for tail in tails
        )
        method += f"; interval of a noncentral t over {m} and {n - m} {unit}, as if normal"
    else:
        method += f"; no interval: all {unit} of a list have the same value"
    return Estimate(effect_size, low, high, n, n, missing, method, 0.0, p, detectable_effect)


def standardised_mean_difference(
    values: Float64, is_first: NDArray[np.bool_], ddof: int = 1
) -> float:
    """The distance of two means in standard deviations of all; NaN where these are none."""
    standard_deviation = float(values.std(ddof=ddof))
    mean_difference = float(values[is_first].mean() - values[~is_first].mean())
    return (
        np.nan
        if standard_deviation <= 1e-12 * float(np.abs(values).max())
        else mean_difference / standard_deviation
    )


def permutation_test_p(
    values: Float64, is_first: NDArray[np.bool_], draws: int, seed: int
) -> tuple[float, str]:
    """The share of the ways to choose as many values whose sum is at least that of the list: of all
    of them where they are few, else of draws, the given way counted with them."""
    n, m = len(values), int(is_first.sum())
    permutation_count = comb(n, m)
    # What rounding leaves between equal sums is no difference.
    sum_threshold = float(values[is_first].sum() - 1e-9 * np.abs(values).sum())
    if permutation_count <= MAX_EXACT_PERMUTATIONS:
        combination_rows = np.array([*combinations(range(n), m)])  # (ways, m)
        return float(
            (values[combination_rows].sum(1) >= sum_threshold).mean()
        ), f"exact one-sided p of {permutation_count:,} ways"
    drawn_rows = np.random.default_rng(seed).random((draws, n)).argsort(axis=1)[:, :m]
    hits = int((values[drawn_rows].sum(1) >= sum_threshold).sum())
    return (hits + 1) / (draws + 1), f"one-sided p of {draws:,} drawn ways"
