"""Define the tags of slices, and format them as the slice names of findings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SliceTags:
    """Declare the tags that the slices of findings may have.

    Attributes:
        tag_orders: The tags of each kind of slice, in the order of its name; () is the whole.
        known_values: The values of a tag that are known in advance.
        item_tags: Tags whose values are those of the item column of the same name.
    """

    tag_orders: tuple[tuple[str, ...], ...]
    known_values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    item_tags: tuple[str, ...] = ()


#: Tags that a slice name shows without their names; a slice has at most one of them.
UNNAMED_TAGS = ("part", "kind", "prompt_subset")

#: The tags of a metric that has no slices.
OVERALL_ONLY = SliceTags(((),))


def format_slice_name(tags: Mapping[str, Any]) -> str:
    """Format tags as the slice of a finding: "passage, copies=64"."""
    return ", ".join(v if k in UNNAMED_TAGS else f"{k}={v}" for k, v in tags.items())


def parse_tags(finding_row: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the tags of a row of FINDINGS or SKIPPED."""
    return dict(json.loads(finding_row["tags"]))
