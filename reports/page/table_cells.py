"""Render values of tables as cells, each as its column allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from typing import Any

import pyarrow as pa
from markupsafe import Markup, escape

from hallmark.reports.page.redaction import (
    NO_NEIGHBOURS,
    Redactor,
    TextNeighbours,
    find_prompt_column_by_response_column,
    get_shown_neighbours,
)
from hallmark.tasks.contract import Column

_MAX_LABEL_CHARACTERS = 160

#: Number of ids of a list that a cell shows.
_MAX_LIST_IDS = 3


@dataclass
class TableCell:
    """A rendered table cell: its text, its CSS class, and the ids before its text."""

    text: str = ""
    css_class: str = ""
    ids: Sequence[str] = ()


#: Shown where a row has no value.
EMPTY_CELL = TableCell("–", "muted")


def render_table_rows(
    columns: Sequence[Column], first_rows: pa.Table, redactor: Redactor
) -> Markup:
    """Render the rows of a table body.

    This is Python and not a template, since a card has hundreds of thousands of cells and a
    template takes longer than everything else.
    """
    rendered_columns = [
        _render_column_cells(column, columns, first_rows, redactor) for column in columns
    ]
    table_rows = [f"<tr>{''.join(cells)}</tr>" for cells in zip(*rendered_columns, strict=True)]
    return Markup("\n".join(table_rows))  # noqa: S704  # the cells are escaped


def _render_column_cells(
    column: Column,
    columns: Sequence[Column],
    first_rows: pa.Table,
    redactor: Redactor,
) -> Iterable[str]:
    """Render the cells of a column; equal values with equal neighbours are rendered once."""

    def render_value(
        value: Any,
        judging_score: float | None,
        shown_neighbours: TextNeighbours = NO_NEIGHBOURS,
    ) -> str:
        return _cell_to_html(
            value_to_cell(column, value, judging_score, redactor, shown_neighbours)
        )

    values = first_rows[column.name]
    if pa.types.is_floating(values.type) and column.kind != "personal":
        return map(_render_number_cell, values.to_pylist())  # the most frequent kind of cell
    score_column_count = first_rows.column_names.count(column.judged_by)
    scores = first_rows[column.judged_by].to_pylist() if score_column_count else repeat(None)
    # Lists are not hashable, and -0.0 would share a cache entry with 0.0.
    is_uncacheable = pa.types.is_nested(values.type) or pa.types.is_floating(values.type)
    render_cached = render_value if is_uncacheable else cache(render_value)
    prompt_columns = find_prompt_column_by_response_column(columns)
    if column.name in (*prompt_columns, *prompt_columns.values()):
        text_columns = sorted({*prompt_columns, *prompt_columns.values()})
        rows = first_rows.select(text_columns).to_pylist()
        neighbours = [get_shown_neighbours(column.name, row, prompt_columns) for row in rows]
        return map(render_cached, values.to_pylist(), scores, neighbours)
    return map(render_cached, values.to_pylist(), scores)


def _render_number_cell(value: float | None) -> str:
    """Render a number directly, as ``value_to_cell`` and ``_cell_to_html`` would."""
    return (
        f'<td class="number">{value:.6g}</td>' if value is not None else _cell_to_html(EMPTY_CELL)
    )


def _cell_to_html(cell: TableCell) -> str:
    class_attribute = f' class="{cell.css_class}"' if cell.css_class else ""
    ids = " ".join(f"<code>{i}</code>" for i in cell.ids)
    return f"<td{class_attribute}>{ids}{escape(cell.text)}</td>"


def value_to_cell(
    column: Column,
    value: Any,
    judging_score: float | None,
    redactor: Redactor,
    shown_neighbours: TextNeighbours = NO_NEIGHBOURS,
) -> TableCell:
    """Return a value of a column as it may be shown.

    Args:
        column: The column.
        value: The value.
        judging_score: The value of the column that judges this one.
        redactor: Redacts the text.
        shown_neighbours: The texts that the row shows directly before and after the value.
    """
    if value is None:
        return EMPTY_CELL
    if column.kind == "personal":
        return TableCell(
            redactor.redact_by_kind(_value_to_shortened_text(value), column.kind), "text"
        )
    if isinstance(value, bool):
        return TableCell("yes" if value else "no")
    if isinstance(value, int):
        return TableCell(str(value), "number")
    if isinstance(value, float):
        return TableCell(f"{value:.6g}", "number")
    if isinstance(value, list) and all(isinstance(item, bytes) for item in value):
        return TableCell(
            _format_total_suffix(value, _MAX_LIST_IDS),
            ids=[item.hex() for item in value[:_MAX_LIST_IDS]],
        )
    if isinstance(value, bytes):
        return TableCell(ids=[value.hex()])
    if column.kind in ("label", "id", "figure"):
        return TableCell(
            redactor.redact_by_kind(
                _value_to_shortened_text(value), column.kind, max_characters=_MAX_LABEL_CHARACTERS
            )
        )
    return TableCell(
        redactor.redact_by_kind(
            _value_to_shortened_text(value),
            column.kind,
            judging_score,
            shown_neighbours=shown_neighbours,
        ),
        "text",
    )


def _value_to_shortened_text(value: Any) -> str:
    """Return a value as text; long values are shortened."""
    if isinstance(value, list):
        return ", ".join(
            _value_to_shortened_text(item) for item in value[:16]
        ) + _format_total_suffix(value, 16)
    if isinstance(value, tuple):  # an entry of a map
        return ": ".join(map(_value_to_shortened_text, value))
    if isinstance(value, bytes):  # raw input in quarantine
        return value[:8000].decode("utf-8", "backslashreplace")
    return str(value)


def _format_total_suffix(values: Sequence[Any], limit: int) -> str:
    return f" … ({len(values):,} in total)" if len(values) > limit else ""


def value_to_text(
    column: Column, value: Any, judging_score: float | None, redactor: Redactor
) -> str:
    """Return a value of a column as it may be shown, as text."""
    cell = value_to_cell(column, value, judging_score, redactor)
    return " ".join([*cell.ids, cell.text.strip()]).strip()


def is_numeric_type(data_type: pa.DataType) -> bool:
    is_numeric: bool = pa.types.is_integer(data_type) or pa.types.is_floating(data_type)
    return is_numeric
