"""Tags: which part of what was asked a finding is about, and how its slice is spelled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SliceTags:
    """The tags that the slices of findings may have, as far as that is known without their values.

    Attributes:
        orders: The tags of a slice, each in the order in which it spells them; () is the whole.
        values: By tag, the values that are known before anything is asked.
        of_items: Tags whose values are those of the items' column of the same name.
    """

    tag_orders: tuple[tuple[str, ...], ...]
    known_values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    item_tags: tuple[str, ...] = ()


#: Tags whose values need no name in a slice, of which it has at most one.
UNNAMED_TAGS = ("part", "kind", "prompt_subset")

#: Of findings about all items alone.
OVERALL_ONLY = SliceTags(((),))


def format_slice_name(tags: Mapping[str, Any]) -> str:
    """The slice of a finding: "passage, copies=64". Tags of UNNAMED_TAGS have no name there."""
    return ", ".join(v if k in UNNAMED_TAGS else f"{k}={v}" for k, v in tags.items())


def parse_tags(finding_row: Mapping[str, Any]) -> dict[str, Any]:
    """Which part a row of FINDINGS, or of SKIPPED, is about, tag by tag."""
    return dict(json.loads(finding_row["tags"]))
