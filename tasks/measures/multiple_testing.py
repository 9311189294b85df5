"""p-values corrected for many comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def adjust_p_values_holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979). A NaN stays NaN and does not count."""
    adjusted = [math.nan] * len(p_values)
    sorted_p_values = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    highest = 0.0
    for rank, (p, index) in enumerate(sorted_p_values):
        highest = max(highest, min(1.0, p * (len(sorted_p_values) - rank)))
        adjusted[index] = highest
    return adjusted


def adjust_p_values_fdr(p_values: Sequence[float]) -> list[float]:
    """p-values as the share of false ones among all that are as small (Benjamini & Hochberg
    1995)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)[::-1]  # the largest first
    ranks = np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum.accumulate(np.minimum(1.0, p[order] * len(p) / ranks))
    return [float(value) for value in adjusted]
