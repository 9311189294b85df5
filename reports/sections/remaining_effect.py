"""Describe how much of an effect remains after its source documents were removed.

A finding "disappeared" only if the rows of the removal experiment show it: the remaining effect may
be zero, is smaller than the effect before, and meets every criterion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hallmark.tasks.contract import Row


class EffectDescription(NamedTuple):
    """The words of a sentence about an effect that fell.

    Attributes:
        verb: "fell", "disappeared" or "partly disappeared".
        sentence_end: What is known about the remaining effect; it begins with a semicolon, or is
            empty.
    """

    verb: str
    sentence_end: str


def describe_remaining_effect(
    remaining_effect: Row, base_effect: Row, criteria: Sequence[Row], null_units_phrase: str
) -> EffectDescription:
    """Describe an effect that fell, by what remains of it.

    Args:
        remaining_effect: The effect after the removal, with its interval.
        base_effect: The effect before the removal.
        criteria: The criteria that must be met, each with its verdict.
        null_units_phrase: The units that have no effect, as a sentence names them.
    """
    low, high = remaining_effect["low"], remaining_effect["high"]
    if low is None or high is None:
        return EffectDescription("fell", "; the remaining effect has no interval")
    if low > 0 and high >= base_effect["value"]:
        return EffectDescription(
            "fell", "; the remaining effect may be as large as before the removal"
        )
    if low > 0:
        return EffectDescription("partly disappeared", "")
    sentence_end = "; the remaining effect may be zero"
    if high < 0:
        sentence_end = f"; it is below the value for {null_units_phrase}"
    if high >= base_effect["value"]:
        return EffectDescription("fell", f"{sentence_end}, or as large as before the removal")
    if any(criterion["verdict"] != "pass" for criterion in criteria):
        return EffectDescription("fell", f"{sentence_end}; not all criteria are met")
    return EffectDescription("disappeared", sentence_end)
