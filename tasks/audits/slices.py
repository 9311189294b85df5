"""Which slices an audit can have findings about, as far as that is known before a model is asked.

A rule of a policy about a slice that does not exist must be refused before anything runs. The
measures of a probe say by which tags findings are sliced; the settings and the items say which
values these tags have. Where a tag is known from what the model writes alone, such as the group
that a continuation mentions, every value is possible until the audit is done.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from tasks.audits.judging.measures import Measure
from tasks.audits.judging.tags import spelled
from tasks.audits.methods.continuations import by_part

#: The slice of what stands in no training text, which every measure may have.
UNSEEN = {"seen": False}

_SEPARATOR = re.compile(r", (?=\w+=)")


class Probed(Protocol):
    """What is needed of a probe."""

    @property
    def measures(self) -> Sequence[Measure]: ...

    @property
    def also(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Slices:
    """The slices that a metric of an audit can have.

    Attributes:
        names: Those that are known, spelled as in findings; "" is the whole.
        tags: The tags that other slices may have, with their values, None where these are not
            known; "part" is the tag without a name.
        open: Whether there may be slices of any tags, which only the findings show.
    """

    names: tuple[str, ...]
    tags: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    open: bool = False

    def may_have(self, name: str) -> bool:
        """Whether a slice exists, or nothing that is known so far speaks against it."""
        if self.open or name in self.names:
            return True
        if not name:
            return False
        for tag in _SEPARATOR.split(name):
            key, equals, value = tag.partition("=")
            if not equals:
                key, value = "part", tag
            if key not in self.tags:
                return False
            values = self.tags[key]
            if values is not None and value not in values:
                return False
        return True


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
    if not measures:  # computed from findings, or a count of items
        return Slices(("",), open=metric in probe.also)
    names: dict[str, None] = {}
    tags: dict[str, frozenset[str] | None] = {}
    unknown = False
    for measure in measures:
        if measure.whole:
            names[spelled(measure.tags)] = None
        names[spelled({**UNSEEN, **measure.tags})] = None
        for entry in measure.slices:
            if entry is by_part:
                names |= dict.fromkeys(_parts_of_k(measure, config))
            elif callable(entry):
                unknown = True
            elif items is not None and {*_columns(entry)} <= {*items.column_names}:
                found = replace(measure, whole=False, slices=(entry,)).parts(items)
                names |= {spelled({**part, **measure.tags}): None for part, _ in found}
            else:
                tags |= dict.fromkeys(_columns(entry))
                for tag, value in measure.tags.items():
                    tags[tag] = (tags.get(tag) or frozenset()) | {str(value)}
    for row in skipped:
        if row["part"] in ("", metric):
            names[spelled(row["tags"])] = None
    return Slices(tuple(names), tags, unknown)


def _columns(entry: str | tuple[str, ...]) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry


def _parts_of_k(measure: Measure, config: Any) -> list[str]:
    """The slices of the worst of k texts: of each part, or writer, for each k."""
    parts = measure.where.get("part") or measure.where["writer"]
    listed = [parts] if isinstance(parts, str) else parts
    return [spelled({"part": part, "k": k}) for part in listed for k in config.k]


#: Of the audit without a probe: the spellings of its slices, by metric.
CAPABILITY_SLICES = {
    "bits_per_byte": r"model(, source=.+)?|bigram|fivegram|recurrent|gzip",
    "bits_per_byte_difference": r"less=(bigram|fivegram|recurrent)",
    "agreement_accuracy": r"(model|bigram|fivegram|recurrent)(, distance=\d+)?",
    "garden_path_share": r"(model|bigram|fivegram|recurrent)(, distance=\d+)?",
    "cloze_accuracy": r"",
}


def capability_may_have(metric: str, name: str) -> bool:
    """Whether findings of the audit of capability may have a slice of this name."""
    return re.fullmatch(CAPABILITY_SLICES[metric], name) is not None


def capability_slices(metric: str) -> tuple[str, ...]:
    """The slices of a metric of the audit of capability that exist of every model."""
    names = ("", "model", "bigram", "fivegram", "recurrent", "gzip", "less=bigram",
             "less=fivegram", "less=recurrent")  # fmt: skip
    return tuple(name for name in names if capability_may_have(metric, name))
