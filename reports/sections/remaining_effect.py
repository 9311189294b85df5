"""What is left of an effect after the removal of its documents, in words.

A finding is said to have gone away only where the rows of the proof bear it: what is left may be
nothing, is less than the effect before, and reaches all that was set for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def describe_remaining_effect(
    remaining_effect: Row, base_effect: Row, criteria: Sequence[Row], null_label: str
) -> tuple[str, str]:
    """Say whether an effect that fell went away, and what its remainder may be.

    Args:
        left: The effect after the removal, with its interval.
        before: The effect before it.
        lines: What had to be reached, each with its verdict.
        nothing: The name of the units in which there is nothing to find.

    Returns:
        The verb, and the end of the sentence.
    """
    low, high = remaining_effect["low"], remaining_effect["high"]
    if low is None or high is None:
        return "fell", ", of which no interval is known"
    if low > 0 and high >= base_effect["value"]:
        return "fell", ", which may be as much as before"
    if low > 0:
        return "went away in part", ""
    sentence_end = ", which may be nothing"
    if high < 0:
        sentence_end = f", which is less than of those {null_label}"
    if high >= base_effect["value"]:
        return "fell", f"{sentence_end}, or as much as before"
    if any(criterion["verdict"] != "pass" for criterion in criteria):
        return "fell", f"{sentence_end}; not all that must be reached is reached"
    return "went away", sentence_end
