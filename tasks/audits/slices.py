"""Which slices an audit can have findings about, as far as that is known before a model is asked.

A rule of a policy about a slice that does not exist must be refused before anything runs. The
measures of a probe say by which tags findings are sliced, and in which order; the settings and the
items say which values these tags have. Where a tag is known from what the model writes alone, such
as the group that a continuation mentions, every value is possible until the audit is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any, Protocol

import pyarrow as pa

from tasks.audits.ability.minimal_pairs import agreement, garden_paths
from tasks.audits.judging.measures import Measure, Slicing
from tasks.audits.judging.tags import SliceTags, spelled
from tasks.audits.methods.continuations import by_part

#: The slice of what stands in no training text, which measures may have where that is looked for.
UNSEEN = {"seen": False}

#: The values that a tag may have; where they are not known, a regular expression of them.
TagValues = frozenset[str] | str

#: The tags of a slice, in the order in which it spells them. The tag "part" has no name in a slice.
Pattern = tuple[tuple[str, TagValues], ...]

#: Values that are not known: of the tag "part", of a column of numbers or flags, of any other tag.
ANY_PART = "[^=]+"
ANY_VALUE = r"(?:(?!, \w+=).)+"
ANY_FLAG = "True|False"
ANY_INTEGER = r"-?\d+"
ANY_NUMBER = r"-?[\d.]+(?:e[+-]?\d+)?"


class Probed(Protocol):
    """What is needed of a probe."""

    @property
    def measures(self) -> Sequence[Measure]: ...

    @property
    def also(self) -> Mapping[str, SliceTags]: ...

    @property
    def items(self) -> pa.Schema: ...

    @property
    def told(self) -> Sequence[pa.Field]: ...

    @property
    def traced(self) -> bool: ...

    @property
    def dated(self) -> bool: ...


@dataclass(frozen=True)
class Slices:
    """The slices that a metric of an audit can have.

    Attributes:
        names: Those that are known, spelled as in findings; "" is the whole.
        patterns: Others that it may have, of which some values are not known.
    """

    names: tuple[str, ...]
    patterns: tuple[Pattern, ...] = ()

    @property
    def open_tags(self) -> set[str]:
        """The tags that may have any value."""
        return {
            tag for pattern in self.patterns for tag, values in pattern if isinstance(values, str)
        }

    def may_have(self, name: str) -> bool:
        """Whether a slice exists, or nothing that is known so far speaks against it."""
        return name in self.names or any(_matches(pattern, name) for pattern in self.patterns)

    def reordered(self, name: str) -> str:
        """Return the slice that may exist and has the tags of ``name`` in another order, or ""."""
        tags = sorted(name.split(", "))
        for known in self.names:
            if sorted(known.split(", ")) == tags:
                return known
        by_tag = {tag.partition("=")[0] if "=" in tag else "part": tag for tag in tags}
        for pattern in self.patterns:
            if len(tags) == len(pattern) and {*by_tag} == {tag for tag, _ in pattern}:
                other = ", ".join(by_tag[tag] for tag, _ in pattern)
                if _matches(pattern, other):
                    return other
        return ""


def _matches(pattern: Pattern, name: str) -> bool:
    spellings = []
    for tag, values in pattern:
        value = values if isinstance(values, str) else "|".join(map(re.escape, sorted(values)))
        spellings.append(f"(?:{value})" if tag == "part" else f"{re.escape(tag)}=(?:{value})")
    return re.fullmatch(", ".join(spellings), name, re.DOTALL) is not None


def slices_of(
    probe: Probed,
    metric: str,
    config: Any,
    items: pa.Table | None = None,
    skipped: Sequence[Mapping[str, Any]] = (),
) -> Slices:
    """Find the slices that a metric of a probe can have.

    Args:
        probe: The probe.
        metric: One of its metrics.
        config: Its settings.
        items: What it asks about, once that is known.
        skipped: The part and the tags of what it does not ask, once that is known.
    """
    measures = [m for m in probe.measures if m.metric == metric and not (m.asks_model or m.law)]
    if not measures and metric not in probe.also:  # a count of items
        return Slices(("",))
    names: dict[str, None] = {}
    patterns: list[Pattern] = []
    columns = {each.name: each.type for each in [*probe.items, *probe.told]}
    for measure in measures:
        fixed = [(tag, frozenset({str(value)})) for tag, value in measure.tags.items()]
        if measure.whole:
            names[spelled(measure.tags)] = None
        if probe.traced and not probe.dated:
            names[spelled({**UNSEEN, **measure.tags})] = None
        for entry in measure.slices:
            if entry is by_part:
                names |= dict.fromkeys(_parts_of_k(measure, config))
            elif isinstance(entry, Slicing):
                patterns += [(*each, *fixed) for each in _patterns(entry.tags, items, columns)]
            elif items is not None and {*_columns(entry)} <= {*items.column_names}:
                found = replace(measure, whole=False, slices=(entry,)).parts(items)
                names |= {spelled({**part, **measure.tags}): None for part, _ in found}
            else:
                tags = _tags_of_columns(_columns(entry))
                patterns += [(*each, *fixed) for each in _patterns(tags, items, columns)]
    if metric in probe.also:
        patterns += _patterns(probe.also[metric], items, columns)
    for row in skipped:
        if row["part"] in ("", metric):
            names[spelled(row["tags"])] = None
    for pattern in [pattern for pattern in patterns if _is_known(pattern)]:
        names |= dict.fromkeys(_names_of(pattern))
    return Slices(tuple(names), tuple(each for each in patterns if not _is_known(each)))


def _columns(entry: str | tuple[str, ...]) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry


def _tags_of_columns(columns: tuple[str, ...]) -> SliceTags:
    """The tags of slices by columns together: those that are null in a row are left out there."""
    sizes = range(1, len(columns) + 1)
    orders = [order for size in sizes for order in combinations(columns, size)]
    return SliceTags(tuple(orders), of_items=columns)


def _patterns(
    tags: SliceTags, items: pa.Table | None, types: Mapping[str, pa.DataType]
) -> Iterator[Pattern]:
    """What slices with these tags may be, for each combination of values that items have."""
    given = {tag: _any_value(types.get(tag)) for tag in tags.of_items} | {"part": ANY_PART}
    given |= {tag: frozenset(values) for tag, values in tags.values.items()}
    for order in tags.orders:
        asked = [] if items is None else [*items.column_names]
        columns = [tag for tag in order if tag in tags.of_items and tag in asked]
        rows: list[dict[str, Any]] = [{}]
        if items is not None and columns:
            rows = items.select(columns).group_by(columns).aggregate([]).to_pylist()
        for row in rows:
            if None not in row.values():
                known = given | {tag: frozenset({str(value)}) for tag, value in row.items()}
                yield tuple((tag, known.get(tag, ANY_VALUE)) for tag in order)


def _any_value(kind: pa.DataType | None) -> TagValues:
    """The regular expression of the values of a column, as slices spell them."""
    if kind is None:
        return ANY_VALUE
    if pa.types.is_boolean(kind):
        return ANY_FLAG
    if pa.types.is_integer(kind):
        return ANY_INTEGER
    return ANY_NUMBER if pa.types.is_floating(kind) else ANY_VALUE


def _is_known(pattern: Pattern) -> bool:
    return not any(isinstance(values, str) for _, values in pattern)


def _names_of(pattern: Pattern) -> Iterator[str]:
    """The slices of a pattern of which all values are known."""
    for values in product(*(sorted(values) for _, values in pattern)):
        yield spelled(dict(zip([tag for tag, _ in pattern], values, strict=True)))


def _parts_of_k(measure: Measure, config: Any) -> list[str]:
    """The slices of the worst of k texts: of each part, or writer, for each k."""
    parts = measure.where.get("part") or measure.where["writer"]
    listed = [parts] if isinstance(parts, str) else parts
    return [spelled({"part": part, "k": k}) for part in listed for k in config.k]


#: Whose answers the audit of capability compares, beside gzip.
READERS = ("model", "bigram", "fivegram", "recurrent")


def capability_slices(metric: str) -> Slices:
    """Find the slices that a metric of the audit of capability, which has no probe, can have."""
    if metric == "bits_per_byte":
        by_source: Pattern = (("part", frozenset({"model"})), ("source", ANY_VALUE))
        return Slices((*READERS, "gzip"), (by_source,))
    if metric == "bits_per_byte_difference":
        return Slices(tuple(f"less={reader}" for reader in READERS[1:]))
    pairs = {"agreement_accuracy": agreement, "garden_path_share": garden_paths}
    if metric not in pairs:
        return Slices(("",))
    distances = sorted({pair.distance for pair in pairs[metric]()})
    by_distance = [f"{reader}, distance={far}" for reader in READERS for far in distances]
    return Slices((*READERS, *by_distance))
