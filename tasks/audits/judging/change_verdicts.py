"""Name the verdicts on changes, and sort and count changes by them.

Cards read verdicts from tables, so this module imports no estimator: an edited estimator reruns the
stages that compare, and not the cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: What follows from a change.
ChangeVerdict = Literal[
    "worse", "better", "changed", "no change shown", "not tested", "no conclusion"
]

#: The verdicts of changes that were shown.
SHOWN_CHANGES: tuple[ChangeVerdict, ...] = ("worse", "better", "changed")


@dataclass(frozen=True)
class VerdictGroup:
    """Verdicts on changes that are counted together.

    Attributes:
        verdicts: The verdicts.
        singular: What is said of one such finding.
        plural: What is said of several, or of none.
    """

    verdicts: tuple[ChangeVerdict, ...]
    singular: str
    plural: str

    def format_predicate(self, count: int) -> str:
        return self.singular if count == 1 else self.plural


UNCHANGED = VerdictGroup(("no change shown",), "shows no change", "show no change")

#: All verdicts, in the order in which they are counted.
VERDICT_GROUPS = (
    VerdictGroup(("worse",), "got worse", "got worse"),
    VerdictGroup(("better",), "got better", "got better"),
    VerdictGroup(
        ("changed",),
        "changed in a direction that is neither better nor worse",
        "changed in a direction that is neither better nor worse",
    ),
    UNCHANGED,
    VerdictGroup(
        ("not tested", "no conclusion"),
        "was not tested or allows no conclusion",
        "were not tested or allow no conclusion",
    ),
)


def build_change_sort_key(
    verdict: ChangeVerdict, change: Mapping[str, Any] | None
) -> tuple[bool, float, float]:
    """Return a key that sorts what changed first: by p, then by the size of the change.

    The size of a change is measured in widths of its interval, so that units do not matter.
    """
    if change is None or change["p_corrected"] is None or change["value"] is None:
        return True, 2.0, 0.0
    width = 0.0
    if change["low"] is not None and change["high"] is not None:
        width = change["high"] - change["low"]
    size = abs(change["value"]) / width if width else abs(change["value"])
    return verdict not in SHOWN_CHANGES, change["p_corrected"], -size
