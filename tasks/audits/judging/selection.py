"""Correct the interval of a finding that is shown because it is the worst of several.

The worst of several parts is likely to look worse than it is. Intervals of all parts that hold at
the same time (Bonferroni) also hold for whichever part is chosen by its result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hallmark.tasks.audits.judging.conclusions import UNIT_RANGES


def correct_interval_for_choice(
    finding: Mapping[str, Any], part_count: int
) -> tuple[float, float] | None:
    """Widen an interval so that it holds for the worst of ``part_count`` parts.

    Each side is stretched by the ratio of two critical values of Student's t, that for the level
    corrected by Bonferroni and the usual one. If the value is an end of the range, such as 0 of 20,
    the error is binomial and has a longer tail, so the ratio is that of the logarithms of the error
    probabilities, as in the exact interval of a share.

    Args:
        finding: Value, interval, level, clusters, n and unit of the finding.
        part_count: Number of parts among which it was chosen.

    Returns:
        The ends of the interval, within the range of a share; None if there is no interval.
    """
    value, low, high = (finding[name] for name in ("value", "low", "high"))
    if None in (value, low, high):
        return None
    maximum = _find_maximum(finding)
    error = 1 - (finding["confidence_level"] or 0.95)
    ratio = _divide_critical_values(error, part_count, finding["clusters"] or finding["n"])
    if maximum is not None and value in (0.0, maximum):
        ratio = max(ratio, math.log(2 * part_count / error) / math.log(2 / error))
    corrected_low, corrected_high = value - (value - low) * ratio, value + (high - value) * ratio
    if maximum is None:
        return corrected_low, corrected_high
    return max(0.0, corrected_low), min(maximum, corrected_high)


def correct_ratio_interval_for_choice(
    ratio: float, low: float | None, high: float | None, part_count: int
) -> tuple[float | None, float | None]:
    """Widen the interval of a ratio of rates so that it holds for the highest of several.

    The ends are stretched on the logarithmic scale. An unknown or infinite end stays as it is.
    """
    stretch = _divide_critical_values(0.05, part_count, 1_000_000)

    def stretch_end(end: float | None) -> float | None:
        return ratio * (end / ratio) ** stretch if end and ratio else end

    return stretch_end(low), stretch_end(high)


def _divide_critical_values(error: float, part_count: int, unit_count: int) -> float:
    from scipy.special import stdtrit

    degrees_of_freedom = max(1, unit_count - 1)
    corrected, usual = (
        float(stdtrit(degrees_of_freedom, 1 - error / (2 * count))) for count in (part_count, 1)
    )
    return corrected / usual


def _find_maximum(finding: Mapping[str, Any]) -> float | None:
    """Return the largest possible value if the finding is a share of something; otherwise None."""
    maximum = UNIT_RANGES.get(finding["unit"])
    if finding["unit"] not in ("share", "percent", "probability") or maximum is None:
        return None
    is_within_range = finding["low"] >= 0 and finding["high"] <= maximum
    return maximum if is_within_range else None
