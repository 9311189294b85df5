"""Compute minimum detectable effects: the smallest effects that a test finds with power 0.8.

They follow from the design and the null, not from the observed effect: an effect that is observed
by chance would otherwise make itself easier to detect.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from hallmark.tasks.measures.proportions import binomial_probabilities
from hallmark.tasks.measures.statistics import Float64

POWER = 0.8

#: With fewer degrees of freedom the variance of clusters is too uncertain for shares.
MIN_DEGREES_OF_FREEDOM = 5


@cache
def detectable_standard_errors(
    degrees_of_freedom: int,
    confidence_level: float,
    error_degrees_of_freedom: int = 0,
    widening: float = 0.0,
) -> float:
    """Compute how large an effect a two-sided t test finds with power 0.8, in standard errors.

    Args:
        degrees_of_freedom: Of the t test.
        confidence_level: 1 minus the significance level of the test.
        error_degrees_of_freedom: Degrees of freedom of the estimated standard error in which the
            effect is expressed; 0 if the error is known. The power is then 0.8 on average over such
            estimates, which are often too small if there are few clusters.
        widening: Standard deviation of the widening of an interval for the skewness that normal
            values have by chance, in standard errors; half of the intervals are widened at the end
            in question.
    """
    from scipy.optimize import brentq
    from scipy.special import gammaincinv, ndtr, ndtri, stdtrit

    quantile_count = 60 if widening else 400

    def error_ratio_quantiles(degrees_of_freedom: int) -> Float64:
        """Return quantiles of the ratio of an estimated error to the true one."""
        midpoints = (np.arange(quantile_count) + 0.5) / quantile_count
        quantiles: Float64 = np.sqrt(
            gammaincinv(degrees_of_freedom / 2, midpoints) * 2 / degrees_of_freedom
        )
        return quantiles

    # Critical values (quantiles, 1, 10) for each error ratio and widening.
    widenings = widening * np.maximum(0, ndtri((np.arange(10) + 0.5) / 10))
    critical_values = error_ratio_quantiles(degrees_of_freedom)[:, None, None] * (
        float(stdtrit(degrees_of_freedom, (1 + confidence_level) / 2))
        + (widenings if widening else np.zeros(1))
    )
    error_ratios = (
        error_ratio_quantiles(error_degrees_of_freedom) if error_degrees_of_freedom else np.ones(1)
    )[:, None]
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
    variance_factor: float,
    degrees_of_freedom: int,
    null_share: float,
    confidence_level: float,
    widening: float = 0.0,
) -> float:
    """Compute how far a share must be from the null for the score test to find it with power 0.8.

    The test uses the standard error under the null; the observed share varies with the error of the
    true share.

    Args:
        variance_factor: The variance of a share p is p (1 - p) times this factor. It comes from the
            observed values and includes the design effect of clusters (Kish 1965).
        degrees_of_freedom: Of the test.
        null_share: Share under the null; NaN if there is none.
        confidence_level: 1 minus the significance level of the test.
        widening: As for ``detectable_standard_errors``.

    Returns:
        The larger of the distances to either side; NaN if no share is far enough away, if there is
            no null, or if there are fewer than MIN_DEGREES_OF_FREEDOM.
    """
    from scipy.special import ndtri

    if np.isnan(null_share) or degrees_of_freedom < MIN_DEGREES_OF_FREEDOM:
        return np.nan
    folded_null, power_quantile = min(null_share, 1 - null_share), float(ndtri(POWER))
    detection_bound = (
        detectable_standard_errors(
            degrees_of_freedom, confidence_level, degrees_of_freedom, widening
        )
        - power_quantile
    ) * (folded_null * (1 - folded_null) * variance_factor) ** 0.5
    if detection_bound >= 1 - folded_null:
        return np.nan
    # The larger root s of (s - bound)^2 = scaled_variance (null + s) (1 - null - s).
    scaled_variance = power_quantile**2 * variance_factor
    linear_term = 2 * detection_bound + scaled_variance * (1 - 2 * folded_null)
    discriminant_root = np.sqrt(
        linear_term**2
        + 4
        * (1 + scaled_variance)
        * (scaled_variance * folded_null * (1 - folded_null) - detection_bound**2)
    )
    return float((linear_term + discriminant_root) / (2 * (1 + scaled_variance)))


@cache
def detectable_binomial_effect(trials: int, null_share: float, confidence_level: float) -> float:
    """Compute how far a share must be from the null for the exact test to find it with power 0.8.

    NaN if there is no null or if there are too few trials to ever reject it.
    """
    from scipy.optimize import brentq

    if np.isnan(null_share):
        return np.nan
    folded_null = min(null_share, 1 - null_share)
    probabilities = binomial_probabilities(trials, folded_null)
    smaller_tails = np.minimum(np.cumsum(probabilities), np.cumsum(probabilities[::-1])[::-1])
    rejects_null = 2 * smaller_tails < 1 - confidence_level
    if not rejects_null[-1]:
        return np.nan
    detectable_share = brentq(
        lambda share: binomial_probabilities(trials, share)[rejects_null].sum() - POWER,
        folded_null,
        1.0,
    )
    return float(detectable_share - folded_null)


def compute_normal_auc_variance(
    areas: Float64, member_count: float, nonmember_count: float
) -> Float64:
    """Compute the variance of areas under the ROC curve of normal values of equal spreads.

    For 1/2, the variance is that of the test of Mann & Whitney (1947), for any distribution.

    Args:
        areas: True areas, of any shape.
        member_count: Number of independent members.
        nonmember_count: Number of other independent items.
    """
    from scipy.special import ndtri, owens_t

    # Probability that two members are above one nonmember, or one member above two.
    both_above = areas - 2 * owens_t(ndtri(areas), 3**-0.5)
    pair_variances = areas * (1 - areas)
    covariances = np.maximum(both_above - areas**2, 0)  # Rounding errors may be below 0.
    variances: Float64 = (pair_variances + (member_count + nonmember_count - 2) * covariances) / (
        member_count * nonmember_count
    )
    return variances


@cache
def detectable_auc_effect(
    member_count: float, nonmember_count: float, confidence_level: float
) -> float:
    """Compute how far above 1/2 an area under the ROC curve must be to be found with power 0.8.

    The test is the score test of a share. The variance decreases with the area, as for two normal
    distributions with the same spread.

    Args:
        member_count: Number of independent members.
        nonmember_count: Number of other independent items.
        confidence_level: 1 minus the significance level of the test.

    Returns:
        The distance from 1/2, at most 1/2.
    """
    from scipy.special import ndtri

    counts = np.array([member_count, nonmember_count])
    degrees_of_freedom = max(1, round((1 / counts).sum() ** 2 / (counts**-2 / (counts - 1)).sum()))
    areas = np.linspace(0.5, 1, 2000, endpoint=False)
    standard_errors = np.sqrt(compute_normal_auc_variance(areas, member_count, nonmember_count))
    logits, logit_errors = np.log(areas / (1 - areas)), standard_errors / (areas * (1 - areas))
    power_quantile = float(ndtri(POWER))
    critical_value = (
        detectable_standard_errors(degrees_of_freedom, confidence_level) - power_quantile
    )
    is_significant = 2 * (areas - 0.5) * (areas * (1 - areas)) ** 0.5 > (
        critical_value * standard_errors
    )
    if not is_significant.any():
        return 0.5
    critical_logit = logits[is_significant.argmax()]
    is_found = logits - critical_logit > power_quantile * logit_errors
    return float(areas[is_found.argmax()] - 0.5) if is_found.any() else 0.5
