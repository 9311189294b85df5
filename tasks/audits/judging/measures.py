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

from hallmark.tasks.audits.judging.findings import (
    CONFIDENCE_LEVEL,
    build_finding_from_estimate,
    choose_evidence_order,
    select_evidence,
)
from hallmark.tasks.audits.judging.tags import SliceTags
from hallmark.tasks.audits.judging.training_exposure import describe_times_read
from hallmark.tasks.contract import Seed, StageConfig, column, table_schema
from hallmark.tasks.measures.estimates import (
    Estimate,
    estimate_linear_slope,
    estimate_mean_or_share,
    scale_estimate,
)

#: What a share of all is, by unit.
SHARE_MAXIMUM_BY_UNIT = {"share": 1.0, "percent": 100.0}


class SeededConfig(StageConfig):
    """What every probe of measures can be set to."""

    seed: Seed = Field(default=0, description="of what is drawn by lot")


class HasSeed(Protocol):
    """What is drawn by lot."""

    @property
    def seed(self) -> int: ...


#: Called with (values, measure, config, level); None where there is nothing to say.
Estimator = Callable[[pa.Table, "Measure", HasSeed, float], Estimate | None]

#: A part that a finding is about: its tags, and what selects its values.
Slice = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class SliceFinder:
    """Finds parts that no column alone names; ``tags``: those that the slices of them may have."""

    find_slices: Callable[[pa.Table], list[Slice]]
    tags: SliceTags

    def __call__(self, values: pa.Table) -> list[Slice]:
        return self.find_slices(values)


def declare_slice_tags(
    tags: SliceTags,
) -> Callable[[Callable[[pa.Table], list[Slice]]], SliceFinder]:
    """Declare which tags the parts have that a function finds."""
    return lambda find_slices: SliceFinder(find_slices, tags)


#: Called with (n, config): low and high, between which the mean of n values lies with LAW_LEVEL if
#: there is nothing to find, and what is expected. So a sound audit fails once in a hundred.
NullIntervalFunction = Callable[[int, Any], tuple[float, float, float]]
NULL_INTERVAL_LEVEL = 0.99

#: Called with an estimate, the values that it is of, and all of their measure.
BaselineNullFunction = Callable[[Estimate, pa.Table, pa.Table], Estimate]


def estimate_mean(values: pa.Table, measure: Measure, config: HasSeed, level: float) -> Estimate:
    """The mean of the values, or their share."""
    null_value = measure.null_value
    if null_value == "own":
        has_value = ~np.isnan(read_float_column(values, "value"))
        null_value = (
            float(read_float_column(values, "null_value")[has_value].mean())
            if has_value.any()
            else np.nan
        )
    crossed_clusters = (
        values["crossed_cluster"].to_pylist() if "crossed_cluster" in values.column_names else None
    )
    maximum = SHARE_MAXIMUM_BY_UNIT.get(measure.unit, 1.0)
    mean_estimate = estimate_mean_or_share(
        read_float_column(values, "value") / maximum,
        values["cluster"].to_pylist(),
        is_share=measure.unit in SHARE_MAXIMUM_BY_UNIT,
        null_value=float(null_value) / maximum,
        confidence_level=level,
        unit=measure.cluster_unit,
        crossed_clusters=crossed_clusters,
    )
    if measure.null_value == "own" and null_value in (0.0, maximum):
        mean_estimate = replace(mean_estimate, p=np.nan, minimum_detectable_effect=np.nan)
    return mean_estimate if maximum == 1 else scale_estimate(mean_estimate, maximum)


def estimate_untested_mean(
    values: pa.Table, measure: Measure, config: HasSeed, level: float
) -> Estimate:
    """The same beside a null that is no chance, as of who gives nothing away: it has no p."""
    return replace(
        estimate_mean(values, replace(measure, null_value=np.nan), config, level),
        null_value=float(measure.null_value),
    )


def make_slope_estimator(predictor: str | Callable[[pa.Table], ArrayLike]) -> Estimator:
    """By how much the values change for each 1 of a tag that is a number, or of what is called with
    the values, (n,); None where none of that is known."""

    def estimate_slope(
        values: pa.Table, measure: Measure, config: HasSeed, level: float
    ) -> Estimate | None:
        xs = (
            read_float_column(values, predictor)
            if isinstance(predictor, str)
            else np.asarray(predictor(values))
        )
        if np.isnan(xs).all():
            return None
        return estimate_linear_slope(
            read_float_column(values, "value"),
            xs,
            values["cluster"].to_pylist(),
            confidence_level=level,
            unit=measure.cluster_unit,
        )

    return estimate_slope


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
    method: str | Callable[[pa.Table, Any], str]
    unit: str = "share"
    cluster_unit: str = "items"
    null_value: float | str = np.nan
    slices: tuple[str | tuple[str, ...] | SliceFinder, ...] = ()
    uninformative: float = np.nan
    include_overall: bool = True
    worse_when: Literal["", "up", "down", "away_from_null"] = "away_from_null"
    has_simulated_controls: bool = True
    values_from: str = ""
    extra_filter: Mapping[str, Any] = field(default_factory=dict)
    evidence_order: str = ""
    tags: Mapping[str, Any] = field(default_factory=dict)
    is_capability_control: bool = False
    null_interval: NullIntervalFunction | None = None
    estimator: Estimator = estimate_mean
    baseline_null: BaselineNullFunction | None = None
    null_name: str = ""

    @property
    def value_filter(self) -> dict[str, Any]:
        """The conditions that select the values it is drawn from."""
        return {"measure": self.values_from or self.metric, **self.extra_filter}

    def select_values(self, values: pa.Table) -> pa.Table:
        """The values that it is drawn from."""
        return select_evidence(values, self.value_filter)

    def list_slices(self, values: pa.Table) -> list[Slice]:
        """The parts of these values that there are findings about: the whole, and the slices."""
        found_slices: list[Slice] = [({}, {})] if self.include_overall else []
        for slice_tags in self.slices:
            found_slices += (
                slice_tags(values) if callable(slice_tags) else _find_slices(values, slice_tags)
            )
        return found_slices


#: The column that joins values of documents with what training had read.
TIMES_READ = column(
    "times_read",
    pa.int64(),
    "figure",
    "how often training had read it whole by this checkpoint's step: "
    "what was asked about where that was sought, else all of its documents together; null: not "
    "known",
    unit="times",
)


#: A column of values of which a scorer decides: findings name it.
SCORED_BY = column("scorer", pa.string(), "label", "name and digest of the scorer that decides it")


#: The column of what is told of values that has the score of their item's text.
PROMPT_SCORE = "prompt_toxicity"


def build_values_schema(
    items_schema: pa.Schema, value_fields: Sequence[pa.Field] = ()
) -> pa.Schema:
    """The schema of values about items: with all that is told of these, and of the values."""
    item_fields = [items_schema.field(name) for name in items_schema.names]
    if PROMPT_SCORE in [
        field.name for field in value_fields
    ]:  # it says whether a page may show the text
        text_index = items_schema.names.index("text")
        metadata = item_fields[text_index].metadata or {}
        item_fields[text_index] = item_fields[text_index].with_metadata(
            {**metadata, b"judged_by": PROMPT_SCORE.encode()}
        )
    if "doc_ids" in items_schema.names:
        item_fields.append(TIMES_READ)
    return table_schema(
        "What was measured, one row a value of an item.",
        column("measure", pa.string(), "label", "what it is a value of: the metric of findings"),
        column("value", pa.float64(), "figure", "null: the model gave no number"),
        column(
            "null_value",
            pa.float64(),
            "figure",
            "the value where there is nothing to find, where each item has its own",
        ),
        column(
            "in_training_text",
            pa.bool_(),
            "label",
            "whether a text of the item stands whole in what the "
            "model had read; null: not looked for",
        ),
        *item_fields,
        *value_fields,
    )


class ValueWriter:
    """Collects values about rows of items; ``told``: columns of what is told of the values."""

    def __init__(
        self,
        items: pa.Table,
        in_training_text: Sequence[bool | None] | None = None,
        times_read: Sequence[int | None] | None = None,
        value_fields: Sequence[pa.Field] = (),
    ) -> None:
        schema = items.schema
        if "doc_ids" in schema.names:
            read_counts = pa.array(
                [None] * len(items) if times_read is None else times_read, pa.int64()
            )
            items = items.append_column(TIMES_READ, read_counts)
        self.items = items
        self.in_training_text = pa.array(
            [None] * len(items) if in_training_text is None else in_training_text, pa.bool_()
        )
        self.value_fields = value_fields
        self._tables: list[pa.Table] = []
        self.schema = build_values_schema(schema, value_fields)

    def add_values(
        self,
        measure: str,
        item_rows: ArrayLike,
        values: ArrayLike,
        null_values: ArrayLike | None = None,
        in_training_text: Sequence[bool | None] | None = None,
        **field_values: Any,
    ) -> None:
        """``values`` of the items in ``rows``; NaN where the model gave no number for one.
        ``seen``: as ``seen_of`` says, where they are made of several. What is ``told`` of them:
        arrays of as many, or one for all; null where it is not said."""
        item_indices = pa.array(np.asarray(item_rows, np.int64))
        item_columns = self.items.take(item_indices)
        value_array = np.asarray(values, np.float64)
        null_array = (
            np.full(len(value_array), np.nan)
            if null_values is None
            else np.asarray(null_values, np.float64)
        )
        columns = {
            "measure": pa.array([measure] * len(value_array), pa.string()),
            "value": pa.array(value_array, from_pandas=True),
            "null_value": pa.array(null_array, from_pandas=True),
            "in_training_text": self.in_training_text.take(item_indices)
            if in_training_text is None
            else pa.array(in_training_text, pa.bool_()),
            **{name: item_columns[name] for name in self.items.column_names},
            **{
                value_field.name: _broadcast_to_column(
                    field_values.get(value_field.name), len(value_array), value_field
                )
                for value_field in self.value_fields
            },
        }
        self._tables.append(pa.table(columns, schema=self.schema))

    def flag_groups_in_training(self, row_groups: Iterable[Sequence[int]]) -> list[bool | None]:
        """Of the items in each group of rows whether the model had read any; None where that is
        known of none."""
        in_training = self.in_training_text.to_pylist()
        group_flags = [[in_training[row] for row in rows] for rows in row_groups]
        return [
            True if True in flags else False if False in flags else None for flags in group_flags
        ]

    def to_table(self) -> pa.Table:
        # In one piece: of many small ones each filter is slow.
        combined = pa.concat_tables(self._tables) if self._tables else self.schema.empty_table()
        return combined.combine_chunks()


def _broadcast_to_column(value: Any, row_count: int, schema_field: pa.Field) -> Any:
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value.cast(schema_field.type)
    if value is None or isinstance(value, str | int | float):
        return pa.repeat(pa.scalar(value, schema_field.type), row_count)
    return pa.array(value, schema_field.type, from_pandas=True)


def compute_measure_findings(
    audit: str, values: pa.Table, measures: Iterable[Measure], config: HasSeed, note: str = ""
) -> list[dict[str, Any]]:
    """Rows of FINDINGS: of each measure the whole and its slices. ``note`` ends each method."""
    finding_rows: list[dict[str, Any] | None] = []
    for measure in measures:
        value_filter = measure.value_filter
        all_values = select_evidence(values, {"measure": value_filter["measure"]})
        measure_values = select_evidence(all_values, value_filter)
        slices, build_row = measure.list_slices(measure_values), _build_measure_finding
        if measure.is_capability_control or measure.null_interval:
            build_row = _build_control_finding
        elif pc.any(measure_values["in_training_text"]).as_py():
            slices += [({"in_training_text": False}, {"in_training_text": False})]
        for tags, slice_filter in slices:
            finding_rows.append(
                build_row(
                    audit,
                    select_evidence(measure_values, slice_filter),
                    measure,
                    config,
                    tags,
                    value_filter | slice_filter,
                    note,
                    all_values,
                )
            )
    return [row for row in finding_rows if row]


def _find_slices(values: pa.Table, slice_tags: str | tuple[str, ...]) -> list[Slice]:
    """The values that a tag has, or those that several have together."""
    tag_columns = [slice_tags] if isinstance(slice_tags, str) else [*slice_tags]
    combinations = values.select(tag_columns).group_by(tag_columns).aggregate([]).to_pylist()
    known_combinations = [
        combination
        for combination in combinations
        if any(value is not None for value in combination.values())
    ]
    known_combinations.sort(
        key=lambda combination: [(v is not None, v) for v in combination.values()]
    )
    return [
        ({tag: v for tag, v in combination.items() if v is not None}, combination)
        for combination in known_combinations
    ]


def _build_measure_finding(
    audit: str,
    values: pa.Table,
    measure: Measure,
    config: HasSeed,
    tags: Mapping[str, Any],
    value_filter: Mapping[str, Any],
    note: str,
    all_values: pa.Table,
) -> dict[str, Any] | None:
    slice_estimate = estimate_measure(values, measure, config)
    if slice_estimate is None:
        return None
    if measure.baseline_null is not None:
        slice_estimate = measure.baseline_null(slice_estimate, values, all_values)
    read_counts = (
        values["times_read"].to_pylist() if "times_read" in values.column_names else [None]
    )
    read_note = "" if None in read_counts else describe_times_read(read_counts)
    method = _describe_method(measure, values, config, note, read_note)
    order_by_direction = {"up": "-value", "down": "value"}
    order = order_by_direction.get(measure.worse_when) or choose_evidence_order(
        slice_estimate.value, slice_estimate.null_value, "value"
    )
    finding_row = build_finding_from_estimate(
        audit,
        measure.metric,
        slice_estimate,
        unit=measure.unit,
        method_prefix=method,
        tags={**tags, **measure.tags},
        evidence_filter=value_filter,
        evidence_table="values",
        worse_when=measure.worse_when,
        scorer=join_scorer_names(values),
        evidence_order=measure.evidence_order or order,
    )
    if measure.null_name and finding_row["null_value"] is not None:
        finding_row["null_name"] = measure.null_name
    return finding_row


def join_scorer_names(values: pa.Table) -> str:
    """The scorer that decides values, as findings name it; empty: none does."""
    if SCORED_BY.name not in values.column_names:
        return ""
    return ", ".join(pc.unique(values[SCORED_BY.name]).drop_null().to_pylist())


def _build_control_finding(
    audit: str,
    values: pa.Table,
    measure: Measure,
    config: HasSeed,
    tags: Mapping[str, Any],
    value_filter: Mapping[str, Any],
    note: str,
    all_values: pa.Table,
) -> dict[str, Any] | None:
    """The verdict of a control that is drawn from the model's own values."""
    slice_estimate = estimate_measure(values, measure, config)
    if slice_estimate is None:
        return None
    options: dict[str, Any] = {"control": "positive", "control_target": "model"}
    if measure.null_interval is None:
        passed, rule = (
            slice_estimate.low > slice_estimate.null_value,
            f"where the interval lies above {slice_estimate.null_value:g}",
        )
    else:
        low, high, expected = measure.null_interval(max(1, slice_estimate.n), config)
        null_description = (
            f"the mean of {slice_estimate.n} with nothing to find (expected {expected:.4f})"
        )
        rule = (
            f"above {high:.4f}, which {null_description} exceeds in "
            f"{(1 - NULL_INTERVAL_LEVEL) / 2:.1%} of cases"
        )
        passed = slice_estimate.value > high
        if not measure.is_capability_control:
            options = {
                "control": "negative",
                "control_target": "instrument",
                "confidence_level": NULL_INTERVAL_LEVEL,
            }
            passed, rule = low <= slice_estimate.value <= high, "between low and high"
            slice_estimate = replace(
                slice_estimate, low=low, high=high, method=f"they enclose {null_description}"
            )
    method = _describe_method(measure, values, config, note, f"passes {rule}")
    return build_finding_from_estimate(
        audit,
        measure.metric,
        slice_estimate,
        unit=measure.unit,
        method_prefix=method,
        tags=tags,
        evidence_filter=value_filter,
        evidence_table="values",
        passed=bool(passed),
        evidence_order=measure.evidence_order,
        **options,
    )


def _describe_method(measure: Measure, values: pa.Table, config: HasSeed, *notes: str) -> str:
    method = measure.method(values, config) if callable(measure.method) else measure.method
    return "; ".join(filter(None, (method, *notes)))


def estimate_measure(
    values: pa.Table, measure: Measure, config: HasSeed, level: float = CONFIDENCE_LEVEL
) -> Estimate | None:
    value_array = read_float_column(values, "value")
    known_values, measure_estimate = (
        value_array[~np.isnan(value_array)],
        measure.estimator(values, measure, config, level),
    )
    if (
        measure_estimate is None
        or not len(known_values)
        or (known_values != measure.uninformative).any()
    ):
        return measure_estimate
    reason = (
        f"not measured: of {len(known_values)} values each is "
        f"{measure.uninformative:g}, which says nothing"
    )
    return replace(
        measure_estimate,
        value=np.nan,
        low=np.nan,
        high=np.nan,
        p=np.nan,
        minimum_detectable_effect=np.nan,
        method=reason,
    )


def read_float_column(table: pa.Table, column_name: str) -> np.ndarray:
    """A column, (n,) float64, NaN where there is none."""
    return table[column_name].to_numpy(zero_copy_only=False).astype(np.float64)


def compute_preferences(first_scores: ArrayLike, second_scores: ArrayLike) -> np.ndarray:
    """Compare two values of each item; ties count one half.

    Returns:
        1 where the first is the larger, 0 where the second is, 0.5 where they are equal; NaN where
        either is NaN.
    """
    difference = np.asarray(first_scores, np.float64) - np.asarray(second_scores, np.float64)
    return np.where(np.isnan(difference), np.nan, (np.sign(difference) + 1) / 2)


def compute_length_preferences(
    first_texts: Sequence[str], second_texts: Sequence[str]
) -> np.ndarray:
    """What a model to which every byte is equally likely prefers, which only sees length: 1 where
    the first text has fewer bytes, 0 where more, one half where as many."""
    byte_lengths = [[len(text.encode()) for text in texts] for texts in (first_texts, second_texts)]
    return (np.sign(np.subtract(byte_lengths[1], byte_lengths[0])) + 1) / 2
