"""Values and measures: what a probe makes of answers, and how findings are drawn from that.

A value is one figure about one item: 1 where the stereotype was the likelier, a difference of
log-likelihoods. A measure says how many of them become a finding: as a mean or a share, against
which null, and for which parts. Intervals, tests and smallest effects are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike
from pydantic import Field

from tasks.audits.judging.findings import LEVEL, evidence, measured, side
from tasks.audits.judging.readings import read_by
from tasks.audits.judging.tags import SliceTags
from tasks.contract import Seed, StageConfig, column, table
from tasks.measures.estimates import Estimate, estimate, scaled, slope

#: What a share of all is, by unit.
WHOLE = {"share": 1.0, "percent": 100.0}


class MeasuredConfig(StageConfig):
    """What every probe of measures can be set to."""

    seed: Seed = Field(default=0, description="of what is drawn by lot")


class Drawn(Protocol):
    """What is drawn by lot."""

    @property
    def seed(self) -> int: ...


#: Called with (values, measure, config, level); None where there is nothing to say.
Estimator = Callable[[pa.Table, "Measure", Drawn, float], Estimate | None]

#: A part that a finding is about: its tags, and what selects its values.
Part = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class Slicing:
    """Finds parts that no column alone names; ``tags``: those that the slices of them may have."""

    find_parts: Callable[[pa.Table], list[Part]]
    tags: SliceTags

    def __call__(self, values: pa.Table) -> list[Part]:
        return self.find_parts(values)


def sliced_by(tags: SliceTags) -> Callable[[Callable[[pa.Table], list[Part]]], Slicing]:
    """Declare which tags the parts have that a function finds."""
    return lambda find_parts: Slicing(find_parts, tags)


#: Called with (n, config): low and high, between which the mean of n values lies with LAW_LEVEL if
#: there is nothing to find, and what is expected. So a sound audit fails once in a hundred.
Law = Callable[[int, Any], tuple[float, float, float]]
LAW_LEVEL = 0.99

#: Called with an estimate, the values that it is of, and all of their measure.
Floor = Callable[[Estimate, pa.Table, pa.Table], Estimate]


def mean(values: pa.Table, measure: Measure, config: Drawn, level: float) -> Estimate:
    """The mean of the values, or their share."""
    null = measure.null
    if null == "own":
        known = ~np.isnan(numbers(values, "value"))
        null = float(numbers(values, "null")[known].mean()) if known.any() else np.nan
    crossed = values["crossed"].to_pylist() if "crossed" in values.column_names else None
    whole = WHOLE.get(measure.unit, 1.0)
    made = estimate(
        numbers(values, "value") / whole, values["cluster"].to_pylist(),
        share=measure.unit in WHOLE, null=float(null) / whole, level=level, unit=measure.shares,
        crossed=crossed,
    )  # fmt: skip
    if measure.null == "own" and null in (0.0, whole):
        made = replace(made, p=np.nan, smallest=np.nan)
    return made if whole == 1 else scaled(made, whole)


def untested(values: pa.Table, measure: Measure, config: Drawn, level: float) -> Estimate:
    """The same beside a null that is no chance, as of who gives nothing away: it has no p."""
    return replace(mean(values, replace(measure, null=np.nan), config, level),
                   null=float(measure.null))  # fmt: skip


def slope_over(over: str | Callable[[pa.Table], ArrayLike]) -> Estimator:
    """By how much the values change for each 1 of a tag that is a number, or of what is called with
    the values, (n,); None where none of that is known."""

    def change(values: pa.Table, measure: Measure, config: Drawn, level: float) -> Estimate | None:
        xs = numbers(values, over) if isinstance(over, str) else np.asarray(over(values))
        if np.isnan(xs).all():
            return None
        return slope(numbers(values, "value"), xs, values["cluster"].to_pylist(), level=level,
                     unit=measure.shares)  # fmt: skip

    return change


@dataclass(frozen=True)
class Measure:
    """metric   name of the findings
    how      what was done, in a phrase; or called with (values, config) for it
    unit     of the values: share, nats, percent
    shares   what a cluster is: "templates", in the method of a finding
    null     the value where there is nothing to find, NaN where there is none; "own": each value
             has its own; where that is 0 or 1 for all there is no test: nothing beside it is chance
    slices   tags of items: beside the whole a finding for each of their values, or for what
             several have together; or what finds the parts of the values
    nothing  a value that says nothing: a mean of nothing else is null
    whole    whether there is a finding about all items
    worse    which way is worse, as FINDINGS has it
    scripted whether scripts with and without an effect test it
    of       the metric whose values it is drawn from, where that is another
    where    from which of these: those whose tags are so, as in ``conditions``
    order    the column by which the worst stand first, as FINDINGS has it, where not the value
    tags     what its findings are told apart by, beside their slices
    asks_model whether it is no finding but a control: is this model strong enough to be asked? The
             interval must lie above the null
    law      of a control where that is known: its value must lie above what the law holds; where
             the model is not asked within, or the audit is broken
    estimator  what is made of the values
    floor    gives the estimate the null that other values of the measure are
    null_name  name of the null, where the method of a finding says on which side of it the value is
    """

    metric: str
    how: str | Callable[[pa.Table, Any], str]
    unit: str = "share"
    shares: str = "items"
    null: float | str = np.nan
    slices: tuple[str | tuple[str, ...] | Slicing, ...] = ()
    nothing: float = np.nan
    whole: bool = True
    worse: Literal["", "up", "down", "apart"] = "apart"
    scripted: bool = True
    of: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    order: str = ""
    tags: Mapping[str, Any] = field(default_factory=dict)
    asks_model: bool = False
    law: Law | None = None
    estimator: Estimator = mean
    floor: Floor | None = None
    null_name: str = ""

    @property
    def named(self) -> dict[str, Any]:
        """The conditions that select the values it is drawn from."""
        return {"measure": self.of or self.metric, **self.where}

    def drawn(self, values: pa.Table) -> pa.Table:
        """The values that it is drawn from."""
        return evidence(values, self.named)

    def parts(self, values: pa.Table) -> list[Part]:
        """The parts of these values that there are findings about: the whole, and the slices."""
        found: list[Part] = [({}, {})] if self.whole else []
        for tags in self.slices:
            found += tags(values) if callable(tags) else _parts(values, tags)
        return found


#: The column that joins values of documents with what training had read.
READINGS = column(
    "read", pa.int64(), "figure", "how often training had read it whole by this checkpoint's step: "
    "what was asked about where that was sought, else all of its documents together; null: not "
    "known", unit="times"
)  # fmt: skip


#: A column of values of which a scorer decides: findings name it.
SCORED_BY = column("scorer", pa.string(), "label", "name and digest of the scorer that decides it")


#: The column of what is told of values that has the score of their item's text.
PROMPT_SCORE = "prompt_score"


def values_table(items: pa.Schema, told: Sequence[pa.Field] = ()) -> pa.Schema:
    """The schema of values about items: with all that is told of these, and of the values."""
    about = [items.field(name) for name in items.names]
    if PROMPT_SCORE in [field.name for field in told]:  # it says whether a page may show the text
        place = items.names.index("text")
        known = about[place].metadata or {}
        about[place] = about[place].with_metadata({**known, b"judged_by": PROMPT_SCORE.encode()})
    if "doc_ids" in items.names:
        about.append(READINGS)
    return table(
        "What was measured, one row a value of an item.",
        column("measure", pa.string(), "label", "what it is a value of: the metric of findings"),
        column("value", pa.float64(), "figure", "null: the model gave no number"),
        column("null", pa.float64(), "figure", "the value where there is nothing to find, where "
               "each item has its own"),
        column("seen", pa.bool_(), "label", "whether a text of the item stands whole in what the "
               "model had read; null: not looked for"),
        *about,
        *told,
    )  # fmt: skip


class Values:
    """Collects values about rows of items; ``told``: columns of what is told of the values."""

    def __init__(
        self,
        items: pa.Table,
        seen: Sequence[bool | None] | None = None,
        read: Sequence[int | None] | None = None,
        told: Sequence[pa.Field] = (),
    ) -> None:
        schema = items.schema
        if "doc_ids" in schema.names:
            many = pa.array([None] * len(items) if read is None else read, pa.int64())
            items = items.append_column(READINGS, many)
        self.items = items
        self.seen = pa.array([None] * len(items) if seen is None else seen, pa.bool_())
        self.told = told
        self._parts: list[pa.Table] = []
        self.schema = values_table(schema, told)

    def add(
        self,
        measure: str,
        rows: ArrayLike,
        values: ArrayLike,
        nulls: ArrayLike | None = None,
        seen: Sequence[bool | None] | None = None,
        **told: Any,
    ) -> None:
        """``values`` of the items in ``rows``; NaN where the model gave no number for one.
        ``seen``: as ``seen_of`` says, where they are made of several. What is ``told`` of them:
        arrays of as many, or one for all; null where it is not said."""
        at = pa.array(np.asarray(rows, np.int64))
        about = self.items.take(at)
        made = np.asarray(values, np.float64)
        own = np.full(len(made), np.nan) if nulls is None else np.asarray(nulls, np.float64)
        columns = {
            "measure": pa.array([measure] * len(made), pa.string()),
            "value": pa.array(made, from_pandas=True),
            "null": pa.array(own, from_pandas=True),
            "seen": self.seen.take(at) if seen is None else pa.array(seen, pa.bool_()),
            **{name: about[name] for name in self.items.column_names},
            **{each.name: _filled(told.get(each.name), len(made), each) for each in self.told},
        }
        self._parts.append(pa.table(columns, schema=self.schema))

    def seen_of(self, groups: Iterable[Sequence[int]]) -> list[bool | None]:
        """Of the items in each group of rows whether the model had read any; None where that is
        known of none."""
        known = self.seen.to_pylist()
        each = [[known[row] for row in rows] for rows in groups]
        return [True if True in some else False if False in some else None for some in each]

    def table(self) -> pa.Table:
        # In one piece: of many small ones each filter is slow.
        made = pa.concat_tables(self._parts) if self._parts else self.schema.empty_table()
        return made.combine_chunks()


def _filled(said: Any, count: int, about: pa.Field) -> Any:
    if isinstance(said, pa.Array | pa.ChunkedArray):
        return said.cast(about.type)
    if said is None or isinstance(said, str | int | float):
        return pa.repeat(pa.scalar(said, about.type), count)
    return pa.array(said, about.type, from_pandas=True)


def measure_all(
    audit: str, values: pa.Table, measures: Iterable[Measure], config: Drawn, note: str = ""
) -> list[dict[str, Any]]:
    """Rows of FINDINGS: of each measure the whole and its slices. ``note`` ends each method."""
    rows: list[dict[str, Any] | None] = []
    for measure in measures:
        named = measure.named
        every = evidence(values, {"measure": named["measure"]})
        mine = evidence(every, named)
        parts, make = measure.parts(mine), _finding
        if measure.asks_model or measure.law:
            make = _control
        elif pc.any(mine["seen"]).as_py():
            parts += [({"seen": False}, {"seen": False})]
        for tags, where in parts:
            rows.append(make(audit, evidence(mine, where), measure, config, tags, named | where,
                             note, every))  # fmt: skip
    return [row for row in rows if row]


def _parts(values: pa.Table, tags: str | tuple[str, ...]) -> list[Part]:
    """The values that a tag has, or those that several have together."""
    names = [tags] if isinstance(tags, str) else [*tags]
    found = values.select(names).group_by(names).aggregate([]).to_pylist()
    known = [part for part in found if any(value is not None for value in part.values())]
    known.sort(key=lambda part: [(v is not None, v) for v in part.values()])
    return [({tag: v for tag, v in part.items() if v is not None}, part) for part in known]


def _finding(
    audit: str,
    values: pa.Table,
    measure: Measure,
    config: Drawn,
    tags: Mapping[str, Any],
    where: Mapping[str, Any],
    note: str,
    every: pa.Table,
) -> dict[str, Any] | None:
    found = estimated(values, measure, config)
    if found is None:
        return None
    if measure.floor is not None:
        found = measure.floor(found, values, every)
    times = values["read"].to_pylist() if "read" in values.column_names else [None]
    read = "" if None in times else read_by(times)
    how = _told(measure, values, config, note, read)
    ways = {"up": "-value", "down": "value"}
    order = ways.get(measure.worse) or side(found.value, found.null, "value")
    row = measured(audit, measure.metric, found, unit=measure.unit, how=how,
                   tags={**tags, **measure.tags}, where=where, table="values",
                   worse=measure.worse, scorer=scorer_of(values),
                   order=measure.order or order)  # fmt: skip
    if measure.null_name and row["null"] is not None:
        row["null_name"] = measure.null_name
    return row


def scorer_of(values: pa.Table) -> str:
    """The scorer that decides values, as findings name it; empty: none does."""
    if SCORED_BY.name not in values.column_names:
        return ""
    return ", ".join(pc.unique(values[SCORED_BY.name]).drop_null().to_pylist())


def _control(
    audit: str,
    values: pa.Table,
    measure: Measure,
    config: Drawn,
    tags: Mapping[str, Any],
    where: Mapping[str, Any],
    note: str,
    every: pa.Table,
) -> dict[str, Any] | None:
    """The verdict of a control that is drawn from the model's own values."""
    found = estimated(values, measure, config)
    if found is None:
        return None
    options: dict[str, Any] = {"control": "positive", "tests": "model"}
    if measure.law is None:
        passed, rule = found.low > found.null, f"where the interval lies above {found.null:g}"
    else:
        low, high, expected = measure.law(max(1, found.n), config)
        law = f"the mean of {found.n} with nothing to find (expected {expected:.4f})"
        rule = f"above {high:.4f}, which {law} exceeds in {(1 - LAW_LEVEL) / 2:.1%} of cases"
        passed = found.value > high
        if not measure.asks_model:
            options = {"control": "negative", "tests": "instrument", "level": LAW_LEVEL}
            passed, rule = low <= found.value <= high, "between low and high"
            found = replace(found, low=low, high=high, method=f"they enclose {law}")
    how = _told(measure, values, config, note, f"passes {rule}")
    return measured(audit, measure.metric, found, unit=measure.unit, how=how, tags=tags,
                    where=where, table="values", passed=bool(passed), order=measure.order,
                    **options)  # fmt: skip


def _told(measure: Measure, values: pa.Table, config: Drawn, *more: str) -> str:
    how = measure.how(values, config) if callable(measure.how) else measure.how
    return "; ".join(filter(None, (how, *more)))


def estimated(
    values: pa.Table, measure: Measure, config: Drawn, level: float = LEVEL
) -> Estimate | None:
    made = numbers(values, "value")
    known, found = made[~np.isnan(made)], measure.estimator(values, measure, config, level)
    if found is None or not len(known) or (known != measure.nothing).any():
        return found
    said = f"not measured: of {len(known)} values each is {measure.nothing:g}, which says nothing"
    return replace(found, value=np.nan, low=np.nan, high=np.nan, p=np.nan, smallest=np.nan,
                   method=said)  # fmt: skip


def numbers(values: pa.Table, name: str) -> np.ndarray:
    """A column, (n,) float64, NaN where there is none."""
    return values[name].to_numpy(zero_copy_only=False).astype(np.float64)


def preferred(first: ArrayLike, second: ArrayLike) -> np.ndarray:
    """Compare two values of each item; ties count one half.

    Returns:
        1 where the first is the larger, 0 where the second is, 0.5 where they are equal; NaN where
        either is NaN.
    """
    difference = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    return np.where(np.isnan(difference), np.nan, (np.sign(difference) + 1) / 2)


def shorter(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """What a model to which every byte is equally likely prefers, which only sees length: 1 where
    the first text has fewer bytes, 0 where more, one half where as many."""
    size = [[len(text.encode()) for text in side] for side in (first, second)]
    return (np.sign(np.subtract(size[1], size[0])) + 1) / 2
