"""p-values corrected for many comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979). A NaN stays NaN and does not count."""
    corrected = [math.nan] * len(p_values)
    order = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    highest = 0.0
    for rank, (p, index) in enumerate(order):
        highest = max(highest, min(1.0, p * (len(order) - rank)))
        corrected[index] = highest
    return corrected


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """p-values as the share of false ones among all that are as small (Benjamini & Hochberg
    1995)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)[::-1]  # the largest first
    rank = np.arange(len(p), 0, -1)
    found = np.empty(len(p))
    found[order] = np.minimum.accumulate(np.minimum(1.0, p[order] * len(p) / rank))
    return [float(value) for value in found]
