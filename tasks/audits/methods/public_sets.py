"""Count rows of public or user-supplied sets that need a remark: repeated, contradictory, unknown.

Such rows stay in the audit, because a published score includes them. The counts are findings, so a
card shows them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence

from hallmark.tasks.audits.audit_tables import RequestBuilder

REPEATED, CONFLICTING, UNKNOWN_GROUP = (
    "repeated_items",
    "conflicting_items",
    "items_of_unknown_groups",
)

#: Titles of the counts.
REPEAT_TITLES = {REPEATED: "Repeated items", CONFLICTING: "Conflicting items"}
REMARK_TITLES = {**REPEAT_TITLES, UNKNOWN_GROUP: "Items about unknown groups"}


def find_first_occurrences(contents: Iterable[Hashable]) -> list[int]:
    """Return for each content the index of its first occurrence."""
    first_index: dict[Hashable, int] = {}
    return [first_index.setdefault(content, index) for index, content in enumerate(contents)]


def record_repeated_items(
    requests: RequestBuilder, contents: Sequence[Hashable], statements: Sequence[Hashable]
) -> None:
    """Count items that repeat the texts of an earlier item, and those that contradict it.

    Args:
        requests: Receives the counts.
        contents: The texts of each item, whatever their roles.
        statements: What the set says of each item, such as which text is the stereotype.
    """
    repeated_count = conflicting_count = 0
    for index, first in enumerate(find_first_occurrences(contents)):
        if first != index:
            conflicting_count += statements[index] != statements[first]
            repeated_count += statements[index] == statements[first]
    if repeated_count:
        requests.record_skipped(
            REPEATED,
            "items with the same texts as an earlier item; identical rows are counted only once, "
            "and all other repeated items are assigned to the cluster or term of the earlier item",
            repeated_count,
        )
    if conflicting_count:
        requests.record_skipped(
            CONFLICTING,
            "items with the same texts as an earlier item but different labels, such as the "
            "opposite stereotype; both are counted, so they cancel each other out",
            conflicting_count,
        )


def record_unknown_groups(
    requests: RequestBuilder, groups: Iterable[str], known_groups: Collection[str]
) -> None:
    """Count items of groups that the published set does not have; they are used like all others."""
    unknown_groups = [group for group in groups if group not in known_groups]
    if unknown_groups:
        names = ", ".join(repr(name[:40]) for name in sorted({*unknown_groups})[:5])
        requests.record_skipped(
            UNKNOWN_GROUP,
            f"items about groups that are not in the published set, such as {names}; they are "
            "included like all other items",
            len(unknown_groups),
        )
