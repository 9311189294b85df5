"""Compute exact and score tests and intervals of shares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def clopper_pearson_interval(
    successes: float, trials: float, confidence_level: float = 0.95
) -> tuple[float, float]:
    """Compute the exact interval of a share (Clopper & Pearson 1934)."""
    from scipy.special import betaincinv

    tail = (1 - confidence_level) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, tail))
    high = (
        1.0
        if successes == trials
        else float(betaincinv(successes + 1, trials - successes, 1 - tail))
    )
    return low, high


def binomial_probabilities(trials: int, share: float) -> NDArray[np.float64]:
    """Compute the probabilities of 0 to `trials` successes, (trials + 1,)."""
    from scipy.special import gammaln, xlog1py, xlogy

    k = np.arange(trials + 1)
    log_coefficients = gammaln(trials + 1) - gammaln(k + 1) - gammaln(trials - k + 1)
    probabilities: NDArray[np.float64] = np.exp(
        log_coefficients + xlogy(k, share) + xlog1py(trials - k, -share)
    )
    return probabilities


def binomial_test_p(successes: int, trials: int, null_share: float) -> float:
    """Compute the two-sided exact p: twice the probability of the smaller tail.

    It is below 1 - level exactly if the Clopper-Pearson interval of this level excludes the null
    share. NaN if there is no null.
    """
    if np.isnan(null_share):
        return np.nan
    return min(
        double_lower_tail_probability(successes, trials, null_share),
        double_lower_tail_probability(trials - successes, trials, 1 - null_share),
    )


def binomial_test_p_above(successes: int, trials: int, null_share: float) -> float:
    """Compute the one-sided exact p: the probability of at least as many successes.

    NaN if there is no null.
    """
    if np.isnan(null_share):
        return np.nan
    return float(min(1.0, binomial_probabilities(trials, null_share)[successes:].sum()))


def double_lower_tail_probability(successes: float, trials: float, null_share: float) -> float:
    """Compute twice the probability of at most this many successes, at most 1.

    Args:
        successes: May be fractional: the sum of shares of several trials.
        trials: Number of trials.
        null_share: Probability of a success.
    """
    from scipy.special import betaincc

    if successes >= trials:
        return 1.0
    return float(min(1.0, 2 * betaincc(successes + 1, trials - successes, null_share)))


def score_test_p(
    share: float, null_share: float, variance_factor: float, degrees_of_freedom: float
) -> float:
    """Compute the two-sided p of a share by the score test that matches Wilson's interval.

    Args:
        share: Observed share.
        null_share: Share under the null; NaN if there is none, then p is NaN.
        variance_factor: The variance of a share p is p (1 - p) times this factor.
        degrees_of_freedom: Of Student's t.
    """
    from scipy.special import stdtr

    if np.isnan(null_share):
        return np.nan
    standard_error = (null_share * (1 - null_share) * variance_factor) ** 0.5
    if not standard_error:  # A null of 0 or 1 allows no other observed share.
        return float(share == null_share)
    return float(2 * stdtr(degrees_of_freedom, -abs(share - null_share) / standard_error))
