"""Describe how much of an effect remains after its source documents were removed.

A finding "went away" only if the rows of the removal experiment show it: the remaining effect may
be zero, is smaller than the effect before, and meets every criterion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def describe_remaining_effect(
    remaining_effect: Row, base_effect: Row, criteria: Sequence[Row], null_label: str
) -> tuple[str, str]:
    """Return a verb for an effect that fell, and the end of the sentence about what remains.

    Args:
        remaining_effect: The effect after the removal, with its interval.
        base_effect: The effect before the removal.
        criteria: The criteria that must be met, each with its verdict.
        null_label: The name of the units that have no effect.

    Returns:
        The verb ("fell", "went away" or "went away in part"), and the end of the sentence.
    """
    low, high = remaining_effect["low"], remaining_effect["high"]
    if low is None or high is None:
        return "fell", "; the remaining effect has no interval"
    if low > 0 and high >= base_effect["value"]:
        return "fell", "; the remaining effect may be as large as before"
    if low > 0:
        return "partly disappeared", ""
    sentence_end = "; the remaining effect may be zero"
    if high < 0:
        sentence_end = f"; it is below the null units ({null_label})"
    if high >= base_effect["value"]:
        return "fell", f"{sentence_end}, or as large as before"
    if any(criterion["verdict"] != "pass" for criterion in criteria):
        return "fell", f"{sentence_end}; not all criteria are met"
    return "disappeared", sentence_end
