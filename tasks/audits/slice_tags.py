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

#: Systems that the audit of capability compares, in words and in the order of its charts.
SYSTEM_TITLES = {
    "model": "this model",
    "gzip": "gzip -9",
    "bigram": "bigram model",
    "fivegram": "5-gram model",
    "recurrent": "small LSTM model",
}

#: Names of tags in words, where these differ from the name itself.
TAG_TITLES = {
    "assigned_trait_share": "planted share",
    "completion_count": "completions per prompt",
    "distance": "words between the noun and the verb",
    "draw_count": "continuations",
    "equal_token_counts": "same number of tokens",
    "in_training_text": "in the training text",
    "prefix_tokens": "prompt tokens",
}

#: Tags that distinguish conditions of a measurement, as a list of conditions names them.
CONDITION_TITLES = {
    "assigned_trait_share": "planted share",
    "copies": "number of copies of planted text",
    "distance": "number of words between the noun and the verb",
    "draw_count": "number of continuations",
    "equal_token_counts": "whether the two texts have the same number of tokens",
    "kind": "kind of text",
    "occupation": "occupation",
    "prefix_tokens": "prompt length",
    "prompt_subset": "kind of prompt",
    "sampler": "method of sampling",
    "score": "score used to rank the texts",
    "scorer_head": "scored property",
    "sentence_kind": "planted or other sentences",
    "source": "text source",
}

#: Values of tags in words, where these differ from the value itself.
VALUE_TITLES: Mapping[str, Mapping[str, str]] = {
    "baseline": SYSTEM_TITLES,
    "part": {**SYSTEM_TITLES, "EMAIL": "email addresses", "PHONE": "telephone numbers"},
    "kind": {
        "train": "training documents",
        "holdout": "held-out documents",
        "passage": "planted passages",
        "record": "planted records",
        "document": "documents",
    },
    "score": {
        "likeliest_window": "likeliest window",
        "mean_log_likelihood": "mean log-likelihood",
        "lowercase_ratio": "log-likelihood divided by that of the lower-cased text",
        "min_k": "least likely tokens (Min-K)",
        "min_k_plus_plus": "least likely tokens (Min-K++)",
        "reference_ratio": "log-likelihood divided by baseline log-likelihood",
        "zlib_ratio": "log-likelihood divided by compressed size",
    },
    "prompt_subset": {
        "held-out text": "all held-out text",
        "prompted including planted text": "prompted (planted text included)",
        "reference model": "baseline model",
    },
    "sentence_kind": {"planted": "planted sentences", "other": "other sentences"},
    "domain": {"orientation": "sexual orientation"},
    "category": {"orientation": "sexual orientation"},
    "test": {
        "birds and vermin, pleasant": "birds and vermin, pleasant and unpleasant words",
        "invented peoples, pleasant": "invented peoples, pleasant and unpleasant words",
    },
}

#: Tags whose values are shares.
SHARE_TAGS = ("assigned_trait_share",)

#: The beginning of the domain of groups from a word list of the user, and the tags whose values
#: may be a word list and a group, as in "town:Ildriths".
LEXICON_PREFIX = "lexicon "
LEXICON_GROUP_TAGS = ("category", "prompt_subset")

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
    """Return tags in words, for pages: "planted passages, copies: 64"; empty without tags.

    The value has the name of its tag if it says nothing alone, as a number does. A group follows
    its kind, as in "gender: women". Semicolons separate the parts if one contains a comma.
    """
    labels = {name: label_tag(name, str(value)) for name, value in tags.items()}
    if "domain" in labels and "group_name" in labels:
        labels["domain"] += f": {labels.pop('group_name')}"
    has_comma = any(", " in label for label in labels.values())
    return ("; " if has_comma else ", ").join(labels.values())


def label_tag(tag: str, value: str) -> str:
    """Return one tag of a slice in words."""
    if value in VALUE_TITLES.get(tag, {}):
        return VALUE_TITLES[tag][value]
    tag_words = TAG_TITLES.get(tag, tag.replace("_", " "))
    if value in YES_NO_VALUES:
        return f"{tag_words}: {YES_NO_VALUES[value]}"
    if tag == "copies" and (match := re.fullmatch(r"(\d+)-(\d+)", value)):
        return f"{tag_words}: {match[1]} compared with {match[2]}"
    if tag in SHARE_TAGS and re.fullmatch(r"\d+(\.\d+)?", value):
        return f"{tag_words}: {100 * float(value):.4g} %"
    if re.fullmatch(r"\d+", value):
        return f"{tag_words}: {int(value):,}"
    if value == "other" or re.fullmatch(r"\d+\.\d+", value):
        return f"{tag_words}: {value}"
    if tag == "domain" and value.startswith(LEXICON_PREFIX):
        return f"word list {value.removeprefix(LEXICON_PREFIX)!r}"
    return value.replace(":", ": ") if tag in LEXICON_GROUP_TAGS else value


def format_slice_as_toml(slice_tags: Mapping[str, str]) -> str:
    """Format a slice as the setting of a policy rule: {part = "passage", copies = "64"}."""
    tags = (
        f"{name if re.fullmatch('[A-Za-z0-9_-]+', name) else json.dumps(name, ensure_ascii=False)}"
        f" = {json.dumps(value, ensure_ascii=False)}"
        for name, value in slice_tags.items()
    )
    return f"{{{', '.join(tags)}}}"
