"""Predict the slices that the findings of an audit can have, before the model is run.

A policy rule about a slice that does not exist must be refused before anything runs. The measures
of a probe give the tags of its slices and their order; settings and items give the values of the
tags. If a tag depends on the model's texts, such as the group that a continuation mentions, every
value is possible until the audit is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import pyarrow as pa

from hallmark.tasks.audits.ability.minimal_pairs import (
    generate_agreement_pairs,
    generate_garden_path_pairs,
)
from hallmark.tasks.audits.judging.measures import Measure, SliceFinder
from hallmark.tasks.audits.methods.continuations import slice_by_subset_and_k
from hallmark.tasks.audits.probe import Probe
from hallmark.tasks.audits.slice_tags import SliceTags, tags_to_slice

#: The slice of items that do not occur in the training text, for probes that search for them.
UNSEEN_TAGS = {"in_training_text": False}

#: The possible values of a tag, or a regular expression if they are unknown.
TagValues = frozenset[str] | str

#: The possible values of each tag of a slice.
SlicePattern = Mapping[str, TagValues]

#: Regular expressions of unknown values: of any tag, and of typed columns.
ANY_VALUE = r"(?s:.+)"
ANY_FLAG = "True|False"
ANY_INTEGER = r"-?\d+"
ANY_NUMBER = r"-?[\d.]+(?:e[+-]?\d+)?"


@dataclass(frozen=True)
class AvailableSlices:
    """Hold the slices that a metric of an audit can have.

    Attributes:
        slices: The known ones; {} is the whole.
        patterns: Further possible slices with tags of unknown values.
    """

    slices: Sequence[Mapping[str, str]]
    patterns: Sequence[SlicePattern] = ()

    @property
    def unrestricted_tags(self) -> set[str]:
        """The tags that may have any value."""
        return {
            tag
            for pattern in self.patterns
            for tag, values in pattern.items()
            if isinstance(values, str)
        }

    def may_contain(self, slice_tags: Mapping[str, str]) -> bool:
        """Return whether a slice exists or may exist as far as is known."""
        return slice_tags in self.slices or any(
            _matches_pattern(pattern, slice_tags) for pattern in self.patterns
        )


def _matches_pattern(pattern: SlicePattern, slice_tags: Mapping[str, str]) -> bool:
    return pattern.keys() == slice_tags.keys() and all(
        re.fullmatch(values, slice_tags[tag])
        if isinstance(values, str)
        else slice_tags[tag] in values
        for tag, values in pattern.items()
    )


def find_available_slices(
    probe: Probe,
    metric: str,
    config: Any,
    items: pa.Table | None = None,
    skipped: Sequence[Mapping[str, Any]] = (),
) -> AvailableSlices:
    """Find the slices that a metric of a probe can have.

    Args:
        probe: The probe.
        metric: One of its metrics.
        config: Its settings.
        items: Its items, if they are known.
        skipped: Rows of SKIPPED, if they are known.
    """
    measures = [
        candidate
        for candidate in probe.measures
        if candidate.metric == metric and not candidate.is_control
    ]
    if not measures and metric not in probe.derived.metrics:  # it counts items
        return AvailableSlices([{}])
    known_slices: list[dict[str, str]] = []
    patterns: list[SlicePattern] = []
    column_types = {
        column_field.name: column_field.type
        for column_field in [*probe.item_schema, *probe.value_fields]
    }
    for measure in measures:
        fixed_tags = {tag: frozenset({str(value)}) for tag, value in measure.tags.items()}
        if measure.include_overall:
            known_slices.append(tags_to_slice(measure.tags))
        if probe.steps.searches_training_text and not probe.step_dependent:
            known_slices.append(tags_to_slice({**UNSEEN_TAGS, **measure.tags}))
        for entry in measure.slices:
            if entry is slice_by_subset_and_k:
                known_slices += _list_subset_and_k_slices(measure, config)
            elif isinstance(entry, SliceFinder):
                patterns += [
                    {**pattern, **fixed_tags}
                    for pattern in _generate_patterns(entry.tags, items, column_types)
                ]
            elif items is not None and {*_list_tag_columns(entry)} <= {*items.column_names}:
                item_slices = replace(measure, include_overall=False, slices=(entry,)).list_slices(
                    items
                )
                known_slices += [
                    tags_to_slice({**slice_tags, **measure.tags}) for slice_tags, _ in item_slices
                ]
            else:
                column_tags = _build_column_tags(_list_tag_columns(entry))
                patterns += [
                    {**pattern, **fixed_tags}
                    for pattern in _generate_patterns(column_tags, items, column_types)
                ]
    if metric in probe.derived.metrics:
        patterns += _generate_patterns(probe.derived.metrics[metric].slices, items, column_types)
    for row in skipped:
        if row["metric"] in ("", metric):
            known_slices.append(row["slice"])
    for pattern in patterns:
        if _has_known_values(pattern):
            known_slices += _list_pattern_slices(pattern)
    return AvailableSlices(
        [known for i, known in enumerate(known_slices) if known not in known_slices[:i]],
        [pattern for pattern in patterns if not _has_known_values(pattern)],
    )


def _list_tag_columns(entry: str | tuple[str, ...]) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry


def _build_column_tags(columns: tuple[str, ...]) -> SliceTags:
    """Return the tags of slices by these columns; a column that is null in a row is omitted."""
    sizes = range(1, len(columns) + 1)
    orders = [order for size in sizes for order in combinations(columns, size)]
    return SliceTags(tuple(orders), item_tags=columns)


def _generate_patterns(
    slice_tags: SliceTags, items: pa.Table | None, column_types: Mapping[str, pa.DataType]
) -> Iterator[SlicePattern]:
    """Yield a pattern for each order of tags and each combination of values in the items."""
    possible_values: dict[str, TagValues] = {
        tag: _build_value_regex(column_types.get(tag)) for tag in slice_tags.item_tags
    }
    possible_values |= {tag: frozenset(values) for tag, values in slice_tags.known_values.items()}
    for order in slice_tags.tag_orders:
        item_columns = [] if items is None else [*items.column_names]
        columns = [tag for tag in order if tag in slice_tags.item_tags and tag in item_columns]
        rows: list[dict[str, Any]] = [{}]
        if items is not None and columns:
            rows = items.select(columns).group_by(columns).aggregate([]).to_pylist()
        for row in rows:
            if None not in row.values():
                row_values = possible_values | {
                    tag: frozenset({str(value)}) for tag, value in row.items()
                }
                yield {tag: row_values.get(tag, ANY_VALUE) for tag in order}


def _build_value_regex(data_type: pa.DataType | None) -> TagValues:
    """Return the regular expression of the values of a column, as slices spell them."""
    if data_type is None:
        return ANY_VALUE
    if pa.types.is_boolean(data_type):
        return ANY_FLAG
    if pa.types.is_integer(data_type):
        return ANY_INTEGER
    return ANY_NUMBER if pa.types.is_floating(data_type) else ANY_VALUE


def _has_known_values(pattern: SlicePattern) -> bool:
    return not any(isinstance(values, str) for values in pattern.values())


def _list_pattern_slices(pattern: SlicePattern) -> Iterator[dict[str, str]]:
    """Yield the slices of a pattern whose values are all known."""
    for values in product(*map(sorted, pattern.values())):
        yield dict(zip(pattern, values, strict=True))


def _list_subset_and_k_slices(measure: Measure, config: Any) -> list[dict[str, str]]:
    """List the slices of the worst of k texts: by prompt subset or writer, and by k."""
    part_filter = measure.row_filter.get("prompt_subset") or measure.row_filter["writer"]
    part_names = [part_filter] if isinstance(part_filter, str) else part_filter
    return [
        tags_to_slice({"prompt_subset": part, "draw_count": k})
        for part in part_names
        for k in config.continuation_counts
    ]


#: The models that the audit of capability compares, besides gzip.
CAPABILITY_MODELS = ("model", "bigram", "fivegram", "recurrent")


def find_capability_slices(metric: str) -> AvailableSlices:
    """Find the slices that a metric of the capability audit, which has no probe, can have."""
    if metric == "bits_per_byte":
        systems = (*CAPABILITY_MODELS, "gzip")
        source_pattern: SlicePattern = {"part": frozenset({"model"}), "source": ANY_VALUE}
        return AvailableSlices([{"part": system} for system in systems], [source_pattern])
    if metric == "bits_per_byte_difference":
        return AvailableSlices([{"baseline": system} for system in CAPABILITY_MODELS[1:]])
    pair_loaders = {
        "agreement_accuracy": generate_agreement_pairs,
        "garden_path_share": generate_garden_path_pairs,
    }
    if metric not in pair_loaders:
        return AvailableSlices([{}])
    distances = sorted({pair.distance for pair in pair_loaders[metric]()})
    distance_slices = [
        {"part": system, "distance": str(distance)}
        for system in CAPABILITY_MODELS
        for distance in distances
    ]
    return AvailableSlices([*({"part": system} for system in CAPABILITY_MODELS), *distance_slices])
