"""Filter, sort and search the rows that support a figure, and write them as CSV or parquet.

Only what a page may show is compared, found and written: texts as they are redacted, and no
personal data.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from hallmark.reports.page.figures import Evidence
from hallmark.reports.page.redaction import (
    NO_NEIGHBOURS,
    Redactor,
    find_prompt_column_by_response_column,
    get_shown_neighbours,
)
from hallmark.reports.page.table_cells import TableCell, value_to_cell
from hallmark.tasks.audits.judging.evidence_filters import sort_worst_first
from hallmark.tasks.contract import Column, UsageError, format_closest_name_hint

#: Rows that are redacted at once for a download.
DOWNLOAD_BATCH_ROWS = 1000

#: Largest number of rows of which the shown text is searched.
MAX_SEARCHED_ROWS = 5000

Operator = Literal["is", "is-not", "at-least", "at-most"]
OPERATORS: tuple[Operator, ...] = get_args(Operator)

#: Cells of a CSV file that begin with one of these, after spaces and line breaks that some
#: spreadsheets skip, are formulas; so are their full-width forms.
FORMULA_STARTS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")

#: The kinds of columns that rows can be sorted and filtered by; the others may hold hidden text.
SELECTABLE_KINDS = ("label", "id", "figure")


@dataclass(frozen=True)
class RowFilter:
    """A condition on a column, as a person states it.

    Attributes:
        column: The name of the column.
        operator: How it is compared.
        value: The text that it is compared with; ids are hexadecimal digits.
    """

    column: str
    operator: Operator
    value: str


@dataclass(frozen=True)
class RowQuery:
    """Which of the rows are shown, in which order.

    Attributes:
        filters: Conditions that all hold.
        search: A text that one of the shown cells contains, in any case.
        sort: The column that orders the rows, with - in front for the largest first; empty for the
            order of the card.
        page: The number of the page, from 1.
    """

    filters: tuple[RowFilter, ...] = ()
    search: str = ""
    sort: str = ""
    page: int = 1

    @classmethod
    def from_parameters(cls, parameters: Sequence[tuple[str, str]]) -> RowQuery:
        """Read a query from the parameters of a permanent link.

        Raises:
            UsageError: If one of them is not valid.
        """
        values: dict[str, list[str]] = {}
        for name, value in parameters:
            values.setdefault(name, []).append(value)
        columns, operators = values.get("column", []), values.get("operator", [])
        texts = values.get("value", [])
        if not len(columns) == len(operators) == len(texts):
            raise UsageError("each filter of the rows needs a column, an operator and a value")
        unknown = [operator for operator in operators if operator not in OPERATORS]
        if unknown:
            raise UsageError(
                f"{unknown[0]!r:.40} is not a comparison operator; choose from "
                f"{', '.join(OPERATORS)}"
            )
        page_text = values.get("page", ["1"])[0]
        if not page_text.isascii() or not page_text.isdecimal() or len(page_text) > 9:
            raise UsageError(f"{page_text!r:.40} is not a page number")
        filters = tuple(
            RowFilter(column, operator, text)  # type: ignore[arg-type]
            for column, operator, text in zip(columns, operators, texts, strict=True)
            if column
        )
        search, sort = values.get("search", [""])[0], values.get("sort", [""])[0]
        return cls(filters, search.strip(), sort, max(int(page_text), 1))

    def to_parameters(self) -> list[tuple[str, str]]:
        """Return the parameters of the permanent link of this query."""
        parameters = [
            pair
            for row_filter in self.filters
            for pair in (
                ("column", row_filter.column),
                ("operator", row_filter.operator),
                ("value", row_filter.value),
            )
        ]
        parameters += [("search", self.search)] if self.search else []
        parameters += [("sort", self.sort)] if self.sort else []
        return parameters + ([("page", str(self.page))] if self.page > 1 else [])

    def format_link(self, path: str = "", **changes: Any) -> str:
        """Return a link to the rows of this query, with changed fields."""
        parameters = replace(self, **changes).to_parameters()
        return f"{path}?{urlencode(parameters)}"

    def remove_filter(self, removed_filter: RowFilter) -> tuple[RowFilter, ...]:
        """Return the filters without one of them."""
        return tuple(kept for kept in self.filters if kept != removed_filter)


class SelectedRows(NamedTuple):
    """The rows of a query.

    Attributes:
        rows: The rows, in their order.
        is_cut: Whether the search stopped early, so that there may be more.
    """

    rows: pa.Table
    is_cut: bool = False


@dataclass(frozen=True)
class RowView:
    """The rows that support figures, as they may be shown.

    Attributes:
        evidence: The selection of rows.
        redactor: Redacts what is shown.
    """

    evidence: Evidence
    redactor: Redactor
    columns: dict[str, Column] = field(init=False)

    def __post_init__(self) -> None:
        columns = {
            name: self.evidence.get_column_description(name) for name in self.evidence.schema.names
        }
        object.__setattr__(self, "columns", columns)

    @property
    def selectable_columns(self) -> list[str]:
        """The names of the columns that rows can be sorted and filtered by."""
        schema = self.evidence.schema
        return [
            name
            for name, column in self.columns.items()
            if column.kind in SELECTABLE_KINDS and not pa.types.is_nested(schema.field(name).type)
        ]

    def select_rows(self, query: RowQuery) -> SelectedRows:
        """Return all rows of a query.

        Raises:
            UsageError: If a column or a value is not valid.
        """
        condition = self.evidence.build_filter_expression()
        for row_filter in query.filters:
            term = self._build_condition(row_filter)
            condition = term if condition is None else condition & term
        sort_column = query.sort.removeprefix("-")
        if sort_column:
            self._check_selectable(sort_column)
        rows = self.evidence.read_rows(condition)
        rows = sort_worst_first(rows, query.sort or self.evidence.row_order)
        return self._search(rows, query.search) if query.search else SelectedRows(rows)

    def _check_selectable(self, column: str) -> None:
        if column not in self.selectable_columns:
            raise UsageError(
                f"rows cannot be sorted or filtered by {column!r:.80}"
                f"{format_closest_name_hint(column, self.selectable_columns)}; choose from "
                f"{', '.join(self.selectable_columns)}"
            )

    def _build_condition(self, row_filter: RowFilter) -> ds.Expression:
        self._check_selectable(row_filter.column)
        column = pc.field(row_filter.column)
        if not row_filter.value:
            return column.is_null() if row_filter.operator != "is-not" else column.is_valid()
        data_type = self.evidence.schema.field(row_filter.column).type
        value = _parse_value(row_filter, data_type)
        return {
            "is": column == value,
            "is-not": (column != value) | column.is_null(),
            "at-least": column >= value,
            "at-most": column <= value,
        }[row_filter.operator]

    def _search(self, rows: pa.Table, text: str) -> SelectedRows:
        """Return the rows with a shown cell that contains a text.

        The rows that contain it before redaction are redacted and searched again, so that a search
        never tells what is hidden.
        """
        mask = pa.array([False] * len(rows))
        for name, column in self.columns.items():
            values = rows[name]
            if pa.types.is_dictionary(values.type):
                values = values.cast(values.type.value_type)
            if column.kind == "personal":
                continue
            if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
                matches = pc.match_substring(values, text, ignore_case=True)
            elif _is_binary(values.type) and _is_hexadecimal(text):
                hexadecimal = [
                    None if i is None else text.lower() in i.hex() for i in values.to_pylist()
                ]
                matches = pa.chunked_array([pa.array(hexadecimal, pa.bool_())])
            else:
                continue
            mask = pc.or_(mask, pc.fill_null(matches, False).combine_chunks())
        candidates = rows.filter(mask)
        is_cut = len(candidates) > MAX_SEARCHED_ROWS
        candidates = candidates[:MAX_SEARCHED_ROWS]
        cells = self.build_cells(candidates)
        needle = text.casefold()
        is_match = [
            any(needle in _get_cell_text(cell).casefold() for cell in row_cells)
            for row_cells in zip(*cells.values(), strict=True)
        ]
        return SelectedRows(candidates.filter(pa.array(is_match, pa.bool_())), is_cut)

    def build_cells(self, rows: pa.Table) -> dict[str, list[TableCell]]:
        """Return the cells of rows by column, as they may be shown."""
        columns = [self.columns[name] for name in rows.column_names]
        prompt_columns = find_prompt_column_by_response_column(columns)
        text_columns = sorted({*prompt_columns, *prompt_columns.values()})
        text_rows = rows.select(text_columns).to_pylist()
        cells = {}
        for column in columns:
            values = rows[column.name].to_pylist()
            is_judged = column.judged_by in rows.column_names
            scores = rows[column.judged_by].to_pylist() if is_judged else [None] * len(rows)
            neighbours = (
                [get_shown_neighbours(column.name, row, prompt_columns) for row in text_rows]
                if column.name in text_columns
                else [NO_NEIGHBOURS] * len(rows)
            )
            cells[column.name] = [
                value_to_cell(column, value, score, self.redactor, shown_neighbours)
                for value, score, shown_neighbours in zip(values, scores, neighbours, strict=True)
            ]
        return cells

    def _iter_shown_batches(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Yield rows as they are downloaded: numbers unchanged, everything else as it is shown."""
        for start in range(0, max(len(rows), 1), DOWNLOAD_BATCH_ROWS):
            batch = rows[start : start + DOWNLOAD_BATCH_ROWS]
            cells = self.build_cells(batch)
            yield pa.table(
                {
                    name: batch[name]
                    if self._is_plain_number(name)
                    else pa.array(
                        [
                            None if value is None else _get_cell_text(cell)
                            for value, cell in zip(
                                batch[name].to_pylist(), cells[name], strict=True
                            )
                        ],
                        pa.string(),
                    )
                    for name in batch.column_names
                }
            )

    def _is_plain_number(self, name: str) -> bool:
        data_type = self.evidence.schema.field(name).type
        is_number = (
            pa.types.is_integer(data_type)
            or pa.types.is_floating(data_type)
            or pa.types.is_boolean(data_type)
        )
        return is_number and self.columns[name].kind != "personal"

    def iter_csv(self, rows: pa.Table) -> Iterator[str]:
        """Yield a CSV file of rows; cells that a spreadsheet would execute are defused."""
        yield _format_csv_lines([map(defuse_formula, rows.column_names)])
        for batch in self._iter_shown_batches(rows):
            columns = [
                [
                    defuse_formula(value) if isinstance(value, str) else value
                    for value in batch[name].to_pylist()
                ]
                for name in batch.column_names
            ]
            yield _format_csv_lines(zip(*columns, strict=True))

    def to_parquet(self, rows: pa.Table) -> bytes:
        """Return a parquet file of rows."""
        buffer = io.BytesIO()
        pq.write_table(pa.concat_tables(self._iter_shown_batches(rows)), buffer)
        return buffer.getvalue()


def defuse_formula(text: str) -> str:
    """Return a cell of a CSV file so that no spreadsheet executes it as a formula."""
    is_formula = text.startswith(("\t", "\r", "\n")) or text.lstrip().startswith(FORMULA_STARTS)
    return f"'{text}" if is_formula else text


def _format_csv_lines(rows: Any) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerows(rows)
    return buffer.getvalue()


def _get_cell_text(cell: TableCell) -> str:
    return " ".join([*cell.ids, cell.text]).strip() if cell.ids else cell.text


def _parse_value(row_filter: RowFilter, data_type: pa.DataType) -> Any:
    """Return the value of a filter as a value of its column.

    Raises:
        UsageError: If it is not one.
    """
    text = row_filter.value
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    expected = "a text"
    try:
        if pa.types.is_boolean(data_type):
            expected = "the value yes or no"
            return {"yes": True, "no": False, "true": True, "false": False}[text.lower()]
        if pa.types.is_integer(data_type) or pa.types.is_floating(data_type):
            expected = "a number"
            is_whole = pa.types.is_integer(data_type) and "." not in text
            return pa.scalar(int(text), pa.int64()) if is_whole else pa.scalar(float(text))
        if _is_binary(data_type):
            expected = "an id in hexadecimal digits"
            return pa.scalar(bytes.fromhex(text), data_type)
        return pa.scalar(text, data_type)
    except (ValueError, KeyError, OverflowError, pa.ArrowException) as error:
        raise UsageError(
            f"the column {row_filter.column} needs {expected}, and {text!r:.80} is not one"
        ) from error


def _is_binary(data_type: pa.DataType) -> bool:
    is_binary: bool = (
        pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
        or pa.types.is_fixed_size_binary(data_type)
    )
    return is_binary


def _is_hexadecimal(text: str) -> bool:
    return bool(text) and all(character in "0123456789abcdef" for character in text.lower())


def count_pages(row_count: int, page_rows: int) -> int:
    """Return the number of pages of rows, at least 1."""
    return max(1, -(-row_count // page_rows))


def list_query_fields(query: RowQuery, *without: str) -> list[tuple[str, str]]:
    """Return the parameters of a query for hidden fields of a form, without some."""
    return [(name, value) for name, value in query.to_parameters() if name not in without]
