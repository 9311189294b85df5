"""The smallest effects that tests find: what an audit could have seen.

From the design and the null, not from what was found: an effect by chance would make itself
smaller.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from tasks.measures.shares import binomial_p
from tasks.measures.statistics import Float64

POWER = 0.8

#: Fewer degrees of freedom tell too little of how clusters vary to say which share they would show.
FEWEST = 5


@cache
def reach(freedom: int, level: float, stated: int = 0) -> float:
    """How many standard errors an effect must be away for a two-sided t test to find it with power
    0.8. ``stated``: the degrees of freedom from which the error is estimated that it is stated in,
    0 where that is known; then the power is 0.8 on average over such estimates, which of few
    clusters are often too small."""
    from scipy.optimize import brentq
    from scipy.special import gammaincinv, ndtr, stdtrit

    def errors(freedom: int) -> Float64:
        """Quantiles of an estimated error over the true one."""
        middle = (np.arange(400) + 0.5) / 400
        return np.sqrt(gammaincinv(freedom / 2, middle) * 2 / freedom)

    bound = float(stdtrit(freedom, (1 + level) / 2)) * errors(freedom)[:, None]
    size = errors(stated) if stated else np.ones(1)
    return float(
        brentq(lambda many: ndtr(many * size - bound).mean() - POWER, 0.0, 1e3, xtol=1e-12)
    )


def share_effect(each: float, freedom: int, null: float, level: float) -> float:
    """The distance from the null that the score test of a share finds with power 0.8, the larger of
    those to either side; NaN where none is. ``each``: p (1 - p) times it is the variance of a share
    p, as in values that were seen, with what clusters hold alike (the design effect, Kish 1965).
    The test has the error of the null, and what varies that of the share that is to be found."""
    from scipy.special import ndtri

    if np.isnan(null) or freedom < FEWEST:
        return np.nan
    low, power = min(null, 1 - null), float(ndtri(POWER))
    bound = (reach(freedom, level, freedom) - power) * (low * (1 - low) * each) ** 0.5
    if bound >= 1 - low:
        return np.nan
    # (s - bound)^2 = varies (low + s) (1 - low - s), the larger root
    varies = power**2 * each
    middle = 2 * bound + varies * (1 - 2 * low)
    root = np.sqrt(middle**2 + 4 * (1 + varies) * (varies * low * (1 - low) - bound**2))
    return float((middle + root) / (2 * (1 + varies)))


def binomial_effect(n: int, null: float, level: float) -> float:
    """The same of the exact test: from it on at least 0.8 of all counts are too unlikely under the
    null. NaN where none is: too few units."""
    from scipy.special import gammaln, xlog1py, xlogy

    if np.isnan(null):
        return np.nan
    low = min(null, 1 - null)
    k = np.arange(n + 1)
    found = np.array([binomial_p(int(count), n, low) for count in k]) < 1 - level
    log = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    nearest, furthest = low, 1.0
    if not found[-1]:
        return np.nan
    for _ in range(40):
        share = (nearest + furthest) / 2
        power = np.exp(log + xlogy(k, share) + xlog1py(n - k, -share))[found].sum()
        nearest, furthest = (nearest, share) if power >= POWER else (share, furthest)
    return float(furthest - low)


def area_effect(m: int, n: int, bound: float) -> float:
    """How far above one half the area must be for that of m and n to be above ``bound`` with power
    0.8. The larger it is the less it varies (Hanley & McNeil 1982, equation 2)."""
    from scipy.special import ndtri

    low, high = 0.0, 0.5
    for _ in range(40):
        effect = (low + high) / 2
        area = 0.5 + effect
        own = (m - 1) * (area / (2 - area) - area**2)
        other = (n - 1) * (2 * area**2 / (1 + area) - area**2)
        error = ((area * (1 - area) + own + other) / (m * n)) ** 0.5
        enough = effect >= bound + float(ndtri(POWER)) * error
        low, high = (low, effect) if enough else (effect, high)
    return high
