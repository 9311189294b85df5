"""Conclude from the ``group_sentiment`` table which groups sentences are more negative about.

The datasheet uses this module too, so it imports no scorer: another version of a scorer must not
make cards stale that only show its results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hallmark.tasks.measures.estimates import MIN_CLUSTERS

#: A group's sentences are more negative than those about others if q is below this.
SIGNIFICANCE_LEVEL = 0.05

#: Why a group has no interval.
NO_OTHER_GROUP = "no interval: none of the scored sentences is about another group of the same kind"
TOO_FEW_CLUSTERS = f"no interval: fewer than {MIN_CLUSTERS} clusters contain sentences about {{}}"

THE_GROUP, OTHER_GROUPS = "the group", "other groups of the same kind"


def has_too_few_sentences(row: Mapping[str, Any]) -> bool:
    """Return whether a row of ``group_sentiment`` lacks an interval for want of sentences."""
    few_about_group, few_about_others = (
        TOO_FEW_CLUSTERS.format(group) for group in (THE_GROUP, OTHER_GROUPS)
    )
    return row["method"] in (NO_OTHER_GROUP, few_about_group, few_about_others)


def is_more_negative(row: Mapping[str, Any]) -> bool:
    """Return whether the sentences about a group are more negative than those about others.

    Args:
        row: A row of the ``group_sentiment`` table. Its q must be below the level and its whole
            interval below 0.
    """
    return row["q"] is not None and row["q"] < SIGNIFICANCE_LEVEL and row["high"] < 0
