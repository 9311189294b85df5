"""Figures: the numbers on a card, each computed from rows that anyone can look at.

A ``Book`` makes the figures of one card. It reads the rows, computes the value and notes which
rows they were, so that a figure cannot differ from its evidence. Artifacts are named by stage
and content digest: a card depends on what its inputs hold, not on the code that made them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from hallmark.tasks.audits.judging.evidence_filters import (
    build_row_filter,
    convert_to_column_type,
    locate_evidence,
    sort_worst_first,
)
from hallmark.tasks.contract import (
    Artifact,
    Column,
    HallmarkError,
    column,
    describe_columns,
    table_schema,
)

FIGURES = table_schema(
    "The figures of the card, each with the rows and the computation behind it.",
    column("id", pa.string(), "id", "the figure, as its pages name it"),
    column("label", pa.string(), "label", "what it is"),
    column(
        "value",
        pa.float64(),
        "figure",
        "the number; null where it could not be measured: missing_reason says why",
    ),
    column("unit", pa.string(), "label", "unit of the value"),
    column("low", pa.float64(), "figure", "lower end of its interval"),
    column("high", pa.float64(), "figure", "upper end"),
    column(
        "confidence_level", pa.float64(), "figure", "level of the interval, as 0.95", unit="share"
    ),
    column("n", pa.int64(), "figure", "units that were measured"),
    column("scorer", pa.string(), "label", "name and digest, where a scorer took part"),
    column("method", pa.string(), "project text", "how it was measured"),
    column("missing_reason", pa.string(), "project text", "why there is no value"),
    column("stage", pa.string(), "label", "label of the stage in the run"),
    column(
        "content_digest",
        pa.string(),
        "id",
        "content digest of its artifact; of a corpus stage, of the tables that cards read",
    ),
    column("evidence_table", pa.string(), "label", "the table that holds the rows"),
    column("sha256", pa.string(), "id", "SHA-256 of the table"),
    column(
        "evidence_filter",
        pa.string(),
        "label",
        "JSON: column = value conditions that select the rows",
    ),
    column("value_column", pa.string(), "label", "the column that was computed with"),
    column("aggregate", pa.string(), "label", "how the rows make the value"),
    column("row_count", pa.int64(), "figure", "rows behind the value", unit="rows"),
    column("page_path", pa.string(), "label", "where the rows are shown"),
)

AggregateKind = Literal[
    "count", "sum", "mean", "ratio", "min", "max", "last", "distinct", "finding"
]

#: How rows make a value. ratio: of the sums of two columns, "violations/documents", or of several
#: to one, "removed_rows+removed_spans/input". last: the value of the last row that has one.
#: finding: an audit computed it, see its method.
AGGREGATE_KINDS: tuple[str, ...] = (
    "count",
    "sum",
    "mean",
    "ratio",
    "min",
    "max",
    "last",
    "distinct",
    "finding",
)

Conditions = Mapping[str, Any]

#: Bytes of the files of a table that is held while a card is made.
MAX_IN_MEMORY_BYTES = 1 << 18


@dataclass(frozen=True)
class Evidence:
    """The rows of one table that one or more figures rest on.

    ``where`` are conditions as findings have them. None means the whole table.
    """

    stage: str
    artifact: Artifact
    table: str  # a table of the artifact, or the name of a file that ``data`` was read from
    conditions: Conditions
    file_rows: pa.Table | None = None
    row_order: str = ""  #: which rows stand first, as findings have it
    #: Tables that were opened for a card, by stage and name.
    open_datasets: dict[tuple[str, str], ds.Dataset] = field(default_factory=dict, compare=False)

    @property
    def sha256(self) -> str:
        if self.file_rows is not None:
            return str(self.artifact.manifest["files"][self.table]["sha256"])
        return self.artifact[self.table].digest

    @functools.cached_property
    def columns_by_name(self) -> Mapping[str, Column]:
        """What is said of the table's columns, by their names."""
        if self.file_rows is None:
            return self.artifact[self.table].columns
        return {
            described_column.name: described_column
            for described_column in describe_columns(self.file_rows.schema)
        }

    def get_column_description(self, name: str) -> Column:
        """What a column is; one that nothing is said of may hold anything."""
        return self.columns_by_name.get(name, Column(name, "", "personal"))

    @property
    def is_worst_first(self) -> bool:
        """Whether the order is one of harm; ordered by item, the two of a pair stand together."""
        return self.row_order not in ("", "item")

    @property
    def page_path(self) -> str:
        identity = f"{self.stage}#{self.table}#{self.conditions_json}{self.row_order}"
        digest = hashlib.sha256(identity.encode())
        return f"rows/{slugify(self.stage)}-{slugify(self.table)}-{digest.hexdigest()[:10]}.html"

    @property
    def conditions_json(self) -> str:
        return json.dumps(dict(self.conditions), sort_keys=True)

    @functools.cached_property
    def dataset(self) -> ds.Dataset:
        if self.file_rows is not None:
            return ds.dataset(self.file_rows)
        key = (self.stage, self.table)
        if key not in self.open_datasets:
            table = self.artifact[self.table]
            fits_in_memory = (
                table.byte_size <= MAX_IN_MEMORY_BYTES
            )  # hundreds of figures rest on a few small tables
            self.open_datasets[key] = (
                ds.dataset(table.read()) if fits_in_memory else table.to_dataset()
            )
        return self.open_datasets[key]

    def build_filter_expression(self) -> ds.Expression | None:
        """The conditions as an Arrow expression."""
        try:
            return build_row_filter(self.dataset.schema, self.conditions)
        except KeyError as error:
            raise HallmarkError(
                f"the evidence of {self.stage} names a column that its table {self.table!r} does "
                f"not have: {error!s:.120}; the columns: {self.dataset.schema.names}"
            ) from error

    @functools.cached_property
    def in_memory_rows(self) -> pa.Table | None:
        """The rows of a table that is held; None where they are to be scanned for."""
        is_in_memory = isinstance(self.dataset, ds.InMemoryDataset)
        return (
            self.dataset.to_table(filter=self.build_filter_expression()) if is_in_memory else None
        )

    @functools.cached_property
    def row_count(self) -> int:
        if not self.conditions and self.file_rows is None:
            return self.artifact[self.table].row_count
        matching_rows = self.in_memory_rows
        return (
            self.dataset.count_rows(filter=self.build_filter_expression())
            if matching_rows is None
            else len(matching_rows)
        )

    def read_first_rows(self, limit: int) -> pa.Table:
        """The first rows, the worst where some are."""
        matching_rows = self.in_memory_rows
        if matching_rows is None and not self.row_order:
            return self.dataset.head(limit, filter=self.build_filter_expression())
        sortable_rows = (
            self.dataset.to_table(filter=self.build_filter_expression())
            if matching_rows is None
            else matching_rows
        )
        return sort_worst_first(sortable_rows, self.row_order)[:limit]

    def read_column(self, name: str) -> pa.ChunkedArray:
        matching_rows = self.in_memory_rows
        return (
            self.dataset.to_table([name], self.build_filter_expression())
            if matching_rows is None
            else matching_rows
        )[name]

    def format_python_code(self) -> str:
        """Python lines that get all of these rows from the store."""
        if self.file_rows is not None:
            return f"# read from the file {self.table} of the artifact"
        filter_terms = []
        for column_name, value in self.conditions.items():
            data_type = self.dataset.schema.field(column_name).type
            field_expression = f"pc.field({column_name!r})"
            if isinstance(value, Mapping):
                operators = {"ge": ">=", "lt": "<"}
                filter_terms += [
                    f"({field_expression} {operators[comparison]} {bound!r})"
                    for comparison, bound in value.items()
                ]
            elif value is None:
                filter_terms.append(f"{field_expression}.is_null()")
            elif isinstance(value, list):
                members = [convert_to_column_type(item, data_type) for item in value]
                filter_terms.append(f"{field_expression}.isin({members!r})")
            else:
                filter_terms.append(
                    f"({field_expression} == {convert_to_column_type(value, data_type)!r})"
                )
        lines = [
            "import pyarrow.compute as pc",
            "from hallmark import open_artifact",
            "",
            f'rows = open_artifact("{self.artifact.name}")[{self.table!r}].read()',
        ]
        return "\n".join(
            [*lines, *([f"rows = rows.filter({' & '.join(filter_terms)})"] if filter_terms else [])]
        )


@dataclass(frozen=True)
class Figure:
    """One number on a card."""

    id: str
    label: str
    value: float | None
    unit: str
    evidence: Evidence
    value_column: str
    aggregate: AggregateKind
    low: float | None = None
    high: float | None = None
    confidence_level: float | None = None
    n: int | None = None
    scorer: str = ""
    method: str = ""
    missing_reason: str = ""
    missing_text: str = "not measured"  # what is said in place of a value, where there is none

    @property
    def page_path(self) -> str:
        return self.evidence.page_path

    @property
    def short_text(self) -> str:
        """The value alone, for a cell of a table that says the rest."""
        if self.value is None:
            return self.missing_text
        return format_value(self.value, self.unit)

    @property
    def interval_text(self) -> str:
        if self.low is None or self.high is None:
            return "–"
        return f"{format_value(self.low, self.unit)} to {format_value(self.high, self.unit)}"

    @property
    def full_text(self) -> str:
        """The value with its unit, and its interval, n and scorer where it has them."""
        value_text = (
            self.short_text
            if self.value is None
            else f"{self.short_text}{_format_unit_suffix(self.unit)}"
        )
        details = []
        if self.value is None:
            details.append(self.missing_reason or self.method or "no reason is given")
        if self.low is not None and self.high is not None:
            level_text = (
                "" if self.confidence_level is None else f"{100 * self.confidence_level:g} % "
            )
            details.append(f"{level_text}interval {self.interval_text}")
        if self.n is not None:
            details.append(f"n = {self.n:,}")
        if self.scorer:
            details.append(f"scorer {self.scorer}")
        return f"{value_text} ({', '.join(details)})" if details else value_text


def slugify(text: str) -> str:
    """Lower-case letters, digits and hyphens of a text: for anchors, ids and file names."""
    ascii_text = "".join(
        character if character.isascii() and character.isalnum() else " "
        for character in text.lower()
    )
    return "-".join(ascii_text.split()) or "none"


def format_count(count: int, singular: str, plural: str = "") -> str:
    """A count with its noun: "1 row", "1,234 rows"."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


#: The unit of what is a difference of two shares: written in percentage points.
SHARE_DIFFERENCE = "difference of shares"


def format_value(value: float, unit: str) -> str:
    """A number for reading: counts in full, shares in per cent, their differences in percentage
    points, others to four digits."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("−∞" if value < 0 else "∞")
    value += 0.0  # there is no −0
    if unit in ("share", SHARE_DIFFERENCE):
        percent = 100 * value
        digits = 1 if abs(percent) >= 1 or percent == 0 else 2
        text = f"{percent:.{digits}f}"
        # Never let almost all pass for all, nor something small for nothing.
        while abs(percent) < 100 - 1e-9 and abs(float(text)) == 100:
            digits += 1
            text = f"{percent:.{digits}f}"
        if percent and not float(text):
            digits = 1 - math.floor(math.log10(abs(percent)))
            text = f"{percent:.{digits}f}" if digits <= 6 else f"{percent:.1e}"
        return f"{text} {'%' if unit == 'share' else 'points'}".replace("-", "−")
    if float(value).is_integer() and abs(value) < 1e15 and unit not in CONTINUOUS_UNITS:
        return f"{int(value):,}".replace("-", "−")
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3e}".replace("-", "−")
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 3
    return f"{value:,.{min(digits, 4)}f}".replace("-", "−")


#: Units of what is measured on a scale; everything else is counted.
CONTINUOUS_UNITS = frozenset(
    {
        "bits",
        "nats",
        "bits per byte",
        "bytes a token",
        "nats a token",
        "score",
        "probability",
        "p",
        "times",
        "",
    }
)


def _format_unit_suffix(unit: str) -> str:
    return "" if unit in ("share", SHARE_DIFFERENCE, "score", "p", "") else f" {unit}"


@dataclass
class FigureBook:
    """The figures of one card. ``artifacts`` are the inputs, by their labels in the run."""

    artifacts: Mapping[str, Artifact]
    figures: dict[str, Figure] = field(default_factory=dict)
    _evidence_by_page: dict[str, Evidence] = field(default_factory=dict)
    _open_datasets: dict[tuple[str, str], ds.Dataset] = field(default_factory=dict)

    def get_evidence(
        self,
        stage: str,
        table: str,
        conditions: Conditions | None = None,
        file_rows: pa.Table | None = None,
        row_order: str = "",
    ) -> Evidence:
        new_evidence = Evidence(
            stage,
            self.artifacts[stage],
            table,
            conditions or {},
            file_rows,
            row_order,
            self._open_datasets,
        )
        return self._evidence_by_page.setdefault(new_evidence.page_path, new_evidence)

    def add_computed_figure(
        self,
        figure_id: str,
        label: str,
        unit: str,
        source: tuple[str, str],
        conditions: Conditions | None = None,
        *,
        aggregate: AggregateKind = "sum",
        value_column: str = "",
        file_rows: pa.Table | None = None,
        **figure_fields: Any,
    ) -> Figure:
        """Compute a figure from the rows of ``source`` (stage, table) and enter it.

        ``data``: the rows of a file of the artifact, then ``source`` names the file. ``more``
        are fields of Figure (n, method, scorer, note).
        """
        evidence = self.get_evidence(*source, conditions, file_rows)
        value = _compute_aggregate(evidence, aggregate, value_column)
        if value is None and not figure_fields.get("missing_reason"):
            figure_fields["missing_reason"] = "no row has a value"
        return self.add_figure(
            Figure(
                figure_id, label, value, unit, evidence, value_column, aggregate, **figure_fields
            )
        )

    def add_finding_figure(self, stage: str, finding_row: Mapping[str, Any]) -> Figure:
        """Enter a finding of an audit; its evidence are the rows that the audit names."""
        id_parts = [
            finding_row["audit"],
            finding_row["metric"],
            finding_row["slice"],
            finding_row["control"],
        ]
        label = " ".join(str(part) for part in id_parts[1:] if part).replace("_", " ")
        try:
            table, conditions, row_order = locate_evidence(finding_row)
        except ValueError as error:
            raise HallmarkError(
                f"finding {label!r:.120} of {stage}: its conditions "
                f"{finding_row['evidence_filter']!r:.80} are no "
                f"JSON object"
            ) from error
        value = finding_row["value"]
        evidence = self.get_evidence(stage, table, conditions, row_order=row_order)
        return self.add_figure(
            Figure(
                "-".join(str(part) for part in id_parts if part),
                label,
                None if value is None or math.isnan(value) else value,
                finding_row["unit"],
                evidence,
                "",
                "finding",
                low=finding_row["low"],
                high=finding_row["high"],
                confidence_level=finding_row["confidence_level"],
                n=finding_row["n"],
                scorer=finding_row["scorer"] or "",
                method=finding_row["method"] or "",
            )
        )

    def add_figure(self, figure: Figure) -> Figure:
        """Keep a figure under an id of its own."""
        base_id = unique_id = slugify(figure.id)
        suffix = 1
        while unique_id in self.figures:
            suffix += 1
            unique_id = f"{base_id}-{suffix}"
        figure = Figure(**{**figure.__dict__, "id": unique_id})
        self.figures[unique_id] = figure
        return figure

    def group_by_page(self) -> dict[str, tuple[Evidence, list[Figure]]]:
        """Pages of rows, each with its evidence and the figures that rest on it."""
        pages: dict[str, tuple[Evidence, list[Figure]]] = {}
        for figure in self.figures.values():
            pages.setdefault(figure.page_path, (figure.evidence, []))[1].append(figure)
        return dict(sorted(pages.items()))

    def build_figures_table(self) -> pa.Table:
        """The ``figures`` table of the card."""
        rows = []
        for figure in self.figures.values():
            row = {
                column_name: getattr(figure, column_name)
                for column_name in FIGURES.names
                if hasattr(figure, column_name)
            }
            row |= {
                "stage": figure.evidence.stage,
                "content_digest": figure.evidence.artifact.content_digest,
            }
            row |= {"evidence_table": figure.evidence.table, "sha256": figure.evidence.sha256}
            row |= {
                "evidence_filter": figure.evidence.conditions_json,
                "row_count": figure.evidence.row_count,
            }
            rows.append(row)
        return pa.Table.from_pylist(rows, schema=FIGURES)


def _compute_aggregate(
    evidence: Evidence, aggregate: AggregateKind, value_column: str
) -> float | None:
    if aggregate == "count":
        return float(evidence.row_count)
    if aggregate == "ratio":
        numerator, _, denominator = value_column.partition("/")
        denominator_sum = pc.sum(evidence.read_column(denominator)).as_py()
        numerator_sum = sum(
            pc.sum(evidence.read_column(column_name)).as_py() or 0
            for column_name in numerator.split("+")
        )
        return numerator_sum / denominator_sum if denominator_sum else None
    values = evidence.read_column(value_column)
    if aggregate == "distinct":
        return float(pc.count_distinct(values, mode="only_valid").as_py())
    if aggregate == "sum":
        return float(pc.sum(values).as_py() or 0)
    values = values.drop_null()
    if not len(values):
        return None
    if aggregate == "last":
        return float(values[-1].as_py())
    return float({"min": pc.min, "max": pc.max, "mean": pc.mean}[aggregate](values).as_py())
