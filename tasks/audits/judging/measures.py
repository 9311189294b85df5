"""Define values and measures, and compute findings from them.

A value is one figure about one item: 1 if the model prefers the stereotype, or a difference of
log-likelihoods. A measure says how values become a finding: as a mean or a share, compared with
which null value, and for which slices. Intervals, tests and minimum detectable effects are shared
by all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from hallmark.tasks.audits.judging.conclusions import describe_weakness, judge_capability
from hallmark.tasks.audits.judging.evidence_filters import RowConditions
from hallmark.tasks.audits.judging.findings import (
    CONFIDENCE_LEVEL,
    Finding,
    build_finding_from_estimate,
    choose_evidence_order,
    select_evidence,
)
from hallmark.tasks.audits.judging.harm import Direction
from hallmark.tasks.audits.judging.training_exposure import describe_times_read
from hallmark.tasks.audits.slice_tags import OVERALL_ONLY, SliceTags
from hallmark.tasks.contract import column, format_count, table_schema
from hallmark.tasks.measures.estimates import Estimate, estimate_mean_or_share, scale_estimate
from hallmark.tasks.measures.prediction_tests import require_difference_from_baseline
from hallmark.tasks.measures.slopes import estimate_linear_slope
from hallmark.tasks.measures.statistics import average_known_values

#: The value of the whole, for units of shares.
SHARE_MAXIMUM_BY_UNIT = {"share": 1.0, "percent": 100.0}


class HasSeed(Protocol):
    """A config with the seed of random draws."""

    @property
    def seed(self) -> int: ...


#: Called with (values, measure, config, confidence level); returns None where it has no estimate.
Estimator = Callable[[pa.Table, "Measure", HasSeed, float], Estimate | None]


class Slice(NamedTuple):
    """Define a subset of the values that a finding is about.

    Attributes:
        tags: Names and values that describe it; empty for all values.
        value_filter: Filter that selects its values, as ``build_row_filter`` takes it.
    """

    tags: dict[str, Any]
    value_filter: dict[str, Any]


@dataclass(frozen=True)
class SliceFinder:
    """Find slices that columns alone do not define; ``tags`` are those the slices may have."""

    find_slices: Callable[[pa.Table], list[Slice]]
    tags: SliceTags

    def __call__(self, values: pa.Table) -> list[Slice]:
        return self.find_slices(values)


def declare_slice_tags(
    tags: SliceTags,
) -> Callable[[Callable[[pa.Table], list[Slice]]], SliceFinder]:
    """Return a decorator that declares the tags of the slices that a function finds."""
    return lambda find_slices: SliceFinder(find_slices, tags)


#: The mean lies in a null interval with this probability, so a sound audit fails once in a hundred
#: times.
NULL_INTERVAL_LEVEL = 0.99


#: Part of the method of a control whose interval is a null interval, not one of its own value.
NULL_INTERVAL_NOTE = "the interval from 'low' to 'high' is the null interval for"

#: Part of the method of a finding whose true value may be higher.
LOWER_BOUND_NOTE = "the value is a lower bound"


class NullInterval(NamedTuple):
    """Say where the mean of values lies if there is nothing to find.

    Attributes:
        low: Lower end of the interval that has it with NULL_INTERVAL_LEVEL.
        high: Upper end.
        expected: Expected value of the mean.
    """

    low: float
    high: float
    expected: float


#: Called with (number of values, config).
NullIntervalFunction = Callable[[int, Any], NullInterval]


@dataclass(frozen=True)
class MeasureControl:
    """Make a measure a control instead of a finding.

    Attributes:
        target: "model": is the model capable enough for this audit? The control passes if the
            interval is above the null value or, with a ``null_interval``, if the value is above
            that interval. "instrument": the value must be inside the ``null_interval``.
        null_interval: Gives the interval of the value if there is nothing to find.
    """

    target: Literal["model", "instrument"]
    null_interval: NullIntervalFunction | None = None


@dataclass(frozen=True)
class BaselineNull:
    """Take the null value of an estimate from other values of the measure.

    Attributes:
        replace_null: Called with an estimate, the values it is computed from, and all values of the
            measure.
        name_null: Called with all values of the measure; returns the name of the null value, if p
            is one-sided: is the value higher?
    """

    replace_null: Callable[[Estimate, pa.Table, pa.Table], Estimate]
    name_null: Callable[[pa.Table], str] = lambda values: ""


def estimate_mean(
    values: pa.Table, measure: Measure, config: HasSeed, confidence_level: float
) -> Estimate:
    """Estimate the mean or the share of the values, with a test against the null value."""
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
        confidence_level=confidence_level,
        unit=measure.cluster_unit,
        crossed_clusters=crossed_clusters,
    )
    if measure.null_value == "own" and null_value in (0.0, maximum):
        mean_estimate = replace(mean_estimate, p=np.nan, minimum_detectable_effect=np.nan)
    return mean_estimate if maximum == 1 else scale_estimate(mean_estimate, maximum)


def estimate_untested_mean(
    values: pa.Table, measure: Measure, config: HasSeed, confidence_level: float
) -> Estimate:
    """Estimate the mean without a test: the null value is fixed and no matter of chance."""
    return replace(
        estimate_mean(values, replace(measure, null_value=np.nan), config, confidence_level),
        null_value=float(measure.null_value),
    )


def make_slope_estimator(predictor: str | Callable[[pa.Table], ArrayLike]) -> Estimator:
    """Make an estimator of the change of the values per unit of a predictor.

    The predictor is a numeric column, or a function of the values that returns (n,). The estimator
    returns None where the predictor is NaN for all values.
    """

    def estimate_slope(
        values: pa.Table, measure: Measure, config: HasSeed, confidence_level: float
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
            confidence_level=confidence_level,
            unit=measure.cluster_unit,
        )

    return estimate_slope


@dataclass(frozen=True)
class Measure:
    """Define how findings of one metric are computed from values.

    Attributes:
        metric: Name of the findings, as policies and commands take it.
        title: Name of the metric on cards: a short noun phrase.
        method: What was done, in a phrase; or a function of (values, config) that returns it.
        unit: Unit of the values: share, nats, percent.
        cluster_unit: What a cluster is, such as "templates", for the method of a finding.
        null_value: The value if there is nothing to find; NaN: there is none; "own": each value has
            its own. If all of these are 0 or 1, there is no test, because no deviation is chance.
        slices: Columns of items: each gives one finding per value, a tuple of columns one per
            combination; or a ``SliceFinder``.
        uninformative: A value that carries no information; if all values equal it, the finding is
            null.
        include_overall: Whether there is a finding about all items.
        worse_when: Which direction is worse, as in FINDINGS.
        is_variant: Whether its findings are reported but never ranked: it asks the question of
            another measure in another way, or is about text planted to test the audit.
        is_variant_slice: Called with (tags of a slice, config): whether this applies to a slice,
            such as one that only repeats the figure about all items. The slice of items that are
            not in the training text is always a variant.
        has_simulated_controls: Whether simulated models with and without an effect test it.
        row_filter: Filter of the values it uses, as ``build_row_filter`` takes it. By default they
            are those of its metric; ``{"measure": name}`` uses those of another one.
        evidence_order: Column that sorts the worst rows first, as in FINDINGS; empty: the value.
        tags: Tags of its findings besides those of their slices.
        control: Makes it a control instead of a finding.
        estimator: Computes the estimate from the values.
        baseline: Replaces the estimate's null value.
        compares_with_untrained: Whether its mean must also differ from those of small untrained
            models; for a null value that is not exact by construction.
    """

    metric: str
    title: str
    method: str | Callable[[pa.Table, Any], str]
    unit: str = "share"
    cluster_unit: str = "items"
    null_value: float | str = np.nan
    slices: tuple[str | tuple[str, ...] | SliceFinder, ...] = ()
    uninformative: float = np.nan
    include_overall: bool = True
    worse_when: Direction = "away_from_null"
    is_variant: bool = False
    is_variant_slice: Callable[[Mapping[str, Any], Any], bool] = lambda tags, config: False
    has_simulated_controls: bool = True
    row_filter: RowConditions = field(default_factory=dict)
    evidence_order: str = ""
    tags: Mapping[str, Any] = field(default_factory=dict)
    control: MeasureControl | None = None
    estimator: Estimator = estimate_mean
    baseline: BaselineNull | None = None
    compares_with_untrained: bool = False

    @property
    def is_control(self) -> bool:
        """Whether its findings are controls."""
        return self.control is not None

    @property
    def value_filter(self) -> dict[str, Any]:
        """The filter that selects its values."""
        return {"measure": self.metric, **self.row_filter}

    def select_values(self, values: pa.Table) -> pa.Table:
        """Select its values."""
        return select_evidence(values, self.value_filter)

    def list_slices(self, values: pa.Table) -> list[Slice]:
        """List the whole, if included, and the slices that these values have."""
        slices: list[Slice] = [Slice({}, {})] if self.include_overall else []
        for slice_definition in self.slices:
            slices += (
                slice_definition(values)
                if callable(slice_definition)
                else _find_slices_by_columns(values, slice_definition)
            )
        return slices


@dataclass(frozen=True)
class DerivedMetric:
    """Declare a metric of findings that are computed from other findings, or count values.

    Attributes:
        title: Name of the metric on cards: a short noun phrase.
        slices: The tags of its slices.
    """

    title: str
    slices: SliceTags = OVERALL_ONLY


#: The column, and the tag of slices, that says whether training had read the text of an item.
IN_TRAINING_TEXT = "in_training_text"

#: The column that says how often training had read the documents of an item.
TIMES_READ = column(
    "times_read",
    pa.int64(),
    "figure",
    "number of times the item's text had been read during training up to the checkpoint's step; if "
    "the text was not searched for, the number of times the item's documents had been read, summed "
    "over the documents; null if unknown",
    unit="times",
)


def flag_unread_items(items: pa.Table, is_training_text: np.ndarray) -> np.ndarray:
    """Flag the items whose training text had not been read completely by the checkpoint's step.

    No item is flagged if it is unknown what had been read, or if no training text of its kind had
    been read: then there is nothing to find, and the items are a control.

    Args:
        items: The items, with the columns ``kind`` and ``times_read``.
        is_training_text: Whether the item is a text of the training documents, (n,) bool.
    """
    read_counts = read_float_column(items, TIMES_READ.name)
    kinds = items["kind"].to_numpy(zero_copy_only=False)
    has_read_kind = np.isin(kinds, np.unique(kinds[is_training_text & (read_counts > 0)]))
    is_unread: np.ndarray = is_training_text & (read_counts == 0) & has_read_kind
    return is_unread


#: The column of the scorer that decides a value, which findings name.
SCORED_BY = column(
    "scorer", pa.string(), "label", "name and digest of the scorer that assigned the value"
)


#: The column of values that holds the score of their item's text.
PROMPT_SCORE = "prompt_toxicity"


def build_values_schema(
    items_schema: pa.Schema, value_fields: Sequence[pa.Field] = ()
) -> pa.Schema:
    """Build the schema of the values of a probe: columns of its items and further columns."""
    item_fields = [items_schema.field(name) for name in items_schema.names]
    value_names = [value_field.name for value_field in value_fields]
    if PROMPT_SCORE in value_names:  # the score says whether a page may show the text
        text_index = items_schema.names.index("text")
        metadata = item_fields[text_index].metadata or {}
        item_fields[text_index] = item_fields[text_index].with_metadata(
            {**metadata, b"judged_by": PROMPT_SCORE.encode()}
        )
    if "doc_ids" in items_schema.names:
        item_fields.append(TIMES_READ)
    return table_schema(
        "Measured values, one row per item and value.",
        column("measure", pa.string(), "label", "name of the measured metric"),
        column(
            "value", pa.float64(), "figure", "measured value; null if the model returned no number"
        ),
        column(
            "null_value",
            pa.float64(),
            "figure",
            "value expected if there is no effect, for metrics whose null value differs between "
            "items",
        ),
        column(
            "in_training_text",
            pa.bool_(),
            "label",
            "whether the training text read by the model contains any of the item's texts in "
            "full; null if the training text was not searched",
        ),
        *item_fields,
        *value_fields,
    )


class ValueWriter:
    """Collect values about items."""

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
        metric: str,
        item_rows: ArrayLike,
        values: ArrayLike,
        null_values: ArrayLike | None = None,
        in_training_text: Sequence[bool | None] | None = None,
        **field_values: Any,
    ) -> None:
        """Add values of a measure.

        Args:
            metric: The metric of the values.
            item_rows: Row of the item of each value.
            values: The values; NaN where the model gave no number.
            null_values: The null value of each, where each has its own.
            in_training_text: Flag of each value; by default the flag of its item.
            field_values: Values of ``value_fields``: arrays, or one value for all; null if missing.
        """
        item_indices = pa.array(np.asarray(item_rows, np.int64))
        item_columns = self.items.take(item_indices)
        value_array = np.asarray(values, np.float64)
        null_array = (
            np.full(len(value_array), np.nan)
            if null_values is None
            else np.asarray(null_values, np.float64)
        )
        columns = {
            "measure": pa.array([metric] * len(value_array), pa.string()),
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

    def flag_groups_in_training(
        self, item_row_groups: Iterable[Sequence[int]]
    ) -> list[bool | None]:
        """Flag each group of item rows: whether any is in the training text; None if unknown."""
        in_training = self.in_training_text.to_pylist()
        group_flags = [[in_training[row] for row in rows] for rows in item_row_groups]
        return [
            True if True in flags else False if False in flags else None for flags in group_flags
        ]

    def to_table(self) -> pa.Table:
        # In one chunk, because filters are slow on many small chunks.
        combined = pa.concat_tables(self._tables) if self._tables else self.schema.empty_table()
        return combined.combine_chunks()


def _broadcast_to_column(
    value: Any, row_count: int, schema_field: pa.Field
) -> pa.Array | pa.ChunkedArray:
    """Convert one value for all rows, or a value for each row, to a column."""
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value.cast(schema_field.type)
    if value is None or isinstance(value, str | int | float):
        return pa.repeat(pa.scalar(value, schema_field.type), row_count)
    return pa.array(value, schema_field.type, from_pandas=True)


class UntrainedValues(NamedTuple):
    """Hold the values of small untrained models.

    Attributes:
        tables: The values of each model.
        failure: Why there are none; empty if there are, or none were wanted.
    """

    tables: Sequence[pa.Table] = ()
    failure: str = ""

    def select_values(self, conditions: RowConditions) -> UntrainedValues:
        """Select rows of each table."""
        return self._replace(tables=[select_evidence(table, conditions) for table in self.tables])


NO_UNTRAINED_VALUES = UntrainedValues()


def compute_measure_findings(
    audit: str,
    values: pa.Table,
    measures: Iterable[Measure],
    config: HasSeed,
    method_note: str = "",
    untrained_values: UntrainedValues = NO_UNTRAINED_VALUES,
) -> list[Finding]:
    """Compute the findings of each measure and slice; ``method_note`` ends each method."""
    findings: list[Finding | None] = []
    metrics_without_training_text: set[str] = set()
    for measure in measures:
        value_filter = measure.value_filter
        measure_values = select_evidence(values, {"measure": value_filter["measure"]})
        filtered_values = select_evidence(measure_values, value_filter)
        untrained = NO_UNTRAINED_VALUES
        if measure.compares_with_untrained:
            untrained = untrained_values.select_values(value_filter)
        slices = measure.list_slices(filtered_values)
        build: Callable[..., Finding | None] = partial(_build_measure_finding, untrained=untrained)
        if measure.is_control:
            build = _build_control_finding
        elif (
            pc.any(filtered_values[IN_TRAINING_TEXT]).as_py()
            and measure.metric not in metrics_without_training_text
        ):
            metrics_without_training_text.add(measure.metric)
            slices += [Slice({IN_TRAINING_TEXT: False}, {IN_TRAINING_TEXT: False})]
        for tags, slice_filter in slices:
            findings.append(
                build(
                    audit,
                    select_evidence(filtered_values, slice_filter),
                    measure,
                    config,
                    tags,
                    value_filter | slice_filter,
                    method_note,
                    measure_values,
                )
            )
    return [finding for finding in findings if finding]


def _find_slices_by_columns(values: pa.Table, column_names: str | tuple[str, ...]) -> list[Slice]:
    """Find the slices for each value of a column, or each combination of several columns."""
    tag_columns = [column_names] if isinstance(column_names, str) else [*column_names]
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
        Slice({tag: v for tag, v in combination.items() if v is not None}, combination)
        for combination in known_combinations
    ]


def _build_measure_finding(
    audit: str,
    slice_values: pa.Table,
    measure: Measure,
    config: HasSeed,
    tags: Mapping[str, Any],
    value_filter: RowConditions,
    method_note: str,
    measure_values: pa.Table,
    untrained: UntrainedValues,
) -> Finding | None:
    slice_estimate = estimate_measure(slice_values, measure, config)
    if slice_estimate is None:
        return None
    if untrained.failure:
        method_note += (
            "; not compared with untrained models because no small model with this architecture "
            f"could be used ({untrained.failure})"
        )
    elif untrained.tables:
        slice_filter = {
            name: condition for name, condition in value_filter.items() if name != "measure"
        }
        slice_estimate = require_difference_from_baseline(
            slice_estimate,
            [
                average_known_values(read_float_column(table, "value"))
                for table in untrained.select_values(slice_filter).tables
            ],
            "untrained models",
            _measure_one_item(slice_values),
        )
    if measure.baseline is not None:
        slice_estimate = measure.baseline.replace_null(slice_estimate, slice_values, measure_values)
    read_counts = (
        slice_values["times_read"].to_pylist()
        if "times_read" in slice_values.column_names
        else [None]
    )
    read_note = "" if None in read_counts else describe_times_read(read_counts)
    method = _describe_method(measure, slice_values, config, method_note, read_note)
    order_by_direction = {"up": "-value", "down": "value"}
    order = order_by_direction.get(measure.worse_when) or choose_evidence_order(
        slice_estimate.value, slice_estimate.null_value, "value"
    )
    return build_finding_from_estimate(
        audit,
        measure.metric,
        slice_estimate,
        unit=measure.unit,
        method_prefix=method,
        tags={**tags, **measure.tags},
        evidence_filter=value_filter,
        evidence_table="values",
        worse_when=measure.worse_when,
        is_variant=measure.is_variant
        or IN_TRAINING_TEXT in tags
        or measure.is_variant_slice(tags, config),
        scorer=join_scorer_names(slice_values),
        evidence_order=measure.evidence_order or order,
        null_name=measure.baseline.name_null(measure_values) if measure.baseline else "",
    )


def _measure_one_item(values: pa.Table) -> float:
    """Return how much one item changes the mean: the standard deviation of the values over n."""
    known_values = values["value"].drop_null().to_numpy()
    return float(known_values.std() / len(known_values)) if len(known_values) else 0.0


def join_scorer_names(values: pa.Table) -> str:
    """Join the names of the scorers that decided these values; empty if there is none."""
    if SCORED_BY.name not in values.column_names:
        return ""
    return ", ".join(pc.unique(values[SCORED_BY.name]).drop_null().to_pylist())


def _build_control_finding(
    audit: str,
    slice_values: pa.Table,
    measure: Measure,
    config: HasSeed,
    tags: Mapping[str, Any],
    value_filter: RowConditions,
    method_note: str,
    measure_values: pa.Table,
) -> Finding | None:
    """Build the finding of a control that is computed from the model's own values."""
    control, slice_estimate = measure.control, estimate_measure(slice_values, measure, config)
    if control is None or slice_estimate is None:
        return None
    options: dict[str, Any] = {"control": "positive", "control_target": "model"}
    needed = slice_estimate.null_value
    if control.null_interval is None:
        passed, rule = (
            slice_estimate.low > needed,
            f"if the whole interval is above {needed:g}",
        )
    else:
        null_interval = control.null_interval(max(1, slice_estimate.n), config)
        null_description = (
            f"the mean of {format_count(slice_estimate.n, 'value')} if there is no effect "
            f"(expected value {null_interval.expected:.4f})"
        )
        rule = (
            f"if the value is above {null_interval.high:.4f}; {null_description} exceeds this "
            f"bound in {(1 - NULL_INTERVAL_LEVEL) / 2:.1%} of cases"
        )
        needed = null_interval.high
        passed = slice_estimate.value > needed
        if control.target == "instrument":
            options = {
                "control": "negative",
                "control_target": "instrument",
                "confidence_level": NULL_INTERVAL_LEVEL,
            }
            passed, rule = (
                null_interval.low <= slice_estimate.value <= null_interval.high,
                "if the value is within the null interval",
            )
            slice_estimate = replace(
                slice_estimate,
                low=null_interval.low,
                high=null_interval.high,
                method=f"{NULL_INTERVAL_NOTE} {null_description}",
            )
    reads_low = control.null_interval is None
    if control.target == "model" and not passed:
        value, low = (
            None if np.isnan(figure) else figure
            for figure in (slice_estimate.value, slice_estimate.low)
        )
        options["inconclusive_reason"] = describe_weakness(
            measure.title,
            measure.unit,
            value,
            low,
            needed,
            reads_low=reads_low,
            method=slice_estimate.method,
        )
    method = _describe_method(
        measure, slice_values, config, method_note, f"the control passes {rule}"
    )
    finding = build_finding_from_estimate(
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
    if control.target != "model":
        return finding
    verdict = judge_capability(bool(passed), finding.value, finding.low, reads_low=reads_low)
    return replace(finding, verdict=verdict)


def _describe_method(measure: Measure, values: pa.Table, config: HasSeed, *notes: str) -> str:
    method = measure.method(values, config) if callable(measure.method) else measure.method
    return "; ".join(filter(None, (method, *notes)))


def estimate_measure(
    values: pa.Table, measure: Measure, config: HasSeed, confidence_level: float = CONFIDENCE_LEVEL
) -> Estimate | None:
    """Estimate a measure; if all values are uninformative, the estimate is NaN."""
    value_array = read_float_column(values, "value")
    known_values, measure_estimate = (
        value_array[~np.isnan(value_array)],
        measure.estimator(values, measure, config, confidence_level),
    )
    if (
        measure_estimate is None
        or not len(known_values)
        or (known_values != measure.uninformative).any()
    ):
        return measure_estimate
    reason = (
        f"not measured: all known values are {measure.uninformative:g} (n = "
        f"{len(known_values):,}), which is uninformative"
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
    """Read a column as float64, (n,), NaN for null."""
    values: np.ndarray = table[column_name].to_numpy(zero_copy_only=False).astype(np.float64)
    return values


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
    """Compute the preferences of a model that gives every byte the same probability.

    Returns:
        1 where the first text has fewer bytes, 0 where it has more, 0.5 where they are equal.
    """
    byte_lengths = [[len(text.encode()) for text in texts] for texts in (first_texts, second_texts)]
    return (np.sign(np.subtract(byte_lengths[1], byte_lengths[0])) + 1) / 2
