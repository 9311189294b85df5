"""Correct p-values for multiple comparisons by Holm's method, which scipy does not have."""

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
