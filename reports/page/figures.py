"""Figures: the numbers on a card, each computed from rows that a reader can inspect.

A ``FigureBook`` computes the figures of one card from rows and records which rows it used, so that
a figure cannot differ from its evidence. Artifacts are identified by stage and content digest: a
card depends on the content of its inputs, not on the code that produced them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from hallmark.tasks.audits.judging.evidence_filters import (
    build_row_filter,
    decode_hex_if_binary,
    locate_evidence,
    select_rows,
    sort_worst_first,
)
from hallmark.tasks.audits.slice_tags import label_part, name_slice
from hallmark.tasks.contract import (
    Artifact,
    Column,
    HallmarkError,
    column,
    describe_columns,
    table_schema,
    to_singular,
)

FIGURES = table_schema(
    "The card's figures and how each is computed from its evidence rows.",
    column("id", pa.string(), "id", "figure id, as used on the pages"),
    column("label", pa.string(), "label", "figure description"),
    column(
        "value",
        pa.float64(),
        "figure",
        "value of the figure; null if the figure could not be measured (see missing_reason)",
    ),
    column("unit", pa.string(), "label", "unit of the value"),
    column("low", pa.float64(), "figure", "lower bound of the interval"),
    column("high", pa.float64(), "figure", "upper bound of the interval"),
    column(
        "confidence_level",
        pa.float64(),
        "figure",
        "confidence level of the interval, such as 0.95",
        unit="share",
    ),
    column("n", pa.int64(), "figure", "number of measured units"),
    column("scorer", pa.string(), "label", "name and digest of the scorer, if one was used"),
    column("method", pa.string(), "project text", "how the value was measured"),
    column(
        "inconclusive_reason",
        pa.string(),
        "project text",
        "why the value permits no conclusion; empty if it may",
    ),
    column("missing_reason", pa.string(), "project text", "why the value is missing"),
    column("missing_text", pa.string(), "project text", "text shown if the value is missing"),
    column("value_column", pa.string(), "label", "name of the aggregated column"),
    column("aggregate", pa.string(), "label", "how the value is computed from the rows"),
    column("evidence_id", pa.string(), "id", "id of the row selection in the evidence table"),
)

EVIDENCE = table_schema(
    "The rows that support the card's figures: for each figure, the table and the conditions that "
    "select its rows.",
    column("id", pa.string(), "id", "id of the row selection"),
    column("stage", pa.string(), "label", "stage label in the run"),
    column(
        "content_digest",
        pa.string(),
        "id",
        "content digest of the artifact; for corpus stages, the digest covers only the tables "
        "that cards read",
    ),
    column("evidence_table", pa.string(), "label", "name of the table or file with the rows"),
    column("sha256", pa.string(), "id", "SHA-256 of the table or file"),
    column(
        "evidence_filter",
        pa.string(),
        "label",
        "conditions that select the rows: a JSON object with the required value of each column",
    ),
    column(
        "row_order",
        pa.string(),
        "label",
        "column by which the rows are sorted; a leading - sorts in descending order; if empty, "
        "the rows keep their stored order",
    ),
    column("row_count", pa.int64(), "figure", "number of selected rows", unit="rows"),
)

#: How a value is computed from rows. ratio: sums of two columns, "violations/documents", or of
#: several over one, "removed_rows+removed_spans/input". last: the last value that is not null.
#: finding: computed by an audit, see the method.
AggregateKind = Literal[
    "count", "sum", "mean", "ratio", "min", "max", "last", "distinct", "finding"
]

Conditions = Mapping[str, Any]

#: The label of a stage, and the name of one of its tables or files.
StageAndTable = tuple[str, str]

#: A table in memory, or one that must be scanned.
OpenTable: TypeAlias = "pa.Table | ds.Dataset"

#: Tables of at most this many bytes stay in memory while a card is built.
MAX_IN_MEMORY_BYTES = 1 << 21


@dataclass(frozen=True)
class Evidence:
    """The rows of one table from which one or more figures are computed.

    Attributes:
        stage: The label of the stage.
        artifact: The artifact of the stage.
        table: A table of the artifact, or the name of the file that ``file_rows`` was read from.
        conditions: Conditions on columns, as in findings; empty means the whole table.
        file_rows: The rows that were read from a file.
        row_order: Which rows come first, as in findings.
        open_tables: Tables that were opened for the card, by stage and name.
    """

    stage: str
    artifact: Artifact
    table: str
    conditions: Conditions
    file_rows: pa.Table | None = None
    row_order: str = ""
    open_tables: dict[StageAndTable, OpenTable] = field(default_factory=dict, compare=False)

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the table or file."""
        if self.file_rows is not None:
            return str(self.artifact.manifest["files"][self.table]["sha256"])
        return self.artifact[self.table].digest

    @functools.cached_property
    def columns_by_name(self) -> Mapping[str, Column]:
        """Return the descriptions of the columns of the table."""
        if self.file_rows is None:
            return self.artifact[self.table].columns
        return {
            described_column.name: described_column
            for described_column in describe_columns(self.file_rows.schema)
        }

    def get_column_description(self, name: str) -> Column:
        """Return the description of a column; a column without one counts as personal data."""
        return self.columns_by_name.get(name, Column(name, "", "personal"))

    @property
    def is_worst_first(self) -> bool:
        """Return whether rows are ordered by harm.

        In the order "item", the two rows of a pair follow each other.
        """
        return self.row_order not in ("", "item")

    @functools.cached_property
    def id(self) -> str:
        """Return the id of this selection of rows, unique within a card."""
        identity = f"{self.stage}#{self.table}#{self.conditions_json}{self.row_order}"
        digest = hashlib.sha256(identity.encode())
        return f"{slugify(self.stage)}--{slugify(self.table)}--{digest.hexdigest()[:10]}"

    @property
    def conditions_json(self) -> str:
        return json.dumps(dict(self.conditions), sort_keys=True)

    @functools.cached_property
    def all_rows(self) -> OpenTable:
        """Return all rows of the table; small tables are read into memory."""
        if self.file_rows is not None:
            return self.file_rows
        key = (self.stage, self.table)
        if key not in self.open_tables:
            table = self.artifact[self.table]
            # Hundreds of figures are computed from a few small tables.
            fits_in_memory = table.byte_size <= MAX_IN_MEMORY_BYTES
            self.open_tables[key] = table.read() if fits_in_memory else table.to_dataset()
        return self.open_tables[key]

    @property
    def schema(self) -> pa.Schema:
        """Return the names and types of the columns of the table."""
        return self.all_rows.schema

    def read_rows(
        self, condition: pc.Expression | None, columns: list[str] | None = None
    ) -> pa.Table:
        """Return the rows of the table, not only the selected ones, that meet a condition."""
        rows = self.all_rows
        if isinstance(rows, ds.Dataset):
            return rows.to_table(columns, condition)
        matching_rows = rows if condition is None else rows.filter(condition)
        return matching_rows if columns is None else matching_rows.select(columns)

    def build_filter_expression(self) -> pc.Expression | None:
        """Return the conditions as an Arrow expression.

        Raises:
            HallmarkError: If a condition names a column that the table does not have.
        """
        with self._explain_missing_column():
            return build_row_filter(self.schema, self.conditions)

    @contextmanager
    def _explain_missing_column(self) -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise HallmarkError(
                f"the evidence of {self.stage} refers to a column that the {self.table!r} table "
                f"does not have: {error!s:.120}; valid columns: {self.schema.names}"
            ) from error

    @functools.cached_property
    def in_memory_rows(self) -> pa.Table | None:
        """Return the selected rows of a table in memory; None for a table that must be scanned."""
        if isinstance(self.all_rows, ds.Dataset):
            return None
        with self._explain_missing_column():
            return select_rows(self.all_rows, self.conditions)

    @functools.cached_property
    def row_count(self) -> int:
        """Return the number of selected rows."""
        if not self.conditions and self.file_rows is None:
            return self.artifact[self.table].row_count
        if isinstance(self.all_rows, ds.Dataset):
            return int(self.all_rows.count_rows(filter=self.build_filter_expression()))
        return len(self.read_selected_rows())

    def read_first_rows(self, limit: int) -> pa.Table:
        """Return the first ``limit`` rows in ``row_order``."""
        if isinstance(self.all_rows, ds.Dataset) and not self.row_order:
            return self.all_rows.head(limit, filter=self.build_filter_expression())
        return sort_worst_first(self.read_selected_rows(), self.row_order, limit)

    def read_column(self, name: str) -> pa.ChunkedArray:
        """Return a column of the selected rows."""
        return self.read_selected_rows([name])[name]

    def read_selected_rows(self, columns: list[str] | None = None) -> pa.Table:
        """Return the selected rows; those of a table in memory with all columns."""
        if self.in_memory_rows is not None:
            return self.in_memory_rows
        return self.read_rows(self.build_filter_expression(), columns)

    def format_python_code(self) -> str:
        """Return Python code that reads all of these rows from the store."""
        if self.file_rows is not None:
            return f"# these rows are in the artifact's {self.table} file"
        lines = [self.format_python_table_code(), self.format_python_filter_code()]
        return "\n".join(filter(None, lines))

    def format_python_table_code(self) -> str:
        """Return Python code that reads the whole table from the store."""
        return (
            "from pyarrow.compute import field\nfrom hallmark import open_artifact\n\n"
            f'table = open_artifact("{self.artifact.name}")[{self.table!r}].read()'
        )

    def format_python_filter_code(self) -> str:
        """Return Python code that selects these rows of ``table``."""
        filter_terms = []
        for column_name, value in self.conditions.items():
            data_type = self.schema.field(column_name).type
            field_expression = f"field({column_name!r})"
            if isinstance(value, Mapping):
                operators = {"ge": ">=", "lt": "<"}
                filter_terms += [
                    f"({field_expression} {operators[comparison]} {bound!r})"
                    for comparison, bound in value.items()
                ]
            elif value is None:
                filter_terms.append(f"{field_expression}.is_null()")
            elif isinstance(value, list):
                members = [decode_hex_if_binary(item, data_type) for item in value]
                filter_terms.append(f"{field_expression}.isin({members!r})")
            else:
                filter_terms.append(
                    f"({field_expression} == {decode_hex_if_binary(value, data_type)!r})"
                )
        return (
            f"rows = table.filter({' & '.join(filter_terms)})" if filter_terms else "rows = table"
        )


@dataclass(frozen=True)
class Figure:
    """One number on a card.

    Attributes:
        id: The id of the figure, unique on the card.
        label: A description.
        value: The value; None if it could not be measured.
        unit: The unit of the value.
        evidence_id: The id of the rows from which it is computed.
        value_column: The column that is aggregated.
        aggregate: How the value is computed from the rows.
        low: The lower bound of the interval.
        high: The upper bound of the interval.
        confidence_level: The confidence level of the interval.
        n: The number of measured units.
        scorer: Name and digest of the scorer.
        method: How the value was measured.
        inconclusive_reason: Why the value permits no conclusion; empty if it may.
        missing_reason: Why there is no value.
        missing_text: The text shown in place of a missing value.
    """

    id: str
    label: str
    value: float | None
    unit: str
    evidence_id: str
    value_column: str
    aggregate: AggregateKind
    low: float | None = None
    high: float | None = None
    confidence_level: float | None = None
    n: int | None = None
    scorer: str = ""
    method: str = ""
    inconclusive_reason: str = ""
    missing_reason: str = ""
    missing_text: str = "not measured"

    @property
    def page_path(self) -> str:
        """Return the place of its rows on the static page of their stage, within the card."""
        return get_evidence_place(self.evidence_id)

    @property
    def short_text(self) -> str:
        """Return the value alone, for a table cell."""
        if self.value is None:
            return self.missing_text
        return format_number(self.value, self.unit)

    @property
    def interval_or_dash(self) -> str:
        """Return the interval as "low to high"; an en dash without an interval."""
        if self.low is None or self.high is None:
            return "–"
        return f"{format_number(self.low, self.unit)} to {format_number(self.high, self.unit)}"

    @property
    def full_text(self) -> str:
        """Return the value with its unit, and its interval, n and scorer where it has them."""
        value_text = (
            self.short_text
            if self.value is None
            else f"{self.short_text}{format_unit_suffix(self.unit, self.value)}"
        )
        details = []
        if self.value is None:
            details.append(self.missing_reason or self.method or "no reason is given")
        if self.low is not None and self.high is not None:
            level_text = (
                "" if self.confidence_level is None else f"{100 * self.confidence_level:.4g} % "
            )
            details.append(f"{level_text}interval {self.interval_or_dash}")
        if self.n is not None:
            details.append(f"n = {self.n:,}")
        if self.scorer:
            details.append(f"scorer {self.scorer}")
        return f"{value_text} ({', '.join(details)})" if details else value_text


def get_evidence_place(evidence_id: str) -> str:
    """Return the place of rows on the static page of their stage, within the card."""
    stage, _, _ = evidence_id.partition("--")
    return f"rows/{stage}.html#{get_evidence_anchor(evidence_id)}"


def get_evidence_anchor(evidence_id: str) -> str:
    """Return the anchor of rows on the page of their stage."""
    return f"rows-{evidence_id.rpartition('--')[2]}"


def slugify(text: str) -> str:
    """Return lower-case ASCII letters, digits and hyphens, for anchors, ids and file names."""
    ascii_text = "".join(
        character if character.isascii() and character.isalnum() else " "
        for character in text.lower()
    )
    return "-".join(ascii_text.split()) or "none"


#: The unit of a difference of two shares, written in percentage points.
SHARE_DIFFERENCE = "difference of shares"


def format_number(value: float, unit: str) -> str:
    """Format a number for reading.

    Counts are written in full, shares in per cent, differences of shares in percentage points, and
    other values with four digits.
    """
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("−∞" if value < 0 else "∞")
    value += 0.0  # turns -0.0 into 0.0
    if unit in ("share", SHARE_DIFFERENCE):
        percent = 100 * value
        digits = 1 if abs(percent) >= 1 or percent == 0 else 2
        text = f"{percent:.{digits}f}"
        # A share below 100 % is never rounded to 100 %, nor a share above 0 % to 0 %.
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


#: Units of continuous values; values in other units are counts.
CONTINUOUS_UNITS = frozenset(
    {
        "bits",
        "nats",
        "bits per byte",
        "bytes per token",
        "nats per token",
        "score",
        "probability",
        "p",
        "times",
        "log-odds per log-odds",
        "",
    }
)


#: Units that are not named next to a title, a score or a ratio.
UNNAMED_UNITS = frozenset({"", "share", "score", "times"})


def format_unit_suffix(unit: str, value: float) -> str:
    """Return what follows a formatted value: the unit, unless the value contains it."""
    if unit in UNNAMED_UNITS or unit in (SHARE_DIFFERENCE, "p"):
        return ""
    return f" {to_singular(unit)}" if value == 1 and unit not in CONTINUOUS_UNITS else f" {unit}"


@dataclass
class FigureBook:
    """The figures of one card.

    Attributes:
        artifacts: The inputs of the card, by their labels in the run.
        figures: The figures by id.
        evidence_by_id: The rows of the figures by id.
    """

    artifacts: Mapping[str, Artifact]
    figures: dict[str, Figure] = field(default_factory=dict)
    evidence_by_id: dict[str, Evidence] = field(default_factory=dict)
    _open_tables: dict[StageAndTable, OpenTable] = field(default_factory=dict)

    def get_evidence(
        self,
        stage: str,
        table: str,
        conditions: Conditions | None = None,
        file_rows: pa.Table | None = None,
        row_order: str = "",
    ) -> Evidence:
        """Return the evidence for a selection of rows; equal selections share one object."""
        new_evidence = Evidence(
            stage,
            self.artifacts[stage],
            table,
            conditions or {},
            file_rows,
            row_order,
            self._open_tables,
        )
        return self.evidence_by_id.setdefault(new_evidence.id, new_evidence)

    def add_computed_figure(
        self,
        figure_id: str,
        label: str,
        unit: str,
        source: StageAndTable,
        conditions: Conditions | None = None,
        *,
        aggregate: AggregateKind = "sum",
        value_column: str = "",
        file_rows: pa.Table | None = None,
        **figure_fields: Any,
    ) -> Figure:
        """Compute a figure from rows and add it.

        Args:
            figure_id: The id; it is made unique.
            label: A description.
            unit: The unit of the value.
            source: Stage and table, or stage and file.
            conditions: Conditions that select the rows.
            aggregate: How the value is computed from the rows.
            value_column: The column that is aggregated.
            file_rows: The rows of a file of the artifact, if ``source`` names a file.
            figure_fields: Further fields of ``Figure``, such as n or method.
        """
        evidence = self.get_evidence(*source, conditions, file_rows)
        value = _compute_aggregate(evidence, aggregate, value_column)
        if value is None and not figure_fields.get("missing_reason"):
            figure_fields["missing_reason"] = "no row has a value"
        return self.add_under_unique_id(
            Figure(
                figure_id, label, value, unit, evidence.id, value_column, aggregate, **figure_fields
            )
        )

    def add_finding_figure(self, stage: str, finding_row: Mapping[str, Any]) -> Figure:
        """Add a finding of an audit, with the rows that the audit names as evidence.

        Raises:
            HallmarkError: If the conditions of the finding are not a JSON object.
        """
        id_parts = [
            finding_row["audit"],
            finding_row["metric"],
            name_slice(finding_row["slice"]),
            finding_row["control"],
        ]
        part = label_part(finding_row["slice"])
        label = ", ".join(filter(None, (finding_row["title"], part, finding_row["control"])))
        try:
            table, conditions, row_order = locate_evidence(finding_row)
        except ValueError as error:
            raise HallmarkError(
                f"the conditions {finding_row['evidence_filter']!r:.80} of finding {label!r:.120} "
                f"in {stage} are not a JSON object"
            ) from error
        value = finding_row["value"]
        evidence = self.get_evidence(stage, table, conditions, row_order=row_order)
        return self.add_under_unique_id(
            Figure(
                "-".join(str(part) for part in id_parts if part),
                label,
                None if value is None or math.isnan(value) else value,
                finding_row["unit"],
                evidence.id,
                "",
                "finding",
                low=finding_row["low"],
                high=finding_row["high"],
                confidence_level=finding_row["confidence_level"],
                n=finding_row["n"],
                scorer=finding_row["scorer"] or "",
                method=finding_row["method"] or "",
                inconclusive_reason=finding_row["inconclusive_reason"] or "",
            )
        )

    def add_under_unique_id(self, figure: Figure) -> Figure:
        """Add a figure under a unique id and return it with that id.

        A figure that the book has already is returned and not added again.
        """
        base_id = unique_id = slugify(figure.id)
        suffix = 1
        while unique_id in self.figures:
            if replace(figure, id=unique_id) == self.figures[unique_id]:
                return self.figures[unique_id]
            suffix += 1
            unique_id = f"{base_id}-{suffix}"
        figure = replace(figure, id=unique_id)
        self.figures[unique_id] = figure
        return figure

    def group_figures_by_evidence_id(self) -> dict[str, list[Figure]]:
        """Return the figures of each selection of rows, in order of the ids of selections."""
        groups: dict[str, list[Figure]] = {}
        for figure in self.figures.values():
            groups.setdefault(figure.evidence_id, []).append(figure)
        return dict(sorted(groups.items()))

    def build_figures_table(self) -> pa.Table:
        """Return the ``figures`` table of the card."""
        rows = [
            {name: getattr(figure, name) for name in FIGURES.names}
            for figure in self.figures.values()
        ]
        return pa.Table.from_pylist(rows, schema=FIGURES)

    def build_evidence_table(self) -> pa.Table:
        """Return the ``evidence`` table of the card, in order of ids."""
        rows = [
            {
                "id": evidence_id,
                "stage": evidence.stage,
                "content_digest": evidence.artifact.content_digest,
                "evidence_table": evidence.table,
                "sha256": evidence.sha256,
                "evidence_filter": evidence.conditions_json,
                "row_order": evidence.row_order,
                "row_count": evidence.row_count,
            }
            for evidence_id in self.group_figures_by_evidence_id()
            for evidence in [self.evidence_by_id[evidence_id]]
        ]
        return pa.Table.from_pylist(rows, schema=EVIDENCE)


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
