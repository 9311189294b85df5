"""Choose the rows of limited tables of cards; no limit applies to groups of people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from hallmark.tasks.contract import Row

Shown = TypeVar("Shown")


class LimitedSelection(NamedTuple, Generic[Shown]):
    """What a limited table shows.

    Attributes:
        shown: The values or rows that it shows.
        omission_note: A sentence on those that it does not show; empty if it shows all.
    """

    shown: list[Shown]
    omission_note: str


#: Describes the rows that ``select_first_rows_and_all_group_rows`` returns.
SELECTION_NOTE = (
    "the {} and all rows about groups of people and dialects; the other rows are in the "
    "removal_rates table"
)


def select_first_rows_and_all_group_rows(rows: Sequence[Row], limit: int) -> list[Row]:
    """Return the first ``limit`` rows, and all further rows about groups of people or dialects."""
    group_dimensions = ("identity", "dialect")
    return [
        row
        for index, row in enumerate(rows)
        if index < limit or row["dimension"] in group_dimensions
    ]


def select_first_pairs_covering_all_groups(rows: Sequence[Row], limit: int) -> list[Row]:
    """Return the first ``limit`` pairs, and the first pair of each group that is not among them."""
    first_index_by_group: dict[str, int] = {}
    for index, row in enumerate(rows):
        first_index_by_group.setdefault(row["group_name"], index)
        first_index_by_group.setdefault(row["other_group"], index)
    return [
        row
        for position, row in enumerate(rows)
        if position < limit or position in first_index_by_group.values()
    ]
