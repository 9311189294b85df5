"""Compute one-sided p values in the direction in which a finding is harmful.

The direction is ``worse_when`` of the finding. A difference in the other direction is no harm, so
it must not count as a discovery of an audit.
"""

from __future__ import annotations

import math
from typing import Literal

#: The values of the ``worse_when`` column of findings.
Direction = Literal["", "up", "down", "away_from_null"]


def compute_harm_p(
    p: float, value: float, null_value: float, worse_when: Direction, p_above_null: float = math.nan
) -> float:
    """Compute the p of a finding against the alternative that its value is worse than the null.

    Args:
        p: Two-sided p.
        value: The value.
        null_value: The value if there is nothing to find.
        worse_when: Which direction is worse.
        p_above_null: Exact one-sided p of a value above the null; NaN: half of the two-sided p,
            which is exact for symmetric tests.

    Returns:
        For a metric that is worse away from the null value, the two-sided p, since both sides are
        harmful. NaN without a direction, a test or a null value.
    """
    if not worse_when or any(map(math.isnan, (p, value, null_value))):
        return math.nan
    if worse_when == "away_from_null":
        return p
    if worse_when == "up" and not math.isnan(p_above_null):
        return p_above_null
    is_harmful_side = value > null_value if worse_when == "up" else value < null_value
    return p / 2 if is_harmful_side else 1 - p / 2
