"""Define the tags of slices: the names and values that distinguish the findings of a metric."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

#: Arrow type of a slice: the name and the value of each of its tags.
SLICE_TYPE = pa.map_(pa.string(), pa.string())


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


#: Tags that the name of a slice shows without their names; a slice has at most one of them.
UNNAMED_TAGS = ("part", "kind", "prompt_subset")

#: Values of tags that mean yes or no.
YES_NO_VALUES = {"True": "yes", "False": "no", "yes": "yes", "no": "no"}

#: The tags of a metric that has no slices.
OVERALL_ONLY = SliceTags(((),))


def tags_to_slice(tags: Mapping[str, Any]) -> dict[str, str]:
    """Convert tags with values of any type to a slice, as tables and policies have it."""
    return {name: str(value) for name, value in tags.items()}


def name_slice(slice_tags: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """Return the name of a slice at the command line: "passage, copies=64"; empty for the whole."""
    tags = dict(slice_tags).items()
    return ", ".join(value if name in UNNAMED_TAGS else f"{name}={value}" for name, value in tags)


def label_part(tags: Mapping[str, Any]) -> str:
    """Return the values of tags in words, for pages: "passage, copies 64"; empty without tags.

    The value has the name of its tag if it says nothing alone, as a number does.
    """
    return ", ".join(_label_tag(name.replace("_", " "), str(value)) for name, value in tags.items())


def _label_tag(tag_words: str, value: str) -> str:
    if value in YES_NO_VALUES:
        return f"{tag_words}: {YES_NO_VALUES[value]}"
    if tag_words == "copies" and (match := re.fullmatch(r"(\d+)-(\d+)", value)):
        return f"{tag_words} {match[1]} compared with {match[2]}"
    if value == "other" or re.fullmatch(r"\d+(\.\d+)?", value):
        return f"{tag_words} {value}"
    return value.replace("_", " ") if tag_words == "score" else value  # the name of a column


def format_slice_as_toml(slice_tags: Mapping[str, str]) -> str:
    """Format a slice as the setting of a policy rule: {part = "passage", copies = "64"}."""
    tags = (f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in slice_tags.items())
    return f"{{{', '.join(tags)}}}"
