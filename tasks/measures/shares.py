"""Tests and intervals of shares: exact of units of yes or no, by their score of clusters."""

from __future__ import annotations

import numpy as np


def clopper_pearson(successes: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share (Clopper & Pearson 1934)."""
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, tail))
    high = 1.0 if successes == n else float(betaincinv(successes + 1, n - successes, 1 - tail))
    return low, high


def binomial_p(successes: int, n: int, null: float) -> float:
    """Two-sided exact p: of all counts that are no likelier than this one."""
    from scipy.special import gammaln, xlog1py, xlogy

    if np.isnan(null):
        return np.nan
    k = np.arange(n + 1)
    log = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    chance = np.exp(log + xlogy(k, null) + xlog1py(n - k, -null))
    return float(min(1.0, chance[chance <= chance[successes] * (1 + 1e-7)].sum()))


def score_p(share: float, null: float, each: float, freedom: float) -> float:
    """Two-sided p of a share by its score, as Wilson's interval of ``freedom`` has it. ``each``: p
    (1 - p) times it is the variance of a share p."""
    from scipy.special import stdtr

    if np.isnan(null):
        return np.nan
    error = (null * (1 - null) * each) ** 0.5
    if not error:  # of a share of 0 or 1 nothing varies
        return float(share == null)
    return float(2 * stdtr(freedom, -abs(share - null) / error))
