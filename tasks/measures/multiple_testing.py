"""Correct p-values for multiple comparisons.

Scipy does not have Holm's method. Its false discovery rates agree with those here, but importing
``scipy.stats`` takes longer than most stages of a small corpus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def adjust_p_values_holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number (Holm 1979); NaN stays NaN and is not counted."""
    adjusted = [math.nan] * len(p_values)
    sorted_p_values = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    highest = 0.0
    for rank, (p, index) in enumerate(sorted_p_values):
        highest = max(highest, min(1.0, p * (len(sorted_p_values) - rank)))
        adjusted[index] = highest
    return adjusted


def compute_false_discovery_rates(p_values: Sequence[float]) -> list[float]:
    """Compute the false discovery rate q of each p-value (Benjamini & Hochberg 1995)."""
    rates, lowest = [1.0] * len(p_values), 1.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank in range(len(order), 0, -1):
        index = order[rank - 1]
        lowest = min(lowest, p_values[index] * len(order) / rank)
        rates[index] = lowest
    return rates
