"""Filter, sort and search the rows that support a figure, and write them as CSV or parquet.

Only what a page may show is compared, found and written: texts as they are redacted, and no
personal data.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hallmark.reports.page.figures import Evidence
from hallmark.reports.page.redaction import (
    NO_NEIGHBOURS,
    SEVERAL_KINDS,
    TRUNCATABLE_KINDS,
    Redactor,
    TextNeighbours,
    find_prompt_column_by_response_column,
    get_shown_neighbours,
    list_searched_texts,
)
from hallmark.reports.page.table_cells import EMPTY_CELL, TableCell, value_to_cell
from hallmark.tasks.audits.judging.evidence_filters import sort_worst_first
from hallmark.tasks.contract import Column, UsageError, format_closest_name_hint
from hallmark.tasks.measures.personal.types import PERSONAL_DATA_TYPES

#: Rows that are redacted and written at once for a download, and rows that are searched at once
#: for what must be redacted: each search takes some time whatever the number of rows.
DOWNLOAD_BATCH_ROWS, SEARCH_BATCH_ROWS = 1000, 5000

#: Values of a column whose redacted forms a download remembers.
MAX_REMEMBERED_VALUES = 10_000

#: Largest number of rows of which the shown cells are searched, and of rows of which texts are
#: redacted to search them, which takes a millisecond each.
MAX_SEARCHED_ROWS, MAX_REDACTED_ROWS = 5000, 1000

#: Largest number of conditions of a query, and of characters of its search. A cell of a page has
#: fewer characters.
MAX_FILTERS, MAX_SEARCH_CHARACTERS = 20, 500

#: What the redaction of a text writes, in lower case, with # for each number.
REPLACEMENT_TEXTS = (
    "[not shown: no toxicity score, # characters]",
    "[not shown: may contain personal data, # characters]",
    "[masked: toxicity score #, # characters]",
    "… [# characters in total]",
    "… (# in total)",
    *(
        f"[{kind.lower()} masked]"
        for kind in (*PERSONAL_DATA_TYPES, "planted secret", SEVERAL_KINDS)
    ),
)

#: Longest text of a label that the redactor reads as a whole.
_MAX_WHOLE_LABEL_CHARACTERS = 4000

Operator = Literal["is", "is-not", "at-least", "at-most"]
OPERATORS: tuple[Operator, ...] = get_args(Operator)

#: Cells of a CSV file that begin with one of these, after spaces and line breaks that some
#: spreadsheets skip, are formulas; so are their full-width forms.
FORMULA_STARTS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")

#: The place before a formula that follows a character at which some spreadsheets separate cells,
#: and perhaps a quotation mark, which begins a quoted cell.
FORMULA_IN_TEXT = re.compile(
    rf"(?<=[;\t\r\n])(?=(?:\"|[^\S\t\r\n])*[{re.escape(''.join(FORMULA_STARTS))}])"
)

#: What every text has that is a formula or contains one, for RE2, which knows only ASCII spaces.
_FORMULA_CANDIDATE = (
    rf"(?:^|[;\t\r\n])(?:\"|[^!-~])*[{re.escape(''.join(FORMULA_STARTS))}]|^[\t\r\n]"
)

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
        if len(columns) > MAX_FILTERS:
            raise UsageError(
                f"the query has {len(columns):,} conditions, but at most {MAX_FILTERS} are "
                "allowed; remove some"
            )
        if not len(columns) == len(operators) == len(texts):
            raise UsageError("each row filter needs a column, an operator and a value")
        unknown = [operator for operator in operators if operator not in OPERATORS]
        if unknown:
            raise UsageError(
                f"{unknown[0]!r:.40} is not a comparison operator; choose from "
                f"{', '.join(OPERATORS)}"
            )
        filters = tuple(
            RowFilter(column, operator, text)  # type: ignore[arg-type]
            for column, operator, text in zip(columns, operators, texts, strict=True)
            if column
        )
        for row_filter in filters:
            if not row_filter.value and row_filter.operator not in ("is", "is-not"):
                raise UsageError(
                    f"the condition on the {row_filter.column!r:.80} column needs a value; only "
                    "the is and is-not operators can be used without one"
                )
        search, sort = values.get("search", [""])[0].strip(), values.get("sort", [""])[0]
        if len(search) > MAX_SEARCH_CHARACTERS:
            raise UsageError(
                f"the search has {len(search):,} characters, but at most {MAX_SEARCH_CHARACTERS} "
                "are allowed; shorten it"
            )
        return cls(filters, search, sort, parse_page_number(values.get("page", ["1"])[0]))

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
        if query.sort:
            self._check_selectable(query.sort.removeprefix("-"))
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
            return column.is_null() if row_filter.operator == "is" else column.is_valid()
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

        Only the cells as they are shown decide, so that a search never tells what is hidden. They
        are built for the rows that contain the text before redaction, and for all others if the
        redaction itself may have written it.
        """
        is_likely, needle = self._find_unredacted_matches(rows, text), text.casefold()
        pending = np.flatnonzero(is_likely)
        if _may_be_replacement(text):
            pending = np.concatenate([pending, np.flatnonzero(~is_likely)])
        is_cut = len(pending) > MAX_SEARCHED_ROWS
        pending = pending[:MAX_SEARCHED_ROWS]
        matching_rows = [pending[:0]]
        for name in self._list_columns_by_cost():
            if self.columns[name].kind in TRUNCATABLE_KINDS:
                is_cut |= len(pending) > MAX_REDACTED_ROWS
                pending = pending[:MAX_REDACTED_ROWS]
            cells = self._build_column_cells(rows.take(pa.array(pending, pa.int64())), name)
            is_match = np.array([needle in _get_cell_text(cell).casefold() for cell in cells], bool)
            matching_rows.append(pending[is_match])
            pending = pending[~is_match]
        row_numbers = np.sort(np.concatenate(matching_rows))
        return SelectedRows(rows.take(pa.array(row_numbers, pa.int64())), is_cut)

    def _list_columns_by_cost(self) -> list[str]:
        """Return the names of the columns, those whose texts must be redacted last."""
        return sorted(self.columns, key=lambda name: self.columns[name].kind in TRUNCATABLE_KINDS)

    def _find_unredacted_matches(self, rows: pa.Table, text: str) -> NDArray[np.bool_]:
        """Return for each row whether it contains a text before redaction."""
        is_match = np.zeros(len(rows), bool)
        for name, column in self.columns.items():
            if column.kind != "personal":
                is_match |= _find_matching_values(rows[name], text)
            if text == EMPTY_CELL.text:
                is_match |= rows[name].is_null().to_numpy().astype(bool)
        return is_match

    def build_cells(self, rows: pa.Table) -> dict[str, list[TableCell]]:
        """Return the cells of rows by column, as they may be shown."""
        return {name: self._build_column_cells(rows, name) for name in rows.column_names}

    def _build_column_cells(self, rows: pa.Table, name: str) -> list[TableCell]:
        return [
            value_to_cell(self.columns[name], value, score, self.redactor, neighbours)
            for value, score, neighbours in self._iter_values(rows, name)
        ]

    def _iter_values(
        self, rows: pa.Table, name: str
    ) -> Iterator[tuple[Any, float | None, TextNeighbours]]:
        """Yield the values of a column, the scores that judge them, and the texts next to them."""
        prompt_columns = self._find_prompt_columns(rows)
        judged_by = self.columns[name].judged_by
        scores = (
            rows[judged_by].to_pylist() if judged_by in rows.column_names else [None] * len(rows)
        )
        text_columns = _list_adjacent_columns(prompt_columns)
        neighbours = (
            [
                get_shown_neighbours(name, row, prompt_columns)
                for row in rows.select(text_columns).to_pylist()
            ]
            if name in text_columns
            else [NO_NEIGHBOURS] * len(rows)
        )
        return zip(rows[name].to_pylist(), scores, neighbours, strict=True)

    def _find_prompt_columns(self, rows: pa.Table) -> dict[str, str]:
        """Return the columns of the prompts by the columns of their continuations."""
        columns = [self.columns[column_name] for column_name in rows.column_names]
        return find_prompt_column_by_response_column(columns)

    def _iter_downloaded_batches(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Yield rows as they are downloaded: numbers unchanged, all else complete but redacted."""
        redact_by_column = {
            name: lru_cache(MAX_REMEMBERED_VALUES)(
                partial(self._redact_complete_value, self.columns[name])
            )
            for name in rows.column_names
        }
        for start in range(0, max(len(rows), 1), DOWNLOAD_BATCH_ROWS):
            if start % SEARCH_BATCH_ROWS == 0:
                self._search_rows(rows[start : start + SEARCH_BATCH_ROWS])
            batch = rows[start : start + DOWNLOAD_BATCH_ROWS]
            yield pa.table(
                {
                    name: batch[name]
                    if self._is_plain_number(name)
                    else self._redact_complete_column(batch, name, redact)
                    for name, redact in redact_by_column.items()
                }
            )

    def _redact_complete_column(
        self, rows: pa.Table, name: str, redact: Callable[..., str | None]
    ) -> pa.Array:
        """Return a column as it may be shown; each distinct value is redacted once.

        Args:
            rows: The rows.
            name: The column.
            redact: Redacts a value with its score and the texts next to it, and remembers results.
        """
        values = rows[name].combine_chunks()
        if pa.types.is_nested(values.type):  # lists cannot be remembered
            redact = partial(self._redact_complete_value, self.columns[name])
        if self._needs_whole_rows(rows, name):
            shown = [redact(*value) for value in self._iter_values(rows, name)]
            return pa.array(shown, pa.large_string())
        encoded = values.dictionary_encode()
        distinct = [redact(value, None, NO_NEIGHBOURS) for value in encoded.dictionary.to_pylist()]
        return pa.array(distinct, pa.large_string()).take(encoded.indices)

    def _needs_whole_rows(self, rows: pa.Table, name: str) -> bool:
        """Return whether equal values of a column may be shown differently, or are lists."""
        return (
            pa.types.is_nested(rows[name].type)
            or self.columns[name].judged_by in rows.column_names
            or name in _list_adjacent_columns(self._find_prompt_columns(rows))
        )

    def _search_rows(self, rows: pa.Table) -> None:
        """Search all texts of rows that may be shown for what must be redacted, all at once."""
        truncatable_texts: dict[str, None] = {}
        whole_texts: dict[str, None] = {}
        for name, column in self.columns.items():
            if name not in rows.column_names or self._is_plain_number(name):
                continue
            entries = (
                self._iter_values(rows, name)
                if self._needs_whole_rows(rows, name)
                else ((value, None, NO_NEIGHBOURS) for value in rows[name].unique().to_pylist())
            )
            for value, judging_score, neighbours in entries:
                if value is None or (column.kind != "personal" and _consists_of_ids(value)):
                    continue
                text = _value_to_text(value)
                if self.redactor.explain_hidden(text, column.kind, judging_score):
                    continue
                if _is_whole_label(text, column):
                    whole_texts[text] = None
                else:
                    truncatable_texts |= dict.fromkeys(list_searched_texts(text, neighbours))
        self.redactor.search_texts(truncatable_texts, whole_texts)

    def _redact_complete_value(
        self, column: Column, value: Any, judging_score: float | None, neighbours: TextNeighbours
    ) -> str | None:
        """Return a value as it may be shown, at its full length; None without a value."""
        if value is None:
            return None
        if column.kind != "personal" and _consists_of_ids(value):
            return _format_ids(value)
        text = _value_to_text(value)
        if reason := self.redactor.explain_hidden(text, column.kind, judging_score):
            return reason
        if _is_whole_label(text, column):
            return self.redactor.redact_by_kind(
                text, column.kind, max_characters=sys.maxsize, shown_neighbours=neighbours
            )
        parts = self.redactor.redact_range(text, (0, len(text)), shown_neighbours=neighbours)
        return "".join(part.text for part in parts)

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
        for batch in self._iter_downloaded_batches(rows):
            columns = [_defuse_column(batch[name]) for name in batch.column_names]
            yield _format_csv_lines(zip(*columns, strict=True))

    def iter_parquet(self, rows: pa.Table) -> Iterator[bytes]:
        """Yield a parquet file of rows in parts."""
        part, writer = _WrittenPart(), None
        for batch in self._iter_downloaded_batches(rows):
            writer = writer or pq.ParquetWriter(part, batch.schema)
            writer.write_table(batch)
            yield part.take()
        if writer is not None:
            writer.close()
        yield part.take()


class _WrittenPart(io.RawIOBase):
    """A file that is taken away in parts while it is written."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._byte_count = 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._pending.append(bytes(content))
        self._byte_count += len(self._pending[-1])
        return len(self._pending[-1])

    def tell(self) -> int:
        return self._byte_count

    def take(self) -> bytes:
        """Return what was written since the last call."""
        content = b"".join(self._pending)
        self._pending.clear()
        return content


def defuse_formula(text: str) -> str:
    """Return a cell of a CSV file so that no spreadsheet executes it or a part as a formula.

    A spreadsheet that separates cells at semicolons or tabs ignores the quotes of a cell that is
    not the first of its row, and also begins a row at a line break in the cell.
    """
    defused = FORMULA_IN_TEXT.sub("'", text)
    is_formula = text.startswith(("\t", "\r", "\n")) or text.lstrip().startswith(FORMULA_STARTS)
    return f"'{defused}" if is_formula else defused


def _defuse_column(values: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column; texts that may be formulas are defused."""
    shown: list[Any] = values.to_pylist()
    if pa.types.is_large_string(values.type):
        is_candidate = pc.fill_null(pc.match_substring_regex(values, _FORMULA_CANDIDATE), False)
        for row in np.flatnonzero(is_candidate.to_numpy()):
            shown[row] = defuse_formula(shown[row])
    return shown


def _is_whole_label(text: str, column: Column) -> bool:
    """Return whether a text is never truncated, and so short that it is redacted as a whole."""
    return column.kind not in TRUNCATABLE_KINDS and len(text) <= _MAX_WHOLE_LABEL_CHARACTERS


def _list_adjacent_columns(prompt_columns: Mapping[str, str]) -> list[str]:
    """List the columns of prompts and of continuations, which are shown next to each other."""
    return sorted({*prompt_columns, *prompt_columns.values()})


def _format_csv_lines(rows: Any) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, quoting=csv.QUOTE_NONNUMERIC).writerows(rows)
    return buffer.getvalue()


def _get_cell_text(cell: TableCell) -> str:
    return " ".join([*cell.ids, cell.text]).strip() if cell.ids else cell.text


def _consists_of_ids(value: Any) -> bool:
    return isinstance(value, bytes) or (
        isinstance(value, list) and all(isinstance(item, bytes) for item in value)
    )


def _format_ids(value: bytes | list[bytes]) -> str:
    """Return an id, or all ids of a list, in hexadecimal form."""
    return " ".join(item.hex() for item in ([value] if isinstance(value, bytes) else value))


def _value_to_text(value: Any) -> str:
    """Return a value of any type as text, at its full length."""
    if isinstance(value, list):
        return ", ".join(map(_value_to_text, value))
    if isinstance(value, tuple):  # an entry of a map
        return ": ".join(map(_value_to_text, value))
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def _find_matching_values(values: pa.ChunkedArray, text: str) -> NDArray[np.bool_]:
    """Return for each value of a column whether it contains a text, in any case."""
    data_type, needle = values.type, text.casefold()
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
        values = values.cast(data_type)
    if pa.types.is_integer(data_type):
        values, data_type = values.cast(pa.string()), pa.string()
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        matches = pc.match_substring(values, text, ignore_case=True)
        is_match: NDArray[np.bool_] = pc.fill_null(matches, False).to_numpy().astype(bool)
        return is_match
    if _has_other_characters(data_type, needle):
        return np.zeros(len(values), bool)
    texts = map(_format_shown_value, values.to_pylist())
    return np.array([needle in shown for shown in texts], bool)


def _has_other_characters(data_type: pa.DataType, needle: str) -> bool:
    """Return whether a text has characters that no value of a type has."""
    if pa.types.is_floating(data_type):
        return not re.fullmatch(r"[-+.0-9aefin]+", needle)
    return _is_binary(data_type) and not re.fullmatch("[0-9a-f]+", needle)


def _format_shown_value(value: Any) -> str:
    """Return a value that is no text as a cell shows it, or more of it, in lower case."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if _consists_of_ids(value):
        return _format_ids(value)
    return "" if value is None else _value_to_text(value).casefold()


def _may_be_replacement(text: str) -> bool:
    """Return whether a redaction may have written a text or a part of it."""
    # Invisible characters are written out, as in ‹U+202E›.
    if re.search(r"[][…█‹›]", text) or re.fullmatch(r"(?i)u?\+?[0-9a-f]{0,6}", text):
        return True
    pattern = re.sub(r"[.,]?\d+(?:[.,]\d+)*(?:[.,]$)?", "#", text.casefold())
    return any(pattern in replacement for replacement in REPLACEMENT_TEXTS)


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
            f"the {row_filter.column} column requires {expected}, not {text!r:.80}"
        ) from error


def _is_binary(data_type: pa.DataType) -> bool:
    is_binary: bool = (
        pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
        or pa.types.is_fixed_size_binary(data_type)
    )
    return is_binary


def parse_page_number(text: str) -> int:
    """Return the number of a page, at least 1.

    Raises:
        UsageError: If it is not one.
    """
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise UsageError(f"{text!r:.40} is not a page number")
    return max(int(text), 1)


def count_pages(row_count: int, page_rows: int) -> int:
    """Return the number of pages of rows, at least 1."""
    return max(1, -(-row_count // page_rows))


def list_query_fields(query: RowQuery, *without: str) -> list[tuple[str, str]]:
    """Return the parameters of a query for hidden fields of a form, without some."""
    return [(name, value) for name, value in query.to_parameters() if name not in without]
