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

from tasks.audits.judging.conditions import condition, native, ordered, place_of
from tasks.contract import Artifact, Column, HallmarkError, column, described, table

FIGURES = table(
    "The figures of the card, each with the rows and the computation behind it.",
    column("id", pa.string(), "id", "the figure, as its pages name it"),
    column("label", pa.string(), "label", "what it is"),
    column("value", pa.float64(), "figure",
           "the number; null where it could not be measured: the note says why"),
    column("unit", pa.string(), "label", "unit of the value"),
    column("low", pa.float64(), "figure", "lower end of its interval"),
    column("high", pa.float64(), "figure", "upper end"),
    column("level", pa.float64(), "figure", "level of the interval, as 0.95", unit="share"),
    column("n", pa.int64(), "figure", "units that were measured"),
    column("scorer", pa.string(), "label", "name and digest, where a scorer took part"),
    column("method", pa.string(), "project text", "how it was measured"),
    column("note", pa.string(), "project text", "why there is no value"),
    column("stage", pa.string(), "label", "label of the stage in the run"),
    column("content", pa.string(), "id",
           "content digest of its artifact; of a corpus stage, of the tables that cards read"),
    column("table", pa.string(), "label", "the table that holds the rows"),
    column("sha256", pa.string(), "id", "SHA-256 of the table"),
    column("where", pa.string(), "label", "JSON: column = value conditions that select the rows"),
    column("column", pa.string(), "label", "the column that was computed with"),
    column("aggregate", pa.string(), "label", "how the rows make the value"),
    column("rows", pa.int64(), "figure", "rows behind the value", unit="rows"),
    column("page", pa.string(), "label", "where the rows are shown"),
)  # fmt: skip

Aggregate = Literal[
    "count", "sum", "mean", "ratio", "min", "max", "last", "distinct", "finding"
]  # fmt: skip

#: How rows make a value. ratio: of the sums of two columns, "broken/documents", or of several to
#: one, "removed_rows+removed_spans/in". last: the value of the last row that has one. finding: an
#: audit computed it, see its method.
AGGREGATES: tuple[str, ...] = (
    "count", "sum", "mean", "ratio", "min", "max", "last", "distinct", "finding",
)  # fmt: skip

Where = Mapping[str, Any]

#: Bytes of the files of a table that is held while a card is made.
SMALL = 1 << 18


@dataclass(frozen=True)
class Evidence:
    """The rows of one table that one or more figures rest on.

    ``where`` are conditions as findings have them. None means the whole table.
    """

    stage: str
    artifact: Artifact
    table: str  # a table of the artifact, or the name of a file that ``data`` was read from
    where: Where
    data: pa.Table | None = None
    order: str = ""  #: which rows stand first, as findings have it
    #: Tables that were opened for a card, by stage and name.
    opened: dict[tuple[str, str], ds.Dataset] = field(default_factory=dict, compare=False)

    @property
    def sha256(self) -> str:
        if self.data is not None:
            return str(self.artifact.manifest["files"][self.table]["sha256"])
        return self.artifact[self.table].digest

    @functools.cached_property
    def said(self) -> Mapping[str, Column]:
        """What is said of the table's columns, by their names."""
        if self.data is None:
            return self.artifact[self.table].columns
        return {known.name: known for known in described(self.data.schema)}

    def column_of(self, name: str) -> Column:
        """What a column is; one that nothing is said of may hold anything."""
        return self.said.get(name, Column(name, "", "personal"))

    @property
    def page(self) -> str:
        what = f"{self.stage}#{self.table}#{self.condition}{self.order}"
        digest = hashlib.sha256(what.encode())
        return f"rows/{slug(self.stage)}-{slug(self.table)}-{digest.hexdigest()[:10]}.html"

    @property
    def condition(self) -> str:
        return json.dumps(dict(self.where), sort_keys=True)

    @functools.cached_property
    def dataset(self) -> ds.Dataset:
        if self.data is not None:
            return ds.dataset(self.data)
        key = (self.stage, self.table)
        if key not in self.opened:
            table = self.artifact[self.table]
            held = table.size <= SMALL  # hundreds of figures rest on a few small tables
            self.opened[key] = ds.dataset(table.read()) if held else table.dataset()
        return self.opened[key]

    def filter(self) -> ds.Expression | None:
        """The conditions as an Arrow expression."""
        try:
            return condition(self.dataset.schema, self.where)
        except KeyError as error:
            raise HallmarkError(
                f"the evidence of {self.stage} names a column that its table {self.table!r} does "
                f"not have: {error!s:.120}; the columns: {self.dataset.schema.names}"
            ) from error

    @functools.cached_property
    def selected(self) -> pa.Table | None:
        """The rows of a table that is held; None where they are to be scanned for."""
        held = isinstance(self.dataset, ds.InMemoryDataset)
        return self.dataset.to_table(filter=self.filter()) if held else None

    @functools.cached_property
    def rows(self) -> int:
        if not self.where and self.data is None:
            return self.artifact[self.table].rows
        held = self.selected
        return self.dataset.count_rows(filter=self.filter()) if held is None else len(held)

    def head(self, limit: int) -> pa.Table:
        """The first rows, the worst where some are."""
        held = self.selected
        if held is None and not self.order:
            return self.dataset.head(limit, filter=self.filter())
        rows = self.dataset.to_table(filter=self.filter()) if held is None else held
        return ordered(rows, self.order)[:limit]

    def column(self, name: str) -> pa.ChunkedArray:
        held = self.selected
        return (self.dataset.to_table([name], self.filter()) if held is None else held)[name]

    def python(self) -> str:
        """Python lines that get all of these rows from the store."""
        if self.data is not None:
            return f"# read from the file {self.table} of the artifact"
        terms = []
        for name, value in self.where.items():
            kind = self.dataset.schema.field(name).type
            cell = f"pc.field({name!r})"
            if isinstance(value, Mapping):
                signs = {"ge": ">=", "lt": "<"}
                terms += [f"({cell} {signs[how]} {bound!r})" for how, bound in value.items()]
            elif value is None:
                terms.append(f"{cell}.is_null()")
            elif isinstance(value, list):
                terms.append(f"{cell}.isin({[native(v, kind) for v in value]!r})")
            else:
                terms.append(f"({cell} == {native(value, kind)!r})")
        lines = [
            "import pyarrow.compute as pc",
            "from flows import open_artifact",
            "",
            f'rows = open_artifact("{self.artifact.name}")[{self.table!r}].read()',
        ]
        return "\n".join([*lines, *([f"rows = rows.filter({' & '.join(terms)})"] if terms else [])])


@dataclass(frozen=True)
class Figure:
    """One number on a card."""

    id: str
    label: str
    value: float | None
    unit: str
    evidence: Evidence
    column: str
    aggregate: Aggregate
    low: float | None = None
    high: float | None = None
    level: float | None = None
    n: int | None = None
    scorer: str = ""
    method: str = ""
    note: str = ""
    missing: str = "not measured"  # what is said in place of a value, where there is none

    @property
    def page(self) -> str:
        return self.evidence.page

    @property
    def short(self) -> str:
        """The value alone, for a cell of a table that says the rest."""
        if self.value is None:
            return self.missing
        return show(self.value, self.unit)

    @property
    def interval(self) -> str:
        if self.low is None or self.high is None:
            return "–"
        return f"{show(self.low, self.unit)} to {show(self.high, self.unit)}"

    @property
    def full(self) -> str:
        """The value with its unit, and its interval, n and scorer where it has them."""
        words = self.short if self.value is None else f"{self.short}{_unit_word(self.unit)}"
        more = []
        if self.value is None:
            more.append(self.note or self.method or "no reason is given")
        if self.low is not None and self.high is not None:
            level = "" if self.level is None else f"{100 * self.level:g} % "
            more.append(f"{level}interval {self.interval}")
        if self.n is not None:
            more.append(f"n = {self.n:,}")
        if self.scorer:
            more.append(f"scorer {self.scorer}")
        return f"{words} ({', '.join(more)})" if more else words


def slug(text: str) -> str:
    """Lower-case letters, digits and hyphens of a text: for anchors, ids and file names."""
    plain = "".join(c if c.isascii() and c.isalnum() else " " for c in text.lower())
    return "-".join(plain.split()) or "none"


#: The unit of what is a difference of two shares: written in percentage points.
POINTS = "difference of shares"


def show(value: float, unit: str) -> str:
    """A number for reading: counts in full, shares in per cent, their differences in percentage
    points, others to four digits."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("−∞" if value < 0 else "∞")
    value += 0.0  # there is no −0
    if unit in ("share", POINTS):
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
    if float(value).is_integer() and abs(value) < 1e15 and unit not in MEASURES:
        return f"{int(value):,}".replace("-", "−")
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3e}".replace("-", "−")
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 3
    return f"{value:,.{min(digits, 4)}f}".replace("-", "−")


#: Units of what is measured on a scale; everything else is counted.
MEASURES = frozenset(
    {"bits", "nats", "bits per byte", "bytes a token", "nats a token", "score", "probability",
     "p", "times", ""}
)  # fmt: skip


def _unit_word(unit: str) -> str:
    return "" if unit in ("share", POINTS, "score", "p", "") else f" {unit}"


@dataclass
class Book:
    """The figures of one card. ``artifacts`` are the inputs, by their labels in the run."""

    artifacts: Mapping[str, Artifact]
    figures: dict[str, Figure] = field(default_factory=dict)
    _seen: dict[str, Evidence] = field(default_factory=dict)
    _opened: dict[tuple[str, str], ds.Dataset] = field(default_factory=dict)

    def evidence(
        self,
        stage: str,
        table: str,
        where: Where | None = None,
        data: pa.Table | None = None,
        order: str = "",
    ) -> Evidence:
        made = Evidence(stage, self.artifacts[stage], table, where or {}, data, order, self._opened)
        return self._seen.setdefault(made.page, made)

    def figure(
        self,
        name: str,
        label: str,
        unit: str,
        source: tuple[str, str],
        where: Where | None = None,
        *,
        aggregate: Aggregate = "sum",
        column: str = "",
        data: pa.Table | None = None,
        **more: Any,
    ) -> Figure:
        """Compute a figure from the rows of ``source`` (stage, table) and enter it.

        ``data``: the rows of a file of the artifact, then ``source`` names the file. ``more``
        are fields of Figure (n, method, scorer, note).
        """
        evidence = self.evidence(*source, where, data)
        value = _compute(evidence, aggregate, column)
        if value is None and not more.get("note"):
            more["note"] = "no row has a value"
        return self.enter(Figure(name, label, value, unit, evidence, column, aggregate, **more))

    def finding(self, stage: str, row: Mapping[str, Any]) -> Figure:
        """Enter a finding of an audit; its evidence are the rows that the audit names."""
        parts = [row["audit"], row["metric"], row["slice"], row["control"]]
        label = " ".join(str(part) for part in parts[1:] if part).replace("_", " ")
        try:
            table, where, order = place_of(row)
        except ValueError as error:
            raise HallmarkError(
                f"finding {label!r:.120} of {stage}: its conditions {row['where']!r:.80} are no "
                f"JSON object"
            ) from error
        value = row["value"]
        evidence = self.evidence(stage, table, where, order=order)
        return self.enter(
            Figure(
                "-".join(str(part) for part in parts if part), label,
                None if value is None or math.isnan(value) else value,
                row["unit"], evidence, "", "finding",
                low=row["low"], high=row["high"], level=row["level"], n=row["n"],
                scorer=row["scorer"] or "", method=row["method"] or "",
            )
        )  # fmt: skip

    def enter(self, figure: Figure) -> Figure:
        """Keep a figure under an id of its own."""
        base = name = slug(figure.id)
        count = 1
        while name in self.figures:
            count += 1
            name = f"{base}-{count}"
        figure = Figure(**{**figure.__dict__, "id": name})
        self.figures[name] = figure
        return figure

    def cited(self) -> dict[str, tuple[Evidence, list[Figure]]]:
        """Pages of rows, each with its evidence and the figures that rest on it."""
        pages: dict[str, tuple[Evidence, list[Figure]]] = {}
        for figure in self.figures.values():
            pages.setdefault(figure.page, (figure.evidence, []))[1].append(figure)
        return dict(sorted(pages.items()))

    def table(self) -> pa.Table:
        """The ``figures`` table of the card."""
        rows = []
        for f in self.figures.values():
            row = {name: getattr(f, name) for name in FIGURES.names if hasattr(f, name)}
            row |= {"stage": f.evidence.stage, "content": f.evidence.artifact.content}
            row |= {"table": f.evidence.table, "sha256": f.evidence.sha256}
            row |= {"where": f.evidence.condition, "rows": f.evidence.rows}
            rows.append(row)
        return pa.Table.from_pylist(rows, schema=FIGURES)


def _compute(evidence: Evidence, aggregate: Aggregate, column: str) -> float | None:
    if aggregate == "count":
        return float(evidence.rows)
    if aggregate == "ratio":
        top, _, bottom = column.partition("/")
        below = pc.sum(evidence.column(bottom)).as_py()
        above = sum(pc.sum(evidence.column(name)).as_py() or 0 for name in top.split("+"))
        return above / below if below else None
    values = evidence.column(column)
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
