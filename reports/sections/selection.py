"""Which rows a limited table of the datasheet shows: no limit applies to groups of people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]

#: Says which rows ``with_all_groups`` chose.
CHOSEN = "the {} and all groups and dialects; the others are in the table rates"


def with_all_groups(rows: Sequence[Row], limit: int) -> list[Row]:
    """Return the first ``limit`` rows, and all others about groups of people or dialects."""
    people = ("identity", "dialect")
    return [row for n, row in enumerate(rows) if n < limit or row["dimension"] in people]


def pairs_of_every_group(rows: Sequence[Row], limit: int) -> list[Row]:
    """Return the first ``limit`` pairs, and the first pair of each group that has none there."""
    first: dict[str, int] = {}
    for number, row in enumerate(rows):
        first.setdefault(row["group"], number)
        first.setdefault(row["other"], number)
    return [row for n, row in enumerate(rows) if n < limit or n in first.values()]
