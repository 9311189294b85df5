"""The smallest effects that tests find: what an audit could have seen.

From the design and the null, not from what was found: an effect by chance would make itself
smaller.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from hallmark.tasks.measures.proportions import binomial_test_p
from hallmark.tasks.measures.statistics import Float64

POWER = 0.8

#: Fewer degrees of freedom tell too little of how clusters vary to say which share they would show.
MIN_DEGREES_OF_FREEDOM = 5


@cache
def detectable_standard_errors(
    degrees_of_freedom: int, confidence_level: float, error_degrees_of_freedom: int = 0
) -> float:
    """How many standard errors an effect must be away for a two-sided t test to find it with power
    0.8. ``stated``: the degrees of freedom from which the error is estimated that it is stated in,
    0 where that is known; then the power is 0.8 on average over such estimates, which of few
    clusters are often too small."""
    from scipy.optimize import brentq
    from scipy.special import gammaincinv, ndtr, stdtrit

    def error_ratio_quantiles(degrees_of_freedom: int) -> Float64:
        """Quantiles of an estimated error over the true one."""
        midpoints = (np.arange(400) + 0.5) / 400
        return np.sqrt(gammaincinv(degrees_of_freedom / 2, midpoints) * 2 / degrees_of_freedom)

    critical_values = (
        float(stdtrit(degrees_of_freedom, (1 + confidence_level) / 2))
        * error_ratio_quantiles(degrees_of_freedom)[:, None]
    )
    error_ratios = (
        error_ratio_quantiles(error_degrees_of_freedom) if error_degrees_of_freedom else np.ones(1)
    )
    return float(
        brentq(
            lambda standard_errors: (
                ndtr(standard_errors * error_ratios - critical_values).mean() - POWER
            ),
            0.0,
            1e3,
            xtol=1e-12,
        )
    )


def detectable_share_effect(
    variance_factor: float, degrees_of_freedom: int, null_share: float, confidence_level: float
) -> float:
    """The distance from the null that the score test of a share finds with power 0.8, the larger of
    those to either side; NaN where none is. ``each``: p (1 - p) times it is the variance of a share
    p, as in values that were seen, with what clusters hold alike (the design effect, Kish 1965).
    The test has the error of the null, and what varies that of the share that is to be found."""
    from scipy.special import ndtri

    if np.isnan(null_share) or degrees_of_freedom < MIN_DEGREES_OF_FREEDOM:
        return np.nan
    folded_null, power_quantile = min(null_share, 1 - null_share), float(ndtri(POWER))
    detection_bound = (
        detectable_standard_errors(degrees_of_freedom, confidence_level, degrees_of_freedom)
        - power_quantile
    ) * (folded_null * (1 - folded_null) * variance_factor) ** 0.5
    if detection_bound >= 1 - folded_null:
        return np.nan
    # (s - bound)^2 = varies (low + s) (1 - low - s), the larger root
    scaled_variance = power_quantile**2 * variance_factor
    linear_term = 2 * detection_bound + scaled_variance * (1 - 2 * folded_null)
    discriminant_root = np.sqrt(
        linear_term**2
        + 4
        * (1 + scaled_variance)
        * (scaled_variance * folded_null * (1 - folded_null) - detection_bound**2)
    )
    return float((linear_term + discriminant_root) / (2 * (1 + scaled_variance)))


def detectable_binomial_effect(trials: int, null_share: float, confidence_level: float) -> float:
    """The same of the exact test: from it on at least 0.8 of all counts are too unlikely under the
    null. NaN where none is: too few units."""
    from scipy.special import gammaln, xlog1py, xlogy

    if np.isnan(null_share):
        return np.nan
    folded_null = min(null_share, 1 - null_share)
    k = np.arange(trials + 1)
    rejects_null = (
        np.array([binomial_test_p(int(count), trials, folded_null) for count in k])
        < 1 - confidence_level
    )
    log_coefficients = gammaln(trials + 1) - gammaln(k + 1) - gammaln(trials - k + 1)
    low_share, high_share = folded_null, 1.0
    if not rejects_null[-1]:
        return np.nan
    for _ in range(40):
        share = (low_share + high_share) / 2
        power = np.exp(log_coefficients + xlogy(k, share) + xlog1py(trials - k, -share))[
            rejects_null
        ].sum()
        low_share, high_share = (low_share, share) if power >= POWER else (share, high_share)
    return float(high_share - folded_null)


def detectable_auc_effect(member_count: int, nonmember_count: int, critical_effect: float) -> float:
    """How far above one half the area must be for that of m and n to be above ``bound`` with power
    0.8. The larger it is the less it varies (Hanley & McNeil 1982, equation 2)."""
    from scipy.special import ndtri

    low, high = 0.0, 0.5
    for _ in range(40):
        effect = (low + high) / 2
        area = 0.5 + effect
        member_term = (member_count - 1) * (area / (2 - area) - area**2)
        nonmember_term = (nonmember_count - 1) * (2 * area**2 / (1 + area) - area**2)
        standard_error = (
            (area * (1 - area) + member_term + nonmember_term) / (member_count * nonmember_count)
        ) ** 0.5
        is_detectable = effect >= critical_effect + float(ndtri(POWER)) * standard_error
        low, high = (low, effect) if is_detectable else (effect, high)
    return high
